"""When the publisher may write."""

import pytest

from liken_audio.controllers.slice_pace import SlicePace


def test_nothing_to_do_is_never_due() -> None:
    assert SlicePace().due() is None


def test_a_change_waits_for_100_ms_of_quiet() -> None:
    pace = SlicePace(changed_at=10.0, dirty_since=10.0)
    assert pace.due() == pytest.approx(10.1)
    assert not pace.takes_devices(10.05)
    assert pace.takes_devices(10.1)


def test_a_change_in_a_storm_waits_at_most_two_and_a_half_seconds() -> None:
    pace = SlicePace(changed_at=12.49, dirty_since=10.0)
    assert pace.due() == pytest.approx(12.5)
    assert pace.takes_devices(12.5)


def test_a_fault_that_counts_waits_for_no_quiet() -> None:
    pace = SlicePace(changed_at=10.0, dirty_since=10.0, is_prompt=True)
    assert (pace.due() or 0) <= 10.0
    assert pace.takes_devices(10.0)


def test_a_foreign_change_is_due_at_once_and_does_not_take_unsettled_devices() -> None:
    pace = SlicePace(changed_at=10.0, dirty_since=10.0, is_foreign=True)
    assert (pace.due() or 0) <= 10.0
    assert not pace.takes_devices(10.0)


def test_failures_wait_longer_each_time_up_to_30_seconds() -> None:
    pace = SlicePace()
    delays = [pace.failed(100.0, asked=None, jitter=0.0) for _ in range(12)]
    assert delays[:4] == [0.25, 0.5, 1.0, 2.0]
    assert delays[-1] == 30.0
    assert pace.due() == 130.0


def test_jitter_adds_at_most_a_quarter() -> None:
    assert SlicePace().failed(0.0, asked=None, jitter=1.0) == pytest.approx(0.3125)


def test_the_server_may_ask_for_more() -> None:
    pace = SlicePace()
    assert pace.failed(0.0, asked=17.0, jitter=0.5) == 17.0
    assert pace.due() == 17.0


@pytest.mark.parametrize("reason", ["is_prompt", "is_foreign"])
def test_nothing_shortens_the_wait_after_a_failure(reason: str) -> None:
    pace = SlicePace(changed_at=0.0, dirty_since=0.0)
    pace.failed(0.0, asked=5.0, jitter=0.0)
    setattr(pace, reason, True)
    assert pace.due() == 5.0


def test_a_first_conflict_is_planned_again_at_once_and_the_next_ones_wait() -> None:
    pace = SlicePace()
    assert [pace.conflicted(7.0, jitter=0.0) for _ in range(3)] == [0.0, 0.5, 1.0]


def test_foreign_changes_are_put_right_at_once_until_they_go_on_and_on() -> None:
    pace = SlicePace()
    waits = []
    now = 0.0
    for _ in range(12):
        pace.corrected(now, jitter=0.0)
        waits.append(max(0.0, pace.not_before - now))
        now = max(now, pace.not_before) + 0.1
    assert waits[:5] == pytest.approx([0.0, 0.0, 0.25, 0.5, 1.0])
    assert waits[-1] == pytest.approx(30.0)


def test_after_a_minute_of_calm_the_next_foreign_change_is_the_first_again() -> None:
    pace = SlicePace(corrections=9, corrected_at=100.0)
    pace.corrected(161.0, jitter=0.0)
    assert pace.corrections == 1
    assert pace.not_before < 161.0
