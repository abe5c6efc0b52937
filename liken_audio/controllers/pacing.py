"""When a changed status is written: at once, or after quiet when changes keep coming.

Pure. The first change after a quiet time is due now. Changes that follow each other closer than
`QUIET_SECONDS` are due when that much quiet has passed, at the latest `MAX_WAIT_SECONDS` after
the first of them: ten thousand changes in two seconds make two writes.
"""

from dataclasses import dataclass

from liken_audio.api import Json

QUIET_SECONDS = 0.25
MAX_WAIT_SECONDS = 3.0


@dataclass(slots=True)
class Pacing:
    """The changes of one object."""

    wanted: Json | None = None
    """The status at the last change."""
    _changed_at: float = float("-inf")
    _waiting_since: float | None = None
    _due: float = float("-inf")

    def due(self, wanted: Json, now: float) -> float:
        """When `wanted`, which isn't stored yet, is to be written."""
        if self._waiting_since is not None and self.wanted == wanted:
            return self._due
        is_quiet = now - self._changed_at >= QUIET_SECONDS
        if self._waiting_since is None:
            self._waiting_since = now
            self._due = now if is_quiet else now + QUIET_SECONDS
        else:
            self._due = min(now + QUIET_SECONDS, self._waiting_since + MAX_WAIT_SECONDS)
        self.wanted, self._changed_at = wanted, now
        return self._due

    def settled(self, wanted: Json, now: float) -> None:
        """Nothing is left to write: it was written, or the changes went back to what is stored."""
        if self.wanted != wanted:
            self.wanted, self._changed_at = wanted, now
        self._waiting_since = None
