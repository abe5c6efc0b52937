"""The way in for the clients of one claim: a socket of ours, before PipeWire's own.

PipeWire believes its clients more than a workload deserves (see `screen.py`), keeps in memory all
that a client doesn't read, and handles what one client says until it pauses. So a claim's clients
speak to us, and what they say goes on when it does no harm, at a bearable pace. What PipeWire says
goes to them as it is, with the descriptors of the memory that sound goes through: no sound comes
through here.
"""

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog

from liken_audio.sockets.context import Context, listen
from liken_audio.sockets.screen import Quota, Refused, Screen

MOST_CONNECTIONS = 64
"""Connections to one socket at a time; further ones are closed."""
MOST_UNREAD = 4 * 1024 * 1024
"""Bytes that a client may leave unread before it is cut; a stream gets some 20,000 in all."""
MOST_UNREAD_DESCRIPTORS = 512
_CHUNK = 65536
_MOST_DESCRIPTORS = 253
"""What the kernel passes with one message at most."""
_PAUSE = 0.1
_QUIET_SECONDS = 60.0
"""How long nothing more is logged of a claim whose client was cut."""

_log = structlog.get_logger(__name__)


class Gate:
    """The socket at `path`, before the security context that listens at `inner`, of one claim.

    Serves from `start` until `close`, or until PipeWire ends: then nobody listens any more.
    """

    def __init__(self, path: Path, inner: Path, context: Context, uid: str) -> None:
        self._inner = inner
        self._uid = uid
        self._context = context
        new = path.with_name(f".{path.name}")
        self._listening = listen(new)
        self._inode = new.stat().st_ino
        new.replace(path)
        self._quota = Quota()
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False
        self._told_at = float("-inf")
        self.connections = 0
        """How many there are."""

    def is_at(self, path: Path) -> bool:
        """Whether the file at `path` is still this socket."""
        try:
            return path.stat().st_ino == self._inode
        except OSError:
            return False

    def is_alive(self) -> bool:
        """Whether the PipeWire behind it still runs."""
        return self._context.is_alive()

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Serve in a task of the group."""
        self._task = tasks.create_task(self._serve())
        self._task.add_done_callback(lambda _: self._listening.close())
        asyncio.get_running_loop().add_reader(self._context.closing, self._stop)

    def close(self) -> None:
        """Cut all clients, stop listening and end the security context; the socket's file stays."""
        self._stop()
        if not self._is_closed:
            self._is_closed = True
            self._context.close()
            self._inner.unlink(missing_ok=True)

    def _stop(self) -> None:
        if not self._is_closed:
            asyncio.get_running_loop().remove_reader(self._context.closing)
        if self._task is None:
            self._listening.close()
        else:
            self._task.cancel()

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as clients:
            while True:
                try:
                    client, _ = await loop.sock_accept(self._listening)
                except OSError:  # no descriptors left, or the client has gone
                    await asyncio.sleep(_PAUSE)
                    continue
                if self.connections >= MOST_CONNECTIONS:
                    client.close()
                    self._tell(f"more than {MOST_CONNECTIONS} connections")
                    continue
                self.connections += 1
                self._quota.take_connection()
                clients.create_task(self._serve_client(client))

    async def _serve_client(self, client: socket.socket) -> None:
        screen = Screen(self._quota, self._uid)
        inner = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            with client, inner:
                await _connect(inner, self._inner)
                async with asyncio.TaskGroup() as both:
                    both.create_task(self._pass_on(client, inner, screen))
                    both.create_task(_Answers(inner, client).run())
        except* (EOFError, OSError):
            pass  # one of the two has hung up
        except* Refused as refusals:
            self._tell(_reason(refusals))
        except* Exception as errors:  # noqa: BLE001 - a fault of ours must not end all claims' sound
            _log.error("client's connection failed", reason=_reason(errors))
        finally:
            self.connections -= 1
            screen.close()

    async def _pass_on(self, client: socket.socket, inner: socket.socket, screen: Screen) -> None:
        """Have PipeWire hear what the client says."""
        loop = asyncio.get_running_loop()
        # Descriptors that come along are dropped by the kernel, since nobody asks for them.
        while data := await loop.sock_recv(client, _CHUNK):
            messages = screen.feed(data)
            await asyncio.sleep(self._quota.pause(len(messages), len(data), loop.time()))
            await loop.sock_sendall(inner, b"".join(messages))
        raise EOFError

    def _tell(self, reason: str) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._told_at >= _QUIET_SECONDS:
            self._told_at = now
            _log.warning("claim's client was cut", uid=self._uid, reason=reason)


class _Answers:
    """What PipeWire says to one client, kept for it as long as it isn't too much."""

    def __init__(self, inner: socket.socket, client: socket.socket) -> None:
        self._inner = inner
        self._client = client
        self._unread: deque[tuple[bytes, list[int]]] = deque()
        self._bytes = 0
        self._descriptors = 0
        self._is_any = asyncio.Event()

    async def run(self) -> None:
        """Pass on until one of the two hangs up (`EOFError`, `OSError`), or too much is unread."""
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._hear())
                both.create_task(self._say())
        finally:
            for _, descriptors in self._unread:
                _close(descriptors)

    async def _hear(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                data, descriptors, _, _ = socket.recv_fds(
                    self._inner, _CHUNK, _MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                await _ready(self._inner, loop.add_reader, loop.remove_reader)
                continue
            if not data:
                raise EOFError
            self._unread.append((data, descriptors))
            self._bytes += len(data)
            self._descriptors += len(descriptors)
            if self._bytes > MOST_UNREAD or self._descriptors > MOST_UNREAD_DESCRIPTORS:
                raise Refused(f"{self._bytes} bytes and {self._descriptors} descriptors unread")
            self._is_any.set()
            await asyncio.sleep(0)

    async def _say(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._is_any.wait()
            while self._unread:
                data, descriptors = self._unread[0]
                sent = await self._say_with(descriptors, data) if descriptors else 0
                await loop.sock_sendall(self._client, data[sent:])
                self._unread.popleft()
                self._bytes -= len(data)
                self._descriptors -= len(descriptors)
                _close(descriptors)
            self._is_any.clear()

    async def _say_with(self, descriptors: list[int], data: bytes) -> int:
        """Send descriptors with the beginning of `data`; return how much of it was sent."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                return socket.send_fds(self._client, [data], descriptors)
            except BlockingIOError:
                await _ready(self._client, loop.add_writer, loop.remove_writer)


def _reason(group: BaseExceptionGroup[Exception]) -> str:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) if isinstance(error, Refused) else repr(error)


async def _connect(inner: socket.socket, path: Path) -> None:
    """Connect through the folder's descriptor: its path may be longer than a socket's can."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        address = f"/proc/self/fd/{folder}/{path.name}"
        await asyncio.get_running_loop().sock_connect(inner, address)
    finally:
        os.close(folder)


async def _ready(
    one: socket.socket,
    add: Callable[[socket.socket, Callable[[], None]], None],
    remove: Callable[[socket.socket], bool],
) -> None:
    """Wait until a socket can be read, or written to."""
    is_so = asyncio.Event()
    add(one, is_so.set)
    try:
        await is_so.wait()
    finally:
        remove(one)


def _close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
