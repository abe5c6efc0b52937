"""When a declared value is written, and when no more."""

import pytest

from liken_audio.resources.enforcement import (
    CONFIRM_SECONDS,
    CONTEST_SECONDS,
    MAX_CORRECTIONS,
    Shown,
    Step,
    Value,
    Verdict,
    Write,
    believed,
    enforce,
)


def shown(value: Value | None, *, now: float = 0.0, live_since: float | None = 0.0) -> Shown:
    return Shown(value=value, now=now, live_since=live_since)


def asleep(value: Value | None, now: float = 0.0) -> Shown:
    return shown(value, now=now, live_since=None)


def passes(wanted: Value, steps: list[Shown], write: Write | None = None) -> list[Step]:
    """Enforce one view after the other, each with the memory of the one before."""
    done = []
    for view in steps:
        step = enforce(wanted, view, write)
        write = step.write
        done.append(step)
    return done


def writes(steps: list[Step]) -> int:
    return sum(step.must_write for step in steps)


def test_a_value_that_is_there_is_not_written() -> None:
    step = enforce((50,), shown((50,)), None)
    assert (step.verdict, step.must_write, step.write) == (Verdict.HOLDS, False, None)


def test_a_value_that_differs_is_written_once_and_then_holds() -> None:
    steps = passes((50,), [shown((80,)), shown((80,), now=0.1), shown((50,), now=0.2)])
    assert [step.verdict for step in steps] == [Verdict.PENDING, Verdict.PENDING, Verdict.HOLDS]
    assert writes(steps) == 1


def test_nothing_declared_writes_nothing_whatever_is_shown() -> None:
    step = enforce(None, shown((7,)), None)
    assert (step.verdict, step.must_write) == (Verdict.UNDECLARED, False)


@pytest.mark.parametrize("stale", [None, (100,)], ids=["nothing-shown", "old-number-shown"])
def test_a_write_that_can_not_be_seen_is_believed_and_never_repeated(stale: Value | None) -> None:
    """U20: a suspended node takes the write and doesn't say so."""
    steps = passes((50,), [asleep(stale, now=float(n)) for n in range(10)])
    assert writes(steps) == 1
    assert {step.verdict for step in steps} == {Verdict.BELIEVED}
    assert believed(asleep(stale, now=10.0), steps[-1].write) == (50,)


def test_a_believed_write_is_confirmed_when_the_node_runs() -> None:
    steps = passes((50,), [asleep((100,)), shown((50,), now=60.0, live_since=60.0)])
    assert (writes(steps), steps[-1].verdict) == (1, Verdict.HOLDS)


def test_a_believed_write_that_a_running_node_does_not_show_is_tried_once_more() -> None:
    awake = [shown((100,), now=60.0 + n, live_since=60.0) for n in (0.0, 0.5, 1.0, 2.0, 9.0)]
    steps = passes((50,), [asleep((100,)), *awake])
    assert writes(steps) == 2
    assert steps[1].verdict is Verdict.PENDING
    assert steps[-1].verdict is Verdict.IGNORED


def test_another_value_wanted_while_asleep_is_written_even_if_the_old_number_shows_it() -> None:
    """The number shown is old: after a believed 50 the node is not at 100."""
    first = enforce((50,), asleep((100,)), None)
    second = enforce((100,), asleep((100,), now=5.0), first.write)
    assert second.must_write
    third = enforce((100,), asleep((100,), now=6.0), second.write)
    assert (third.verdict, third.must_write) == (Verdict.BELIEVED, False)


def test_hardware_that_ignores_gets_two_writes_and_no_more() -> None:
    """U36: the read back stays 80 for ten seconds."""
    steps = passes((30,), [shown((80,), now=n / 10) for n in range(1, 101)])
    assert writes(steps) == 2
    assert steps[-1].verdict is Verdict.IGNORED


def test_coarse_hardware_that_ends_beside_the_value_gets_two_writes_in_all() -> None:
    after = [shown((53,), now=n / 10) for n in range(1, 100)]
    steps = passes((50,), [shown((80,)), *after])
    assert (writes(steps), steps[-1].verdict) == (2, Verdict.IGNORED)


def test_a_change_after_giving_up_is_a_new_reason_to_write() -> None:
    steps = passes((30,), [shown((80,), now=n / 10) for n in range(1, 50)])
    again = enforce((30,), shown((60,), now=9.0), steps[-1].write)
    assert again.must_write


def test_another_wish_after_giving_up_is_written() -> None:
    steps = passes((30,), [shown((80,), now=n / 10) for n in range(1, 50)])
    assert enforce((40,), shown((80,), now=9.0), steps[-1].write).must_write


def test_a_change_by_someone_else_is_put_back() -> None:
    steps = passes((50,), [shown((80,)), shown((50,), now=0.1), shown((70,), now=20.0)])
    assert writes(steps) == 2


def test_a_program_that_keeps_changing_it_is_answered_a_few_times_a_minute() -> None:
    views = []
    for second in range(int(CONTEST_SECONDS) - 1):
        views += [shown((80,), now=float(second)), shown((50,), now=second + 0.5)]
    steps = passes((50,), views)
    assert writes(steps) == MAX_CORRECTIONS
    assert Verdict.CONTESTED in {step.verdict for step in steps}
    later = enforce((50,), shown((80,), now=CONTEST_SECONDS + 1), steps[-1].write)
    assert later.must_write


def test_a_pending_write_says_when_to_look_again() -> None:
    step = enforce((50,), shown((80,), now=7.0), None)
    assert step.recheck_at == 7.0 + CONFIRM_SECONDS


def test_a_contested_value_says_when_it_may_be_written_again() -> None:
    views = []
    for n in range(MAX_CORRECTIONS + 1):
        views += [shown((80,), now=float(n)), shown((50,), now=n + 0.5)]
    contested = [s for s in passes((50,), views) if s.verdict is Verdict.CONTESTED]
    assert [step.recheck_at for step in contested] == [CONTEST_SECONDS]


def test_a_removed_wish_keeps_the_believed_number_for_the_report() -> None:
    first = enforce((50,), asleep((100,)), None)
    later = enforce(None, asleep((100,), now=3.0), first.write)
    assert not later.must_write
    assert believed(asleep((100,), now=3.0), later.write) == (50,)


def test_what_is_shown_counts_as_soon_as_it_is_new() -> None:
    first = enforce((50,), asleep((100,)), None)
    assert believed(asleep((45,), now=3.0), first.write) == (45,)
    assert believed(shown((45,), now=3.0), first.write) == (45,)
