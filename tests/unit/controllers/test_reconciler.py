"""The reconciler with fake partners on a virtual clock."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import pytest

from liken_audio.api import NODE_LABEL, SINKS, SOURCES, Conflict, Json, Unreachable
from liken_audio.controllers.reconciler import Partners, Reconciler
from liken_audio.graph.device_graph import DeviceGraph
from liken_audio.graph.model import (
    CardsSnapshot,
    ClaimHold,
    ClaimsSnapshot,
    ControlType,
    DeviceName,
    Linear,
    Node,
    NodeId,
    NodeSerial,
    Percent,
    PipeWireSnapshot,
    Source,
)
from liken_audio.resources.conditions import Transition
from liken_audio.resources.loudness import to_percent
from tests.builders import (
    SPEAKER_NAME,
    bluetooth_card,
    card,
    control,
    hdmi_pcm,
    microphone_pcm,
    node,
    pcm,
    speaker_card,
    speaker_node,
)
from tests.fakes import FakeCache, FakeHardware, FakeResourceClient

pytestmark = pytest.mark.looptime

ANALOG = "kitchen-pci-0000-00-1f-3-alc257-analog"
HDMI = "kitchen-pci-0000-00-1f-3-hdmi-0"
NOW = datetime(2026, 11, 30, 20, 0, tzinfo=UTC)


@dataclass
class Recorder:
    """Takes Events."""

    events: list[tuple[str, str]] = field(default_factory=list)

    def record(self, stored: Json, transition: Transition) -> None:
        self.events.append((stored["metadata"]["name"], transition.reason))


@dataclass
class World:
    graph: DeviceGraph
    client: FakeResourceClient
    hardware: FakeHardware
    recorder: Recorder
    reconciler: Reconciler

    @property
    def sinks(self) -> FakeCache:
        """The reconciler's own cache of Sinks."""
        cache = self.reconciler._caches[SINKS]
        assert isinstance(cache, FakeCache)
        return cache

    def show(self, *nodes: Node) -> None:
        self.graph.replace(Source.PIPEWIRE, PipeWireSnapshot(nodes))

    def sink(self, name: str = ANALOG) -> Json:
        return self.client.store["sinks", name]

    def has_sink(self, name: str = ANALOG) -> bool:
        return ("sinks", name) in self.client.store

    def condition(self, kind: str, name: str = ANALOG) -> tuple[str, str]:
        for one in self.sink(name)["status"]["conditions"]:
            if one["type"] == kind:
                return one["status"], one["reason"]
        raise AssertionError(kind)

    def edit(self, name: str = ANALOG, **spec: Any) -> None:
        body = self.client.store.get(("sinks", name)) or {
            "apiVersion": "audio.liken.sh/v1alpha1",
            "kind": "Sink",
            "metadata": {"name": name, "labels": {NODE_LABEL: "kitchen"}},
        }
        generation = body["metadata"].get("generation", 1) + 1
        changed = {**body, "spec": spec, "metadata": {**body["metadata"], "generation": generation}}
        self.client.put(SINKS, changed)


def world(**options: Any) -> World:
    graph = DeviceGraph([Source.VIRTUAL, Source.PIPEWIRE])
    client = FakeResourceClient()
    hardware = FakeHardware(graph)
    recorder = Recorder()
    partners = Partners(
        client=client,
        sinks=client.cache(SINKS),
        sources=client.cache(SOURCES),
        audio=hardware,
        mixer=hardware,
        events=recorder,
    )
    made = World(
        graph, client, hardware, recorder, Reconciler(graph, "kitchen", partners, lambda: NOW)
    )
    graph.replace(Source.VIRTUAL, CardsSnapshot((options.get("card") or card(pcm()),)))
    return made


@asynccontextmanager
async def running(subject: World) -> AsyncIterator[World]:
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(subject.reconciler.run())
        yield subject
        task.cancel()


def playing(**changes: Any) -> Node:
    return node(ANALOG, **({"state": "running", "volumes": (1.0, 1.0)} | changes))


async def test_an_endpoint_becomes_a_sink_with_our_label_and_its_status() -> None:
    subject = world()
    subject.show(playing())
    async with running(subject):
        await asyncio.sleep(1)
    sink = subject.sink()
    assert sink["metadata"]["labels"] == {NODE_LABEL: "kitchen"}
    assert "spec" not in sink
    assert sink["status"]["observed"] == {"volume": 100, "mute": False}
    assert subject.condition("Ready") == ("True", "Ready")
    assert subject.client.writes() == [("apply", "sinks", ANALOG)] * 2
    assert subject.hardware.calls == []


async def test_nothing_changed_writes_nothing() -> None:
    subject = world()
    subject.show(playing())
    async with running(subject):
        await asyncio.sleep(1)
        subject.client.calls.clear()
        subject.graph.replace(Source.CLAIMS, ClaimsSnapshot())
        await asyncio.sleep(600)
    assert subject.client.calls == []


async def test_a_declared_volume_is_one_write_to_hardware_and_one_to_status() -> None:
    subject = world()
    subject.show(playing())
    async with running(subject):
        await asyncio.sleep(1)
        subject.client.calls.clear()
        subject.edit(volume=50)
        await asyncio.sleep(10)
    assert subject.hardware.calls == [("volume", 0.125)]
    assert subject.client.writes() == [("apply", "sinks", ANALOG)]
    assert subject.sink()["status"]["observed"]["volume"] == 50
    assert subject.condition("Applied") == ("True", "Applied")


async def test_deleted_by_a_user_it_comes_back_empty() -> None:
    subject = world()
    subject.show(playing())
    async with running(subject):
        await asyncio.sleep(1)
        subject.edit(volume=50)
        await asyncio.sleep(1)
        subject.client.remove(SINKS, ANALOG)
        await asyncio.sleep(1)
    assert "spec" not in subject.sink()
    assert subject.condition("Ready") == ("True", "Ready")


async def test_an_object_made_before_its_device_is_adopted_and_heard() -> None:
    """Our watch sees it only once it bears our label, which is our own write."""
    subject = world()
    subject.sinks.is_paused = True
    subject.client.put(SINKS, unlabelled(ANALOG, volume=30))
    subject.show(playing())
    async with running(subject):
        await asyncio.sleep(1)
    assert subject.hardware.calls == [("volume", pytest.approx(0.027))]
    assert subject.condition("Applied") == ("True", "Applied")
    assert len(subject.client.writes()) == 2


async def test_claims_show_who_holds_it_and_admin_access_counts_for_nothing() -> None:
    subject = world()
    subject.show(playing())
    hold = ClaimHold(namespace="media", name="tv", uid="u1", devices=(DeviceName(ANALOG),))
    admin = replace(hold, name="probe", uid="u2", is_admin=True)
    async with running(subject):
        await asyncio.sleep(1)
        subject.graph.replace(Source.CLAIMS, ClaimsSnapshot((hold, admin)))
        await asyncio.sleep(1)
    assert subject.sink()["status"]["claims"] == [{"namespace": "media", "name": "tv", "uid": "u1"}]
    assert subject.sink()["status"]["claimedBy"] == "media/tv"


async def test_the_lowest_limit_of_the_classes_holds_while_the_device_is_claimed() -> None:
    subject = world()
    subject.show(playing())
    claims = [
        ClaimHold(
            namespace="media",
            name=f"claim-{limit}",
            uid=f"u{limit}",
            devices=(DeviceName(ANALOG), DeviceName("other")),
            max_volumes=((DeviceName(ANALOG), Percent(limit)), (DeviceName("other"), Percent(1))),
        )
        for limit in (80, 60)
    ]
    async with running(subject):
        await asyncio.sleep(1)
        subject.graph.replace(Source.CLAIMS, ClaimsSnapshot(tuple(claims)))
        await asyncio.sleep(1)
    assert subject.hardware.calls[-1] == ("volume", pytest.approx(0.216))


def limited_to(limit: int) -> ClaimHold:
    return ClaimHold(
        namespace="media",
        name="tv",
        uid="u1",
        devices=(DeviceName(ANALOG),),
        max_volumes=((DeviceName(ANALOG), Percent(limit)),),
    )


async def test_a_limit_can_be_waited_for_and_what_is_set_after_it_stays() -> None:
    subject = world()
    subject.show(playing())
    async with running(subject):
        await asyncio.sleep(1)
        subject.graph.replace(Source.CLAIMS, ClaimsSnapshot((limited_to(60),)))
        await subject.reconciler.settle([DeviceName(ANALOG)])
        assert subject.hardware.calls == [("volume", pytest.approx(0.216))]
        subject.show(playing(volumes=(0.064, 0.064)))  # the pod has set 40 %
        await asyncio.sleep(1)
    assert len(subject.hardware.calls) == 1
    assert subject.sink()["status"]["observed"]["volume"] == 40


async def test_hardware_that_cannot_be_written_is_not_waited_for() -> None:
    subject = world()
    subject.show(playing())
    subject.hardware.failures = [OSError("broken")] * 100
    async with running(subject):
        await asyncio.sleep(1)
        subject.graph.replace(Source.CLAIMS, ClaimsSnapshot((limited_to(60),)))
        await subject.reconciler.settle([DeviceName(ANALOG)])
    assert len(subject.hardware.calls) == 1


async def test_a_microphone_becomes_a_source() -> None:
    subject = world(card=card(microphone_pcm()))
    async with running(subject):
        await asyncio.sleep(1)
    assert [key for key in subject.client.store if key[0] == "sinks"] == []
    (body,) = (body for key, body in subject.client.store.items() if key[0] == "sources")
    assert body["kind"] == "Source"


async def test_a_change_is_written_at_once() -> None:
    subject = world()
    subject.show(playing())
    async with running(subject):
        await asyncio.sleep(10)
        subject.client.calls.clear()
        subject.show(playing(is_muted=True))
        await asyncio.sleep(0.05)
        assert subject.condition("Ready") == ("False", "Muted")


async def test_ten_thousand_updates_in_two_seconds_are_two_writes_at_most() -> None:
    """U18: they end where they began."""
    subject = world()
    subject.show(playing())
    async with running(subject):
        await asyncio.sleep(10)
        subject.client.calls.clear()
        for n in range(10_000):
            subject.show(playing(volumes=(n / 10_000, n / 10_000)))
            if n % 50 == 0:
                await asyncio.sleep(0.01)
        subject.show(playing())
        await asyncio.sleep(10)
    assert len(subject.client.writes()) <= 2
    assert subject.sink()["status"]["observed"]["volume"] == 100
    assert subject.hardware.calls == []


async def test_a_gap_of_the_node_is_not_shown_and_a_loss_is() -> None:
    """U23."""
    subject = world()
    subject.show(playing())
    async with running(subject):
        await asyncio.sleep(1)
        subject.client.calls.clear()
        subject.show()
        await asyncio.sleep(1.2)
        subject.show(playing())
        await asyncio.sleep(10)
        assert subject.client.writes() == []
        subject.show()
        await asyncio.sleep(3.1)
        assert subject.condition("Ready") == ("False", "NoNode")
        subject.graph.lose(Source.PIPEWIRE)
        await asyncio.sleep(3.1)
        assert subject.condition("Ready") == ("False", "GraphLost")
        subject.show(playing())
        await asyncio.sleep(1)
    assert subject.condition("Ready") == ("True", "Ready")
    assert [reason for _, reason in subject.recorder.events] == ["NoNode", "GraphLost", "Ready"]


async def test_a_new_object_in_the_first_seconds_says_that_it_waits() -> None:
    subject = world()
    async with running(subject):
        await asyncio.sleep(1)
        assert subject.condition("Ready") == ("Unknown", "Starting")
        await asyncio.sleep(3)
        assert subject.condition("Ready") == ("False", "GraphLost")


async def test_an_unplugged_monitor_shows_at_once() -> None:
    subject = world(card=card(hdmi_pcm()))
    subject.show(node(HDMI, state="running", volumes=(1.0,)))
    async with running(subject):
        await asyncio.sleep(1)
        assert subject.condition("Connected", HDMI) == ("True", "Connected")
        subject.graph.replace(Source.VIRTUAL, CardsSnapshot((card(hdmi_pcm(eld=b"")),)))
        await asyncio.sleep(0.3)
    assert subject.condition("Connected", HDMI) == ("False", "NoMonitor")
    assert "monitor" in subject.recorder.events[0][1].lower()


async def test_a_fresh_node_rests_at_a_hundred_before_anybody_asks() -> None:
    """U19."""
    subject = world()
    subject.show(playing(volumes=(0.064, 0.064), properties={}))
    async with running(subject):
        await asyncio.sleep(1)
    assert subject.hardware.calls == [("volume", 1.0)]
    assert subject.sink()["status"]["observed"]["volume"] == 100


async def test_a_suspended_node_is_written_once_and_shown_as_unconfirmed() -> None:
    """U20."""
    subject = world()
    subject.hardware.is_deaf = True
    asleep = playing(state="suspended", volumes=())
    subject.show(asleep)
    async with running(subject):
        await asyncio.sleep(1)
        subject.edit(volume=50)
        await asyncio.sleep(300)
        assert subject.hardware.calls == [("volume", 0.125)]
        assert subject.sink()["status"]["observed"]["volume"] == 50
        assert subject.condition("Applied") == ("True", "Unconfirmed")
        subject.show(playing(volumes=(0.125, 0.125)))
        await asyncio.sleep(1)
    assert subject.condition("Applied") == ("True", "Applied")
    assert len(subject.hardware.calls) == 1


async def test_hardware_that_ignores_gets_two_writes_and_a_condition() -> None:
    """U36."""
    subject = world()
    subject.hardware.is_deaf = True
    subject.show(playing(volumes=(0.512, 0.512), properties={}))
    async with running(subject):
        subject.edit(volume=30)
        await asyncio.sleep(3_600)
    assert len(subject.hardware.calls) == 2
    assert subject.condition("Applied") == ("False", "NotConfirmed")
    assert subject.sink()["status"]["observed"]["volume"] == 80


async def test_a_failing_write_is_tried_again_ever_later_and_told() -> None:
    subject = world()
    subject.hardware.failures = [TimeoutError("no answer in 5 s")] * 100
    subject.show(playing())
    async with running(subject):
        subject.edit(volume=30)
        await asyncio.sleep(600)
        assert len(subject.hardware.calls) < 20
        assert subject.condition("Applied") == ("False", "WriteFailed")
        subject.hardware.failures = []
        await asyncio.sleep(80)
    assert subject.condition("Applied") == ("True", "Applied")
    assert subject.sink()["status"]["observed"]["volume"] == 30


@pytest.mark.parametrize("spec", [{}, {"volume": 100}])
async def test_a_failed_write_that_nobody_wants_any_more_is_not_tried_again(
    spec: dict[str, int],
) -> None:
    subject = world()
    subject.show(playing())
    async with running(subject):
        await asyncio.sleep(1)
        subject.hardware.failures = [OSError("broken")] * 4
        subject.edit(volume=30)
        await asyncio.sleep(10)
        subject.hardware.failures.clear()
        subject.hardware.calls.clear()
        subject.edit(**spec)
        await asyncio.sleep(200)
    assert subject.hardware.calls == []
    assert subject.sink()["status"]["observed"]["volume"] == 100


async def test_a_control_taken_out_of_the_spec_while_its_write_waits_is_left_alone() -> None:
    key = "Master Playback Switch"
    subject = world(card=card(pcm(), controls=(control(key, values=(0,)),)))
    subject.show(playing())
    async with running(subject):
        await asyncio.sleep(1)
        subject.hardware.failures = [OSError("broken")] * 4
        subject.edit(controls={key: "on"})
        await asyncio.sleep(10)
        subject.hardware.failures.clear()
        subject.hardware.calls.clear()
        subject.edit()
        await asyncio.sleep(200)
    assert subject.hardware.calls == []


async def test_a_failed_write_is_not_made_to_the_node_that_comes_after() -> None:
    subject = world()
    subject.show(playing())
    async with running(subject):
        await asyncio.sleep(1)
        subject.hardware.failures = [OSError("broken")] * 4
        subject.edit(volume=30)
        await asyncio.sleep(10)
        subject.hardware.failures.clear()
        subject.hardware.calls.clear()
        subject.show(playing(serial=NodeSerial(99), volumes=(0.027, 0.027)))
        await asyncio.sleep(200)
    assert subject.hardware.calls == []


async def test_one_failing_device_does_not_hold_up_another() -> None:
    subject = world(card=card(pcm(), hdmi_pcm()))
    subject.show(playing(), node(HDMI, serial=41, state="running", volumes=(1.0, 1.0)))
    async with running(subject):
        await asyncio.sleep(1)
        subject.hardware.failures = [OSError("broken"), None]
        subject.edit(ANALOG, volume=30)
        subject.edit(HDMI, volume=50)
        await asyncio.sleep(0.5)
    assert subject.hardware.calls == [("volume", pytest.approx(0.027)), ("volume", 0.125)]


async def test_hardware_is_kept_while_the_api_server_is_away() -> None:
    """U81: specs come from the cache; status follows when the server is back."""
    subject = world()
    subject.show(playing())
    async with running(subject):
        subject.edit(volume=50)
        await asyncio.sleep(1)
        subject.client.failures = [Unreachable("away", status=0)] * 1_000
        subject.client.calls.clear()
        for n in range(120):
            if n % 40 == 0:
                subject.show(playing(volumes=(0.9, 0.9)))
            await asyncio.sleep(60)
        assert [call for call in subject.hardware.calls if call == ("volume", 0.125)]
        assert len(subject.hardware.calls) == 4
        assert len(subject.client.calls) <= 150
        subject.client.failures = []
        subject.show(playing(is_muted=True))
        await asyncio.sleep(90)
    assert subject.condition("Ready") == ("False", "Muted")


async def test_what_an_operator_wrote_to_our_status_is_put_back_by_one_write() -> None:
    subject = world()
    subject.show(playing())
    async with running(subject):
        await asyncio.sleep(1)
        subject.client.calls.clear()
        sink = subject.sink()
        status = {**sink["status"], "node": "elsewhere", "theirs": "stays"}
        subject.client.put(SINKS, {**sink, "status": status})
        await asyncio.sleep(10)
    assert subject.sink()["status"]["node"] == "kitchen"
    assert subject.sink()["status"]["theirs"] == "stays"
    assert len(subject.client.writes()) == 1


async def test_a_label_that_was_taken_off_comes_back() -> None:
    subject = world()
    subject.show(playing())
    async with running(subject):
        await asyncio.sleep(1)
        sink = subject.sink()
        subject.client.put(SINKS, {**sink, "metadata": {**sink["metadata"], "labels": {}}})
        await asyncio.sleep(1)
    assert subject.sink()["metadata"]["labels"] == {NODE_LABEL: "kitchen"}


async def test_a_removed_field_writes_nothing() -> None:
    subject = world()
    subject.show(playing())
    async with running(subject):
        subject.edit(volume=50, mute=True)
        await asyncio.sleep(1)
        subject.hardware.calls.clear()
        subject.edit()
        await asyncio.sleep(10)
    assert subject.hardware.calls == []
    assert subject.sink()["status"]["observed"] == {"volume": 50, "mute": True}
    assert subject.condition("Applied") == ("True", "NothingDeclared")


async def test_a_declared_control_goes_to_the_mixer() -> None:
    level = control("Master Playback Switch", values=(0,))
    subject = world(card=card(pcm(), controls=(level,)))
    subject.show(playing())
    async with running(subject):
        await asyncio.sleep(1)
        assert subject.condition("Ready") == ("False", "SwitchOff")
        subject.edit(controls={"Master Playback Switch": "on"})
        await asyncio.sleep(0.5)
    assert subject.hardware.calls == [("Master Playback Switch", (1,))]


async def test_a_device_gone_for_good_takes_its_empty_object_along_after_a_time() -> None:
    subject = world(card=card(pcm(), hdmi_pcm()))
    async with running(subject):
        await asyncio.sleep(5)
        subject.edit(HDMI, volume=50)
        await asyncio.sleep(5)
        subject.graph.replace(Source.VIRTUAL, CardsSnapshot(()))
        await asyncio.sleep(30)
        assert subject.condition("Ready") == ("False", "DeviceGone")
        await asyncio.sleep(60)
    assert not subject.has_sink()
    assert subject.condition("Ready", HDMI) == ("False", "DeviceGone")


async def test_a_device_that_comes_back_in_time_keeps_its_object() -> None:
    subject = world()
    subject.show(playing())
    async with running(subject):
        await asyncio.sleep(5)
        uid = subject.sink()["metadata"]["uid"]
        subject.graph.replace(Source.VIRTUAL, CardsSnapshot(()))
        await asyncio.sleep(50)
        subject.graph.replace(Source.VIRTUAL, CardsSnapshot((card(pcm()),)))
        await asyncio.sleep(100)
    assert subject.sink()["metadata"]["uid"] == uid
    assert subject.condition("Ready") == ("True", "Ready")


async def test_nothing_is_gone_before_the_cards_have_been_seen() -> None:
    subject = world()
    graph = DeviceGraph([Source.VIRTUAL, Source.PIPEWIRE])
    blind = again(subject, graph)
    subject.edit()
    async with running(blind):
        await asyncio.sleep(600)
    assert blind.client.writes() == []
    assert blind.has_sink()


def again(subject: World, graph: DeviceGraph | None = None) -> World:
    """A second agent on the same server and the same sound."""
    graph = graph or subject.graph
    hardware = FakeHardware(graph)
    partners = Partners(
        client=subject.client,
        sinks=subject.client.cache(SINKS),
        sources=subject.client.cache(SOURCES),
        audio=hardware,
        mixer=hardware,
        events=subject.recorder,
    )
    reconciler = Reconciler(graph, "kitchen", partners, lambda: NOW)
    return World(graph, subject.client, hardware, subject.recorder, reconciler)


async def test_a_restarted_agent_writes_nothing_when_nothing_changed() -> None:
    subject = world()
    subject.show(playing(volumes=(0.125, 0.125)))
    async with running(subject):
        subject.edit(mute=True)
        await asyncio.sleep(5)
        subject.show(playing(volumes=(0.5, 0.5), is_muted=True))
        await asyncio.sleep(5)
    subject.client.calls.clear()
    fresh = again(subject)
    async with running(fresh):
        await asyncio.sleep(60)
    assert fresh.client.writes() == []
    assert fresh.hardware.calls == []


@pytest.mark.parametrize(("limit", "writes"), [(60, []), (30, [0.027])])
async def test_what_a_pod_set_while_no_agent_ran_stays_within_its_limit(
    limit: int, writes: list[float]
) -> None:
    subject = world()
    subject.graph.replace(Source.CLAIMS, ClaimsSnapshot((limited_to(limit),)))
    subject.show(playing())
    async with running(subject):
        await asyncio.sleep(1)
        subject.show(playing(volumes=(0.008, 0.008)))
        await asyncio.sleep(1)
    assert subject.sink()["status"]["observed"]["volume"] == 20
    subject.show(playing(volumes=(0.064, 0.064)))
    second = again(subject)
    second.hardware.calls.clear()
    async with running(second):
        await asyncio.sleep(5)
    assert second.hardware.calls == [("volume", pytest.approx(one)) for one in writes]


async def test_two_agents_in_a_rolling_update_do_not_flap() -> None:
    subject = world()
    subject.show(playing())
    other = again(subject)
    async with running(subject), running(other):
        await asyncio.sleep(5)
        subject.edit(volume=50)
        await asyncio.sleep(5)
        subject.client.calls.clear()
        await asyncio.sleep(600)
    assert subject.client.writes() == []
    assert subject.condition("Applied") == ("True", "Applied")
    assert len(subject.hardware.calls + other.hardware.calls) <= 2


async def test_nothing_is_written_before_what_is_declared_is_known() -> None:
    """U79: the CRD, or the API server, isn't there yet."""
    subject = world()
    cache = subject.sinks
    cache.is_synced = False
    subject.show(playing(volumes=(0.064, 0.064), properties={}))
    async with running(subject):
        await asyncio.sleep(180)
        assert (subject.hardware.calls, subject.client.calls) == ([], [])
        subject.client.put(SINKS, unlabelled(ANALOG, volume=30))
        cache.put(labelled(ANALOG, volume=30))
        cache.is_synced = True
        await asyncio.sleep(1)
    assert subject.hardware.calls == [("volume", pytest.approx(0.027))]


async def test_a_node_made_during_the_wait_for_the_cache_counts_as_new() -> None:
    subject = world()
    subject.sinks.is_synced = False
    subject.show()
    async with running(subject):
        await asyncio.sleep(1)
        subject.client.put(SINKS, labelled(ANALOG) | {"status": {"observed": {"volume": 40}}})
        subject.show(playing(volumes=(0.064, 0.064)))
        await asyncio.sleep(1)
        subject.sinks.is_synced = True
        await asyncio.sleep(1)
    assert subject.hardware.calls == [("volume", 1.0)]


async def test_sharing_is_read_from_the_spec() -> None:
    subject = world()
    assert not subject.reconciler.is_shared(DeviceName(ANALOG))
    subject.edit(sharing="Shared")
    assert subject.reconciler.is_shared(DeviceName(ANALOG))
    subject.edit(sharing="shared")
    assert not subject.reconciler.is_shared(DeviceName(ANALOG))


async def test_sharing_of_an_object_that_may_only_not_be_known_yet_is_unknown() -> None:
    subject = world()
    subject.sinks.is_synced = False
    assert subject.reconciler.is_shared(DeviceName(ANALOG)) is None
    subject.sinks.is_synced = True
    assert subject.reconciler.is_shared(DeviceName(ANALOG)) is False


async def test_a_thousand_controls_make_an_object_of_bounded_size_and_quick() -> None:
    """U50: a card with 1,235 controls and three outputs."""
    controls = tuple(
        control(f"RX INT{n} DEM MUX", type=ControlType.ENUMERATED, items=("NORMAL", "DSM_OUT"))
        for n in range(1_235)
    )
    subject = world(card=card(pcm(), hdmi_pcm(0), hdmi_pcm(1), controls=controls))
    subject.show(playing())
    subject.edit(controls={"RX INT1234 DEM MUX": "DSM_OUT", "RX INT1 DEM MUX": "NORMAL"})
    async with running(subject):
        await asyncio.sleep(1)
    status = subject.sink()["status"]
    assert len(json.dumps(subject.sink())) < 256 * 1024
    assert status["omittedControls"] + len(status["capabilities"]) == len(controls)
    assert "RX INT1234 DEM MUX" in status["capabilities"]


async def test_a_refused_object_does_not_keep_the_others_waiting() -> None:
    subject = world(card=card(pcm(), hdmi_pcm()))
    subject.client.failures = [Conflict("no", status=409)] * 3
    async with running(subject):
        await asyncio.sleep(10)
    assert subject.has_sink(ANALOG)
    assert subject.has_sink(HDMI)
    assert subject.reconciler.errors == 3


async def test_a_volatile_control_never_causes_a_write_by_itself() -> None:
    """U51."""
    meter = control("Meter", type=ControlType.INTEGER, maximum=100, is_volatile=True)
    subject = world(card=card(pcm(), controls=(meter,)))
    subject.show(playing())
    async with running(subject):
        await asyncio.sleep(1)
        subject.client.calls.clear()
        for n in range(50):
            moved = card(pcm(), controls=(replace(meter, values=(n,)),))
            subject.graph.replace(Source.VIRTUAL, CardsSnapshot((moved,)))
            await asyncio.sleep(1)
    assert subject.client.writes() == []


def unlabelled(name: str, **spec: Any) -> Json:
    return {
        "apiVersion": "audio.liken.sh/v1alpha1",
        "kind": "Sink",
        "metadata": {"name": name},
        "spec": spec,
    }


def labelled(name: str, **spec: Any) -> Json:
    metadata = {"name": name, "labels": {NODE_LABEL: "kitchen"}, "uid": "u", "resourceVersion": "1"}
    return unlabelled(name, **spec) | {"metadata": metadata}


async def test_two_hours_without_an_api_server_stop_no_enforcement_and_cost_few_attempts() -> None:
    """U81: what is declared is known from the cache; a node that comes meanwhile gets it."""
    subject = world()
    subject.show(playing())
    async with running(subject):
        subject.edit(volume=50)
        await asyncio.sleep(60)
        subject.client.failures = [Unreachable("refused")] * 100_000
        subject.client.calls.clear()
        subject.hardware.calls.clear()
        for number in range(4):
            await asyncio.sleep(1800)
            subject.show(playing(serial=NodeSerial(50 + number), volumes=(0.064, 0.064)))
            await asyncio.sleep(1)
        assert subject.hardware.calls == [("volume", Linear(0.125))] * 4
        assert len(subject.client.calls) <= 150
        subject.client.failures.clear()
        subject.show(playing(serial=NodeSerial(60), is_muted=True))
        await asyncio.sleep(90)
    assert subject.sink()["status"]["observed"] == {"volume": 50, "mute": True}


class Walk:
    """Random things that happen to one node, drawn from a seed; time is virtual."""

    NAMES = (ANALOG, HDMI)

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.world = world(card=card(pcm(), hdmi_pcm()))
        self.serial = 100
        self.show_all()
        self.steps = 0

    def show_all(self) -> None:
        """Have PipeWire make all nodes anew, at a session manager's default volume."""
        self.serial += len(self.NAMES)
        self.world.show(
            *(
                node(
                    name,
                    state="running",
                    id=NodeId(40 + place),
                    serial=NodeSerial(self.serial + place),
                    volumes=(0.064, 0.064),
                )
                for place, name in enumerate(self.NAMES)
            )
        )

    def node(self, name: str) -> Node | None:
        return next((one for one in self.world.graph.view().nodes if one.name == name), None)

    def declared(self, name: str) -> dict[str, Any]:
        body = self.world.client.store.get(("sinks", name), {})
        spec: dict[str, Any] = body.get("spec") or {}
        return spec

    async def step(self) -> None:
        """Do one thing, and leave it up to two seconds."""
        self.steps += 1
        happens = [self.edit, self.by_hand, self.foreign_status, self.delete, self.away, self.lost]
        self.random.choice(happens)(self.random.choice(self.NAMES))
        await asyncio.sleep(self.random.choice([0.0, 0.01, 0.1, 0.5, 2.0]))

    def edit(self, name: str) -> None:
        wishes = {"volume": self.random.randint(0, 100), "mute": self.random.random() < 0.5}
        self.world.edit(name, **{k: v for k, v in wishes.items() if self.random.random() < 0.7})

    def by_hand(self, name: str) -> None:
        changed = self.node(name)
        if changed is not None:
            volume = self.random.choice([0.0, 0.125, 1.0, 1.5])
            others = [one for one in self.world.graph.view().nodes if one is not changed]
            is_muted = self.random.random() < 0.3
            self.world.show(*others, replace(changed, volumes=(volume, 1.0), is_muted=is_muted))

    def foreign_status(self, name: str) -> None:
        stored = self.world.client.store.get(("sinks", name))
        if stored is not None:
            self.world.client.put(SINKS, {**stored, "status": {"node": "elsewhere"}})

    def delete(self, name: str) -> None:
        self.world.client.remove(SINKS, name)

    def away(self, _name: str) -> None:
        self.world.client.failures = [Unreachable("refused")] * self.random.randint(1, 5)

    def lost(self, _name: str) -> None:
        self.world.graph.lose(Source.PIPEWIRE)
        self.world.show()
        asyncio.get_running_loop().call_later(self.random.choice([0.2, 2.0, 8.0]), self.show_all)

    async def rest(self) -> None:
        """Let everything come back and calm down: back-off and contests last a minute."""
        await asyncio.sleep(10)
        self.world.client.failures.clear()
        await asyncio.sleep(200)

    def check(self) -> None:
        """Whether declared, shown and real are one."""
        for name in self.NAMES:
            found, spec = self.node(name), self.declared(name)
            assert found is not None
            assert self.world.condition("Ready", name)[1] in {"Ready", "Muted", "VolumeZero"}
            assert self.world.condition("Applied", name)[0] == "True"
            shown = self.world.sink(name)["status"]["observed"]
            heard = {to_percent(volume) for volume in found.volumes}
            assert shown["volume"] == max(heard)
            assert shown["mute"] == found.is_muted
            if "volume" in spec:
                assert heard == {spec["volume"]}
            if "mute" in spec:
                assert found.is_muted == spec["mute"]


@pytest.mark.parametrize("seed", range(6))
async def test_a_random_walk_ends_as_declared_with_few_writes(seed: int) -> None:
    """Edits, hands, foreign writes, deletions, lost graph and server, restarts of the agent."""
    walk, hardware = Walk(seed), 0
    for _ in range(4):
        async with running(walk.world):
            for _ in range(12):
                await walk.step()
        # Another agent follows, on the same cluster and sound, with no memory.
        hardware += len(walk.world.hardware.calls)
        walk.world = again(walk.world)
    async with running(walk.world):
        await walk.rest()
        walk.check()
        calls = len(walk.world.client.calls), len(walk.world.hardware.calls)
        await asyncio.sleep(3600)
        assert (len(walk.world.client.calls), len(walk.world.hardware.calls)) == calls
    # A graph that comes back is up to four writes; most steps are one or none.
    assert hardware + calls[1] <= 2 * walk.steps
    assert len(walk.world.client.writes()) <= 2 * walk.steps


class _Switcher:
    """Switches codecs; `failures` are raised first."""

    def __init__(self, graph: DeviceGraph) -> None:
        self.graph = graph
        self.calls: list[str] = []
        self.failures: list[OSError] = []

    async def switch_codec(self, address: str, codec: str) -> None:
        self.calls.append(codec)
        if self.failures:
            raise self.failures.pop(0)
        show_speaker(self.graph, codec)


def show_speaker(graph: DeviceGraph, codec: str = "sbc") -> None:
    card_of_it = bluetooth_card(codec=codec)
    graph.replace(Source.PIPEWIRE, PipeWireSnapshot((speaker_node(),), (card_of_it,)))


def with_speaker() -> tuple[World, _Switcher]:
    subject = world(card=speaker_card())
    switcher = _Switcher(subject.graph)
    subject.reconciler._codecs = switcher
    show_speaker(subject.graph)
    return subject, switcher


async def test_a_declared_codec_is_switched_once() -> None:
    subject, switcher = with_speaker()
    async with running(subject):
        subject.edit(SPEAKER_NAME, codec="aac")
        await asyncio.sleep(120)
    assert switcher.calls == ["aac"]
    assert subject.condition("Applied", SPEAKER_NAME) == ("True", "Applied")
    assert subject.sink(SPEAKER_NAME)["status"]["observed"]["codec"] == "aac"


async def test_a_codec_that_fails_is_given_up_and_said() -> None:
    subject, switcher = with_speaker()
    switcher.failures = [OSError("no node after 10 s; back to sbc")] * 9
    async with running(subject):
        subject.edit(SPEAKER_NAME, codec="aac")
        await asyncio.sleep(3_600)
    assert switcher.calls == ["aac"]
    assert subject.condition("Applied", SPEAKER_NAME) == ("False", "NotConfirmed")


async def test_a_claims_codec_is_restored_when_the_speaker_connects_again() -> None:
    subject, switcher = with_speaker()
    async with running(subject):
        name = DeviceName(SPEAKER_NAME)
        hold = ClaimHold(namespace="a", name="b", uid="u", devices=(name,), codecs=((name, "aac"),))
        subject.graph.replace(Source.CLAIMS, ClaimsSnapshot((hold,)))
        subject.edit(SPEAKER_NAME, codec="sbc_xq")
        await asyncio.sleep(60)
        assert switcher.calls == ["aac"]
        subject.graph.replace(Source.CLAIMS, ClaimsSnapshot())
        await asyncio.sleep(60)
    assert switcher.calls == ["aac", "sbc_xq"]
