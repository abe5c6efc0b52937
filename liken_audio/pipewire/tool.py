"""PipeWire's command-line tools as child processes that never outlive us.

A tool gets the path of PipeWire's socket and nothing to type at; it is asked to end (SIGTERM) and
then made to (SIGKILL). Against our own SIGKILL the kernel sends it one: `setpriv --pdeathsig`, in
place before the tool starts. Where setpriv is missing (it belongs to util-linux) this last guard
is missing too.
"""

import asyncio
import contextlib
import os
import shutil
import signal
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable, Sequence

END_SECONDS = 2.0
"""How long a tool has to end once it was asked to."""

CLOSED_SECONDS = 0.5
"""How long one that has closed its output has to end unasked."""

STREAM_LIMIT_BYTES = 2**20
"""How much of a tool's output is held before it has to wait for us."""


async def start(remote: str, command: Sequence[str]) -> Process:
    """Start a tool whose output and errors are read by the caller; `OSError` if it isn't there.

    `remote` is the absolute path of PipeWire's socket, or a name in the runtime directory.
    """
    program = shutil.which(command[0])
    if program is None:
        raise FileNotFoundError(2, "not installed", command[0])
    guard = shutil.which("setpriv")
    prefix = [guard, "--pdeathsig", "KILL", "--"] if guard else []
    return await asyncio.create_subprocess_exec(
        *prefix,
        program,
        *command[1:],
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=PIPE,
        limit=STREAM_LIMIT_BYTES,
        env=os.environ | {"PIPEWIRE_REMOTE": remote, "LC_ALL": "C.UTF-8"},
    )


async def end(process: Process) -> int:
    """End a tool that still runs, and return its exit code, negative for a signal's number.

    To be awaited in a `finally`: it holds up a cancellation for 4.5 s at most.
    """
    try:
        # One that has closed its output is ending: to signal it now could take its exit code.
        is_ending = process.stdout is not None and process.stdout.at_eof()
        if not (is_ending and await _is_drained(process, CLOSED_SECONDS)):
            _send(process.terminate)
        if not await _is_drained(process, END_SECONDS):
            _send(process.kill)
            await _is_drained(process, END_SECONDS)
    except asyncio.CancelledError:
        _send(process.kill)
        raise
    return -signal.SIGKILL if process.returncode is None else process.returncode


def _send(send: Callable[[], None]) -> None:
    """Send a signal; fine if the process has ended this moment."""
    with contextlib.suppress(ProcessLookupError):
        send()


async def _is_drained(process: Process, seconds: float) -> bool:
    """Wait for the end of a process and of its pipes, whose transports stay open until read out."""
    try:
        async with asyncio.timeout(seconds), asyncio.TaskGroup() as tasks:
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    tasks.create_task(_discard(stream))
            tasks.create_task(process.wait())
    except TimeoutError:
        return False
    return True


async def _discard(stream: asyncio.StreamReader) -> None:
    while await stream.read(STREAM_LIMIT_BYTES):
        pass
