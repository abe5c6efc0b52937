"""A device file that another program holds, that we have no right to, a folder that is read-only."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from liken_audio.doctor.facts import Reach
from liken_audio.doctor.machine import folder, knock, sound
from tests.harness.node import TREE
from tests.harness.processes import Programs, python_cache, wait_until

NOBODY = 65534


@pytest.fixture
def machine(workspace: Path) -> Path:
    """A root folder with one PCM, and this machine's processes."""
    root = workspace / "machine"
    (root / "dev" / "snd").mkdir(parents=True)
    (root / "dev" / "snd" / "pcmC0D0p").touch()
    (root / "proc").symlink_to("/proc")
    return root


@pytest.fixture
def programs(workspace: Path) -> Iterator[Programs]:
    with Programs(workspace) as made:
        yield made


def hold(programs: Programs, pcm: Path, name: str) -> int:
    """Start a program that has the PCM open, and calls itself so."""
    code = f"import time; open('/proc/self/comm', 'w').write({name!r}); f = open({str(pcm)!r}); time.sleep(600)"
    program = programs.start(name, [sys.executable, "-c", code])
    is_open = lambda: any(  # noqa: E731
        each.resolve() == pcm for each in Path(f"/proc/{program.pid}/fd").iterdir()
    )
    wait_until(is_open, f"{pcm} held", 30, [program])
    return program.pid


def test_a_host_sound_server_that_holds_a_card_is_named(machine: Path, programs: Programs) -> None:
    pid = hold(programs, machine / "dev" / "snd" / "pcmC0D0p", "pulseaudio")
    (found,) = sound(machine, "").holders
    assert (found.pid, found.program) == (pid, "pulseaudio")


def test_our_own_pipewire_is_no_host_sound_server(machine: Path, programs: Programs) -> None:
    hold(programs, machine / "dev" / "snd" / "pcmC0D0p", "pipewire")
    assert not sound(machine, "").holders


def test_a_pcm_of_a_group_that_we_are_not_in_is_told(machine: Path, workspace: Path) -> None:
    pcm = machine / "dev" / "snd" / "pcmC0D0p"
    pcm.chmod(0o660)
    workspace.chmod(0o755)
    assert sound(machine, "").pcms[0].is_usable
    # It becomes nobody once it has loaded the code, which nobody may have no right to read.
    code = (
        "import os; from pathlib import Path; from liken_audio.doctor.machine import sound;"
        f" os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY});"
        f" print(sound(Path({str(machine)!r}), '').pcms[0].is_usable)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=TREE,
        env={"PYTHONPATH": str(TREE), **python_cache()},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.strip() == "False", done.stderr


def test_a_socket_where_nobody_listens_refuses(workspace: Path) -> None:
    import socket

    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(workspace / "bus"))
        server.listen()
        assert knock(str(workspace / "bus")) is Reach.ANSWERS
    assert knock(str(workspace / "bus")) is Reach.REFUSES


def test_a_folder_that_is_mounted_read_only_takes_no_file_of_root_s(workspace: Path) -> None:
    (workspace / "cdi").mkdir()
    code = f"from liken_audio.doctor.machine import folder; print(folder('--cdi-dir', {str(workspace / 'cdi')!r}).is_writable)"
    mount = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'
    command = [
        "unshare",
        "--mount",
        "sh",
        "-c",
        mount,
        str(workspace / "cdi"),
        sys.executable,
        "-c",
        code,
    ]
    done = subprocess.run(
        command,
        cwd=TREE,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.strip() == "False", done.stderr
    assert folder("--cdi-dir", str(workspace / "cdi")).is_writable
