"""When the publisher may write: quiet for changes, haste for faults and deletions, never hot.

Pure: time is an argument, in seconds of any clock that never runs backwards.
"""

from dataclasses import dataclass

QUIET_SECONDS = 0.1
MOST_SECONDS = 2.5
"""How long a change waits at most for the graph to be quiet."""
FIRST_DELAY, MAX_DELAY = 0.25, 30.0
CORRECTIONS_AT_ONCE = 3
"""How often in a row foreign changes are put right without a pause."""
CALM_SECONDS = 60.0
"""After so long without a foreign change the next one is the first again."""


@dataclass(slots=True)
class SlicePace:
    """What waits to be written and what holds it back."""

    changed_at: float = float("-inf")
    """Last change of the graph."""
    dirty_since: float | None = None
    """Since when the devices differ from those that were published last; None: they don't."""
    is_prompt: bool = False
    """A fault began to count, or it is the first time: no waiting for quiet."""
    is_foreign: bool = False
    """Slices changed, by somebody else or by us."""
    not_before: float = float("-inf")
    failures: int = 0
    """Failed attempts in a row."""
    corrections: int = 0
    corrected_at: float = float("-inf")

    def due(self) -> float | None:
        """When to plan and write; None when there is no reason to."""
        moments = []
        if self.dirty_since is not None:
            quiet = self.changed_at + QUIET_SECONDS
            moments.append(min(quiet, self.dirty_since + MOST_SECONDS))
        if self.is_prompt or self.is_foreign or self.failures:
            moments.append(float("-inf"))
        return max(self.not_before, min(moments)) if moments else None

    def takes_devices(self, now: float) -> bool:
        """Whether the devices of this moment are to be published, else those of the last time."""
        quiet = self.changed_at + QUIET_SECONDS
        is_late = self.dirty_since is not None and now >= self.dirty_since + MOST_SECONDS
        return self.is_prompt or now >= quiet or is_late

    def failed(self, now: float, *, asked: float | None, jitter: float) -> float:
        """Put the next attempt off and return the delay in seconds.

        `asked` is the server's Retry-After, `jitter` a random number from 0 to 1.
        """
        self.failures += 1
        delay = min(MAX_DELAY, FIRST_DELAY * 2.0 ** min(self.failures - 1, 10))
        delay = max(delay * (1 + jitter / 4), asked or 0.0)
        self.not_before = now + delay
        return delay

    def conflicted(self, now: float, *, jitter: float) -> float:
        """Somebody was faster: plan again now, later if that happens again. Returns the delay."""
        if self.failures:
            return self.failed(now, asked=None, jitter=jitter)
        self.failures = 1
        self.not_before = now
        return 0.0

    def corrected(self, now: float, *, jitter: float) -> None:
        """Somebody else's change was put right; if that goes on, the next time has to wait."""
        is_first = now - self.corrected_at > CALM_SECONDS
        self.corrections = 1 if is_first else self.corrections + 1
        self.corrected_at = now
        excess = self.corrections - CORRECTIONS_AT_ONCE
        if excess >= 0:
            delay = min(MAX_DELAY, FIRST_DELAY * 2.0 ** min(excess, 10))
            self.not_before = now + delay * (1 + jitter / 4)
