"""Records with good defaults: a test names only what it is about.

Each part appends its own builders; nothing here knows a test.
"""

from typing import Any

from liken_audio.dra.claims import ClaimedDevice, ClaimRecord, ClaimRef, ClaimState
from liken_audio.graph.model import (
    NO_CARD,
    BluetoothCard,
    Card,
    CardNumber,
    Connection,
    Control,
    ControlType,
    DeviceName,
    Direction,
    Endpoint,
    GraphView,
    Jack,
    Link,
    Node,
    NodeId,
    NodeRecipe,
    NodeSerial,
    Pcm,
    Profile,
    Speaker,
    UsbIdentity,
)

HDMI_ELD = bytes.fromhex("100008006c10000100080000000000001e6d095b4c4720554c5452415749444509070700")
"""An LG ULTRAWIDE on HDMI: `gsm-5b09-lg-ultrawide`, two channels, 48 kHz, 16/20/24 bits."""
DISPLAYPORT_ELD = bytes.fromhex(
    "100008006a140005010800000000000010ac714044454c4c2055323431350f0707000000"
)
"""A DELL U2415 on DisplayPort: `del-4071-dell-u2415`, eight channels."""
NO_ELD = bytes(128)
"""What a SoC's HDMI PCM shows with nothing plugged in."""


def recipe(direction: Direction = Direction.PLAYBACK) -> NodeRecipe:
    """Return the recipe of a null node."""
    media_class = "Audio/Sink" if direction is Direction.PLAYBACK else "Audio/Source/Virtual"
    return NodeRecipe(
        factory="support.null-audio-sink",
        properties=(("media.class", media_class), ("audio.position", "[ FL FR ]")),
    )


def pcm(**changes: Any) -> Pcm:
    """Return an analog playback PCM `ALC257 Analog`, device 0."""
    direction = changes.get("direction", Direction.PLAYBACK)
    fields: dict[str, Any] = {
        "device": 0,
        "id": "ALC257 Analog",
        "direction": direction,
        "recipe": recipe(direction),
    }
    return Pcm(**(fields | changes))


def hdmi_pcm(slot: int = 0, *, eld: bytes | None = HDMI_ELD, **changes: Any) -> Pcm:
    """Return the PCM of an HDMI slot: `HDMI 0` is device 3, the following are 7, 8, 9…"""
    device = 3 if slot == 0 else 6 + slot
    return pcm(**({"device": device, "id": f"HDMI {slot}", "eld": eld} | changes))


def microphone_pcm(**changes: Any) -> Pcm:
    """Return an analog capture PCM, device 0."""
    return pcm(**({"id": "ALC257 Analog", "direction": Direction.CAPTURE} | changes))


def card(*pcms: Pcm, **changes: Any) -> Card:
    """Return a PCI card with one analog output, or with the PCMs given."""
    fields: dict[str, Any] = {
        "number": CardNumber(0),
        "id": "PCH",
        "driver": "HDA-Intel",
        "name": "HDA Intel PCH",
        "bus": "pci",
        "path": "0000:00:1f.3",
        "pcms": pcms or (pcm(),),
    }
    return Card(**(fields | changes))


def usb_identity(**changes: Any) -> UsbIdentity:
    """Return the identity of a USB DAC with a serial of its own, in port 1-1.2."""
    fields: dict[str, Any] = {
        "vendor": "20b1",
        "product": "000a",
        "serial": "DAC51090305",
        "port": "1-1.2",
        "vendor_name": "XMOS",
        "product_name": "XMOS HIFI DSD",
    }
    return UsbIdentity(**(fields | changes))


def usb_card(*pcms: Pcm, usb: UsbIdentity | None = None, **changes: Any) -> Card:
    """Return a USB card with one output `USB Audio`, or with the PCMs given."""
    identity = usb or usb_identity()
    fields: dict[str, Any] = {
        "number": CardNumber(2),
        "id": "DSD",
        "driver": "USB-Audio",
        "name": "XMOS HIFI DSD",
        "bus": "usb",
        "path": identity.port,
        "usb": identity,
        "pcms": pcms or (pcm(id="USB Audio"),),
    }
    return Card(**(fields | changes))


def jack(name: str, *, index: int = 0, is_plugged: bool = True) -> Jack:
    """Return a jack, plugged in."""
    return Jack(name=name, index=index, is_plugged=is_plugged)


def control(name: str, **changes: Any) -> Control:
    """Return a boolean control that is on."""
    fields: dict[str, Any] = {"type": ControlType.BOOLEAN, "values": (1,)}
    return Control(name=name, **(fields | changes))


def node(name: str, **changes: Any) -> Node:
    """Return an idle sink node, id 40 and serial 40, with the given name."""
    fields: dict[str, Any] = {
        "id": NodeId(40),
        "serial": NodeSerial(40),
        "media_class": "Audio/Sink",
        "state": "idle",
        "rate_hz": 48_000,
        "channels": 2,
        "positions": ("FL", "FR"),
        "properties": {"node.name": name, "audio.liken.sh.device": name},
    }
    return Node(name=name, **(fields | changes))


def endpoint(name: str = "kitchen-pci-0000-00-1f-3-alc257-analog", **changes: Any) -> Endpoint:
    """Return an analog sink whose node is there and idle; `node=None` alone makes no fault."""
    its_pcm: Pcm = changes.get("pcm") or pcm(direction=changes.get("direction", Direction.PLAYBACK))
    media_class = "Audio/Sink" if its_pcm.direction is Direction.PLAYBACK else "Audio/Source"
    fields: dict[str, Any] = {
        "name": DeviceName(name),
        "direction": its_pcm.direction,
        "connection": Connection.ANALOG,
        "card": card(its_pcm),
        "pcm": its_pcm,
        "node": node(name, media_class=media_class),
    }
    return Endpoint(**(fields | changes))


def view(*cards: Card, **changes: Any) -> GraphView:
    """Return a view of the given cards in which no source is lost."""
    return GraphView(cards=cards, **changes)


KITCHEN_CARDS = """
cards:
  - number: 0
    id: PCH
    bus: pci
    path: "0000:00:1f.3"
    name: HDA Intel PCH
    pcms:
      - {device: 0, id: ALC257 Analog, direction: playback}
      - {device: 0, id: ALC257 Analog, direction: capture}
      - {device: 3, id: HDMI 0, direction: playback, eld: ""}
"""
"""A file of virtual cards: one card with an analog output, its microphone and an empty HDMI."""


def allocated(*results: dict[str, Any], config: Any = (), **changes: Any) -> dict[str, Any]:
    """Return a ResourceClaim `media/speakers`, UID `7d1c…`, allocated as `results` say."""
    metadata = {"namespace": "media", "name": "speakers", "uid": CLAIM_UID}
    devices = {"results": list(results or (result(),)), "config": list(config)}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": metadata | changes,
        "status": {"allocation": {"devices": devices}},
    }


def result(
    device: str = "kitchen-pci-0000-00-1f-3-alc257-analog", request: str = "out", **changes: Any
) -> dict[str, Any]:
    """Return an allocation result of ours from the pool `kitchen`."""
    fields = {"driver": "audio.liken.sh", "pool": "kitchen", "device": device, "request": request}
    return fields | changes


def opaque(parameters: Any, *requests: str, source: str = "FromClaim") -> dict[str, Any]:
    """Return an entry of `allocation.devices.config` with parameters for our driver."""
    entry: dict[str, Any] = {
        "source": source,
        "opaque": {"driver": "audio.liken.sh", "parameters": parameters},
    }
    return entry | ({"requests": list(requests)} if requests else {})


CLAIM_UID = "7d1c6d1e-0000-4000-8000-000000000001"


def claim_ref(uid: str = CLAIM_UID, name: str = "speakers", namespace: str = "media") -> ClaimRef:
    """Return a claim as the kubelet names it."""
    return ClaimRef(namespace=namespace, name=name, uid=uid)


def claimed_device(**changes: Any) -> ClaimedDevice:
    """Return the analog sink `kitchen-…-analog` of the request `out`."""
    name = changes.get("device", "kitchen-pci-0000-00-1f-3-alc257-analog")
    fields: dict[str, Any] = {
        "request": "out",
        "pool": "kitchen",
        "device": DeviceName(name),
        "direction": Direction.PLAYBACK,
        "node_name": name,
        "channels": 2,
        "rate_hz": 48_000,
    }
    return ClaimedDevice(**(fields | changes))


def claim_record(*devices: ClaimedDevice, **changes: Any) -> ClaimRecord:
    """Return the completed record of `media/speakers` with one analog sink, or with `devices`."""
    fields: dict[str, Any] = {
        "ref": claim_ref(),
        "boot_id": "boot-1",
        "state": ClaimState.COMPLETED,
        "devices": devices or (claimed_device(),),
    }
    return ClaimRecord(**(fields | changes))


SPEAKER_ADDRESS = "7C:66:EF:01:23:45"
SPEAKER_NAME = "7c-66-ef-01-23-45"


def speaker(**changes: Any) -> Speaker:
    """Return a connected speaker, `Kitchen Radio`, without a volume of its own."""
    fields: dict[str, Any] = {
        "address": SPEAKER_ADDRESS,
        "name": "Kitchen Radio",
        "link": Link.CONNECTED,
        "adapter": "02:00:00:00:10:00",
        "transport": "idle",
    }
    return Speaker(**(fields | changes))


def speaker_card(its: Speaker | None = None, *, has_microphone: bool = False) -> Card:
    """Return the card of a speaker, a connected one unless given."""
    its = its or speaker()
    pcms = [pcm(id="playback", recipe=None)]
    if has_microphone:
        pcms.append(microphone_pcm(device=1, id="capture", channels=1, recipe=None))
    return Card(
        number=NO_CARD,
        id="",
        name=its.name,
        bus="bluetooth",
        path=its.address,
        speaker=its,
        is_present=its.link is Link.CONNECTED,
        pcms=tuple(pcms),
    )


def bluetooth_card(**changes: Any) -> BluetoothCard:
    """Return PipeWire's device of the speaker: plays sbc, could sbc_xq and aac."""
    fields: dict[str, Any] = {
        "id": NodeId(46),
        "serial": NodeSerial(47),
        "address": SPEAKER_ADDRESS,
        "profile": "a2dp-sink",
        "profiles": (Profile(index=0, name="off"), Profile(index=131073, name="a2dp-sink")),
        "codec": "sbc",
        "codecs": (("sbc", 1), ("sbc_xq", 2), ("aac", 4)),
    }
    return BluetoothCard(**(fields | changes))


def speaker_node(**changes: Any) -> Node:
    """Return the session manager's node of the speaker, id 47, serial 48."""
    properties = {
        "api.bluez5.address": SPEAKER_ADDRESS,
        "api.bluez5.profile": "a2dp-sink",
        "api.bluez5.codec": "sbc",
        "device.id": "46",
    }
    fields: dict[str, Any] = {
        "id": NodeId(47),
        "serial": NodeSerial(48),
        "properties": properties | changes.pop("properties", {}),
    }
    name = changes.pop("name", f"bluez_output.{SPEAKER_ADDRESS.replace(':', '_')}.1")
    return node(name, **(fields | changes))


def speaker_endpoint(its: Speaker | None = None, **changes: Any) -> Endpoint:
    """Return the sink of a connected speaker, whose node and device are there."""
    card_of_it = speaker_card(its)
    fields: dict[str, Any] = {
        "connection": Connection.BLUETOOTH,
        "card": card_of_it,
        "pcm": card_of_it.pcms[0],
        "node": speaker_node(),
        "bluetooth": bluetooth_card(),
    }
    return endpoint(SPEAKER_NAME, **(fields | changes))
