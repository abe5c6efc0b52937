"""Keys of work to do: each at most once, never two at a time, later after a failure.

Pure: time is an argument, in seconds of any clock that never runs backwards. A key that is added
while it is being worked on comes again afterwards. A failed key waits, twice as long each time up
to a cap, and adding it meanwhile doesn't shorten that; the waits of different keys are spread by
a number made from the key, so that a server that comes back isn't met by all at once.
"""

import zlib
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

_SPREAD = 0.2
"""Largest part that is added to a delay."""


@dataclass(slots=True)
class _Failures:
    count: int
    retry_at: float


class WorkQueue(Generic[K]):
    """Keys with the time from which each may be taken."""

    def __init__(self, *, first_delay: float, max_delay: float) -> None:
        self._first_delay = first_delay
        self._max_delay = max_delay
        self._ready_at: dict[K, float] = {}
        self._taken: set[K] = set()
        self._failures: dict[K, _Failures] = {}

    def __len__(self) -> int:
        return len(self._ready_at)

    def add(self, key: K, when: float) -> None:
        """Have `key` taken from `when` on; the earliest wish counts, a failure's wait before it."""
        failed = self._failures.get(key)
        when = max(when, failed.retry_at) if failed else when
        known = self._ready_at.get(key)
        self._ready_at[key] = when if known is None else min(known, when)

    def put_off(self, key: K, when: float) -> None:
        """Have `key` taken from `when` on, whatever was wished before."""
        failed = self._failures.get(key)
        self._ready_at[key] = max(when, failed.retry_at) if failed else when

    def discard(self, key: K) -> None:
        """There is nothing to do for `key` any more."""
        self._ready_at.pop(key, None)

    def take(self, now: float) -> K | None:
        """The key that has waited longest and isn't being worked on; None when none is due."""
        due = [
            (when, place)
            for place, (key, when) in enumerate(self._ready_at.items())
            if when <= now and key not in self._taken
        ]
        if not due:
            return None
        place = min(due)[1]
        key = list(self._ready_at)[place]
        del self._ready_at[key]
        self._taken.add(key)
        return key

    def done(self, key: K) -> None:
        """The work on a taken key has ended well."""
        self._taken.discard(key)
        self._failures.pop(key, None)

    def failed(self, key: K, now: float, *, at_least: float = 0.0) -> float:
        """The work on a taken key has failed: it comes again, at the time that is returned."""
        self._taken.discard(key)
        known = self._failures.get(key)
        count = known.count + 1 if known else 1
        delay = min(self._max_delay, self._first_delay * 2.0 ** min(count - 1, 30))
        delay = max(delay * (1 + _SPREAD * _fraction(key)), at_least)
        self._failures[key] = _Failures(count, now + delay)
        self._ready_at[key] = now + delay
        return now + delay

    def is_open(self, key: K) -> bool:
        """Whether `key` is being worked on, or waits for its first try."""
        return key in self._taken or (key in self._ready_at and key not in self._failures)

    def next_at(self) -> float | None:
        """When the next key that nobody works on may be taken; None when there is none."""
        waits = (when for key, when in self._ready_at.items() if key not in self._taken)
        return min(waits, default=None)


def _fraction(key: Hashable) -> float:
    """Number from 0 to 1 that is the same for equal keys in every process."""
    return zlib.crc32(repr(key).encode()) / 0xFFFF_FFFF
