"""What `pw-dump --monitor` prints → PipeWireSnapshot.

The first array of the stream holds every object; each later one holds what changed since, whole
again: an object replaces the one with its id, and `{"id": N, "info": null}` removes it. Nodes are
decoded, devices and clients only for what they say of nodes, all else not at all. Of an object that
comes more than once in the bytes of one `feed`, the last is decoded alone, so a storm costs little
more than its bytes. Kept is what `model.Node` holds, never the object.

A node that a client of a security context made (a pod's stream, or whatever it makes) is left out:
it may bear any name and any property, so nothing that it says can be taken for a device's node. So
is one whose client isn't known (yet). What the agent makes has no client: it outlives its maker.

pw-dump guesses types (the text `0012` is printed as 12, `true` as a boolean), prints whatever bytes
a client calls itself (no UTF-8, at times), and re-uses ids at once: `object.serial` is the identity.
A node's volume is its own, unless its device has a route for it: then it is the route's, which the
node may show late or not at all. Of Bluetooth devices profiles and codecs are kept too (see `devices`).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from sys import intern
from typing import Any

from liken_audio.graph.model import (
    BluetoothCard,
    Linear,
    Node,
    NodeId,
    NodeSerial,
    PipeWireSnapshot,
    Route,
)
from liken_audio.pipewire.devices import bluetooth_card, routes
from liken_audio.pipewire.framing import ArrayFramer
from liken_audio.pipewire.values import (
    clean,
    decoded,
    first,
    integer,
    linear_volumes,
    object_of,
    text,
)

# pw-dump's own form: objects at two blanks, what they hold at four. Where an array has it, its
# objects are told apart without decoding them.
_PLAIN_START, _PLAIN_END = b"[\n  {\n", b"\n  }\n]"
_PLAIN_SEPARATOR = b"\n  },\n  {\n"
_PLAIN_OBJECT = re.compile(
    rb'    "id": (\d{1,10}),\n    (?:"type": "PipeWire:Interface:(\w+)",\n|"info": null\Z)'
)
_TYPE_PREFIX = "PipeWire:Interface:"
_DECODED_KINDS = frozenset({"Node", "Device", "Client"})
_SECURITY_CONTEXT = "pipewire.sec.engine"
"""Property that PipeWire stamps on the clients of a security context, and lets none of them change."""

_POSITION = re.compile(r"[^\s,\[\]\"]+")


@dataclass(frozen=True, slots=True)
class _Said:
    """The last that the stream said of an object."""

    number: int
    kind: str = ""
    """Its type's last word; "" when it was removed."""
    members: bytes = b""
    """The object without its braces, not decoded yet…"""
    info: object = None
    """…or its `info`, when the whole array had to be decoded."""


class _GarbledError(Exception):
    """An object can't be understood."""


class DumpParser:
    """One stream of one pw-dump process; a new process needs a new parser."""

    def __init__(self) -> None:
        self._framer = ArrayFramer()
        self._nodes: dict[int, Node] = {}
        self._device_serials: dict[int, int] = {}
        self._bluetooth: dict[int, BluetoothCard] = {}
        self._routes: dict[int, tuple[Route, ...]] = {}
        self._trusted_clients: dict[int, int] = {}
        """Serials by id, of clients outside security contexts."""
        self._snapshot = PipeWireSnapshot()
        self._lost_arrays = 0
        self._lost_objects = 0
        self.arrays = 0
        """Arrays that were understood; before the first, nothing is known."""

    @property
    def parse_errors(self) -> int:
        """Pieces of the stream that couldn't be understood; what they said isn't in the state."""
        return self._framer.errors + self._lost_arrays + self._lost_objects

    @property
    def is_garbled(self) -> bool:
        """Whether a whole array may be missing: only a new stream brings back what it said."""
        return self._framer.errors + self._lost_arrays > 0

    @property
    def pending_bytes(self) -> int:
        """Bytes of an incomplete array; at the end of a stream over 0 means cut off."""
        return self._framer.pending_bytes

    def feed(self, data: bytes) -> PipeWireSnapshot | None:
        """Take the next bytes, cut anywhere; return the state if they completed an array.

        It is the object returned last time unless something that a Node holds has changed.
        """
        said: dict[int, _Said] = {}
        arrays = self.arrays
        for array in self._framer.feed(data):
            self._read(array, said)
        if self.arrays == arrays:
            return None
        for each in said.values():
            self._apply(each)
        self._refresh()
        return self._snapshot

    def snapshot(self) -> PipeWireSnapshot:
        """All nodes known now, ordered by id; empty before the first array."""
        return self._snapshot

    def _read(self, array: bytes, said: dict[int, _Said]) -> None:
        """Put what the array says over what earlier ones said."""
        pieces = _plain_pieces(array)
        if pieces is not None:
            values = pieces
        else:
            whole = decoded(array)
            if not isinstance(whole, list):
                self._lost_arrays += 1
                return
            values = whole
        self.arrays += 1
        for value in values:
            try:
                each = _said_by_piece(value) if isinstance(value, bytes) else _said(value)
            except _GarbledError:
                self._lost_objects += 1
                continue
            if each is not None:
                said[each.number] = each

    def _apply(self, said: _Said) -> None:
        info = None
        if said.kind in _DECODED_KINDS:
            try:
                info = _info(said)
            except _GarbledError:
                self._lost_objects += 1
                return
            if info is None:
                return
        self._forget(said.number, but=said.kind)
        if info is None:
            return
        properties = object_of(info, "props")
        if said.kind == "Node":
            self._keep(_node(said.number, info))
        elif said.kind == "Device":
            self._device_serials[said.number] = integer(properties, "object.serial")
            self._keep_device(said.number, info)
        elif properties.get(_SECURITY_CONTEXT) is None:
            self._trusted_clients[said.number] = integer(properties, "object.serial")
        else:
            self._trusted_clients.pop(said.number, None)

    def _forget(self, number: int, *, but: str) -> None:
        """Drop what had the id before; what is of the kind `but` is about to be replaced."""
        if but != "Node":
            self._nodes.pop(number, None)
        if but != "Device":
            self._device_serials.pop(number, None)
            self._bluetooth.pop(number, None)
            self._routes.pop(number, None)
        if but != "Client":
            self._trusted_clients.pop(number, None)

    def _keep_device(self, number: int, info: Mapping[str, Any]) -> None:
        """Keep what the device says of volumes and, if it is a Bluetooth one, of itself."""
        its_routes = routes(number, info)
        its_card = bluetooth_card(number, info)
        if its_routes:
            self._routes[number] = its_routes
        else:
            self._routes.pop(number, None)
        if its_card is not None:
            if its_card != self._bluetooth.get(number):
                self._bluetooth[number] = its_card
        else:
            self._bluetooth.pop(number, None)

    def _keep(self, node: Node) -> None:
        known = self._nodes.get(node.id)
        if known is not None and known.has_live_device != node.has_live_device:
            node = replace(node, has_live_device=known.has_live_device)
        if node != known:
            self._nodes[node.id] = node

    def _refresh(self) -> None:
        for node in list(self._nodes.values()):
            has_live_device = self._has_live_device(node)
            if has_live_device != node.has_live_device:
                self._nodes[node.id] = replace(node, has_live_device=has_live_device)
        nodes = tuple(
            self._routed(self._nodes[number])
            for number in sorted(self._nodes)
            if self._has_trusted_maker(self._nodes[number])
        )
        bluetooth = tuple(self._bluetooth[number] for number in sorted(self._bluetooth))
        if nodes != self._snapshot.nodes or bluetooth != self._snapshot.bluetooth:
            self._snapshot = PipeWireSnapshot(nodes, bluetooth)

    def _routed(self, node: Node) -> Node:
        """Return the node with the volume of its route, if its device has one for it."""
        number = node.properties.get("device.id", "")
        if not self._routes or not number.isdecimal() or not node.has_live_device:
            return node
        its = node.properties.get("card.profile.device")
        for route in self._routes.get(int(number), ()):
            if str(route.device) == its and route.volumes:
                return replace(node, route=route, volumes=route.volumes, is_muted=route.is_muted)
        return node

    def _has_live_device(self, node: Node) -> bool:
        number = node.properties.get("device.id", "")
        return not number.isdecimal() or _is_older(self._device_serials.get(int(number)), node)

    def _has_trusted_maker(self, node: Node) -> bool:
        number = node.properties.get("client.id", "")
        if not number.isdecimal():
            return not number
        return _is_older(self._trusted_clients.get(int(number)), node)


def _is_older(serial: int | None, node: Node) -> bool:
    """Whether what a node belongs to is there: what is younger only has the id of one that is gone."""
    return serial is not None and (serial < node.serial or not node.serial)


def _plain_pieces(array: bytes) -> list[bytes] | None:
    """Return the members of each object of an array; None when it isn't in pw-dump's form."""
    if not array.startswith(_PLAIN_START) or not array.endswith(_PLAIN_END):
        return None
    return array[len(_PLAIN_START) : -len(_PLAIN_END)].split(_PLAIN_SEPARATOR)


def _said_by_piece(members: bytes) -> _Said | None:
    """Return what an object says, decoding it only if its first lines are unusual."""
    found = _PLAIN_OBJECT.match(members)
    if found is None:
        return _said(decoded(b"{%b}" % members))
    number, kind = int(found[1]), (found[2] or b"").decode()
    return _Said(number, kind, members if kind in _DECODED_KINDS else b"")


def _said(value: object) -> _Said | None:
    """Return what a decoded object says, None for nothing; `_GarbledError` if it is no object."""
    number = value.get("id") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(number, int) or isinstance(number, bool):
        raise _GarbledError("no object with an id")
    kind = value.get("type")
    if isinstance(kind, str):
        return _Said(number, kind.removeprefix(_TYPE_PREFIX), info=value.get("info"))
    is_removal = "info" in value and value["info"] is None
    return _Said(number) if is_removal else None


def _info(said: _Said) -> Mapping[str, Any] | None:
    """Return an object's `info`, None if it has none yet; `_GarbledError` if it can't be decoded."""
    info = said.info
    if said.members:
        value = decoded(b"{%b}" % said.members)
        if not isinstance(value, dict):
            raise _GarbledError("no object")
        info = value.get("info")
    return info if isinstance(info, dict) else None


def _node(number: int, info: Mapping[str, Any]) -> Node:
    raw = object_of(info, "props")
    properties = {
        intern(clean(key)): text(value) for key, value in raw.items() if value is not None
    }
    params = object_of(info, "params")
    props, current = first(params, "Props"), first(params, "Format")
    volumes = _heard_volumes(props)
    positions = _positions(current.get("position")) or _positions(properties.get("audio.position"))
    positions = positions or _positions(props.get("channelMap"))
    channels = integer(current, "channels") or integer(raw, "audio.channels")
    return Node(
        id=NodeId(number),
        serial=NodeSerial(integer(raw, "object.serial")),
        name=properties.get("node.name", ""),
        media_class=properties.get("media.class", ""),
        state=text(info.get("state")),
        error=text(info.get("error")),
        volumes=volumes,
        is_muted=props.get("mute") is True,
        rate_hz=integer(current, "rate") or integer(raw, "audio.rate"),
        channels=channels or len(volumes) or len(positions),
        positions=positions,
        properties=properties,
    )


def _heard_volumes(props: Mapping[str, Any]) -> tuple[Linear, ...]:
    """Return the channels' volumes, each times the node's `volume`: that is what is heard."""
    volumes = linear_volumes(props.get("channelVolumes"))
    factor = (*linear_volumes([props.get("volume")]), Linear(1.0))[0]
    return volumes if factor == Linear(1.0) else tuple(Linear(each * factor) for each in volumes)


def _positions(value: object) -> tuple[str, ...]:
    """Return channel positions from a list, or from text like `FL,FR` or `[ FL FR ]`."""
    if isinstance(value, list):
        return tuple(text(each) for each in value)
    return tuple(_POSITION.findall(value)) if isinstance(value, str) else ()
