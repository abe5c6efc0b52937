"""One node's Sinks and Sources on a real API server: the reconciler with a fake of the sound.

The reconciler, its informers, client and Events are the real ones. Each lab is a node of its own,
so that tests share the cluster and nothing else.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from liken_audio.api import NODE_LABEL, SINKS, SOURCES, Json, NotFound
from liken_audio.controllers.events import EventRecorder
from liken_audio.controllers.orphans import OrphanReporter
from liken_audio.controllers.orphans import Partners as OrphanPartners
from liken_audio.controllers.reconciler import Partners, Reconciler
from liken_audio.graph.device_graph import DeviceGraph
from liken_audio.graph.model import Card, CardsSnapshot, Node, PipeWireSnapshot, Source
from liken_audio.kubernetes.client import KubernetesClient
from liken_audio.kubernetes.informer import Informer
from liken_audio.resources.v1alpha1 import node_label
from tests.builders import card, node, pcm
from tests.fakes import FakeHardware
from tests.harness.cluster import Cluster

DEADLINE = 45.0
QUIET = 1.0
"""How long to watch that nothing more comes: four times what the reconciler waits at most."""


@dataclass
class Lab:
    """One node's reconciler on the cluster."""

    name: str
    cluster: Cluster
    graph: DeviceGraph
    hardware: FakeHardware
    reconciler: Reconciler
    client: KubernetesClient

    @property
    def analog(self) -> str:
        """Name of the analog output."""
        return f"{self.name}-pci-0000-00-1f-3-alc257-analog"

    @property
    def hdmi(self) -> str:
        """Name of the HDMI output."""
        return f"{self.name}-pci-0000-00-1f-3-hdmi-0"

    async def kubectl(self, *arguments: str, body: Json | None = None) -> str:
        """What a real kubectl prints."""
        text = None if body is None else json.dumps(body)
        return await asyncio.to_thread(self.cluster.kubectl, *arguments, body=text)

    async def sink(self, name: str = "") -> Json:
        """The sink as stored; the analog one unless named."""
        return await self.client.get(SINKS, name or self.analog)

    async def eventually(self, is_so: Callable[[Json], bool], name: str = "") -> Json:
        """The sink as soon as it is as wanted."""
        try:
            async with asyncio.timeout(DEADLINE):
                while True:
                    found = await self._look(name or self.analog)
                    if found is not None and "status" in found and is_so(found):
                        return found
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(f"not within {DEADLINE} s: {found}") from None

    async def _look(self, name: str) -> Json | None:
        try:
            return await self.sink(name)
        except NotFound:
            return None

    async def settled(self) -> Json:
        """The sink when it is there and nothing more is written."""
        await self.eventually(lambda sink: bool(sink.get("status")))
        await asyncio.sleep(QUIET)
        return await self.sink()

    def sounds(self, *nodes: Node) -> None:
        """Have PipeWire show these nodes."""
        self.graph.replace(Source.PIPEWIRE, PipeWireSnapshot(nodes))

    def playing(self, name: str = "", **changes: Any) -> Node:
        """A running node at full volume, of the analog output unless named."""
        fields: dict[str, Any] = {"state": "running", "volumes": (1.0, 1.0)}
        return node(name or self.analog, **(fields | changes))

    def manifest(self, name: str = "", **spec: Any) -> Json:
        """What a person would apply."""
        return {
            "apiVersion": "audio.liken.sh/v1alpha1",
            "kind": "Sink",
            "metadata": {"name": name or self.analog},
            "spec": spec,
        }


@asynccontextmanager
async def lab(
    cluster: Cluster, name: str, *cards: Card, hardware: type[FakeHardware] = FakeHardware
) -> AsyncIterator[Lab]:
    """Run a node `name` with one analog output that plays, or with `cards`."""
    graph = DeviceGraph([Source.VIRTUAL, Source.PIPEWIRE])
    async with KubernetesClient.from_kubeconfig(cluster.kubeconfig) as client:
        label = f"{NODE_LABEL}={node_label(name)}"
        sinks = Informer(client, SINKS, label_selector=label)
        sources = Informer(client, SOURCES, label_selector=label)
        events = EventRecorder(client, name, lambda: datetime.now(UTC))
        sound = hardware(graph)
        partners = Partners(
            client=client,
            sinks=sinks,
            sources=sources,
            audio=sound,
            mixer=sound,
            events=events,
        )
        reconciler = Reconciler(graph, name, partners, lambda: datetime.now(UTC))
        orphans = {
            kind: Informer(client, kind, label_selector=f"!{NODE_LABEL}")
            for kind in (SINKS, SOURCES)
        }
        orphan_partners = OrphanPartners(
            client=client, caches=orphans, events=events, wall=lambda: datetime.now(UTC)
        )
        made = Lab(name, cluster, graph, sound, reconciler, client)
        graph.replace(Source.VIRTUAL, CardsSnapshot(cards or (card(pcm()),)))
        made.sounds(made.playing())
        async with asyncio.TaskGroup() as tasks:
            reporter = OrphanReporter(graph, name, orphan_partners)
            informers = [one.run() for one in (sinks, sources, *orphans.values())]
            loops = [*informers, events.run(), reconciler.run(), reporter.run()]
            running = [tasks.create_task(one) for one in loops]
            try:
                yield made
            finally:
                for task in running:
                    task.cancel()


def condition(sink: Json, kind: str) -> tuple[str, str]:
    """Status and reason of a condition, empty when there is none."""
    for one in sink.get("status", {}).get("conditions", ()):
        if one["type"] == kind:
            return one["status"], one["reason"]
    return "", ""


def is_applied(**observed: Any) -> Callable[[Json], bool]:
    """Whether status shows these values, and that they hold."""

    def check(sink: Json) -> bool:
        shown = sink.get("status", {}).get("observed", {})
        holds = condition(sink, "Applied")[0] == "True"
        return holds and all(shown.get(key) == value for key, value in observed.items())

    return check
