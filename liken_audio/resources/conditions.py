"""Conditions of a Sink or Source: their types, the one list of reasons, and their times.

A condition is decided without a clock (`Condition`); `stamped` adds `lastTransitionTime`, which
moves only when the status does, and `transitions` says which changes a person should notice.
Every reason is explained in docs/reference-sinks.md; a test holds the two lists together.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from liken_audio.api import Json

_MAX_MESSAGE = 2_000
"""Characters of a message; the schema would take 32,768, a reader would not."""


class ConditionType(StrEnum):
    """What a condition speaks of."""

    CONNECTED = "Connected"
    READY = "Ready"
    APPLIED = "Applied"


class ConditionStatus(StrEnum):
    """The three values of a condition."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Reason(StrEnum):
    """Why a condition has its status; never renamed, since people and programs match on them."""

    # Connected
    CONNECTED = "Connected"
    NOT_DETECTABLE = "NotDetectable"
    # Connected and Ready
    UNPLUGGED = "Unplugged"
    NO_MONITOR = "NoMonitor"
    CARD_ABSENT = "CardAbsent"
    DEVICE_GONE = "DeviceGone"
    BLUETOOTH_LOST = "BluetoothLost"
    NO_ADAPTER = "NoAdapter"
    ADAPTER_OFF = "AdapterOff"
    UNPAIRED = "Unpaired"
    DISCONNECTED = "Disconnected"
    NO_DEVICE = "NoDevice"
    # Ready
    READY = "Ready"
    STARTING = "Starting"
    GRAPH_LOST = "GraphLost"
    NO_NODE = "NoNode"
    NODE_ERROR = "NodeError"
    MUTED = "Muted"
    SWITCH_OFF = "SwitchOff"
    VOLUME_ZERO = "VolumeZero"
    ENDPOINTS_LOST = "EndpointsLost"
    PROFILE_OFF = "ProfileOff"
    HEADSET_ONLY = "HeadsetOnly"
    CODEC_DEAD = "CodecDead"
    # Applied
    APPLIED = "Applied"
    NOTHING_DECLARED = "NothingDeclared"
    UNCONFIRMED = "Unconfirmed"
    WAITING = "Waiting"
    INVALID_VALUE = "InvalidValue"
    UNKNOWN_CONTROL = "UnknownControl"
    UNKNOWN_FIELD = "UnknownField"
    NOT_SUPPORTED = "NotSupported"
    CONTROL_READ_ONLY = "ControlReadOnly"
    CONTROL_INACTIVE = "ControlInactive"
    CONTROL_LOCKED = "ControlLocked"
    WRITE_FAILED = "WriteFailed"
    NOT_CONFIRMED = "NotConfirmed"
    CONTESTED = "Contested"


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition without its time."""

    type: ConditionType
    status: ConditionStatus
    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Transition:
    """A change that a person should notice: what becomes an Event."""

    is_warning: bool
    reason: str
    message: str


def stamped(
    conditions: Sequence[Condition], stored: Sequence[Json], generation: int, now: datetime
) -> list[Json]:
    """Conditions as API objects; a status that `stored` has too keeps its `lastTransitionTime`."""
    before = {str(entry.get("type")): entry for entry in stored}
    return [_stamp(one, before.get(one.type), generation, now) for one in conditions]


def transitions(conditions: Sequence[Condition], stored: Sequence[Json]) -> list[Transition]:
    """The changes from `stored` to `conditions` that are worth an Event.

    The first sight of an object is none, except for declared values that don't hold. Neither is
    leaving or entering Unknown for Connected and Ready: it means "not known yet".
    """
    before = {str(entry.get("type")): entry for entry in stored}
    found = []
    for one in conditions:
        old = before.get(one.type, {})
        if _is_news(one, str(old.get("status", "")), str(old.get("reason", ""))):
            found.append(_transition(one))
    return found


def timestamp(moment: datetime) -> str:
    """Moment as the API server writes it: UTC, whole seconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _stamp(one: Condition, old: Json | None, generation: int, now: datetime) -> Json:
    is_same = old is not None and old.get("status") == one.status
    changed = old.get("lastTransitionTime") if old is not None and is_same else None
    return {
        "type": str(one.type),
        "status": str(one.status),
        "observedGeneration": generation,
        "lastTransitionTime": changed or timestamp(now),
        "reason": str(one.reason),
        "message": one.message[:_MAX_MESSAGE],
    }


def _is_news(one: Condition, status: str, reason: str) -> bool:
    if one.type is ConditionType.APPLIED:
        failed = one.status is ConditionStatus.FALSE
        recovered = status == ConditionStatus.FALSE and one.status is ConditionStatus.TRUE
        return (failed and (status, reason) != (one.status, one.reason)) or recovered
    settled = {ConditionStatus.TRUE, ConditionStatus.FALSE}
    if status not in settled or one.status not in settled:
        return False
    return (status, reason) != (one.status, one.reason)


_RECOVERED = {
    ConditionType.CONNECTED: "Connected",
    ConditionType.READY: "Ready",
    ConditionType.APPLIED: "Applied",
}


def _transition(one: Condition) -> Transition:
    if one.status is ConditionStatus.TRUE:
        return Transition(
            is_warning=False, reason=_RECOVERED[one.type], message=f"{one.type}: {one.message}"
        )
    return Transition(is_warning=True, reason=str(one.reason), message=f"{one.type}: {one.message}")
