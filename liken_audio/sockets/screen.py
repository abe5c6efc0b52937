"""What of a claim's client's words may reach PipeWire.

Permissions decide what a client may see and do. They don't cover what any client may say of its own
streams, and there is a lot that harms others (all of it tried with PipeWire 1.4.2):

- `node.sync`, `node.group`, `node.driver`, `priority.driver` and the like make streams of all claims
  follow the clock of one, which need not tick: they fall silent. `node.force-quantum` sets how often
  the one thread is woken that all sound of the node runs in. Such keys are spoilt on their way;
  groups, which join a claim's own streams too, become the claim's own.
- A message that lies about its descriptors has PipeWire use, and close, those of other clients; with
  descriptors of its own a client shares memory that it can take away under PipeWire's hands. No
  stream needs them: a client that sends any is cut.
- The protocol of PipeWire 0.2, which a client may ask for, is of no use to anybody.
- Everything that a client has made lives in PipeWire, and nothing there counts it.

What isn't a whole message, or larger than any is, ends the connection too. Layout of messages:
`protocol.py`.
"""

import hashlib
import re
import struct
from collections.abc import Iterator, Sequence

from liken_audio.sockets.protocol import CLIENT_ID, CORE_ID, HEADER, LARGEST, STRING, fields

LARGEST_MESSAGE = 256 * 1024
"""Bytes of one message; a stream's largest, with all its formats, has some 20,000."""
MOST_OBJECTS = 512
"""Streams, registries and proxies that the clients of one claim may have at a time."""
MESSAGES_EACH_SECOND = 1000.0
"""What the clients of one claim may say in the long run; each further KiB counts as a message."""
MESSAGES_AT_ONCE = 4000.0
MESSAGES_OF_AN_OBJECT = 10
"""What an object counts for, besides the message that asks for it: WirePlumber looks at each."""
MESSAGES_OF_A_CONNECTION = 20

_POD = struct.Struct("=II")
_NONE, _STRUCT = 1, 14
_DEEPEST = 8
"""Levels of structs that are looked into for groups; a stream's properties are in the third."""

_GET_REGISTRY, _CREATE_OBJECT, _DESTROY = 5, 6, 7
"""Methods of the core that make and end objects."""
_BIND, _GET_NODE = 1, 1
"""Of a registry, and of the node that a client made."""

_GRAPH_WIDE = (
    b"node.always-process",
    b"node.driver",
    b"node.force-quantum",
    b"node.force-rate",
    b"node.lock-quantum",
    b"node.lock-rate",
    b"node.supports-lazy",
    b"node.supports-request",
    b"node.sync",
    b"node.sync-group",
    b"node.transport",
    b"node.trigger",
    b"priority.driver",
)
"""Properties of a node that change how others are scheduled: `check_properties` in PipeWire's
`impl-node.c`. """
_GROUPS = (b"node.group", b"node.link-group")
"""Properties that join nodes whose values are alike."""


def _texts(keys: Sequence[bytes]) -> re.Pattern[bytes]:
    """Match such a text wherever a string may begin: after the word that says that it is one."""
    mark = re.escape(struct.pack("=I", STRING))
    return re.compile(b"(" + mark + b")(" + b"|".join(map(re.escape, keys)) + b")\0")


_GRAPH_WIDE_TEXT = _texts(_GRAPH_WIDE)
_GROUP_TEXT = _texts(_GROUPS)


class Refused(Exception):
    """The client does what none has a reason to: its connection is to end."""


class Quota:
    """What the clients of one claim may have and say, together. Time is an argument, in seconds."""

    def __init__(self) -> None:
        self._objects = 0
        self._allowed = MESSAGES_AT_ONCE
        self._at = 0.0

    def take_connection(self) -> None:
        """Count a connection."""
        self._allowed -= MESSAGES_OF_A_CONNECTION

    def take_object(self) -> None:
        """Count one object more; raises `Refused`."""
        if self._objects >= MOST_OBJECTS:
            raise Refused(f"more than {MOST_OBJECTS} objects")
        self._objects += 1
        self._allowed -= MESSAGES_OF_AN_OBJECT

    def give_back(self, objects: int) -> None:
        """Count so many objects less."""
        self._objects -= objects

    def pause(self, messages: int, size: int, now: float) -> float:
        """Count messages of `size` bytes in all; return how long to wait before they go on."""
        regained = (now - self._at) * MESSAGES_EACH_SECOND
        self._allowed = min(self._allowed + regained, MESSAGES_AT_ONCE) - messages - size / 1024
        self._at = now
        return max(0.0, -self._allowed / MESSAGES_EACH_SECOND)


class Screen:
    """One client's side of its connection, from the first byte to `close`.

    `guest` names the claim whose client it is.
    """

    def __init__(self, quota: Quota, guest: str) -> None:
        self._quota = quota
        self._guest = guest.encode()
        self._objects: set[int] = set()
        self._registries: set[int] = set()
        self._pending = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the messages that are whole by now, as they may go on; raises `Refused`."""
        self._pending += data
        messages = []
        start = 0
        while len(self._pending) - start >= HEADER.size:
            object_id, word, _, descriptors = HEADER.unpack_from(self._pending, start)
            size = word & LARGEST
            if descriptors:
                raise Refused("a message with descriptors, or of protocol 0")
            if size > LARGEST_MESSAGE:
                raise Refused(f"a message of {size} bytes")
            end = start + HEADER.size + size
            if end > len(self._pending):
                break
            message = self._pending[start:end]
            self._count(object_id, word >> 24, message[HEADER.size :])
            if _GROUP_TEXT.search(message):
                message = self._with_own_groups(message)
            messages.append(_GRAPH_WIDE_TEXT.sub(_spoilt, message))
            start = end
        self._pending = self._pending[start:]
        return messages

    def close(self) -> None:
        """Give back what was counted: the objects go with the connection."""
        self._quota.give_back(len(self._objects))
        self._objects.clear()

    def _with_own_groups(self, message: bytes) -> bytes:
        object_id, word, sequence, _ = HEADER.unpack_from(message)
        body, renamed = self._grouped(message[HEADER.size :], 0)
        if renamed != len(_GROUP_TEXT.findall(message)) or len(body) > LARGEST_MESSAGE:
            raise Refused("a group where no property is, or very many")
        return HEADER.pack(object_id, word & ~LARGEST | len(body), sequence, 0) + body

    def _grouped(self, pods: bytes, depth: int) -> tuple[bytes, int]:
        """Return PODs with the claim's own groups, and how many there are."""
        parts = []
        renamed, is_value = 0, False
        for kind, content in _pods(pods):
            new = content
            if kind == _STRUCT and depth < _DEEPEST:
                new, found = self._grouped(content, depth + 1)
                renamed += found
            elif is_value and kind == STRING:
                new = self._guest + b"." + hashlib.sha256(content).hexdigest().encode() + b"\0"
                renamed += 1
            elif is_value and kind == _NONE:
                renamed += 1
            is_value = kind == STRING and content.partition(b"\0")[0] in _GROUPS
            parts.append(_POD.pack(len(new), kind) + new + bytes(-len(new) % 8))
        return b"".join(parts), renamed

    def _count(self, object_id: int, opcode: int, body: bytes) -> None:
        """Keep count of the client's objects, by the ids that it chooses."""
        if object_id == CORE_ID and opcode == _DESTROY:
            self._forget(_number(body, 0))
        elif object_id == CORE_ID and opcode == _GET_REGISTRY:
            registry = _number(body, 1)
            self._remember(registry)
            self._registries.add(registry)
        elif object_id == CORE_ID and opcode == _CREATE_OBJECT:
            self._remember(_number(body, 4))
        elif object_id in self._registries and opcode == _BIND:
            self._remember(_number(body, 3))
        elif object_id > CLIENT_ID and opcode == _GET_NODE and _is_numbers(body):
            self._remember(_number(body, 1))

    def _remember(self, made: int) -> None:
        if made not in self._objects:
            self._quota.take_object()
            self._objects.add(made)

    def _forget(self, gone: int) -> None:
        if gone in self._objects:
            self._objects.remove(gone)
            self._registries.discard(gone)
            self._quota.give_back(1)


def _spoilt(found: re.Match[bytes]) -> bytes:
    """Return a key with a capital letter, which PipeWire doesn't know."""
    mark, key = found.groups()
    return mark + key.capitalize() + b"\0"


def _pods(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Take PODs that follow each other: kind and content."""
    start = 0
    while start < len(data):
        if start + _POD.size > len(data):
            raise Refused("a message that isn't whole")
        size, kind = _POD.unpack_from(data, start)
        start += _POD.size
        if start + size > len(data):
            raise Refused("a message that isn't whole")
        yield kind, data[start : start + size]
        start += size + -size % 8


def _number(body: bytes, place: int) -> int:
    """Return a field of the message, which must be an integer."""
    values = _values(body)
    value = values[place] if place < len(values) else None
    if not isinstance(value, int):
        raise Refused("a message with a field of the wrong kind")
    return value


def _is_numbers(body: bytes) -> bool:
    """Whether the message has two integers, as GetNode does; SubscribeParams, say, has an array."""
    values = _values(body)
    return len(values) == 2 and all(isinstance(value, int) for value in values)


def _values(body: bytes) -> list[object]:
    try:
        return fields(body)
    except (ValueError, struct.error):
        raise Refused("a message that isn't whole") from None
