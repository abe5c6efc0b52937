"""The keeper of nodes against a PipeWire of a few lines, in virtual time."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest

from liken_audio.controllers.node_keeper import APPEAR_SECONDS, MAX_DELAY, NodeKeeper
from liken_audio.graph.device_graph import DeviceGraph
from liken_audio.graph.endpoints import endpoints
from liken_audio.graph.model import (
    Card,
    CardsSnapshot,
    ClaimHold,
    ClaimsSnapshot,
    DeviceName,
    Linear,
    Node,
    NodeId,
    NodeRecipe,
    NodeSerial,
    PipeWireSnapshot,
    Source,
)
from tests import builders
from tests.builders import card, hdmi_pcm, microphone_pcm, pcm

pytestmark = pytest.mark.looptime

ANALOG = "kitchen-pci-0000-00-1f-3-alc257-analog"
DELAY = 0.02
"""How long a node takes to show."""


class FakePipeWire:
    """Nodes that show a moment after they were made; satisfies `AudioWriter`."""

    def __init__(self, graph: DeviceGraph) -> None:
        self.graph = graph
        self.nodes: dict[int, Node] = {}
        self.serial = 40
        self.failure: Callable[[str], None] = lambda name: None
        """Raises for a write to a node of that name."""
        self.is_deaf = False
        """Whether writes are taken and lead to nothing."""
        self.created: list[tuple[float, str]] = []
        self.destroyed: list[tuple[float, int]] = []
        self.running: list[str] = []
        self.most_running: dict[str, int] = {}

    def connect(self) -> None:
        self.graph.replace(
            Source.PIPEWIRE, PipeWireSnapshot(tuple(self.nodes[n] for n in sorted(self.nodes)))
        )

    def restart(self) -> None:
        self.nodes.clear()
        self.graph.lose(Source.PIPEWIRE)

    def make(self, name: str, properties: Mapping[str, str], **changes: object) -> None:
        self.serial += 1
        self.nodes[self.serial] = builders.node(
            name,
            id=NodeId(self.serial),
            serial=NodeSerial(self.serial),
            media_class=properties.get("media.class", "Audio/Sink"),
            properties=properties,
            **changes,
        )
        self.connect()

    def remove(self, serial: int) -> None:
        self.nodes.pop(serial, None)
        self.connect()

    async def create_node(
        self, name: str, recipe: NodeRecipe, properties: Mapping[str, str]
    ) -> None:
        self.created.append((now(), name))
        self.running.append(name)
        self.most_running[name] = max(self.running.count(name), self.most_running.get(name, 0))
        await asyncio.sleep(DELAY)
        self.running.remove(name)
        self.failure(name)
        if not self.is_deaf:
            everything = {**dict(recipe.properties), **properties}
            asyncio.get_running_loop().call_later(DELAY, self.make, name, everything)

    async def destroy_node(self, node: Node) -> None:
        self.destroyed.append((now(), node.serial))
        await asyncio.sleep(DELAY)
        self.failure(node.name)
        if not self.is_deaf:
            asyncio.get_running_loop().call_later(DELAY, self.remove, node.serial)

    async def set_volume(self, node: Node, volume: Linear) -> None:
        raise NotImplementedError

    async def set_mute(self, node: Node, *, is_muted: bool) -> None:
        raise NotImplementedError


class World:
    def __init__(self, *cards: Card) -> None:
        self.graph = DeviceGraph([Source.VIRTUAL, Source.PIPEWIRE])
        self.pipewire = FakePipeWire(self.graph)
        self.obstacle_text = ""
        self.keeper = NodeKeeper(self.graph, "kitchen", self.pipewire, self)
        self.cards(*cards)

    async def obstacle(self, _recipe: NodeRecipe) -> str:
        """Satisfy `PcmProbe`."""
        return self.obstacle_text

    def holds(self, *holds: ClaimHold) -> None:
        self.graph.replace(Source.CLAIMS, ClaimsSnapshot(holds))

    def cards(self, *cards: Card) -> None:
        self.graph.replace(Source.VIRTUAL, CardsSnapshot(cards))

    @property
    def names(self) -> list[str]:
        return sorted(node.name for node in self.pipewire.nodes.values())

    @asynccontextmanager
    async def running(self, *more: NodeKeeper) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each.run()) for each in (self.keeper, *more)]
            await asyncio.sleep(0)
            yield
            for task in tasks:
                task.cancel()


def now() -> float:
    return asyncio.get_running_loop().time()


@asynccontextmanager
async def at_rest(*cards: Card) -> AsyncIterator[World]:
    """A world whose nodes have been made, long ago."""
    world = World(*cards)
    world.pipewire.connect()
    async with world.running():
        await asyncio.sleep(300)
        yield world


def deny(name: str) -> None:
    raise OSError(5, "pw-cli says no")


async def test_each_endpoint_gets_its_node_once() -> None:
    async with at_rest(card(pcm(), microphone_pcm(), hdmi_pcm())) as world:
        assert len(world.names) == 3
        assert world.keeper.writes == len(world.pipewire.created) == 3
        assert world.keeper.failures == {}
        assert world.keeper.errors == 0


async def test_nothing_is_written_while_nothing_changes() -> None:
    async with at_rest(card()) as world:
        world.graph.replace(Source.VIRTUAL, CardsSnapshot((card(name="renamed"),)))
        await asyncio.sleep(3600)
        assert world.keeper.writes == 1


async def test_a_new_card_has_its_node_within_a_moment() -> None:
    async with at_rest() as world:
        world.cards(card())
        await asyncio.sleep(3 * DELAY)
        assert world.names == [ANALOG]


async def test_many_nodes_are_made_at_once() -> None:
    cards = [card(path=f"0000:00:{slot:02x}.0") for slot in range(64)]
    world = World(*cards)
    world.pipewire.connect()
    async with world.running():
        await asyncio.sleep(3 * DELAY)
        assert len(world.names) == 64


async def test_at_most_one_creation_of_a_name_is_under_way() -> None:
    """Changes of the graph that don't show the node yet ask for no second one."""
    world = World(card())
    world.pipewire.connect()
    async with world.running():
        for number in range(20):
            world.cards(card(name=f"name {number}"))
            await asyncio.sleep(DELAY / 10)
    assert len(world.pipewire.created) == 1


async def test_nothing_is_done_while_pipewire_is_lost_or_awaited() -> None:
    world = World(card())
    async with world.running():
        await asyncio.sleep(60)
        assert world.pipewire.created == []
        world.pipewire.connect()
        await asyncio.sleep(1)
        world.pipewire.restart()
        world.cards(card(), card(path="0000:00:1b.0"))
        await asyncio.sleep(60)
        assert len(world.pipewire.created) == 1


async def test_after_a_restart_of_pipewire_all_nodes_are_made_again_at_once() -> None:
    async with at_rest(card(pcm(), microphone_pcm())) as world:
        for _ in range(5):
            world.pipewire.restart()
            await asyncio.sleep(0.2)
            world.pipewire.connect()
            await asyncio.sleep(3 * DELAY)
            assert len(world.names) == 2


async def test_a_restart_that_is_over_before_the_keeper_looks_is_seen() -> None:
    async with at_rest(card()) as world:
        world.cards(card(), card(path="0000:00:1b.0"))
        await asyncio.sleep(1.5 * DELAY)
        world.pipewire.restart()
        world.pipewire.connect()
        await asyncio.sleep(4 * DELAY)
        assert len(world.names) >= 2


async def test_a_node_that_somebody_removes_comes_back() -> None:
    async with at_rest(card()) as world:
        world.pipewire.remove(41)
        await asyncio.sleep(3 * DELAY)
        assert world.names == [ANALOG]


async def test_nodes_of_an_earlier_agent_are_adopted() -> None:
    async with at_rest(card()) as world:
        other = NodeKeeper(world.graph, "kitchen", world.pipewire)
        async with world.running(other):
            await asyncio.sleep(60)
        assert other.writes == 0


async def test_two_agents_leave_one_node_of_each_name() -> None:
    world = World(card(pcm(), microphone_pcm()))
    world.pipewire.connect()
    other = NodeKeeper(world.graph, "kitchen", world.pipewire)
    async with world.running(other):
        await asyncio.sleep(300)
        assert len(world.names) == len(set(world.names)) == 2
        writes = world.keeper.writes + other.writes
        await asyncio.sleep(3600)
        assert world.keeper.writes + other.writes == writes


async def test_another_recipe_replaces_the_node_within_a_moment() -> None:
    async with at_rest(card()) as world:
        recipe = NodeRecipe(factory="support.null-audio-sink")
        world.cards(card(pcm(recipe=recipe, channels=6)))
        await asyncio.sleep(6 * DELAY)
        (node,) = world.pipewire.nodes.values()
        assert node.properties["audio.channels"] == "6"
        assert [serial for _, serial in world.pipewire.destroyed] == [41]


async def test_a_device_that_is_gone_takes_its_node_along() -> None:
    async with at_rest(card()) as world:
        world.cards()
        await asyncio.sleep(3 * DELAY)
        assert world.names == []


async def test_a_refused_write_is_tried_ever_more_seldom_and_says_why() -> None:
    world = World(card())
    world.pipewire.failure = deny
    world.pipewire.connect()
    async with world.running():
        await asyncio.sleep(1)
        assert world.keeper.failures == {ANALOG: "pw-cli says no"}
        await asyncio.sleep(600)
        times = [when for when, _ in world.pipewire.created]
        gaps = [later - earlier for earlier, later in pairwise(times)]
        assert gaps[0] >= 1
        assert gaps[-1] >= MAX_DELAY
        assert len(times) <= 17
        assert world.keeper.errors == len(times)
        world.pipewire.failure = lambda name: None
        await asyncio.sleep(MAX_DELAY + 1)
        assert world.names == [ANALOG]
        assert world.keeper.failures == {}


async def test_a_node_that_doesnt_show_is_asked_for_again_later_and_says_so() -> None:
    world = World(card())
    world.pipewire.is_deaf = True
    world.pipewire.connect()
    async with world.running():
        await asyncio.sleep(APPEAR_SECONDS - 0.1)
        assert len(world.pipewire.created) == 1
        assert world.keeper.failures == {}
        await asyncio.sleep(0.2)
        assert "made no node" in world.keeper.failures[DeviceName(ANALOG)]
        await asyncio.sleep(600)
        assert 3 <= len(world.pipewire.created) <= 17


async def test_one_device_in_trouble_holds_up_no_other() -> None:
    def deny_analog(name: str) -> None:
        if name == ANALOG:
            raise TimeoutError(110, "too late")

    world = World(card(pcm(), hdmi_pcm()))
    world.pipewire.failure = deny_analog
    world.pipewire.connect()
    async with world.running():
        await asyncio.sleep(3 * DELAY)
        assert world.names == ["kitchen-pci-0000-00-1f-3-hdmi-0"]
        assert world.keeper.failures == {ANALOG: "too late"}


async def test_two_agents_of_different_versions_quarrel_ever_more_seldom() -> None:
    """Each takes the other's node for one of another recipe; both run for two minutes."""
    async with at_rest(card()) as world:
        for _ in range(1200):
            await asyncio.sleep(0.1)
            for node in list(world.pipewire.nodes.values()):
                if "audio.liken.sh.recipe" in node.properties:
                    foreign = {**node.properties, "audio.liken.sh.recipe": "r0"}
                    world.pipewire.remove(node.serial)
                    world.pipewire.make(node.name, foreign)
        assert world.keeper.writes < 20


async def test_a_node_in_error_is_replaced_ever_more_seldom() -> None:
    async with at_rest(card()) as world:
        (node,) = world.pipewire.nodes.values()
        original = world.pipewire.make
        world.pipewire.make = (  # type: ignore[method-assign] # a PipeWire that only makes broken ones
            lambda name, properties, **changes: original(name, properties, state="error")
        )
        world.pipewire.remove(node.serial)
        await asyncio.sleep(600)
        assert 5 < len(world.pipewire.created) < 20


async def test_an_error_of_our_own_ends_the_loop() -> None:
    world = World(card())

    def break_down(name: str) -> None:
        raise ZeroDivisionError(name)

    world.pipewire.failure = break_down
    world.pipewire.connect()
    with pytest.raises(ExceptionGroup):
        await world.keeper.run()


def hold(uid: str, *devices: str, is_admin: bool = False) -> ClaimHold:
    names = tuple(map(DeviceName, devices or (ANALOG,)))
    return ClaimHold(namespace="media", name=uid, uid=uid, devices=names, is_admin=is_admin)


async def test_a_node_whose_last_claim_goes_is_made_anew_at_once() -> None:
    async with at_rest(card(pcm(), microphone_pcm())) as world:
        world.holds(hold("a"))
        await asyncio.sleep(10)
        assert world.pipewire.destroyed == []
        world.holds()
        await asyncio.sleep(6 * DELAY)
        assert [serial for _, serial in world.pipewire.destroyed] == [41]
        assert len(world.names) == 2
        await asyncio.sleep(600)
        assert len(world.pipewire.destroyed) == 1


async def test_claims_that_follow_each_other_closely_each_find_a_new_node() -> None:
    async with at_rest(card()) as world:
        for number in range(12):
            world.holds(hold(f"claim-{number}"))
            await asyncio.sleep(8 * DELAY)
            assert world.names == [ANALOG]
            assert len(world.pipewire.destroyed) == number


async def test_that_the_node_of_a_claim_before_is_gone_can_be_waited_for() -> None:
    async with at_rest(card(pcm(), hdmi_pcm())) as world:
        world.holds(hold("a"))
        await world.keeper.renewed([DeviceName(ANALOG)])
        world.holds(hold("b"))
        await world.keeper.renewed([DeviceName("another")])
        assert len(world.names) == 2
        await world.keeper.renewed([DeviceName(ANALOG)])
        assert ANALOG not in world.names
        assert len(world.names) == 1


async def test_a_node_that_does_not_go_is_not_waited_for_for_ever() -> None:
    async with at_rest(card()) as world:
        world.holds(hold("a"))
        world.pipewire.is_deaf = True
        world.holds(hold("b"))
        with pytest.raises(TimeoutError):
            await world.keeper.renewed([DeviceName(ANALOG)])


async def test_a_node_that_one_of_several_claims_still_has_is_left_alone() -> None:
    async with at_rest(card()) as world:
        world.holds(hold("a"), hold("b"))
        world.holds(hold("b"))
        await asyncio.sleep(60)
        assert world.pipewire.destroyed == []


async def test_a_claim_that_only_watches_leaves_nothing_behind() -> None:
    async with at_rest(card()) as world:
        world.holds(hold("a", is_admin=True))
        world.holds()
        await asyncio.sleep(60)
        assert world.pipewire.destroyed == []


async def test_what_is_in_the_way_of_a_node_is_in_the_graph_and_pipewire_is_left_alone() -> None:
    world = World(card())
    world.obstacle_text = "another program has it open"
    world.pipewire.connect()
    async with world.running():
        await asyncio.sleep(1)
        assert world.graph.view().obstacles == ((ANALOG, "another program has it open"),)
        (seen,) = endpoints(world.graph.view(), "kitchen")
        assert seen.obstacle == "another program has it open"
        assert world.pipewire.created == []
        world.obstacle_text = ""
        await asyncio.sleep(MAX_DELAY + 1)
        assert world.names == [ANALOG]
        assert world.graph.view().obstacles == ()
        (seen,) = endpoints(world.graph.view(), "kitchen")
        assert seen.obstacle == ""
