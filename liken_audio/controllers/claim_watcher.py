"""Watches the claims whose reach another pod's coming would change.

Those are named claims that were joined with others of their only pod: few, if any. Each has a watch
of its own, of that one object, so that nothing else of the cluster is read; while a watch doesn't
follow, and beyond `MOST_WATCHES`, the claim is read every `POLL_SECONDS` instead.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

import structlog

from liken_audio.api import RESOURCE_CLAIMS, ApiError, Json
from liken_audio.controllers.file_work import in_thread
from liken_audio.controllers.ports import ClaimStore, ResourceClient
from liken_audio.dra import reach
from liken_audio.dra.claims import ClaimRef, ClaimState
from liken_audio.graph.device_graph import DeviceGraph
from liken_audio.graph.model import ClaimHold

MOST_WATCHES = 32
"""Watches at the same time; a node with more such claims reads the rest."""
POLL_SECONDS = 5.0

_log = structlog.get_logger(__name__)


class ClaimWatch(Protocol):
    """A watch of one claim; an informer is one."""

    @property
    def trouble(self) -> object | None:
        """Why it may be behind now, None if it follows the server."""

    def objects(self) -> Mapping[str, Json]:
        """The claim, if there is one."""

    def subscribe(self, callback: Callable[[str], None]) -> None:
        """Have `callback` called after each change."""

    async def run(self) -> None:
        """Follow the server for ever."""


class ClaimWatcher:
    """Calls `observe` with each new version of the claims concerned.

    `watch` makes the watch of one claim.
    """

    def __init__(
        self,
        graph: DeviceGraph,
        store: ClaimStore,
        client: ResourceClient,
        watch: Callable[[ClaimRef], ClaimWatch],
        observe: Callable[[Json], Awaitable[None]],
    ) -> None:
        self._graph = graph
        self._store = store
        self._client = client
        self._watch = watch
        self._observe = observe
        self._woken = asyncio.Event()
        self._holds: tuple[ClaimHold, ...] | None = None
        self._followed: dict[ClaimRef, asyncio.Task[None]] = {}

    @property
    def watched(self) -> int:
        """How many claims are followed now."""
        return len(self._followed)

    async def run(self) -> None:
        """Watch for ever."""
        self._graph.subscribe(self._woken.set)
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._woken.clear()
                holds = self._graph.view().holds
                if holds is not self._holds:
                    try:
                        self._choose(await self._concerned(), tasks)
                        self._holds = holds
                    except OSError as error:
                        _log.error("claims can't be read now", reason=str(error))
                await _woken(self._woken)

    async def _concerned(self) -> set[ClaimRef]:
        records = await in_thread(self._store.records)
        return {
            record.ref
            for record in records
            if record.state is ClaimState.COMPLETED and reach.needs_watch(record, records)
        }

    def _choose(self, wanted: set[ClaimRef], tasks: asyncio.TaskGroup) -> None:
        for ref in self._followed.keys() - wanted:
            self._followed.pop(ref).cancel()
        for ref in sorted(wanted - self._followed.keys(), key=str):
            watch = self._watch(ref) if len(self._followed) < MOST_WATCHES else None
            self._followed[ref] = tasks.create_task(self._follow(ref, watch, tasks))

    async def _follow(
        self, ref: ClaimRef, watch: ClaimWatch | None, tellers: asyncio.TaskGroup
    ) -> None:
        """Tell of each version of a claim, until cancelled: what was begun to be told is finished.

        A second pod's coming is itself what ends the watch, as soon as it is noted, and that is
        before the claim's socket is changed.
        """
        changed = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            if watch is not None:
                watch.subscribe(lambda _key: changed.set())
                tasks.create_task(watch.run())
            while True:
                changed.clear()
                for claim in list(watch.objects().values()) if watch else ():
                    await asyncio.shield(tellers.create_task(self._tell(claim)))
                is_woken = await _woken(changed)
                if not is_woken and (watch is None or watch.trouble is not None):
                    await asyncio.shield(tellers.create_task(self._read(ref)))

    async def _read(self, ref: ClaimRef) -> None:
        with contextlib.suppress(ApiError):  # the next time, or the watch, will do
            await self._tell(await self._client.get(RESOURCE_CLAIMS, ref.name, ref.namespace))

    async def _tell(self, claim: Json) -> None:
        try:
            await self._observe(claim)
        except OSError as error:
            _log.error("claim can't be looked after now", reason=str(error))


async def _woken(event: asyncio.Event) -> bool:
    """Wait for the event, at most `POLL_SECONDS`; return whether it came."""
    try:
        async with asyncio.timeout(POLL_SECONDS):
            await event.wait()
    except TimeoutError:
        return False
    return True
