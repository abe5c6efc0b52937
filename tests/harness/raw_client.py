"""A client of PipeWire's native protocol that says whatever it likes: any method of any object.

What libpipewire would not send is sent too, so that what PipeWire refuses is seen and not what the
library leaves out.
"""

import re
import select
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from liken_audio.sockets import protocol
from tests.harness.processes import HarnessError

CORE, CLIENT, REGISTRY = protocol.CORE_ID, protocol.CLIENT_ID, protocol.REGISTRY_ID
CORE_VERSION, REGISTRY_VERSION = 4, 3
# Methods, and the events that a test looks at.
HELLO, SYNC, PONG, GET_REGISTRY, CREATE_OBJECT = 1, 2, 3, 5, 6
UPDATE_PROPERTIES, GET_PERMISSIONS, UPDATE_PERMISSIONS = 2, 3, 4
BIND, DESTROY = 1, 2
DONE, PING, ERROR, GLOBAL = 1, 2, 3, 0
ANY = 0xFFFFFFFF
EVERYTHING = 0o700 | 0o010
"""Permissions r, w, x and m."""


@dataclass(frozen=True, slots=True)
class Message:
    """One event; fields that the product's decoder has no use for are None."""

    object_id: int
    opcode: int
    fields: Sequence[Any]
    body: bytes = b""

    def words(self) -> set[str]:
        """All texts in it that can be read, wherever they stand."""
        found = re.findall(rb"[\x20-\x7e]{3,}", self.body)
        return {each.decode() for each in found}


def is_ready_within(stream: socket.socket, seconds: float, event: int = select.POLLIN) -> bool:
    """Whether it can be read (or whatever `event` says) or has ended, waiting at most so long.

    By poll: select takes no descriptor from 1,024 on, and a test may hold a thousand others.
    """
    polled = select.poll()
    polled.register(stream, event)
    return bool(polled.poll(max(0.0, seconds) * 1000))


class RawClient:
    """One connection to the socket at `path`; a context manager."""

    def __init__(self, path: Path) -> None:
        self._stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._stream.connect(str(path))
        except OSError:
            self._stream.close()
            raise
        self._encoder = protocol.Encoder()
        self._pending = b""
        self._syncs = 0
        self._next_id = REGISTRY + 1
        self.heard: list[Message] = []
        """All events so far."""

    def call(self, object_id: int, opcode: int, *fields: bytes) -> None:
        """Call a method; `fields` are PODs: `number`, `text`, `properties`."""
        body = protocol._struct(*fields)
        self._stream.sendall(self._encoder._message(object_id, opcode, body))

    def send(self, data: bytes, descriptors: Sequence[int] = ()) -> None:
        """Send bytes as they are."""
        if descriptors:
            data = data[socket.send_fds(self._stream, [data], descriptors) :]
        self._stream.sendall(data)

    def is_cut(self, seconds: float = 5) -> bool:
        """Whether the server hangs up within so many seconds."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            is_ready = is_ready_within(self._stream, left)
            try:
                if is_ready and not self.listen(0):
                    return True
            except OSError:
                return True
        return False

    def hello(self, **properties: str) -> None:
        """Say hello with these properties, and ask for the registry."""
        self.call(CORE, HELLO, number(CORE_VERSION))
        self.call(CLIENT, UPDATE_PROPERTIES, dictionary(properties))
        self.call(CORE, GET_REGISTRY, number(REGISTRY_VERSION), number(REGISTRY))

    def bind(self, global_id: int, interface: str) -> int:
        """Try to bind a global; return the id of the proxy."""
        proxy = self._new_id()
        kind = f"PipeWire:Interface:{interface}"
        self.call(REGISTRY, BIND, number(global_id), text(kind), number(3), number(proxy))
        return proxy

    def create(self, factory: str, interface: str, properties: Mapping[str, str]) -> int:
        """Try to have a factory make an object; return the id of the proxy."""
        kind = f"PipeWire:Interface:{interface}"
        proxy = self._new_id()
        fields = [text(factory), text(kind), number(3), dictionary(properties), number(proxy)]
        self.call(CORE, CREATE_OBJECT, *fields)
        return proxy

    def settle(self, seconds: float = 10) -> Sequence[Message]:
        """Wait until all that was asked is answered; return the events since the last time."""
        self._syncs += 1
        self.call(CORE, SYNC, number(0), number(self._syncs))
        before = len(self.heard)
        deadline = time.monotonic() + seconds
        while not any(self._is_done(each) for each in self.heard[before:]):
            left = deadline - time.monotonic()
            if left <= 0 or not self.listen(left):
                raise HarnessError(f"no answer within {seconds:.0f} s; heard {self.heard[before:]}")
        return self.heard[before:]

    def listen(self, seconds: float) -> bool:
        """Take what comes within so many seconds; False once the connection has ended or is still."""
        if not is_ready_within(self._stream, seconds):
            return False
        try:
            data = self._stream.recv(65536)
        except ConnectionResetError:
            return False
        self._pending += data
        while len(self._pending) >= protocol.HEADER.size:
            object_id, word, _, _ = protocol.HEADER.unpack_from(self._pending)
            end = protocol.HEADER.size + (word & protocol.LARGEST)
            if end > len(self._pending):
                break
            body = self._pending[protocol.HEADER.size : end]
            self._take(Message(object_id, word >> 24, protocol.fields(body), body))
            self._pending = self._pending[end:]
        return bool(data)

    def _take(self, message: Message) -> None:
        self.heard.append(message)
        if (message.object_id, message.opcode) == (CORE, PING):
            self.call(CORE, PONG, *(number(each) for each in message.fields))

    def globals(self) -> set[tuple[int, str]]:
        """Ids and interfaces of all objects that were ever announced."""
        return {
            (each.fields[0], each.fields[2].removeprefix("PipeWire:Interface:"))
            for each in self.heard
            if each.object_id == REGISTRY and each.opcode == GLOBAL
        }

    def close(self) -> None:
        """End the connection."""
        self._stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _new_id(self) -> int:
        self._next_id += 1
        return self._next_id - 1

    def _is_done(self, message: Message) -> bool:
        is_done = (message.object_id, message.opcode) == (CORE, DONE)
        return is_done and list(message.fields[:2]) == [0, self._syncs]


def number(value: int) -> bytes:
    """An integer's POD; ids above 2**31 as PipeWire writes them."""
    return protocol._int(value if value < 1 << 31 else value - (1 << 32))


def text(value: str) -> bytes:
    """A string's POD."""
    return protocol._string(value)


def dictionary(values: Mapping[str, str]) -> bytes:
    """The POD of properties."""
    return protocol._dictionary(values)


def permission(object_id: int, bits: int) -> Sequence[bytes]:
    """The PODs of one entry of UpdatePermissions."""
    return [number(1), number(object_id), number(bits)]


def error_of(messages: Sequence[Message], proxy: int) -> str | None:
    """What PipeWire said of a proxy, None for nothing."""
    for each in messages:
        if (each.object_id, each.opcode) == (CORE, ERROR) and each.fields[0] == proxy:
            return str(each.fields[3])
    return None


def props_param(volume: float) -> bytes:
    """The POD of a Props object that sets a node's volume."""
    properties = struct.pack("=II", 65539, 0) + protocol._pod(6, struct.pack("=f", volume))
    return protocol._pod(15, struct.pack("=II", 0x40002, 2) + properties)
