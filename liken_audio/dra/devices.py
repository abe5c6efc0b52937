"""Endpoint → Device: what Kubernetes is told of it.

Attributes and taints as the reference says; the API's limits are kept here (a string of at most
64 bytes, integers of 64 bits), so that one long text never costs a whole slice. What a device
doesn't know it leaves out: an absent attribute is a fact for CEL, an empty one is a trap.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from liken_audio.api import DRIVER
from liken_audio.graph.eld import monitor_id
from liken_audio.graph.model import (
    BluetoothCard,
    DeviceName,
    Direction,
    Eld,
    Endpoint,
    Fault,
    Link,
    Speaker,
)

MONITOR_ID = "monitor.liken.sh/id"
PCI_BUS_ID = "resource.kubernetes.io/pciBusID"

DISCONNECTED = f"{DRIVER}/disconnected"
NO_MONITOR = f"{DRIVER}/no-monitor"
NO_SINK = f"{DRIVER}/no-sink"
NO_SOURCE = f"{DRIVER}/no-source"

STREAMS = "streams"
"""The capacity that claims of a shared device consume, one each unless they ask for more."""
SHARED_STREAMS = 64

_LONGEST_BYTES = 64
_LARGEST_INT = 2**63 - 1
_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")

Attribute = str | int | bool


@dataclass(frozen=True, slots=True)
class Taint:
    """A taint as `v1.DeviceTaint`; when it was added is the slice's business."""

    key: str
    effect: str
    value: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """How much a device has, and how much of it one claim takes.

    `default` for a claim that asks for nothing, else whole steps from `minimum` to `maximum`.
    """

    value: int
    default: int
    minimum: int
    maximum: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device as the slices publish it."""

    name: DeviceName
    attributes: Mapping[str, Attribute]
    """By name: without a prefix in the driver's own domain; never empty text."""
    taints: tuple[Taint, ...] = ()
    allow_multiple: bool = False
    capacity: Mapping[str, Capacity] = field(default_factory=dict)


def device(endpoint: Endpoint, fault: Fault | None, *, is_shared: bool = False) -> Device:
    """Return the device of an endpoint.

    `fault` is the one that counts (see `graph.presence`), not the one of this instant. A shared
    device may be allocated to several claims at once.
    """
    return Device(
        name=endpoint.name,
        attributes=attributes(endpoint),
        taints=taints(endpoint, fault),
        allow_multiple=is_shared,
        capacity={STREAMS: _streams()} if is_shared else {},
    )


def attributes(endpoint: Endpoint) -> dict[str, Attribute]:
    """Return the attributes that hold, within the API's limits."""
    direction = "sink" if endpoint.direction is Direction.PLAYBACK else "source"
    card, pcm = endpoint.card, endpoint.pcm
    found: dict[str, Attribute | None] = {
        direction: endpoint.name,
        "connectionType": endpoint.connection.value,
        "nodeName": node_name(endpoint),
        "card": None if card.speaker else card.number,
        "pcm": None if card.speaker else pcm.device,
        "channels": _channels(endpoint),
        PCI_BUS_ID: _pci_bus_id(endpoint),
    }
    if endpoint.monitor is not None:
        found |= _monitor_attributes(endpoint.monitor)
    if card.speaker is not None:
        found |= _bluetooth_attributes(card.speaker, endpoint.bluetooth)
    return {name: value for name, raw in found.items() if (value := _allowed(raw)) is not None}


def node_name(endpoint: Endpoint) -> str:
    """Return the PipeWire node that a stream goes to: kept while the node is away."""
    return endpoint.node.name if endpoint.node else endpoint.name


def taints(endpoint: Endpoint, fault: Fault | None) -> tuple[Taint, ...]:
    """Return the taints for a fault that counts.

    `disconnected` always, NoExecute: pods that can't be heard go, unless they tolerate it. With
    it, NoSchedule: no monitor, or no node. A plug that is out leaves the node in place.
    """
    if fault is None:
        return ()
    disconnected = Taint(DISCONNECTED, "NoExecute")
    if fault is Fault.NO_MONITOR:
        return (disconnected, Taint(NO_MONITOR, "NoSchedule"))
    if fault is Fault.UNPLUGGED and endpoint.card.is_present:
        return (disconnected,)
    is_sink = endpoint.direction is Direction.PLAYBACK
    return (disconnected, Taint(NO_SINK if is_sink else NO_SOURCE, "NoSchedule"))


def _monitor_attributes(monitor: Eld) -> dict[str, Attribute | None]:
    return {
        "monitorName": monitor.name,
        "manufacturer": monitor.manufacturer,
        "product": monitor.product,
        "lpcmChannels": monitor.lpcm_channels or None,
        "lpcmMaxRateHz": monitor.lpcm_max_rate_hz or None,
        "lpcmBitDepths": " ".join(map(str, monitor.lpcm_bit_depths)),
        "speakers": " ".join(monitor.speakers),
        "eldVersion": monitor.version,
        "portID": monitor.port_id or None,
        MONITOR_ID: monitor_id(monitor),
    }


def _bluetooth_attributes(
    speaker: Speaker, bluetooth: BluetoothCard | None
) -> dict[str, Attribute | None]:
    codec = bluetooth.codec if bluetooth else ""
    offered = [name for name, _ in bluetooth.codecs] if bluetooth else []
    return {
        "address": speaker.address,
        "name": speaker.name,
        "connected": speaker.link is Link.CONNECTED,
        "codec": codec,
        "codecs": _listed(dict.fromkeys(filter(None, (codec, *offered)))),
    }


def _channels(endpoint: Endpoint) -> int | None:
    """Channels of the node as made: what it runs with may change with each stream."""
    return endpoint.pcm.channels or None


def _pci_bus_id(endpoint: Endpoint) -> str | None:
    card = endpoint.card
    address = card.path.lower()
    return address if card.bus == "pci" and _PCI_ADDRESS.fullmatch(address) else None


def _allowed(value: Attribute | None) -> Attribute | None:
    """Return the value as the API takes it; None where it is better left out."""
    if isinstance(value, str):
        return _cut(value) or None
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > _LARGEST_INT:
        return None
    return value


def _cut(text: str) -> str:
    """Cut to the API's bytes at the end of a letter; what is no UTF-8 becomes a question mark."""
    encoded = text.encode("utf-8", "replace")[:_LONGEST_BYTES]
    return encoded.decode("utf-8", "ignore").strip()


def _listed(words: Iterable[str]) -> str:
    """Return as many words, from the first on, as fit the API's bytes: half a codec is another."""
    text = ""
    for word in words:
        longer = f"{text} {word}".lstrip()
        if len(longer.encode("utf-8", "replace")) > _LONGEST_BYTES:
            break
        text = longer
    return text


def _streams() -> Capacity:
    return Capacity(value=SHARED_STREAMS, default=1, minimum=1, maximum=SHARED_STREAMS, step=1)
