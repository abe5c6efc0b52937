"""The records that everything else speaks in.

Sources (virtual cards, later the kernel's cards and BlueZ; PipeWire; prepared claims) each replace
one whole snapshot. Records are frozen: a consumer that holds one holds the truth of one moment.
Text fields hold what the hardware said, cleaned only of invalid UTF-8; names that users see are
made in `naming`. Nothing here reads a clock, a file or a socket.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NewType

Percent = NewType("Percent", int)
"""Volume as PipeWire's own tools show it: cubic, 50 is 0.125 linear; over 100 is a boost."""
Linear = NewType("Linear", float)
"""Volume as PipeWire stores it: amplitude factor, 1.0 is unity."""
Decibel = NewType("Decibel", float)
NodeId = NewType("NodeId", int)
"""PipeWire object id: reused at once after removal."""
NodeSerial = NewType("NodeSerial", int)
"""PipeWire `object.serial`: the identity of one incarnation."""
CardNumber = NewType("CardNumber", int)
"""ALSA card number: first come, first numbered, of this boot only."""
NO_CARD = CardNumber(-1)
"""Number of what is no card of the kernel."""
DeviceName = NewType("DeviceName", str)
"""Name of a DRA device and of its Sink or Source: a DNS label of at most 63 characters."""


class Source(StrEnum):
    """Who fills a part of the graph."""

    ALSA = "alsa"
    BLUEZ = "bluez"
    VIRTUAL = "virtual"
    PIPEWIRE = "pipewire"
    CLAIMS = "claims"
    NODES = "nodes"
    """The keeper of nodes: which it can't make."""
    SPEAKERS = "speakers"
    """The keeper of speakers: which it is switching."""


class Direction(StrEnum):
    """Which way sound goes, seen from the workload."""

    PLAYBACK = "playback"
    CAPTURE = "capture"


class Connection(StrEnum):
    """How the endpoint is connected: the values of the attribute `connectionType`."""

    ANALOG = "analog"
    HDMI = "hdmi"
    DISPLAYPORT = "displayport"
    USB = "usb"
    BLUETOOTH = "bluetooth"
    SPDIF = "spdif"


@dataclass(frozen=True, slots=True, kw_only=True)
class Eld:
    """What a monitor says of itself: the kernel's EDID-Like Data block, decoded (see `eld`)."""

    version: int
    connection: Connection
    manufacturer: str
    """Three letters of the EDID's vendor id, "" when the block has none."""
    product: str
    """Four hex digits, lower case, "" when the block has none."""
    name: str
    port_id: int
    """The kernel's port id, 0 when it gives none."""
    lpcm_channels: int
    lpcm_max_rate_hz: int
    lpcm_bit_depths: tuple[int, ...]
    speakers: tuple[str, ...]
    """Speaker allocation, in the kernel's order: `FL/FR`, `LFE`, `FC`…"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Jack:
    """A jack control (`SNDRV_CTL_ELEM_IFACE_CARD`, "… Jack")."""

    name: str
    index: int = 0
    is_plugged: bool


class ControlType(StrEnum):
    """Kernel control types that a person can set."""

    BOOLEAN = "boolean"
    INTEGER = "integer"
    ENUMERATED = "enumerated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """One kernel mixer control as `snd_ctl_elem_info` and `snd_ctl_elem_value` give it."""

    name: str
    """The kernel's name, exactly: trailing spaces and commas count."""
    index: int = 0
    number: int = 0
    """The kernel's number of the element (numid), its own while the card lives; 0: none."""
    type: ControlType
    minimum: int = 0
    maximum: int = 1
    step: int = 0
    min_decibels: Decibel | None = None
    max_decibels: Decibel | None = None
    is_silent_at_minimum: bool = False
    """Whether the card says that its lowest value is no gain but silence."""
    items: tuple[str, ...] = ()
    channels: int = 1
    values: tuple[int, ...] | None = None
    """One per channel (enumerated: item numbers); None when the read fails or isn't allowed."""
    is_writable: bool = True
    is_locked: bool = False
    is_inactive: bool = False
    is_volatile: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecipe:
    """How the agent makes the PipeWire node of a PCM: a factory and its properties.

    `node.name` (the device's name), `media.class`, `object.linger` and the channel positions
    are added by `nodes`.
    """

    factory: str
    """Like `support.null-audio-sink` or `api.alsa.pcm.sink`."""
    properties: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pcm:
    """One direction of a PCM device (`snd_pcm_info`)."""

    device: int
    id: str
    name: str = ""
    direction: Direction
    channels: int = 2
    rate_hz: int = 48_000
    is_form_known: bool = True
    """False: channels and rate are what is usual, since the card can't be asked now."""
    eld: bytes | None = None
    """Raw ELD control of an HDMI or DisplayPort PCM; None for PCMs that have no such control."""
    recipe: NodeRecipe | None
    """None: the session manager makes the node, as it does for Bluetooth devices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsbIdentity:
    """What the USB device's descriptors and its place say."""

    vendor: str
    """Four hex digits, lower case."""
    product: str
    serial: str = ""
    port: str
    """Port path like `1-1.2`."""
    vendor_name: str = ""
    product_name: str = ""
    is_elsewhere: bool = False
    """Whether a live device of another node has the name that the serial would make."""


class Link(StrEnum):
    """How far the way to a Bluetooth device goes; all but the last say where it ends."""

    NO_SERVICE = "no-service"
    """The bus, or bluetoothd on it, doesn't answer."""
    NO_ADAPTER = "no-adapter"
    ADAPTER_OFF = "adapter-off"
    UNPAIRED = "unpaired"
    """The pairing was just removed: the device leaves in a few seconds."""
    AWAY = "away"
    """Switched off, out of range, or connected to something else."""
    CONNECTED = "connected"


@dataclass(frozen=True, slots=True, kw_only=True)
class Speaker:
    """What BlueZ says of a paired Bluetooth audio device (`org.bluez.Device1` and what is below it)."""

    address: str
    """Upper case, with colons: the identity, whatever adapter it is paired with."""
    name: str
    """Its alias; the address when it has none."""
    link: Link
    adapter: str = ""
    """Address of the adapter that it is reached by."""
    battery: int | None = None
    """Percent (`org.bluez.Battery1`)."""
    has_absolute_volume: bool = False
    """Whether its own volume can be set (AVRCP): its transport then has one."""
    transport: str = ""
    """State of its media transport: `idle`, `pending`, `active`; "" when it has none."""
    has_endpoints: bool = True
    """Whether a sound server has registered its media endpoints with the adapter."""
    is_blocked: bool = False
    """Whether BlueZ was told to let no connection of it come about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A sound card of this boot, or a Bluetooth audio device."""

    number: CardNumber
    id: str
    driver: str = ""
    name: str = ""
    bus: str
    """`pci`, `usb`, `platform` or what the kernel names."""
    path: str
    """PCI address `0000:00:1f.3`, USB port path `1-1.2`, Bluetooth address, else the device path."""
    usb: UsbIdentity | None = None
    speaker: Speaker | None = None
    """Set for a Bluetooth device: it has no card number and no PCM numbers of its own."""
    is_present: bool = True
    """False while the card is unplugged and its grace runs: its devices stay, tainted."""
    pcms: tuple[Pcm, ...] = ()
    jacks: tuple[Jack, ...] = ()
    controls: tuple[Control, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One entry of a PipeWire device's `EnumProfile`."""

    index: int
    name: str
    """Like `off`, `a2dp-sink`, `a2dp-sink-sbc_xq`, `headset-head-unit`."""
    is_available: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A route of a PipeWire device: where the volume of the nodes behind it is set."""

    device_id: NodeId
    device_serial: NodeSerial
    index: int
    device: int
    """`card.profile.device` of the nodes that it is for."""
    volumes: tuple[Linear, ...] = ()
    is_muted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BluetoothCard:
    """A PipeWire device that the session manager made of a connected Bluetooth device."""

    id: NodeId
    serial: NodeSerial
    address: str
    """Upper case, with colons."""
    profile: str = ""
    """Name of the active profile."""
    profiles: tuple[Profile, ...] = ()
    codec: str = ""
    """Name of the codec in use, like `sbc_xq`; "" when it has none."""
    codecs: tuple[tuple[str, int], ...] = ()
    """Codecs that it can be switched to now, each with its PipeWire number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A PipeWire node, as `pw-dump` shows it."""

    id: NodeId
    serial: NodeSerial
    name: str
    media_class: str = ""
    state: str = ""
    """`creating`, `suspended`, `idle`, `running`, `error`."""
    error: str = ""
    has_live_device: bool = True
    """False when the node names a `device.id` that no longer exists: a leftover nobody hears."""
    volumes: tuple[Linear, ...] = ()
    """Linear, one per channel; empty until the adapter announces them."""
    is_muted: bool = False
    rate_hz: int = 0
    channels: int = 0
    positions: tuple[str, ...] = ()
    route: Route | None = None
    """The route by which its volume is set; None: by its own properties."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """The node's properties as text; pw-dump guesses types, so identity never comes from here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimHold:
    """A prepared claim and the devices of this node that it holds."""

    namespace: str
    name: str
    uid: str
    devices: tuple[DeviceName, ...]
    is_admin: bool = False
    pods: tuple[str, ...] = ()
    max_volumes: tuple[tuple[DeviceName, Percent], ...] = ()
    """The devices whose class sets `maxVolume`."""
    codecs: tuple[tuple[DeviceName, str], ...] = ()
    """The devices for which a codec is asked, and that codec."""


@dataclass(frozen=True, slots=True)
class CardsSnapshot:
    """All cards that one source knows."""

    cards: tuple[Card, ...] = ()


@dataclass(frozen=True, slots=True)
class PipeWireSnapshot:
    """All nodes of the PipeWire graph, and its Bluetooth devices; each ordered by id."""

    nodes: tuple[Node, ...] = ()
    bluetooth: tuple[BluetoothCard, ...] = ()


@dataclass(frozen=True, slots=True)
class ClaimsSnapshot:
    """All prepared claims, ordered by namespace, name and UID."""

    holds: tuple[ClaimHold, ...] = ()


@dataclass(frozen=True, slots=True)
class ObstaclesSnapshot:
    """Devices whose node can't be made, each with the reason, ordered by name."""

    reasons: tuple[tuple[DeviceName, str], ...] = ()


@dataclass(frozen=True, slots=True)
class SwitchesSnapshot:
    """Addresses of the speakers whose node we are having made anew, in order."""

    addresses: tuple[str, ...] = ()


Snapshot = CardsSnapshot | PipeWireSnapshot | ClaimsSnapshot | ObstaclesSnapshot | SwitchesSnapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphView:
    """Everything known at one revision."""

    revision: int = 0
    cards: tuple[Card, ...] = ()
    nodes: tuple[Node, ...] = ()
    bluetooth: tuple[BluetoothCard, ...] = ()
    holds: tuple[ClaimHold, ...] = ()
    obstacles: tuple[tuple[DeviceName, str], ...] = ()
    switching: tuple[str, ...] = ()
    """Addresses of the speakers that we are switching to another codec or profile."""
    lost: frozenset[Source] = frozenset()
    """Sources that are not connected now; what they said of cards last is kept."""
    awaited: frozenset[Source] = frozenset()
    """Sources that have not spoken once since the start."""


class Fault(StrEnum):
    """Why nothing can be heard at an endpoint (or recorded from it), the outermost reason first."""

    UNPLUGGED = "unplugged"
    """The card, or the jack's plug, is out."""
    NO_MONITOR = "no-monitor"
    """HDMI or DisplayPort without a monitor."""
    GRAPH_LOST = "graph-lost"
    """PipeWire doesn't answer."""
    NO_NODE = "no-node"
    """PipeWire has no node for it, or the node is in error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A place where sound leaves or enters: one PCM with all that belongs to it."""

    name: DeviceName
    direction: Direction
    connection: Connection
    card: Card
    pcm: Pcm
    monitor: Eld | None = None
    node: Node | None = None
    bluetooth: BluetoothCard | None = None
    """PipeWire's device of a connected Bluetooth device."""
    jack: Jack | None = None
    """The jack that proves whether something is plugged in; None where none does."""
    controls: tuple[Control, ...] = ()
    obstacle: str = ""
    """Why its node can't be made, in words; "" where nothing is known to be in the way."""
    fault: Fault | None = None
    """None: a stream can be played or recorded now, or as soon as a switch of ours has ended."""
