"""Faults count after their grace, not before, and end at once."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liken_audio.graph.model import DeviceName, Fault
from liken_audio.graph.presence import GRACE_SECONDS, Presence

SINK = DeviceName("kitchen-pci-0000-00-1f-3-hdmi-0")
OTHER = DeviceName("kitchen-pci-0000-00-1f-3-hdmi-1")

FROM_CARD = (Fault.NO_MONITOR, Fault.UNPLUGGED)
FROM_GRAPH = (Fault.GRAPH_LOST, Fault.NO_NODE)


class Device:
    """One device's presence, told as a sequence of moments."""

    def __init__(self) -> None:
        self.presence = Presence()
        self.deadline: float | None = None

    def at(self, now: float, fault: Fault | None) -> Fault | None:
        settled = self.presence.settle({SINK: fault}, now)
        self.deadline = settled.next_deadline
        return settled.faults[SINK]


@pytest.fixture
def device() -> Device:
    """Return a device that has been seen without a fault at time 0."""
    made = Device()
    assert made.at(0, None) is None
    return made


@pytest.mark.parametrize("fault", Fault)
def test_a_fault_counts_after_three_seconds(device: Device, fault: Fault) -> None:
    """U23."""
    assert device.at(10, fault) is None
    assert device.deadline == 10 + GRACE_SECONDS == 13
    assert device.at(12.999, fault) is None
    assert device.at(13, fault) is fault
    assert device.deadline is None


def test_a_gap_of_a_second_never_counts(device: Device) -> None:
    """U23: a node is away from 0 s to 1.2 s."""
    assert device.at(0, Fault.NO_NODE) is None
    assert device.at(1.2, None) is None
    assert device.deadline is None
    assert device.at(30, None) is None


def test_a_moment_without_a_fault_starts_the_time_anew(device: Device) -> None:
    device.at(0, Fault.NO_NODE)
    device.at(2.9, None)
    assert device.at(2.9, Fault.NO_NODE) is None
    assert device.at(5.8, Fault.NO_NODE) is None
    assert device.at(5.9, Fault.NO_NODE) is Fault.NO_NODE


def test_clearing_is_immediate(device: Device) -> None:
    device.at(0, Fault.GRAPH_LOST)
    assert device.at(100, Fault.GRAPH_LOST) is Fault.GRAPH_LOST
    assert device.at(100.001, None) is None


def test_a_fault_that_becomes_another_goes_on_counting(device: Device) -> None:
    """A card is pulled: first its node goes, then the card itself."""
    device.at(0, Fault.NO_NODE)
    assert device.at(1, Fault.UNPLUGGED) is None
    assert device.at(3, Fault.UNPLUGGED) is Fault.UNPLUGGED
    assert device.at(4, Fault.NO_NODE) is Fault.NO_NODE


@pytest.mark.parametrize("fault", FROM_CARD)
def test_what_the_card_says_at_first_sight_counts_at_once(fault: Fault) -> None:
    device = Device()
    assert device.at(5, fault) is fault
    assert device.deadline is None


@pytest.mark.parametrize("fault", FROM_GRAPH)
def test_what_the_graph_lacks_at_first_sight_has_its_grace(fault: Fault) -> None:
    """At a start the cards are known before PipeWire answers."""
    device = Device()
    assert device.at(5, fault) is None
    assert device.deadline == 8
    assert device.at(8, fault) is fault


def test_a_monitor_that_is_missing_after_the_start_has_its_grace() -> None:
    device = Device()
    device.at(0, Fault.GRAPH_LOST)
    device.at(0.5, None)
    assert device.at(1, Fault.NO_MONITOR) is None


def test_a_device_that_left_is_seen_for_the_first_time_again() -> None:
    presence = Presence()
    presence.settle({SINK: None}, 0)
    presence.settle({}, 1)
    assert presence.settle({SINK: Fault.NO_MONITOR}, 2).faults[SINK] is Fault.NO_MONITOR


def test_devices_do_not_touch_each_other_and_the_first_deadline_is_told() -> None:
    presence = Presence()
    presence.settle({SINK: None, OTHER: None}, 0)
    assert presence.settle({SINK: Fault.NO_NODE, OTHER: None}, 1).next_deadline == 4
    settled = presence.settle({SINK: Fault.NO_NODE, OTHER: Fault.UNPLUGGED}, 2)
    assert settled.next_deadline == 4
    settled = presence.settle({SINK: Fault.NO_NODE, OTHER: Fault.UNPLUGGED}, 4)
    assert settled.faults == {SINK: Fault.NO_NODE, OTHER: None}
    assert settled.next_deadline == 5


moments = st.lists(
    st.tuples(
        st.floats(min_value=0, max_value=4, allow_nan=False), st.sampled_from([None, *Fault])
    ),
    max_size=40,
)


def history(steps: list[tuple[float, Fault | None]]) -> list[tuple[float, Fault | None]]:
    """Return the steps with times since the start instead of since the step before."""
    now, told = 0.0, []
    for wait, fault in steps:
        now += wait
        told.append((now, fault))
    return told


@given(moments)
def test_a_fault_counts_exactly_when_it_has_lasted_its_grace(
    steps: list[tuple[float, Fault | None]],
) -> None:
    device = Device()
    device.at(0, None)
    since: float | None = None
    for now, fault in history(steps):
        since = None if fault is None else now if since is None else since
        counts = since is not None and now >= since + GRACE_SECONDS
        assert device.at(now, fault) is (fault if counts else None)
        is_waiting = since is not None and not counts
        assert device.deadline == (
            since + GRACE_SECONDS if is_waiting and since is not None else None
        )


@given(st.lists(st.floats(min_value=0.01, max_value=2.99), max_size=50), st.sampled_from(Fault))
def test_a_device_that_flaps_but_never_stays_away_for_three_seconds_is_never_tainted(
    gaps: list[float], fault: Fault
) -> None:
    device, now = Device(), 0.0
    device.at(now, None)
    for gap in gaps:
        assert device.at(now, fault) is None
        now += gap
        assert device.at(now, fault) is None, "still away, an instant before it is back"
        assert device.at(now, None) is None


@given(moments, st.integers(min_value=1, max_value=5))
def test_asking_more_often_changes_nothing(
    steps: list[tuple[float, Fault | None]], times: int
) -> None:
    once, often = Device(), Device()
    for now, fault in history(steps):
        answer = once.at(now, fault)
        assert [often.at(now, fault) for _ in range(times)] == [answer] * times


@given(moments)
def test_after_the_deadline_that_was_told_nothing_waits(
    steps: list[tuple[float, Fault | None]],
) -> None:
    device = Device()
    fault: Fault | None = None
    for now, fault in history(steps):
        device.at(now, fault)
    if device.deadline is not None:
        assert device.at(device.deadline, fault) is fault
        assert device.deadline is None


def test_the_answer_names_every_device_that_was_asked_about() -> None:
    asked: Mapping[DeviceName, Fault | None] = {SINK: None, OTHER: Fault.NO_NODE}
    assert Presence().settle(asked, 0).faults == {SINK: None, OTHER: None}
