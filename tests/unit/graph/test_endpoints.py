"""Cards and nodes joined: which node is heard, and why nothing is."""

import itertools
from dataclasses import replace
from typing import Any

import pytest

from liken_audio.graph import endpoints as endpoints_module
from liken_audio.graph import naming
from liken_audio.graph.device_graph import DeviceGraph
from liken_audio.graph.eld import monitor_id
from liken_audio.graph.endpoints import DEVICE_PROPERTY, endpoints
from liken_audio.graph.model import (
    Card,
    CardNumber,
    CardsSnapshot,
    ClaimHold,
    Connection,
    DeviceName,
    Direction,
    Endpoint,
    Fault,
    GraphView,
    Link,
    Node,
    NodeId,
    NodeSerial,
    PipeWireSnapshot,
    Profile,
    Source,
)
from tests.builders import (
    DISPLAYPORT_ELD,
    HDMI_ELD,
    NO_ELD,
    SPEAKER_ADDRESS,
    SPEAKER_NAME,
    bluetooth_card,
    card,
    control,
    hdmi_pcm,
    jack,
    microphone_pcm,
    node,
    pcm,
    speaker,
    speaker_card,
    speaker_node,
    usb_card,
    usb_identity,
    view,
)

ANALOG = "kitchen-pci-0000-00-1f-3-alc257-analog"
SCREEN = "kitchen-pci-0000-00-1f-3-hdmi-0"


def joined(*cards: Card, nodes: tuple[Node, ...] = ()) -> dict[str, Endpoint]:
    return {each.name: each for each in endpoints(view(*cards, nodes=nodes), "kitchen")}


def only(*cards: Card, nodes: tuple[Node, ...] = ()) -> Endpoint:
    (endpoint,) = joined(*cards, nodes=nodes).values()
    return endpoint


def test_an_endpoint_for_each_pcm_ordered_by_name() -> None:
    laptop = card(pcm(), microphone_pcm(), hdmi_pcm(0), hdmi_pcm(1, eld=NO_ELD))
    found = endpoints(view(laptop, usb_card()), "kitchen")
    assert [each.name for each in found] == [
        ANALOG,
        f"{ANALOG}-capture",
        SCREEN,
        "kitchen-pci-0000-00-1f-3-hdmi-1",
        "usb-20b1-000a-dac51090305-usb-audio",
    ]
    assert [each.direction for each in found].count(Direction.CAPTURE) == 1


def test_a_node_that_bears_the_devices_name_is_its_node() -> None:
    found = only(card(), nodes=(node("other"), node(ANALOG)))
    assert found.node == node(ANALOG)
    assert found.fault is None


def test_a_node_that_names_the_device_in_its_property_is_its_node() -> None:
    foreign = node("alsa_output.x", properties={DEVICE_PROPERTY: ANALOG})
    assert only(card(), nodes=(foreign,)).node is foreign


@pytest.mark.parametrize("media_class", ["Stream/Output/Audio", "Audio/Source", "", "Video/Sink"])
def test_a_stream_that_calls_itself_like_the_device_is_not_its_node(media_class: str) -> None:
    found = only(card(), nodes=(node(ANALOG, media_class=media_class),))
    assert (found.node, found.fault) == (None, Fault.NO_NODE)


@pytest.mark.parametrize("media_class", ["Audio/Source", "Audio/Source/Virtual", "Audio/Duplex"])
def test_a_source_has_a_source_node(media_class: str) -> None:
    microphone = node(ANALOG, media_class=media_class)
    assert only(card(microphone_pcm()), nodes=(microphone,)).node is microphone


def suspended_leftover() -> Node:
    return node(
        ANALOG, id=NodeId(66), serial=NodeSerial(400), state="suspended", has_live_device=False
    )


def test_of_two_nodes_with_one_name_the_live_one_is_heard() -> None:
    """U15: after suspend and resume the old node stays as a leftover."""
    live = node(ANALOG, id=NodeId(51), serial=NodeSerial(310), state="running")
    for nodes in itertools.permutations([live, suspended_leftover()]):
        found = only(card(), nodes=nodes)
        assert (found.node, found.fault) == (live, None)


def test_a_leftover_alone_is_no_node() -> None:
    found = only(card(), nodes=(suspended_leftover(),))
    assert (found.node, found.fault) == (None, Fault.NO_NODE)


def test_among_live_nodes_running_comes_first_then_the_youngest() -> None:
    idle_young = node(ANALOG, serial=NodeSerial(9), state="idle")
    idle_old = node(ANALOG, serial=NodeSerial(5), state="suspended")
    running = node(ANALOG, serial=NodeSerial(3), state="running")
    broken = node(ANALOG, serial=NodeSerial(99), state="error")
    for nodes in itertools.permutations([idle_young, idle_old, running, broken]):
        assert only(card(), nodes=nodes).node is running
    for nodes in itertools.permutations([idle_young, idle_old, broken]):
        assert only(card(), nodes=nodes).node is idle_young


def test_a_node_in_error_is_a_fault_of_that_device_only() -> None:
    """U49: opening an HDMI slot can fail while the others play."""
    laptop = card(pcm(), hdmi_pcm())
    found = joined(laptop, nodes=(node(ANALOG), node(SCREEN, state="error", error="busy")))
    assert found[SCREEN].fault is Fault.NO_NODE
    assert found[SCREEN].node is not None
    assert found[ANALOG].fault is None


def test_a_monitor_comes_from_the_eld() -> None:
    found = joined(card(hdmi_pcm(0), hdmi_pcm(1, eld=DISPLAYPORT_ELD)))
    ids = [monitor_id(each.monitor) for each in found.values() if each.monitor]
    assert ids == ["gsm-5b09-lg-ultrawide", "del-4071-dell-u2415"]
    assert [each.connection for each in found.values()] == [
        Connection.HDMI,
        Connection.DISPLAYPORT,
    ]


def test_two_equal_monitors_are_two_devices_with_one_id() -> None:
    """U57."""
    found = joined(card(hdmi_pcm(0), hdmi_pcm(1)))
    assert len(found) == 2
    assert {monitor_id(each.monitor) for each in found.values() if each.monitor} == {
        "gsm-5b09-lg-ultrawide"
    }


def test_a_monitor_that_moves_takes_its_id_along() -> None:
    """U49: the slot it leaves has no monitor."""
    found = joined(card(hdmi_pcm(0, eld=b""), hdmi_pcm(1, eld=HDMI_ELD)))
    assert [each.fault for each in found.values()] == [Fault.NO_MONITOR, Fault.NO_NODE]


@pytest.mark.parametrize("eld", [b"", NO_ELD, b"\x10\x00"])
def test_an_hdmi_pcm_without_an_eld_has_no_monitor(eld: bytes) -> None:
    """U56: zeros and an empty control say the same, even where a null node could play."""
    found = only(card(hdmi_pcm(eld=eld)), nodes=(node(SCREEN),))
    assert (found.monitor, found.fault) == (None, Fault.NO_MONITOR)
    assert found.connection is Connection.HDMI


def test_a_monitor_whose_plug_is_out_is_no_monitor() -> None:
    out = jack("HDMI/DP,pcm=3 Jack", is_plugged=False)
    found = only(card(hdmi_pcm(), jacks=(out,)), nodes=(node(SCREEN),))
    assert (found.monitor, found.fault, found.jack) == (None, Fault.NO_MONITOR, out)


def test_an_hdmi_pcm_that_has_no_eld_control_goes_by_its_jack() -> None:
    screen = hdmi_pcm(eld=None)
    plugged = card(screen, jacks=(jack("HDMI Jack"),))
    out = card(screen, jacks=(jack("HDMI Jack", is_plugged=False),))
    assert only(plugged, nodes=(node(SCREEN),)).fault is None
    assert only(out, nodes=(node(SCREEN),)).fault is Fault.NO_MONITOR


def test_a_plug_that_is_out_is_unplugged_though_the_node_is_there() -> None:
    out = jack("Headphone Jack", is_plugged=False)
    assert only(card(jacks=(out,)), nodes=(node(ANALOG),)).fault is Fault.UNPLUGGED


def test_a_card_that_is_away_is_unplugged_and_keeps_its_devices() -> None:
    away = replace(usb_card(), is_present=False)
    assert only(away, nodes=(node("usb-20b1-000a-dac51090305-usb-audio"),)).fault is Fault.UNPLUGGED


def test_the_outermost_reason_is_told() -> None:
    out = (jack("HDMI/DP,pcm=3 Jack", is_plugged=False),)
    away = card(hdmi_pcm(eld=b""), jacks=out, is_present=False)
    lost = {"lost": frozenset({Source.PIPEWIRE})}

    def fault(its_card: Card, **changes: frozenset[Source]) -> Fault | None:
        (endpoint,) = endpoints(view(its_card, **changes), "kitchen")
        return endpoint.fault

    assert fault(away, **lost) is Fault.UNPLUGGED
    assert fault(replace(away, is_present=True), **lost) is Fault.NO_MONITOR
    assert fault(card(hdmi_pcm()), **lost) is Fault.GRAPH_LOST
    assert fault(card(hdmi_pcm())) is Fault.NO_NODE


def test_a_lost_graph_has_no_nodes_but_all_devices() -> None:
    """U16."""
    lost = view(card(), nodes=(node(ANALOG),), lost=frozenset({Source.PIPEWIRE}))
    (found,) = endpoints(lost, "kitchen")
    assert (found.node, found.fault) == (None, Fault.GRAPH_LOST)


def test_lost_cards_alone_are_no_fault() -> None:
    lost = view(card(), nodes=(node(ANALOG),), lost=frozenset({Source.ALSA}))
    assert endpoints(lost, "kitchen")[0].fault is None


@pytest.mark.parametrize(
    ("pcm_id", "bus", "connection"),
    [
        ("ALC257 Analog", "pci", Connection.ANALOG),
        ("ALC892 Digital", "pci", Connection.SPDIF),
        ("IEC958", "pci", Connection.SPDIF),
        ("bcm2835 SPDIF", "platform", Connection.SPDIF),
        ("Digital Microphone", "pci", Connection.ANALOG),
        ("vc4-hdmi-hifi-0", "platform", Connection.HDMI),
        ("DisplayPort 1", "pci", Connection.DISPLAYPORT),
        ("USB Audio", "usb", Connection.USB),
        ("USB Audio SPDIF", "usb", Connection.SPDIF),
    ],
)
def test_the_connection_shows_in_id_and_bus(pcm_id: str, bus: str, connection: Connection) -> None:
    assert only(card(pcm(id=pcm_id), bus=bus, path="1-1")).connection is connection


def test_the_connection_may_show_in_the_pcms_name() -> None:
    assert only(card(pcm(id="PCM 2", name="IEC958 Out"))).connection is Connection.SPDIF


def test_controls_and_jack_come_with_the_endpoint() -> None:
    volume, capture = control("Master Playback Volume"), control("Capture Volume")
    plugged = jack("Headphone Jack")
    laptop = card(pcm(), microphone_pcm(), controls=(volume, capture), jacks=(plugged,))
    found = joined(laptop)
    assert (found[ANALOG].controls, found[ANALOG].jack) == ((volume,), plugged)
    assert (found[f"{ANALOG}-capture"].controls, found[f"{ANALOG}-capture"].jack) == (
        (capture,),
        None,
    )


def test_a_claimed_device_keeps_its_name_when_its_twin_comes() -> None:
    one = usb_card(usb=usb_identity(serial="A1", port="1-1"), number=CardNumber(1))
    two = usb_card(usb=usb_identity(serial="A1", port="1-2"), number=CardNumber(2))
    claimed = DeviceName("usb-20b1-000a-a1-usb-audio")
    hold = ClaimHold(namespace="media", name="speaker", uid="1", devices=(claimed,))
    before = endpoints(view(one, holds=(hold,)), "kitchen")
    after = endpoints(view(one, two, holds=(hold,)), "kitchen")
    assert [each.name for each in before] == [claimed]
    assert [(each.name, each.card) for each in after] == [
        ("kitchen-usb-1-2-usb-audio", two),
        (claimed, one),
    ]


def test_a_changed_card_is_never_answered_from_memory() -> None:
    first, second = card(hdmi_pcm()), card(hdmi_pcm(eld=b""))
    assert only(first).monitor is not None
    assert only(second).monitor is None
    assert only(first).monitor is not None
    assert [each.name for each in endpoints(view(first), "bedroom")] == [
        SCREEN.replace("kitchen", "bedroom")
    ]


def test_an_empty_view_has_no_endpoints() -> None:
    assert endpoints(GraphView(), "kitchen") == ()


def test_updates_of_nodes_work_nothing_out_again_that_the_cards_decide(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """U18: 10,000 updates in two seconds are joins only."""
    calls: list[int] = []

    def counted(*arguments: Any) -> Any:
        calls.append(1)
        return naming.device_names(*arguments)

    monkeypatch.setattr(endpoints_module, "device_names", counted)
    graph = DeviceGraph([Source.VIRTUAL, Source.PIPEWIRE])
    outputs = [pcm(id=f"Output {number}", device=number) for number in range(64)]
    nodes = tuple(node(f"kitchen-pci-0000-00-1f-3-output-{number}") for number in range(64))
    graph.replace(Source.VIRTUAL, CardsSnapshot((card(*outputs),)))
    for serial in range(100):
        changed = replace(nodes[0], serial=NodeSerial(serial))
        graph.replace(Source.PIPEWIRE, PipeWireSnapshot((changed, *nodes[1:])))
        found = {each.name: each for each in endpoints(graph.view(), "kitchen")}
        assert found[DeviceName("kitchen-pci-0000-00-1f-3-output-0")].node == changed
        assert all(each.fault is None for each in found.values())
    assert len(calls) == 1


def test_a_claim_on_a_pci_device_works_nothing_out_again(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def counted(*arguments: Any) -> Any:
        calls.append(1)
        return naming.device_names(*arguments)

    monkeypatch.setattr(endpoints_module, "device_names", counted)
    its_card = card()
    hold = ClaimHold(namespace="media", name="speaker", uid="1", devices=(DeviceName(ANALOG),))
    assert endpoints(view(its_card), "kitchen") == endpoints(
        view(its_card, holds=(hold,)), "kitchen"
    )
    assert len(calls) == 1


HEADSET = bluetooth_card(
    profiles=(*bluetooth_card().profiles, Profile(index=3, name="headset-head-unit-cvsd"))
)
MICROPHONE = f"{SPEAKER_NAME}-capture"


def with_bluetooth(*nodes: Node, device: Any = None, **changes: Any) -> dict[str, Endpoint]:
    its_card = speaker_card(speaker(**changes), has_microphone=True)
    devices = (device,) if device else ()
    seen = view(its_card, nodes=nodes, bluetooth=devices)
    return {each.name: each for each in endpoints(seen, "kitchen")}


def test_a_speaker_is_joined_with_the_node_and_the_device_of_its_address() -> None:
    found = with_bluetooth(speaker_node(), device=HEADSET)[SPEAKER_NAME]
    assert (found.connection, found.fault) == (Connection.BLUETOOTH, None)
    assert found.node == speaker_node()
    assert found.bluetooth == HEADSET


def test_the_case_of_an_address_does_not_count() -> None:
    lower = speaker_node(properties={"api.bluez5.address": "7c:66:ef:01:23:45"})
    assert with_bluetooth(lower)[SPEAKER_NAME].fault is None


def test_of_two_nodes_of_a_speaker_the_one_that_can_be_heard_counts() -> None:
    broken = speaker_node(id=NodeId(50), serial=NodeSerial(60), state="error")
    for nodes in itertools.permutations([speaker_node(), broken]):
        assert with_bluetooth(*nodes)[SPEAKER_NAME].node == speaker_node()


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"properties": {"api.bluez5.address": "7C:66:EF:01:23:46"}}, id="another"),
        pytest.param({"properties": {"bluez5.loopback": "true"}}, id="loopback"),
        pytest.param({"has_live_device": False}, id="leftover"),
        pytest.param({"media_class": "Stream/Output/Audio"}, id="stream"),
    ],
)
def test_a_node_that_is_not_the_speakers_is_not_taken(changes: dict[str, Any]) -> None:
    assert with_bluetooth(speaker_node(**changes))[SPEAKER_NAME].fault is Fault.NO_NODE


def test_a_node_that_only_bears_a_speakers_name_is_not_taken() -> None:
    assert with_bluetooth(node(SPEAKER_NAME))[SPEAKER_NAME].fault is Fault.NO_NODE


def test_a_speaker_that_is_off_is_unplugged_whatever_nodes_are_left() -> None:
    found = with_bluetooth(speaker_node(), link=Link.AWAY)
    assert {each.fault for each in found.values()} == {Fault.UNPLUGGED}


def test_a_microphone_waits_without_a_fault_while_its_profile_can_be_had() -> None:
    found = with_bluetooth(speaker_node(), device=HEADSET)[MICROPHONE]
    assert (found.node, found.fault) == (None, None)
    assert with_bluetooth(speaker_node(), device=bluetooth_card())[MICROPHONE].fault is (
        Fault.NO_NODE
    )
    assert with_bluetooth(speaker_node())[MICROPHONE].fault is Fault.NO_NODE


def test_a_microphones_node_is_the_headsets_and_no_music_that_comes_in() -> None:
    source = {"media_class": "Audio/Source", "name": "bluez_input.1"}
    music = speaker_node(**source, properties={"api.bluez5.profile": "a2dp-source"})
    speech = speaker_node(**source, properties={"api.bluez5.profile": "headset-head-unit"})
    assert with_bluetooth(music, device=bluetooth_card())[MICROPHONE].node is None
    assert with_bluetooth(music, speech, device=HEADSET)[MICROPHONE].node == speech


def test_a_change_of_a_bluetooth_device_alone_is_seen() -> None:
    before = with_bluetooth(speaker_node(), device=bluetooth_card())[SPEAKER_NAME]
    after = with_bluetooth(speaker_node(), device=bluetooth_card(codec="aac"))[SPEAKER_NAME]
    assert before.bluetooth != after.bluetooth


def test_a_node_that_we_have_made_anew_is_not_missing_meanwhile() -> None:
    """Else the pod that plays goes for a switch that its own claim may have asked for."""
    cards = (speaker_card(speaker()),)
    before = view(*cards, bluetooth=(bluetooth_card(),))
    (missing,) = endpoints(before, "kitchen")
    (switched,) = endpoints(replace(before, switching=(SPEAKER_ADDRESS,)), "kitchen")
    (other,) = endpoints(replace(before, switching=("7C:66:EF:00:00:00",)), "kitchen")
    assert (missing.fault, switched.fault, other.fault) == (Fault.NO_NODE, None, Fault.NO_NODE)


def test_a_speaker_that_leaves_while_it_is_switched_is_unplugged() -> None:
    gone = replace(view(speaker_card(speaker(link=Link.AWAY))), switching=(SPEAKER_ADDRESS,))
    (found,) = endpoints(gone, "kitchen")
    assert found.fault is Fault.UNPLUGGED
