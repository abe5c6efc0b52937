"""Two hundred nodes on one API server: what each agent's part that talks to it costs and is told.

In one process, with a client of its own for each node: the publisher, the reconciler, the reporter
of orphans and their informers are the real ones; the sound is a graph with eight endpoints.
"""

import asyncio
import contextlib
import logging
import resource
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import structlog

from liken_audio.api import DRIVER, NODE_LABEL, RESOURCE_SLICES, SINKS, SOURCES
from liken_audio.controllers.events import EventRecorder
from liken_audio.controllers.orphans import OrphanReporter
from liken_audio.controllers.orphans import Partners as OrphanPartners
from liken_audio.controllers.publisher import Publisher
from liken_audio.controllers.reconciler import Partners, Reconciler
from liken_audio.graph.device_graph import DeviceGraph
from liken_audio.graph.endpoints import endpoints
from liken_audio.graph.model import CardsSnapshot, NodeId, NodeSerial, PipeWireSnapshot, Source
from liken_audio.kubernetes import informer
from liken_audio.kubernetes.client import KubernetesClient
from liken_audio.kubernetes.informer import Informer
from tests.bench.api import Api, Json
from tests.bench.figures import Figure
from tests.builders import card, node, pcm
from tests.fakes import FakeHardware

NODES = 200
OUTPUTS = 8
CHANGES = 10
IDLE_SECONDS = 60
WATCH_SHARE = 10
"""Watches are asked to last a tenth of their time, so that a minute shows ten minutes' renewals."""
START_SECONDS = 600
SINK_PATH = "/apis/audio.liken.sh/v1alpha1/sinks"


@dataclass
class Agent:
    """The part of one node's agent that talks to the API server."""

    name: str
    graph: DeviceGraph
    client: KubernetesClient
    informers: Sequence[Informer]
    publisher: Publisher
    reconciler: Reconciler
    orphans: OrphanReporter
    events: EventRecorder
    told: int = 0
    """Events of objects that were delivered and said something new."""

    def heard(self, _key: str) -> None:
        self.told += 1

    @property
    def sink(self) -> str:
        return endpoints(self.graph.view(), self.name)[0].name

    @property
    def is_started(self) -> bool:
        return self.publisher.is_published and self.reconciler.writes >= 2 * OUTPUTS

    def toggle_mute(self) -> None:
        first, *others = self.graph.view().nodes
        changed = replace(first, is_muted=not first.is_muted)
        self.graph.replace(Source.PIPEWIRE, PipeWireSnapshot((changed, *others)))


def fleet(api: Api, kubeconfig: Path) -> Sequence[Figure]:
    """Start all of them, leave them alone, then change one node's sound and another's Sink."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 16_384), hard))
    for number in range(NODES):
        body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"fleet-{number}"}}
        api.call("POST", "/api/v1/nodes", body)
    seconds = informer.WATCH_SECONDS
    informer.WATCH_SECONDS = (seconds[0] // WATCH_SHARE, seconds[1] // WATCH_SHARE)
    try:
        return asyncio.run(_measure(api, kubeconfig))
    finally:
        informer.WATCH_SECONDS = seconds


async def _measure(api: Api, kubeconfig: Path) -> Sequence[Figure]:
    began = time.perf_counter()
    async with contextlib.AsyncExitStack() as stack:
        agents = [
            await stack.enter_async_context(_agent(f"fleet-{number}", kubeconfig))
            for number in range(NODES)
        ]
        await _until(lambda: all(agent.is_started for agent in agents), START_SECONDS)
        started = time.perf_counter() - began
        await _quiet(agents)
        figures = [Figure(f"{NODES} nodes x {OUTPUTS} endpoints: all started", started, None, "s")]
        return [
            *figures,
            *await _idle(agents),
            *await _elsewhere(agents, api),
            *await _orphan(agents, api),
        ]


async def _idle(agents: Sequence[Agent]) -> Sequence[Figure]:
    requests, attempts = _requests(agents), _attempts(agents)
    await asyncio.sleep(IDLE_SECONDS)
    watches = _attempts(agents) - attempts
    others = _requests(agents) - requests - watches
    minutes = IDLE_SECONDS / 60
    each = (others + watches / WATCH_SHARE) / NODES / minutes
    return [
        Figure("fleet, idle: API requests a node and minute", each, 1, ""),
        Figure("fleet, idle: of these other than watches renewed", others, 0, ""),
    ]


async def _elsewhere(agents: Sequence[Agent], api: Api) -> Sequence[Figure]:
    heard, edited, *others = agents
    told = sum(agent.told for agent in others)
    writes = edited.reconciler.writes, edited.reconciler.hardware_writes
    for number in range(CHANGES):
        heard.toggle_mute()
        await asyncio.to_thread(_patch, api, edited.sink, {"volume": 20 + number})
        await asyncio.sleep(1)
    await _quiet(agents)
    statuses = edited.reconciler.writes - writes[0]
    return [
        Figure(
            "fleet: events told to an agent of 20 changes on other nodes",
            (sum(agent.told for agent in others) - told) / len(others),
            0,
            "",
        ),
        Figure("a spec edit: writes to status", statuses / CHANGES, 1, ""),
        Figure(
            "a spec edit: writes to hardware",
            (edited.reconciler.hardware_writes - writes[1]) / CHANGES,
            1,
            "",
        ),
    ]


async def _orphan(agents: Sequence[Agent], api: Api) -> Sequence[Figure]:
    told = sum(agent.told for agent in agents)
    body = {"apiVersion": "audio.liken.sh/v1alpha1", "kind": "Sink", "metadata": {"name": "nobody"}}
    began = time.perf_counter()
    await asyncio.to_thread(api.call, "POST", SINK_PATH, body)
    await _until(lambda: any(agent.orphans.writes for agent in agents), 90)
    took = time.perf_counter() - began
    await asyncio.sleep(5)
    told = sum(agent.told for agent in agents) - told
    return [
        Figure("fleet: a hand-made Sink for nothing is told so after", took, 75, "s"),
        Figure("… by writes of", sum(agent.orphans.writes for agent in agents), 3, ""),
        Figure("… events told to each agent", told / NODES, 4, ""),
    ]


@contextlib.asynccontextmanager
async def _agent(name: str, kubeconfig: Path) -> AsyncIterator[Agent]:
    async with KubernetesClient.from_kubeconfig(kubeconfig) as client:
        agent = _build(name, client)
        async with asyncio.TaskGroup() as tasks:
            loops = [
                *(each.run() for each in agent.informers),
                agent.publisher.run(),
                agent.reconciler.run(),
                agent.orphans.run(),
                agent.events.run(),
            ]
            running = [tasks.create_task(loop) for loop in loops]
            try:
                yield agent
            finally:
                for task in running:
                    task.cancel()


def _build(name: str, client: KubernetesClient) -> Agent:
    graph = DeviceGraph([Source.VIRTUAL, Source.PIPEWIRE])
    its_card = card(*(pcm(device=device, id=f"Output {device}") for device in range(OUTPUTS)))
    graph.replace(Source.VIRTUAL, CardsSnapshot((its_card,)))
    names = [each.name for each in endpoints(graph.view(), name)]
    nodes = [
        node(
            each,
            id=NodeId(40 + place),
            serial=NodeSerial(40 + place),
            state="running",
            volumes=(1.0, 1.0),
        )
        for place, each in enumerate(names)
    ]
    graph.replace(Source.PIPEWIRE, PipeWireSnapshot(tuple(nodes)))
    sound = FakeHardware(graph)
    slices = Informer(
        client, RESOURCE_SLICES, field_selector=f"spec.driver={DRIVER},spec.nodeName={name}"
    )
    sinks, sources = (
        Informer(client, kind, label_selector=f"{NODE_LABEL}={name}") for kind in (SINKS, SOURCES)
    )
    strays = {
        kind: Informer(client, kind, label_selector=f"!{NODE_LABEL}") for kind in (SINKS, SOURCES)
    }
    events = EventRecorder(client, name, _now)
    partners = Partners(
        client=client, sinks=sinks, sources=sources, audio=sound, mixer=sound, events=events
    )
    reconciler = Reconciler(graph, name, partners, _now)
    made = Agent(
        name=name,
        graph=graph,
        client=client,
        informers=(slices, sinks, sources, *strays.values()),
        publisher=Publisher(graph, client, slices, name, reconciler.is_shared),
        reconciler=reconciler,
        orphans=OrphanReporter(
            graph, name, OrphanPartners(client=client, caches=strays, events=events, wall=_now)
        ),
        events=events,
    )
    for each in made.informers:
        each.subscribe(made.heard)
    return made


def _patch(api: Api, sink: str, spec: Json) -> None:
    api.call("PATCH", f"{SINK_PATH}/{sink}", {"spec": spec})


def _requests(agents: Sequence[Agent]) -> int:
    return sum(agent.client.requests for agent in agents)


def _attempts(agents: Sequence[Agent]) -> int:
    return sum(each.attempts for agent in agents for each in agent.informers)


async def _until(is_so: Callable[[], bool], seconds: float) -> None:
    async with asyncio.timeout(seconds):
        while not is_so():
            await asyncio.sleep(0.1)


async def _quiet(agents: Sequence[Agent]) -> None:
    """Wait until nothing has been written or told for five seconds."""
    last, since = -1, time.monotonic()
    async with asyncio.timeout(300):
        while time.monotonic() - since < 5:
            done = sum(
                agent.told + agent.reconciler.writes + agent.events.writes for agent in agents
            )
            if done != last:
                last, since = done, time.monotonic()
            await asyncio.sleep(0.2)


def _now() -> datetime:
    return datetime.now(UTC)
