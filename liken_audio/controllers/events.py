"""Events on Sinks and Sources: what a person should notice, once, and never in the way.

Best effort: `record` only queues; the same thing said again within `SERIES_SECONDS` raises the
count of the Event that is there, written at most once in `SERIES_GAP_SECONDS`; an object that
has more to say than `BURST` things in that time is cut short, and `dropped` counts it. An Event
that can't be written after a few tries is dropped too: the conditions tell the same.
"""

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

import structlog

from liken_audio.api import DRIVER, EVENTS, ApiError, Json, NotFound
from liken_audio.controllers.ports import ResourceClient
from liken_audio.controllers.workers import Workers
from liken_audio.controllers.workqueue import WorkQueue
from liken_audio.resources.conditions import Transition

SERIES_SECONDS = 600.0
SERIES_GAP_SECONDS = 60.0
BURST = 10
MAX_TRIES = 4

_MAX_NOTE = 1_000
"""Characters; the server takes 1,024 bytes."""
_NAMESPACE = "default"
"""Where the Events of objects without a namespace are, by Kubernetes' own rule."""

_log = structlog.get_logger(__name__)

Key = tuple[str, str, str]
"""UID of the object, reason and note."""


@dataclass(slots=True)
class _Entry:
    body: Json
    last_seen: float
    count: int = 1
    tries: int = 0
    is_stored: bool = False
    last_time: str = ""


@dataclass(slots=True)
class _Ledger:
    """Which Events are known; no IO."""

    entries: dict[Key, _Entry] = field(default_factory=dict)

    def prune(self, now: float) -> None:
        """Forget what was last said long ago."""
        old = [k for k, entry in self.entries.items() if now - entry.last_seen > SERIES_SECONDS]
        for key in old:
            del self.entries[key]

    def is_full(self, uid: str) -> bool:
        """Whether the object has said enough for now."""
        return sum(1 for key in self.entries if key[0] == uid) >= BURST


class EventRecorder:
    """Writes Events from its own loop. Satisfies the reconciler's wish for one."""

    def __init__(
        self, client: ResourceClient, node_name: str, wall: Callable[[], datetime]
    ) -> None:
        self._client = client
        self._node_name = node_name
        self._wall = wall
        self._ledger = _Ledger()
        self._workers: Workers[Key] = Workers(
            WorkQueue(first_delay=2.0, max_delay=60.0), self._write, _wait_at_least, (ApiError,)
        )
        self.writes = 0
        self.errors = 0
        self.dropped = 0

    def record(self, stored: Json, transition: Transition) -> None:
        """Have an Event about the `stored` object written soon; never waits, never raises."""
        now = asyncio.get_running_loop().time()
        self._ledger.prune(now)
        uid = str(stored["metadata"].get("uid", ""))
        key = (uid, transition.reason, transition.message)
        known = self._ledger.entries.get(key)
        if known is not None:
            known.count += 1
            known.last_seen, known.last_time = now, self._time()
            self._workers.add(key, now + SERIES_GAP_SECONDS)
        elif self._ledger.is_full(uid):
            self.dropped += 1
            return
        else:
            self._ledger.entries[key] = _Entry(self._body(stored, transition), now)
            self._workers.add(key, now)

    async def run(self) -> None:
        """Write what is queued, for ever."""
        await self._workers.run()

    async def _write(self, key: Key) -> None:
        entry = self._ledger.entries.get(key)
        if entry is None:
            return
        try:
            await self._send(entry)
        except ApiError as error:
            self.errors += 1
            entry.tries += 1
            if entry.tries < MAX_TRIES:
                raise
            self._give_up(key, error)
        else:
            entry.tries = 0
            self.writes += 1

    async def _send(self, entry: _Entry) -> None:
        if not entry.is_stored:
            entry.body = await self._client.create(EVENTS, entry.body)
            entry.is_stored = True
            return
        series = {"count": entry.count, "lastObservedTime": entry.last_time}
        try:
            entry.body = await self._client.update(EVENTS, {**entry.body, "series": series})
        except NotFound:
            # Events expire after an hour: this one begins anew.
            entry.is_stored = False
            metadata = {key: entry.body["metadata"][key] for key in ("namespace", "name")}
            entry.body = {**entry.body, "metadata": metadata}
            raise

    def _give_up(self, key: Key, error: ApiError) -> None:
        self.dropped += 1
        del self._ledger.entries[key]
        _log.warning("an Event could not be written", reason=key[1], error=str(error))

    def _body(self, stored: Json, transition: Transition) -> Json:
        name, moment = stored["metadata"]["name"], self._time()
        seed = f"{name} {transition.reason} {transition.message} {self._node_name} {moment}"
        digest = hashlib.sha256(seed.encode()).hexdigest()[:16]
        return {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "metadata": {"namespace": _NAMESPACE, "name": f"{name}.{digest}"},
            "eventTime": moment,
            "reportingController": DRIVER,
            "reportingInstance": self._node_name[:128],
            "action": "Observe",
            "reason": transition.reason,
            "type": "Warning" if transition.is_warning else "Normal",
            "note": transition.message.encode()[:_MAX_NOTE].decode(errors="ignore"),
            "regarding": {
                "apiVersion": stored.get("apiVersion", ""),
                "kind": stored.get("kind", ""),
                "name": name,
                "uid": stored["metadata"].get("uid", ""),
            },
        }

    def _time(self) -> str:
        return self._wall().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _wait_at_least(_key: Key, error: Exception) -> float:
    return (error.retry_after or 0.0) if isinstance(error, ApiError) else 0.0
