"""The ResourceSlice publisher: the graph's endpoints → devices → slices → writes.

It is woken without a payload by the graph and by the cache of its own slices, reads everything,
and asks the core what to write. When it writes:

- A change of devices waits for 100 ms without a change of the graph, at most 2.5 s: a storm that
  ends where it began writes nothing.
- A fault that begins to count (`graph.presence`) is published at that moment.
- Slices that somebody deleted or changed are put right at once (the kubelet deletes all of them at
  each of its starts); if that happens again and again, with growing pauses.
- The first publication waits until no fault is in its grace, so that a restart of the agent,
  with PipeWire a second late, taints nothing and evicts nobody.

Failures are tried again after 0.25 s to 30 s, or when the server asks (Retry-After). The slices
stay when the agent ends: another instance may follow at once. If none does, the kubelet deletes
them 30 s after the last one's socket has gone.
"""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import structlog

from liken_audio.api import NODES, RESOURCE_SLICES, ApiError, Conflict, Json, NotFound
from liken_audio.controllers.ports import ResourceClient, WriteThroughCache
from liken_audio.controllers.slice_pace import QUIET_SECONDS, SlicePace
from liken_audio.dra.devices import Device, device
from liken_audio.dra.encoding import dropped_fields
from liken_audio.dra.limits import Fitted, fit
from liken_audio.dra.slices import (
    Create,
    Delete,
    Memory,
    Pool,
    Write,
    devices_of,
    is_ours,
    plan,
)
from liken_audio.graph.device_graph import DeviceGraph
from liken_audio.graph.endpoints import endpoints
from liken_audio.graph.model import DeviceName, Endpoint, Fault, GraphView, Source
from liken_audio.graph.presence import Presence, Settled

HOLD_SECONDS = 6.0
"""How long the first publication waits at most for faults in their grace."""
ADOPTION_SECONDS = 3600.0
"""How often fields that the server dropped are offered again: its gates may have been turned on."""

_POLL_SECONDS = 0.1
_SHORTEST_SLEEP = 0.001
"""So that rounding in a timer can't make a busy loop."""
_CARD_SOURCES = frozenset({Source.ALSA, Source.VIRTUAL})
_JITTER = random.SystemRandom()
_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Counts:
    """What was done since the start."""

    creates: int = 0
    updates: int = 0
    deletes: int = 0
    conflicts: int = 0
    errors: int = 0


@dataclass(slots=True)
class _Look:
    """The devices as last computed."""

    at: float = float("-inf")
    revision: int = -1
    devices: tuple[Device, ...] = ()
    deadline: float | None = None
    """When a fault that is in its grace begins to count."""


class Publisher:
    """Keeps this node's slices equal to the graph.

    `own_slices` watches the slices of this driver and node. `sharing` says whether a device may
    be allocated to several claims, None when that isn't known yet: it stays as it is published.
    Call `wake` when the answers change.
    """

    def __init__(
        self,
        graph: DeviceGraph,
        client: ResourceClient,
        own_slices: WriteThroughCache,
        node: str,
        sharing: Callable[[DeviceName], bool | None],
    ) -> None:
        self._graph = graph
        self._client = client
        self._own_slices = own_slices
        self._node = node
        self._node_uid = ""
        self._sharing = sharing
        self._presence = Presence()
        self._woken = asyncio.Event()
        self._look = _Look()
        self._steady: Mapping[DeviceName, Endpoint] = {}
        """The endpoints that the devices were made of last."""
        self._made_of: Sequence[tuple[Endpoint, Fault | None, bool]] | None = None
        """What the devices that were computed last were made of."""
        self._fitted = Fitted((), ())
        self._noticed = -1
        """The graph's revision as of the last wake-up; `_look` may be behind."""
        self._is_early = False
        self._pace = SlicePace()
        self._memory = Memory()
        self._adopted_at = 0.0
        self._published: tuple[Device, ...] | None = None
        """What the slices shall hold; `_look` may be ahead of it."""
        self.counts = Counts()
        self.problems: tuple[str, ...] = ()
        """What had to be cut or left out of the devices, for a person to read."""
        self.dropped_fields: tuple[str, ...] = ()
        """Fields of devices that the server doesn't store: its gates are off, or it is older."""
        self.is_published = False
        """Whether the slices were right at least once since the start."""
        graph.subscribe(self._woken.set)
        own_slices.subscribe(self._slice_changed)

    @property
    def writes(self) -> int:
        """Successful writes."""
        return self.counts.creates + self.counts.updates + self.counts.deletes

    @property
    def errors(self) -> int:
        """Failed calls, conflicts apart."""
        return self.counts.errors

    def wake(self) -> None:
        """Have `sharing` asked again."""
        self._look.revision = -1
        self._woken.set()

    async def run(self) -> None:
        """Publish for ever."""
        clock = asyncio.get_running_loop().time
        started = clock()
        while True:
            self._woken.clear()
            now = clock()
            next_look = self._look_at_graph(now)
            due = self._first_due(started, now) if self._published is None else self._due()
            if due is not None and due <= now:
                await self._publish(now)
                continue
            until = min((moment for moment in (next_look, due) if moment is not None), default=None)
            await self._sleep(None if until is None else max(_SHORTEST_SLEEP, until - clock()))

    async def _sleep(self, seconds: float | None) -> None:
        """Wait until woken, at most so many seconds."""
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            pass

    def _slice_changed(self, _key: str) -> None:
        self._pace.is_foreign = True
        self._woken.set()

    def _first_due(self, started: float, now: float) -> float | None:
        """When to publish for the first time; None: not before the graph changes."""
        view = self._graph.view()
        # Each speaks within seconds, and devices that are published must not go meanwhile.
        if view.awaited & (_CARD_SOURCES | {Source.BLUEZ}):
            return None
        if not self._own_slices.is_synced:
            self._is_early = True
            return now + _POLL_SECONDS
        if self._is_early:
            # The devices were computed before the slices were known, which modes depend on.
            self._is_early, self._look.revision = False, -1
            return now + _SHORTEST_SLEEP
        if self._look.revision != view.revision:
            return None
        if self._look.deadline is None:
            return now
        return min(self._look.deadline, started + HOLD_SECONDS)

    def _due(self) -> float | None:
        """When to plan next."""
        due = self._pace.due()
        if due is None and self._memory.adopted:
            return self._adopted_at + ADOPTION_SECONDS
        return due

    def _look_at_graph(self, now: float) -> float | None:
        """Compute the devices if there is a reason to; return when there will be the next one.

        That costs a millisecond or more, so a storm of changes is looked at ten times a second.
        """
        look, revision = self._look, self._graph.revision
        if revision != self._noticed:
            self._noticed = revision
            self._pace.changed_at = now
        is_changed = revision != look.revision
        is_deadline = look.deadline is not None and now >= look.deadline
        if is_changed and not is_deadline and now < look.at + QUIET_SECONDS:
            return look.at + QUIET_SECONDS
        if is_changed or is_deadline:
            self._compute(self._graph.view(), now)
            self._pace.is_prompt |= is_deadline
            if self._look.devices == self._published:
                self._pace.dirty_since = None
            elif self._pace.dirty_since is None:
                self._pace.dirty_since = now
        return self._look.deadline

    def _compute(self, view: GraphView, now: float) -> None:
        found = endpoints(view, self._node)
        settled = self._presence.settle({each.name: each.fault for each in found}, now)
        held = {name for hold in view.holds if not hold.is_admin for name in hold.devices}
        self._steady = {each.name: self._as_before(each, settled) for each in found}
        made_of = [
            (each, settled.faults[name], self._is_shared(name, is_held=name in held))
            for name, each in self._steady.items()
        ]
        if made_of != self._made_of:  # claims come and go without a change of the devices
            self._made_of = made_of
            self._fitted = fit(
                [device(each, fault, is_shared=is_shared) for each, fault, is_shared in made_of]
            )
        fitted = self._fitted
        self._look = _Look(now, view.revision, fitted.devices, settled.next_deadline)
        if fitted.problems != self.problems:
            self.problems = fitted.problems
            _log.warning("devices don't fit the API", problems=fitted.problems)

    def _as_before(self, endpoint: Endpoint, settled: Settled) -> Endpoint:
        """The endpoint; one whose monitor may only be asleep as it was, until that counts.

        A screen that sleeps takes its ELD along: who asks for its speakers must find them.
        """
        if endpoint.fault is not Fault.NO_MONITOR or settled.faults[endpoint.name] is not None:
            return endpoint
        return self._steady.get(endpoint.name, endpoint)

    def _is_shared(self, name: DeviceName, *, is_held: bool) -> bool:
        """A device in use keeps its mode: the scheduler counts with what it allocated from."""
        if is_held and (current := self._current_mode(name)) is not None:
            return current
        wish = self._sharing(name)
        return bool(self._current_mode(name)) if wish is None else wish

    def _current_mode(self, name: DeviceName) -> bool | None:
        """Whether the device is published as shared; None when it isn't published."""
        for each in self._published or ():
            if each.name == name:
                return each.allow_multiple
        for body in self._own_slices.objects().values():
            for stored in devices_of(body):
                if stored["name"] == name:
                    return bool(stored.get("allowMultipleAllocations"))
        return None

    async def _publish(self, now: float) -> None:
        """Plan and write once; what fails is tried again later."""
        pace = self._pace
        is_ours = self._published is None or pace.takes_devices(now)
        if is_ours:
            is_ours = self._published != self._look.devices
            self._published, pace.dirty_since = self._look.devices, None
        pace.is_prompt = pace.is_foreign = False
        jitter = _JITTER.random()
        try:
            writes = await self._synchronise(now)
        except Conflict as error:
            self.counts.conflicts += 1
            delay = pace.conflicted(now, jitter=jitter)
            _log.info("planning again", error=str(error), retry_in=round(delay, 2))
        except ApiError as error:
            self.counts.errors += 1
            delay = pace.failed(now, asked=error.retry_after, jitter=jitter)
            _log.warning("slices can't be published", error=str(error), retry_in=round(delay, 2))
        else:
            pace.failures = 0
            self.is_published = True
            if writes and not is_ours:
                pace.corrected(now, jitter=jitter)

    async def _synchronise(self, now: float) -> int:
        """Make the slices what `_published` says; return the number of writes."""
        if self._memory.adopted and now >= self._adopted_at + ADOPTION_SECONDS:
            self._memory = replace(self._memory, adopted={})
        if not self._node_uid:
            await self._read_node()
        writes = self._plan()
        names = {write.body["metadata"]["name"] for write in writes if isinstance(write, Create)}
        if names & self._memory.slices.keys():
            # Deleted under us: perhaps because the Node was, and came back with another UID.
            await self._read_node()
            writes = self._plan()
        for write in writes:
            await self._carry_out(write, now)
        return len(writes)

    def _plan(self) -> tuple[Write, ...]:
        observed = tuple(self._own_slices.objects().values())
        self._memory = self._memory.saw([body for body in observed if is_ours(body, self._node)])
        pool = Pool(node=self._node, node_uid=self._node_uid, devices=self._published or ())
        return plan(pool, observed, self._memory)

    async def _read_node(self) -> None:
        try:
            node = await self._client.get(NODES, self._node)
        except NotFound as error:
            raise ApiError(
                f"there is no Node {self._node}; is --node right?", status=404
            ) from error
        self._node_uid = node["metadata"]["uid"]

    async def _carry_out(self, write: Write, now: float) -> None:
        if isinstance(write, Delete):
            await self._delete(write)
            return
        name = write.body["metadata"]["name"]
        is_new = isinstance(write, Create)
        call = self._client.create if is_new else self._client.update
        try:
            stored = await call(RESOURCE_SLICES, write.body)
        except (Conflict, NotFound) as error:
            if is_new and isinstance(error, NotFound):
                raise  # the API server has no such resource
            await self._read_again(name)
            raise Conflict(str(error), status=error.status, reason=error.reason) from error
        self._own_slices.observe(stored)
        self._learn(write.body, stored, now)
        if is_new:
            self.counts.creates += 1
        else:
            self.counts.updates += 1
        pool = stored["spec"]["pool"]
        _log.info(
            "slice created" if is_new else "slice updated",
            slice=name,
            devices=len(devices_of(stored)),
            generation=pool["generation"],
        )

    async def _delete(self, write: Delete) -> None:
        try:
            await self._client.delete(
                RESOURCE_SLICES, write.name, uid=write.uid, resource_version=write.resource_version
            )
        except NotFound:
            _log.debug("slice was gone already", slice=write.name)
        except Conflict:
            await self._read_again(write.name)
            raise
        self._own_slices.forget(write.uid)
        self._memory = self._memory.deleted(write.name)
        self.counts.deletes += 1
        _log.info("slice deleted", slice=write.name)

    async def _read_again(self, name: str) -> None:
        """Have the cache show what has that name now; a name of somebody else's is left to them."""
        try:
            body = await self._client.get(RESOURCE_SLICES, name)
        except NotFound:
            known = self._own_slices.objects().get(name)
            if known is not None:
                self._own_slices.forget(known["metadata"]["uid"])
            return
        if is_ours(body, self._node):
            self._own_slices.observe(body)
            return
        self._memory = replace(self._memory, taken=self._memory.taken | {name})
        _log.warning("another driver's slice has our name; taking the next one", slice=name)

    def _learn(self, sent: Json, stored: Json, now: float) -> None:
        """Remember what the server made of a write, and say once what it dropped."""
        self._memory = self._memory.wrote(sent, stored)
        if self._memory.adopted:
            self._adopted_at = now
        lessons = self._memory.adopted.values()
        dropped = {field for each in lessons for field in dropped_fields(each.sent, each.stored)}
        if dropped and dropped != set(self.dropped_fields):
            _log.warning(
                "the API server doesn't store some fields of devices: feature gates are off, "
                "or its version is older",
                fields=sorted(dropped),
            )
        self.dropped_fields = tuple(sorted(dropped))
