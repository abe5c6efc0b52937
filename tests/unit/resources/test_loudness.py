"""Volume and mute: what is written to a node, when, and what is reported."""

import itertools
from dataclasses import replace
from typing import Any

import pytest

from liken_audio.graph.model import Fault, Linear, Node, NodeSerial, Percent
from liken_audio.resources.loudness import (
    ABSOLUTE_SECONDS,
    LIMIT_SECONDS,
    judge,
    observed_mute,
    observed_volume,
    to_linear,
    to_percent,
)
from liken_audio.resources.situation import Judged, Memory, SetMute, SetVolume, Situation
from liken_audio.resources.v1alpha1 import Spec
from tests.builders import endpoint, node, speaker, speaker_endpoint, speaker_node

NAME = "kitchen-pci-0000-00-1f-3-alc257-analog"
OURS = node(NAME, state="running", volumes=(1.0, 1.0))
FOREIGN = replace(OURS, properties={})


def situation(
    its_node: Node | None, *, reported: int | None = None, limit: int | None = None, **spec: Any
) -> Situation:
    missing = Fault.NO_NODE if its_node is None else None
    return Situation(
        endpoint=endpoint(node=its_node, fault=missing),
        fault=None,
        spec=Spec(**spec),
        claim_limit=None if limit is None else Percent(limit),
        reported=None if reported is None else Percent(reported),
    )


def at(*volumes: float, **changes: Any) -> Node:
    return replace(OURS, volumes=tuple(map(Linear, volumes)), **changes)


def volumes(judged: Judged) -> list[float]:
    return [one.volume for one in judged.changes if isinstance(one, SetVolume)]


def after(first: Situation, now: float = 0.0) -> Memory:
    return judge(first, Memory(), now).memory


@pytest.mark.parametrize(
    ("percent", "linear"),
    [(0, 0), (10, 0.001), (25, 0.015625), (40, 0.064), (50, 0.125), (80, 0.512), (100, 1.0)],
)
def test_volume_is_cubic_as_pipewires_tools_show_it(percent: int, linear: float) -> None:
    assert to_linear(Percent(percent)) == pytest.approx(linear)
    assert to_percent(Linear(linear)) == percent


@pytest.mark.parametrize("percent", range(101))
def test_every_percent_survives_the_way_there_and_back(percent: int) -> None:
    """Also through the six digits that pw-dump prints."""
    assert to_percent(Linear(round(to_linear(Percent(percent)), 6))) == percent


def test_odd_numbers_from_the_hardware_are_no_errors() -> None:
    assert to_percent(Linear(1.953125)) == 125
    assert to_percent(Linear(-1.0)) == 0


def test_a_fresh_node_at_forty_percent_goes_to_a_hundred() -> None:
    """U19: a session manager's default and saved state play no part."""
    judged = judge(situation(at(0.064, 0.064)), Memory(), 0.0)
    assert volumes(judged) == [1.0]


def test_a_fresh_node_goes_straight_to_what_is_declared() -> None:
    judged = judge(situation(at(0.064, 0.064), volume=30), Memory(), 0.0)
    assert volumes(judged) == [pytest.approx(0.027)]


def test_a_fresh_node_rests_under_the_ceiling() -> None:
    judged = judge(situation(at(1.0, 1.0), max_volume=60), Memory(), 0.0)
    assert volumes(judged) == [pytest.approx(0.216)]


def test_after_its_first_sight_an_undeclared_volume_is_left_alone() -> None:
    memory = after(situation(at(1.0, 1.0)))
    judged = judge(situation(at(0.125, 0.125)), memory, 5.0)
    assert volumes(judged) == []
    assert observed_volume(at(0.125, 0.125), judged.memory, 5.0) == 50


def test_a_boost_is_reported_and_left_alone() -> None:
    """U26: the loudest of two channels that differ."""
    boosted = at(1.953125, 1.0)
    memory = after(situation(at(1.0, 1.0)))
    judged = judge(situation(boosted), memory, 5.0)
    assert volumes(judged) == []
    assert observed_volume(boosted, judged.memory, 5.0) == 125


def test_a_declared_hundred_ends_a_boost_by_one_write() -> None:
    memory = after(situation(at(1.0, 1.0)))
    judged = judge(situation(at(1.953125, 1.0), volume=100), memory, 5.0)
    assert volumes(judged) == [1.0]
    again = judge(situation(at(1.0, 1.0), volume=100), judged.memory, 5.1)
    assert volumes(again) == []


def test_channels_that_differ_are_brought_to_the_declared_volume() -> None:
    memory = after(situation(at(0.125, 0.125), volume=50))
    assert volumes(judge(situation(at(0.125, 0.1), volume=50), memory, 5.0)) == [0.125]


def test_a_new_incarnation_rests_anew() -> None:
    memory = after(situation(at(1.0, 1.0)))
    again = judge(situation(at(0.064, 0.064, serial=NodeSerial(310))), memory, 5.0)
    assert volumes(again) == [1.0]


def test_the_same_node_after_a_gap_is_no_new_one() -> None:
    memory = after(situation(at(1.0, 1.0)))
    memory = judge(situation(None), memory, 1.0).memory
    assert volumes(judge(situation(at(0.125, 0.125)), memory, 2.0)) == []


def test_a_restarted_agent_leaves_a_volume_that_its_predecessor_saw() -> None:
    assert volumes(judge(situation(at(0.125, 0.125), reported=50), Memory(), 0.0)) == []


def test_a_restarted_agent_does_not_take_a_default_for_a_wish() -> None:
    """The predecessor saw 100; the node is at 40: it was made anew meanwhile."""
    assert volumes(judge(situation(at(0.064, 0.064), reported=100), Memory(), 0.0)) == [1.0]


def test_a_node_made_after_the_agents_start_is_new_whatever_was_reported() -> None:
    memory = judge(situation(None), Memory(), 0.0).memory
    assert volumes(judge(situation(at(0.064, 0.064), reported=40), memory, 1.0)) == [1.0]


def test_our_own_node_that_announces_nothing_yet_is_at_a_hundred_without_a_write() -> None:
    fresh = replace(OURS, state="suspended", volumes=())
    judged = judge(situation(fresh), Memory(), 0.0)
    assert judged.changes == ()
    assert observed_volume(fresh, judged.memory, 0.0) == 100


def test_anothers_node_that_announces_nothing_yet_is_set_once() -> None:
    fresh = replace(FOREIGN, state="suspended", volumes=())
    judged = judge(situation(fresh), Memory(), 0.0)
    assert volumes(judged) == [1.0]
    assert judge(situation(fresh), judged.memory, 60.0).changes == ()


def test_a_suspended_node_is_written_once_and_believed() -> None:
    """U20: ten passes, one write, observed 50."""
    asleep = replace(OURS, state="suspended", volumes=())
    memory, written = Memory(), 0
    for n in range(10):
        judged = judge(situation(asleep, volume=50), memory, float(n))
        memory, written = judged.memory, written + len(judged.changes)
    assert written == 1
    assert observed_volume(asleep, memory, 10.0) == 50
    awake = at(0.125, 0.125)
    judged = judge(situation(awake, volume=50), memory, 11.0)
    assert judged.changes == ()


def test_a_ceiling_holds_against_other_programs() -> None:
    memory = after(situation(at(0.125, 0.125), max_volume=60, volume=50))
    loud = judge(situation(at(1.0, 1.0), max_volume=60), memory, 9.0)
    assert volumes(loud) == [pytest.approx(0.216)]
    assert volumes(judge(situation(at(0.216, 0.216), max_volume=60), loud.memory, 9.1)) == []


def test_a_ceiling_leaves_a_lower_volume_alone() -> None:
    memory = after(situation(at(0.125, 0.125), volume=50))
    assert volumes(judge(situation(at(0.125, 0.125), max_volume=60), memory, 9.0)) == []


def test_a_ceiling_over_a_sleeping_node_is_written_once() -> None:
    asleep = at(1.0, 1.0, state="suspended")
    memory, written = after(situation(asleep)), 0
    for n in range(10):
        judged = judge(situation(asleep, max_volume=60), memory, float(n))
        memory, written = judged.memory, written + len(judged.changes)
    assert written == 1
    assert observed_volume(asleep, memory, 10.0) == 60


def test_a_volume_that_a_newer_crd_let_over_the_ceiling_is_held_under_it() -> None:
    judged = judge(situation(at(1.0, 1.0), volume=90, max_volume=60), Memory(), 0.0)
    assert volumes(judged) == [pytest.approx(0.216)]


def test_a_removed_volume_writes_nothing() -> None:
    memory = after(situation(at(0.125, 0.125), volume=50))
    assert judge(situation(at(0.125, 0.125)), memory, 5.0).changes == ()
    assert judge(situation(at(0.5, 0.5)), memory, 6.0).changes == ()


def test_mute_is_written_when_declared_and_left_alone_when_not() -> None:
    muted = at(1.0, 1.0, is_muted=True)
    memory = after(situation(at(1.0, 1.0)))
    assert judge(situation(muted), memory, 1.0).changes == ()
    (change,) = judge(situation(muted, is_muted=False), memory, 1.0).changes
    assert isinstance(change, SetMute)
    assert not change.is_muted
    assert observed_mute(muted, memory, 1.0)


def test_no_burst_at_the_old_volume_when_both_change() -> None:
    memory = after(situation(at(1.0, 1.0)))
    unmute = judge(situation(at(1.0, 1.0, is_muted=True), is_muted=False, volume=10), memory, 1.0)
    assert [type(one) for one in unmute.changes] == [SetVolume, SetMute]
    mute = judge(situation(at(1.0, 1.0), is_muted=True, volume=10), memory, 1.0)
    assert [type(one) for one in mute.changes] == [SetMute, SetVolume]


def test_without_a_node_there_is_nothing_to_write() -> None:
    judged = judge(situation(None, volume=5, is_muted=True), Memory(), 0.0)
    assert (judged.changes, dict(judged.steps)) == ((), {})


# A class's limit.


def test_a_node_is_brought_down_to_the_limit_of_the_class_that_it_is_claimed_by() -> None:
    memory = after(situation(at(1.0, 1.0)))
    judged = judge(situation(at(1.0, 1.0), limit=60), memory, 1.0)
    assert volumes(judged) == [pytest.approx(0.216)]
    # What is under it stays as the workload set it.
    assert not judge(situation(at(0.125, 0.125), limit=60), judged.memory, 5.0).changes


@pytest.mark.parametrize(("ceiling", "limit"), [(60, 80), (80, 60)])
def test_the_lower_one_of_a_sink_s_and_a_class_s_limit_holds(ceiling: int, limit: int) -> None:
    judged = judge(situation(at(1.0, 1.0), max_volume=ceiling, limit=limit), Memory(), 0.0)
    assert volumes(judged) == [pytest.approx(0.216)]
    judged = judge(situation(at(1.0, 1.0), volume=100, limit=limit), Memory(), 0.0)
    assert volumes(judged) == [pytest.approx((limit / 100) ** 3)]


def test_when_the_claim_has_ended_the_node_rests_again() -> None:
    memory = after(situation(at(1.0, 1.0), limit=60))
    memory = judge(situation(at(0.216, 0.216), limit=60), memory, 1.0).memory
    released = judge(situation(at(0.216, 0.216)), memory, 2.0)
    assert volumes(released) == [1.0]
    assert not judge(situation(at(1.0, 1.0)), released.memory, 3.0).changes


def test_what_a_user_set_meanwhile_stays_when_the_claim_has_ended() -> None:
    memory = after(situation(at(1.0, 1.0), limit=60))
    memory = judge(situation(at(0.125, 0.125), limit=60), memory, 1.0).memory
    assert not judge(situation(at(0.125, 0.125)), memory, 2.0).changes


def test_who_exceeds_a_class_s_limit_again_and_again_is_corrected_each_time_at_a_bearable_pace() -> (
    None
):
    memory, now, corrected = after(situation(at(0.216, 0.216), limit=60)), 0.0, []
    for _ in range(600):
        now += 0.1
        judged = judge(situation(at(1.0, 1.0), limit=60), memory, now)
        corrected += [now for _ in judged.changes]
        memory = judge(situation(at(0.216, 0.216), limit=60), judged.memory, now + 0.05).memory
    gaps = [later - earlier for earlier, later in itertools.pairwise(corrected)]
    assert len(corrected) >= 55
    assert max(gaps) <= LIMIT_SECONDS + 0.2


def test_a_contested_limit_says_when_it_is_looked_at_again() -> None:
    memory, now = after(situation(at(0.216, 0.216), limit=60)), 0.0
    for _ in range(30):
        now += 0.05
        judged = judge(situation(at(1.0, 1.0), limit=60), memory, now)
        memory = judge(situation(at(0.216, 0.216), limit=60), judged.memory, now + 0.01).memory
    recheck_at = judged.steps["volume"].recheck_at
    assert recheck_at is not None
    assert recheck_at <= now + LIMIT_SECONDS


def at_speaker(linear: float, *, is_absolute: bool, **spec: Any) -> Situation:
    its = speaker(has_absolute_volume=is_absolute)
    its_node = speaker_node(volumes=(Linear(linear), Linear(linear)))
    return Situation(endpoint=speaker_endpoint(its, node=its_node), fault=None, spec=Spec(**spec))


def test_a_speaker_with_a_volume_of_its_own_keeps_it() -> None:
    memory = after(at_speaker(0.064, is_absolute=True))
    for now in (0.1, ABSOLUTE_SECONDS, 60.0):
        judged = judge(at_speaker(0.128, is_absolute=True), memory, now)
        assert volumes(judged) == []
        memory = judged.memory


def test_a_speaker_without_one_rests_at_a_hundred_once_that_is_certain() -> None:
    first = judge(at_speaker(0.064, is_absolute=False), Memory(), 10.0)
    assert volumes(first) == []
    assert first.steps["volume"].recheck_at == 10.0 + ABSOLUTE_SECONDS
    later = judge(at_speaker(0.064, is_absolute=False), first.memory, 10.0 + ABSOLUTE_SECONDS)
    assert volumes(later) == [1.0]
    again = judge(at_speaker(1.0, is_absolute=False), later.memory, 20.0)
    assert volumes(again) == []


def test_a_volume_of_its_own_that_shows_late_is_not_overridden() -> None:
    first = judge(at_speaker(0.064, is_absolute=False), Memory(), 10.0)
    late = judge(at_speaker(0.128, is_absolute=True), first.memory, 12.0)
    assert volumes(late) == []
    end = judge(at_speaker(0.128, is_absolute=True), late.memory, 99.0)
    assert (volumes(end), end.memory.has_rested) == ([], True)


def test_a_declared_volume_is_written_to_a_speaker_at_once() -> None:
    for is_absolute in (False, True):
        judged = judge(at_speaker(0.064, is_absolute=is_absolute, volume=50), Memory(), 0.0)
        assert volumes(judged) == [pytest.approx(0.125)]
    ceiling = judge(at_speaker(1.0, is_absolute=True, max_volume=60), Memory(), 0.0)
    assert volumes(ceiling) == [pytest.approx(0.216)]
