"""The process that holds the claims' sockets, so that pods play on while the agent is restarted.

PipeWire disconnects the clients of a security context when the other end of its closing
descriptor hangs up. Unprepare wants that; a crash of the agent must not have it. So this small
process owns these descriptors: it has no cluster rights and lives as long as PipeWire.

Level-triggered: a folder `<claims dir>/<uid>` with a `claim.json` in it has a socket, anything
else has none. It looks when it is asked (a line of JSON on the control socket: `{"sync": "<uid>"}`
→ `{"live": true}`, `{"live": false}` or `{"error": "…"}`), when PipeWire comes back, and once a
second, so a lost request costs a second and no more. A socket is made under a hidden name and
renamed over the old one, in the folder that the container has mounted.
"""

import asyncio
import contextlib
import fcntl
import json
import resource
import shutil
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import structlog

from liken_audio.dra.claim_folder import (
    CLAIM_FILE,
    PULSE_SOCKET,
    SERVER_PROPERTY,
    SOCKET,
    client_properties,
    is_claim_uid,
)
from liken_audio.sockets.connection import PipeWireConnection
from liken_audio.sockets.context import make_context
from liken_audio.sockets.gate import Gate
from liken_audio.sockets.pulse import PulseServer

LOOK_INTERVAL = 1.0
"""Seconds between looks at the folders."""
REQUEST_SECONDS = 8.0
"""Longest wait for PipeWire before a request is answered with an error."""
_FIRST_RETRY = 0.1
_LONGEST_RETRY = 2.0

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What a claim's file asks for."""

    properties: Mapping[str, str]
    """Of the claim's clients."""
    has_pulse: bool


@dataclass(frozen=True, slots=True)
class _Held:
    """A claim's sockets that we keep alive."""

    wanted: _Wanted
    claim_file: tuple[int, int]
    """Inode and time of the claim file that they were made for."""
    gate: Gate
    pulse: PulseServer | None

    def is_at(self, folder: Path) -> bool:
        """Whether the files in the claim's folder are still those of its sockets."""
        is_pulse_there = self.pulse is None or self.pulse.is_at(folder / PULSE_SOCKET)
        return is_pulse_there and self.gate.is_at(folder / SOCKET)


class Holder:
    """Keeps one security context for each claim folder."""

    def __init__(self, claims_dir: Path, remote: str, control: Path) -> None:
        self._claims_dir = claims_dir
        self._remote = remote
        self._control = control
        self._held: dict[str, _Held] = {}
        self._connection: PipeWireConnection | None = None
        self._connected = asyncio.Event()
        self._tasks: asyncio.TaskGroup | None = None
        self._private = control.parent / f"{control.name}.pulse"
        """Folder of the sockets that pipewire-pulse connects to."""
        self._contexts = control.parent / f"{control.name}.contexts"
        """Folder of the sockets that PipeWire listens on, behind the claims' own."""
        self._one_at_a_time = asyncio.Lock()
        self._reported: dict[str, str] = {}
        self.created = 0
        """How many contexts were made."""

    async def run(self) -> None:
        """Hold the sockets until cancelled."""
        self._claims_dir.mkdir(parents=True, exist_ok=True, mode=0o755)
        self._control.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
        self._private.mkdir(exist_ok=True, mode=0o700)
        with (self._control.parent / f"{self._control.name}.lock").open("w") as lock:
            await _only_one(lock.fileno())
            shutil.rmtree(self._contexts, ignore_errors=True)  # of one that was killed
            self._contexts.mkdir(mode=0o700)
            try:
                async with asyncio.TaskGroup() as tasks:
                    self._tasks = tasks
                    tasks.create_task(self._stay_connected())
                    tasks.create_task(self._look())
                    tasks.create_task(self._serve(tasks))
            finally:
                for uid in list(self._held):
                    self._drop(uid)

    async def sync(self, uid: str) -> bool:
        """Bring one claim's socket in line with its folder; return whether it is live.

        Raises `OSError` or `TimeoutError` when it should be live and can't.
        """
        async with self._one_at_a_time:
            wanted = self._wanted(uid)
            if wanted is None:
                self._drop(uid)
                return False
            held = self._held.get(uid)
            if held is None or held.wanted != wanted or not held.is_at(self._claims_dir / uid):
                await self._create(uid, wanted)
            return True

    async def _stay_connected(self) -> None:
        retry = _FIRST_RETRY
        while True:
            try:
                await self._stay_connected_once()
            except* (OSError, TimeoutError) as group:
                reason = _reason(group)
                if self._connected.is_set():
                    retry = _FIRST_RETRY
                self._report("pipewire", "not connected to PipeWire", reason)
            self._connected.clear()
            await asyncio.sleep(retry)
            retry = min(2 * retry, _LONGEST_RETRY)

    async def _stay_connected_once(self) -> None:
        connection = await PipeWireConnection.connect(self._remote)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(connection.serve())
                await connection.set_up()
                self._connection = connection
                self._connected.set()
                self._reported.pop("pipewire", None)
                _log.info("connected to PipeWire", path=connection.path)
                self._forget_dead()
                await self._sync_all()
        finally:
            self._connection = None
            connection.close()

    async def _look(self) -> None:
        while True:
            if self._connection is not None:
                await self._sync_all()
            await asyncio.sleep(LOOK_INTERVAL)

    async def _sync_all(self) -> None:
        folders = {path.name for path in self._claims_dir.iterdir() if is_claim_uid(path.name)}
        for uid in sorted(folders | self._held.keys()):
            if self._is_untouched(uid):
                continue
            try:
                await self.sync(uid)
            except (OSError, TimeoutError) as error:
                self._report(uid, "claim has no socket", str(error))
            else:
                self._reported.pop(uid, None)

    def _wanted(self, uid: str) -> _Wanted | None:
        """Return what the claim's file asks for; None when there is to be no socket."""
        try:
            document = json.loads((self._claims_dir / uid / CLAIM_FILE).read_bytes())
            return _Wanted(client_properties(document), document.get("pulse") is True)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise OSError(f"{CLAIM_FILE} of claim {uid} can't be read: {error!r}") from error

    def _is_untouched(self, uid: str) -> bool:
        """Whether nothing has happened to a claim with a socket: two looks, and no file read."""
        held = self._held.get(uid)
        folder = self._claims_dir / uid
        return (
            held is not None
            and held.is_at(folder)
            and _identity(folder / CLAIM_FILE) == held.claim_file
        )

    def _forget_dead(self) -> None:
        """Drop contexts whose PipeWire is gone: nobody listens behind their sockets any more.

        A connection can also break while PipeWire lives; its contexts, and the pods that play
        through them, then live on.
        """
        for uid, held in list(self._held.items()):
            if not held.gate.is_alive():
                self._drop(uid)

    async def _create(self, uid: str, wanted: _Wanted) -> None:
        folder = self._claims_dir / uid
        claim_file = _identity(folder / CLAIM_FILE)
        inner = self._contexts / f"{uid}.{self.created}"
        gate = await self._open_gate(folder / SOCKET, inner, wanted.properties)
        self._drop(uid)
        try:
            pulse = self._start_pulse(uid, wanted.properties) if wanted.has_pulse else None
        except OSError:
            gate.close()
            raise
        self._held[uid] = _Held(wanted, claim_file, gate, pulse)
        self.created += 1
        _log.info("claim's socket serves", uid=uid, claim=wanted.properties["pipewire.sec.app-id"])

    async def _open_gate(self, path: Path, inner: Path, properties: Mapping[str, str]) -> Gate:
        """Make a security context at `inner`, and the way in to it at `path`."""
        connection, tasks = self._connection, self._tasks
        if connection is None or tasks is None:
            raise ConnectionError(f"PipeWire isn't there: no connection to {self._remote}")
        context = await make_context(connection, inner, properties)
        try:
            gate = Gate(path, inner, context, properties["pipewire.sec.instance-id"])
        except OSError:
            context.close()
            raise
        gate.start(tasks)
        return gate

    def _start_pulse(self, uid: str, properties: Mapping[str, str]) -> PulseServer:
        async def connect(path: Path) -> Gate:
            inner = path.with_name(f"{path.name}.context")
            return await self._open_gate(path, inner, {**properties, SERVER_PROPERTY: "pulse"})

        server = PulseServer(self._claims_dir / uid / PULSE_SOCKET, self._private / uid, connect)
        if self._tasks is not None:
            server.start(self._tasks)
        return server

    def _drop(self, uid: str) -> None:
        held = self._held.pop(uid, None)
        self._reported.pop(uid, None)
        if held is not None:
            held.gate.close()
            if held.pulse is not None:
                held.pulse.end()
            _log.info("claim's socket ended", uid=uid)

    async def _serve(self, tasks: asyncio.TaskGroup) -> None:
        def start(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            tasks.create_task(self._converse(reader, writer))

        with contextlib.suppress(FileNotFoundError):
            self._control.unlink()
        server = await asyncio.start_unix_server(start, self._control)
        self._control.chmod(0o660)  # the agent may be another user of our group
        try:
            async with server:
                await server.serve_forever()
        finally:
            with contextlib.suppress(FileNotFoundError):
                self._control.unlink()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # ValueError: a line longer than any question is.
        with contextlib.closing(writer), contextlib.suppress(ConnectionError, ValueError):
            while line := await reader.readline():
                writer.write(json.dumps(await self._answer(line)).encode() + b"\n")
                await writer.drain()

    async def _answer(self, line: bytes) -> dict[str, object]:
        try:
            uid = _asked(line)
        except (ValueError, TypeError, KeyError) as error:
            return {"error": f'want one line {{"sync": "<claim uid>"}}: {error!r}'}
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                if not self._connected.is_set() and self._wanted(uid) is not None:
                    await self._connected.wait()
                return {"live": await self.sync(uid)}
        except TimeoutError as error:
            return {"error": str(error) or f"PipeWire isn't there: no connection to {self._remote}"}
        except OSError as error:
            return {"error": str(error)}

    def _report(self, key: str, event: str, reason: str) -> None:
        """Log a state that lasts once, and again when its reason changes."""
        if self._reported.get(key) != reason:
            self._reported[key] = reason
            _log.warning(event, key=key, reason=reason)


async def main(claims_dir: str, remote: str, control: str) -> int:
    """Hold sockets until SIGTERM or SIGINT; returns the exit code."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # each client takes two
    holding = asyncio.current_task()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, holding.cancel if holding else lambda: None)
    with contextlib.suppress(asyncio.CancelledError):
        await Holder(Path(claims_dir), remote, Path(control)).run()
    return 0


def _asked(line: bytes) -> str:
    uid = json.loads(line)["sync"]
    if not is_claim_uid(uid):
        raise ValueError(f"{uid!r} is no claim UID")
    return str(uid)


async def _only_one(descriptor: int) -> None:
    """Wait until no other holder works on this node, as in a rolling update."""
    is_told = False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not is_told:
                _log.info("another claim-sockets still runs here: waiting for its end")
                is_told = True
            await asyncio.sleep(_FIRST_RETRY)
        else:
            return


def _identity(path: Path) -> tuple[int, int]:
    """Inode and time of a file; zeros when it is gone."""
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_ino, status.st_mtime_ns


def _reason(group: BaseExceptionGroup[BaseException]) -> str:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) or type(error).__name__
