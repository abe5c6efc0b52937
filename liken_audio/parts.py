"""Everything that runs in one agent, what keeps it from being ready, and what /metrics shows.

The parts keep their counters as plain attributes; this is the one place that knows them all.
"""

import resource
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from liken_audio.alsa.watcher import AlsaCards
from liken_audio.bluez.watcher import BlueZWatcher
from liken_audio.controllers.claim_reporter import ClaimReporter
from liken_audio.controllers.claim_watcher import ClaimWatcher
from liken_audio.controllers.events import EventRecorder
from liken_audio.controllers.node_keeper import NodeKeeper
from liken_audio.controllers.orphans import OrphanReporter
from liken_audio.controllers.preparer import Preparer
from liken_audio.controllers.publisher import Publisher
from liken_audio.controllers.reconciler import Reconciler
from liken_audio.controllers.speakers import Speakers
from liken_audio.graph.device_graph import DeviceGraph
from liken_audio.graph.model import Source
from liken_audio.kubelet.server import KubeletServer
from liken_audio.kubernetes.client import KubernetesClient
from liken_audio.kubernetes.informer import Informer, Trouble
from liken_audio.pipewire.watcher import PipeWireWatcher
from liken_audio.probes import Metric
from liken_audio.virtual.watcher import VirtualCards

_TROUBLES = {
    Trouble.STARTING: "isn't read yet",
    Trouble.NOT_SERVED: (
        "is not served; install the custom resource definitions (manifests/crds),"
        " and for resourceslices Kubernetes 1.34 or newer"
    ),
    Trouble.FAILING: "can't be read now; look at the agent's log",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """All parts of one agent, built and not yet running."""

    graph: DeviceGraph
    client: KubernetesClient
    slices: Informer
    sinks: Informer
    sources: Informer
    alsa: AlsaCards | None
    virtual: VirtualCards | None
    bluez: BlueZWatcher | None
    speakers: Speakers | None
    pipewire: PipeWireWatcher
    node_keeper: NodeKeeper
    events: EventRecorder
    publisher: Publisher
    reconciler: Reconciler
    orphans: Sequence[Informer]
    orphan_reporter: OrphanReporter
    preparer: Preparer
    claim_watcher: ClaimWatcher
    claim_reporter: ClaimReporter
    kubelet: KubeletServer

    def loops(self) -> Sequence[Coroutine[Any, Any, None]]:
        """Return what runs until the end, the kubelet's server apart."""
        optional = (self.alsa, self.virtual, self.bluez, self.speakers)
        followed = [each.run() for each in optional if each]
        return [
            *followed,
            self.pipewire.run(),
            self.slices.run(),
            self.sinks.run(),
            self.sources.run(),
            self.node_keeper.run(),
            self.events.run(),
            self.publisher.run(),
            self.reconciler.run(),
            *(informer.run() for informer in self.orphans),
            self.orphan_reporter.run(),
            self.preparer.run(),
            self.claim_watcher.run(),
            self.claim_reporter.run(),
        ]

    def missing(self) -> list[str]:
        """Return what keeps this agent from being ready, a line each."""
        lines = []
        if Source.PIPEWIRE in self.graph.view().lost:
            lines.append("pipewire: not connected; look at its container's log")
        for informer in (self.slices, self.sinks, self.sources):
            if informer.trouble is not None:
                resource = f"{informer.resource.plural}.{informer.resource.group}"
                lines.append(f"api server: {resource} {_TROUBLES[informer.trouble]}")
        if not self.publisher.is_published:
            lines.append("api server: the ResourceSlice isn't published yet")
        if not self.kubelet.status.is_registered:
            reason = self.kubelet.status.error or "it hasn't asked yet"
            lines.append(f"kubelet: not registered: {reason}")
        return lines

    def metrics(self) -> list[Metric]:
        """Return all samples of /metrics."""
        view = self.graph.view()
        usage = resource.getrusage(resource.RUSAGE_SELF)
        writes = "liken_audio_api_writes_total", "Writes that the API server took, by loop."
        errors = "liken_audio_errors_total", "Failures, by loop; each is also a line of the log."
        claims = "liken_audio_claims_total", "Calls of the kubelet that ended well, by kind."
        return [
            Metric(*writes, self.publisher.writes, {"loop": "publisher"}),
            Metric(*writes, self.reconciler.writes, {"loop": "reconciler"}),
            Metric(*writes, self.orphan_reporter.writes, {"loop": "orphans"}),
            Metric(*writes, self.events.writes, {"loop": "events"}),
            Metric(*writes, self.claim_reporter.writes, {"loop": "claim-reporter"}),
            Metric(*errors, self.publisher.errors, {"loop": "publisher"}),
            Metric(*errors, self.reconciler.errors, {"loop": "reconciler"}),
            Metric(*errors, self.orphan_reporter.errors, {"loop": "orphans"}),
            Metric(*errors, self.events.errors, {"loop": "events"}),
            Metric(*errors, self.preparer.errors, {"loop": "preparer"}),
            Metric(*errors, self.claim_reporter.errors, {"loop": "claim-reporter"}),
            Metric(*errors, self.node_keeper.errors, {"loop": "node-keeper"}),
            Metric(*claims, self.preparer.prepared, {"call": "prepare"}),
            Metric(*claims, self.preparer.repeated, {"call": "prepare-again"}),
            Metric(*claims, self.preparer.unprepared, {"call": "unprepare"}),
            _metric("hardware_writes_total", "To hardware.", self.reconciler.hardware_writes),
            _metric("api_requests_total", "Requests to the API server.", self.client.requests),
            _metric("api_failures_total", "Requests that failed.", self.client.failures),
            _metric("graph_replacements_total", "Snapshots put in.", self.graph.replacements),
            _metric("graph_revision", "Changes of the graph.", self.graph.revision),
            _metric("pipewire_losses_total", "Times PipeWire was lost.", self.pipewire.losses),
            _metric("pipewire_read_bytes_total", "Read from pw-dump.", self.pipewire.bytes_read),
            _metric("pipewire_parse_errors_total", "Bad output.", self.pipewire.parse_errors),
            _metric("pipewire_connected", "1: yes.", Source.PIPEWIRE not in view.lost),
            _metric("bluez_connected", "1: yes.", bool(self.bluez and self.bluez.is_served)),
            _metric("kubelet_registered", "1: yes.", self.kubelet.status.is_registered),
            _metric("cards", "Sound cards, absent ones too.", len(view.cards)),
            _metric("card_plugs_total", "Cards that came.", self.alsa.plugs if self.alsa else 0),
            _metric("card_unplugs_total", "And went.", self.alsa.unplugs if self.alsa else 0),
            _metric("card_looks_total", "Looks at /sys.", self.alsa.looks if self.alsa else 0),
            _metric("nodes", "PipeWire nodes.", len(view.nodes)),
            _metric("claims", "Prepared claims.", len(view.holds)),
            _metric("claims_watched", "For another pod's coming.", self.claim_watcher.watched),
            _metric("cpu_seconds_total", "CPU time.", usage.ru_utime + usage.ru_stime),
        ]


def _metric(name: str, help_text: str, value: float) -> Metric:
    return Metric(f"liken_audio_{name}", help_text, float(value))
