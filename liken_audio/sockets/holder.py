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
import os
import signal
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import structlog

from liken_audio.dra.claim_folder import CLAIM_FILE, SOCKET, client_properties, is_claim_uid
from liken_audio.sockets.connection import PipeWireConnection

LOOK_INTERVAL = 1.0
"""Seconds between looks at the folders."""
REQUEST_SECONDS = 8.0
"""Longest wait for PipeWire before a request is answered with an error."""
_FIRST_RETRY = 0.1
_LONGEST_RETRY = 2.0

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Context:
    """A security context in PipeWire that we keep alive."""

    closing: int
    """Our end of the pipe: closing it disconnects the clients."""
    inode: int
    """Of the socket's file."""
    claim_file: tuple[int, int]
    """Inode and time of the claim file that it was made for."""
    properties: Mapping[str, str]


class Holder:
    """Keeps one security context for each claim folder."""

    def __init__(self, claims_dir: Path, remote: str, control: Path) -> None:
        self._claims_dir = claims_dir
        self._remote = remote
        self._control = control
        self._contexts: dict[str, _Context] = {}
        self._connection: PipeWireConnection | None = None
        self._connected = asyncio.Event()
        self._one_at_a_time = asyncio.Lock()
        self._reported: dict[str, str] = {}
        self.created = 0
        """How many contexts were made."""

    async def run(self) -> None:
        """Hold the sockets until cancelled."""
        self._claims_dir.mkdir(parents=True, exist_ok=True, mode=0o755)
        self._control.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
        with (self._control.parent / f"{self._control.name}.lock").open("w") as lock:
            await _only_one(lock.fileno())
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._stay_connected())
                    tasks.create_task(self._look())
                    tasks.create_task(self._serve(tasks))
            finally:
                for uid in list(self._contexts):
                    self._drop(uid)

    async def sync(self, uid: str) -> bool:
        """Bring one claim's socket in line with its folder; return whether it is live.

        Raises `OSError` or `TimeoutError` when it should be live and can't.
        """
        async with self._one_at_a_time:
            properties = self._wanted(uid)
            if properties is None:
                self._drop(uid)
                return False
            if not self._is_live(uid, properties):
                await self._create(uid, properties)
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
        for uid in sorted(folders | self._contexts.keys()):
            if self._is_untouched(uid):
                continue
            try:
                await self.sync(uid)
            except (OSError, TimeoutError) as error:
                self._report(uid, "claim has no socket", str(error))
            else:
                self._reported.pop(uid, None)

    def _wanted(self, uid: str) -> dict[str, str] | None:
        """Return the properties of the claim's clients; None when there is to be no socket."""
        try:
            document = json.loads((self._claims_dir / uid / CLAIM_FILE).read_bytes())
            return dict(client_properties(document))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (ValueError, TypeError, KeyError) as error:
            raise OSError(f"{CLAIM_FILE} of claim {uid} can't be read: {error!r}") from error

    def _is_untouched(self, uid: str) -> bool:
        """Whether nothing has happened to a claim with a socket: two looks, and no file read."""
        context = self._contexts.get(uid)
        folder = self._claims_dir / uid
        return (
            context is not None
            and _inode(folder / SOCKET) == context.inode
            and _identity(folder / CLAIM_FILE) == context.claim_file
        )

    def _is_live(self, uid: str, properties: Mapping[str, str]) -> bool:
        context = self._contexts.get(uid)
        if context is None or context.properties != properties:
            return False
        return _inode(self._claims_dir / uid / SOCKET) == context.inode

    def _forget_dead(self) -> None:
        """Drop contexts whose PipeWire is gone: nobody listens behind their sockets any more.

        A connection can also break while PipeWire lives; its contexts, and the pods that play
        through them, then live on.
        """
        for uid in list(self._contexts):
            if not _is_listened(self._claims_dir / uid, SOCKET):
                self._drop(uid)

    async def _create(self, uid: str, properties: Mapping[str, str]) -> None:
        connection = self._connection
        if connection is None:
            raise ConnectionError(f"PipeWire isn't there: no connection to {self._remote}")
        folder = self._claims_dir / uid
        claim_file = _identity(folder / CLAIM_FILE)
        listening, inode = _listen(folder, f".{SOCKET}")
        ours, theirs = -1, -1
        try:
            theirs, ours = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            await connection.create_context(listening, theirs, properties)
            (folder / f".{SOCKET}").replace(folder / SOCKET)
        except BaseException:
            if ours >= 0:
                os.close(ours)
            with contextlib.suppress(OSError):
                (folder / f".{SOCKET}").unlink()
            raise
        finally:
            listening.close()
            if theirs >= 0:
                os.close(theirs)
        self._drop(uid)
        self._contexts[uid] = _Context(ours, inode, claim_file, dict(properties))
        self.created += 1
        _log.info("claim's socket serves", uid=uid, claim=properties["pipewire.sec.app-id"])

    def _drop(self, uid: str) -> None:
        context = self._contexts.pop(uid, None)
        self._reported.pop(uid, None)
        if context is not None:
            os.close(context.closing)
            _log.info("claim's socket ended", uid=uid)

    async def _serve(self, tasks: asyncio.TaskGroup) -> None:
        def start(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            tasks.create_task(self._converse(reader, writer))

        with contextlib.suppress(FileNotFoundError):
            self._control.unlink()
        server = await asyncio.start_unix_server(start, self._control)
        self._control.chmod(0o600)
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
                if self._wanted(uid) is not None:
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


def _listen(folder: Path, name: str) -> tuple[socket.socket, int]:
    """Return a socket that listens in `folder`, and the inode of its file.

    Bound through the folder's descriptor: the path of a folder may be longer than a socket's can.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        path = Path(f"/proc/self/fd/{descriptor}/{name}")
        path.unlink(missing_ok=True)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            listening.bind(str(path))
            path.chmod(0o666)  # any user of any container that has the folder
            listening.listen(64)
        except BaseException:
            listening.close()
            raise
        return listening, path.stat().st_ino
    finally:
        os.close(descriptor)


def _is_listened(folder: Path, name: str) -> bool:
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return False
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
            return probe.connect_ex(f"/proc/self/fd/{descriptor}/{name}") == 0
    finally:
        os.close(descriptor)


def _identity(path: Path) -> tuple[int, int]:
    """Inode and time of a file; zeros when it is gone."""
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_ino, status.st_mtime_ns


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None


def _reason(group: BaseExceptionGroup[BaseException]) -> str:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) or type(error).__name__
