"""What the reconciler remembers of one Sink or Source between passes. No IO, no clock."""

from dataclasses import dataclass, field
from datetime import datetime

from liken_audio.api import NODE_LABEL, Json, Resource
from liken_audio.controllers.pacing import Pacing
from liken_audio.graph.model import ClaimHold, DeviceName, Endpoint
from liken_audio.resources import v1alpha1, verdicts
from liken_audio.resources.conditions import Condition, stamped
from liken_audio.resources.drift import covers, has_more, without_times
from liken_audio.resources.reconcile import Outcome
from liken_audio.resources.situation import Change, Memory, Situation

GONE_SECONDS = 60.0
"""How long a device must be away before its object, if nothing is declared in it, is deleted."""

Key = tuple[Resource, DeviceName]


@dataclass(slots=True)
class Tracked:
    """One object's state between passes."""

    memory: Memory = field(default_factory=Memory)
    inputs: object = None
    """What the last judgement was made of; None asks for a new one."""
    recheck_at: float | None = None
    endpoint: Endpoint | None = None
    """None: its device is gone."""
    gone_since: float | None = None
    holds: tuple[ClaimHold, ...] = ()
    situation: Situation | None = None
    """What the last judgement was about."""
    outcome: Outcome | None = None
    is_held_back: bool = False
    """Whether the status is left alone: a gap of the node that may be over in a second."""
    changes: dict[str, Change] = field(default_factory=dict)
    """Hardware writes to do, by field: the newest of each."""
    pacing: Pacing = field(default_factory=Pacing)
    applied: Json | None = None
    """The status that we applied last, without times."""
    answer: object = None
    """The status that the server stored for it."""

    def conditions(self) -> tuple[Condition, ...]:
        """The conditions to show."""
        return self.outcome.conditions if self.outcome is not None else verdicts.gone()

    def wanted_status(self, node_name: str, stored: Json | None, wall: datetime) -> Json:
        """The status to show; times of conditions that haven't changed are those stored."""
        status = status_of(stored)
        metadata = (stored or {}).get("metadata", {})
        conditions = stamped(
            self.conditions(),
            status.get("conditions") or (),
            int(metadata.get("generation", 1)),
            wall,
        )
        if self.endpoint is None or self.outcome is None:
            return v1alpha1.encode_gone_status(status, conditions)
        return v1alpha1.encode_status(
            self.endpoint, node_name, self.outcome.observed, self.holds, conditions
        )

    def is_stored(self, stored: Json | None, wanted: Json) -> bool:
        """Whether the stored status needs no write to be as wanted."""
        status = status_of(stored)
        bare = without_times(wanted)
        if self.applied == bare and self.answer == status:
            return True  # also where the server drops a field that it doesn't know
        before = self.applied if self.applied is not None else without_times(status)
        return covers(status, wanted) and not has_more(before, bare)

    def is_to_delete(self, stored: Json, now: float) -> bool:
        """Whether the device is gone for good and nothing is declared for it."""
        is_gone = self.gone_since is not None and self.gone_since + GONE_SECONDS <= now
        return is_gone and not v1alpha1.has_spec(stored)


def status_of(stored: Json | None) -> Json:
    """The status of a stored object, empty when there is none."""
    status = (stored or {}).get("status")
    return status if isinstance(status, dict) else {}


def is_labelled(stored: Json | None, label: str) -> bool:
    """Whether the object bears our node's label."""
    labels = (stored or {}).get("metadata", {}).get("labels") or {}
    return bool(labels.get(NODE_LABEL) == label)
