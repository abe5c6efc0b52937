"""Programs of the harness end with it, whatever way it ends."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.processes import HarnessError, Programs, Workspace, wait_until

STARTS_ONE = """
import sys, time
from pathlib import Path
from tests.harness.processes import Programs
program = Programs(Path(sys.argv[1])).start("sleeper", ["sleep", "600"])
print(program.pid, flush=True)
time.sleep(600)
"""


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state not in {"Z", "X"}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_parent_leaves_no_program(workspace: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-c", STARTS_ONE, str(workspace)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_alive(pid)
        os.kill(parent.pid, number)
        parent.wait(10)
    wait_until(lambda: not is_alive(pid), "the program's end", 10)


def test_a_program_that_ignores_the_asking_is_killed(workspace: Path) -> None:
    with Programs(workspace) as programs:
        script = "trap '' TERM; echo up; while :; do sleep 0.1; done"
        stubborn = programs.start("stubborn", ["sh", "-c", script])
        wait_until(lambda: "up" in stubborn.log.read_text(), "its start", 10)
        stubborn.end(timeout=0.2)
        assert stubborn.exit_code == -signal.SIGKILL


def test_a_program_that_ends_early_is_an_error_with_its_log(workspace: Path) -> None:
    with Programs(workspace) as programs:
        broken = programs.start("broken", ["sh", "-c", "echo no card; exit 3"])
        with pytest.raises(HarnessError, match=r"(?s)broken ended with code 3.*no card"):
            wait_until(lambda: False, "never", 10, [broken])


def test_a_missing_program_is_named(workspace: Path) -> None:
    with pytest.raises(HarnessError, match="no-such-program isn't installed"):
        Programs(workspace).start("missing", ["no-such-program"])


def test_the_folder_of_a_killed_owner_goes_and_a_living_owners_stays() -> None:
    script = "from tests.harness.processes import Workspace; print(Workspace('test').path)"
    made = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    abandoned = Path(made.stdout.strip())
    with Workspace("test") as living:
        assert abandoned.is_dir()  # just made: its owner may not have its lock yet
        for folder in (abandoned, living.path):
            os.utime(folder, (1, 1))
        with Workspace("test"):
            assert not abandoned.exists()
            assert living.path.is_dir()
    assert not living.path.exists()
