"""The few messages of PipeWire's native protocol that make a security context, as bytes.

A message is a header of four 32-bit words (object id, opcode and size, sequence number, number of
file descriptors) and a POD: size, type, body, padded to 8 bytes. Only the types that these
messages hold are decoded; anything else becomes None and is passed over. Layout: PipeWire's pages
"Native Protocol" and "POD"; opcodes as in `pipewire/core.h` and
`pipewire/extensions/security-context.h` of 1.4. Byte order is the machine's.
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass

CORE_ID = 0
CLIENT_ID = 1
REGISTRY_ID = 2
CONTEXT_ID = 3
"""Ids of our proxies, in the order in which a connection makes them."""

SECURITY_CONTEXT = "PipeWire:Interface:SecurityContext"

_CORE_VERSION = 4
_REGISTRY_VERSION = 3

# Methods, called by us.
_CORE_HELLO = 1
_CORE_SYNC = 2
_CORE_PONG = 3
_CORE_GET_REGISTRY = 5
_CORE_DESTROY = 7
_CLIENT_UPDATE_PROPERTIES = 2
_REGISTRY_BIND = 1
_CONTEXT_CREATE = 1

# Events, sent to us.
_CORE_DONE = 1
_CORE_PING = 2
_CORE_ERROR = 3
_REGISTRY_GLOBAL = 0

STRING = 8
"""Kind of a POD that is a text."""
_INT, _LONG, _ID, _STRUCT, _FD = 4, 5, 3, 14, 18
HEADER = struct.Struct("=IIII")
"""Object id, opcode and size (see LARGEST), sequence number, number of descriptors."""
_POD = struct.Struct("=II")
LARGEST = 0xFFFFFF
"""Size of a body: 24 bits."""


class ProtocolError(Exception):
    """Bytes that can't be the native protocol: the connection is of no use any more."""


@dataclass(frozen=True, slots=True)
class Done:
    """The server has handled everything before the Sync with this sequence number."""

    object_id: int
    sequence: int


@dataclass(frozen=True, slots=True)
class Ping:
    """The server wants a Pong, or ends the connection."""

    object_id: int
    sequence: int


@dataclass(frozen=True, slots=True)
class Error:
    """The server refuses a message to `object_id`; `code` is a negative errno."""

    object_id: int
    sequence: int
    code: int
    message: str


@dataclass(frozen=True, slots=True)
class Global:
    """An object that the registry offers for binding."""

    id: int
    type: str
    version: int


Event = Done | Ping | Error | Global


class Encoder:
    """Our side of one connection: messages with rising sequence numbers."""

    def __init__(self) -> None:
        self._sequence = 0

    def hello(self, properties: Mapping[str, str]) -> bytes:
        """Open the connection and say who we are."""
        return self._message(CORE_ID, _CORE_HELLO, _struct(_int(_CORE_VERSION))) + self._message(
            CLIENT_ID, _CLIENT_UPDATE_PROPERTIES, _struct(_dictionary(properties))
        )

    def get_registry(self) -> bytes:
        """Ask for all globals, under REGISTRY_ID."""
        return self._message(
            CORE_ID, _CORE_GET_REGISTRY, _struct(_int(_REGISTRY_VERSION), _int(REGISTRY_ID))
        )

    def bind(self, found: Global) -> bytes:
        """Bind the security context's global under CONTEXT_ID."""
        return self._message(
            REGISTRY_ID,
            _REGISTRY_BIND,
            _struct(_int(found.id), _string(found.type), _int(found.version), _int(CONTEXT_ID)),
        )

    def destroy(self, object_id: int) -> bytes:
        """Give up a proxy, so that no more of its events come."""
        return self._message(CORE_ID, _CORE_DESTROY, _struct(_int(object_id)))

    def create_context(self, properties: Mapping[str, str]) -> bytes:
        """Make a security context; goes with two descriptors: (listening, closed-when-over)."""
        body = _struct(_fd(0), _fd(1), _dictionary(properties))
        return self._message(CONTEXT_ID, _CONTEXT_CREATE, body, descriptors=2)

    def sync(self, sequence: int) -> bytes:
        """Ask for a Done with `sequence`, after everything before it."""
        return self._message(CORE_ID, _CORE_SYNC, _struct(_int(CORE_ID), _int(sequence)))

    def pong(self, ping: Ping) -> bytes:
        """Answer a Ping."""
        body = _struct(_int(ping.object_id), _int(ping.sequence))
        return self._message(CORE_ID, _CORE_PONG, body)

    def _message(self, object_id: int, opcode: int, body: bytes, *, descriptors: int = 0) -> bytes:
        header = HEADER.pack(object_id, opcode << 24 | len(body), self._sequence, descriptors)
        self._sequence += 1
        return header + body


class Decoder:
    """The server's side: feed bytes in any portions, take the events that we know."""

    def __init__(self) -> None:
        self._pending = b""

    def feed(self, data: bytes) -> list[Event]:
        """Return the events that are complete; raises `ProtocolError`."""
        self._pending += data
        events = []
        start = 0
        while len(self._pending) - start >= HEADER.size:
            object_id, opcode_and_size, _, _ = HEADER.unpack_from(self._pending, start)
            end = start + HEADER.size + (opcode_and_size & LARGEST)
            if end > len(self._pending):
                break
            body = self._pending[start + HEADER.size : end]
            event = _event(object_id, opcode_and_size >> 24, body)
            if event is not None:
                events.append(event)
            start = end
        self._pending = self._pending[start:]
        return events


def _event(object_id: int, opcode: int, body: bytes) -> Event | None:
    kinds: dict[tuple[int, int], Callable[[list[object]], Event]] = {
        (CORE_ID, _CORE_DONE): _done,
        (CORE_ID, _CORE_PING): _ping,
        (CORE_ID, _CORE_ERROR): _error,
        (REGISTRY_ID, _REGISTRY_GLOBAL): _global,
    }
    read = kinds.get((object_id, opcode))
    if read is None:
        return None
    try:
        return read(fields(body))
    except (TypeError, ValueError, IndexError, struct.error) as error:
        raise ProtocolError(f"event {opcode} of object {object_id}: {body[:64]!r}") from error


def _done(fields: list[object]) -> Done:
    return Done(_as_int(fields[0]), _as_int(fields[1]))


def _ping(fields: list[object]) -> Ping:
    return Ping(_as_int(fields[0]), _as_int(fields[1]))


def _error(fields: list[object]) -> Error:
    object_id, sequence, code, message = fields[:4]
    return Error(_as_int(object_id), _as_int(sequence), _as_int(code), str(message or ""))


def _global(fields: list[object]) -> Global:
    return Global(_as_int(fields[0]), str(fields[2]), _as_int(fields[3]))


def _as_int(value: object) -> int:
    if not isinstance(value, int):
        raise TypeError(f"{value!r} is no number")
    return value


def fields(body: bytes) -> list[object]:
    """Return the values of the struct that a message's body starts with."""
    size, kind = _POD.unpack_from(body)
    if kind != _STRUCT or _POD.size + size > len(body):
        raise ValueError("no whole struct")
    fields: list[object] = []
    start, end = _POD.size, _POD.size + size
    while start < end:
        size, kind = _POD.unpack_from(body, start)
        start += _POD.size
        fields.append(_value(kind, body[start : start + size]))
        start += size + -size % 8
    return fields


def _value(kind: int, body: bytes) -> object:
    if kind in {_INT, _ID}:
        return int(struct.unpack("=i" if kind == _INT else "=I", body)[0])
    if kind in {_LONG, _FD}:
        return int(struct.unpack("=q", body)[0])
    if kind == STRING:
        return body.rstrip(b"\0").decode(errors="replace")
    return None


def _pod(kind: int, body: bytes) -> bytes:
    return _POD.pack(len(body), kind) + body + bytes(-len(body) % 8)


def _int(value: int) -> bytes:
    return _pod(_INT, struct.pack("=i", value))


def _string(value: str) -> bytes:
    return _pod(STRING, value.encode() + b"\0")


def _fd(index: int) -> bytes:
    return _pod(_FD, struct.pack("=q", index))


def _struct(*fields: bytes) -> bytes:
    return _pod(_STRUCT, b"".join(fields))


def _dictionary(properties: Mapping[str, str]) -> bytes:
    pairs = (_string(text) for pair in properties.items() for text in pair)
    return _struct(_int(len(properties)), *pairs)
