"""Claims' status is written when it changes, seldom, and never in anybody's way."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
import structlog

from liken_audio.api import RESOURCE_CLAIMS, Conflict, Rejected, Unreachable
from liken_audio.controllers import claim_reporter
from liken_audio.controllers.claim_reporter import REFUSED_SECONDS, ClaimReporter
from liken_audio.dra.claims import ClaimRecord, ClaimState, holds
from liken_audio.graph.device_graph import DeviceGraph
from liken_audio.graph.model import (
    CardsSnapshot,
    ClaimsSnapshot,
    Node,
    PipeWireSnapshot,
    Source,
)
from tests.builders import (
    CLAIM_UID,
    allocated,
    card,
    claim_record,
    claim_ref,
    node,
)
from tests.fakes import FakeResourceClient

pytestmark = pytest.mark.looptime

ANALOG = "kitchen-pci-0000-00-1f-3-alc257-analog"
NOON = datetime(2026, 1, 2, 12, 0, tzinfo=UTC)
CLAIM = ("resourceclaims", "media/speakers")


class Records:
    """Stands in for the store: only its records are read."""

    def __init__(self) -> None:
        self.all: list[ClaimRecord] = []
        self.failures: list[OSError] = []

    def records(self) -> Sequence[ClaimRecord]:
        if self.failures:
            raise self.failures.pop(0)
        return list(self.all)


class World:
    """A node with one sink, and the reporter of its claims."""

    def __init__(self) -> None:
        self.client = FakeResourceClient()
        self.records = Records()
        self.graph = DeviceGraph([Source.VIRTUAL, Source.PIPEWIRE, Source.CLAIMS])
        self.reporter = ClaimReporter(
            self.graph, "kitchen", self.client, self.records, lambda: NOON
        )

    def show(self, *nodes: Node, is_present: bool = True) -> None:
        self.graph.replace(Source.VIRTUAL, CardsSnapshot((card(is_present=is_present),)))
        self.graph.replace(Source.PIPEWIRE, PipeWireSnapshot(nodes))

    def prepare(self, *records: ClaimRecord) -> None:
        self.records.all = list(records)
        found = tuple(hold for record in records for hold in holds(record))
        self.graph.replace(Source.CLAIMS, ClaimsSnapshot(found))

    def entry(self) -> dict[str, Any]:
        (entry,) = self.client.store[CLAIM]["status"]["devices"]
        return dict(entry)

    def ready(self) -> tuple[str, str]:
        (condition,) = self.entry()["conditions"]
        return condition["status"], condition["reason"]

    @property
    def applies(self) -> int:
        return len(self.client.writes())

    @asynccontextmanager
    async def running(self) -> AsyncIterator[ClaimReporter]:
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(self.reporter.run())
            yield self.reporter
            task.cancel()


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    async def at_once(call: Callable[..., Any], *arguments: Any) -> Any:
        return call(*arguments)

    # Time that runs ahead doesn't wait for a thread.
    monkeypatch.setattr(claim_reporter, "in_thread", at_once)
    made = World()
    made.client.put(RESOURCE_CLAIMS, allocated())
    made.show(node(ANALOG))
    return made


async def test_a_prepared_claim_is_shown_at_once(world: World) -> None:
    async with world.running() as reporter:
        await asyncio.sleep(1)
        assert world.client.calls == []
        world.prepare(claim_record())
        await asyncio.sleep(0.3)
        assert world.ready() == ("True", "Ready")
        assert (reporter.writes, reporter.errors) == (1, 0)


async def test_a_claim_that_is_only_started_is_not_shown(world: World) -> None:
    async with world.running():
        world.prepare(claim_record(state=ClaimState.STARTED))
        await asyncio.sleep(60)
    assert world.client.calls == []


async def test_unchanged_claims_are_left_alone_for_ever(world: World) -> None:
    world.prepare(claim_record())
    async with world.running():
        await asyncio.sleep(3600)
    assert world.client.calls == [("get", *CLAIM), ("apply", *CLAIM)]


async def test_the_next_agent_looks_once_and_writes_nothing(world: World) -> None:
    world.prepare(claim_record())
    async with world.running():
        await asyncio.sleep(1)
    world.client.calls.clear()
    world.reporter = ClaimReporter(
        world.graph, "kitchen", world.client, world.records, lambda: NOON
    )
    async with world.running():
        await asyncio.sleep(3600)
    assert world.client.calls == [("get", *CLAIM)]


async def test_nothing_is_said_before_every_source_has_spoken(world: World) -> None:
    world.graph = DeviceGraph([Source.VIRTUAL, Source.PIPEWIRE, Source.CLAIMS])
    world.reporter = ClaimReporter(
        world.graph, "kitchen", world.client, world.records, lambda: NOON
    )
    world.prepare(claim_record())
    async with world.running():
        await asyncio.sleep(3600)
        assert world.client.calls == []
        world.show(node(ANALOG))
        await asyncio.sleep(1)
        assert world.ready() == ("True", "Ready")


async def test_a_gap_of_two_seconds_is_no_change_and_a_longer_one_is(world: World) -> None:
    world.prepare(claim_record())
    async with world.running():
        await asyncio.sleep(5)
        world.show()
        await asyncio.sleep(2)
        world.show(node(ANALOG))
        await asyncio.sleep(60)
        assert world.applies == 1
        world.show()
        await asyncio.sleep(4)
        assert world.ready() == ("False", "NoNode")
        world.show(node(ANALOG))
        await asyncio.sleep(1.5)
        assert world.ready() == ("True", "Ready")


async def test_a_gap_at_the_agent_s_start_is_waited_for(world: World) -> None:
    """Else a claim that is not ready would be ready for three seconds."""
    world.show()
    world.prepare(claim_record())
    async with world.running():
        await asyncio.sleep(2)
        assert world.client.calls == []
        await asyncio.sleep(2)
        assert world.ready() == ("False", "NoNode")
    assert world.applies == 1


async def test_a_device_that_is_gone_is_said_to_be(world: World) -> None:
    world.prepare(claim_record())
    async with world.running():
        await asyncio.sleep(5)
        world.graph.replace(Source.VIRTUAL, CardsSnapshot(()))
        await asyncio.sleep(5)
        assert world.ready() == ("False", "DeviceGone")


async def test_a_node_with_another_name_is_shown(world: World) -> None:
    world.prepare(claim_record())
    async with world.running():
        await asyncio.sleep(5)
        renamed = node("renamed", properties={"audio.liken.sh.device": ANALOG})
        world.show(renamed)
        await asyncio.sleep(5)
        assert world.entry()["data"]["nodeName"] == "renamed"


async def test_a_storm_writes_at_most_once_a_second(world: World) -> None:
    world.prepare(claim_record())
    async with world.running():
        for round_number in range(200):
            renamed = node(f"n{round_number}", properties={"audio.liken.sh.device": ANALOG})
            world.show(renamed)
            await asyncio.sleep(0.05)
        await asyncio.sleep(5)
        assert world.entry()["data"]["nodeName"] == "n199"
    assert world.applies <= 12


@pytest.mark.parametrize("failure", [Unreachable("away"), Conflict("changed", status=409)])
async def test_what_fails_is_tried_again_with_growing_pauses(failure: Any, world: World) -> None:
    world.client.failures = [failure] * 5
    world.prepare(claim_record())
    async with world.running() as reporter:
        await asyncio.sleep(10)
        assert reporter.errors <= 5
        await asyncio.sleep(110)
        assert world.ready() == ("True", "Ready")
        assert reporter.errors == 5


async def test_a_refusal_is_said_once_and_tried_again_slowly(world: World) -> None:
    refusal = Rejected("forbidden", status=422, reason="Invalid")
    names = ("speakers", "others")
    world.client.put(RESOURCE_CLAIMS, allocated(name="others", uid="uid-others"))
    world.client.failures = [None, refusal] * 6
    world.prepare(
        *(
            claim_record(ref=claim_ref(uid, name))
            for uid, name in zip((CLAIM_UID, "uid-others"), names, strict=True)
        )
    )
    with structlog.testing.capture_logs() as logs:
        async with world.running() as reporter:
            await asyncio.sleep(5)
            calls = len(world.client.calls)
            for round_number in range(20):
                world.show(node(f"n{round_number}", properties={"audio.liken.sh.device": ANALOG}))
                await asyncio.sleep(5)
            assert len(world.client.calls) == calls, "changes don't make it try more often"
            await asyncio.sleep(6 * REFUSED_SECONDS)
            assert (reporter.writes, reporter.errors) == (2, 6)
    assert len([each for each in logs if "can't be written" in each["event"]]) == 1


async def test_a_claim_that_is_gone_is_forgotten(world: World) -> None:
    world.client.remove(RESOURCE_CLAIMS, "media/speakers")
    world.prepare(claim_record())
    async with world.running() as reporter:
        await asyncio.sleep(3600)
        assert (world.client.calls, reporter.errors) == ([("get", *CLAIM)], 0)


async def test_a_claim_made_anew_under_its_name_gets_nothing(world: World) -> None:
    world.client.put(RESOURCE_CLAIMS, allocated(uid="another"))
    world.prepare(claim_record())
    async with world.running():
        await asyncio.sleep(3600)
    assert world.applies == 0
    assert "devices" not in world.client.store[CLAIM]["status"]


async def test_an_unprepared_claim_is_written_no_more(world: World) -> None:
    world.prepare(claim_record())
    async with world.running():
        await asyncio.sleep(5)
        world.prepare()
        world.show()
        await asyncio.sleep(3600)
    assert world.applies == 1


async def test_a_claim_that_is_unprepared_while_its_write_is_put_off_is_written_no_more(
    world: World,
) -> None:
    world.client.failures = [Unreachable("away")]
    world.prepare(claim_record())
    async with world.running():
        await asyncio.sleep(0.3)
        world.prepare()
        await asyncio.sleep(3600)
    assert world.applies == 0


async def test_records_that_can_t_be_read_now_are_read_later(world: World) -> None:
    world.records.failures = [OSError("no space")]
    world.prepare(claim_record())
    async with world.running() as reporter:
        await asyncio.sleep(60)
        assert world.ready() == ("True", "Ready")
        assert reporter.errors == 1
