"""Faults as they are → faults that count: short gaps are normal and taint nothing.

A screen that sleeps, a profile that flips and a PipeWire that restarts take a node away for a
second or two; evicting pods for that would be worse than the silence. So:

- A fault counts once the device has had some fault at every moment of the last `GRACE_SECONDS`;
  which fault it is may change meanwhile, and the latest is what counts. One moment without a
  fault starts the time anew.
- A fault that lasts from the device's first sight and comes from its card (no monitor, plug out)
  counts at once: nothing was ever there that could come back in a second. The graph and the node
  have their grace even then, since at a start they come later than the cards.
- Clearing is immediate.

Time is an argument, in seconds of any clock that never runs backwards. The caller passes all
devices each time; one that it leaves out is forgotten and seen for the first time again later.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from liken_audio.graph.model import DeviceName, Fault

GRACE_SECONDS = 3.0
_AT_ONCE = frozenset({Fault.NO_MONITOR, Fault.UNPLUGGED})


@dataclass(frozen=True, slots=True)
class Settled:
    """What counts at one moment, and when to ask again."""

    faults: Mapping[DeviceName, Fault | None]
    """All devices that were passed in; None: fine, or not for long enough away."""
    next_deadline: float | None
    """When the first fault that doesn't count yet will, if nothing changes; None: none waits."""


class Presence:
    """Remembers since when each device has a fault."""

    def __init__(self) -> None:
        self._counts_from: dict[DeviceName, float | None] = {}
        """For each known device the moment from which its fault counts; None: it has no fault."""

    def settle(self, faults: Mapping[DeviceName, Fault | None], now: float) -> Settled:
        """Take the devices' faults of this moment and return those that count."""
        self._counts_from = {name: self._moment(name, fault, now) for name, fault in faults.items()}
        waiting = [
            moment for moment in self._counts_from.values() if moment is not None and moment > now
        ]
        return Settled(
            faults={
                name: None if self._waits(name, now) else fault for name, fault in faults.items()
            },
            next_deadline=min(waiting, default=None),
        )

    def _moment(self, name: DeviceName, fault: Fault | None, now: float) -> float | None:
        if fault is None:
            return None
        known = self._counts_from.get(name)
        if known is not None:
            return known
        is_first_sight = name not in self._counts_from
        return now if is_first_sight and fault in _AT_ONCE else now + GRACE_SECONDS

    def _waits(self, name: DeviceName, now: float) -> bool:
        moment = self._counts_from[name]
        return moment is not None and moment > now
