"""Spec in, status out."""

from typing import Any

import pytest

from liken_audio.api import SINKS, SOURCES
from liken_audio.graph.model import ClaimHold, DeviceName, Direction
from liken_audio.resources.conditions import Reason
from liken_audio.resources.v1alpha1 import (
    Observed,
    Sharing,
    Spec,
    decode_spec,
    encode_gone_status,
    encode_status,
    has_spec,
    kind_of,
    node_label,
    reported_volume,
)
from tests.builders import DISPLAYPORT_ELD, card, endpoint, hdmi_pcm, microphone_pcm, view


def decoded(**spec: Any) -> tuple[Spec, list[str]]:
    found, rejected = decode_spec({"spec": spec})
    return found, [one.field for one in rejected]


def hold(name: str, **changes: Any) -> ClaimHold:
    fields: dict[str, Any] = {
        "namespace": "media",
        "name": name,
        "uid": f"uid-{name}",
        "devices": (),
    }
    return ClaimHold(**(fields | changes))


def test_all_fields_are_read() -> None:
    spec, rejected = decoded(
        volume=0,
        maxVolume=100,
        mute=False,
        controls={"E30 ": "on"},
        codec="aac",
        sharing="Shared",
        connect=True,
    )
    assert rejected == []
    assert spec == Spec(
        volume=0,
        max_volume=100,
        is_muted=False,
        controls={"E30 ": "on"},
        codec="aac",
        sharing=Sharing.SHARED,
        is_connect_wanted=True,
    )


@pytest.mark.parametrize("body", [{}, {"spec": None}, {"spec": {}}], ids=["none", "null", "empty"])
def test_no_spec_declares_nothing(body: dict[str, Any]) -> None:
    assert decode_spec(body) == (Spec(), ())
    assert not has_spec(body)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("volume", 101),
        ("volume", -1),
        ("volume", "50"),
        ("volume", True),
        ("volume", 50.5),
        ("maxVolume", 1_000),
        ("mute", "yes"),
        ("controls", ["Master"]),
        ("codec", 7),
        ("sharing", "shared"),
        ("sharing", ["Shared"]),
        ("connect", 1),
    ],
)
def test_a_value_that_can_not_be_is_told_and_the_others_count(name: str, value: Any) -> None:
    """Another version of the CRD may have let it through."""
    other = {"mute": True} if name != "mute" else {"volume": 5}
    spec, rejected = decode_spec({"spec": {name: value, **other}})
    assert [(one.field, one.reason) for one in rejected] == [(name, Reason.INVALID_VALUE)]
    assert not spec.is_empty


def test_a_control_value_that_is_no_text_is_told_and_the_others_count() -> None:
    spec, rejected = decoded(controls={"A": 5, "B": "on"})
    assert spec.controls == {"B": "on"}
    assert rejected == ['controls["A"]']


def test_a_field_of_a_newer_version_is_told() -> None:
    _, rejected = decode_spec({"spec": {"balance": 3}})
    assert [(one.field, one.reason) for one in rejected] == [("balance", Reason.UNKNOWN_FIELD)]
    assert "maxVolume" in rejected[0].message


def test_a_spec_that_is_no_object_is_told() -> None:
    assert [one.field for one in decode_spec({"spec": "loud"})[1]] == ["spec"]


def test_playback_is_a_sink_and_capture_a_source() -> None:
    assert kind_of(endpoint()) == SINKS
    assert kind_of(endpoint(pcm=microphone_pcm(), direction=Direction.CAPTURE)) == SOURCES


def test_the_status_of_an_endpoint() -> None:
    status = encode_status(
        endpoint(), "kitchen", Observed(volume=40, is_muted=True), [], [{"type": "Ready"}]
    )
    assert status == {
        "node": "kitchen",
        "location": "pci 0000:00:1f.3",
        "connectionType": "analog",
        "card": {"number": 0, "id": "PCH", "driver": "HDA-Intel", "name": "HDA Intel PCH"},
        "pcm": {"device": 0, "id": "ALC257 Analog"},
        "nodeName": "kitchen-pci-0000-00-1f-3-alc257-analog",
        "format": {"rate": 48_000, "channels": 2, "positions": ["FL", "FR"]},
        "observed": {"volume": 40, "mute": True},
        "conditions": [{"type": "Ready"}],
    }


def test_a_monitor_is_shown_with_the_identity_that_a_display_driver_gives() -> None:
    from liken_audio.graph.endpoints import endpoints

    (one,) = endpoints(view(card(hdmi_pcm(eld=DISPLAYPORT_ELD))), "kitchen")
    status = encode_status(one, "kitchen", Observed(), [], [])
    assert status["monitor"] == {
        "display": "del-4071-dell-u2415",
        "manufacturer": "DEL",
        "product": "4071",
        "name": "DELL U2415",
    }


def test_an_absent_fact_is_an_absent_field() -> None:
    status = encode_status(endpoint(node=None), "kitchen", Observed(), [], [])
    assert not {"monitor", "nodeName", "format", "observed", "claims", "claimedBy"} & set(status)
    assert "capabilities" not in status


def test_claims_are_listed_and_named_in_one_text() -> None:
    holds = [hold("tv", pods=("player-0",)), hold("radio"), hold("bell"), hold("door")]
    status = encode_status(endpoint(), "kitchen", Observed(), holds, [])
    assert status["claimedBy"] == "media/tv, media/radio and 2 more"
    assert status["claims"][0] == {
        "namespace": "media",
        "name": "tv",
        "uid": "uid-tv",
        "pods": ["player-0"],
    }
    one = encode_status(endpoint(), "kitchen", Observed(), holds[:1], [])
    assert one["claimedBy"] == "media/tv"


def test_a_gone_device_keeps_only_where_it_was() -> None:
    stored = encode_status(endpoint(), "kitchen", Observed(volume=3), [hold("tv")], [])
    assert encode_gone_status(stored, []) == {
        "node": "kitchen",
        "location": "pci 0000:00:1f.3",
        "connectionType": "analog",
        "conditions": [],
    }


@pytest.mark.parametrize(
    ("body", "volume"),
    [
        ({"status": {"observed": {"volume": 40}}}, 40),
        ({"status": {"observed": {"volume": 0}}}, 0),
        ({"status": {"observed": {"volume": "40"}}}, None),
        ({"status": {"observed": None}}, None),
        ({"status": None}, None),
        ({}, None),
    ],
)
def test_the_reported_volume_is_read_back(body: dict[str, Any], volume: int | None) -> None:
    assert reported_volume(body) == volume


def test_a_long_node_name_gets_a_label_of_its_own() -> None:
    long = "a" * 250
    assert node_label("kitchen") == "kitchen"
    assert len(node_label(long)) == 63
    assert node_label(long) != node_label(long + "b")
    assert DeviceName(node_label("k" * 63)) == "k" * 63
