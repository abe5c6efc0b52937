"""GraphView → Endpoints: each PCM with its name, node, monitor, jack, controls and fault.

What depends on cards alone (names, connection, monitor, jack, controls) is worked out once for a
set of cards and remembered; a change of a node costs the join only. Nothing here raises.
"""

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from liken_audio.graph import eld
from liken_audio.graph.controls import controls_of
from liken_audio.graph.jacks import SCREENS, jacks_of
from liken_audio.graph.model import (
    BluetoothCard,
    Card,
    Connection,
    Control,
    DeviceName,
    Direction,
    Eld,
    Endpoint,
    Fault,
    GraphView,
    Jack,
    Node,
    Pcm,
    Source,
)
from liken_audio.graph.naming import device_names

ADDRESS_PROPERTY = "api.bluez5.address"
"""Property by which the session manager's Bluetooth nodes name their device."""
HEADSET = "headset-head-unit"
"""First part of the names of the profiles that have a microphone."""
MUSIC = ("a2dp-sink", "a2dp-duplex")
"""First parts of the names of the profiles that play music; `duplex`: the speaker sends music, too."""
DEVICE_PROPERTY = "audio.liken.sh.device"
"""Property by which a node that we made names its device."""

_MEDIA_CLASSES = {Direction.PLAYBACK: "Audio/Sink", Direction.CAPTURE: "Audio/Source"}
_SPDIF = re.compile(r"IEC958|S/?PDIF|\bDigital\b(?! *Mic)", re.IGNORECASE)
_HDMI = re.compile(r"\bHDMI", re.IGNORECASE)
_DISPLAYPORT = re.compile(r"\bDisplay ?Port\b|\bDP\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class _CardPart:
    """All of an endpoint that its card alone decides."""

    name: DeviceName
    card: Card
    pcm: Pcm
    connection: Connection
    monitor: Eld | None
    jack: Jack | None
    controls: tuple[Control, ...]
    fault: Fault | None


class _Same:
    """Records as a key of a cache: the same objects, so that nothing need be compared or hashed."""

    __slots__ = ("_hash", "records")

    def __init__(self, records: tuple[Any, ...]) -> None:
        self.records = records
        self._hash = hash(tuple(map(id, records)))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Same) or len(self.records) != len(other.records):
            return False
        return all(mine is its for mine, its in zip(self.records, other.records, strict=True))


def endpoints(view: GraphView, node_name: str) -> tuple[Endpoint, ...]:
    """Return all endpoints of the node, ordered by name; each name once.

    A view that differs in claims alone gives the same objects as before.
    """
    # Only a name made of a serial can move to another card; others would only empty the cache.
    devices = (device for hold in view.holds for device in hold.devices)
    held = frozenset(device for device in devices if device.startswith("usb-"))
    parts = _card_parts(_Same(view.cards), node_name, held)
    lost = Source.PIPEWIRE in view.lost
    found = _joined(_Same(parts), _Same(view.nodes), _Same(view.bluetooth), is_graph_lost=lost)
    if view.obstacles:
        found = _obstructed(_Same(found), view.obstacles)
    return _switched(_Same(found), view.switching) if view.switching else found


@lru_cache(maxsize=2)
def _joined(
    same_parts: _Same, same_nodes: _Same, same_bluetooth: _Same, *, is_graph_lost: bool
) -> tuple[Endpoint, ...]:
    parts: tuple[_CardPart, ...] = same_parts.records
    nodes = {} if is_graph_lost else _nodes_by_device(same_nodes.records, parts)
    bluetooth: dict[str, BluetoothCard] = {each.address: each for each in same_bluetooth.records}
    missing = Fault.GRAPH_LOST if is_graph_lost else Fault.NO_NODE
    return tuple(
        _endpoint(
            part,
            nodes.get(part.name),
            bluetooth.get(part.card.speaker.address) if part.card.speaker else None,
            missing,
        )
        for part in parts
    )


@lru_cache(maxsize=2)
def _obstructed(
    same_endpoints: _Same, obstacles: tuple[tuple[DeviceName, str], ...]
) -> tuple[Endpoint, ...]:
    found: tuple[Endpoint, ...] = same_endpoints.records
    reasons = dict(obstacles)
    return tuple(
        dataclasses.replace(one, obstacle=reasons[one.name])
        if one.name in reasons and one.fault is Fault.NO_NODE
        else one
        for one in found
    )


@lru_cache(maxsize=2)
def _switched(same_endpoints: _Same, addresses: tuple[str, ...]) -> tuple[Endpoint, ...]:
    """A node that we are having made anew ourselves isn't missing: no pod goes for that."""
    found: tuple[Endpoint, ...] = same_endpoints.records
    return tuple(
        dataclasses.replace(one, fault=None)
        if one.fault is Fault.NO_NODE and one.card.speaker and one.card.path in addresses
        else one
        for one in found
    )


def _endpoint(
    part: _CardPart, node: Node | None, bluetooth: BluetoothCard | None, missing: Fault
) -> Endpoint:
    is_missing = node is None or node.state == "error"
    if part.pcm.direction is Direction.CAPTURE and node is None and is_on_demand(bluetooth):
        is_missing = False
    return Endpoint(
        name=part.name,
        direction=part.pcm.direction,
        connection=part.connection,
        card=part.card,
        pcm=part.pcm,
        monitor=part.monitor,
        node=node,
        bluetooth=bluetooth,
        jack=part.jack,
        controls=part.controls,
        fault=part.fault or (missing if is_missing else None),
    )


def _nodes_by_device(nodes: Sequence[Node], parts: Sequence[_CardPart]) -> dict[DeviceName, Node]:
    """Pick each device's node: of two with one name the one that can be heard."""
    media_classes = {
        part.name: _MEDIA_CLASSES[part.pcm.direction] for part in parts if not part.card.speaker
    }
    by_address = {
        (part.card.speaker.address, _MEDIA_CLASSES[part.pcm.direction]): part.name
        for part in parts
        if part.card.speaker
    }
    found: dict[DeviceName, Node] = {}
    for node in nodes:
        address = node.properties.get(ADDRESS_PROPERTY)
        if address is not None:
            its = by_address.get((address.upper(), node.media_class))
            if its is not None and _is_bluetooth(node):
                found[its] = max(found.get(its, node), node, key=_preference)
            continue
        for text in {node.name, node.properties.get(DEVICE_PROPERTY, "")}:
            name = DeviceName(text)
            media_class = media_classes.get(name)
            if media_class is None or not _is_ours(node, media_class):
                continue
            if name not in found or _preference(node) > _preference(found[name]):
                found[name] = node
    return found


def _is_bluetooth(node: Node) -> bool:
    """A loopback stands for a profile that isn't active; a phone's music comes in by A2DP."""
    if not node.has_live_device or node.properties.get("bluez5.loopback") == "true":
        return False
    is_source = node.media_class == _MEDIA_CLASSES[Direction.CAPTURE]
    return not is_source or node.properties.get("api.bluez5.profile", "").startswith(HEADSET)


def is_on_demand(bluetooth: BluetoothCard | None) -> bool:
    """Whether a microphone without a node is only waiting for its profile to be switched on."""
    return bluetooth is not None and any(
        profile.is_available and profile.name.startswith(HEADSET) for profile in bluetooth.profiles
    )


def is_switched_off(endpoint: Endpoint) -> bool:
    """Whether this is a microphone that only waits so."""
    is_microphone = endpoint.direction is Direction.CAPTURE
    return is_microphone and endpoint.node is None and is_on_demand(endpoint.bluetooth)


def _is_ours(node: Node, media_class: str) -> bool:
    """A stream may bear any name; a leftover of a device that is gone is heard by nobody."""
    return node.has_live_device and node.media_class.startswith((media_class, "Audio/Duplex"))


def _preference(node: Node) -> tuple[bool, bool, int]:
    return node.state != "error", node.state == "running", node.serial


@lru_cache(maxsize=4)
def _card_parts(
    same_cards: _Same, node_name: str, held: frozenset[DeviceName]
) -> tuple[_CardPart, ...]:
    cards: tuple[Card, ...] = same_cards.records
    by_pcm = {}
    for card in cards:
        connections = [_connection(card, pcm) for pcm in card.pcms]
        jacks = jacks_of(card, connections)
        controls = controls_of(card, connections)
        for slot, pcm in enumerate(card.pcms):
            by_pcm[id(card), id(pcm)] = (connections[slot], jacks[slot], controls[slot])
    parts = []
    for named in device_names(node_name, cards, held):
        connection, jack, its_controls = by_pcm[id(named.card), id(named.pcm)]
        is_out = connection in SCREENS and jack is not None and not jack.is_plugged
        monitor = None if is_out or named.pcm.eld is None else eld.decode(named.pcm.eld)
        parts.append(
            _CardPart(
                name=named.name,
                card=named.card,
                pcm=named.pcm,
                connection=monitor.connection if monitor else connection,
                monitor=monitor,
                jack=jack,
                controls=its_controls,
                fault=_card_fault(named.card, named.pcm, connection, (monitor, jack)),
            )
        )
    return tuple(parts)


def _connection(card: Card, pcm: Pcm) -> Connection:
    """Return how the PCM is connected, as far as it shows without a monitor."""
    if card.speaker is not None:
        return Connection.BLUETOOTH
    names = f"{pcm.id} {pcm.name}"
    if pcm.eld is not None or _HDMI.search(names):
        return Connection.HDMI
    if _DISPLAYPORT.search(names):
        return Connection.DISPLAYPORT
    if _SPDIF.search(names):
        return Connection.SPDIF
    return Connection.USB if card.bus == "usb" else Connection.ANALOG


def _card_fault(
    card: Card, pcm: Pcm, connection: Connection, proof: tuple[Eld | None, Jack | None]
) -> Fault | None:
    monitor, jack = proof
    is_out = jack is not None and not jack.is_plugged
    if not card.is_present:
        return Fault.UNPLUGGED
    if connection not in SCREENS:
        return Fault.UNPLUGGED if is_out else None
    is_unanswered = pcm.eld is not None and monitor is None
    return Fault.NO_MONITOR if is_out or is_unanswered else None
