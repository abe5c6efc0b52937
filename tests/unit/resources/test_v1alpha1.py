"""Spec in, status out."""

import functools
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from liken_audio.api import SINKS, SOURCES, Json
from liken_audio.graph.endpoints import endpoints
from liken_audio.graph.model import ClaimHold, ControlType, Decibel, DeviceName, Direction
from liken_audio.resources.conditions import Reason, stamped
from liken_audio.resources.reconcile import reconcile
from liken_audio.resources.situation import Memory, Situation
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
from tests.builders import (
    DISPLAYPORT_ELD,
    card,
    control,
    endpoint,
    hdmi_pcm,
    microphone_pcm,
    node,
    speaker,
    speaker_endpoint,
    view,
)

CRDS = Path(__file__).parents[3] / "manifests" / "crds"


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


@functools.cache
def schema(plural: str) -> Json:
    """The schema of a CRD's one version."""
    body = yaml.safe_load((CRDS / f"{plural}.yaml").read_text())
    (version,) = body["spec"]["versions"]
    found: Json = version["schema"]["openAPIV3Schema"]
    return found


def undescribed(where: str, one: Json) -> list[str]:
    """Paths of fields that have no description, or a poor one."""
    found = []
    for name, field in one.get("properties", {}).items():
        path = f"{where}.{name}"
        if path != ".metadata":
            found += [] if len(field.get("description", "")) > 10 else [path]
            found += undescribed(path, field)
    inner = one.get("items") or one.get("additionalProperties")
    return found + (undescribed(where + "[]", inner) if isinstance(inner, dict) else [])


def undeclared(where: str, value: Any, one: Json) -> list[str]:
    """Paths of a value that the schema doesn't declare: an API server would refuse them."""
    if isinstance(value, dict):
        others = one.get("additionalProperties")
        found = []
        for name, inner in value.items():
            its = one.get("properties", {}).get(name, others)
            path = f"{where}.{name}"
            found += [path] if its is None else undeclared(path, inner, its)
        return found
    if isinstance(value, list):
        return [path for inner in value for path in undeclared(where + "[]", inner, one["items"])]
    return []


@pytest.mark.parametrize("plural", ["sinks", "sources"])
def test_every_field_is_explained(plural: str) -> None:
    assert undescribed("", schema(plural)) == []


def test_the_schema_and_the_decoder_know_the_same_fields() -> None:
    sink, source = schema("sinks"), schema("sources")
    _, rejected = decode_spec({"spec": dict.fromkeys(sink["properties"]["spec"]["properties"])})
    assert rejected == ()
    known = set(sink["properties"]["spec"]["properties"])
    assert set(source["properties"]["spec"]["properties"]) == known - {"codec"}
    _, (unknown,) = decode_spec({"spec": {"x": 1}})
    assert all(name in unknown.message for name in known)


def test_all_of_a_status_is_declared_in_the_schema() -> None:
    """What isn't would make the API server refuse the whole status."""
    level = control(
        "Level",
        type=ControlType.INTEGER,
        step=2,
        min_decibels=Decibel(-6.0),
        max_decibels=Decibel(0.0),
        is_locked=True,
        is_inactive=True,
        is_volatile=True,
        is_writable=False,
    )
    choice = control("Choice", type=ControlType.ENUMERATED, items=("a", "b"))
    one = replace(
        endpoints(view(card(hdmi_pcm(eld=DISPLAYPORT_ELD))), "kitchen")[0],
        node=node("a"),
        controls=(level, choice, control("Switch")),
    )
    situation = Situation(endpoint=one, fault=None, spec=Spec(volume=5))
    outcome = reconcile(situation, Memory(), 0.0)
    conditions = stamped(outcome.conditions, [], 1, datetime(2026, 11, 30, tzinfo=UTC))
    observed = replace(outcome.observed, omitted_controls=7)
    holds = [hold("tv", pods=("a",)), hold("radio")]
    status = encode_status(one, "kitchen", observed, holds, conditions)
    assert {"monitor", "capabilities", "claims", "omittedControls", "format"} <= set(status)
    assert undeclared("status", status, schema("sinks")["properties"]["status"]) == []
    status.pop("monitor")
    assert undeclared("status", status, schema("sources")["properties"]["status"]) == []


def test_a_speakers_status_has_what_bluetooth_says_and_no_card() -> None:
    its = speaker_endpoint(speaker(battery=80))
    status = encode_status(its, "kitchen", Observed(), [], [])
    assert status["location"] == "bluetooth 7C:66:EF:01:23:45"
    assert "card" not in status
    assert "pcm" not in status
    assert status["bluetooth"] == {
        "address": "7C:66:EF:01:23:45",
        "name": "Kitchen Radio",
        "battery": 80,
        "codec": "sbc",
        "codecs": ["sbc", "sbc_xq", "aac"],
    }
    assert status["observed"] == {"codec": "sbc"}
