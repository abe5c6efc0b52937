"""Sinks and Sources on the API server: adopted, their status applied, the obsolete deleted.

All by server-side apply, an upsert: an object that a user or GitOps made first is adopted by the
label, one that vanished is made anew. Nothing is retried here; errors go to the queue's back-off.

A CRD older than the agent refuses a status with a field that it doesn't declare: such fields are
left out for a time, which is said once, and the rest is written.
"""

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

import structlog

from liken_audio.api import NODE_LABEL, ApiError, Json, NotFound, Resource
from liken_audio.controllers.ports import ResourceClient, WriteThroughCache
from liken_audio.controllers.tracked import Key, Tracked, is_labelled, status_of
from liken_audio.resources import v1alpha1
from liken_audio.resources.conditions import Transition, transitions
from liken_audio.resources.drift import without_times

ELSEWHERE_SECONDS = 30.0
"""How often an object is looked at again that another node holds while our card is absent."""
NOT_SERVED_SECONDS = 8.0
"""How often a kind that the server doesn't serve is tried."""
UNDECLARED_SECONDS = 600.0
"""How long a status field that the CRD doesn't declare is left out before it is tried again."""

_UNDECLARED = re.compile(r"\.status\.([A-Za-z]+)[^\n]*?: field not declared in schema")

_log = structlog.get_logger(__name__)


class EventSink(Protocol):
    """Where Events go; must not block."""

    def record(self, stored: Json, transition: Transition) -> None:
        """Have an Event about the stored object written some time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectPartners:
    """What the writer works with."""

    client: ResourceClient
    caches: Mapping[Resource, WriteThroughCache]
    events: EventSink
    wall: Callable[[], datetime]


class ObjectWriter:
    """Writes the objects of one node."""

    def __init__(self, node_name: str, partners: ObjectPartners) -> None:
        self._node_name = node_name
        self._label = v1alpha1.node_label(node_name)
        self._client = partners.client
        self._caches = partners.caches
        self._events = partners.events
        self._wall = partners.wall
        self._not_served: dict[Resource, float] = {}
        self._undeclared: dict[tuple[Resource, str], float] = {}
        """Until when a field of a kind's status is left out."""
        self.writes = 0
        """Writes that the API server took."""

    async def write(self, key: Key, tracked: Tracked) -> float | None:
        """Do the next write that the object needs; returns when to try what can't be done now.

        An object that was adopted, or found deleted, has to be judged again first: what is
        declared in it is known only now. So its status is not written in the same go.
        """
        kind, name = key
        now = asyncio.get_running_loop().time()
        if self._not_served.get(kind, now) > now:
            return self._not_served[kind]
        stored = self._caches[kind].objects().get(name)
        if stored is not None and tracked.is_to_delete(stored, now):
            await self._delete(kind, stored)
        elif stored is not None and is_labelled(stored, self._label):
            await self._bring_status(key, tracked, stored)
        elif tracked.endpoint is not None:
            if await self._is_elsewhere(key, tracked):
                return now + ELSEWHERE_SECONDS
            return await self._adopt(key, tracked)
        return None

    async def _bring_status(self, key: Key, tracked: Tracked, stored: Json) -> None:
        wanted = tracked.wanted_status(self._node_name, stored, self._wall())
        if tracked.is_stored(stored, wanted):
            return
        news = transitions(tracked.conditions(), status_of(stored).get("conditions") or ())
        try:
            answer = await self._apply_status(key, wanted)
        except NotFound:
            self._caches[key[0]].forget(stored["metadata"]["uid"])
            return
        bare = without_times(wanted)
        tracked.applied, tracked.answer = bare, answer.get("status")
        tracked.pacing.settled(bare, asyncio.get_running_loop().time())
        for transition in news:
            self._events.record(answer, transition)

    async def _apply_status(self, key: Key, wanted: Json) -> Json:
        kind = key[0]
        try:
            answer = await self._apply_declared(key, wanted)
        except ApiError as error:
            undeclared = set(_UNDECLARED.findall(str(error))) & wanted.keys()
            if not undeclared:
                raise
            until = asyncio.get_running_loop().time() + UNDECLARED_SECONDS
            self._undeclared |= dict.fromkeys(((kind, name) for name in undeclared), until)
            _log.warning(
                "the CRD is older than the agent: apply the newer one; left out until then",
                kind=kind.kind,
                fields=sorted(undeclared),
            )
            answer = await self._apply_declared(key, wanted)
        self.writes += 1
        self._caches[kind].observe(answer)
        return answer

    async def _apply_declared(self, key: Key, wanted: Json) -> Json:
        kind, name = key
        now = asyncio.get_running_loop().time()
        status = {
            field: value
            for field, value in wanted.items()
            if self._undeclared.get((kind, field), now) <= now
        }
        body = _object(kind) | {"metadata": {"name": name}, "status": status}
        return await self._client.apply(kind, body, subresource="status")

    async def _adopt(self, key: Key, tracked: Tracked) -> float | None:
        """Have the object there with our label; when its kind isn't served, says when to retry."""
        kind, name = key
        labels = {NODE_LABEL: self._label}
        body = _object(kind) | {"metadata": {"name": name, "labels": labels}}
        try:
            stored = await self._client.apply(kind, body)
        except NotFound:
            # The informer of the kind says so in the log.
            self._not_served[kind] = asyncio.get_running_loop().time() + NOT_SERVED_SECONDS
            return self._not_served[kind]
        self.writes += 1
        self._caches[kind].observe(stored)
        tracked.applied = tracked.answer = None
        return None

    async def _is_elsewhere(self, key: Key, tracked: Tracked) -> bool:
        """Whether another node has the object and our card isn't even there: a moved USB card."""
        if tracked.endpoint is None or tracked.endpoint.card.is_present:
            return False
        try:
            stored = await self._client.get(*key)
        except NotFound:
            return False
        labels = stored["metadata"].get("labels") or {}
        return bool(labels.get(NODE_LABEL, self._label) != self._label)

    async def _delete(self, kind: Resource, stored: Json) -> None:
        metadata = stored["metadata"]
        try:
            await self._client.delete(
                kind,
                metadata["name"],
                uid=metadata["uid"],
                resource_version=metadata["resourceVersion"],
            )
        except NotFound:
            _log.info("an object to delete was gone already", name=metadata["name"])
        self.writes += 1
        self._caches[kind].forget(metadata["uid"])


def _object(kind: Resource) -> Json:
    return {"apiVersion": kind.api_version, "kind": kind.kind}
