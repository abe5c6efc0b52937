"""The keyed queue: no duplicates, never two at a time, later after a failure."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liken_audio.controllers.workqueue import WorkQueue


def queue() -> WorkQueue[str]:
    return WorkQueue(first_delay=1.0, max_delay=8.0)


def test_a_key_that_is_added_twice_is_taken_once() -> None:
    work = queue()
    work.add("a", 0.0)
    work.add("a", 0.0)
    assert (work.take(0.0), work.take(0.0)) == ("a", None)


def test_the_key_that_waits_longest_comes_first() -> None:
    work = queue()
    work.add("late", 2.0)
    work.add("early", 1.0)
    work.add("now", 1.0)
    assert [work.take(9.0) for _ in range(4)] == ["early", "now", "late", None]


def test_a_key_is_not_taken_before_its_time() -> None:
    work = queue()
    work.add("a", 5.0)
    assert work.take(4.9) is None
    assert work.next_at() == 5.0
    assert work.take(5.0) == "a"


def test_the_earliest_wish_counts() -> None:
    work = queue()
    work.add("a", 5.0)
    work.add("a", 3.0)
    work.add("a", 9.0)
    assert work.next_at() == 3.0


def test_putting_off_overrides_an_earlier_wish() -> None:
    work = queue()
    work.add("a", 3.0)
    work.put_off("a", 9.0)
    assert work.next_at() == 9.0


def test_a_key_that_is_added_while_worked_on_comes_again_afterwards() -> None:
    work = queue()
    work.add("a", 0.0)
    assert work.take(0.0) == "a"
    work.add("a", 1.0)
    assert (work.take(1.0), work.next_at()) == (None, None)
    work.done("a")
    assert (work.next_at(), work.take(1.0)) == (1.0, "a")


def failure_delays(work: WorkQueue[str], key: str, times: int) -> list[float]:
    now, delays = 0.0, []
    work.add(key, now)
    for _ in range(times):
        assert work.take(now) == key
        again = work.failed(key, now)
        delays.append(again - now)
        now = again
    return delays


def test_each_failure_in_a_row_waits_longer_up_to_the_cap() -> None:
    delays = failure_delays(queue(), "a", 6)
    steps = [later / earlier for earlier, later in itertools.pairwise(delays)]
    assert steps[:3] == pytest.approx([2.0, 2.0, 2.0])
    assert steps[3:] == pytest.approx([1.0, 1.0])
    assert 8.0 <= delays[-1] <= 8.0 * 1.2


def test_success_forgets_the_failures() -> None:
    work = queue()
    first = failure_delays(work, "a", 4)[0]
    work.take(1_000.0)
    work.done("a")
    assert failure_delays(work, "a", 1) == [first]


def test_adding_does_not_shorten_a_failures_wait() -> None:
    work = queue()
    work.add("a", 0.0)
    work.take(0.0)
    again = work.failed("a", 0.0)
    work.add("a", 0.0)
    work.put_off("a", 0.0)
    assert work.take(again - 0.01) is None
    assert work.take(again) == "a"


def test_the_server_may_ask_for_a_longer_wait() -> None:
    work = queue()
    work.add("a", 0.0)
    work.take(0.0)
    assert work.failed("a", 0.0, at_least=30.0) == 30.0


def test_different_keys_come_back_at_different_times() -> None:
    assert len({failure_delays(queue(), f"sink-{n}", 1)[0] for n in range(20)}) > 15


def test_a_discarded_key_is_not_taken() -> None:
    work = queue()
    work.add("a", 0.0)
    work.discard("a")
    work.discard("unknown")
    assert (work.take(0.0), len(work)) == (None, 0)


def test_a_key_is_open_until_it_was_tried() -> None:
    work = queue()
    assert not work.is_open("a")
    work.add("a", 0.0)
    assert work.is_open("a")
    work.take(0.0)
    assert work.is_open("a")
    work.failed("a", 0.0)
    assert not work.is_open("a")


@given(st.lists(st.sampled_from(["add", "take", "done", "failed"]), max_size=60))
def test_no_key_is_ever_worked_on_twice_at_once_or_lost(script: list[str]) -> None:
    work, taken, is_wanted, now = queue(), False, False, 0.0
    for action in script:
        now += 100.0
        if action == "add":
            work.add("a", now)
            is_wanted = True
        elif action == "take":
            key = work.take(now)
            assert (key == "a") == (is_wanted and not taken)
            taken, is_wanted = taken or key == "a", is_wanted and taken
        elif taken:
            if action == "done":
                work.done("a")
            else:
                work.failed("a", now)
                is_wanted = True
            taken = False
