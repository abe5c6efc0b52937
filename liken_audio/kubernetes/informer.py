"""List and watch: a `Reflector` that decides (no IO, no clock) and an `Informer` that carries out.

    LIST ── listed ──▶ WATCH ── event, end of the watch ──▶ WATCH
      ▲                  │
      └── gone, error event, unreachable, not served ◀─┘

- The version to watch from is the list's own, then that of each event and bookmark.
- Any form of "too old" (HTTP 410, an ERROR event with or without a code) means one new list.
- A watch that ends or breaks is taken up where it stopped; a server that can't be reached, or has
  an error, means one new list as soon as it answers: what it stored may be older than what we saw.
- 404 means that the resource isn't served (no CRD yet, or not any more): the cache is empty, and
  it is asked again at least every 10 s. An unknown event type is counted and left out.
- Nothing is hot: each failure in a row waits longer, up to a minute, with jitter; `Retry-After`
  is kept. So two hours without a server are at most 150 attempts.

A dead connection shows after `Deadlines.watch_silence` (150 s) at the latest, see `client`.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from http import HTTPStatus
from typing import Any, Protocol

import structlog

from liken_audio.api import ApiError, Gone, Json, NotFound, Rejected, Resource, Unreachable

FIRST_DELAY = 0.5
MAX_DELAY = 60.0
MAX_DELAY_NOT_SERVED = 8.0
"""With jitter this stays under the 10 s that a new CRD may wait for us."""
SHORT_WATCH = 1.0
"""A watch that ends sooner counts as a failure, else a server that ends them at once makes us hot."""
WATCH_SECONDS = (300, 600)
"""Bounds of `timeoutSeconds`: spread, so that a cluster's agents don't come back together."""

_EVENTS = frozenset({"ADDED", "MODIFIED", "DELETED", "BOOKMARK"})
_JITTER = random.SystemRandom()
_log = structlog.get_logger(__name__)


class ListWatcher(Protocol):
    """What an informer calls; `client.KubernetesClient` is one."""

    async def list(
        self, resource: Resource, *, label_selector: str = "", field_selector: str = ""
    ) -> Json:
        """Read a whole list."""

    def watch(
        self,
        resource: Resource,
        *,
        label_selector: str = "",
        field_selector: str = "",
        resource_version: str,
        timeout_seconds: int,
    ) -> AbstractAsyncContextManager[AsyncIterator[Json]]:
        """Open a watch and lend its events."""


class Trouble(StrEnum):
    """Why the cache can't be trusted to be up to date now."""

    STARTING = "starting"
    NOT_SERVED = "not-served"
    FAILING = "failing"


@dataclass(slots=True)
class Reflector:
    """The objects, and what to ask the server next; a pure state machine.

    Methods that take an answer return the keys of the objects that changed by it.
    """

    resource_version: str = ""
    """Where to watch from; empty: a list is needed."""
    objects: dict[str, Json] = field(default_factory=dict)
    trouble: Trouble | None = Trouble.STARTING
    failures: int = 0
    """Failures in a row; lists don't end the row, since a watch may fail after each of them."""
    must_wait: bool = False
    """Whether the last answer was a failure, so that the next request has to wait."""
    relists: int = 0
    unknown_events: int = 0
    _is_open: bool = False
    _is_listing: bool = False
    _observed: dict[str, Json] = field(default_factory=dict)
    """Own writes during a list, which may not show them yet."""

    @property
    def needs_list(self) -> bool:
        """Whether a list comes next, else a watch from `resource_version`."""
        return not self.resource_version

    def listing(self) -> None:
        """Take note that a list begins."""
        self.relists += 1
        self._is_listing = True

    def listed(self, answer: Json) -> set[str]:
        """Put in a whole list; raises `Unreachable` if it is none that can be watched from."""
        version = _metadata(answer).get("resourceVersion")
        if not version:
            raise Unreachable("the list has no resourceVersion")
        fresh = {key_of(item): _lean(item) for item in answer.get("items") or ()}
        listed_at = _number(version)
        fresh.update(
            {key: body for key, body in self._observed.items() if _version(body) > listed_at}
        )
        self._end_listing()
        self.resource_version = str(version)
        self.trouble, self.must_wait = None, False
        return self._replace(fresh)

    def opened(self) -> None:
        """Take note that a watch has begun."""
        self._is_open = True
        self.trouble, self.must_wait = None, False

    def event(self, event: Any) -> set[str]:
        """Put in one event of a watch."""
        kind = event.get("type") if isinstance(event, dict) else None
        body = event.get("object") if isinstance(event, dict) else None
        if kind == "ERROR":
            # Code 410, another one or none: what the server has to say is that this watch is over.
            self._fail()
            self.resource_version = ""
            return set()
        version = _metadata(body).get("resourceVersion")
        if (
            not isinstance(kind, str)
            or kind not in _EVENTS
            or not version
            or not isinstance(body, dict)
        ):
            self.unknown_events += 1
            return set()
        self.failures = 0
        self.resource_version = str(version)
        if kind == "BOOKMARK":
            return set()
        return self._hide(body) if kind == "DELETED" else self._show(_lean(body))

    def ended(self, *, lasted: float) -> None:
        """Take note that the server ended a watch in good order, after so many seconds."""
        self._is_open = False
        if lasted < SHORT_WATCH:
            self._fail()
        else:
            self.failures = 0

    def broke(self, error: ApiError, *, lasted: float = 0.0) -> set[str]:
        """Take note that a list or watch failed, a watch after so many seconds."""
        was_open = self._is_open
        self._end_listing()
        if was_open and lasted >= SHORT_WATCH:
            self.failures = 0
        self._fail()
        if isinstance(error, NotFound):
            self.resource_version, self.trouble = "", Trouble.NOT_SERVED
            return self._replace({})
        if isinstance(error, Gone):
            self.resource_version = ""
        elif not was_open:
            self.trouble = Trouble.FAILING
            if error.status != HTTPStatus.TOO_MANY_REQUESTS:
                self.resource_version = ""
        return set()

    def observe(self, body: Json) -> None:
        """Show what a write of ours returned."""
        self._show(_lean(body))
        if self._is_listing:
            self._observed[key_of(body)] = _lean(body)

    def forget(self, uid: str) -> None:
        """Show no object of this UID."""
        for objects in (self.objects, self._observed):
            for key in [key for key, body in objects.items() if _metadata(body).get("uid") == uid]:
                del objects[key]

    def _fail(self) -> None:
        self._is_open = False
        self.failures += 1
        self.must_wait = True

    def _end_listing(self) -> None:
        self._is_listing = False
        self._observed.clear()

    def _show(self, body: Json) -> set[str]:
        key = key_of(body)
        if not _is_newer(body, self.objects.get(key)):
            return set()  # our own write came first
        self.objects[key] = body
        return {key}

    def _hide(self, body: Json) -> set[str]:
        key = key_of(body)
        known = self.objects.get(key)
        if known is None or _version(known) > _version(body):
            return set()
        del self.objects[key]
        return {key}

    def _replace(self, fresh: dict[str, Json]) -> set[str]:
        known = self.objects
        same = {key for key in known.keys() & fresh.keys() if _is_same(known[key], fresh[key])}
        changed = (known.keys() | fresh.keys()) - same
        known.clear()
        known.update(fresh)
        return changed


class Informer:
    """A cache of one resource that follows the server. Satisfies `WriteThroughCache`."""

    def __init__(
        self,
        client: ListWatcher,
        resource: Resource,
        *,
        label_selector: str = "",
        field_selector: str = "",
    ) -> None:
        self._client = client
        self._resource = resource
        self._selectors = {"label_selector": label_selector, "field_selector": field_selector}
        self._reflector = Reflector()
        self._callbacks: list[Callable[[str], None]] = []
        self._synced = asyncio.Event()
        self._told: tuple[Trouble | None, bool] = (Trouble.STARTING, False)
        self.attempts = 0
        """Lists and watches begun."""
        self.events = 0

    @property
    def is_synced(self) -> bool:
        """Whether the cache has held a complete list at least once since the start."""
        return self._synced.is_set()

    @property
    def trouble(self) -> Trouble | None:
        """Why the cache may be behind now, None if it follows the server."""
        return self._reflector.trouble

    @property
    def resource(self) -> Resource:
        """What is watched."""
        return self._resource

    def objects(self) -> Mapping[str, Json]:
        """The objects by `name` or `namespace/name`; must not be changed by the caller."""
        return self._reflector.objects

    def subscribe(self, callback: Callable[[str], None]) -> None:
        """Have `callback(key)` called after each change of an object, deletions included."""
        self._callbacks.append(callback)

    def observe(self, body: Json) -> None:
        """Show the object that a create, update or apply returned, before the watch brings it."""
        self._reflector.observe(body)

    def forget(self, uid: str) -> None:
        """Show no object with this UID any more: we deleted it."""
        self._reflector.forget(uid)

    async def synced(self) -> None:
        """Wait for the first complete list; the caller sets the deadline."""
        await self._synced.wait()

    async def run(self) -> None:
        """Follow the server for ever."""
        while True:
            error = await self._list() if self._reflector.needs_list else await self._watch()
            self._tell(error)
            delay = delay_after(self._reflector, error)
            if delay:
                await asyncio.sleep(delay)

    async def _list(self) -> ApiError | None:
        self.attempts += 1
        self._reflector.listing()
        try:
            answer = await self._client.list(self._resource, **self._selectors)
            changed = self._reflector.listed(answer)
        except ApiError as error:
            self._wake(self._reflector.broke(error))
            return error
        self._synced.set()
        self._wake(changed)
        return None

    async def _watch(self) -> ApiError | None:
        self.attempts += 1
        clock = asyncio.get_running_loop().time
        began = clock()
        watch = self._client.watch(
            self._resource,
            **self._selectors,
            resource_version=self._reflector.resource_version,
            timeout_seconds=_JITTER.randint(*WATCH_SECONDS),
        )
        try:
            async with watch as events:
                self._reflector.opened()
                self._tell(None)
                async for event in events:
                    self.events += 1
                    self._wake(self._reflector.event(event))
                    if self._reflector.needs_list:
                        return None
        except ApiError as error:
            self._wake(self._reflector.broke(error, lasted=clock() - began))
            return error
        self._reflector.ended(lasted=clock() - began)
        return None

    def _wake(self, keys: Iterable[str]) -> None:
        for key in keys:
            for callback in self._callbacks:
                callback(key)

    def _tell(self, error: ApiError | None) -> None:
        """Log a change of state once, not each attempt."""
        trouble = self._reflector.trouble
        state = (trouble, isinstance(error, Rejected))
        if state == self._told:
            return
        chosen = " ".join(filter(None, self._selectors.values()))
        log = _log.bind(resource=self._resource.plural, group=self._resource.group, selector=chosen)
        if trouble is None:
            log.info("watching", objects=len(self._reflector.objects))
        elif trouble is Trouble.NOT_SERVED:
            log.warning("not served by the API server; waiting for it", error=str(error))
        else:
            log.warning("can't be listed or watched; trying on", error=str(error))
        self._told = state


def delay_after(reflector: Reflector, error: ApiError | None) -> float:
    """Return how many seconds to wait before the next list or watch."""
    if not reflector.must_wait:
        return 0.0
    cap = MAX_DELAY_NOT_SERVED if reflector.trouble is Trouble.NOT_SERVED else MAX_DELAY
    delay = min(cap, FIRST_DELAY * 2.0 ** min(reflector.failures - 1, 10))
    asked = error.retry_after if error is not None and error.retry_after else 0.0
    return max(delay, asked) * _JITTER.uniform(1.0, 1.2)


def key_of(body: Mapping[str, Any]) -> str:
    """Return `name` or `namespace/name` of an object."""
    metadata = _metadata(body)
    name, namespace = str(metadata.get("name", "")), metadata.get("namespace")
    return f"{namespace}/{name}" if namespace else name


def _metadata(body: object) -> Mapping[str, Any]:
    metadata = body.get("metadata") if isinstance(body, Mapping) else None
    return metadata if isinstance(metadata, Mapping) else {}


def _lean(body: Json) -> Json:
    """Leave out who wrote which field: often more than half of an object, and nobody reads it."""
    metadata = _metadata(body)
    if "managedFields" not in metadata:
        return body
    kept = {key: value for key, value in metadata.items() if key != "managedFields"}
    return {**body, "metadata": kept}


def _is_same(one: Json, other: Json) -> bool:
    """Whether two bodies are one version of one object."""
    fields = ("uid", "resourceVersion")
    return all(_metadata(one).get(name) == _metadata(other).get(name) for name in fields)


def _is_newer(body: Json, known: Json | None) -> bool:
    """Compare versions as the numbers that they are; what can't be compared counts as newer."""
    if known is None:
        return True
    new, old = _version(body), _version(known)
    return new > old or new < 0 or old < 0


def _version(body: Json) -> int:
    return _number(_metadata(body).get("resourceVersion"))


def _number(version: object) -> int:
    text = str(version)
    return int(text) if text.isdecimal() else -1
