"""When a declared value is written: once on divergence, then believed, never in a loop.

Pure, one function for volume, mute and mixer controls alike. What the partner tells:

- A value that equals the wanted one holds; nothing is written.
- A suspended PipeWire node takes a write without showing it. Such a write is believed until the
  node runs: no repetition.
- Where writes are shown, a value that hasn't come after `CONFIRM_SECONDS` is written once more,
  then given up until it, or what is wanted, changes. Hardware with coarse steps ends there too.
- A value that held and then differs was changed by someone else: written again, but not more
  often than `MAX_CORRECTIONS` in `CONTEST_SECONDS`, so that two programs can't fight for ever.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

CONFIRM_SECONDS = 1.0
MAX_TRIES = 2
MAX_CORRECTIONS = 6
CONTEST_SECONDS = 60.0

Value = tuple[int, ...]
"""A volume in percent and a mute are of length 1 when all channels are alike; a control has one
value a channel."""


class Verdict(StrEnum):
    """How a declared value stands."""

    UNDECLARED = "undeclared"
    HOLDS = "holds"
    BELIEVED = "believed"
    """Written, and the partner can't show it now."""
    PENDING = "pending"
    """Written, and not shown yet."""
    IGNORED = "ignored"
    """Written twice and not taken."""
    CONTESTED = "contested"
    """Changed back so often that the next correction waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """Memory of the writes to one value."""

    wanted: Value
    before: Value | None
    """What was shown at the last write; None when nothing was."""
    at: float
    tries: int = 1
    is_open: bool = True
    """Until the wanted value has been seen, or is no longer wanted."""
    recent: tuple[float, ...] = ()
    """Times of first tries, the newest last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What the partner shows, and whether a write would be seen there."""

    value: Value | None
    now: float
    """Seconds on the loop's clock."""
    live_since: float | None
    """When writes began to be shown (a node runs); None while they are not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What to do now; `recheck_at` is when to ask again though nothing changes."""

    verdict: Verdict
    write: Write | None
    must_write: bool = False
    recheck_at: float | None = None


def enforce(wanted: Value | None, shown: Shown, write: Write | None) -> Step:
    """Compare what is wanted (None: nothing) with what is shown and what was written before."""
    if wanted is None:
        return Step(verdict=Verdict.UNDECLARED, write=_laid_down(shown, write))
    # A believable write comes before what is shown, which is old then.
    if write is not None and _is_believable(shown, write):
        if write.wanted == wanted:
            return Step(verdict=Verdict.BELIEVED, write=write)
        return _first_try(wanted, shown, write)
    if shown.value == wanted:
        return Step(verdict=Verdict.HOLDS, write=write and replace(write, is_open=False))
    if write is None or write.wanted != wanted or not write.is_open:
        return _first_try(wanted, shown, write)
    return _next_try(wanted, shown, write)


def believed(shown: Shown, write: Write | None) -> Value | None:
    """The value to report: what was written while the partner can't show it, else what is shown."""
    if write is not None and _is_believable(shown, write):
        return write.wanted
    return shown.value


def _is_believable(shown: Shown, write: Write) -> bool:
    return write.is_open and shown.live_since is None and shown.value == write.before


def _laid_down(shown: Shown, write: Write | None) -> Write | None:
    """Keep a write that nothing has shown yet, for the report, and the history of the others."""
    if write is None or _is_believable(shown, write):
        return write
    return replace(write, is_open=False)


def _first_try(wanted: Value, shown: Shown, write: Write | None) -> Step:
    recent = tuple(at for at in (write.recent if write else ()) if at > shown.now - CONTEST_SECONDS)
    is_correction = write is not None and write.wanted == wanted
    if is_correction and len(recent) >= MAX_CORRECTIONS:
        return Step(verdict=Verdict.CONTESTED, write=write, recheck_at=recent[0] + CONTEST_SECONDS)
    fresh = Write(
        wanted=wanted,
        before=shown.value,
        at=shown.now,
        recent=(*recent, shown.now)[-MAX_CORRECTIONS:],
    )
    return _written(shown, fresh)


def _next_try(wanted: Value, shown: Shown, write: Write) -> Step:
    deadline = max(write.at, shown.live_since or write.at) + CONFIRM_SECONDS
    if shown.now < deadline:
        return Step(verdict=Verdict.PENDING, write=write, recheck_at=deadline)
    if write.tries < MAX_TRIES:
        again = replace(write, before=shown.value, at=shown.now, tries=write.tries + 1)
        return _written(shown, again)
    if shown.value != write.before:
        return _first_try(wanted, shown, write)
    return Step(verdict=Verdict.IGNORED, write=write)


def _written(shown: Shown, write: Write) -> Step:
    recheck = None if shown.live_since is None else shown.now + CONFIRM_SECONDS
    verdict = Verdict.BELIEVED if shown.live_since is None else Verdict.PENDING
    return Step(verdict=verdict, write=write, must_write=True, recheck_at=recheck)
