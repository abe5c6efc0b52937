"""A pod's sockets reach all its claims, in whatever order these come and go, and no others'.

The store is the real one on a folder of the test's own, the preparer real; sockets and API server
are stand-ins.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from liken_audio.api import RESOURCE_CLAIMS, Json, Unreachable
from liken_audio.claim_store import ClaimStore
from liken_audio.controllers.preparer import Partners, Place, Preparer
from liken_audio.dra.claims import ClaimedDevice, ClaimRecord, ClaimRef
from liken_audio.graph.device_graph import DeviceGraph
from liken_audio.graph.model import CardsSnapshot, NodeId, PipeWireSnapshot, Source
from tests.builders import allocated, card, node, pcm, result
from tests.fakes import FakeResourceClient

DEADLINE = 10.0
NAMES = ("speakers", "tv", "mic")
UIDS = {name: f"uid-{name}" for name in NAMES}


class Sockets:
    """Satisfies `ClaimSockets`; knows what each socket reaches and how often it was made anew."""

    def __init__(self) -> None:
        self.reached: dict[str, set[str]] = {}
        self.cuts: list[str] = []
        self.opens = 0
        self.failures: list[Exception] = []

    async def open(self, record: ClaimRecord, joined: Sequence[ClaimedDevice] = ()) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.opens += 1
        uid = record.ref.uid
        reached = {str(each.device) for each in (*record.devices, *joined)}
        if self.reached.get(uid, reached) != reached:
            self.cuts.append(uid)
        self.reached[uid] = reached

    async def close(self, uid: str) -> None:
        self.reached.pop(uid, None)

    def uids(self) -> set[str]:
        return set(self.reached)


class World:
    """A node with three sinks, and the agent that prepares claims of them."""

    def __init__(self, folder: Path) -> None:
        self.client = FakeResourceClient()
        self.sockets = Sockets()
        self.graph = DeviceGraph([Source.VIRTUAL, Source.PIPEWIRE])
        pcms = [pcm(id=name, device=place) for place, name in enumerate(NAMES)]
        self.graph.replace(Source.VIRTUAL, CardsSnapshot((card(*pcms),)))
        nodes = [node(device(name), id=NodeId(40 + i)) for i, name in enumerate(NAMES)]
        self.graph.replace(Source.PIPEWIRE, PipeWireSnapshot(tuple(nodes)))
        self.store = ClaimStore(folder / "state", folder / "cdi")

    def claim(self, name: str, *pods: str, own: bool = False) -> ClaimRef:
        """Have a claim of the sink of that name, reserved for pods."""
        self.client.put(RESOURCE_CLAIMS, body(name, *pods, own=own))
        return ClaimRef("media", name, UIDS[name])

    def reached(self, name: str) -> set[str]:
        """Names of the sinks that a claim's socket reaches."""
        found = self.sockets.reached[UIDS[name]]
        return {each for each in NAMES if device(each) in found}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Preparer]:
        place = Place(node="kitchen", boot_id="boot-1", claims_dir="/run/claims")
        made = Preparer(self.graph, place, Partners(self.client, self.store, self.sockets))
        task = asyncio.get_running_loop().create_task(made.run())
        async with asyncio.timeout(DEADLINE):
            while made._tasks is None:
                await asyncio.sleep(0.005)
        try:
            yield made
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def device(name: str) -> str:
    return f"kitchen-pci-0000-00-1f-3-{name}"


def body(name: str, *pods: str, own: bool = False) -> Json:
    owner = {"apiVersion": "v1", "kind": "Pod", "name": pods[0], "uid": f"uid-{pods[0]}"}
    owners = [owner | {"controller": True}] if own else []
    made = allocated(result(device(name)), name=name, uid=UIDS[name], ownerReferences=owners)
    made["status"]["reservedFor"] = [
        {"resource": "pods", "name": pod, "uid": f"uid-{pod}"} for pod in pods
    ]
    return made


@pytest.fixture
def world(tmp_path: Path) -> Any:
    made = World(tmp_path)
    yield made
    made.store.close()


async def prepare(made: Preparer, *refs: ClaimRef) -> None:
    answers = await made.prepare(refs)
    assert all(isinstance(answer, tuple) for answer in answers.values()), answers


@pytest.mark.parametrize("order", list(itertools.permutations(NAMES)), ids="-".join)
async def test_claims_that_come_one_by_one_reach_each_other_when_each_is_answered(
    world: World, order: Sequence[str]
) -> None:
    async with world.running() as made:
        for count, name in enumerate(order, 1):
            await prepare(made, world.claim(name, "a", own=name == "speakers"))
            so_far = set(order[:count])
            assert all(world.reached(each) == so_far for each in so_far)
        for count, name in enumerate(order, 1):
            await made.unprepare([ClaimRef("media", name, UIDS[name])])
            left = set(order[count:])
            assert all(world.reached(each) == left for each in left)


async def test_claims_that_come_and_go_in_one_call_reach_each_other(world: World) -> None:
    refs = [world.claim(name, "a") for name in NAMES]
    async with world.running() as made:
        await prepare(made, *refs)
        assert all(world.reached(name) == set(NAMES) for name in NAMES)
        await made.unprepare(refs)
    assert world.sockets.reached == {}


async def test_a_call_that_is_repeated_cuts_nobody(world: World) -> None:
    refs = [world.claim(name, "a") for name in NAMES]
    async with world.running() as made:
        await prepare(made, *refs)
        world.sockets.cuts.clear()
        await prepare(made, *refs)
        assert all(world.reached(name) == set(NAMES) for name in NAMES)
        assert world.sockets.cuts == []


async def test_an_agent_s_restart_cuts_nobody_and_asks_the_api_server_nothing(
    world: World,
) -> None:
    refs = [world.claim(name, "a") for name in NAMES]
    async with world.running() as made:
        await prepare(made, *refs)
    world.sockets.cuts.clear()
    world.client.calls.clear()
    before = world.sockets.opens
    async with world.running() as made:
        async with asyncio.timeout(DEADLINE):
            while world.sockets.opens < before + len(NAMES):
                await asyncio.sleep(0.01)
        await prepare(made, *refs)
    assert all(world.reached(name) == set(NAMES) for name in NAMES)
    assert (world.sockets.cuts, world.client.calls) == ([], [])


async def test_pods_of_their_own_reach_nothing_of_each_other(world: World) -> None:
    async with world.running() as made:
        await prepare(made, world.claim("speakers", "a"), world.claim("tv", "b"))
    assert (world.reached("speakers"), world.reached("tv")) == ({"speakers"}, {"tv"})


async def test_a_second_pod_cuts_the_reach_of_the_claim_that_it_gets_and_of_no_other(
    world: World,
) -> None:
    async with world.running() as made:
        await prepare(made, *(world.claim(name, "a") for name in NAMES))
        world.sockets.cuts.clear()
        await made.observe(body("tv", "a", "b"))
        assert world.reached("tv") == {"tv"}
        # The first pod has them all still: its other sockets lead nobody else anywhere.
        assert world.reached("speakers") == world.reached("mic") == set(NAMES)
        assert world.sockets.cuts == [UIDS["tv"]]
        await made.observe(body("tv", "a", "b"))
        await made.observe(body("tv", "a"))
        assert world.sockets.cuts == [UIDS["tv"]], "once, also when the second pod ends"
        assert world.reached("tv") == {"tv"}


async def test_a_second_pod_s_own_claim_reaches_the_shared_one_and_nothing_of_the_first(
    world: World,
) -> None:
    async with world.running() as made:
        await prepare(made, world.claim("speakers", "a"), world.claim("tv", "a"))
        await made.observe(body("tv", "a", "b"))
        await prepare(made, world.claim("mic", "b", own=True))
        assert world.reached("mic") == {"mic", "tv"}
        assert world.reached("tv") == {"tv"}
        assert world.reached("speakers") == {"speakers", "tv"}


async def test_what_was_seen_is_known_to_the_next_agent(world: World) -> None:
    async with world.running() as made:
        await prepare(made, world.claim("speakers", "a"), world.claim("tv", "a"))
        await made.observe(body("tv", "a", "b"))
    async with world.running() as made:
        await prepare(made, ClaimRef("media", "tv", UIDS["tv"]))
        assert world.reached("tv") == {"tv"}


async def test_a_second_pod_that_nobody_told_of_is_asked_for_before_a_claim_is_joined(
    world: World,
) -> None:
    """The first pod's other claim failed at first; meanwhile another pod got the named one."""
    async with world.running() as made:
        await prepare(made, world.claim("tv", "a"))
        world.claim("tv", "a", "b")
        await prepare(made, world.claim("speakers", "a", own=True))
        assert world.reached("tv") == {"tv"}
        assert world.reached("speakers") == {"speakers", "tv"}


async def test_a_named_claim_that_can_t_be_read_is_not_joined_and_harms_nobody(
    world: World,
) -> None:
    async with world.running() as made:
        await prepare(made, world.claim("tv", "a"))
        world.client.failures = [None, Unreachable("away")]
        await prepare(made, world.claim("speakers", "a", own=True))
        assert world.reached("tv") == {"tv"}
        assert world.reached("speakers") == {"speakers", "tv"}


async def test_a_reach_that_can_t_be_cut_now_is_cut_later(world: World) -> None:
    async with world.running() as made:
        await prepare(made, world.claim("speakers", "a"), world.claim("tv", "a"))
        world.sockets.failures = [OSError("claim-sockets isn't running")]
        await made.observe(body("tv", "a", "b"))
        async with asyncio.timeout(DEADLINE):
            while world.reached("tv") != {"tv"}:
                await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    "claim",
    [{}, {"metadata": {}}, {"metadata": {"uid": "../x"}}, {"metadata": {"uid": "unknown"}}],
    ids=["nothing", "no-uid", "no-file-name", "unknown"],
)
async def test_a_claim_that_isn_t_prepared_is_observed_in_vain(world: World, claim: Json) -> None:
    async with world.running() as made:
        await made.observe(claim)
    assert world.sockets.reached == {}


async def test_a_claim_made_anew_under_its_name_says_nothing_of_the_old_one(world: World) -> None:
    async with world.running() as made:
        await prepare(made, world.claim("speakers", "a"), world.claim("tv", "a"))
        anew = body("tv", "b")
        anew["metadata"]["uid"] = "uid-anew"
        await made.observe(anew)
        assert world.reached("tv") == {"speakers", "tv"}


async def test_a_claim_s_pods_are_shown_by_name(world: World) -> None:
    async with world.running() as made:
        await prepare(made, world.claim("tv", "a"))
        await made.observe(body("tv", "b", "a"))
        async with asyncio.timeout(10):
            # The hold is shown once the claim is prepared, the second pod a moment later.
            while [hold.pods for hold in world.graph.view().holds] != [("a", "b")]:
                await asyncio.sleep(0.005)
