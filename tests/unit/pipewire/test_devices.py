"""Bluetooth devices as pw-dump shows them: recordings and odd shapes."""

import json
from pathlib import Path
from typing import Any

import pytest

from liken_audio.graph.model import BluetoothCard, Node, Profile
from liken_audio.pipewire.devices import bluetooth_card, codec_name, routes
from liken_audio.pipewire.dump import DumpParser

RECORDINGS = Path(__file__).parents[2] / "recordings" / "pw-dump"


def info(**params: Any) -> dict[str, Any]:
    props = {
        "device.api": "bluez5",
        "api.bluez5.address": "02:00:00:00:00:01",
        "object.serial": 667,
        "bluez5.profile": "off",
    }
    return {"props": props, "params": params}


def card(**params: Any) -> BluetoothCard:
    found = bluetooth_card(109, info(**params))
    assert found is not None
    return found


def codecs(*labels: Any) -> list[dict[str, Any]]:
    return [{"id": "other"}, {"id": "bluetoothAudioCodec", "labels": list(labels)}]


def recorded(name: str) -> tuple[BluetoothCard, Node]:
    parser = DumpParser()
    snapshot = parser.feed((RECORDINGS / f"{name}.json").read_bytes())
    assert snapshot is not None
    assert parser.parse_errors == 0
    (found,), (node,) = snapshot.bluetooth, snapshot.nodes
    return found, node


def test_a_speaker_that_plays() -> None:
    found, node = recorded("bluetooth-2-playing")
    assert (found.id, found.serial, found.address) == (46, 47, "00:1B:DC:00:00:02")
    assert (found.profile, found.codec) == ("a2dp-sink", "sbc")
    assert found.codecs == (("sbc", 1), ("sbc_xq", 2))
    assert node.route is not None
    assert (node.route.device_id, node.route.index, node.route.device) == (46, 1, 1)
    assert node.volumes == (0.127976, 0.127976)


def test_the_volume_is_the_routes_while_the_node_still_says_another() -> None:
    (array,) = [json.loads((RECORDINGS / "bluetooth-1-connected.json").read_text())]
    for each in array:
        if each["type"].endswith("Node"):
            each["info"]["params"]["Props"][0]["channelVolumes"] = [0.064, 0.064]
    snapshot = DumpParser().feed(json.dumps(array).encode())
    assert snapshot is not None
    (node,) = snapshot.nodes
    assert node.route is not None
    assert node.volumes == node.route.volumes != (0.064, 0.064)


def test_what_the_route_says_next_wakes_without_a_word_of_the_node() -> None:
    parser = DumpParser()
    array = json.loads((RECORDINGS / "bluetooth-2-playing.json").read_text())
    before = parser.feed(json.dumps(array).encode())
    device = next(each for each in array if each["type"].endswith("Device"))
    device["info"]["params"]["Route"][0]["props"] |= {"channelVolumes": [0.5, 0.5], "mute": True}
    after = parser.feed(json.dumps([device]).encode())
    assert before is not None
    assert after is not None
    assert after is not before
    assert (after.nodes[0].volumes, after.nodes[0].is_muted) == ((0.5, 0.5), True)
    assert parser.feed(json.dumps([device]).encode()) is after


def test_a_device_that_goes_leaves_no_route_and_no_card() -> None:
    parser = DumpParser()
    parser.feed((RECORDINGS / "bluetooth-2-playing.json").read_bytes())
    snapshot = parser.feed(b'[{"id": 46, "info": null}]')
    assert snapshot is not None
    assert snapshot.bluetooth == ()
    assert snapshot.nodes[0].route is None
    assert not snapshot.nodes[0].has_live_device


def test_a_codec_whose_profile_is_not_available_is_not_offered() -> None:
    profiles = [
        {"index": 0, "name": "off", "available": "unknown"},
        {"index": 1, "name": "a2dp-sink", "available": "yes"},
        {"index": 2, "name": "a2dp-sink-ldac", "available": "no"},
    ]
    found = card(
        EnumProfile=profiles,
        Profile=[profiles[1]],
        PropInfo=codecs(1, "SBC", 2, "SBC-XQ", 32, "LDAC"),
        Props=[{"bluetoothAudioCodec": "aac"}],
    )
    assert found.codecs == (("sbc", 1), ("sbc_xq", 2))
    assert found.codec == "aac"
    assert found.profiles[2] == Profile(index=2, name="a2dp-sink-ldac", is_available=False)


def test_the_codecs_of_a_duplex_profile_are_judged_by_it() -> None:
    profiles = [
        {"index": 1, "name": "a2dp-duplex", "available": "yes"},
        {"index": 2, "name": "a2dp-duplex-ldac", "available": "no"},
    ]
    found = card(EnumProfile=profiles, PropInfo=codecs(1, "SBC", 32, "LDAC"))
    assert found.codecs == (("sbc", 1),)


def test_the_profile_is_the_params_and_never_the_propertys() -> None:
    assert card(Profile=[{"index": 1, "name": "a2dp-sink"}]).profile == "a2dp-sink"
    assert card().profile == ""


@pytest.mark.parametrize(
    "labels", [(), (1,), ("SBC", 1), (True, "SBC"), (1, None), (1.5, "SBC"), (1, "--")]
)
def test_labels_that_are_none_offer_nothing(labels: tuple[Any, ...]) -> None:
    assert card(PropInfo=codecs(*labels)).codecs == ()


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("SBC-XQ", "sbc_xq"),
        ("aptX HD", "aptx_hd"),
        ("LDAC", "ldac"),
        ("sbc_xq", "sbc_xq"),
        ("id-00000000", ""),
    ],
)
def test_codecs_have_the_names_that_nodes_bear(label: str, name: str) -> None:
    assert codec_name(label) == name


@pytest.mark.parametrize(
    "props",
    [{"device.api": "alsa"}, {"api.bluez5.address": None}, {"api.bluez5.address": "nonsense"}],
)
def test_another_device_is_no_bluetooth_card(props: dict[str, Any]) -> None:
    other = info()
    other["props"] |= props
    assert bluetooth_card(109, other) is None


@pytest.mark.parametrize("value", [None, "x", [], [1], {}])
def test_params_that_are_none_make_no_error(value: object) -> None:
    assert routes(109, info(Route=value)) == ()
    assert card(EnumProfile=value, Profile=value, PropInfo=value, Props=value).profiles == ()
