"""Prepare and Unprepare, whoever asks how often, and whatever fails on the way.

The store is the real one on a folder of the test's own; sockets and API server are stand-ins.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from liken_audio.api import RESOURCE_CLAIMS, Rejected, Unreachable
from liken_audio.claim_store import ClaimStore
from liken_audio.controllers import preparer
from liken_audio.controllers.preparer import Partners, Place, Preparer
from liken_audio.dra.claims import (
    ClaimedDevice,
    ClaimError,
    ClaimRecord,
    ClaimRef,
    ClaimState,
    PreparedDevice,
)
from liken_audio.dra.health import HealthStatus
from liken_audio.graph.device_graph import DeviceGraph
from liken_audio.graph.model import (
    CardsSnapshot,
    ClaimHold,
    DeviceName,
    Node,
    NodeId,
    NodeSerial,
    PipeWireSnapshot,
    Profile,
    Source,
)
from tests.builders import (
    CLAIM_UID,
    SPEAKER_ADDRESS,
    SPEAKER_NAME,
    allocated,
    bluetooth_card,
    card,
    claim_record,
    claim_ref,
    hdmi_pcm,
    node,
    opaque,
    pcm,
    result,
    speaker_card,
    speaker_node,
)
from tests.fakes import FakeResourceClient

ANALOG = "kitchen-pci-0000-00-1f-3-alc257-analog"
HDMI = "kitchen-pci-0000-00-1f-3-hdmi-0"
CDI_NAME = f"audio.liken.sh-{CLAIM_UID}.json"
METADATA_CDI_NAME = f"audio.liken.sh_metadata_{CLAIM_UID}_out.json"
METADATA_ID = f"audio.liken.sh/metadata={CLAIM_UID}_out"
DEADLINE = 10.0
MICROPHONE = f"{SPEAKER_NAME}-capture"
MICROPHONE_NODE = speaker_node(
    id=NodeId(60),
    name="bluez_input.1",
    media_class="Audio/Source",
    properties={"api.bluez5.profile": "headset-head-unit"},
)


class FakeSockets:
    """Satisfies `ClaimSockets` with a dict; `failures` are raised by the next opens."""

    def __init__(self) -> None:
        self.live: dict[str, ClaimRecord] = {}
        self.opened: list[ClaimRecord] = []
        self.closed: list[str] = []
        self.failures: list[Exception] = []
        self.close_failures: list[Exception] = []
        self.go = asyncio.Event()
        self.go.set()
        self.entered = asyncio.Event()

    async def open(self, record: ClaimRecord, joined: Sequence[ClaimedDevice] = ()) -> None:
        self.opened.append(record)
        self.entered.set()
        await self.go.wait()
        if self.failures:
            raise self.failures.pop(0)
        self.live[record.ref.uid] = record

    async def close(self, uid: str) -> None:
        self.closed.append(uid)
        if self.close_failures:
            raise self.close_failures.pop(0)
        self.live.pop(uid, None)

    def uids(self) -> set[str]:
        return set(self.live)


class FakeSpeakers:
    """Satisfies `SpeakerSwitcher`: what is switched on shows at once; `failures` are raised first."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.calls: list[tuple[str, str]] = []
        self.failures: list[OSError] = []

    async def switch_codec(self, address: str, codec: str) -> None:
        self._called(address, codec)
        self.world.show_speaker(speaker_node(name="bluez_output.new", serial=NodeSerial(99)))

    async def switch_microphone_on(self, address: str) -> None:
        self._called(address, "microphone")
        self.world.show_speaker(speaker_node(), MICROPHONE_NODE)

    def _called(self, address: str, what: str) -> None:
        self.calls.append((address, what))
        if self.failures:
            raise self.failures.pop(0)


class FakeSettler:
    """Satisfies `HardwareSettler`; notes what was claimed at each call, and may be late."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.calls: list[tuple[Sequence[str], Sequence[ClaimHold]]] = []
        self.is_late = False

    async def settle(self, names: Collection[DeviceName]) -> None:
        self.calls.append((list(names), self.world.graph.view().holds))
        if self.is_late:
            raise TimeoutError


class FakeRenewer:
    """Satisfies `NodeRenewer`; notes what was claimed at each call, and may be late."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.calls: list[tuple[Sequence[str], Sequence[str]]] = []
        self.is_late = False

    async def renewed(self, names: Collection[DeviceName]) -> None:
        self.calls.append((list(names), [hold.uid for hold in self.world.graph.view().holds]))
        if self.is_late:
            raise TimeoutError


class World:
    """A node with one card, its folders, and the preparers that run on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.client = FakeResourceClient()
        self.sockets = FakeSockets()
        self.graph = DeviceGraph([Source.VIRTUAL, Source.PIPEWIRE])
        self.speakers = FakeSpeakers(self)
        self.hardware = FakeSettler(self)
        self.nodes = FakeRenewer(self)
        self.graph.replace(Source.VIRTUAL, CardsSnapshot((card(pcm(), hdmi_pcm()),)))
        self.show(node(ANALOG), node(HDMI, id=NodeId(41)))
        self.stores: list[ClaimStore] = []

    def show(self, *nodes: Node) -> None:
        self.graph.replace(Source.PIPEWIRE, PipeWireSnapshot(nodes))

    def show_speaker(self, *nodes: Node) -> None:
        """Show a connected headset in place of the card."""
        card_of_it = speaker_card(has_microphone=True)
        self.graph.replace(Source.VIRTUAL, CardsSnapshot((card_of_it,)))
        headset = Profile(index=3, name="headset-head-unit")
        device = bluetooth_card(profiles=(*bluetooth_card().profiles, headset))
        self.graph.replace(Source.PIPEWIRE, PipeWireSnapshot(nodes, (device,)))

    def allocate(self, *results: dict[str, Any], **changes: Any) -> ClaimRef:
        body = allocated(*results, **changes)
        self.client.put(RESOURCE_CLAIMS, body)
        metadata = body["metadata"]
        return ClaimRef(metadata["namespace"], metadata["name"], metadata["uid"])

    def store(self) -> ClaimStore:
        made = ClaimStore(self.folder / "state", self.folder / "cdi")
        self.stores.append(made)
        return made

    @asynccontextmanager
    async def running(self, *, boot_id: str = "boot-1") -> AsyncIterator[Preparer]:
        place = Place(node="kitchen", boot_id=boot_id, claims_dir="/run/claims")
        partners = Partners(
            self.client, self.store(), self.sockets, self.speakers, self.hardware, self.nodes
        )
        made = Preparer(self.graph, place, partners)
        task = asyncio.get_running_loop().create_task(made.run())
        await until(lambda: made._tasks is not None)
        try:
            yield made
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def checkpoint(self, uid: str = CLAIM_UID) -> ClaimRecord | None:
        return self.stores[-1].load(uid)

    def cdi(self, name: str = CDI_NAME) -> dict[str, Any] | None:
        path = self.folder / "cdi" / name
        return json.loads(path.read_text()) if path.exists() else None

    def files(self) -> list[str]:
        found = [path for path in self.folder.rglob("*") if path.is_file()]
        return sorted(path.name for path in found if path.name != "claims.lock")

    def reads(self) -> int:
        return len([call for call in self.client.calls if call[0] == "get"])


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store's files are real, and so is the time that these tests take."""
    monkeypatch.setattr(preparer, "SETTLE_SECONDS", 0.01)
    monkeypatch.setattr(preparer, "BUSY_SECONDS", 0.1)


@pytest.fixture
def world(tmp_path: Path) -> Any:
    made = World(tmp_path)
    yield made
    for store in made.stores:
        store.close()


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE):
        while not is_so():
            await asyncio.sleep(0.005)


async def prepared(made: Preparer, ref: ClaimRef) -> tuple[PreparedDevice, ...]:
    answer = (await made.prepare([ref]))[ref.uid]
    if isinstance(answer, ClaimError):
        raise answer
    return answer


async def refused(made: Preparer, ref: ClaimRef) -> str:
    answer = (await made.prepare([ref]))[ref.uid]
    assert isinstance(answer, ClaimError), answer
    return str(answer)


@pytest.mark.parametrize("is_late", [False, True])
async def test_a_volume_limit_is_in_place_before_the_pod_starts(
    world: World, *, is_late: bool
) -> None:
    world.hardware.is_late = is_late
    body = allocated(config=[opaque({"maxVolume": 60}, source="FromClass")])
    world.client.put(RESOURCE_CLAIMS, body)
    async with world.running() as made:
        await prepared(made, claim_ref())
    ((names, holds),) = world.hardware.calls
    assert names == [ANALOG]
    assert [hold.max_volumes for hold in holds] == [((ANALOG, 60),)]


@pytest.mark.parametrize("is_late", [False, True])
async def test_a_claim_finds_nothing_of_the_one_before_however_closely_it_follows(
    world: World, monkeypatch: pytest.MonkeyPatch, *, is_late: bool
) -> None:
    world.nodes.is_late = is_late
    async with world.running() as made:
        before = world.allocate()
        await prepared(made, before)
        await until(lambda: bool(world.graph.view().holds))
        monkeypatch.setattr(preparer, "SETTLE_SECONDS", 2 * DEADLINE)
        monkeypatch.setattr(preparer, "BUSY_SECONDS", 2 * DEADLINE)
        await made.unprepare([before])
        await prepared(made, world.allocate(uid="0000-other"))
    assert world.nodes.calls == [([ANALOG], []), ([ANALOG], [])]


async def test_a_claim_without_a_limit_waits_for_no_hardware(world: World) -> None:
    async with world.running() as made:
        await prepared(made, world.allocate())
    assert world.hardware.calls == []


async def test_a_claim_gets_socket_cdi_file_and_checkpoint(world: World) -> None:
    ref = world.allocate()
    async with world.running() as made:
        (device,) = await prepared(made, ref)
        await until(lambda: bool(world.graph.view().holds))
    assert device.device == ANALOG
    assert device.cdi_ids == (f"audio.liken.sh/claim={CLAIM_UID}_out", METADATA_ID)
    assert world.checkpoint() == claim_record(metadata=("out",))
    assert list(world.sockets.live) == [CLAIM_UID]
    written = world.cdi()
    assert written is not None
    assert written["devices"][0]["containerEdits"]["mounts"][0]["hostPath"] == (
        f"/run/claims/{CLAIM_UID}"
    )
    assert world.graph.view().holds[0].devices == (ANALOG,)
    assert (made.prepared, made.errors) == (1, 0)


async def test_calls_that_never_pause_are_shown_all_the_same(world: World) -> None:
    first, second = world.allocate(), world.allocate(result(HDMI), name="tv", uid="tv-uid")
    async with world.running() as made:
        await prepared(made, first)
        async with asyncio.timeout(DEADLINE):
            while not world.graph.view().holds:
                await prepared(made, second)
                await made.unprepare([second])


async def test_a_second_prepare_gives_the_same_answer_and_asks_nobody(world: World) -> None:
    ref = world.allocate()
    async with world.running() as made:
        first = await prepared(made, ref)
        world.client.failures = [Unreachable("the API server is away")]
        assert await prepared(made, ref) == first
        assert world.client.failures, "the claim was read again"
    assert made.repeated == 1
    assert world.sockets.closed == []


async def test_a_prepared_claim_is_known_after_a_restart_without_the_api_server(
    world: World,
) -> None:
    ref = world.allocate()
    async with world.running() as made:
        first = await prepared(made, ref)
    (world.folder / "cdi" / CDI_NAME).unlink()
    world.client.failures = [Unreachable("away")] * 100
    async with world.running() as made:
        assert await prepared(made, ref) == first
        assert world.cdi() is not None


async def test_a_lost_cdi_file_is_back_after_a_start_alone(world: World) -> None:
    ref = world.allocate()
    async with world.running() as made:
        await prepared(made, ref)
    (world.folder / "cdi" / CDI_NAME).unlink()
    world.sockets.live.clear()
    async with world.running():
        await until(lambda: world.cdi() is not None and CLAIM_UID in world.sockets.live)


async def test_after_a_reboot_a_claim_is_prepared_anew_with_the_same_answer(world: World) -> None:
    ref = world.allocate()
    async with world.running() as made:
        first = await prepared(made, ref)
    (world.folder / "cdi" / CDI_NAME).unlink()
    world.show(node("renamed", properties={"audio.liken.sh.device": ANALOG}))
    reads = world.reads()
    async with world.running(boot_id="boot-2") as made:
        assert await prepared(made, ref) == first
    assert world.reads() > reads
    record = world.checkpoint()
    assert record is not None
    assert record.boot_id == "boot-2"
    assert record.devices[0].node_name == "renamed"
    assert "PIPEWIRE_NODE=renamed" in json.dumps(world.cdi())


async def test_after_a_reboot_without_the_api_server_what_is_known_is_enough(world: World) -> None:
    ref = world.allocate()
    async with world.running() as made:
        first = await prepared(made, ref)
    world.client.failures = [Unreachable("away")] * 10
    async with world.running(boot_id="boot-2") as made:
        assert await prepared(made, ref) == first
    record = world.checkpoint()
    assert record is not None
    assert (record.boot_id, record.state) == ("boot-2", ClaimState.COMPLETED)


async def test_unprepare_leaves_nothing_and_asks_the_api_server_nothing(world: World) -> None:
    ref = world.allocate()
    async with world.running() as made:
        await prepared(made, ref)
        await until(lambda: bool(world.graph.view().holds))
        reads = world.reads()
        assert await made.unprepare([ref]) == {CLAIM_UID: None}
        assert world.reads() == reads
        await until(lambda: world.graph.view().holds == ())
    assert world.files() == []
    assert world.sockets.live == {}


async def test_unprepare_of_known_and_unknown_claims_succeeds_for_each(world: World) -> None:
    ref = world.allocate()
    unknown = claim_ref("never-seen", "gone")
    async with world.running() as made:
        await prepared(made, ref)
        for _ in range(2):
            answers = await made.unprepare([ref, unknown, ref])
            assert answers == {CLAIM_UID: None, "never-seen": None}
    assert world.files() == []


async def test_another_agent_unprepares_what_one_prepared(world: World) -> None:
    ref = world.allocate()
    async with world.running() as one, world.running() as other:
        await prepared(one, ref)
        await until(lambda: bool(world.graph.view().holds))
        assert await other.unprepare([ref]) == {CLAIM_UID: None}
        await until(lambda: world.graph.view().holds == ())
        assert await prepared(one, ref)
    assert one.prepared == 2


async def test_an_unprepare_that_cannot_cut_the_connections_fails_and_keeps_the_claim(
    world: World,
) -> None:
    ref = world.allocate()
    async with world.running() as made:
        await prepared(made, ref)
        world.sockets.close_failures = [TimeoutError("claim-sockets doesn't answer")]
        failure = (await made.unprepare([ref]))[CLAIM_UID]
        assert "claim-sockets doesn't answer" in str(failure)
        assert world.checkpoint() is not None
        assert await made.unprepare([ref]) == {CLAIM_UID: None}
    assert world.files() == []


async def test_a_claim_whose_record_is_broken_can_still_be_unprepared(world: World) -> None:
    ref = world.allocate()
    async with world.running() as made:
        await prepared(made, ref)
        (world.folder / "state" / "claims" / f"{CLAIM_UID}.json").write_text("{")
        assert await made.unprepare([ref]) == {CLAIM_UID: None}
    assert world.files() == []
    assert world.sockets.live == {}


async def test_a_replaced_claim_is_refused_and_the_old_one_s_end_leaves_the_new_alone(
    world: World,
) -> None:
    old = world.allocate()
    async with world.running() as made:
        await prepared(made, old)
        world.client.remove(RESOURCE_CLAIMS, "media/speakers")
        new = world.allocate(result(HDMI), uid="new-uid")
        assert await prepared(made, new)
        world.client.remove(RESOURCE_CLAIMS, "media/speakers")
        world.allocate(uid="newest-uid")
        late = claim_ref("a-third-uid")
        assert "deleted and made anew" in await refused(made, late)
        assert await made.unprepare([old]) == {CLAIM_UID: None}
        assert list(world.sockets.live) == ["new-uid"]
        assert world.files() == [
            "audio.liken.sh-new-uid.json",
            "audio.liken.sh_metadata_new-uid_out.json",
            "metadata.json",
            "new-uid.json",
        ]


async def test_one_bad_claim_does_not_harm_the_others_of_the_call(world: World) -> None:
    good = world.allocate()
    bad = world.allocate(result(HDMI), name="bad", uid="bad-uid", config=[opaque({"pluse": False})])
    missing = claim_ref("missing-uid", "missing")
    async with world.running() as made:
        answers = await made.prepare([bad, good, missing])
    assert set(answers) == {good.uid, bad.uid, missing.uid}
    assert not isinstance(answers[good.uid], ClaimError)
    assert "did you mean 'pulse'" in str(answers[bad.uid])
    assert "media/missing doesn't exist any more" in str(answers[missing.uid])
    assert list(world.sockets.live) == [good.uid]


@pytest.mark.parametrize(
    ("failure", "says"),
    [
        (Unreachable("connection refused"), "can't be read now: connection refused"),
        (Rejected("not allowed", status=403), "can't be read: not allowed"),
        (RuntimeError("boom"), "internal error of the driver: RuntimeError: boom"),
    ],
)
async def test_a_claim_that_cannot_be_read_says_why(world: World, failure: Any, says: str) -> None:
    ref = world.allocate()
    async with world.running() as made:
        world.client.failures = [failure]
        assert says in await refused(made, ref)
        assert await prepared(made, ref)


async def test_a_claim_with_no_result_of_ours_gets_no_devices_and_leaves_no_file(
    world: World,
) -> None:
    ref = world.allocate(result("gpu-0", driver="gpu.example.com"))
    async with world.running() as made:
        assert await prepared(made, ref) == ()
        assert world.files() == []
        assert world.sockets.opened == []


async def test_twenty_claims_and_one_twice_at_the_same_time_get_one_answer_each(
    world: World,
) -> None:
    refs = [
        world.allocate(result(shareID=f"s{i}"), name=f"c{i}", uid=f"uid-{i}") for i in range(20)
    ]
    async with world.running() as made:
        calls = [prepared(made, ref) for ref in [*refs, refs[0]]]
        answers = await asyncio.gather(*calls)
    assert answers[0] == answers[-1]
    assert len({answer[0].cdi_ids for answer in answers}) == 20
    assert made.prepared == 20
    assert len(list((world.folder / "cdi").glob("audio.liken.sh-*.json"))) == 20


async def test_of_two_claims_on_one_device_at_the_same_time_one_wins(world: World) -> None:
    refs = [world.allocate(name=f"c{i}", uid=f"uid-{i}") for i in range(2)]
    async with world.running() as one, world.running() as other:
        answers = await asyncio.gather(one.prepare([refs[0]]), other.prepare([refs[1]]))
    outcomes = [
        isinstance(answer[ref.uid], ClaimError) for answer, ref in zip(answers, refs, strict=True)
    ]
    assert sorted(outcomes) == [False, True]
    assert len(world.sockets.live) == 1


async def test_a_held_device_is_refused_until_its_holder_ends(world: World) -> None:
    first, second = world.allocate(), world.allocate(name="second", uid="second-uid")
    async with world.running() as made:
        await prepared(made, first)
        assert f"is held by claim media/speakers (UID {CLAIM_UID})" in await refused(made, second)
        await made.unprepare([first])
        assert await prepared(made, second)


async def test_admin_access_works_while_the_device_is_held_and_counts_for_nothing(
    world: World,
) -> None:
    first = world.allocate()
    admin = world.allocate(result(adminAccess=True), name="admin", uid="admin-uid")
    async with world.running() as made:
        await prepared(made, first)
        assert await prepared(made, admin)
        await until(lambda: len(world.graph.view().holds) == 2)
        holds = {hold.uid: hold.is_admin for hold in world.graph.view().holds}
        assert holds == {CLAIM_UID: False, "admin-uid": True}


async def test_a_kubelet_that_gives_up_and_asks_again_gets_the_first_call_s_result(
    world: World,
) -> None:
    ref = world.allocate()
    world.sockets.go.clear()
    async with world.running() as made:
        call = asyncio.get_running_loop().create_task(made.prepare([ref]))
        await world.sockets.entered.wait()
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        again = asyncio.get_running_loop().create_task(made.prepare([ref]))
        world.sockets.go.set()
        assert not isinstance((await again)[CLAIM_UID], ClaimError)
    assert made.prepared == 1
    assert world.reads() == 1
    assert world.checkpoint() == claim_record(metadata=("out",))


async def test_what_fails_halfway_is_undone(world: World) -> None:
    ref = world.allocate()
    async with world.running() as made:
        world.sockets.failures = [OSError("PipeWire isn't there")]
        assert "PipeWire isn't there" in await refused(made, ref)
        assert world.files() == []
        assert made.undone == 1
        assert await prepared(made, ref)


async def test_a_disk_that_is_full_fails_the_claim_with_its_reason_and_undoes_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = world.allocate()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    async with world.running() as made:
        with monkeypatch.context() as patched:
            patched.setattr(ClaimStore, "write_cdi", full)
            assert "No space left on device" in await refused(made, ref)
        assert world.sockets.live == {}
        assert world.files() == []
        assert await prepared(made, ref)


async def test_a_claim_that_takes_too_long_is_an_error_and_undone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparer, "CLAIM_SECONDS", 0.05)
    ref = world.allocate()
    world.sockets.go.clear()
    async with world.running() as made:
        assert "claim media/speakers: not done within" in await refused(made, ref)
    assert world.files() == []


async def test_a_failure_after_a_reboot_does_not_forget_the_claim(world: World) -> None:
    ref = world.allocate()
    async with world.running() as made:
        await prepared(made, ref)
    world.sockets.live.clear()
    async with world.running(boot_id="boot-2") as made:
        await until(lambda: CLAIM_UID in world.sockets.live)
        world.sockets.failures = [OSError("not now")]
        assert "not now" in await refused(made, ref)
        record = world.checkpoint()
        assert record is not None
        assert (record.state, record.boot_id) == (ClaimState.COMPLETED, "boot-1")
        assert await prepared(made, ref)


async def test_a_claim_that_a_crash_left_as_started_is_finished_by_the_next_prepare(
    world: World,
) -> None:
    ref = world.allocate()
    world.store().save(claim_record(state=ClaimState.STARTED))
    async with world.running() as made:
        assert await prepared(made, ref)
    assert world.checkpoint() == claim_record(metadata=("out",))


async def test_a_started_claim_that_was_allocated_elsewhere_since_is_cut_first(
    world: World,
) -> None:
    ref = world.allocate(result(HDMI))
    world.store().save(claim_record(state=ClaimState.STARTED))
    async with world.running() as made:
        (device,) = await prepared(made, ref)
    assert device.device == HDMI
    assert world.sockets.closed == [CLAIM_UID]


@pytest.mark.parametrize("fate", ["deleted", "replaced", "deallocated"])
async def test_a_started_claim_that_nobody_will_finish_is_undone_at_the_start(
    world: World, fate: str
) -> None:
    if fate != "deleted":
        world.allocate(uid="another" if fate == "replaced" else CLAIM_UID)
    if fate == "deallocated":
        world.client.store["resourceclaims", "media/speakers"]["status"] = {}
    record = claim_record(state=ClaimState.STARTED)
    world.store().save(record)
    world.sockets.live[CLAIM_UID] = record
    async with world.running() as made:
        await until(lambda: made.undone == 1)
    assert world.files() == []
    assert world.sockets.live == {}


async def test_a_started_claim_that_is_still_wanted_or_unclear_is_left(world: World) -> None:
    world.allocate()
    store = world.store()
    store.save(claim_record(state=ClaimState.STARTED))
    async with world.running():
        await until(lambda: world.reads() == 1)
    world.client.failures = [Unreachable("away")]
    async with world.running():
        await until(lambda: world.reads() == 2)
    assert store.load(CLAIM_UID) is not None


async def test_a_dead_reservation_is_cleared_for_the_claim_that_needs_the_device(
    world: World,
) -> None:
    async with world.running() as made:
        await until(lambda: world.graph.view().holds == ())
        dead = claim_record(ref=claim_ref("dead-uid", "dead"), state=ClaimState.STARTED)
        world.store().save(dead)
        ref = world.allocate()
        assert await prepared(made, ref)
    assert made.undone == 1


async def test_leftovers_of_no_claim_are_removed_at_the_start(world: World) -> None:
    store = world.store()
    store.write_cdi("orphan", preparer.cdi.CdiSpec({"kind": "x"}))
    (world.folder / "state" / "claims" / ".cut.json.tmp").touch()
    world.sockets.live["folder"] = claim_record()
    store.save(claim_record())
    world.sockets.live[CLAIM_UID] = claim_record()
    async with world.running():
        await until(lambda: list(world.sockets.live) == [CLAIM_UID])
        await until(
            lambda: (
                world.files() == [f"{CLAIM_UID}.json", CDI_NAME, METADATA_CDI_NAME, "metadata.json"]
            )
        )


async def test_the_devices_metadata_lies_where_the_cdi_file_says(world: World) -> None:
    async with world.running() as made:
        await prepared(made, world.allocate())
        document = world.cdi(METADATA_CDI_NAME)
        assert document
        (mount,) = document["devices"][0]["containerEdits"]["mounts"]
        path = Path(mount["hostPath"])
        newest, _ = map(json.loads, path.read_text().splitlines())
        (device,) = newest["requests"][0]["devices"]
        assert device["attributes"]["sink"] == {"string": ANALOG}
        assert path.stat().st_mode & 0o777 == 0o644
        assert path.parent.stat().st_mode & 0o777 == 0o755


async def test_a_claim_is_prepared_without_metadata_that_can_t_be_written(world: World) -> None:
    (world.folder / "state").mkdir()
    (world.folder / "state" / "dra-device-metadata").touch()
    async with world.running() as made:
        (device,) = await prepared(made, world.allocate())
        assert device.cdi_ids == (f"audio.liken.sh/claim={CLAIM_UID}_out",)
        (again,) = await prepared(made, claim_ref())
        assert again == device
        assert METADATA_CDI_NAME not in world.files()
        assert (await made.unprepare([claim_ref()]))[CLAIM_UID] is None


async def test_metadata_is_back_after_a_reboot_with_the_same_answer(world: World) -> None:
    async with world.running() as made:
        before = await prepared(made, world.allocate())
    (world.folder / "cdi" / METADATA_CDI_NAME).unlink()
    async with world.running(boot_id="boot-2") as made:
        world.client.failures = [Unreachable("away")]
        assert await prepared(made, claim_ref()) == before
        assert world.cdi(METADATA_CDI_NAME)


async def test_what_another_agent_is_just_making_is_no_leftover(world: World) -> None:
    other = world.store()
    held = other.lock(CLAIM_UID)
    await held.__aenter__()
    world.sockets.live[CLAIM_UID] = claim_record()
    async with world.running() as made:
        await until(lambda: CLAIM_UID in world.stores[-1]._waiting)  # it looked, and waits its turn
        other.save(claim_record())
        await held.__aexit__(None, None, None)
        assert await prepared(made, claim_ref())
        assert made.repeated == 1
    assert world.sockets.closed == []


async def test_a_renamed_node_is_followed_in_socket_folder_cdi_file_and_record(
    world: World,
) -> None:
    ref = world.allocate()
    async with world.running() as made:
        await prepared(made, ref)
        world.show(node("renamed", channels=6, properties={"audio.liken.sh.device": ANALOG}))
        await until(lambda: "PIPEWIRE_NODE=renamed" in json.dumps(world.cdi()))
        await until(lambda: world.sockets.live[CLAIM_UID].devices[0].channels == 6)
        assert made.rewritten == 1
        assert await prepared(made, ref)
    assert world.sockets.closed == []


async def test_a_node_that_goes_away_changes_nothing_of_a_live_claim(world: World) -> None:
    ref = world.allocate()
    async with world.running() as made:
        await prepared(made, ref)
        before = world.cdi()
        world.graph.lose(Source.PIPEWIRE)
        assert await prepared(made, ref)
        assert world.cdi() == before
        assert made.rewritten == 0


async def test_files_that_cannot_be_written_now_are_tried_again_later(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparer, "_FIRST_RETRY", 0.02)
    monkeypatch.setattr(preparer, "FOLLOW_SECONDS", 0.01)
    ref = world.allocate()
    async with world.running() as made:
        await prepared(made, ref)
    world.sockets.live.clear()
    world.sockets.failures = [OSError("no holder"), OSError("no holder")]
    async with world.running():
        await until(lambda: CLAIM_UID in world.sockets.live)


async def test_prepare_waits_for_a_node_that_is_just_being_made(world: World) -> None:
    ref = world.allocate()
    world.show()
    async with world.running() as made:
        call = asyncio.get_running_loop().create_task(made.prepare([ref]))
        await until(lambda: world.reads() == 1)
        world.show(node(ANALOG))
        assert not isinstance((await call)[CLAIM_UID], ClaimError)


async def test_a_node_that_does_not_come_is_an_error_that_says_what_to_do(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparer, "NODE_SECONDS", 0.02)
    ref = world.allocate()
    world.show()
    async with world.running() as made:
        assert "PipeWire has no node for it: look at the logs" in await refused(made, ref)
    assert world.files() == []


async def test_before_and_after_its_run_every_claim_gets_an_error(world: World) -> None:
    ref = world.allocate()
    async with world.running() as made:
        pass
    assert "starting or stopping" in await refused(made, ref)
    assert isinstance((await made.unprepare([ref]))[CLAIM_UID], ClaimError)


async def test_a_uid_that_leads_elsewhere_is_refused_and_needs_no_unprepare(world: World) -> None:
    ref = claim_ref("../../etc")
    async with world.running() as made:
        assert "is no claim UID" in await refused(made, ref)
        assert await made.unprepare([ref]) == {"../../etc": None}
    assert world.reads() == 0


async def test_no_claims_no_answers(world: World) -> None:
    async with world.running() as made:
        assert await made.prepare([]) == {}
        assert await made.unprepare([]) == {}


def statuses(made: Preparer) -> Sequence[HealthStatus]:
    return [device.status for device in made.health()]


async def test_health_follows_the_graph_and_wakes_its_subscribers(world: World) -> None:
    woken: list[bool] = []
    async with world.running() as made:
        unsubscribe = made.subscribe(lambda: woken.append(True))
        assert statuses(made) == [HealthStatus.HEALTHY, HealthStatus.HEALTHY]
        world.show(node(HDMI))
        assert statuses(made) == [HealthStatus.UNHEALTHY, HealthStatus.HEALTHY]
        assert woken == [True]
        unsubscribe()
        world.show()
        assert woken == [True]


async def test_health_is_unknown_until_pipewire_has_spoken(world: World) -> None:
    world.graph = DeviceGraph([Source.VIRTUAL, Source.PIPEWIRE])
    world.graph.replace(Source.VIRTUAL, CardsSnapshot((card(pcm()),)))
    async with world.running() as made:
        assert statuses(made) == [HealthStatus.UNKNOWN]


async def test_two_namespaces_claims_have_one_shared_device_each_with_its_share(
    world: World,
) -> None:
    refs = [
        world.allocate(
            result(ANALOG, shareID=f"share-{place}", consumedCapacity={"streams": "1"}),
            namespace=place,
            uid=f"uid-{place}",
        )
        for place in ("media", "kiosk")
    ]
    async with world.running() as made:
        answers = [(await prepared(made, ref))[0] for ref in refs]
        assert [each.share_id for each in answers] == ["share-media", "share-kiosk"]
        assert {each.device for each in answers} == {ANALOG}
        await until(lambda: len(world.graph.view().holds) == 2)
        holds = world.graph.view().holds
        assert [hold.namespace for hold in holds] == ["kiosk", "media"]
        await made.unprepare(refs[:1])
        assert list(world.sockets.live) == ["uid-kiosk"]


async def test_a_codec_is_switched_before_the_claim_is_prepared_with_its_new_node(
    world: World,
) -> None:
    world.show_speaker(speaker_node())
    ref = world.allocate(result(SPEAKER_NAME), config=[opaque({"codec": "aac"})])
    async with world.running() as made:
        await prepared(made, ref)
        await prepared(made, ref)
    assert world.speakers.calls == [(SPEAKER_ADDRESS, "aac")]
    record = world.checkpoint()
    assert record is not None
    assert record.devices[0].node_name == "bluez_output.new"
    assert world.sockets.live[CLAIM_UID].devices[0].node_name == "bluez_output.new"


async def test_a_codec_that_is_not_offered_fails_before_anything_is_touched(world: World) -> None:
    world.show_speaker(speaker_node())
    ref = world.allocate(result(SPEAKER_NAME), config=[opaque({"codec": "ldac"})])
    async with world.running() as made:
        answer = (await made.prepare([ref]))[ref.uid]
    assert isinstance(answer, ClaimError)
    assert "offered: sbc, sbc_xq, aac" in str(answer)
    assert world.speakers.calls == []
    assert world.files() == []


async def test_a_codec_that_does_not_come_up_fails_the_claim_and_leaves_nothing(
    world: World,
) -> None:
    world.show_speaker(speaker_node())
    world.speakers.failures = [OSError("no node after 10 s; back to sbc")]
    ref = world.allocate(result(SPEAKER_NAME), config=[opaque({"codec": "aac"})])
    async with world.running() as made:
        answer = (await made.prepare([ref]))[ref.uid]
        assert isinstance(answer, ClaimError)
        assert "back to sbc" in str(answer)
        assert world.files() == []
        await prepared(made, ref)


async def test_a_microphone_is_switched_on_for_its_claim(world: World) -> None:
    world.show_speaker(speaker_node())
    ref = world.allocate(result(MICROPHONE))
    async with world.running() as made:
        await prepared(made, ref)
    assert world.speakers.calls == [(SPEAKER_ADDRESS, "microphone")]


async def test_a_microphone_that_is_on_or_is_not_claimed_is_not_switched(world: World) -> None:
    world.show_speaker(speaker_node(), MICROPHONE_NODE)
    async with world.running() as made:
        await prepared(made, world.allocate(result(MICROPHONE)))
    assert world.speakers.calls == []


async def test_why_a_microphone_can_not_be_had_is_the_claims_error(world: World) -> None:
    world.show_speaker(speaker_node(state="running"))
    world.speakers.failures = [OSError("it plays music: wait until nobody plays to it")]
    ref = world.allocate(result(MICROPHONE))
    async with world.running() as made:
        answer = (await made.prepare([ref]))[ref.uid]
    assert isinstance(answer, ClaimError)
    assert "wait until nobody plays" in str(answer)
    assert world.files() == []
