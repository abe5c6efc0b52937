"""CDI files read as a runtime reads them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.harness.container import CdiError, Mount, read_edits

KIND = "audio.liken.sh/claim"


def write(folder: Path, file: str, devices: Mapping[str, Mapping[str, Any]], **more: Any) -> None:
    entries = [{"name": name, "containerEdits": edits} for name, edits in devices.items()]
    document = {"cdiVersion": "0.5.0", "kind": KIND, "devices": entries} | more
    (folder / file).write_text(json.dumps(document))


def test_edits_of_several_devices_are_joined_and_the_last_value_wins(tmp_path: Path) -> None:
    mount = {"hostPath": "/a", "containerPath": "/c", "options": ["ro"]}
    write(tmp_path, "one.json", {"1": {"env": ["A=1", "B=x=y"], "mounts": [mount]}})
    write(tmp_path, "two.json", {"2": {"env": ["A=2"], "mounts": [mount | {"hostPath": "/b"}]}})
    edits = read_edits([tmp_path], [f"{KIND}=1", f"{KIND}=2"])
    assert edits.environment == {"A": "2", "B": "x=y"}
    assert edits.mounts == (Mount("/b", "/c", ("ro",)),)


def test_a_device_that_no_file_has_is_an_error_that_names_it(tmp_path: Path) -> None:
    write(tmp_path, "one.json", {"1": {"env": ["A=1"]}})
    with pytest.raises(CdiError, match=r"claim=2.*claim=1"):
        read_edits([tmp_path], [f"{KIND}=2"])


def test_a_device_in_two_files_is_in_neither(tmp_path: Path) -> None:
    write(tmp_path, "one.json", {"1": {"env": ["A=1"]}})
    write(tmp_path, "two.json", {"1": {"env": ["A=1"]}})
    with pytest.raises(CdiError):
        read_edits([tmp_path], [f"{KIND}=1"])


@pytest.mark.parametrize(
    "edits",
    [
        {},
        {"env": ["A"]},
        {"deviceNodes": [{"path": "/dev/snd/controlC0"}]},
        {"hooks": []},
        {"mounts": [{"hostPath": "/a", "containerPath": "/c", "kind": "bind"}]},
    ],
    ids=["empty", "no-variable", "device-nodes", "hooks", "unknown-mount-field"],
)
def test_edits_that_a_claim_should_not_have_are_refused(
    tmp_path: Path, edits: Mapping[str, Any]
) -> None:
    write(tmp_path, "one.json", {"1": edits})
    with pytest.raises(CdiError, match=r"one\.json"):
        read_edits([tmp_path], [f"{KIND}=1"])


def test_a_half_written_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text('{"cdiVersion": "0.5.0", "ki')
    with pytest.raises(CdiError, match=r"one\.json"):
        read_edits([tmp_path], [f"{KIND}=1"])


def test_temporary_files_are_not_read(tmp_path: Path) -> None:
    write(tmp_path, "one.json", {"1": {"env": ["A=1"]}})
    (tmp_path / ".one.json.tmp").write_text("half")
    assert read_edits([tmp_path], [f"{KIND}=1"]).environment == {"A": "1"}
