"""Another node's live device of the same name is found by its object, and nothing else counts."""

from typing import Any

import pytest

from liken_audio.api import NODES, SINKS, SOURCES, Unreachable
from liken_audio.controllers.foreign_names import ForeignNames
from liken_audio.graph.device_graph import DeviceGraph
from liken_audio.graph.model import Card, ClaimHold, ClaimsSnapshot, DeviceName, Source
from liken_audio.graph.naming import device_name
from tests.builders import microphone_pcm, pcm, usb_card, usb_identity
from tests.fakes import FakeResourceClient

CARD = usb_card(pcm(), microphone_pcm(), usb=usb_identity(serial="SN-1A7"))
NAME = device_name("kitchen", CARD, CARD.pcms[0])
MICROPHONE = device_name("kitchen", CARD, CARD.pcms[1])


def conditions(**states: str) -> list[dict[str, str]]:
    return [{"type": kind, "status": status} for kind, status in states.items()]


class World:
    """An API server with one object of the card's name."""

    def __init__(
        self, owner: str = "attic", *, connected: str = "True", ready: str = "True"
    ) -> None:
        self.client = FakeResourceClient()
        self.graph = DeviceGraph([Source.CLAIMS])
        self.put(SINKS, NAME, {"node": owner, "conditions": conditions(Connected=connected)})
        self.put(NODES, "attic", {"conditions": conditions(Ready=ready)})

    def put(self, kind: Any, name: str, status: dict[str, Any]) -> None:
        self.client.store[kind.plural, name] = {"metadata": {"name": name}, "status": status}

    async def has_live(self, card: Card = CARD) -> bool:
        return await ForeignNames(self.graph, self.client, "kitchen").has_live(card)

    def hold(self, name: str) -> None:
        hold = ClaimHold(namespace="media", name="a", uid="a", devices=(DeviceName(name),))
        self.graph.replace(Source.CLAIMS, ClaimsSnapshot((hold,)))


WORLDS: dict[str, tuple[dict[str, str], bool]] = {
    "another node has it": ({}, True),
    "it is ours": ({"owner": "kitchen"}, False),
    "it is nobody's": ({"owner": ""}, False),
    "it is unplugged there": ({"connected": "False"}, False),
    "that node is down": ({"ready": "Unknown"}, False),
    "that node is gone": ({"owner": "cellar"}, False),
}


@pytest.mark.parametrize(("world", "is_live"), WORLDS.values(), ids=WORLDS)
async def test_only_a_connected_device_of_a_node_that_is_up_counts(
    world: dict[str, str], is_live: bool
) -> None:
    assert await World(**world).has_live() is is_live


async def test_each_pcm_is_asked_for_by_its_own_kind() -> None:
    world = World("kitchen")
    assert not await world.has_live()
    status = {"node": "attic", "conditions": conditions(Connected="True")}
    world.put(SOURCES, MICROPHONE, status)
    assert await world.has_live()


async def test_no_object_and_no_server_speak_against_nothing() -> None:
    world = World()
    del world.client.store[SINKS.plural, NAME]
    assert not await world.has_live()
    world = World()
    world.client.failures = [Unreachable("no route")]
    assert not await world.has_live()


async def test_a_device_that_a_claim_holds_keeps_its_name() -> None:
    world = World()
    world.hold(NAME)
    assert not await world.has_live()
    world = World("kitchen")
    world.hold("kitchen-usb-1-1-2-usb-audio")
    place = usb_card(pcm(id="USB Audio"), usb=usb_identity(serial="SN-1A7", port="1-1.2"))
    assert await world.has_live(place)
