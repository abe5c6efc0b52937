"""Objects for nothing, told so by one of many agents, in virtual time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest

from liken_audio.api import SINKS, SOURCES, Json, Unreachable
from liken_audio.controllers.orphans import OrphanReporter, Partners
from liken_audio.graph.device_graph import DeviceGraph
from liken_audio.graph.model import CardsSnapshot, PipeWireSnapshot, Source
from liken_audio.resources.conditions import Transition
from tests.builders import card, pcm
from tests.fakes import FakeResourceClient

pytestmark = pytest.mark.looptime

ANALOG = "kitchen-pci-0000-00-1f-3-alc257-analog"


@dataclass
class Recorder:
    events: list[tuple[str, str]] = field(default_factory=list)

    def record(self, stored: Json, transition: Transition) -> None:
        self.events.append((stored["metadata"]["name"], transition.reason))


@dataclass
class World:
    client: FakeResourceClient = field(default_factory=FakeResourceClient)
    events: Recorder = field(default_factory=Recorder)

    def agent(self, node: str = "kitchen") -> OrphanReporter:
        graph = DeviceGraph([Source.VIRTUAL, Source.PIPEWIRE])
        graph.replace(Source.VIRTUAL, CardsSnapshot((card(pcm()),)))
        graph.replace(Source.PIPEWIRE, PipeWireSnapshot())
        caches = {kind: self.client.cache(kind) for kind in (SINKS, SOURCES)}
        partners = Partners(
            client=self.client,
            caches=caches,
            events=self.events,
            wall=lambda: datetime(2026, 12, 1, tzinfo=UTC),
        )
        return OrphanReporter(graph, node, partners)

    def make(self, name: str, kind: Any = SINKS) -> None:
        head = {"apiVersion": kind.api_version, "kind": kind.kind}
        self.client.put(kind, head | {"metadata": {"name": name}, "spec": {"volume": 5}})

    def reasons(self, name: str, kind: Any = SINKS) -> list[tuple[str, str]]:
        conditions = self.client.store[kind.plural, name].get("status", {}).get("conditions", ())
        return [(one["status"], one["reason"]) for one in conditions]

    def message(self, name: str, kind: Any = SINKS) -> str:
        message: str = self.client.store[kind.plural, name]["status"]["conditions"][0]["message"]
        return message


@asynccontextmanager
async def running(*agents: OrphanReporter) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(one.run()) for one in agents]
        await asyncio.sleep(0)
        yield
        for task in running:
            task.cancel()


async def test_an_object_for_nothing_is_told_so_within_a_minute_and_once() -> None:
    world = World()
    world.make("nothing")
    async with running(world.agent()):
        await asyncio.sleep(61)
        assert world.reasons("nothing") == [("False", "NoDevice")] * 3
        assert "kubectl get audio" in world.message("nothing")
        await asyncio.sleep(3600)
    assert len(world.client.writes()) == 1
    assert world.events.events == [("nothing", "NoDevice")]


async def test_of_two_hundred_agents_one_writes() -> None:
    world = World()
    async with running(*(world.agent(f"node-{number}") for number in range(200))):
        world.make("nothing")
        await asyncio.sleep(600)
    assert len(world.client.writes()) == 1


@pytest.mark.parametrize(
    ("name", "kind", "meant"),
    [
        ("kitchen-pci-0000-00-1f-3-alc275-analog", SINKS, f"sink {ANALOG}"),
        ("kitchen-analog", SINKS, f"sink {ANALOG}"),
        (ANALOG, SOURCES, f"sink {ANALOG}"),
    ],
    ids=["letters-swapped", "short", "other-kind"],
)
async def test_the_node_that_has_what_was_meant_is_first_and_names_it(
    name: str, kind: Any, meant: str
) -> None:
    world = World()
    async with running(world.agent("attic"), world.agent("kitchen")):
        world.make(name, kind)
        await asyncio.sleep(5.1)
        assert f"did you mean {meant}?" in world.message(name, kind)
        await asyncio.sleep(600)
    assert len(world.client.writes()) == 1


async def test_the_same_card_of_another_node_is_not_what_was_meant() -> None:
    world = World()
    name = "cellar" + ANALOG.removeprefix("kitchen")
    async with running(world.agent()):
        world.make(name)
        await asyncio.sleep(61)
    assert "did you mean" not in world.message(name)


async def test_an_object_of_our_own_device_is_left_to_be_adopted() -> None:
    world = World()
    async with running(world.agent()):
        world.make(ANALOG)
        await asyncio.sleep(600)
    assert world.client.writes() == []


async def test_an_object_deleted_in_time_costs_nothing() -> None:
    world = World()
    async with running(world.agent()):
        world.make("nothing")
        await asyncio.sleep(3)
        world.client.remove(SINKS, "nothing")
        await asyncio.sleep(600)
    assert world.client.calls == []


async def test_conditions_that_somebody_removes_are_written_again() -> None:
    world = World()
    async with running(world.agent()):
        world.make("nothing")
        await asyncio.sleep(61)
        world.make("nothing")
        assert world.reasons("nothing") == []
        await asyncio.sleep(61)
        assert world.reasons("nothing")


async def test_a_server_that_is_away_is_asked_again_ever_more_seldom() -> None:
    world = World()
    world.client.failures = [Unreachable("refused")] * 1000
    reporter = world.agent()
    async with running(reporter):
        world.make("nothing")
        await asyncio.sleep(7200)
        assert 10 <= reporter.errors <= 40
        world.client.failures.clear()
        await asyncio.sleep(400)
        assert world.reasons("nothing")
