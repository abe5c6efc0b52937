"""When a changed status is due."""

from liken_audio.controllers.pacing import MAX_WAIT_SECONDS, QUIET_SECONDS, Pacing


def test_the_first_change_is_due_at_once() -> None:
    assert Pacing().due({"a": 1}, 10.0) == 10.0


def test_a_change_after_a_quiet_time_is_due_at_once() -> None:
    pacing = Pacing()
    pacing.due({"a": 1}, 10.0)
    pacing.settled({"a": 1}, 10.01)
    assert pacing.due({"a": 2}, 10.0 + QUIET_SECONDS) == 10.0 + QUIET_SECONDS


def test_a_change_soon_after_another_waits_for_quiet() -> None:
    pacing = Pacing()
    pacing.due({"a": 1}, 10.0)
    pacing.settled({"a": 1}, 10.01)
    assert pacing.due({"a": 2}, 10.1) == 10.1 + QUIET_SECONDS
    assert pacing.due({"a": 3}, 10.2) == 10.2 + QUIET_SECONDS


def test_asking_again_for_the_same_change_does_not_move_it() -> None:
    pacing = Pacing()
    assert [pacing.due({"a": 1}, now) for now in (10.0, 10.1, 10.2)] == [10.0] * 3


def test_changes_that_never_stop_are_written_after_the_longest_wait() -> None:
    pacing = Pacing()
    pacing.due({"a": 0}, 10.0)
    pacing.settled({"a": 0}, 10.0)
    dues = [pacing.due({"a": n}, 10.0 + n / 10) for n in range(1, 100)]
    assert max(dues) == 10.1 + MAX_WAIT_SECONDS


def test_changes_that_went_back_leave_nothing_to_write() -> None:
    pacing = Pacing()
    pacing.settled({"a": 1}, 0.0)
    pacing.due({"a": 2}, 10.0)
    pacing.settled({"a": 1}, 10.1)
    assert pacing.due({"a": 2}, 10.2) == 10.2 + QUIET_SECONDS
