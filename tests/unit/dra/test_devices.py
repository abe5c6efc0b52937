"""What Kubernetes is told of an endpoint, within the API's limits."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liken_audio.dra.devices import Capacity, Device, Taint, attributes, device, node_name
from liken_audio.graph import eld
from liken_audio.graph.endpoints import endpoints
from liken_audio.graph.model import (
    CardNumber,
    Connection,
    Direction,
    Eld,
    Endpoint,
    Fault,
    Link,
    Pcm,
)
from tests.builders import (
    DISPLAYPORT_ELD,
    HDMI_ELD,
    SPEAKER_NAME,
    bluetooth_card,
    card,
    endpoint,
    hdmi_pcm,
    microphone_pcm,
    node,
    pcm,
    speaker,
    speaker_endpoint,
    usb_card,
    view,
)

REFERENCE = Path(__file__).parents[3] / "docs" / "reference-devices.md"
C_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}")
DOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


def screen(block: bytes = HDMI_ELD, **changes: object) -> Endpoint:
    name = "kitchen-pci-0000-00-1f-3-hdmi-0"
    (found,) = endpoints(view(card(hdmi_pcm(eld=block)), nodes=(node(name),)), "kitchen")
    return replace(found, **changes)


def monitor(**changes: object) -> Eld:
    known = eld.decode(HDMI_ELD)
    assert known is not None
    return replace(known, **changes)


def test_a_screen_says_all_that_its_monitor_says() -> None:
    assert dict(device(screen(), None).attributes) == {
        "sink": "kitchen-pci-0000-00-1f-3-hdmi-0",
        "connectionType": "hdmi",
        "nodeName": "kitchen-pci-0000-00-1f-3-hdmi-0",
        "card": 0,
        "pcm": 3,
        "channels": 2,
        "resource.kubernetes.io/pciBusID": "0000:00:1f.3",
        "monitorName": "LG ULTRAWIDE",
        "manufacturer": "GSM",
        "product": "5b09",
        "lpcmChannels": 2,
        "lpcmMaxRateHz": 48_000,
        "lpcmBitDepths": "16 20 24",
        "speakers": "FL/FR",
        "eldVersion": 2,
        "portID": 2048,
        "monitor.liken.sh/id": "gsm-5b09-lg-ultrawide",
    }


def test_several_speakers_are_one_text() -> None:
    attributes = device(screen(DISPLAYPORT_ELD), None).attributes
    assert attributes["speakers"] == "FL/FR FC"
    assert attributes["connectionType"] == "displayport"
    assert attributes["lpcmChannels"] == 8


def test_an_analog_output_says_nothing_of_a_monitor() -> None:
    assert dict(device(endpoint("speaker"), None).attributes) == {
        "sink": "speaker",
        "connectionType": "analog",
        "nodeName": "speaker",
        "card": 0,
        "pcm": 0,
        "channels": 2,
        "resource.kubernetes.io/pciBusID": "0000:00:1f.3",
    }


def test_a_microphone_is_a_source_and_no_sink() -> None:
    attributes = device(endpoint("mic", direction=Direction.CAPTURE), None).attributes
    assert attributes["source"] == "mic"
    assert "sink" not in attributes


@pytest.mark.parametrize("bus", ["usb", "platform"])
def test_only_pci_cards_have_a_pci_address(bus: str) -> None:
    its_card = replace(usb_card(), bus=bus)
    attributes = device(endpoint(card=its_card), None).attributes
    assert "resource.kubernetes.io/pciBusID" not in attributes


def test_what_is_no_pci_address_is_not_published_as_one() -> None:
    attributes = device(endpoint(card=card(path="somewhere")), None).attributes
    assert "resource.kubernetes.io/pciBusID" not in attributes


def test_empty_text_and_unknown_numbers_are_left_out() -> None:
    """U54, U57: no name, no maker, and a port id of 0 as i915 gives it."""
    nameless = monitor(name="", manufacturer="", product="", port_id=0, speakers=())
    nameless = replace(nameless, lpcm_channels=0, lpcm_max_rate_hz=0, lpcm_bit_depths=())
    attributes = device(screen(monitor=nameless), None).attributes
    absent = {"monitorName", "manufacturer", "product", "portID", "monitor.liken.sh/id", "speakers"}
    absent |= {"lpcmChannels", "lpcmMaxRateHz", "lpcmBitDepths"}
    assert not absent & set(attributes)
    assert attributes["eldVersion"] == 2


def test_a_card_number_of_zero_is_a_number() -> None:
    attributes = device(endpoint(card=card(number=CardNumber(0))), None).attributes
    assert (attributes["card"], attributes["pcm"]) == (0, 0)


def test_text_over_64_bytes_is_cut_at_a_letter() -> None:
    """U71: the 64th byte is the first of a letter of two."""
    attributes = device(screen(monitor=monitor(name="x" * 63 + "é" + "y" * 5)), None).attributes
    assert attributes["monitorName"] == "x" * 63
    attributes = device(screen(monitor=monitor(name="x" * 62 + "é" + "y" * 5)), None).attributes
    assert attributes["monitorName"] == "x" * 62 + "é"


def test_text_that_is_no_utf_8_is_made_so() -> None:
    """U11: what a client or a descriptor says may hold any byte."""
    attributes = device(screen(monitor=monitor(name="TV \udce9 2")), None).attributes
    assert attributes["monitorName"] == "TV ? 2"


def test_a_port_id_too_large_for_the_api_is_left_out() -> None:
    attributes = device(screen(monitor=monitor(port_id=2**64 - 1)), None).attributes
    assert "portID" not in attributes
    attributes = device(screen(monitor=monitor(port_id=2**63 - 1)), None).attributes
    assert attributes["portID"] == 2**63 - 1


def test_the_node_name_is_the_nodes_and_stays_while_it_is_away() -> None:
    own = endpoint("speaker")
    foreign = endpoint("speaker", node=node("alsa_output.usb"))
    assert node_name(own) == node_name(replace(own, node=None)) == "speaker"
    assert node_name(foreign) == "alsa_output.usb"


def keys(endpoint: Endpoint, fault: Fault | None) -> list[tuple[str, str]]:
    found = device(endpoint, fault).taints
    assert all(taint.value == "" for taint in found)
    return [(taint.key.removeprefix("audio.liken.sh/"), taint.effect) for taint in found]


GONE = ("disconnected", "NoExecute")
NO_SINK, NO_SOURCE = ("no-sink", "NoSchedule"), ("no-source", "NoSchedule")
NO_MONITOR = ("no-monitor", "NoSchedule")
MIC = endpoint("mic", direction=Direction.CAPTURE)


@pytest.mark.parametrize(
    ("fault", "sink", "source"),
    [
        pytest.param(None, [], [], id="fine"),
        pytest.param(Fault.NO_NODE, [GONE, NO_SINK], [GONE, NO_SOURCE], id="no-node"),
        pytest.param(Fault.GRAPH_LOST, [GONE, NO_SINK], [GONE, NO_SOURCE], id="graph-lost"),
        pytest.param(Fault.UNPLUGGED, [GONE], [GONE], id="plug-out"),
    ],
)
def test_each_fault_has_its_taints(
    fault: Fault | None, sink: list[tuple[str, str]], source: list[tuple[str, str]]
) -> None:
    assert keys(endpoint(), fault) == sink
    assert keys(MIC, fault) == source


def test_a_screen_without_a_monitor_says_so() -> None:
    assert keys(screen(b""), Fault.NO_MONITOR) == [GONE, NO_MONITOR]


def test_a_card_that_is_away_has_no_node_to_play_to() -> None:
    away = endpoint(card=card(is_present=False))
    assert keys(away, Fault.UNPLUGGED) == [GONE, NO_SINK]
    assert keys(replace(MIC, card=away.card), Fault.UNPLUGGED) == [GONE, NO_SOURCE]


def test_the_fault_that_counts_is_the_callers_not_the_endpoints() -> None:
    flapping = replace(endpoint(), node=None, fault=Fault.NO_NODE)
    assert device(flapping, None).taints == ()


def test_a_taint_changes_no_attribute_but_what_the_monitor_says() -> None:
    """A lost graph taints and never removes, nor does it rewrite a device."""
    fine, lost = endpoint(), replace(endpoint(), node=None, fault=Fault.GRAPH_LOST)
    assert device(fine, None).attributes == device(lost, Fault.GRAPH_LOST).attributes


def test_an_exclusive_device_is_for_one_claim() -> None:
    exclusive = device(endpoint(), None)
    assert not exclusive.allow_multiple
    assert dict(exclusive.capacity) == {}


def test_a_shared_device_has_streams_to_give() -> None:
    shared = device(endpoint(), None, is_shared=True)
    assert shared.allow_multiple
    assert list(shared.capacity) == ["streams"]


def test_the_request_policy_is_one_the_api_takes() -> None:
    """Default and bounds within the value; default and maximum whole steps above the minimum."""
    streams: Capacity = device(endpoint(), None, is_shared=True).capacity["streams"]
    assert 1 == streams.minimum <= streams.default <= streams.maximum <= streams.value
    assert (streams.default - streams.minimum) % streams.step == 0
    assert (streams.maximum - streams.minimum) % streams.step == 0


def test_equal_endpoints_make_equal_devices() -> None:
    assert device(screen(), Fault.NO_NODE) == device(screen(), Fault.NO_NODE)
    assert Taint("a", "NoExecute") == Taint("a", "NoExecute", "")


monitors = st.builds(
    Eld,
    version=st.sampled_from([2, 31]),
    connection=st.sampled_from([Connection.HDMI, Connection.DISPLAYPORT]),
    manufacturer=st.sampled_from(["", "GSM"]),
    product=st.sampled_from(["", "5b09"]),
    name=st.text(alphabet='aZ09 .-_/"\\\0\n\x7fäß\u2028\ud800平\U0001f50a', max_size=80),
    port_id=st.integers(min_value=0, max_value=2**64 - 1),
    lpcm_channels=st.integers(min_value=0, max_value=8),
    lpcm_max_rate_hz=st.sampled_from([0, 192_000]),
    lpcm_bit_depths=st.sampled_from([(), (16, 20, 24)]),
    speakers=st.sampled_from([(), ("FL/FR", "LFE")]),
)


@given(monitors, st.sampled_from([pcm(), microphone_pcm()]), st.booleans())
def test_no_monitor_makes_a_device_that_the_api_refuses(
    its_monitor: Eld, its_pcm: Pcm, is_shared: bool
) -> None:
    made: Device = device(endpoint(pcm=its_pcm, monitor=its_monitor), None, is_shared=is_shared)
    assert len(made.attributes) + len(made.capacity) <= 32
    for name, value in made.attributes.items():
        domain, _, identifier = name.rpartition("/")
        assert C_IDENTIFIER.fullmatch(identifier)
        assert not domain or (DOMAIN.fullmatch(domain) and len(domain) <= 63)
        if isinstance(value, str):
            assert 1 <= len(value.encode("utf-8")) <= 64
        else:
            assert -(2**63) <= value < 2**63


def test_a_speaker_shows_its_address_name_and_codecs_and_no_card() -> None:
    assert attributes(speaker_endpoint()) == {
        "sink": SPEAKER_NAME,
        "connectionType": "bluetooth",
        "nodeName": "bluez_output.7C_66_EF_01_23_45.1",
        "channels": 2,
        "address": "7C:66:EF:01:23:45",
        "name": "Kitchen Radio",
        "connected": True,
        "codec": "sbc",
        "codecs": "sbc sbc_xq aac",
    }


def test_the_codec_that_plays_comes_first_and_once() -> None:
    playing = speaker_endpoint(bluetooth=bluetooth_card(codec="aac"))
    assert attributes(playing)["codecs"] == "aac sbc sbc_xq"


def test_the_reference_names_all_attributes_and_taints_and_no_others() -> None:
    shown = [screen(DISPLAYPORT_ELD), MIC, speaker_endpoint()]
    names = {name for each in shown for name in attributes(each)}
    keys = {taint.key for each in shown for fault in Fault for taint in device(each, fault).taints}
    rows = [line for line in REFERENCE.read_text().splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[1])}
    assert named == names | keys


def test_no_codec_is_cut_to_what_is_another_codecs_name() -> None:
    names = [
        "sbc",
        "sbc_xq",
        "faststream",
        "faststream_duplex",
        "aptx_ll",
        "aptx_ll_duplex",
        "aptx_hd",
        "ldac",
    ]
    many = bluetooth_card(codecs=tuple((name, number) for number, name in enumerate(names)))
    shown = attributes(speaker_endpoint(bluetooth=many))["codecs"]
    assert shown == "sbc sbc_xq faststream faststream_duplex aptx_ll aptx_ll_duplex"


def test_a_speaker_that_is_off_is_published_as_not_connected_and_tainted() -> None:
    off = speaker_endpoint(
        speaker(link=Link.AWAY), node=None, bluetooth=None, fault=Fault.UNPLUGGED
    )
    its = device(off, Fault.UNPLUGGED)
    assert its.attributes["connected"] is False
    assert "codec" not in its.attributes
    assert [(taint.key, taint.effect) for taint in its.taints] == [
        ("audio.liken.sh/disconnected", "NoExecute"),
        ("audio.liken.sh/no-sink", "NoSchedule"),
    ]
