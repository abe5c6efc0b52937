"""Each row of docs/faults.md: the fault is made, `kubectl describe` tells it, the repair ends it.

One node has all the faults at once, each in a card of its own.
"""

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from liken_audio.api import NODE_LABEL, SOURCES, Json
from liken_audio.graph.model import (
    BluetoothCard,
    Card,
    CardNumber,
    CardsSnapshot,
    ClaimHold,
    ClaimsSnapshot,
    Control,
    ControlType,
    DeviceName,
    Link,
    Node,
    NodeId,
    NodeSerial,
    PipeWireSnapshot,
    Profile,
    Source,
)
from tests.builders import (
    HDMI_ELD,
    NO_ELD,
    SPEAKER_NAME,
    bluetooth_card,
    card,
    control,
    hdmi_pcm,
    jack,
    microphone_pcm,
    node,
    pcm,
    speaker,
    speaker_card,
    speaker_node,
)
from tests.fakes import FakeHardware
from tests.harness.cluster import Cluster
from tests.harness.processes import HarnessError
from tests.harness.resource_lab import DEADLINE, Lab, lab

PAGE = Path(__file__).parents[2] / "docs" / "faults.md"
NODE = "faults"
BROKEN = "Broken Playback Volume"


@dataclass(frozen=True)
class Row:
    """A row of the page."""

    fault: str
    condition: str
    reason: str
    says: str


def rows() -> dict[str, Row]:
    lines = re.findall(
        r"^\| ([a-z-]+) \| (\w+) \| `(\w+)` \| (.+?) \| .+ \|$", PAGE.read_text(), re.MULTILINE
    )
    return {line[0]: Row(*line) for line in lines}


ROWS = rows()


@dataclass
class Place:
    """One card with one output, and what PipeWire and its object have for it."""

    card: Card
    node: Node | None = None
    spec: Json = field(default_factory=dict)
    kind: str = "sink"
    name: str = ""
    bluetooth: BluetoothCard | None = None
    hold: ClaimHold | None = None


class Hardware(FakeHardware):
    """One control is broken, none shows what is written, and neither does a suspended node."""

    def _change(self, target: Node, **changes: Any) -> None:
        if target.state != "suspended":
            super()._change(target, **changes)

    def _called(self, what: str, value: Any) -> None:
        super()._called(what, value)
        if what == BROKEN:
            raise OSError(5, "Input/output error")


class Site:
    """All places, by fault; each has its own PCI slot, node id and name."""

    def __init__(self) -> None:
        self.places: dict[str, Place] = {}

    def add(self, fault: str, **changes: Any) -> Place:
        """Make a place whose output plays at full volume, apart from `changes`."""
        number = len(self.places) + 1
        slot = f"0000:{number:02x}:00.0"
        its_pcm = changes.pop("pcm", pcm(id="Out"))
        its_card = card(its_pcm, number=CardNumber(number), path=slot, **changes.pop("card", {}))
        tail = re.sub(r"[^a-z0-9]+", "-", its_pcm.id.lower())
        name = f"{NODE}-pci-{slot.replace(':', '-').replace('.', '-')}-{tail}"
        fields = {"id": NodeId(100 + number), "serial": NodeSerial(100 + number)}
        fields |= {"state": "running", "volumes": (1.0, 1.0)} | (changes.pop("node", None) or {})
        is_without_node = changes.pop("is_without_node", False)
        its_node = None if is_without_node else node(name, **fields)
        made = Place(card=its_card, node=its_node, name=name, **changes)
        self.places[fault] = made
        return made

    def add_speaker(self, fault: str, digit: int, **changes: Any) -> Place:
        """Make a Bluetooth speaker whose address ends in `digit`."""
        address = f"7C:66:EF:01:23:4{digit}"
        its = speaker(address=address, name=fault, **changes.pop("speaker", {}))
        its_node = None
        if not changes.pop("is_without_node", False):
            number = 200 + digit
            its_node = replace(
                speaker_node(id=NodeId(number), serial=NodeSerial(number)),
                name=f"bluez_output.{digit}",
            )
            its_node = replace(
                its_node, properties={**its_node.properties, "api.bluez5.address": address}
            )
        its_bluetooth = changes.pop("bluetooth", None)
        if its_bluetooth is not None:
            number = 300 + digit
            its_bluetooth = replace(
                its_bluetooth, address=address, id=NodeId(number), serial=NodeSerial(number)
            )
        name = SPEAKER_NAME[:-1] + str(digit)
        made = Place(card=speaker_card(its), node=its_node, name=name, **changes)
        made.bluetooth = its_bluetooth
        self.places[fault] = made
        return made

    def show(self, here: Lab) -> None:
        places = self.places.values()
        here.graph.replace(Source.VIRTUAL, CardsSnapshot(tuple(each.card for each in places)))
        here.graph.replace(
            Source.PIPEWIRE,
            PipeWireSnapshot(
                tuple(each.node for each in places if each.node),
                tuple(each.bluetooth for each in places if each.bluetooth),
            ),
        )
        holds = tuple(each.hold for each in places if each.hold)
        here.graph.replace(Source.CLAIMS, ClaimsSnapshot(holds))


def level(name: str, **changes: Any) -> Control:
    fields = {"type": ControlType.INTEGER, "maximum": 87, "values": (10,)}
    return control(name, **(fields | changes))


def declared(name: str, value: str = "20") -> Json:
    return {"controls": {name: value}}


def with_controls(*controls: Control) -> Json:
    return {"controls": controls}


MASTER = "Master Playback Volume"
MUTE_MODE = control(
    "Auto-Mute Mode", type=ControlType.ENUMERATED, items=("Enabled", "Disabled"), values=(0,)
)


def site() -> Site:
    """Every fault of the page that is made of cards, nodes and specs."""
    made = Site()
    made.add("jack-empty", card={"jacks": (jack("Headphone Jack", is_plugged=False),)})
    made.add("no-monitor", pcm=hdmi_pcm(eld=NO_ELD))
    made.add("card-pulled", card={"is_present": False}, is_without_node=True)
    made.add("no-node", is_without_node=True)
    made.add("node-in-error", node={"state": "error", "error": "Device or resource busy"})
    made.add("muted-by-program", node={"is_muted": True})
    made.add("muted-by-spec", spec={"mute": True})
    made.add("switch-off", card=with_controls(control("Master Playback Switch", values=(0,))))
    made.add(
        "microphone-off",
        pcm=microphone_pcm(id="Out"),
        card=with_controls(control("Capture Switch", values=(0,))),
        node={"media_class": "Audio/Source"},
        kind="source",
    )
    made.add("volume-zero")  # and somebody turns it down; the first sight of a node ends at 100
    made.add("value-out-of-range", card=with_controls(level(MASTER)), spec=declared(MASTER, "99"))
    made.add("item-unknown", card=with_controls(MUTE_MODE), spec=declared("Auto-Mute Mode", "On"))
    made.add(
        "control-unknown",
        card=with_controls(level(MASTER), level("PCM Playback Volume")),
        spec=declared("Mastr Playback Volume"),
    )
    made.add("space-left-out", card=with_controls(level("E30 ")), spec=declared("E30"))
    for fault, flag in [
        ("control-read-only", {"is_writable": False}),
        ("control-inactive", {"is_inactive": True}),
        ("control-locked", {"is_locked": True}),
    ]:
        made.add(fault, card=with_controls(level(MASTER, **flag)), spec=declared(MASTER))
    made.add("write-fails", card=with_controls(level(BROKEN)), spec=declared(BROKEN))
    made.add("value-not-taken", card=with_controls(level(MASTER)), spec=declared(MASTER))
    made.add("fought-over", spec={"volume": 50})
    made.add("codec-on-a-cable", spec={"codec": "aac"})
    made.add("not-heard-yet", node={"state": "suspended", "volumes": ()}, spec={"volume": 50})
    made.add(
        "declared-while-away",
        card={"is_present": False},
        is_without_node=True,
        spec={"volume": 50},
    )
    made.add_speaker("speaker-away", 1, speaker={"link": Link.AWAY}, is_without_node=True)
    made.add_speaker("adapter-gone", 2, speaker={"link": Link.NO_ADAPTER}, is_without_node=True)
    headset = (Profile(index=0, name="off"), Profile(index=1, name="headset-head-unit"))
    made.add_speaker(
        "no-playback-profile",
        3,
        bluetooth=bluetooth_card(profiles=headset, profile="off"),
        is_without_node=True,
    )
    made.add_speaker("codec-not-offered", 4, bluetooth=bluetooth_card(), spec={"codec": "aptx"})
    in_use = made.add("in-use")
    in_use.hold = ClaimHold(
        namespace="media", name="tv", uid="u1", devices=(DeviceName(in_use.name),)
    )
    return made


HAND_MADE = ("device-gone", "misspelt-name")
"""Faults of objects without a device."""


def hand_made(made: Site) -> dict[str, tuple[str, Json]]:
    """Name and metadata of the objects that have no device."""
    return {
        "device-gone": (f"{NODE}-usb-1-1-gone", {"labels": {NODE_LABEL: NODE}}),
        "misspelt-name": (made.places["in-use"].name + "x", {}),
    }


def manifest(kind: str, name: str, spec: Json, metadata: Json | None = None) -> Json:
    return {
        "apiVersion": SOURCES.api_version,
        "kind": kind.capitalize(),
        "metadata": {"name": name} | (metadata or {}),
        "spec": spec,
    }


def plugged(place: Place) -> None:
    place.card = replace(
        place.card,
        is_present=True,
        jacks=tuple(replace(one, is_plugged=True) for one in place.card.jacks),
    )


def played(place: Place, **changes: Any) -> None:
    fields: dict[str, Any] = {"id": NodeId(900), "serial": NodeSerial(900), "volumes": (1.0, 1.0)}
    place.node = node(place.name, **(fields | {"state": "running"} | changes))


def returned(place: Place) -> None:
    plugged(place)
    number = int(place.card.number)
    played(place, id=NodeId(100 + number), serial=NodeSerial(100 + number))


def freed(place: Place) -> None:
    controls = tuple(
        replace(one, is_inactive=False, is_locked=False, values=(20,))
        for one in place.card.controls
    )
    place.card = replace(place.card, controls=controls)


def lit(place: Place) -> None:
    place.card = replace(place.card, pcms=(replace(place.card.pcms[0], eld=HDMI_ELD),))


def reconnected(place: Place) -> None:
    assert place.card.speaker is not None
    address = place.card.speaker.address
    place.card = speaker_card(replace(place.card.speaker, link=Link.CONNECTED))
    number = 500 + int(address[-1])
    made = speaker_node(id=NodeId(number), serial=NodeSerial(number), name=f"bluez_output.{number}")
    place.node = replace(made, properties={**made.properties, "api.bluez5.address": address})
    place.bluetooth = replace(
        bluetooth_card(), address=address, id=NodeId(number + 50), serial=NodeSerial(number + 50)
    )


def flipped(place: Place) -> None:
    controls = tuple(replace(one, values=(1,)) for one in place.card.controls)
    place.card = replace(place.card, controls=controls)


def released(place: Place) -> None:
    place.hold = None


HARDWARE_REPAIRS: dict[str, Callable[[Place], None]] = {
    "jack-empty": plugged,
    "no-monitor": lit,
    "card-pulled": returned,
    "no-node": returned,
    "node-in-error": returned,
    "switch-off": flipped,  # what the declared "on" does; this hardware shows no writes
    "microphone-off": flipped,
    "control-inactive": freed,
    "control-locked": freed,
    "not-heard-yet": lambda place: (
        played(place, id=place.node.id, serial=place.node.serial, volumes=(0.125, 0.125))
        if place.node
        else None
    ),
    "declared-while-away": returned,
    "speaker-away": reconnected,
    "adapter-gone": reconnected,
    "no-playback-profile": reconnected,
    "in-use": released,
}
SPEC_REPAIRS: dict[str, Json] = {
    "muted-by-program": {"mute": False},
    "muted-by-spec": {"mute": False},
    "switch-off": declared("Master Playback Switch", "on"),
    "microphone-off": declared("Capture Switch", "on"),
    "volume-zero": {"volume": 50},
    "value-out-of-range": declared(MASTER, "10"),
    "item-unknown": declared("Auto-Mute Mode", "Enabled"),
    "control-unknown": declared(MASTER, "10"),
    "space-left-out": declared("E30 ", "10"),
    "control-read-only": {},
    "write-fails": {},
    "value-not-taken": declared(MASTER, "10"),
    "fought-over": {},
    "codec-on-a-cable": {},
    "codec-not-offered": {"codec": "sbc"},
}


def block(text: str, condition: str) -> str:
    """One condition of the output of `kubectl describe`, its blanks made one."""
    conditions = text.split("Conditions:")[1]
    parts = re.split(r"\n\s+Last Transition Time:", conditions)
    (found,) = [part for part in parts if re.search(rf"\n\s+Type:\s+{condition}\b", part)]
    return " ".join(found.split())


def tells(text: str, row: Row) -> bool:
    """Whether a description has what the page says of the fault."""
    if "Conditions:" not in text:
        return False
    try:
        shown = block(text, row.condition)
    except ValueError:
        return False
    if f"Reason: {row.reason} " not in shown + " ":
        return False
    return row.says in shown or row.says in " ".join(text.split())


async def described(here: Lab, kind: str, name: str) -> str:
    try:
        return await here.kubectl("describe", kind, name)
    except HarnessError as error:  # not there yet: the deadline decides
        return str(error)


async def until_told(here: Lab, kind: str, name: str, row: Row, *, is_told: bool = True) -> None:
    text = ""
    try:
        async with asyncio.timeout(2 * DEADLINE):
            while tells(text := await described(here, kind, name), row) is not is_told:
                await asyncio.sleep(0.5)
    except TimeoutError:
        shown = " ".join(text.partition("Conditions:")[2].split())
        raise AssertionError(f"{row}, shown: {shown or text}") from None


def set_by_hand(here: Lab, place: Place, volume: float) -> None:
    assert place.node is not None
    view = here.graph.view()
    nodes = [
        replace(one, volumes=(volume, volume)) if one.serial == place.node.serial else one
        for one in view.nodes
    ]
    here.graph.replace(Source.PIPEWIRE, PipeWireSnapshot(tuple(nodes), view.bluetooth))


async def fight(here: Lab, place: Place) -> None:
    """Set the volume by hand as soon as the agent has corrected it, until told that it gave up."""
    told = asyncio.get_running_loop().create_task(
        until_told(here, "sink", place.name, ROWS["fought-over"])
    )
    while not told.done():
        set_by_hand(here, place, 1.0)
        await asyncio.sleep(0.1)
    await told


def test_each_fault_of_the_page_is_made_here_and_no_other() -> None:
    assert set(ROWS) == set(site().places) | set(HAND_MADE)
    assert len(ROWS) >= 25


@pytest.mark.timeout(300)
async def test_describe_tells_each_fault_and_its_repair_ends_it(cluster: Cluster) -> None:
    made = site()
    loose = hand_made(made)
    objects = [
        manifest(place.kind, place.name, place.spec) for place in made.places.values() if place.spec
    ] + [manifest("sink", name, {"volume": 50}, extra) for name, extra in loose.values()]
    await asyncio.to_thread(cluster.apply, *objects)
    targets = {fault: (place.kind, place.name) for fault, place in made.places.items()}
    targets |= {fault: ("sink", name) for fault, (name, _) in loose.items()}
    async with lab(cluster, NODE, hardware=Hardware) as here:
        made.show(here)
        await fight(here, made.places["fought-over"])
        set_by_hand(here, made.places["volume-zero"], 0.0)
        await _each(here, targets, is_told=True)
        await _repair(here, made, loose)
        await _each(here, {key: targets[key] for key in made.places}, is_told=False)


async def _each(here: Lab, targets: dict[str, tuple[str, str]], *, is_told: bool) -> None:
    """Ask kubectl for each, a few at a time."""
    width = asyncio.Semaphore(4)

    async def ask(fault: str) -> None:
        async with width:
            await until_told(here, *targets[fault], ROWS[fault], is_told=is_told)

    failures = await asyncio.gather(*map(ask, targets), return_exceptions=True)
    told = "\n".join(str(failure) for failure in failures if failure is not None)
    assert not told, told


async def _repair(here: Lab, made: Site, loose: dict[str, tuple[str, Json]]) -> None:
    edits: Sequence[Json] = [
        manifest(made.places[fault].kind, made.places[fault].name, spec)
        for fault, spec in SPEC_REPAIRS.items()
    ]
    await asyncio.to_thread(here.cluster.apply, *edits)
    names = [name for name, _ in loose.values()]
    await here.kubectl("delete", "sinks", *names)
    for fault, repair in HARDWARE_REPAIRS.items():
        repair(made.places[fault])
    made.show(here)
