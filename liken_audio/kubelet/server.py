"""The two unix sockets that the kubelet talks to, and the Registration service on one of them.

The DRA socket serves before the registration socket exists: a kubelet that finds a socket which
doesn't answer yet backs off for up to two minutes. Both are unlinked on the way out, but only
while they are still ours, since the kubelet deregisters by the file. A kubelet that refuses us
(`NotifyRegistrationStatus(false)`) may not look again before the file is made anew, so it is,
with back-off. A DRA socket that is gone, or either one replaced by somebody else, ends `run`:
serving on from there would only look alive.
"""

import asyncio
import contextlib
import errno
import socket
import stat
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from weakref import WeakSet

import grpclib.server
import structlog
from betterproto import Message
from grpclib import GRPCError, Status
from grpclib.const import Cardinality, Handler
from grpclib.events import RecvRequest, listen
from grpclib.protocol import H2Protocol

from liken_audio.kubelet.generated import pluginregistration as registration
from liken_audio.kubelet.socket_paths import SocketPaths, relatives

PLUGIN_TYPE = "DRAPlugin"
CHECK_INTERVAL = 1.0
"""Seconds between looks at the socket files."""
DRAIN_SECONDS = 10.0
"""How long calls under way may take to finish after the end was asked for."""
FIRST_RETRY = 5.0
LONGEST_RETRY = 120.0
STALE_SECONDS = 60.0
"""Age below which another instance's silent socket may just be starting."""

_log = structlog.get_logger(__name__)


class SocketLostError(Exception):
    """A socket file of ours is gone or belongs to somebody else; the driver can't be reached."""


@dataclass
class RegistrationStatus:
    """What the kubelet said of us last."""

    is_registered: bool = False
    error: str = ""
    refusals: int = 0
    """Refused so many times in a row."""


class KubeletServer:
    """Serves the plugin's services and registers them under `driver`."""

    def __init__(
        self,
        driver: str,
        paths: SocketPaths,
        services: Collection[Any],
        supported_versions: Sequence[str],
    ) -> None:
        self.status = RegistrationStatus()
        self.registrations = 0
        """How often the kubelet registered us since the start."""
        self._driver = driver
        self._paths = paths
        self._services = list(services)
        self._registration = _Registration(self, supported_versions)

    @property
    def driver(self) -> str:
        """The name that is registered."""
        return self._driver

    @property
    def endpoint(self) -> str:
        """Absolute path of the DRA socket."""
        return str(self._paths.plugin)

    async def run(self) -> None:
        """Serve until cancelled. Raises `SocketLostError` or `OSError` when it can't go on."""
        for path in (self._paths.plugin, self._paths.registration):
            path.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale(relatives(self._driver, self._paths))
        async with _Listener(self._paths.plugin, self._services) as plugin:
            while True:
                async with _Listener(self._paths.registration, [self._registration]) as registry:
                    _log.info(
                        "sockets serve", plugin=self.endpoint, registration=str(registry.path)
                    )
                    await self._watch(plugin, registry)
                _log.warning("registration socket is made anew", reason=self.status.error)

    def told(self, *, is_registered: bool, error: str) -> None:
        """Take note of the kubelet's answer to our registration."""
        refusals = 0 if is_registered else self.status.refusals + 1
        self.status = RegistrationStatus(is_registered, error, refusals)
        if is_registered:
            self.registrations += 1
            _log.info("registered with the kubelet", driver=self._driver)
        else:
            _log.error("the kubelet refused the registration", driver=self._driver, reason=error)

    async def _watch(self, plugin: "_Listener", registry: "_Listener") -> None:
        """Return when the registration socket has to be made anew."""
        refused_at: float | None = None
        while True:
            plugin.check()
            if not registry.is_there():
                self.status.error = "its file was removed"
                return
            if self.status.refusals == 0:
                refused_at = None
            elif refused_at is None:
                refused_at = time.monotonic()
            elif time.monotonic() - refused_at >= _retry_after(self.status.refusals):
                return
            await asyncio.sleep(CHECK_INTERVAL)


def _retry_after(refusals: int) -> float:
    return float(min(LONGEST_RETRY, FIRST_RETRY * 2 ** min(refusals - 1, 10)))


class _Registration(registration.RegistrationBase):
    """GetInfo and NotifyRegistrationStatus: stateless and at once, since kubelet gives it 1 s."""

    def __init__(self, server: KubeletServer, supported_versions: Sequence[str]) -> None:
        self._server = server
        self._supported_versions = list(supported_versions)

    async def get_info(self, info_request: registration.InfoRequest) -> registration.PluginInfo:
        return registration.PluginInfo(
            type=PLUGIN_TYPE,
            name=self._server.driver,
            endpoint=self._server.endpoint,
            supported_versions=self._supported_versions,
        )

    async def notify_registration_status(
        self, registration_status: registration.RegistrationStatus
    ) -> registration.RegistrationStatusResponse:
        self._server.told(
            is_registered=registration_status.plugin_registered, error=registration_status.error
        )
        return registration.RegistrationStatusResponse()


class _Corked:
    """A transport that sends what is written in one turn of the event loop at once.

    grpclib writes headers, message and trailers one by one; each would be a system call, and wake
    the kubelet for a third of an answer.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._pending: list[bytes] = []

    def write(self, data: bytes) -> None:
        if not self._pending:
            asyncio.get_running_loop().call_soon(self._flush)
        self._pending.append(data)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def _flush(self) -> None:
        if self._pending:
            data, self._pending = b"".join(self._pending), []
            self._transport.write(data)


class _CorkedProtocol(H2Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        corked = _Corked(cast("asyncio.Transport", transport))
        super().connection_made(cast("asyncio.Transport", corked))


class _Methods(dict[str, Handler]):
    """Methods by path; one that isn't served is answered as Go's clients understand it.

    grpclib's own answer has no content type, which Go reads as UNKNOWN: the kubelet asks again
    for ever where UNIMPLEMENTED would end it.
    """

    def get(self, path: str, default: Any = None) -> Any:
        return super().get(path, Handler(_unimplemented, Cardinality.UNARY_UNARY, Message, Message))


async def _unimplemented(_stream: object) -> None:
    raise GRPCError(Status.UNIMPLEMENTED, "this driver has no such method")


class _GrpcServer(grpclib.server.Server):
    """grpclib's server, which by itself cancels calls and keeps serving connections at its end."""

    def __init__(self, services: Collection[Any]) -> None:
        super().__init__(services)
        self._mapping = _Methods(self._mapping)
        self._connections: WeakSet[H2Protocol] = WeakSet()
        self._streams = {
            path
            for service in services
            for path, handler in service.__mapping__().items()
            if handler.cardinality.server_streaming
        }
        self._calls = 0
        self._idle = asyncio.Event()
        self._idle.set()
        listen(self, RecvRequest, self._count)

    async def drain(self) -> None:
        """Wait until no call is under way, streams apart; at most DRAIN_SECONDS."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                await self._idle.wait()

    def hang_up(self) -> None:
        """Close all connections once what was answered is sent."""
        for protocol in self._connections:
            if hasattr(protocol, "connection"):  # not before it is made
                protocol.connection.close()

    def _protocol_factory(self) -> H2Protocol:
        made = super()._protocol_factory()
        protocol = _CorkedProtocol(made.handler, made.config, made.h2_config)
        self._connections.add(protocol)
        return protocol

    async def _count(self, event: RecvRequest) -> None:
        if event.method_name in self._streams:
            return
        carry_out = event.method_func

        async def counted(stream: Any) -> None:
            self._calls += 1
            self._idle.clear()
            try:
                await carry_out(stream)
            finally:
                self._calls -= 1
                if not self._calls:
                    self._idle.set()

        event.method_func = counted


class _Listener:
    """One served unix socket: bound anew on entry; unlinked, drained and closed on exit."""

    def __init__(self, path: Path, services: Collection[Any]) -> None:
        self.path = path
        self._server = _GrpcServer(services)
        self._inode = 0

    async def __aenter__(self) -> "_Listener":
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listening.bind(str(self.path))
            self._inode = self.path.stat().st_ino
            listening.listen(128)
            listening.settimeout(0)
            await self._server.start(sock=listening)
        except BaseException:
            listening.close()
            self._unlink()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._unlink()  # first of all: the kubelet deregisters by the file
        await self._server.drain()
        self._server.close()
        # Not wait_closed: from Python 3.12 on it waits for the kubelet to hang up, which it doesn't.
        self._server.hang_up()

    def is_there(self) -> bool:
        """Whether the file is ours; False when it is gone. Raises when it is somebody else's."""
        try:
            inode = self.path.stat().st_ino
        except FileNotFoundError:
            return False
        if inode != self._inode:
            raise SocketLostError(
                f"{self.path} was replaced: another instance of the driver runs on this node"
            )
        return True

    def check(self) -> None:
        """Raise unless the file is there and ours."""
        if not self.is_there():
            raise SocketLostError(f"{self.path} was removed: the kubelet can't call this driver")

    def _unlink(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            if self.path.stat().st_ino == self._inode:
                self.path.unlink()


def _remove_stale(paths: Sequence[Path]) -> None:
    """Unlink sockets of dead instances: the kubelet would dial them for half an hour."""
    for path in paths:
        with contextlib.suppress(OSError):
            if _is_dead(path):
                path.unlink()
                _log.info("removed the socket of a dead instance", path=str(path))


def _is_dead(path: Path) -> bool:
    status = path.lstat()
    if not stat.S_ISSOCK(status.st_mode) or time.time() - status.st_mtime < STALE_SECONDS:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(0)
        return probe.connect_ex(str(path)) == errno.ECONNREFUSED
