"""Sinks and Sources that no node's agent has adopted: somebody must say that they are for nothing.

An agent adopts the objects of its devices at once, by the label `audio.liken.sh/node`. What is
without that label after a while is a misspelt name, or made before its device. Every agent watches
these alone (a label selector, so objects of other nodes' devices don't reach it), and one writes
the conditions, without an election: each waits at random up to `LATEST_SECONDS`, and who finds
them written rests. An agent that has a device of nearly that name is first, and names it.
Nothing is deleted here, and nothing but the conditions is written.
"""

import asyncio
import difflib
import functools
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

import structlog

from liken_audio.api import ApiError, Json, NotFound, Resource
from liken_audio.controllers.object_writer import EventSink
from liken_audio.controllers.ports import ObjectCache, ResourceClient
from liken_audio.controllers.workers import Workers
from liken_audio.controllers.workqueue import WorkQueue
from liken_audio.graph.device_graph import DeviceGraph
from liken_audio.graph.endpoints import endpoints
from liken_audio.resources import v1alpha1, verdicts
from liken_audio.resources.conditions import stamped, transitions

NEAR_SECONDS = 5.0
"""When an agent speaks that has a device of nearly that name; its own devices' are adopted by then."""
EARLIEST_SECONDS, LATEST_SECONDS = 10.0, 60.0
"""When the others do."""

CUTOFF, SAME_NODE_CUTOFF = 0.9, 0.5
"""How alike names must be (difflib's ratio); device names of two nodes are alike by nature."""

Key = tuple[Resource, str]

_JITTER = random.SystemRandom()
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Partners:
    """Whom the reporter talks to; the caches hold the objects without the label of a node."""

    client: ResourceClient
    caches: Mapping[Resource, ObjectCache]
    events: EventSink
    wall: Callable[[], datetime]


class OrphanReporter:
    """Gives objects without a device their conditions; `node` is this agent's."""

    def __init__(self, graph: DeviceGraph, node: str, partners: Partners) -> None:
        self._graph = graph
        self._node = node
        self._client, self._caches = partners.client, partners.caches
        self._events, self._wall = partners.events, partners.wall
        self._workers: Workers[Key] = Workers(
            WorkQueue(first_delay=5.0, max_delay=300.0), self._report, self._failed, (ApiError,)
        )
        self.writes = 0
        self.errors = 0

    async def run(self) -> None:
        """Report for ever."""
        for kind, cache in self._caches.items():
            cache.subscribe(functools.partial(self._look_at, kind))
            for name in cache.objects():
                self._look_at(kind, name)
        await self._workers.run()

    def _look_at(self, kind: Resource, name: str) -> None:
        key = (kind, name)
        if self._unreported(key) is None:
            self._workers.discard(key)
            return
        is_near = bool(self._near(key))
        delay = NEAR_SECONDS if is_near else _JITTER.uniform(EARLIEST_SECONDS, LATEST_SECONDS)
        self._workers.add(key, asyncio.get_running_loop().time() + delay)

    def _unreported(self, key: Key) -> Json | None:
        """The object if it is there, nobody has said anything of it, and it isn't ours."""
        kind, name = key
        stored = self._caches[kind].objects().get(name)
        if stored is None or (stored.get("status") or {}).get("conditions"):
            return None
        return None if self._devices().get(name) is kind else stored

    def _near(self, key: Key) -> list[str]:
        """What may have been meant, closest first, among this node's devices."""
        _, name = key
        cutoff = SAME_NODE_CUTOFF if name.startswith(f"{self._node}-") else CUTOFF
        found = self._devices()
        near = difflib.get_close_matches(name, found, n=3, cutoff=cutoff)
        return [f"{found[one].kind.lower()} {one}" for one in near]

    def _devices(self) -> dict[str, Resource]:
        found = endpoints(self._graph.view(), self._node)
        return {one.name: v1alpha1.kind_of(one) for one in found}

    async def _report(self, key: Key) -> None:
        kind, name = key
        stored = self._unreported(key)
        if stored is None:
            return
        conditions = verdicts.no_device(self._near(key))
        generation = int(stored["metadata"].get("generation", 1))
        body = {
            "apiVersion": kind.api_version,
            "kind": kind.kind,
            "metadata": {"name": name},
            "status": {"conditions": stamped(conditions, [], generation, self._wall())},
        }
        try:
            answer = await self._client.apply(kind, body, subresource="status")
        except NotFound:
            return
        self.writes += 1
        _log.info("an object has no device", kind=kind.kind, name=name)
        for transition in transitions(conditions, []):
            self._events.record(answer, transition)

    def _failed(self, key: Key, error: Exception) -> float:
        self.errors += 1
        _log.debug("conditions can't be written", name=key[1], error=str(error))
        return (error.retry_after or 0.0) if isinstance(error, ApiError) else 0.0
