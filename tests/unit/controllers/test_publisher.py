"""The publisher against a server in memory, in virtual time."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from liken_audio.api import (
    NODES,
    RESOURCE_SLICES,
    ApiError,
    Json,
    NotFound,
    Rejected,
    Unreachable,
)
from liken_audio.controllers.publisher import Publisher
from liken_audio.graph.device_graph import DeviceGraph
from liken_audio.graph.model import (
    Card,
    CardNumber,
    CardsSnapshot,
    ClaimHold,
    ClaimsSnapshot,
    DeviceName,
    Linear,
    Node,
    NodeId,
    PipeWireSnapshot,
    Source,
)
from tests import builders
from tests.fakes import FakeCache, FakeResourceClient

pytestmark = pytest.mark.looptime

SLICE = "kitchen-audio.liken.sh"
ANALOG = "kitchen-pci-0000-00-1f-3-alc257-analog"
HDMI = "kitchen-pci-0000-00-1f-3-hdmi-0"
CARD = builders.card(builders.pcm(), builders.hdmi_pcm())


@dataclass
class World:
    """A graph whose sources have spoken, an API server with the Node, and a publisher."""

    graph: DeviceGraph = field(
        default_factory=lambda: DeviceGraph([Source.VIRTUAL, Source.PIPEWIRE])
    )
    client: FakeResourceClient = field(default_factory=FakeResourceClient)
    shared: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.client.put(NODES, {"metadata": {"name": "kitchen", "uid": "node-uid"}})
        self.cache: FakeCache = self.client.cache(RESOURCE_SLICES)
        self.publisher = Publisher(
            self.graph, self.client, self.cache, "kitchen", lambda name: name in self.shared
        )

    def cards(self, *cards: Card) -> None:
        self.graph.replace(Source.VIRTUAL, CardsSnapshot(cards))

    def nodes(self, *names: str, **changes: Any) -> None:
        found: list[Node] = [
            builders.node(name, id=NodeId(40 + place), **changes)
            for place, name in enumerate(names)
        ]
        self.graph.replace(Source.PIPEWIRE, PipeWireSnapshot(tuple(found)))

    def plug_all(self) -> None:
        self.cards(CARD)
        self.nodes(ANALOG, HDMI)

    @property
    def slice(self) -> Json:
        return self.client.store["resourceslices", SLICE]

    def taints(self, device: str) -> list[str]:
        (found,) = [each for each in self.slice["spec"]["devices"] if each["name"] == device]
        return [taint["key"] for taint in found.get("taints", ())]

    @property
    def slice_writes(self) -> list[str]:
        return [verb for verb, _, _ in self.client.writes("resourceslices")]

    @asynccontextmanager
    async def running(self, publisher: Publisher | None = None) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            task = group.create_task((publisher or self.publisher).run())
            await asyncio.sleep(0)
            yield
            task.cancel()


@asynccontextmanager
async def published() -> AsyncIterator[World]:
    """A world that is published and at rest for a minute."""
    world = World()
    world.plug_all()
    async with world.running():
        await asyncio.sleep(60)
        assert world.slice_writes == ["create"]
        yield world


def now() -> float:
    return asyncio.get_running_loop().time()


def numbered(number: int) -> Card:
    """Return the card with another number: an attribute changes."""
    return replace(CARD, number=CardNumber(number))


async def until(condition: Callable[[], bool], seconds: float = 60.0) -> float:
    """Return after how many seconds of virtual time the condition came true."""
    began = now()
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.02)
    return now() - began


async def test_what_is_ready_at_the_start_is_published_at_once_with_the_node_as_owner() -> None:
    world = World()
    world.plug_all()
    async with world.running():
        assert await until(lambda: world.publisher.is_published) < 0.2
    assert [each["name"] for each in world.slice["spec"]["devices"]] == [ANALOG, HDMI]
    assert world.slice["metadata"]["ownerReferences"][0]["uid"] == "node-uid"
    assert world.publisher.writes == 1
    assert world.publisher.errors == 0


async def test_a_machine_without_cards_publishes_an_empty_slice() -> None:
    world = World()
    world.cards()
    world.nodes()
    async with world.running():
        await until(lambda: world.publisher.is_published)
    assert "devices" not in world.slice["spec"]


async def test_nothing_is_written_while_nothing_changes() -> None:
    async with published() as world:
        calls = len(world.client.calls)
        await asyncio.sleep(3600)
        assert len(world.client.calls) == calls


async def test_a_restart_while_pipewire_is_away_for_a_second_writes_nothing() -> None:
    """U23: whoever plays is not evicted because the agent was updated."""
    async with published() as world:
        pass
    again = World(client=world.client)
    again.cards(CARD)
    writes = len(world.slice_writes)
    async with again.running():
        await asyncio.sleep(1.0)
        again.nodes(ANALOG, HDMI)
        await asyncio.sleep(60)
        assert again.publisher.is_published
    assert len(again.slice_writes) == writes


async def test_a_restart_while_pipewire_stays_away_taints_after_the_grace() -> None:
    world = World()
    world.cards(CARD)
    async with world.running():
        elapsed = await until(lambda: world.publisher.is_published)
    assert 2.9 <= elapsed <= 5.0
    assert world.taints(ANALOG) == ["audio.liken.sh/disconnected", "audio.liken.sh/no-sink"]
    assert world.slice_writes == ["create"]


async def test_a_fault_of_the_card_holds_nothing_back() -> None:
    world = World()
    world.cards(builders.card(builders.pcm(), builders.hdmi_pcm(eld=builders.NO_ELD)))
    world.nodes(ANALOG)
    async with world.running():
        assert await until(lambda: world.publisher.is_published) < 0.2
    assert world.taints(HDMI) == ["audio.liken.sh/disconnected", "audio.liken.sh/no-monitor"]


async def test_nothing_is_published_before_the_cards_are_known() -> None:
    world = World()
    world.nodes(ANALOG)
    async with world.running():
        await asyncio.sleep(60)
        assert world.slice_writes == []
        world.cards(CARD)
        assert await until(lambda: world.publisher.is_published) < 5.0


async def test_nothing_is_written_before_the_cache_is_complete() -> None:
    world = World()
    world.cache.is_synced = False
    world.plug_all()
    async with world.running():
        await asyncio.sleep(60)
        assert world.client.calls == []
        world.cache.is_synced = True
        assert await until(lambda: world.publisher.is_published) < 0.5


async def test_a_change_of_attributes_is_one_update_after_a_moment_of_quiet() -> None:
    async with published() as world:
        world.cards(numbered(1))
        assert 0.1 <= await until(lambda: world.publisher.writes == 2) < 0.3
        await asyncio.sleep(60)
        assert world.slice_writes == ["create", "update"]


async def test_ten_thousand_updates_that_end_where_they_began_write_at_most_once() -> None:
    """U18: a storm of two seconds."""
    async with published() as world:
        for number in range(10_000):
            world.cards(numbered(number % 7 + 1))
            if number % 10 == 0:
                await asyncio.sleep(0.002)
        world.cards(CARD)
        await asyncio.sleep(60)
        assert len(world.slice_writes) <= 2  # the create among them
        assert world.slice["spec"]["devices"][0]["attributes"]["card"] == {"int": 0}


async def test_a_storm_that_does_not_end_is_published_every_few_seconds() -> None:
    async with published() as world:
        for number in range(1000):
            world.cards(numbered(number))
            await asyncio.sleep(0.01)
        assert 3 <= len(world.slice_writes) - 1 <= 5


async def test_a_gap_of_the_graph_under_three_seconds_is_no_fault() -> None:
    """U23: 1.2 seconds are normal."""
    async with published() as world:
        world.nodes(HDMI)
        await asyncio.sleep(1.2)
        world.nodes(ANALOG, HDMI)
        await asyncio.sleep(60)
        assert world.slice_writes == ["create"]


async def test_a_lost_graph_taints_after_the_grace_but_never_removes() -> None:
    async with published() as world:
        world.graph.lose(Source.PIPEWIRE)
        assert 3.0 <= await until(lambda: world.publisher.writes == 2) <= 5.0
        assert "audio.liken.sh/disconnected" in world.taints(ANALOG)
        assert "audio.liken.sh/disconnected" in world.taints(HDMI)
        world.nodes(ANALOG, HDMI)
        assert await until(lambda: world.publisher.writes == 3) < 2.0
        assert world.taints(ANALOG) == world.taints(HDMI) == []


async def test_a_fault_is_published_in_time_in_the_middle_of_a_storm() -> None:
    async with published() as world:
        world.nodes(HDMI)
        began = now()
        while "disconnected" not in " ".join(world.taints(ANALOG)):
            world.nodes(HDMI, volumes=(Linear(now()),))
            await asyncio.sleep(0.005)
            assert now() - began < 5.0


async def test_a_monitor_that_wakes_clears_its_taint_within_two_seconds() -> None:
    """U58: the ELD came late."""
    world = World()
    world.cards(builders.card(builders.hdmi_pcm(eld=builders.NO_ELD)))
    world.nodes()
    async with world.running():
        await asyncio.sleep(8)
        world.cards(builders.card(builders.hdmi_pcm()))
        world.nodes(HDMI)
        assert await until(lambda: world.taints(HDMI) == []) <= 2.0


async def test_a_screen_that_sleeps_for_a_moment_keeps_its_attributes_and_writes_nothing() -> None:
    world = World()
    world.cards(builders.card(builders.hdmi_pcm()))
    world.nodes(HDMI)
    async with world.running():
        await until(lambda: world.publisher.is_published)
        before, writes = world.slice, len(world.slice_writes)
        for _ in range(3):
            world.cards(builders.card(builders.hdmi_pcm(eld=builders.NO_ELD)))
            await asyncio.sleep(2.5)
            world.cards(builders.card(builders.hdmi_pcm()))
            await asyncio.sleep(1)
        assert len(world.slice_writes) == writes
        assert world.slice == before
        world.cards(builders.card(builders.hdmi_pcm(eld=builders.NO_ELD)))
        await asyncio.sleep(6)
        assert "audio.liken.sh/no-monitor" in world.taints(HDMI)
        (device,) = world.slice["spec"]["devices"]
        assert "monitorName" not in device["attributes"]


async def test_another_monitor_after_a_gap_is_published_at_once() -> None:
    world = World()
    world.cards(builders.card(builders.hdmi_pcm()))
    world.nodes(HDMI)
    async with world.running():
        await until(lambda: world.publisher.is_published)
        world.cards(builders.card(builders.hdmi_pcm(eld=builders.NO_ELD)))
        await asyncio.sleep(1)
        other = builders.HDMI_ELD.replace(b"ULTRAWIDE", b"MULTIWIDE")
        world.cards(builders.card(builders.hdmi_pcm(eld=other)))

        def name() -> object:
            (device,) = world.slice["spec"]["devices"]
            return device["attributes"].get("monitorName", {}).get("string")

        assert await until(lambda: name() == "LG MULTIWIDE") < 1.0


async def test_a_slice_that_anyone_deletes_is_back_within_two_seconds_with_a_higher_generation() -> (
    None
):
    """U64: the kubelet wiped it."""
    async with published() as world:
        generation = world.slice["spec"]["pool"]["generation"]
        world.client.remove(RESOURCE_SLICES, SLICE)
        assert await until(lambda: ("resourceslices", SLICE) in world.client.store) < 2.0
        assert world.slice["spec"]["pool"]["generation"] > generation
        await asyncio.sleep(60)
        assert world.slice_writes == ["create", "create"]


async def test_a_deletion_while_devices_are_unsettled_brings_the_settled_ones_back() -> None:
    async with published() as world:
        world.cards(numbered(5))
        world.client.remove(RESOURCE_SLICES, SLICE)
        await until(lambda: ("resourceslices", SLICE) in world.client.store)
        assert world.slice["spec"]["devices"][0]["attributes"]["card"] == {"int": 0}
        await asyncio.sleep(1)
        assert world.slice["spec"]["devices"][0]["attributes"]["card"] == {"int": 5}


async def test_a_slice_that_anyone_changes_is_put_right() -> None:
    async with published() as world:
        changed = dict(world.slice, spec=dict(world.slice["spec"], devices=[]))
        world.client.put(RESOURCE_SLICES, changed)
        await until(lambda: len(world.slice["spec"]["devices"]) == 2, 2.0)


async def test_whoever_deletes_again_and_again_is_answered_more_and_more_slowly() -> None:
    async with published() as world:
        for _ in range(30 * 60):
            world.client.remove(RESOURCE_SLICES, SLICE)
            await asyncio.sleep(1.0)
        assert 60 <= len(world.slice_writes) < 100


async def test_a_node_that_was_made_anew_owns_the_slice_that_went_with_the_old_one() -> None:
    async with published() as world:
        world.client.store["nodes", "kitchen"]["metadata"]["uid"] = "new-uid"
        world.client.remove(RESOURCE_SLICES, SLICE)
        await until(lambda: ("resourceslices", SLICE) in world.client.store)
        assert world.slice["metadata"]["ownerReferences"][0]["uid"] == "new-uid"


async def test_a_node_that_is_not_there_yet_is_waited_for() -> None:
    world = World()
    world.plug_all()
    node = world.client.store.pop(("nodes", "kitchen"))
    async with world.running():
        await asyncio.sleep(10)
        assert world.slice_writes == []
        assert 3 <= world.publisher.errors <= 12
        world.client.put(NODES, node)
        await until(lambda: world.publisher.is_published)


@pytest.mark.parametrize(
    "failures",
    [
        pytest.param([Unreachable("refused")], id="unreachable"),
        pytest.param([Unreachable("busy", status=503)] * 3, id="503-three-times"),
        pytest.param([None, Rejected("forbidden", status=403)], id="write-forbidden"),
        pytest.param([None, NotFound("no such resource", status=404)], id="not-served"),
        pytest.param([None, Unreachable("cut")], id="answer-lost"),
    ],
)
async def test_failures_are_tried_again_until_the_slice_stands(
    failures: Sequence[ApiError | None],
) -> None:
    world = World()
    world.plug_all()
    world.client.failures = list(failures)
    async with world.running():
        await until(lambda: world.publisher.is_published)
    assert world.publisher.errors == sum(failure is not None for failure in failures)


async def test_two_hours_without_an_api_server_are_few_attempts_and_one_write_after() -> None:
    """U81."""
    world = World()
    world.plug_all()
    world.client.failures = [Unreachable("refused")] * 100_000
    async with world.running():
        await asyncio.sleep(7200)
        assert 200 <= len(world.client.calls) <= 300
        world.client.failures.clear()
        assert await until(lambda: world.publisher.is_published) < 40
        assert world.slice_writes == ["create"]


async def test_the_server_decides_when_to_come_back() -> None:
    world = World()
    world.plug_all()
    world.client.failures = [Unreachable("slow down", status=429, retry_after=17.0)]
    async with world.running():
        assert 17.0 <= await until(lambda: len(world.client.calls) > 1) < 18.0


async def test_a_conflict_means_reading_and_planning_again_at_once() -> None:
    async with published() as world:
        world.cache.is_paused = True
        labelled = dict(world.slice, metadata=dict(world.slice["metadata"], labels={"a": "b"}))
        world.client.put(RESOURCE_SLICES, labelled)
        world.cards(numbered(4))
        assert await until(lambda: world.publisher.writes == 2) < 0.3
        assert world.publisher.counts.conflicts == 1
        assert world.publisher.errors == 0
        assert world.slice["metadata"]["labels"] == {"a": "b"}


async def test_a_slice_deleted_behind_a_slow_watch_is_made_again() -> None:
    async with published() as world:
        world.cache.is_paused = True
        world.client.remove(RESOURCE_SLICES, SLICE)
        world.cards(numbered(4))
        await until(lambda: ("resourceslices", SLICE) in world.client.store, 2.0)


async def test_a_slow_watch_makes_no_second_slice_and_no_second_write() -> None:
    world = World()
    world.cache.is_paused = True
    world.plug_all()
    async with world.running():
        await asyncio.sleep(5)
        world.cards(numbered(4))
        await asyncio.sleep(5)
    assert world.slice_writes == ["create", "update"]


async def test_a_create_whose_answer_was_lost_is_found_again() -> None:
    world = World()
    world.plug_all()
    world.cache.is_paused = True
    world.client.lose_answers = 1
    async with world.running():
        await until(lambda: world.publisher.is_published)
    assert list(world.client.store) == [("nodes", "kitchen"), ("resourceslices", SLICE)]


async def test_another_drivers_slice_with_our_name_is_left_alone() -> None:
    world = World()
    foreign = {"metadata": {"name": SLICE}, "spec": {"driver": "other", "nodeName": "kitchen"}}
    world.client.put(RESOURCE_SLICES, foreign)
    world.cache.remove(SLICE)
    world.plug_all()
    async with world.running():
        await until(lambda: world.publisher.is_published)
        await asyncio.sleep(60)
    assert world.slice["spec"]["driver"] == "other"
    assert len(world.client.store["resourceslices", f"{SLICE}-2"]["spec"]["devices"]) == 2
    assert world.publisher.writes == 1


def drop_taints(body: Json) -> None:
    for device in body.get("spec", {}).get("devices", ()):
        device.pop("taints", None)


async def test_fields_that_the_server_drops_are_named_and_sent_once() -> None:
    world = World()
    world.cards(builders.card(builders.hdmi_pcm(eld=builders.NO_ELD)))
    world.nodes()
    world.client.admit = drop_taints
    async with world.running():
        await asyncio.sleep(600)
    assert world.slice_writes == ["create"]
    assert world.publisher.dropped_fields == ("taints",)


async def test_dropped_fields_are_offered_again_each_hour_and_stay_once_they_are_taken() -> None:
    world = World()
    world.cards(builders.card(builders.hdmi_pcm(eld=builders.NO_ELD)))
    world.nodes()
    world.client.admit = drop_taints
    async with world.running():
        await asyncio.sleep(3 * 3600 + 60)
        assert world.slice_writes == ["create", "update", "update", "update"]
        world.client.admit = lambda _: None
        await asyncio.sleep(3 * 3600)
    assert len(world.slice_writes) == 5
    assert world.publisher.dropped_fields == ()
    assert "audio.liken.sh/no-monitor" in world.taints(HDMI)


def is_shared(world: World, name: str) -> bool:
    (found,) = [each for each in world.slice["spec"]["devices"] if each["name"] == name]
    return bool(found.get("allowMultipleAllocations"))


async def test_a_sink_that_becomes_shared_is_published_when_the_publisher_is_woken() -> None:
    async with published() as world:
        world.shared.add(ANALOG)
        world.publisher.wake()
        await until(lambda: is_shared(world, ANALOG), 2.0)
        assert not is_shared(world, HDMI)


def hold(device: str, **changes: Any) -> ClaimsSnapshot:
    claim = ClaimHold(
        namespace="default", name="c", uid="1", devices=(DeviceName(device),), **changes
    )
    return ClaimsSnapshot((claim,))


async def test_a_device_in_use_keeps_its_sharing_mode_until_it_is_free() -> None:
    async with published() as world:
        world.graph.replace(Source.CLAIMS, hold(ANALOG))
        world.shared.add(ANALOG)
        world.publisher.wake()
        await asyncio.sleep(60)
        assert not is_shared(world, ANALOG)
        world.graph.replace(Source.CLAIMS, ClaimsSnapshot())
        await until(lambda: is_shared(world, ANALOG), 2.0)


async def test_a_claim_for_administration_holds_no_sharing_mode() -> None:
    async with published() as world:
        world.graph.replace(Source.CLAIMS, hold(ANALOG, is_admin=True))
        world.shared.add(ANALOG)
        world.publisher.wake()
        await until(lambda: is_shared(world, ANALOG), 2.0)


async def test_a_device_in_use_keeps_its_sharing_mode_over_a_restart() -> None:
    async with published() as world:
        world.shared.add(ANALOG)
        world.publisher.wake()
        await until(lambda: is_shared(world, ANALOG), 2.0)
    again = World(client=world.client)
    again.cache.is_synced = False
    stored = again.cache.objects()[SLICE]
    again.cache.remove(SLICE)
    again.graph.replace(Source.CLAIMS, hold(ANALOG))
    again.plug_all()
    async with again.running():
        await asyncio.sleep(1)
        again.cache.put(stored)
        again.cache.is_synced = True
        await until(lambda: again.publisher.is_published)
        await asyncio.sleep(10)
    assert is_shared(again, ANALOG)
    assert again.publisher.writes == 0


async def test_a_sharing_mode_that_is_not_known_yet_stays_as_it_is_published() -> None:
    """At a start the Sinks come after the slices."""
    async with published() as world:
        world.shared.add(ANALOG)
        world.publisher.wake()
        await until(lambda: is_shared(world, ANALOG), 2.0)
    again = World(client=world.client)
    again.plug_all()
    known = False
    publisher = Publisher(
        again.graph, again.client, again.cache, "kitchen", lambda _: False if known else None
    )
    async with again.running(publisher):
        await until(lambda: publisher.is_published)
        assert is_shared(again, ANALOG)
        assert publisher.writes == 0
        known = True
        publisher.wake()
        await until(lambda: not is_shared(again, ANALOG), 2.0)


async def test_the_slice_stays_when_the_agent_ends() -> None:
    async with published() as world:
        pass
    assert ("resourceslices", SLICE) in world.client.store
