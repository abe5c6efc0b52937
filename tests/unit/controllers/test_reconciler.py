"""The reconciler with fake partners on a virtual clock."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import pytest

from liken_audio.api import NODE_LABEL, SINKS, SOURCES, Json, NotFound, Unreachable
from liken_audio.controllers.reconciler import Partners, Reconciler
from liken_audio.graph.device_graph import DeviceGraph
from liken_audio.graph.model import (
    Card,
    CardsSnapshot,
    ClaimHold,
    ClaimsSnapshot,
    Control,
    DeviceName,
    Linear,
    Node,
    NodeSerial,
    PipeWireSnapshot,
    Source,
)
from liken_audio.resources.conditions import Transition
from tests.builders import card, hdmi_pcm, node, pcm
from tests.fakes import FakeResourceClient

pytestmark = pytest.mark.looptime

ANALOG = "kitchen-pci-0000-00-1f-3-alc257-analog"
HDMI = "kitchen-pci-0000-00-1f-3-hdmi-0"
NOW = datetime(2026, 11, 30, 20, 0, tzinfo=UTC)


@dataclass
class Hardware:
    """Writes volumes and mutes into the graph as PipeWire would, controls nowhere."""

    graph: DeviceGraph
    calls: list[tuple[str, Any]] = field(default_factory=list)
    failures: list[OSError | None] = field(default_factory=list)
    is_deaf: bool = False

    async def set_volume(self, node: Node, volume: Linear) -> None:
        self._called("volume", volume)
        self._change(node, volumes=(volume, volume))

    async def set_mute(self, node: Node, *, is_muted: bool) -> None:
        self._called("mute", is_muted)
        self._change(node, is_muted=is_muted)

    async def create_node(self, *_: Any) -> None:
        raise AssertionError

    async def destroy_node(self, node: Node) -> None:
        raise AssertionError(node)

    async def write_control(self, card: Card, control: Control, values: Sequence[int]) -> None:
        self._called(control.name, tuple(values))

    def _called(self, name: str, value: Any) -> None:
        self.calls.append((name, value))
        failure = self.failures.pop(0) if self.failures else None
        if failure is not None:
            raise failure

    def _change(self, target: Node, **changes: Any) -> None:
        if self.is_deaf:
            return
        nodes = [
            replace(one, **changes) if one.serial == target.serial else one
            for one in self.graph.view().nodes
        ]
        self.graph.replace(Source.PIPEWIRE, PipeWireSnapshot(tuple(nodes)))


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
    hardware: Hardware
    recorder: Recorder
    reconciler: Reconciler

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
    hardware = Hardware(graph)
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


async def test_an_unset_kind_of_claim_shows_who_holds_it() -> None:
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
