"""Shows in each prepared claim's status whether its devices can be heard, and where.

Best effort, beside everything else: Prepare never waits for it. A claim that is gone, made anew
or deallocated is left alone until something changes. A refusal (rights on `resourceclaims/status`
and `resourceclaims/driver` are missing, see docs/reference-claims.md) is said once and tried again
every `REFUSED_SECONDS`; what else fails is tried again after 1 s to 1 minute. A fault that may be
over in a second (`graph.presence`) is no change yet, and a claim is written at most once a second.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import structlog

from liken_audio.api import RESOURCE_CLAIMS, ApiError, NotFound, Rejected
from liken_audio.controllers.file_work import in_thread
from liken_audio.controllers.ports import ClaimStore, ResourceClient
from liken_audio.controllers.workers import Workers
from liken_audio.controllers.workqueue import WorkQueue
from liken_audio.dra import claim_status
from liken_audio.dra.claim_status import DeviceStatus
from liken_audio.dra.claims import ClaimRecord, ClaimRef, ClaimState, refreshed
from liken_audio.graph.device_graph import DeviceGraph
from liken_audio.graph.endpoints import endpoints
from liken_audio.graph.model import ClaimHold, DeviceName, Endpoint, Fault, GraphView, Source
from liken_audio.graph.presence import Presence

REFUSED_SECONDS = 600.0
WRITE_GAP_SECONDS = 1.0
PASS_GAP_SECONDS = 0.1
LOOK_SECONDS = 30.0
"""Longest time between looks, should a record change without a change of what it holds."""
_WORKERS = 2

_Wanted = tuple[DeviceStatus, ...]

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Reported:
    """One claim between looks."""

    wanted: _Wanted
    written: _Wanted | None = None
    """What the server has, or needs no more."""
    written_at: float = float("-inf")


class ClaimReporter:
    """Keeps `status.devices` of one node's claims; `wall` gives the time of conditions."""

    def __init__(
        self,
        graph: DeviceGraph,
        node: str,
        client: ResourceClient,
        store: ClaimStore,
        wall: Callable[[], datetime],
    ) -> None:
        self._graph = graph
        self._node = node
        self._client = client
        self._store = store
        self._wall = wall
        self._wake = asyncio.Event()
        self._presence = Presence()
        self._holds: tuple[ClaimHold, ...] | None = None
        self._records: Sequence[ClaimRecord] = ()
        self._reported: dict[ClaimRef, _Reported] = {}
        self._refused: set[tuple[int, str]] = set()
        self._workers: Workers[ClaimRef] = Workers(
            WorkQueue(first_delay=1.0, max_delay=60.0), self._report, self._failed, (ApiError,)
        )
        self.writes = 0
        """Writes that the API server took."""
        self.errors = 0

    async def run(self) -> None:
        """Report for ever."""
        self._graph.subscribe(self._wake.set)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._look_for_ever())
            for _ in range(_WORKERS):
                tasks.create_task(self._workers.run())

    async def _look_for_ever(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            self._wake.clear()
            await self._read()
            deadline = self._look(self._graph.view(), clock())
            await asyncio.sleep(PASS_GAP_SECONDS)
            again_at = min(deadline or float("inf"), clock() + LOOK_SECONDS)
            try:
                async with asyncio.timeout_at(again_at):
                    await self._wake.wait()
            except TimeoutError:
                self._holds = None

    async def _read(self) -> None:
        """Read the records when what they hold has changed."""
        holds = self._graph.view().holds
        if holds is self._holds:
            return
        try:
            records = await in_thread(self._store.records)
        except OSError as error:
            self.errors += 1
            _log.error("claims can't be read now", reason=str(error))
            return
        self._records = [each for each in records if each.state is ClaimState.COMPLETED]
        self._holds = holds
        for ref in self._reported.keys() - {each.ref for each in self._records}:
            del self._reported[ref]
            self._workers.discard(ref)

    def _look(self, view: GraphView, now: float) -> float | None:
        """Queue the claims whose status is to change; return when a fault begins to count."""
        if view.awaited - {Source.CLAIMS}:
            return None  # a source that hasn't spoken yet makes every device look gone
        found = {each.name: each for each in endpoints(view, self._node)}
        settled = self._presence.settle({each.name: each.fault for each in found.values()}, now)
        for record in self._records:
            if not _is_settling(record, found, settled.faults):
                self._want(refreshed(record, found), found, settled.faults, now)
        return settled.next_deadline

    def _want(
        self,
        record: ClaimRecord,
        found: Mapping[DeviceName, Endpoint],
        faults: Mapping[DeviceName, Fault | None],
        now: float,
    ) -> None:
        wanted = claim_status.statuses(record, found, faults)
        reported = self._reported.setdefault(record.ref, _Reported(wanted))
        reported.wanted = wanted
        if reported.written != wanted:
            self._workers.add(record.ref, max(now, reported.written_at + WRITE_GAP_SECONDS))

    async def _report(self, ref: ClaimRef) -> None:
        reported = self._reported.get(ref)
        if reported is None or reported.written == reported.wanted:
            return
        wanted = reported.wanted
        try:
            claim = await self._client.get(RESOURCE_CLAIMS, ref.name, ref.namespace)
            body = claim_status.body(ref, wanted, claim, self._wall())
            if body is not None:
                await self._client.apply(RESOURCE_CLAIMS, body, subresource="status")
                self.writes += 1
                reported.written_at = asyncio.get_running_loop().time()
                self._refused.clear()
        except NotFound:
            _log.debug("claim is gone: nothing to show", claim=str(ref))
        reported.written = wanted
        if reported.wanted != wanted:
            self._workers.add(ref, reported.written_at + WRITE_GAP_SECONDS)

    def _failed(self, ref: ClaimRef, error: Exception) -> float:
        self.errors += 1
        if not isinstance(error, ApiError):
            return 0.0
        if not isinstance(error, Rejected):
            return error.retry_after or 0.0
        refusal = (error.status, error.reason)
        if refusal not in self._refused:
            self._refused.add(refusal)
            _log.warning(
                "claims' status can't be written; claims work without it",
                claim=str(ref),
                reason=str(error),
                retry_seconds=REFUSED_SECONDS,
            )
        return REFUSED_SECONDS


def _is_settling(
    record: ClaimRecord,
    found: Mapping[DeviceName, Endpoint],
    faults: Mapping[DeviceName, Fault | None],
) -> bool:
    """Whether a device of the claim has a fault that doesn't count yet: it may be over in a second."""
    devices = {device.device for device in record.devices} & found.keys()
    return any(found[name].fault is not None and faults[name] is None for name in devices)
