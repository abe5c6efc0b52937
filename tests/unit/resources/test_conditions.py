"""Conditions: times that move only with the status, and what becomes an Event."""

import re
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

from liken_audio.resources.conditions import (
    Condition,
    ConditionStatus,
    ConditionType,
    Reason,
    stamped,
    timestamp,
    transitions,
)

NOW = datetime(2026, 11, 30, 20, 0, tzinfo=UTC)
LATER = NOW + timedelta(minutes=5)
REFERENCE = Path(__file__).parents[3] / "docs" / "reference-sinks.md"


def ready(
    status: ConditionStatus = ConditionStatus.TRUE,
    reason: Reason = Reason.READY,
    message: str = "m",
) -> Condition:
    return Condition(ConditionType.READY, status, reason, message)


def applied(status: ConditionStatus, reason: Reason) -> Condition:
    return Condition(ConditionType.APPLIED, status, reason, "m")


def test_the_first_time_is_now() -> None:
    (one,) = stamped([ready()], [], 3, NOW)
    assert one["lastTransitionTime"] == "2026-11-30T20:00:00Z"
    assert one["observedGeneration"] == 3


def test_an_unchanged_status_keeps_its_time_though_reason_and_message_change() -> None:
    stored = stamped([ready(ConditionStatus.FALSE, Reason.NO_NODE)], [], 1, NOW)
    (one,) = stamped([ready(ConditionStatus.FALSE, Reason.MUTED, "other")], stored, 2, LATER)
    assert one["lastTransitionTime"] == timestamp(NOW)
    assert (one["reason"], one["message"], one["observedGeneration"]) == ("Muted", "other", 2)


def test_a_changed_status_moves_the_time() -> None:
    stored = stamped([ready()], [], 1, NOW)
    (one,) = stamped([ready(ConditionStatus.FALSE, Reason.NO_NODE)], stored, 1, LATER)
    assert one["lastTransitionTime"] == timestamp(LATER)


def test_times_are_in_utc() -> None:
    assert timestamp(NOW.astimezone(timezone(timedelta(hours=2)))) == "2026-11-30T20:00:00Z"


def test_a_long_message_is_cut() -> None:
    (one,) = stamped([ready(message="x" * 9_000)], [], 1, NOW)
    assert len(one["message"]) == 2_000


def test_a_change_is_news() -> None:
    stored = stamped([ready()], [], 1, NOW)
    (news,) = transitions([ready(ConditionStatus.FALSE, Reason.NO_NODE)], stored)
    assert (news.is_warning, news.reason) == (True, "NoNode")
    (back,) = transitions(
        [ready()], stamped([ready(ConditionStatus.FALSE, Reason.NO_NODE)], [], 1, NOW)
    )
    assert (back.is_warning, back.reason) == (False, "Ready")


def test_another_reason_is_news_too() -> None:
    stored = stamped([ready(ConditionStatus.FALSE, Reason.NO_NODE)], [], 1, NOW)
    (news,) = transitions([ready(ConditionStatus.FALSE, Reason.GRAPH_LOST)], stored)
    assert news.reason == "GraphLost"


def test_nothing_changed_is_no_news() -> None:
    stored = stamped([ready()], [], 1, NOW)
    assert transitions([ready(message="another wording")], stored) == []


def test_a_first_sight_is_no_news_and_neither_is_not_knowing() -> None:
    unknown = ready(ConditionStatus.UNKNOWN, Reason.STARTING)
    assert transitions([ready(ConditionStatus.FALSE, Reason.NO_MONITOR)], []) == []
    assert transitions([ready()], stamped([unknown], [], 1, NOW)) == []
    assert transitions([unknown], stamped([ready()], [], 1, NOW)) == []


def test_a_declared_value_that_does_not_hold_is_news_at_once() -> None:
    failed = applied(ConditionStatus.FALSE, Reason.INVALID_VALUE)
    fine = applied(ConditionStatus.TRUE, Reason.APPLIED)
    assert [one.reason for one in transitions([failed], [])] == ["InvalidValue"]
    assert transitions([fine], []) == []
    assert [one.reason for one in transitions([fine], stamped([failed], [], 1, NOW))] == ["Applied"]


def test_every_reason_is_explained_in_the_reference_and_no_other() -> None:
    text = REFERENCE.read_text()
    explained = set(re.findall(r"^\| `([A-Z][A-Za-z]+)` \|", text, re.MULTILINE))
    assert explained == {reason.value for reason in Reason}
