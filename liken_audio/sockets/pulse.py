"""A claim's PulseAudio socket, and the pipewire-pulse behind it while somebody uses it.

The socket always listens; pipewire-pulse is started by the first connection, given the socket as
systemd would give it, and ended when nobody has been connected for a while. A connection that comes
at the wrong moment waits in the socket's backlog for the next one.

It plays through a security context of its own, made for its time, so that it may ask nodes for
their formats and set their volume where the class allows that, which the container's own clients
may not: see `claim-access.lua`.
"""

import asyncio
import contextlib
import fcntl
import os
import resource
import shutil
import signal
import socket
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import structlog

from liken_audio.sockets.context import listen
from liken_audio.sockets.gate import Gate

IDLE_SECONDS = 30.0
"""How long pipewire-pulse stays when no client is connected."""
LOOK_INTERVAL = 1.0
"""Seconds between looks at who is connected, and at the memory."""
MOST_MEMORY = 128 * 1024 * 1024
"""Resident bytes at which pipewire-pulse is ended: clients may upload and buffer without a limit,
100 MB a second, in memory that the sockets of all claims depend on. It needs 10 MB and 4 MB more for
each stream at most."""
_CONFIGURATION = Path(__file__).with_name("pipewire-pulse.conf")
_FIRST_RETRY = 0.5
_LONGEST_RETRY = 30.0
_LONG_ENOUGH = 5.0
"""A pipewire-pulse that ran so long has not failed to start."""
_LISTENING = 3
"""Descriptor of the first socket that a program is given by systemd's convention."""
_LONGEST_LINE = 500
_MOST_LINES = 20
"""Lines that are logged of a pipewire-pulse in a minute: its clients can have it write any number."""

# LISTEN_PID has to be the program's own: the shell knows it, and execs. The limit, in KiB of data, is
# for what comes between two looks.
_LAUNCH = ("sh", "-c", 'ulimit -d 524288; LISTEN_PID=$$ exec "$@"', "sh", "setpriv")
_LAUNCH_OPTIONS = ("--pdeathsig", "KILL", "--no-new-privs", "--")

_log = structlog.get_logger(__name__)


class PulseServer:
    """The socket of one claim at `path`, from `start` to `end`.

    `private` is a folder for pipewire-pulse's time, where nobody else can enter: `connect` makes
    its security context in there, at a path that must not be long.
    """

    def __init__(
        self, path: Path, private: Path, connect: Callable[[Path], Awaitable[Gate]]
    ) -> None:
        self._private = private
        self._remote = private / "pipewire"
        self._connect = connect
        new = path.with_name(f".{path.name}")
        self._socket = listen(new)
        self._inode = new.stat().st_ino
        new.replace(path)
        self._process: _Process | None = None
        self._task: asyncio.Task[None] | None = None
        self.started = 0
        """How many times pipewire-pulse was started."""

    def is_at(self, path: Path) -> bool:
        """Whether the file at `path` is still this socket."""
        try:
            return path.stat().st_ino == self._inode
        except OSError:
            return False

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Serve in a task of the group, until `end`."""
        self._task = tasks.create_task(self._run())
        self._task.add_done_callback(lambda _: self._socket.close())

    def end(self) -> None:
        """Cut all clients and stop listening; the socket's file stays."""
        if self._process is not None:
            self._process.kill()
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        retry = _FIRST_RETRY
        while True:
            await _readable(self._socket.fileno())
            begun = loop.time()
            try:
                await self._serve()
            except (OSError, TimeoutError) as error:
                _log.warning(
                    "claim has no pipewire-pulse", uid=self._private.name, reason=str(error)
                )
                self._turn_away()
            if loop.time() - begun >= _LONG_ENOUGH:
                retry = _FIRST_RETRY
            else:
                await asyncio.sleep(retry)
                retry = min(2 * retry, _LONGEST_RETRY)

    async def _serve(self) -> None:
        """Run pipewire-pulse until it ends or nobody uses it; `OSError` when it can't start."""
        self._private.mkdir(mode=0o700, exist_ok=True)
        gate = await self._connect(self._remote)
        try:
            process = self._process = _Process(self._command(), self._environment(), self._socket)
            self.started += 1
            try:
                await self._until_idle(process)
            finally:
                self._process = None
                exit_code = process.close()
        finally:
            gate.close()
            shutil.rmtree(self._private)
        if exit_code >= 0:
            raise ChildProcessError(f"pipewire-pulse ended with code {exit_code}")

    async def _until_idle(self, process: "_Process") -> None:
        loop = asyncio.get_running_loop()
        used_at = loop.time()
        listening = os.fstat(self._socket.fileno()).st_ino
        while not await process.ended(LOOK_INTERVAL):
            if process.memory() > MOST_MEMORY:
                raise ChildProcessError(f"its pipewire-pulse took over {MOST_MEMORY >> 20} MiB")
            if process.is_used(listening):
                used_at = loop.time()
            elif loop.time() - used_at >= IDLE_SECONDS and process.stop_if_unused(listening):
                return

    def _turn_away(self) -> None:
        """End the connections that wait, so that a client gets an error and not silence."""
        with contextlib.suppress(OSError):
            while True:
                self._socket.accept()[0].close()

    def _command(self) -> list[str]:
        address = f"unix:{self._socket.getsockname()}"
        text = _CONFIGURATION.read_text().replace("@SOCKET@", address)
        configuration = self._private / _CONFIGURATION.name
        configuration.write_text(text)
        return ["pipewire-pulse", "-c", str(configuration)]

    def _environment(self) -> Mapping[str, str]:
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "LANG": "C.UTF-8",
            "LISTEN_FDS": "1",
            # Errors only: a warning for each refusal would let a client fill the log.
            "PIPEWIRE_DEBUG": "1",
            # The environment's remote beats any that a client asks for.
            "PIPEWIRE_REMOTE": str(self._remote),
            "PULSE_RUNTIME_PATH": str(self._private),
            "XDG_RUNTIME_DIR": str(self._private),
            # Beats what a client says of its stream, which could have a file written here.
            "PIPEWIRE_PROPS": '{ debug.wav-path = "" }',
        }


class _Process:
    """One pipewire-pulse; what it prints goes to the log."""

    def __init__(
        self, command: list[str], environment: Mapping[str, str], listening: socket.socket
    ) -> None:
        self._output, output = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        fcntl.fcntl(output, fcntl.F_SETFL, 0)
        try:
            self._pid = os.posix_spawnp(
                _LAUNCH[0],
                [*_LAUNCH, *_LAUNCH_OPTIONS, *command],
                environment,
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, output, 1),
                    (os.POSIX_SPAWN_DUP2, output, 2),
                    (os.POSIX_SPAWN_DUP2, listening.fileno(), _LISTENING),
                ],
                setsigmask=[],
                setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
            )
        except BaseException:
            os.close(self._output)
            raise
        finally:
            os.close(output)
        self._lines, self._lines_since = 0, float("-inf")
        self._handle = os.pidfd_open(self._pid)
        asyncio.get_running_loop().add_reader(self._output, self._log_output)

    async def ended(self, seconds: float) -> bool:
        """Whether it ends within so many seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await _readable(self._handle)
                return True
        return False

    def is_used(self, listening: int) -> bool:
        """Whether it has any socket but the listening one, whose inode is given."""
        return bool(self._sockets() - {f"socket:[{listening}]"})

    def memory(self) -> int:
        """Resident bytes; 0 when it has just ended."""
        try:
            pages = Path(f"/proc/{self._pid}/statm").read_text().split()[1]
        except (OSError, IndexError):
            return 0
        return int(pages) * resource.getpagesize()

    def stop_if_unused(self, listening: int) -> bool:
        """Stop it so that it accepts nobody, and let it go on when it just did."""
        self._signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        if not self.is_used(listening):
            return True
        self._signal(signal.SIGCONT)
        return False

    def kill(self) -> None:
        """End it and its clients' connections at once."""
        self._signal(signal.SIGKILL)

    def close(self) -> int:
        """End it if it still runs; return its exit code, or the signal's number below zero."""
        self.kill()
        asyncio.get_running_loop().remove_reader(self._output)
        self._log_output()
        os.close(self._output)
        os.close(self._handle)
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])

    def _sockets(self) -> set[str]:
        found = set()
        for path in Path(f"/proc/{self._pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                found.add(str(path.readlink()))
        return {each for each in found if each.startswith("socket:")}

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, number)

    def _log_output(self) -> None:
        try:
            data = os.read(self._output, 4096)
        except BlockingIOError:
            return
        if not data:
            asyncio.get_running_loop().remove_reader(self._output)
        now = asyncio.get_running_loop().time()
        if now - self._lines_since >= 60:
            self._lines, self._lines_since = 0, now
        for line in data.decode(errors="replace").splitlines()[: _MOST_LINES - self._lines]:
            self._lines += 1
            _log.warning("pipewire-pulse says", line=line[:_LONGEST_LINE])


async def _readable(descriptor: int) -> None:
    """Wait until a descriptor can be read."""
    loop = asyncio.get_running_loop()
    is_so = asyncio.Event()
    loop.add_reader(descriptor, is_so.set)
    try:
        await is_so.wait()
    finally:
        loop.remove_reader(descriptor)
