"""Opaque parameters: strict, and an error says what is right."""

from typing import Any

import pytest

from liken_audio.dra.parameters import Parameters, ParametersError, closest, resolve
from liken_audio.graph.model import Connection, Direction, Endpoint
from tests.builders import bluetooth_card, endpoint, microphone_pcm, opaque, speaker_endpoint

SINK = endpoint()
SPEAKER = endpoint(connection=Connection.BLUETOOTH)
MICROPHONE = endpoint(pcm=microphone_pcm())


def test_without_any_entry_the_defaults_hold() -> None:
    assert resolve([], "out", SINK) == Parameters(
        codec=None, pulse=True, monitor=False, set_volume=False, max_volume=None
    )


def test_a_class_may_set_every_key() -> None:
    everything = {"pulse": False, "monitor": True, "setVolume": True, "maxVolume": 60}
    assert resolve([opaque(everything, source="FromClass")], "out", SINK) == Parameters(
        pulse=False, monitor=True, set_volume=True, max_volume=60
    )


def test_the_claim_beats_the_class_wherever_it_stands_in_the_list() -> None:
    by_class = opaque({"pulse": True, "maxVolume": 40}, source="FromClass")
    by_claim = opaque({"pulse": False})
    for configs in ([by_class, by_claim], [by_claim, by_class]):
        assert resolve(configs, "out", SINK) == Parameters(pulse=False, max_volume=40)


def test_of_two_entries_of_one_source_the_later_wins() -> None:
    configs = [opaque({"codec": "sbc"}), opaque({"codec": "aac"})]
    assert resolve(configs, "out", SPEAKER).codec == "aac"


@pytest.mark.parametrize(
    ("requests", "is_applied"),
    [
        pytest.param([], True, id="no-list-means-all"),
        pytest.param(["main"], True, id="the-base-name-covers-its-subrequests"),
        pytest.param(["main/sub"], True, id="the-subrequest-itself"),
        pytest.param(["main/other"], False, id="another-subrequest"),
        pytest.param(["mai"], False, id="a-prefix-is-no-match"),
        pytest.param(["other", "main"], True, id="any-of-the-list"),
    ],
)
def test_an_entry_applies_to_the_requests_that_it_names(
    requests: list[str], is_applied: bool
) -> None:
    config = opaque({"pulse": False}, *requests)
    assert resolve([config], "main/sub", SINK).pulse is not is_applied


def test_an_entry_for_another_driver_is_none_of_our_business() -> None:
    foreign = {
        "source": "FromClaim",
        "opaque": {"driver": "gpu.example.com", "parameters": {"kind": "x"}},
    }
    assert resolve([foreign], "out", SINK) == Parameters()


def test_a_broken_entry_for_another_request_harms_nobody() -> None:
    assert resolve([opaque({"no": 1}, "other")], "out", SINK) == Parameters()


@pytest.mark.parametrize(
    ("config", "says"),
    [
        pytest.param(
            opaque({"pluse": False}),
            "'pluse' is not known (did you mean 'pulse'?); known: codec, pulse",
            id="misspelt",
        ),
        pytest.param(
            opaque({"Pulse": False}), "(did you mean 'pulse'?)", id="wrong-case-is-misspelt"
        ),
        pytest.param(
            opaque({"apiVersion": "x"}, source="FromClass"),
            "'apiVersion' is not known; known: codec, maxVolume, monitor, pulse, setVolume",
            id="unknown-in-a-class",
        ),
        pytest.param(
            opaque({"monitor": True}),
            "'monitor' can only be set in a DeviceClass; a claim may set codec, pulse",
            id="a-class-key-in-a-claim",
        ),
        pytest.param(
            opaque({"pulse": "false"}), "'pulse' must be true or false, not 'false'", id="text"
        ),
        pytest.param(opaque({"pulse": None}), "must be true or false, not None", id="null"),
        pytest.param(
            opaque({"maxVolume": 101}, source="FromClass"),
            "'maxVolume' must be a whole number from 0 to 100, not 101",
            id="volume-out-of-range",
        ),
        pytest.param(
            opaque({"maxVolume": True}, source="FromClass"), "not True", id="a-bool-is-no-number"
        ),
        pytest.param(opaque({"codec": ""}), "must be a codec's name", id="empty-codec"),
        pytest.param(opaque(["pulse"]), "must be an object", id="a-list"),
        pytest.param(opaque("pulse"), "must be an object", id="text-for-an-object"),
        pytest.param(
            {"source": "FromClass", "structured": {}},
            "the class's configuration is of a kind that this driver doesn't know",
            id="an-unknown-kind",
        ),
        pytest.param(
            opaque({}, source="FromNode"), "configuration from 'FromNode'", id="an-unknown-source"
        ),
    ],
)
def test_a_bad_entry_is_refused_with_what_is_right(config: Any, says: str) -> None:
    with pytest.raises(ParametersError) as caught:
        resolve([config], "out", SINK)
    assert says in str(caught.value)


def test_the_ends_of_the_volume_range_are_allowed() -> None:
    for volume in (0, 100):
        config = opaque({"maxVolume": volume}, source="FromClass")
        assert resolve([config], "out", SINK).max_volume == volume


def test_a_codec_is_for_bluetooth_only_and_says_so() -> None:
    assert resolve([opaque({"codec": "ldac"})], "out", SPEAKER).codec == "ldac"
    with pytest.raises(ParametersError, match=r"'codec' is for Bluetooth.*connected by analog"):
        resolve([opaque({"codec": "ldac"})], "out", SINK)


def test_a_monitor_is_for_sinks_only_and_says_so() -> None:
    wanted = opaque({"monitor": True}, source="FromClass")
    with pytest.raises(ParametersError, match=r"'monitor' is for sinks"):
        resolve([wanted], "in", MICROPHONE)
    refused = opaque({"monitor": False}, source="FromClass")
    assert resolve([refused], "in", MICROPHONE).monitor is False


def test_nothing_is_suggested_that_is_not_close() -> None:
    assert closest("volume", ["codec", "pulse"]) == ""


def codec_of(codec: str, endpoint: Endpoint) -> str | None:
    return resolve([opaque({"codec": codec})], "out", endpoint).codec


def test_a_codec_that_is_not_offered_is_refused_with_those_that_are() -> None:
    with pytest.raises(
        ParametersError, match=r"'ldac' is not offered .*; offered: sbc, sbc_xq, aac"
    ):
        codec_of("ldac", speaker_endpoint())


def test_a_codec_that_is_nearly_right_is_refused_with_the_right_one() -> None:
    with pytest.raises(ParametersError, match="did you mean 'sbc_xq'"):
        codec_of("SBC-XQ", speaker_endpoint())


def test_the_codec_that_plays_is_right_also_where_it_is_not_listed() -> None:
    playing = speaker_endpoint(bluetooth=bluetooth_card(codec="aac", codecs=(("sbc", 1),)))
    assert codec_of("aac", playing) == "aac"
    assert codec_of("sbc", playing) == "sbc"


def test_of_a_speaker_that_is_off_no_codec_is_refused() -> None:
    assert codec_of("ldac", speaker_endpoint(bluetooth=None, node=None)) == "ldac"


def test_a_microphone_has_no_codec_to_choose() -> None:
    microphone = speaker_endpoint(direction=Direction.CAPTURE)
    with pytest.raises(ParametersError, match="is for playing"):
        codec_of("aac", microphone)
