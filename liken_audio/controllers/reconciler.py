"""Sinks and Sources: hardware to declared, status to the API server, each at its own pace.

One pass (no IO) judges every endpoint whose situation has changed, and queues what follows:

- Changes of the hardware, by key, done by workers of their own: they go on while the API server
  is away, since specs come from the cache.
- The object: labels and status by server-side apply with our field manager, forced. We own no
  field of spec. What other managers added to status stays; what they changed of ours is put back.

A pass runs at once on a change of the graph or of an object, and then not again within
`PASS_GAP_SECONDS`. How often a status is written is `pacing`'s business. A hardware write just
done holds the status back for up to `CONFIRM_HOLD_SECONDS`, so that one edit is one status write.
"""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime

import structlog

from liken_audio.api import SINKS, SOURCES, ApiError, Json, Rejected
from liken_audio.controllers.object_writer import EventSink, ObjectPartners, ObjectWriter
from liken_audio.controllers.ports import (
    AudioWriter,
    CodecSwitcher,
    ControlWriter,
    ResourceClient,
    WriteThroughCache,
)
from liken_audio.controllers.tracked import GONE_SECONDS, Key, Tracked, is_labelled, status_of
from liken_audio.controllers.workers import Workers
from liken_audio.controllers.workqueue import WorkQueue
from liken_audio.graph.device_graph import DeviceGraph
from liken_audio.graph.endpoints import endpoints
from liken_audio.graph.model import (
    ClaimHold,
    DeviceName,
    Endpoint,
    Fault,
    GraphView,
    Percent,
    Source,
)
from liken_audio.graph.presence import Presence
from liken_audio.resources import v1alpha1
from liken_audio.resources.drift import without_times
from liken_audio.resources.reconcile import reconcile, still_wanted
from liken_audio.resources.situation import (
    Change,
    Memory,
    SetControl,
    SetMute,
    SetVolume,
    Situation,
    SwitchCodec,
    write_failed,
    write_succeeded,
)

PASS_GAP_SECONDS = 0.02
CONFIRM_HOLD_SECONDS = 0.15
UNSYNCED_POLL_SECONDS = 0.5
SETTLE_SECONDS = 3.0
"""How long `settle` waits; a write of the hardware itself has a deadline."""

_WORKERS = 4
"""Hardware writes, and API calls, at the same time."""
_CARD_SOURCES = frozenset({Source.ALSA, Source.BLUEZ, Source.VIRTUAL})
_NODE_FAULTS = frozenset({Fault.NO_NODE, Fault.GRAPH_LOST})

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Partners:
    """Whom the reconciler talks to; the caches hold the objects with our node's label."""

    client: ResourceClient
    sinks: WriteThroughCache
    sources: WriteThroughCache
    audio: AudioWriter
    mixer: ControlWriter
    events: EventSink
    codecs: CodecSwitcher | None = None
    """None: there is no Bluetooth."""


class Reconciler:
    """Keeps the Sinks and Sources of one node; `wall` gives the time of conditions and Events."""

    def __init__(
        self,
        graph: DeviceGraph,
        node_name: str,
        partners: Partners,
        wall: Callable[[], datetime],
    ) -> None:
        self._graph = graph
        self._node_name = node_name
        self._label = v1alpha1.node_label(node_name)
        self._audio, self._mixer = partners.audio, partners.mixer
        self._codecs = partners.codecs
        self._caches = {SINKS: partners.sinks, SOURCES: partners.sources}
        self._wall = wall
        self._writer = ObjectWriter(
            node_name,
            ObjectPartners(
                client=partners.client, caches=self._caches, events=partners.events, wall=wall
            ),
        )
        self._wake = asyncio.Event()
        self._presence = Presence()
        self._tracked: dict[Key, Tracked] = {}
        self._hardware: Workers[Key] = Workers(
            WorkQueue(first_delay=1.0, max_delay=60.0),
            self._write_hardware,
            self._hardware_failed,
            (OSError, TimeoutError),
        )
        self._objects: Workers[Key] = Workers(
            WorkQueue(first_delay=0.5, max_delay=60.0),
            self._write_object,
            self._object_failed,
            (ApiError,),
        )
        self.hardware_writes = 0
        self.errors = 0

    @property
    def writes(self) -> int:
        """Writes that the API server took."""
        return self._writer.writes

    def is_shared(self, name: DeviceName) -> bool | None:
        """Whether the device's Sink or Source lets several claims have it; None: not known yet."""
        for cache in self._caches.values():
            stored = cache.objects().get(name)
            if stored is not None:
                spec, _ = v1alpha1.decode_spec(stored)
                return spec.sharing is v1alpha1.Sharing.SHARED
        return False if all(cache.is_synced for cache in self._caches.values()) else None

    async def settle(self, names: Collection[DeviceName]) -> None:
        """Return when what the graph asks of the devices' hardware now is written or has failed."""
        self._pass(asyncio.get_running_loop().time())
        self._wake.set()  # for what this pass would look at later
        async with asyncio.timeout(SETTLE_SECONDS):
            await self._hardware.finish([key for key in self._tracked if key[1] in names])

    async def run(self) -> None:
        """Reconcile for ever."""
        self._graph.subscribe(self._wake.set)
        for cache in self._caches.values():
            cache.subscribe(self._object_changed)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._pass_for_ever())
            for _ in range(_WORKERS):
                tasks.create_task(self._hardware.run())
                tasks.create_task(self._objects.run())

    def _object_changed(self, _key: str) -> None:
        self._wake.set()

    async def _pass_for_ever(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            self._wake.clear()
            again_at = self._pass(clock())
            await asyncio.sleep(PASS_GAP_SECONDS)
            try:
                async with asyncio.timeout_at(again_at):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def _pass(self, now: float) -> float | None:
        """Judge everything that changed; return when to look again though nothing does."""
        view = self._graph.view()
        found = endpoints(view, self._node_name)
        settled = self._presence.settle({one.name: _node_fault(one) for one in found}, now)
        deadlines = [settled.next_deadline]
        present = set()
        for endpoint in found:
            key = (v1alpha1.kind_of(endpoint), endpoint.name)
            present.add(key)
            seen = _Seen(endpoint, settled.faults[endpoint.name], _holds(view, endpoint.name))
            deadlines.append(self._look_at(key, seen, now))
        if not view.awaited & _CARD_SOURCES:
            deadlines += [self._look_at_gone(key, now) for key in self._left_over(present)]
        if not all(cache.is_synced for cache in self._caches.values()):
            deadlines.append(now + UNSYNCED_POLL_SECONDS)
        return min((when for when in deadlines if when is not None), default=None)

    def _look_at(self, key: Key, seen: "_Seen", now: float) -> float | None:
        tracked = self._tracked.setdefault(key, Tracked())
        stored = self._stored(key)
        inputs = (seen, _version(stored))
        is_due = tracked.recheck_at is not None and tracked.recheck_at <= now
        if is_due or tracked.inputs != inputs:
            tracked.inputs, tracked.gone_since = inputs, None
            tracked.endpoint, tracked.holds = seen.endpoint, seen.holds
            self._judge(key, tracked, seen, now)
        return tracked.recheck_at

    def _judge(self, key: Key, tracked: Tracked, seen: "_Seen", now: float) -> None:
        stored = self._stored(key)
        spec, rejected = v1alpha1.decode_spec(stored or {})
        situation = Situation(
            endpoint=seen.endpoint,
            fault=seen.fault,
            is_settling=seen.is_settling,
            spec=spec,
            rejected=rejected,
            is_claimed=bool(seen.holds),
            claim_limit=_claim_limit(seen),
            claim_codec=_claim_codec(seen),
            reported=v1alpha1.reported_volume(stored or {}),
        )
        outcome = reconcile(situation, tracked.memory, now)
        if not self._caches[key[0]].is_synced:
            # What is declared isn't known yet: only take note that there was no node.
            was_missing = tracked.memory.was_missing or outcome.memory.was_missing
            tracked.memory = Memory(was_missing=was_missing)
            tracked.inputs = None
            return
        tracked.memory, tracked.outcome = outcome.memory, outcome
        tracked.recheck_at = outcome.recheck_at
        tracked.is_held_back = seen.is_settling and bool(status_of(stored))
        before, tracked.situation = tracked.situation or situation, situation
        tracked.changes = still_wanted(tracked.changes, before, situation, outcome)
        if outcome.changes:
            self._hardware.add(key, now)
        self._schedule(key, tracked, now)

    def _schedule(self, key: Key, tracked: Tracked, now: float) -> None:
        """Queue the object's write for when it is due, if one is needed."""
        stored = self._stored(key)
        wanted = tracked.wanted_status(self._node_name, stored, self._wall())
        if is_labelled(stored, self._label):
            if tracked.is_held_back:
                self._objects.discard(key)
                return
            if tracked.is_stored(stored, wanted):
                tracked.pacing.settled(without_times(wanted), now)
                self._objects.discard(key)
                return
        due = tracked.pacing.due(without_times(wanted), now)
        self._objects.put_off(key, max(due, _confirmed_by(tracked.memory)))

    def _left_over(self, present: set[Key]) -> list[Key]:
        """The stored objects of ours without a device; forgets what is neither stored nor there."""
        stored = {
            (kind, DeviceName(name))
            for kind, cache in self._caches.items()
            if cache.is_synced
            for name, body in cache.objects().items()
            if is_labelled(body, self._label)
        }
        for key in self._tracked.keys() - present - stored:
            del self._tracked[key]
            self._objects.discard(key)
            self._hardware.discard(key)
        return sorted(stored - present, key=lambda key: key[1])

    def _look_at_gone(self, key: Key, now: float) -> float | None:
        tracked = self._tracked.get(key, Tracked())
        if tracked.gone_since is None:
            tracked = self._tracked[key] = Tracked(pacing=tracked.pacing, gone_since=now)
        gone_at = (tracked.gone_since or now) + GONE_SECONDS
        stored = self._stored(key)
        if stored is not None and tracked.is_to_delete(stored, now):
            self._objects.add(key, now)
            return None
        inputs = _version(stored)
        if tracked.inputs != inputs:
            tracked.inputs = inputs
            self._schedule(key, tracked, now)
        return None if v1alpha1.has_spec(stored or {}) else gone_at

    async def _write_hardware(self, key: Key) -> None:
        tracked = self._tracked.get(key)
        while tracked is not None and tracked.changes:
            name = next(iter(tracked.changes))
            change = tracked.changes.pop(name)
            try:
                await self._carry_out(change)
            except (OSError, TimeoutError) as error:
                tracked.memory = write_failed(tracked.memory, name, str(error) or repr(error))
                self._judge_again(tracked)
                raise
            self.hardware_writes += 1
            if name in tracked.memory.failures:
                tracked.memory = write_succeeded(tracked.memory, name)
                self._judge_again(tracked)

    def _judge_again(self, tracked: Tracked) -> None:
        tracked.inputs = None
        self._wake.set()

    async def _carry_out(self, change: Change) -> None:
        match change:
            case SetVolume(node=node, volume=volume):
                await self._audio.set_volume(node, volume)
            case SetMute(node=node, is_muted=is_muted):
                await self._audio.set_mute(node, is_muted=is_muted)
            case SetControl(card=card, control=control, values=values):
                await self._mixer.write_control(card, control, values)
            case SwitchCodec(address=address, codec=codec) if self._codecs:
                await self._codecs.switch_codec(address, codec)

    def _hardware_failed(self, key: Key, error: Exception) -> float:
        self.errors += 1
        _log.warning("a hardware write failed", device=key[1], error=str(error) or repr(error))
        return 0.0

    async def _write_object(self, key: Key) -> None:
        tracked = self._tracked.get(key)
        if tracked is not None:
            again_at = await self._writer.write(key, tracked)
            if again_at is not None:
                self._objects.add(key, again_at)
            # The cache knows more now, and says nothing of our own writes.
            self._wake.set()

    def _object_failed(self, key: Key, error: Exception) -> float:
        self.errors += 1
        # Away for a time is normal, and the informers say so; a refusal is somebody's mistake.
        log = _log.warning if isinstance(error, Rejected) else _log.debug
        log("an object can't be written", kind=key[0].kind, name=key[1], error=str(error))
        return (error.retry_after or 0.0) if isinstance(error, ApiError) else 0.0

    def _stored(self, key: Key) -> Json | None:
        return self._caches[key[0]].objects().get(key[1])


@dataclass(frozen=True, slots=True)
class _Seen:
    """What one pass sees of an endpoint."""

    endpoint: Endpoint
    node_fault: Fault | None
    """The endpoint's fault if it is the node's, and has lasted long enough to count."""
    holds: tuple[ClaimHold, ...]

    @property
    def is_settling(self) -> bool:
        """Whether the node is away, but not for long enough to count."""
        return self.endpoint.fault in _NODE_FAULTS and self.node_fault is None

    @property
    def fault(self) -> Fault | None:
        """The fault that counts: a card's at once, a node's after its grace."""
        return self.node_fault if self.endpoint.fault in _NODE_FAULTS else self.endpoint.fault


def _node_fault(endpoint: Endpoint) -> Fault | None:
    return endpoint.fault if endpoint.fault in _NODE_FAULTS else None


def _holds(view: GraphView, name: DeviceName) -> tuple[ClaimHold, ...]:
    """The claims that hold the device; admin access counts for nothing."""
    return tuple(hold for hold in view.holds if name in hold.devices and not hold.is_admin)


def _claim_limit(seen: "_Seen") -> Percent | None:
    limits = [
        limit
        for hold in seen.holds
        for name, limit in hold.max_volumes
        if name == seen.endpoint.name
    ]
    return min(limits, default=None)


def _claim_codec(seen: "_Seen") -> str | None:
    """The codec that the first of its claims asks for; two that differ can't share it."""
    return next(
        (codec for hold in seen.holds for name, codec in hold.codecs if name == seen.endpoint.name),
        None,
    )


def _version(stored: Json | None) -> object:
    return None if stored is None else stored["metadata"].get("resourceVersion")


def _confirmed_by(memory: Memory) -> float:
    """Until when the hardware may still confirm what was just written."""
    writes = [memory.volume, memory.mute, *memory.controls.values()]
    return max((w.at + CONFIRM_HOLD_SECONDS for w in writes if w and w.is_open), default=0.0)
