"""What is read below a machine's root folder; the cases that need a process are integration tests."""

from pathlib import Path

import pytest

from liken_audio.doctor.facts import Holder, Reach
from liken_audio.doctor.machine import bus_path, folder, knock, sound


def machine(root: Path, status: str = "closed\n") -> Path:
    (root / "dev" / "snd").mkdir(parents=True)
    for name in ("pcmC0D3p", "pcmC0D0c", "controlC0", "timer"):
        (root / "dev" / "snd" / name).touch()
    substream = root / "proc" / "asound" / "card0" / "pcm3p" / "sub0"
    substream.mkdir(parents=True)
    (substream / "status").write_text(status)
    return root


def test_pcms_are_told_from_other_device_files(tmp_path: Path) -> None:
    found = sound(machine(tmp_path), "")
    assert [Path(each.path).name for each in found.pcms] == ["pcmC0D0c", "pcmC0D3p"]
    assert found.is_there
    assert not found.holders


def test_a_machine_without_sound_has_no_folder(tmp_path: Path) -> None:
    found = sound(tmp_path, "/cards.yaml")
    assert (found.is_there, found.pcms, found.virtual) == (False, (), "/cards.yaml")


def test_a_pcm_that_is_open_outside_of_the_container_has_a_holder_without_a_name(
    tmp_path: Path,
) -> None:
    found = sound(machine(tmp_path, "state: RUNNING\nowner_pid   : 0\n"), "")
    assert found.holders == (Holder(str(tmp_path / "dev" / "snd" / "pcmC0D3p"), 0),)


@pytest.mark.parametrize(
    ("address", "path"),
    [
        ("unix:path=/run/dbus/system_bus_socket", "/run/dbus/system_bus_socket"),
        ("unix:path=/a,guid=1;unix:path=/b", "/a"),
        ("tcp:host=localhost", ""),
        ("", ""),
    ],
)
def test_the_socket_of_a_bus_is_read_from_its_address(address: str, path: str) -> None:
    assert bus_path(address) == path


def test_nobody_answers_at_a_path_where_there_is_no_socket(tmp_path: Path) -> None:
    assert knock(str(tmp_path / "none")) is Reach.ABSENT
    assert knock("") is Reach.ABSENT


def test_a_folder_is_there_and_takes_a_file_or_not(tmp_path: Path) -> None:
    assert folder("--cdi-dir", str(tmp_path)).is_writable
    assert not list(tmp_path.iterdir())
    missing = folder("--cdi-dir", str(tmp_path / "none"))
    assert (missing.is_there, missing.is_writable) == (False, False)
