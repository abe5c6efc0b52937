"""The keeper of speakers with fake partners on a virtual clock: switches, calls, restarts."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from liken_audio.api import SINKS, Json
from liken_audio.controllers.speakers import SWITCH_SECONDS, Partners, Speakers
from liken_audio.graph.device_graph import DeviceGraph
from liken_audio.graph.endpoints import endpoints
from liken_audio.graph.model import (
    BluetoothCard,
    CardsSnapshot,
    ClaimHold,
    ClaimsSnapshot,
    DeviceName,
    Fault,
    Link,
    Node,
    NodeId,
    NodeSerial,
    PipeWireSnapshot,
    Profile,
    Source,
    Speaker,
)
from liken_audio.resources.conditions import Transition
from liken_audio.resources.speakers import (
    CONNECT_SECONDS,
    LOST_SECONDS,
    MOST_SILENT_TRIES,
    PROFILE_SECONDS,
)
from tests.builders import (
    SPEAKER_ADDRESS,
    SPEAKER_NAME,
    bluetooth_card,
    speaker,
    speaker_card,
    speaker_node,
)
from tests.fakes import FakeHardware, FakeResourceClient

pytestmark = pytest.mark.looptime

OFF, A2DP = bluetooth_card().profiles
HEADSET = Profile(index=3, name="headset-head-unit")
BOTH = (OFF, A2DP, HEADSET)


class Radio(FakeHardware):
    """PipeWire and BlueZ as far as they are needed: what is switched shows after a second."""

    def __init__(self, graph: DeviceGraph) -> None:
        super().__init__(graph)
        self.dead_codecs: set[str] = set()
        self.connects: list[float] = []
        self.restarts: list[float] = []
        self.is_off = False
        self.is_deaf = False
        """PipeWire gets no device of what is connected."""
        self._serial = 100

    async def set_codec(self, card: BluetoothCard, codec: str) -> None:
        await super().set_codec(card, codec)
        self._show(replace(card, codec=codec), None)
        await asyncio.sleep(1)
        if codec not in self.dead_codecs:
            self._show(replace(card, codec=codec), self._new_node())

    async def set_profile(self, card: BluetoothCard, profile: Profile) -> None:
        await super().set_profile(card, profile)
        await asyncio.sleep(1)
        card = replace(card, profile=profile.name)
        microphone = speaker_node(
            id=NodeId(49),
            name="bluez_input.1",
            media_class="Audio/Source",
            properties={"api.bluez5.profile": HEADSET.name},
        )
        extra = [microphone] if profile == HEADSET else []
        self._show(card, self._new_node(), *extra)

    async def connect(self, address: str) -> None:
        self.connects.append(asyncio.get_running_loop().time())
        await asyncio.sleep(5)
        if self.is_off:
            raise OSError(f"{address}: br-connection-page-timeout")
        self._graph.replace(Source.BLUEZ, CardsSnapshot((speaker_card(),)))
        if not self.is_deaf:
            self._show(bluetooth_card(), self._new_node())

    async def restart(self) -> None:
        self.restarts.append(asyncio.get_running_loop().time())

    def _new_node(self) -> Node:
        self._serial += 1
        return speaker_node(serial=NodeSerial(self._serial))

    def _show(self, card: BluetoothCard, *nodes: Node | None) -> None:
        there = tuple(node for node in nodes if node)
        self._graph.replace(Source.PIPEWIRE, PipeWireSnapshot(there, (card,)))


@dataclass
class Recorder:
    events: list[tuple[str, str, str]] = field(default_factory=list)

    def record(self, stored: Json, transition: Transition) -> None:
        name = stored["metadata"]["name"]
        self.events.append((name, transition.reason, transition.message))


class World:
    """One speaker of node `kitchen`."""

    def __init__(self) -> None:
        self.graph = DeviceGraph([Source.BLUEZ, Source.PIPEWIRE])
        self.radio = Radio(self.graph)
        self.client = FakeResourceClient()
        self.recorder = Recorder()
        partners = Partners(
            audio=self.radio,
            caller=self.radio,
            session_manager=self.radio,
            sinks=self.client.cache(SINKS),
            events=self.recorder,
        )
        self.speakers = Speakers(self.graph, "kitchen", partners)

    def show(
        self, *nodes: Node, its: Speaker | None = None, card: BluetoothCard | None = None
    ) -> None:
        self.graph.replace(Source.BLUEZ, CardsSnapshot((speaker_card(its, has_microphone=True),)))
        self.graph.replace(Source.PIPEWIRE, PipeWireSnapshot(nodes, (card,) if card else ()))

    def declare(self, **spec: Any) -> None:
        self.client.put(SINKS, {"metadata": {"name": SPEAKER_NAME}, "spec": spec})

    def hold(self, *names: str) -> None:
        devices = tuple(map(DeviceName, names))
        held = ClaimHold(namespace="a", name="b", uid="u", devices=devices)
        self.graph.replace(Source.CLAIMS, ClaimsSnapshot((held,) if names else ()))

    @property
    def codec(self) -> str:
        return self.graph.view().bluetooth[0].codec


@asynccontextmanager
async def running(world: World) -> AsyncIterator[World]:
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(world.speakers.run())
        yield world
        task.cancel()


async def test_a_codec_is_switched_and_its_node_waited_for() -> None:
    world = World()
    world.show(speaker_node(), card=bluetooth_card())
    await world.speakers.switch_codec(SPEAKER_ADDRESS, "aac")
    assert world.codec == "aac"
    assert world.graph.view().nodes[0].serial != speaker_node().serial


@pytest.mark.parametrize("dead", [(), ("aac",), ("aac", "sbc")], ids=["comes", "back", "never"])
async def test_while_a_codec_is_switched_its_node_is_away_on_purpose(dead: tuple[str, ...]) -> None:
    world = World()
    world.radio.dead_codecs = set(dead)
    world.show(speaker_node(), card=bluetooth_card())
    seen: list[tuple[bool, Fault | None]] = []

    def look() -> None:
        seen_view = world.graph.view()
        (sink,) = (e for e in endpoints(seen_view, "kitchen") if e.name == SPEAKER_NAME)
        seen.append((sink.node is None, sink.fault))

    world.graph.subscribe(look)
    with contextlib.suppress(OSError):
        await world.speakers.switch_codec(SPEAKER_ADDRESS, "aac")
    assert (True, None) in seen
    assert all(fault is None for _, fault in seen[:-1])
    assert seen[-1][1] is (Fault.NO_NODE if "sbc" in dead else None)
    assert world.graph.view().switching == ()


async def test_the_codec_in_use_writes_nothing() -> None:
    world = World()
    world.show(speaker_node(), card=bluetooth_card())
    await world.speakers.switch_codec(SPEAKER_ADDRESS, "sbc")
    assert world.radio.calls == []


async def test_a_codec_that_brings_no_node_is_put_back() -> None:
    world = World()
    world.radio.dead_codecs = {"aac"}
    world.show(speaker_node(), card=bluetooth_card())
    with pytest.raises(OSError, match="isn't there after 10 s; back to sbc"):
        await world.speakers.switch_codec(SPEAKER_ADDRESS, "aac")
    assert world.codec == "sbc"
    assert [value for _, value in world.radio.calls] == ["aac", "sbc"]
    assert asyncio.get_running_loop().time() < 2 * SWITCH_SECONDS + 5


async def test_two_who_want_a_codec_at_once_are_served_one_after_the_other() -> None:
    world = World()
    world.show(speaker_node(), card=bluetooth_card())
    async with asyncio.TaskGroup() as tasks:
        for codec in ("aac", "aac", "sbc_xq"):
            tasks.create_task(world.speakers.switch_codec(SPEAKER_ADDRESS, codec))
    assert [value for _, value in world.radio.calls] == ["aac", "sbc_xq"]
    assert world.codec == "sbc_xq"


async def test_a_speaker_that_is_off_can_not_be_switched() -> None:
    world = World()
    world.show(its=speaker(link=Link.AWAY))
    with pytest.raises(OSError, match="isn't connected"):
        await world.speakers.switch_codec(SPEAKER_ADDRESS, "aac")


async def test_a_microphone_is_switched_on_while_nobody_plays() -> None:
    world = World()
    world.show(speaker_node(), card=bluetooth_card(profiles=BOTH))
    await world.speakers.switch_microphone_on(SPEAKER_ADDRESS)
    assert world.radio.calls == [(f"profile {SPEAKER_ADDRESS}", HEADSET.name)]
    await world.speakers.switch_microphone_on(SPEAKER_ADDRESS)
    assert len(world.radio.calls) == 1


async def test_a_microphone_is_refused_while_somebody_plays() -> None:
    world = World()
    world.show(speaker_node(state="running"), card=bluetooth_card(profiles=BOTH))
    with pytest.raises(OSError, match=r"plays music.* wait until nobody plays"):
        await world.speakers.switch_microphone_on(SPEAKER_ADDRESS)
    assert world.radio.calls == []


async def test_a_microphone_that_is_not_offered_is_refused() -> None:
    world = World()
    world.show(speaker_node(), card=bluetooth_card())
    with pytest.raises(OSError, match="offers no headset profile"):
        await world.speakers.switch_microphone_on(SPEAKER_ADDRESS)


async def test_a_microphone_stays_on_for_its_claim_and_music_returns_after_it() -> None:
    world = World()
    world.show(speaker_node(), card=bluetooth_card(profiles=BOTH))
    async with running(world):
        await world.speakers.switch_microphone_on(SPEAKER_ADDRESS)
        world.hold(f"{SPEAKER_NAME}-capture")
        await asyncio.sleep(600)
        assert world.graph.view().bluetooth[0].profile == HEADSET.name
        world.hold()
        await asyncio.sleep(PROFILE_SECONDS + 3)
        assert world.graph.view().bluetooth[0].profile == A2DP.name


async def test_a_microphone_whose_claim_never_came_gives_music_back() -> None:
    world = World()
    world.show(speaker_node(), card=bluetooth_card(profiles=BOTH))
    async with running(world):
        await world.speakers.switch_microphone_on(SPEAKER_ADDRESS)
        await asyncio.sleep(20)
        assert world.graph.view().bluetooth[0].profile == HEADSET.name
        await asyncio.sleep(60)
        assert world.graph.view().bluetooth[0].profile == A2DP.name


async def test_a_profile_that_is_off_is_switched_on() -> None:
    world = World()
    world.show(card=bluetooth_card(profile="off"))
    async with running(world):
        await asyncio.sleep(PROFILE_SECONDS + 2)
    assert world.radio.calls == [(f"profile {SPEAKER_ADDRESS}", A2DP.name)]
    assert world.speakers.switches == 1


async def test_a_declared_connection_is_made_and_kept() -> None:
    world = World()
    world.show(its=speaker(link=Link.AWAY))
    async with running(world):
        await asyncio.sleep(60)
        assert world.radio.connects == []
        world.declare(connect=True)
        await asyncio.sleep(CONNECT_SECONDS + 6)
        assert len(world.radio.connects) == 1
        await asyncio.sleep(600)
        assert len(world.radio.connects) == 1
        world.show(its=speaker(link=Link.AWAY))
        await asyncio.sleep(CONNECT_SECONDS + 1)
        assert len(world.radio.connects) == 2


async def test_one_that_is_connected_without_sound_is_called_a_few_times_and_let_be() -> None:
    world = World()
    world.radio.is_deaf = True
    world.show()
    async with running(world):
        await asyncio.sleep(86_400)
        assert len(world.radio.connects) == MOST_SILENT_TRIES
        world.show(speaker_node(), card=bluetooth_card())
        await asyncio.sleep(1)
        world.radio.is_deaf = False
        world.show()
        await asyncio.sleep(60)
    assert len(world.radio.connects) == MOST_SILENT_TRIES + 1
    assert world.codec == "sbc"


async def test_a_speaker_that_is_off_is_not_stormed() -> None:
    world = World()
    world.radio.is_off = True
    world.declare(connect=True)
    world.show(its=speaker(link=Link.AWAY))
    async with running(world):
        await asyncio.sleep(86_400)
    assert 200 < len(world.radio.connects) < 300
    assert world.speakers.calls == len(world.radio.connects)


async def test_lost_endpoints_have_the_session_manager_restarted_with_an_event() -> None:
    world = World()
    world.declare()
    world.show(its=speaker(has_endpoints=False))
    async with running(world):
        await asyncio.sleep(86_400)
    assert len(world.radio.restarts) == 3
    assert world.radio.restarts[0] == pytest.approx(LOST_SECONDS, abs=1)
    assert {(name, reason) for name, reason, _ in world.recorder.events} == {
        (SPEAKER_NAME, "EndpointsLost")
    }


async def test_a_restart_that_can_not_be_had_is_said() -> None:
    world = World()
    world.declare()
    world.show(its=speaker(has_endpoints=False))

    async def refuse() -> None:
        raise OSError("nobody watches the file")

    world.radio.restart = refuse  # type: ignore[method-assign]
    async with running(world):
        await asyncio.sleep(LOST_SECONDS + 2)
    assert "nobody watches the file" in world.recorder.events[0][2]
    assert world.speakers.errors == 1
