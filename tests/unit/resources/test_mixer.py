"""Declared mixer controls against a card."""

from dataclasses import replace
from typing import Any

import pytest

from liken_audio.graph.model import Control, ControlType
from liken_audio.resources.conditions import Reason
from liken_audio.resources.enforcement import Verdict
from liken_audio.resources.mixer import judge, observed_text
from liken_audio.resources.situation import Judged, Memory, SetControl, Situation
from liken_audio.resources.v1alpha1 import Spec
from tests.builders import card, control, endpoint

LEVEL = control(
    "Master Playback Volume",
    type=ControlType.INTEGER,
    minimum=0,
    maximum=87,
    channels=2,
    values=(20, 20),
)
KEY = LEVEL.name


def judged(
    *controls: Control, memory: Memory | None = None, now: float = 0.0, **spec: str
) -> Judged:
    declared = spec or {KEY: "40"}
    return judge(situation(controls, declared), memory or Memory(), now)


def situation(
    controls: tuple[Control, ...], declared: dict[str, str], **card_changes: Any
) -> Situation:
    one = endpoint(controls=controls, card=card(controls=controls, **card_changes))
    return Situation(endpoint=one, fault=None, spec=Spec(controls=declared))


def test_a_declared_control_is_written_once_for_all_channels() -> None:
    first = judged(LEVEL)
    (change,) = first.changes
    assert isinstance(change, SetControl)
    assert (change.control, change.values) == (LEVEL, (40, 40))
    done = judged(replace(LEVEL, values=(40, 40)), memory=first.memory, now=0.1)
    assert done.changes == ()


def test_a_control_that_holds_is_not_written() -> None:
    assert judged(replace(LEVEL, values=(40, 40))).changes == ()


def test_a_trimmed_name_is_told_the_right_spelling() -> None:
    """U40."""
    (found,) = judged(control("E30 "), E30="on").problems
    assert found.reason is Reason.UNKNOWN_CONTROL
    assert "did you mean 'E30 '?" in found.message


def test_the_right_spelling_is_applied_to_the_first_of_two() -> None:
    """U40: the same name with index 1 is another control."""
    name = "MISSION USB Audio 2.0 "
    first = control(name, type=ControlType.INTEGER, maximum=127, values=(5,))
    second = replace(first, index=1)
    (change,) = judged(first, second, **{name: "100"}).changes
    assert isinstance(change, SetControl)
    assert change.control == first


def test_no_controls_at_all_is_said() -> None:
    (found,) = judged().problems
    assert "has none here" in found.message


def test_a_value_out_of_range_names_the_range_and_the_others_count() -> None:
    found = judged(LEVEL, control("Loudness", values=(0,)), **{KEY: "99", "Loudness": "on"})
    assert [one.reason for one in found.problems] == [Reason.INVALID_VALUE]
    assert "from 0 to 87" in found.problems[0].message
    assert [one.field for one in found.changes] == ['controls["Loudness"]']


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ({"is_locked": True}, Reason.CONTROL_LOCKED),
        ({"is_inactive": True}, Reason.CONTROL_INACTIVE),
        ({"is_writable": False}, Reason.CONTROL_READ_ONLY),
    ],
)
def test_a_control_that_refuses_is_not_written_but_told(
    what: dict[str, bool], reason: Reason
) -> None:
    """U51."""
    found = judged(replace(LEVEL, **what))
    assert found.changes == ()
    assert [one.reason for one in found.problems] == [reason]


def test_a_control_that_refuses_but_holds_is_no_problem() -> None:
    assert judged(replace(LEVEL, values=(40, 40), is_locked=True)).problems == ()


def test_a_lock_that_is_gone_lets_the_write_through() -> None:
    locked = judged(replace(LEVEL, is_locked=True))
    assert len(judged(LEVEL, memory=locked.memory, now=1.0).changes) == 1


def test_a_control_that_can_not_be_read_is_written_once() -> None:
    """U44: the read fails with EINVAL, for good."""
    unreadable = replace(LEVEL, values=None)
    memory, writes = Memory(), 0
    for n in range(10):
        found = judged(unreadable, memory=memory, now=float(n))
        memory, writes = found.memory, writes + len(found.changes)
    assert writes == 1
    assert observed_text(unreadable, memory.controls[KEY], 10.0) == "40"
    assert observed_text(unreadable, None, 10.0) is None


def test_a_volatile_control_is_written_once_and_shows_no_value_of_its_own() -> None:
    """U51: it must never cause a write by itself."""
    memory, writes = Memory(), 0
    for n in range(10):
        moving = replace(LEVEL, values=(n, n), is_volatile=True)
        found = judged(moving, memory=memory, now=float(n))
        memory, writes = found.memory, writes + len(found.changes)
        assert observed_text(moving, None, float(n)) is None
    assert writes == 1


def test_a_value_outside_its_range_is_left_alone_unless_declared() -> None:
    """U43: range 0-50, value 67."""
    odd = replace(LEVEL, maximum=50, values=(67, 67))
    assert judge(situation((odd,), {}), Memory(), 0.0).changes == ()
    assert observed_text(odd, None, 0.0) == "67"
    assert len(judged(odd).changes) == 1


def test_hardware_that_ignores_a_control_is_given_up() -> None:
    memory, writes = Memory(), 0
    for n in range(20):
        found = judged(LEVEL, memory=memory, now=float(n))
        memory, writes = found.memory, writes + len(found.changes)
    assert writes == 2
    assert {step.verdict for step in found.steps.values()} == {Verdict.IGNORED}


def test_a_removed_control_is_forgotten() -> None:
    first = judged(LEVEL)
    assert judge(situation((LEVEL,), {}), first.memory, 1.0).memory.controls == {}


def test_an_absent_card_is_not_written_and_written_when_it_is_back() -> None:
    """U61: declared controls are applied again after a replug, once."""
    memory = judged(replace(LEVEL, values=(40, 40))).memory
    away = judge(situation((LEVEL,), {KEY: "40"}, is_present=False), memory, 1.0)
    assert (away.changes, away.problems) == ((), ())
    back = judged(LEVEL, memory=away.memory, now=5.0)
    assert len(back.changes) == 1
