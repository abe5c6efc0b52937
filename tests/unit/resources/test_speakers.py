"""What is done unasked for speakers: how often, how far apart, and when no more."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from liken_audio.graph.model import Endpoint, Link, NodeSerial, Profile
from liken_audio.resources.speakers import (
    CONNECT_SECONDS,
    FORGIVEN_SECONDS,
    LOST_SECONDS,
    MOST_CONNECT_SECONDS,
    MOST_PROFILE_TRIES,
    MOST_RESTARTS,
    MOST_SILENT_TRIES,
    PROFILE_SECONDS,
    SILENT_SECONDS,
    Action,
    Connect,
    Memory,
    RestartSoundServer,
    SwitchProfile,
    Wish,
    best_headset,
    best_music,
    plan,
)
from tests.builders import SPEAKER_ADDRESS, bluetooth_card, speaker, speaker_endpoint

OFF, A2DP = bluetooth_card().profiles
HEADSET = Profile(index=3, name="headset-head-unit")
KEPT = {SPEAKER_ADDRESS: Wish(is_connected=True)}
DAY = 86_400.0


def away(**changes: Any) -> Endpoint:
    return speaker_endpoint(speaker(link=Link.AWAY, **changes), node=None, bluetooth=None)


def with_profile(profile: str, *profiles: Profile, serial: int = 47) -> Endpoint:
    card = bluetooth_card(
        profile=profile, profiles=profiles or (OFF, A2DP, HEADSET), serial=NodeSerial(serial)
    )
    return speaker_endpoint(bluetooth=card)


class Run:
    """Plans one after another, as the loop makes them."""

    def __init__(self) -> None:
        self.memory = Memory()
        self.now = 0.0

    def at(self, now: float, *endpoints: Endpoint, **more: Any) -> list[Action]:
        wishes = more.pop("wishes", {})
        decided = plan(endpoints, wishes, self.memory, now, **more)
        self.memory, self.now = decided.memory, now
        self.look_again_at = decided.look_again_at
        return list(decided.actions)

    def times(self, end: float, *endpoints: Endpoint, **more: Any) -> list[float]:
        """Return when something is done until `end`, looking only when the plan says so."""
        done = []
        while self.now <= end:
            if self.at(self.now, *endpoints, **dict(more)):
                done.append(self.now)
            if self.look_again_at is None:
                break
            self.now = self.look_again_at
        return done


def test_a_speaker_that_is_off_is_called_ever_more_rarely_and_for_ever() -> None:
    times = Run().times(DAY, away(), wishes=KEPT)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert times[0] == CONNECT_SECONDS
    assert gaps[:4] == [5.0, 10.0, 20.0, 40.0]
    assert max(gaps) == gaps[-1] == MOST_CONNECT_SECONDS
    assert len(times) < 300


def test_nobody_is_called_who_need_not_be() -> None:
    for endpoint, wishes in [
        (away(), {}),
        (speaker_endpoint(), KEPT),
        (away(is_blocked=True), KEPT),
        (speaker_endpoint(speaker(link=Link.ADAPTER_OFF), bluetooth=None), KEPT),
        (speaker_endpoint(speaker(link=Link.UNPAIRED), bluetooth=None), KEPT),
        (speaker_endpoint(speaker(link=Link.NO_SERVICE), bluetooth=None), KEPT),
    ]:
        assert Run().times(DAY, endpoint, wishes=wishes) == []


def test_a_speaker_that_was_back_is_called_soon_again() -> None:
    run = Run()
    run.times(DAY, away(), wishes=KEPT)
    assert run.at(run.now, speaker_endpoint(), wishes=KEPT) == []
    start = run.now
    assert run.at(start, away(), wishes=KEPT) == []
    assert run.look_again_at == start + CONNECT_SECONDS


def test_one_is_called_at_a_time_and_each_has_its_turn() -> None:
    other = "02:00:00:00:00:02"
    both = [away(), away(address=other)]
    wishes = {SPEAKER_ADDRESS: Wish(is_connected=True), other: Wish(is_connected=True)}
    run = Run()
    called = []
    for now in range(0, 60, 5):
        actions = run.at(float(now), *both, wishes=wishes)
        assert len(actions) <= 1
        called += [each.address for each in actions if isinstance(each, Connect)]
    assert set(called) == {SPEAKER_ADDRESS, other}
    run.memory = replace(run.memory, is_calling=True)
    assert run.at(10_000.0, *both, wishes=wishes) == []


@pytest.mark.parametrize(
    "silent",
    [
        pytest.param(speaker_endpoint(node=None, bluetooth=None), id="no-device-in-pipewire"),
        pytest.param(with_profile("off", OFF, HEADSET), id="headset-only-and-off"),
        pytest.param(with_profile("headset-head-unit", OFF, HEADSET), id="headset-only"),
        pytest.param(
            with_profile("off", OFF, replace(A2DP, is_available=False), HEADSET),
            id="music-not-available",
        ),
    ],
)
def test_one_that_is_connected_without_music_is_called_as_it_is_three_times(
    silent: Endpoint,
) -> None:
    run = Run()
    times = run.times(DAY, silent)
    assert len(times) == MOST_SILENT_TRIES
    assert times[0] == SILENT_SECONDS
    assert [later - earlier for earlier, later in pairwise(times)] == [20.0, 40.0]
    assert run.at(run.now, speaker_endpoint()) == []
    start = run.now
    assert run.at(start, silent) == []
    assert run.at(start + SILENT_SECONDS, silent) == [Connect(SPEAKER_ADDRESS)]


def test_none_is_called_for_music_that_is_out_of_reach_or_not_wanted_now() -> None:
    headset_only = with_profile("headset-head-unit", OFF, HEADSET)
    recorded = {SPEAKER_ADDRESS: Wish(has_microphone=True)}
    assert Run().times(DAY, headset_only, wishes=recorded) == []
    assert Run().times(DAY, away()) == []
    silent = speaker_endpoint(node=None, bluetooth=None)
    assert Run().times(DAY, silent, is_graph_lost=True) == []
    run = Run()
    assert run.at(0.0, silent) == []
    run.memory = replace(run.memory, is_calling=True)
    assert run.at(SILENT_SECONDS, silent) == []


def test_endpoints_that_are_lost_are_repaired_by_no_call() -> None:
    lost = speaker_endpoint(speaker(has_endpoints=False), node=None, bluetooth=None)
    run = Run()
    done = [action for now in range(0, 600, 5) for action in run.at(float(now), lost)]
    assert done
    assert all(isinstance(action, RestartSoundServer) for action in done)


def test_a_profile_that_stays_off_is_switched_on_three_times() -> None:
    off = with_profile("off")
    run = Run()
    times = run.times(DAY, off)
    assert len(times) == MOST_PROFILE_TRIES
    assert times[0] == PROFILE_SECONDS
    assert run.at(2 * DAY, off) == []
    again = with_profile("off", serial=99)
    run.at(2 * DAY, again)
    assert run.at(2 * DAY + PROFILE_SECONDS, again) == [
        SwitchProfile(SPEAKER_ADDRESS, again.bluetooth or bluetooth_card(), A2DP)
    ]


def test_a_profile_that_is_only_being_chosen_is_left_alone() -> None:
    run = Run()
    assert run.at(0.0, with_profile("off")) == []
    assert run.at(1.0, with_profile("a2dp-sink")) == []
    assert run.times(DAY, with_profile("a2dp-sink")) == []
    assert run.at(2 * DAY, with_profile("off")) == []
    assert len(run.at(2 * DAY + PROFILE_SECONDS, with_profile("off"))) == 1


def test_where_music_is_not_offered_nothing_is_switched() -> None:
    gone = replace(A2DP, is_available=False)
    for silent in (
        with_profile("off", OFF, HEADSET),
        with_profile("headset-head-unit", OFF, gone, HEADSET),
    ):
        run = Run()
        done = [action for now in range(600) for action in run.at(float(now), silent)]
        assert not [action for action in done if isinstance(action, SwitchProfile)]


def test_a_headset_goes_back_to_music_when_no_claim_has_its_microphone() -> None:
    headset = with_profile("headset-head-unit")
    held = {SPEAKER_ADDRESS: Wish(has_microphone=True)}
    run = Run()
    assert run.times(DAY, headset, wishes=held) == []
    start = run.now
    run.at(start, headset)
    (action,) = run.at(start + PROFILE_SECONDS, headset)
    assert isinstance(action, SwitchProfile)
    assert action.profile == A2DP


def test_a_sound_server_without_endpoints_is_restarted_a_few_times_and_no_more() -> None:
    lost = away(has_endpoints=False)
    run = Run()
    times = run.times(DAY, lost)
    assert times == [LOST_SECONDS, LOST_SECONDS + 30.0, LOST_SECONDS + 90.0]
    assert len(times) == MOST_RESTARTS
    assert run.at(2 * DAY, lost) == []


def test_endpoints_that_come_back_soon_need_no_restart() -> None:
    run = Run()
    run.at(0.0, away(has_endpoints=False))
    assert run.at(LOST_SECONDS - 1, away()) == []
    assert run.at(LOST_SECONDS, away(has_endpoints=False)) == []
    assert run.look_again_at == 2 * LOST_SECONDS


def test_a_sound_server_that_keeps_losing_them_is_not_restarted_for_ever() -> None:
    run = Run()
    restarts = 0
    for start in range(0, 6_000, 120):
        restarts += len(run.at(float(start), away(has_endpoints=False)))
        restarts += len(run.at(start + 60.0, away(has_endpoints=False)))
        run.at(start + 90.0, away())
    assert restarts == MOST_RESTARTS


def test_endpoints_that_held_for_long_are_worth_new_tries() -> None:
    run = Run()
    run.times(DAY, away(has_endpoints=False))
    start = run.now
    run.at(start, away())
    run.at(start + FORGIVEN_SECONDS, away())
    run.at(start + FORGIVEN_SECONDS, away(has_endpoints=False))
    (action,) = run.at(start + FORGIVEN_SECONDS + LOST_SECONDS, away(has_endpoints=False))
    assert action == RestartSoundServer((SPEAKER_ADDRESS,))


def test_without_an_adapter_or_a_service_nothing_is_lost() -> None:
    for link in (Link.NO_ADAPTER, Link.NO_SERVICE, Link.ADAPTER_OFF):
        its = speaker(link=link, has_endpoints=False)
        assert Run().times(DAY, speaker_endpoint(its, bluetooth=None)) == []


def test_while_pipewire_is_lost_only_calls_are_made() -> None:
    run = Run()
    for now in (0.0, 100.0):
        done = run.at(now, away(has_endpoints=False), wishes=KEPT, is_graph_lost=True)
        assert not any(isinstance(each, RestartSoundServer) for each in done)


def test_the_best_profiles_are_those_that_are_available() -> None:
    card = bluetooth_card(profiles=(OFF, replace(A2DP, is_available=False), HEADSET))
    assert best_music(card) is None
    assert best_headset(card) == HEADSET
    assert best_headset(bluetooth_card()) is None


def test_a_speaker_that_sends_music_too_plays_by_its_duplex_profile() -> None:
    duplex = Profile(index=5, name="a2dp-duplex")
    assert best_music(bluetooth_card(profiles=(OFF, duplex, HEADSET))) == duplex
    assert best_music(bluetooth_card(profiles=(OFF, duplex, A2DP))) == A2DP
    playing = with_profile("a2dp-duplex", OFF, duplex, HEADSET)
    assert Run().times(DAY, playing) == []
    (action,) = [
        action
        for run in [Run()]
        for now in (0.0, PROFILE_SECONDS)
        for action in run.at(now, with_profile("off", OFF, duplex, HEADSET))
    ]
    assert isinstance(action, SwitchProfile)
    assert action.profile == duplex
