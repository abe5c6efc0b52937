"""Programs that run beside a test or the demo, and end with it whatever way it ends.

Each runs in a session of its own, so that Ctrl-C reaches only us and we end them in order; each
asks the kernel to be killed when our process dies, so that even a SIGKILL leaves nothing. What a
program prints goes to a log file, whose end is part of every error about it.
"""

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

LOG_LINES_SHOWN = 25
LOG_COLUMNS_SHOWN = 300
POLL_SECONDS = 0.05
_ABANDONED_SECONDS = 10
# Each of them execs the next, so the pid is the program's. If we died before the kernel was asked, it
# tells nobody, so the parent is looked at once more.
_DIES_WITH_US = (
    *("setpriv", "--pdeathsig", "KILL", "--"),
    *("/bin/sh", "-c", '[ "$PPID" = "$0" ] || exit 1; exec "$@"'),
)


def python_cache() -> Mapping[str, str]:
    """The variable that keeps Python's compiled modules out of the tree, for an environment."""
    prefix = os.environ.get("PYTHONPYCACHEPREFIX")
    return {"PYTHONPYCACHEPREFIX": prefix} if prefix else {"PYTHONDONTWRITEBYTECODE": "1"}


class HarnessError(Exception):
    """A part of the harness didn't come up, or broke; the message holds what a reader needs."""


class Program:
    """One running program with its log."""

    def __init__(
        self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str]
    ) -> None:
        self.name = name
        self.log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [*_DIES_WITH_US, str(os.getpid()), *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Process id of the program itself."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative: ended by that signal."""
        return self._process.poll()

    def check(self) -> None:
        """Raise `HarnessError` with the end of the log when the program has ended."""
        if self.exit_code is not None:
            raise HarnessError(f"{self.name} ended with code {self.exit_code}\n{self.log_end()}")

    def log_end(self, lines: int = LOG_LINES_SHOWN) -> str:
        """The last lines that it printed, under the name of the log file."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        shown = [line[:LOG_COLUMNS_SHOWN] for line in text.splitlines()[-lines:]]
        return "\n".join([f"--- {self.log}, last {len(shown)} lines", *shown])

    def send(self, number: signal.Signals) -> None:
        """Send a signal; fine if it has ended."""
        if self.exit_code is None:
            self._process.send_signal(number)

    def wait(self, timeout: float) -> int:
        """Wait for its end and return its code; `HarnessError` after `timeout` seconds."""
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise HarnessError(
                f"{self.name} still runs after {timeout:.0f} s\n{self.log_end()}"
            ) from None

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Let it hang, as on a machine that swaps: it lives, keeps its sockets and does nothing."""
        self.send(signal.SIGSTOP)
        try:
            yield
        finally:
            self.send(signal.SIGCONT)

    def kill(self) -> None:
        """End it at once, as a crash would, and wait until it is gone."""
        self.send(signal.SIGKILL)
        self.wait(10)

    def end(self, timeout: float = 5) -> None:
        """Ask it to end, kill it when it doesn't within `timeout` seconds."""
        self.send(signal.SIGTERM)
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()


class Programs:
    """A group of programs with one folder; a context manager that ends all, the newest first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._running: list[Program] = []

    def start(
        self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> Program:
        """Start a program whose log is `<name>.log`; `environment` is all that it gets."""
        if shutil.which(command[0]) is None:
            raise HarnessError(f"{command[0]} isn't installed: run tests/harness/setup.sh")
        program = Program(name, command, self.folder / f"{name}.log", environment or os.environ)
        self._running.append(program)
        return program

    def end(self) -> None:
        """End all: asked together, then waited for, so that it takes as long as the slowest."""
        for program in reversed(self._running):
            program.send(signal.SIGTERM)
        for program in reversed(self._running):
            program.end()
        self._running.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.end()


def wait_until(
    is_so: Callable[[], bool], what: str, timeout: float, programs: Sequence[Program] = ()
) -> None:
    """Ask again and again until `is_so`; `HarnessError` after `timeout` s or when one ends."""
    deadline = time.monotonic() + timeout
    while not is_so():
        for program in programs:
            program.check()
        if time.monotonic() > deadline:
            ends = "\n".join(program.log_end() for program in programs)
            raise HarnessError(f"{what}: not within {timeout:.0f} s\n{ends}".rstrip())
        time.sleep(POLL_SECONDS)


class Workspace:
    """A temporary folder that only we can read; removed at the end.

    Who makes one also removes those whose owner was killed: each owner holds a lock on its folder.
    """

    _PREFIX = "liken-audio-"

    def __init__(self, purpose: str) -> None:
        self._remove_abandoned()
        self.path = Path(tempfile.mkdtemp(prefix=f"{self._PREFIX}{purpose}-"))
        self._lock = _lock(self.path)

    def folder(self, name: str, mode: int = 0o700) -> Path:
        """Make a folder in it; the workspace's own mode still decides who reaches it."""
        folder = self.path / name
        folder.mkdir(mode=mode, parents=True, exist_ok=True)
        return folder

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @classmethod
    def _remove_abandoned(cls) -> None:
        youngest = time.time() - _ABANDONED_SECONDS
        for folder in Path(tempfile.gettempdir()).glob(f"{cls._PREFIX}*-*"):
            try:
                # A folder just made isn't locked yet.
                is_old = folder.stat().st_mtime < youngest and folder.stat().st_uid == os.geteuid()
            except OSError:
                continue
            lock = _lock(folder) if is_old else None
            if lock is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(lock)


def _lock(folder: Path) -> int | None:
    """Take the folder's lock; None when somebody holds it. It ends with the process at the latest."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle
