"""Only the claims concerned are watched, while they are, and read where a watch doesn't follow."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from liken_audio.api import RESOURCE_CLAIMS, Json, Unreachable
from liken_audio.controllers import claim_watcher
from liken_audio.controllers.claim_watcher import MOST_WATCHES, POLL_SECONDS, ClaimWatcher
from liken_audio.dra.claims import ClaimRecord, ClaimRef, ClaimState, holds
from liken_audio.dra.consumers import Consumers, Pod
from liken_audio.graph.device_graph import DeviceGraph
from liken_audio.graph.model import ClaimsSnapshot, Source
from tests.builders import allocated, claim_record, claim_ref, claimed_device
from tests.fakes import FakeResourceClient

pytestmark = pytest.mark.looptime


class Watch:
    """Satisfies `ClaimWatch`; shows what it is told to."""

    def __init__(self, ref: ClaimRef) -> None:
        self.ref = ref
        self.trouble: object | None = None
        self.is_running = False
        self._objects: dict[str, Json] = {}
        self._callbacks: list[Callable[[str], None]] = []

    def objects(self) -> Mapping[str, Json]:
        return self._objects

    def subscribe(self, callback: Callable[[str], None]) -> None:
        self._callbacks.append(callback)

    async def run(self) -> None:
        self.is_running = True
        try:
            await asyncio.Event().wait()
        finally:
            self.is_running = False

    def show(self, claim: Json) -> None:
        self._objects[str(self.ref)] = claim
        for callback in self._callbacks:
            callback(str(self.ref))


class World:
    """Records, and the watcher of what they concern."""

    def __init__(self) -> None:
        self.client = FakeResourceClient()
        self.graph = DeviceGraph([Source.CLAIMS])
        self.all: list[ClaimRecord] = []
        self.failures: list[OSError] = []
        self.watches: dict[str, Watch] = {}
        self.observed: list[Json] = []
        self.watcher = ClaimWatcher(self.graph, self, self.client, self.watch, self.observe)  # type: ignore[arg-type] # of the store only `records` is called

    def records(self) -> Sequence[ClaimRecord]:
        if self.failures:
            raise self.failures.pop(0)
        return list(self.all)

    def watch(self, ref: ClaimRef) -> Watch:
        return self.watches.setdefault(ref.name, Watch(ref))

    async def observe(self, claim: Json) -> None:
        self.observed.append(claim)

    def prepare(self, *records: ClaimRecord) -> None:
        self.all = list(records)
        found = tuple(hold for record in records for hold in holds(record))
        self.graph.replace(Source.CLAIMS, ClaimsSnapshot(found))

    def running_watches(self) -> set[str]:
        return {name for name, each in self.watches.items() if each.is_running}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(self.watcher.run())
            yield
            task.cancel()


def record(name: str, pod: str = "a", **changes: Any) -> ClaimRecord:
    consumers = Consumers(pods=(Pod(pod, f"uid-{pod}"),))
    fields = {"ref": claim_ref(f"uid-{name}", name), "consumers": consumers}
    return claim_record(claimed_device(device=name), **(fields | changes))


def own(name: str, pod: str = "a") -> ClaimRecord:
    made = record(name, pod)
    return replace(made, consumers=replace(made.consumers, is_for_one=True))


def claim(name: str, **metadata: Any) -> Json:
    return allocated(name=name, uid=f"uid-{name}", **metadata)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    async def at_once(call: Callable[..., Any], *arguments: Any) -> Any:
        return call(*arguments)

    # Time that runs ahead doesn't wait for a thread.
    monkeypatch.setattr(claim_watcher, "in_thread", at_once)
    return World()


async def test_only_named_claims_that_are_joined_are_watched_and_while_they_are(
    world: World,
) -> None:
    async with world.running():
        world.prepare(record("tv"), own("speakers"), record("alone", "b"))
        await asyncio.sleep(0)
        await asyncio.sleep(1)
        assert world.running_watches() == {"tv"}
        assert world.watcher.watched == 1
        world.prepare(record("tv"), record("alone", "b"))
        await asyncio.sleep(1)
        assert world.running_watches() == set()
        assert world.watcher.watched == 0
    assert world.client.calls == []


async def test_a_claim_that_is_only_started_is_not_watched_yet(world: World) -> None:
    async with world.running():
        world.prepare(record("tv", state=ClaimState.STARTED), own("speakers"))
        await asyncio.sleep(60)
        assert world.watches == {}


async def test_each_change_is_told_at_once(world: World) -> None:
    world.prepare(record("tv"), own("speakers"))
    async with world.running():
        await asyncio.sleep(1)
        for count in (1, 2):
            world.watches["tv"].show(claim("tv", annotations={"n": str(count)}))
            await asyncio.sleep(0.001)
            assert len(world.observed) == count
    assert world.observed[-1]["metadata"]["annotations"] == {"n": "2"}
    assert world.client.calls == []


async def test_changes_of_the_graph_keep_a_watch_as_it_is(world: World) -> None:
    world.prepare(record("tv"), own("speakers"))
    async with world.running():
        await asyncio.sleep(1)
        first = world.watches["tv"]
        world.prepare(record("tv"), own("speakers"), record("mic"))
        await asyncio.sleep(1)
        assert world.watches["tv"] is first
        assert world.running_watches() == {"tv", "mic"}


async def test_a_claim_is_read_while_its_watch_doesn_t_follow(world: World) -> None:
    world.client.put(RESOURCE_CLAIMS, claim("tv"))
    world.client.failures = [Unreachable("away")]
    world.prepare(record("tv"), own("speakers"))
    async with world.running():
        await asyncio.sleep(0.1)
        world.watches["tv"].trouble = "failing"
        await asyncio.sleep(3 * POLL_SECONDS)
        assert [each["metadata"]["name"] for each in world.observed] == ["tv", "tv"]
        world.watches["tv"].trouble = None
        await asyncio.sleep(10 * POLL_SECONDS)
        assert len(world.observed) == 2


async def test_claims_beyond_the_most_watches_are_read(world: World) -> None:
    names = [f"c{number:02}" for number in range(MOST_WATCHES + 2)]
    for name in names:
        world.client.put(RESOURCE_CLAIMS, claim(name))
    world.prepare(*map(record, names))
    async with world.running():
        await asyncio.sleep(POLL_SECONDS + 1)
        assert world.running_watches() == set(names[:MOST_WATCHES])
        assert {each["metadata"]["name"] for each in world.observed} == set(names[MOST_WATCHES:])


async def test_records_that_can_t_be_read_now_are_read_later(world: World) -> None:
    world.failures = [OSError("no space")]
    world.prepare(record("tv"), own("speakers"))
    async with world.running():
        await asyncio.sleep(2 * POLL_SECONDS)
        assert world.running_watches() == {"tv"}


async def test_a_claim_that_can_t_be_looked_after_now_ends_no_watch(world: World) -> None:
    async def observe(_claim: Json) -> None:
        raise OSError("no space")

    world.watcher._observe = observe
    world.prepare(record("tv"), own("speakers"))
    async with world.running():
        await asyncio.sleep(1)
        world.watches["tv"].show(claim("tv"))
        await asyncio.sleep(1)
        assert world.running_watches() == {"tv"}


@pytest.mark.parametrize("trouble", [None, "failing"], ids=["watched", "read"])
async def test_what_a_change_asks_for_is_finished_though_it_ends_the_watch(
    world: World, trouble: str | None
) -> None:
    """Another pod came: once that is noted the claim is no longer joined, and its socket is still to be cut."""

    async def observe(version: Json) -> None:
        world.prepare(record("tv", consumers=Consumers(is_shared=True)), own("speakers"))
        await asyncio.sleep(1)
        world.observed.append(version)

    world.watcher._observe = observe
    world.client.put(RESOURCE_CLAIMS, claim("tv"))
    world.prepare(record("tv"), own("speakers"))
    async with world.running():
        await asyncio.sleep(1)
        world.watches["tv"].trouble = trouble
        if trouble is None:
            world.watches["tv"].show(claim("tv"))
        await asyncio.sleep(POLL_SECONDS + 1)
        assert world.running_watches() == set()
        assert [each["metadata"]["name"] for each in world.observed] == ["tv"]
