"""Runs in the guest: does what the host asks for, one call after the other, over a virtio port.

    python -m tests.harness.guest.inside PORT FOLDER

Each line that comes is a call of a function, by name, each line that goes its result or the words
of its error. The functions of this module run programs in the guest.
"""

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.harness import processes
from tests.harness.processes import HarnessError, Program, Programs, wait_until

RUN_SECONDS = 300.0
RUN_FOLDER = Path("/run/harness")
"""In the guest's memory: sockets can't be in a shared folder."""


class _State:
    """What the guest runs for the host."""

    def __init__(self) -> None:
        self.programs = Programs(RUN_FOLDER)
        self.running: dict[str, Program] = {}


_state = _State()


def run(
    command: Sequence[str],
    environment: Mapping[str, str] | None = None,
    *,
    check: bool = True,
    timeout: float = RUN_SECONDS,
) -> str:
    """Run a program to its end and return what it printed; with `check` an exit code is an error."""
    try:
        done = subprocess.run(
            command,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise HarnessError(
            f"{' '.join(command)}: no end in {timeout:.0f} s: {error.stdout!r}"
        ) from None
    if check and done.returncode != 0:
        raise HarnessError(f"{' '.join(command)}: {done.returncode}: {done.stdout.strip()}")
    return done.stdout


def start(name: str, command: Sequence[str], environment: Mapping[str, str] | None = None) -> int:
    """Start a program that goes on; return its process id."""
    full = {**os.environ, **(environment or {})}
    _state.running[name] = _state.programs.start(name, command, full)
    return _state.running[name].pid


def is_running(name: str) -> bool:
    """Whether a started program hasn't ended."""
    return _state.running[name].exit_code is None


def stop(name: str, number: int = signal.SIGTERM, timeout: float = 20) -> int:
    """Send a signal and wait for the end; return the exit code."""
    program = _state.running[name]
    program.send(signal.Signals(number))
    return program.wait(timeout)


def wait(name: str, timeout: float) -> int:
    """Wait for a program's own end; return the exit code."""
    return _state.running[name].wait(timeout)


def log(name: str) -> str:
    """All that a started program printed."""
    return _state.running[name].log.read_text(errors="replace")


def wait_logged(name: str, text: str, timeout: float) -> None:
    """Wait until a started program has printed the text."""
    program = _state.running[name]
    wait_until(lambda: text in log(name), f"{name}: {text}", timeout, [program])


def read(path: str) -> str:
    """A file's text."""
    return Path(path).read_text(errors="replace")


def exists(path: str) -> bool:
    """Whether a file is there."""
    return Path(path).exists()


def started() -> list[str]:
    """Names of the programs that were started."""
    return sorted(_state.running)


def python() -> str:
    """The virtual environment's Python."""
    return sys.executable


def uptime() -> float:
    """Seconds since the guest's kernel started."""
    return float(read("/proc/uptime").split()[0])


def _answer(line: str) -> Mapping[str, Any]:
    request = json.loads(line)
    module, _, name = request["function"].partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
        return {"result": function(*request["arguments"], **request["keywords"])}
    except HarnessError as error:
        return {"error": str(error)}
    except Exception as error:  # noqa: BLE001 the caller is told, whatever it is
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"}


def _serve(port: Path) -> None:
    with port.open("r+b", buffering=0) as channel:
        channel.write(json.dumps({"uptime": uptime()}).encode() + b"\n")
        for line in _lines(channel.fileno()):
            _write_all(channel.fileno(), json.dumps(_answer(line)).encode() + b"\n")


def _lines(handle: int) -> Iterator[str]:
    rest = b""
    while data := os.read(handle, 65_536):
        rest += data
        *whole, rest = rest.split(b"\n")
        yield from (each.decode() for each in whole)


def _write_all(handle: int, data: bytes) -> None:
    while data:
        data = data[os.write(handle, data) :]


def main() -> None:
    """Serve until the host lets go of the port."""
    RUN_FOLDER.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Each look is a program that an emulated processor has to run.
    processes.POLL_SECONDS = 0.5
    with contextlib.suppress(KeyboardInterrupt), _state.programs:
        _serve(Path(sys.argv[1]))


if __name__ == "__main__":
    # Functions are called by this module's name: its state must be theirs.
    sys.modules["tests.harness.guest.inside"] = sys.modules["__main__"]
    main()
