"""A connection to PipeWire that makes security contexts, and sees PipeWire end.

PipeWire gives the manager's rights to clients of `<remote>-manager`; where there is no such
socket, the plain one is tried. The context lives in PipeWire, not in this connection: it ends
when the other end of its closing descriptor does.
"""

import asyncio
import errno
import os
import socket
from collections.abc import Mapping, Sequence

from liken_audio.sockets import protocol

DEADLINE = 5.0
"""Seconds for PipeWire to answer one request."""
_CHUNK = 65536


class PipeWireError(OSError):
    """PipeWire refuses, or doesn't speak as expected."""


class PipeWireConnection:
    """One connection: `connect`, run `serve` beside everything else, `set_up`, `close`."""

    def __init__(self, stream: socket.socket, path: str) -> None:
        self.path = path
        self._stream = stream
        self._encoder = protocol.Encoder()
        self._decoder = protocol.Decoder()
        self._one_request = asyncio.Lock()
        self._answers: asyncio.Queue[protocol.Done | protocol.Error | None] = asyncio.Queue()
        self._sequence = 0
        self._found: protocol.Global | None = None

    @classmethod
    async def connect(cls, remote: str) -> "PipeWireConnection":
        """Connect to the PipeWire whose socket is at `remote`. Raises `OSError`, `TimeoutError`."""
        loop = asyncio.get_running_loop()
        for path in (f"{remote}-manager", remote):
            stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            try:
                async with asyncio.timeout(DEADLINE):
                    await loop.sock_connect(stream, path)
            except FileNotFoundError:
                stream.close()
            except BaseException:
                stream.close()
                raise
            else:
                return cls(stream, path)
        raise FileNotFoundError(errno.ENOENT, "no PipeWire socket", remote)

    def close(self) -> None:
        """End the connection; what it made lives on."""
        self._stream.close()

    async def serve(self) -> None:
        """Read until PipeWire ends the connection, which raises `OSError`; answers its pings."""
        loop = asyncio.get_running_loop()
        try:
            while data := await loop.sock_recv(self._stream, _CHUNK):
                for event in self._decoder.feed(data):
                    await self._take(event)
        except protocol.ProtocolError as error:
            raise PipeWireError(
                f"{self.path} doesn't speak PipeWire's protocol: {error}"
            ) from error
        finally:
            self._answers.put_nowait(None)
        raise ConnectionResetError(f"PipeWire at {self.path} ended the connection")

    async def set_up(self) -> None:
        """Say hello and bind the security context. `serve` must be running."""
        properties = {"application.name": "liken-audio claim-sockets"}
        await self._request(self._encoder.hello(properties) + self._encoder.get_registry())
        if self._found is None:
            raise PipeWireError(
                f"PipeWire at {self.path} offers no security context: its configuration must load"
                " libpipewire-module-security-context"
            )
        # The registry would tell us of every object that comes and goes: nobody here listens.
        await self._request(
            self._encoder.bind(self._found) + self._encoder.destroy(protocol.REGISTRY_ID)
        )

    async def create_context(
        self, listening: socket.socket, closing: int, properties: Mapping[str, str]
    ) -> None:
        """Have PipeWire accept clients on `listening` until the other end of `closing` is closed.

        `properties` are stamped on each of these clients, who can't change them. PipeWire gets
        duplicates of both descriptors. Raises `OSError` or `TimeoutError`.
        """
        message = self._encoder.create_context(properties)
        await self._request(message, [listening.fileno(), closing])

    async def _take(self, event: protocol.Event) -> None:
        if isinstance(event, protocol.Ping):
            await self._send(self._encoder.pong(event))
        elif isinstance(event, protocol.Global):
            if event.type == protocol.SECURITY_CONTEXT:
                self._found = event
        else:
            self._answers.put_nowait(event)

    async def _request(self, messages: bytes, descriptors: Sequence[int] = ()) -> None:
        """Send, and wait until the server has handled it."""
        async with self._one_request:
            self._sequence += 1
            try:
                async with asyncio.timeout(DEADLINE):
                    await self._send(messages, descriptors)
                    await self._send(self._encoder.sync(self._sequence))
                    refusal = await self._handled(self._sequence)
            except TimeoutError:
                # Half a message may be out: nothing can follow it on this connection.
                self._stream.shutdown(socket.SHUT_RDWR)
                raise TimeoutError(f"PipeWire at {self.path} doesn't answer") from None
        if refusal is not None:
            code = abs(refusal.code)
            raise PipeWireError(code, f"PipeWire refuses: {refusal.message or os.strerror(code)}")

    async def _handled(self, sequence: int) -> protocol.Error | None:
        """Wait for the Done; return the first error before it."""
        refusal = None
        while True:
            answer = await self._answers.get()
            if answer is None:
                self._answers.put_nowait(None)  # for whoever asks next
                raise ConnectionResetError(f"PipeWire at {self.path} ended the connection")
            if isinstance(answer, protocol.Error):
                refusal = refusal or answer
            elif answer.sequence == sequence:
                return refusal

    async def _send(self, data: bytes, descriptors: Sequence[int] = ()) -> None:
        loop = asyncio.get_running_loop()
        if descriptors:
            # At most a few hundred bytes, which a socket buffer that is being read has room for.
            sent = socket.send_fds(self._stream, [data], list(descriptors))
            data = data[sent:]
        await loop.sock_sendall(self._stream, data)
