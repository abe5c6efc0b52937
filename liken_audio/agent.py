"""The node agent: builds every part, runs the loops in one TaskGroup, ends in order.

Nothing is decided here. A partner that is away (PipeWire, the API server, claim-sockets) is the
business of the loop that talks to it; a loop that fails for any other reason, or a kubelet socket
that can't be served, ends the process with its trace, and the kubelet starts it again.

At the end the kubelet's sockets go first, with the calls under way finished, then the loops. The
slices, the nodes and the claims' sockets stay: the next agent takes them over.
"""

import asyncio
import errno
import signal
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import structlog

from liken_audio.alsa.watcher import AlsaCards, Roots
from liken_audio.api import (
    DRIVER,
    NODE_LABEL,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    SINKS,
    SOURCES,
)
from liken_audio.bluez.watcher import BlueZWatcher
from liken_audio.claim_store import ClaimStore, read_boot_id
from liken_audio.controllers import preparer, reconciler, speakers
from liken_audio.controllers.claim_reporter import ClaimReporter
from liken_audio.controllers.claim_watcher import ClaimWatcher
from liken_audio.controllers.events import EventRecorder
from liken_audio.controllers.foreign_names import ForeignNames
from liken_audio.controllers.node_keeper import NodeKeeper
from liken_audio.controllers.orphans import OrphanReporter
from liken_audio.controllers.orphans import Partners as OrphanPartners
from liken_audio.controllers.preparer import Preparer
from liken_audio.controllers.publisher import Publisher
from liken_audio.controllers.reconciler import Reconciler
from liken_audio.controllers.speakers import Speakers
from liken_audio.dra.claims import ClaimRef
from liken_audio.graph.device_graph import DeviceGraph
from liken_audio.graph.model import Card, Control, Source
from liken_audio.kubelet import plugin
from liken_audio.kubelet.server import KubeletServer
from liken_audio.kubelet.socket_paths import SocketPathError, socket_paths
from liken_audio.kubernetes.client import KubernetesClient
from liken_audio.kubernetes.credentials import CredentialsError
from liken_audio.kubernetes.informer import Informer
from liken_audio.parts import Parts
from liken_audio.pipewire.session_manager import RestartFile
from liken_audio.pipewire.watcher import PipeWireWatcher
from liken_audio.pipewire.writer import PipeWireWriter
from liken_audio.probes import Probes
from liken_audio.resources.v1alpha1 import node_label
from liken_audio.settings import Settings
from liken_audio.sockets.client import SocketClient
from liken_audio.virtual.cards import VirtualCardsError
from liken_audio.virtual.watcher import VirtualCards

_log = structlog.get_logger(__name__)

_SWITCH_SECONDS = 0.0005
"""How long a thread that reads files may keep the loop waiting; Python's own 5 ms is half a Prepare."""

STARTUP_ERRORS = (CredentialsError, SocketPathError, VirtualCardsError, OSError)
"""What a person has to put right before an agent can start."""


class _Mixers:
    """Writes a control where its card comes from."""

    def __init__(self, sources: Sequence[AlsaCards | VirtualCards]) -> None:
        self._sources = sources

    async def write_control(self, card: Card, control: Control, values: Sequence[int]) -> None:
        for source in self._sources:
            if source.has(card):
                await source.write_control(card, control, values)
                return
        raise OSError(errno.ENODEV, f"card {card.id} is gone: {control.name!r} isn't written")


def main(settings: Settings) -> int:
    """Run the agent until SIGTERM or SIGINT; returns 0 then, 1 when it could not start."""
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        asyncio.run(run(settings))
    except STARTUP_ERRORS as error:
        _log.error("the agent can't start", reason=str(error))
        return 1
    return 0


async def run(settings: Settings) -> None:
    """Start everything, wait for a signal, end in order. Raises what a loop failed with."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    client = (
        KubernetesClient.from_kubeconfig(settings.kubeconfig)
        if settings.kubeconfig
        else KubernetesClient.in_cluster()
    )
    async with client:
        parts = build(settings, client)
        probes = Probes(
            settings.http_host,
            int(settings.http_port),
            missing=parts.missing,
            metrics=parts.metrics,
        )
        if int(settings.http_port):
            await probes.start()
        try:
            await _serve(parts, stop)
        finally:
            await probes.close()


def build(settings: Settings, client: KubernetesClient) -> Parts:
    """Put the parts together. Raises one of `STARTUP_ERRORS`."""
    alsa_source = [Source.ALSA] if settings.has_alsa else []
    virtual_source = [Source.VIRTUAL] if settings.virtual else []
    bluez_source = [] if settings.bluetooth_bus == "none" else [Source.BLUEZ]
    own_sources = [*alsa_source, *virtual_source, *bluez_source]
    graph = DeviceGraph([*own_sources, Source.PIPEWIRE, Source.CLAIMS])
    foreign = ForeignNames(graph, client, settings.node)
    roots = Roots(
        Path(settings.sys), Path(settings.dev), Path(settings.plugin_dir) / "usb-cards.json"
    )
    alsa = AlsaCards(graph, roots, foreign.has_live) if settings.has_alsa else None
    virtual = VirtualCards(graph, settings.virtual) if settings.virtual else None
    if virtual:
        virtual.load()
    writer = PipeWireWriter(settings.pipewire_remote)
    own = f"spec.driver={DRIVER},spec.nodeName={settings.node}"
    slices = Informer(client, RESOURCE_SLICES, field_selector=own)
    label = f"{NODE_LABEL}={node_label(settings.node)}"
    sinks = Informer(client, SINKS, label_selector=label)
    sources = Informer(client, SOURCES, label_selector=label)
    events = EventRecorder(client, settings.node, _now)
    bluez = BlueZWatcher(graph, settings.bluetooth_bus) if bluez_source else None
    keeper_of_speakers: Speakers | None = None
    if bluez is not None:
        partners = speakers.Partners(
            audio=writer,
            caller=bluez,
            session_manager=RestartFile(settings.wireplumber_restart),
            sinks=sinks,
            events=events,
        )
        keeper_of_speakers = Speakers(graph, settings.node, partners)
    keeper_of_objects = Reconciler(
        graph,
        settings.node,
        reconciler.Partners(
            client=client,
            sinks=sinks,
            sources=sources,
            audio=writer,
            mixer=_Mixers([source for source in (alsa, virtual) if source]),
            codecs=keeper_of_speakers,
            events=events,
        ),
        _now,
    )
    orphans = {
        kind: Informer(client, kind, label_selector=f"!{NODE_LABEL}") for kind in (SINKS, SOURCES)
    }
    publisher = Publisher(graph, client, slices, settings.node, keeper_of_objects.is_shared)
    for cache in (sinks, sources):
        cache.subscribe(lambda _key: publisher.wake())
    keeper_of_nodes = NodeKeeper(graph, settings.node, writer, alsa)
    store = ClaimStore(Path(settings.plugin_dir), Path(settings.cdi_dir))
    handler = Preparer(
        graph,
        preparer.Place(node=settings.node, boot_id=read_boot_id(), claims_dir=settings.claims_dir),
        preparer.Partners(
            client=client,
            store=store,
            sockets=SocketClient(Path(settings.claims_dir), Path(settings.control)),
            speakers=keeper_of_speakers,
            hardware=keeper_of_objects,
            nodes=keeper_of_nodes,
        ),
    )
    return Parts(
        graph=graph,
        client=client,
        slices=slices,
        sinks=sinks,
        sources=sources,
        alsa=alsa,
        virtual=virtual,
        bluez=bluez,
        speakers=keeper_of_speakers,
        pipewire=PipeWireWatcher(graph, settings.pipewire_remote),
        node_keeper=keeper_of_nodes,
        events=events,
        publisher=publisher,
        reconciler=keeper_of_objects,
        orphans=tuple(orphans.values()),
        orphan_reporter=OrphanReporter(
            graph,
            settings.node,
            OrphanPartners(client=client, caches=orphans, events=events, wall=_now),
        ),
        preparer=handler,
        claim_watcher=_claim_watcher(graph, client, store, handler),
        claim_reporter=ClaimReporter(graph, settings.node, client, store, _now),
        kubelet=_kubelet_server(settings, handler),
    )


def _claim_watcher(
    graph: DeviceGraph, client: KubernetesClient, store: ClaimStore, handler: Preparer
) -> ClaimWatcher:
    def watch(ref: ClaimRef) -> Informer:
        named = f"metadata.namespace={ref.namespace},metadata.name={ref.name}"
        return Informer(client, RESOURCE_CLAIMS, field_selector=named)

    return ClaimWatcher(graph, store, client, watch, handler.observe)


def _kubelet_server(settings: Settings, handler: Preparer) -> KubeletServer:
    paths = socket_paths(
        DRIVER, Path(settings.registry_dir), Path(settings.plugin_dir), settings.pod_uid
    )
    return KubeletServer(DRIVER, paths, plugin.services(handler), plugin.SUPPORTED_VERSIONS)


async def _serve(parts: Parts, stop: asyncio.Event) -> None:
    async with asyncio.TaskGroup() as tasks:
        loops = [tasks.create_task(loop) for loop in parts.loops()]
        server = tasks.create_task(parts.kubelet.run())
        _log.info("agent started")
        await stop.wait()
        _log.info("agent ends: calls under way are finished first")
        server.cancel()
        await asyncio.wait([server])
        for loop in loops:
            loop.cancel()


def _now() -> datetime:
    return datetime.now(UTC)  # noqa: TID251 the edge where time is taken
