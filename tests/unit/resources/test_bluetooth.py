"""The ways in which a Bluetooth speaker is silent, told apart and with the next step."""

from dataclasses import replace
from typing import Any

import pytest

from liken_audio.graph.model import Direction, Endpoint, Fault, Link, Profile
from liken_audio.resources.bluetooth import connected, remark, silence
from liken_audio.resources.conditions import ConditionStatus, Reason
from liken_audio.resources.v1alpha1 import Observed, Spec
from liken_audio.resources.verdicts import ready
from tests.builders import bluetooth_card, speaker, speaker_endpoint, speaker_node

OFF, A2DP = bluetooth_card().profiles
HEADSET = Profile(index=3, name="headset-head-unit")


def reason_of(endpoint: Endpoint, fault: Fault | None = Fault.NO_NODE) -> Reason:
    return ready(endpoint, fault, Spec(), Observed()).reason


def without_node(**card: Any) -> Endpoint:
    return speaker_endpoint(node=None, bluetooth=bluetooth_card(**card), fault=Fault.NO_NODE)


@pytest.mark.parametrize(
    ("link", "reason", "step"),
    [
        pytest.param(Link.AWAY, Reason.DISCONNECTED, "switch it on nearby", id="off"),
        pytest.param(Link.ADAPTER_OFF, Reason.ADAPTER_OFF, "rfkill unblock", id="adapter-off"),
        pytest.param(Link.NO_ADAPTER, Reason.NO_ADAPTER, "plug it in", id="no-adapter"),
        pytest.param(Link.NO_SERVICE, Reason.BLUETOOTH_LOST, "bluetoothd", id="no-service"),
        pytest.param(Link.UNPAIRED, Reason.UNPAIRED, "pair it again", id="unpaired"),
    ],
)
def test_where_the_way_ends_is_said_with_the_next_step(
    link: Link, reason: Reason, step: str
) -> None:
    its = speaker_endpoint(speaker(link=link), node=None, bluetooth=None, fault=Fault.UNPLUGGED)
    condition = connected(its, its.card.speaker or speaker())
    assert (condition.status, condition.reason) == (ConditionStatus.FALSE, reason)
    assert step in condition.message
    assert reason_of(its, Fault.UNPLUGGED) is reason


def test_a_blocked_one_says_how_it_is_unblocked() -> None:
    blocked = speaker(link=Link.AWAY, is_blocked=True)
    its = speaker_endpoint(blocked, node=None, bluetooth=None, fault=Fault.UNPLUGGED)
    condition = connected(its, blocked)
    assert condition.reason is Reason.DISCONNECTED
    assert f"bluetoothctl unblock {blocked.address}" in condition.message
    assert ready(its, Fault.UNPLUGGED, Spec(), Observed()).message == condition.message


def test_a_connected_one_says_by_which_adapter_and_with_which_codec() -> None:
    its = speaker_endpoint()
    condition = connected(its, speaker())
    assert condition.status is ConditionStatus.TRUE
    assert "02:00:00:00:10:00" in condition.message
    assert "codec sbc" in condition.message
    assert reason_of(its, None) is Reason.READY


@pytest.mark.parametrize(
    ("endpoint", "reason"),
    [
        pytest.param(
            speaker_endpoint(speaker(has_endpoints=False), node=None, bluetooth=None),
            Reason.ENDPOINTS_LOST,
            id="endpoints-lost",
        ),
        pytest.param(speaker_endpoint(node=None, bluetooth=None), Reason.NO_NODE, id="no-device"),
        pytest.param(without_node(profile="off"), Reason.PROFILE_OFF, id="profile-off"),
        pytest.param(
            without_node(profile="off", profiles=(OFF, HEADSET)), Reason.HEADSET_ONLY, id="headset"
        ),
        pytest.param(
            without_node(profiles=(OFF, replace(A2DP, is_available=False), HEADSET)),
            Reason.HEADSET_ONLY,
            id="music-not-available",
        ),
        pytest.param(without_node(), Reason.NO_NODE, id="node-missing"),
        pytest.param(
            speaker_endpoint(node=speaker_node(state="error", error="no codec")),
            Reason.CODEC_DEAD,
            id="node-in-error",
        ),
    ],
)
def test_connected_but_silent_is_told_apart(endpoint: Endpoint, reason: Reason) -> None:
    assert reason_of(endpoint) is reason


def test_a_node_that_plays_without_a_transport_carries_nothing() -> None:
    playing = speaker_node(state="running")
    dead = speaker_endpoint(speaker(transport=""), node=playing)
    assert reason_of(dead, None) is Reason.CODEC_DEAD
    assert "sbc carries no sound" in ready(dead, None, Spec(), Observed()).message
    alive = speaker_endpoint(speaker(transport="active"), node=playing)
    assert reason_of(alive, None) is Reason.READY
    idle = speaker_endpoint(speaker(transport=""), node=speaker_node(state="suspended"))
    assert reason_of(idle, None) is Reason.READY


def test_a_speaker_that_sends_music_too_plays_music() -> None:
    duplex = Profile(index=5, name="a2dp-duplex-sbc")
    card = bluetooth_card(profile=duplex.name, profiles=(OFF, duplex, HEADSET))
    playing = speaker_node(state="running", properties={"api.bluez5.profile": "a2dp-duplex"})
    alive = speaker_endpoint(speaker(transport="active"), node=playing, bluetooth=card)
    assert reason_of(alive, None) is Reason.READY
    dead = replace(alive, card=speaker_endpoint(speaker(transport="")).card)
    assert reason_of(dead, None) is Reason.CODEC_DEAD
    off = speaker_endpoint(node=None, bluetooth=replace(card, profile="off"))
    assert reason_of(off) is Reason.PROFILE_OFF


def test_telephone_quality_is_ready_and_said() -> None:
    node = speaker_node(properties={"api.bluez5.profile": "headset-head-unit"})
    only = bluetooth_card(profile="headset-head-unit", profiles=(OFF, HEADSET))
    assert reason_of(speaker_endpoint(node=node, bluetooth=only), None) is Reason.HEADSET_ONLY
    both = bluetooth_card(profile="headset-head-unit", profiles=(OFF, A2DP, HEADSET))
    condition = ready(speaker_endpoint(node=node, bluetooth=both), None, Spec(), Observed())
    assert (condition.status, condition.reason) == (ConditionStatus.TRUE, Reason.READY)
    assert "its microphone is on" in condition.message


def test_a_microphone_that_waits_for_a_claim_says_so() -> None:
    card = bluetooth_card(profiles=(OFF, A2DP, HEADSET))
    waiting = speaker_endpoint(direction=Direction.CAPTURE, node=None, bluetooth=card)
    assert "when nobody plays" in ready(waiting, None, Spec(), Observed()).message
    gone = replace(waiting, bluetooth=bluetooth_card(), fault=Fault.NO_NODE)
    assert reason_of(gone) is Reason.NO_NODE
    assert remark(replace(waiting, bluetooth=None)) is None


def test_a_lost_graph_is_said_as_for_every_device() -> None:
    lost = speaker_endpoint(node=None, bluetooth=None)
    assert silence(lost, speaker(), Fault.GRAPH_LOST) is None
    assert reason_of(lost, Fault.GRAPH_LOST) is Reason.GRAPH_LOST


def test_a_short_gap_is_no_silence_yet() -> None:
    away = speaker(link=Link.AWAY)
    assert silence(speaker_endpoint(away, node=None, bluetooth=None), away, None) is None
