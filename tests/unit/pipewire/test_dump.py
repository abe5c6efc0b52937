"""What pw-dump prints, really printed and made up, and the nodes that are read from it."""

import json
from pathlib import Path
from typing import Any

import pytest

from liken_audio.graph.model import Node, PipeWireSnapshot
from liken_audio.pipewire.dump import DumpParser, text

RECORDINGS = Path(__file__).parents[2] / "recordings" / "pw-dump"
NODE_TYPE = "PipeWire:Interface:Node"
DEVICE_TYPE = "PipeWire:Interface:Device"
CLIENT_TYPE = "PipeWire:Interface:Client"


def recording(name: str) -> bytes:
    return (RECORDINGS / name).read_bytes()


def node(number: int, serial: int = 0, **changes: Any) -> dict[str, Any]:
    """A node as pw-dump prints it; `changes` are of its `info`, `props` among them added to."""
    props = {"object.serial": serial or number, "node.name": "speaker", "media.class": "Audio/Sink"}
    info: dict[str, Any] = {"state": "idle", "error": None, "params": {"Props": [], "Format": []}}
    info |= changes | {"props": props | changes.get("props", {})}
    return {"id": number, "type": NODE_TYPE, "version": 3, "info": info}


def device(number: int, serial: int = 0) -> dict[str, Any]:
    props = {"object.serial": serial or number}
    return {"id": number, "type": DEVICE_TYPE, "info": {"props": props, "params": {}}}


def client(number: int, serial: int = 0, engine: str | None = None) -> dict[str, Any]:
    props = {"object.serial": serial or number, "pipewire.sec.engine": engine}
    return {"id": number, "type": CLIENT_TYPE, "info": {"props": props}}


def removal(number: int) -> dict[str, Any]:
    return {"id": number, "info": None}


def pretty(*objects: Any) -> bytes:
    """An array in pw-dump's form."""
    return json.dumps(objects, indent=2).encode() + b"\n"


def compact(*objects: Any) -> bytes:
    return json.dumps(objects).encode()


def read(*arrays: bytes) -> PipeWireSnapshot:
    parser = DumpParser()
    for array in arrays:
        parser.feed(array)
    assert parser.parse_errors == 0
    return parser.snapshot()


def only(*arrays: bytes) -> Node:
    (found,) = read(*arrays).nodes
    return found


def with_volume(*volumes: Any, **more: Any) -> dict[str, Any]:
    props = {"volume": 1.0, "mute": False, "channelVolumes": list(volumes)} | more
    return node(40, params={"Props": [props], "Format": []})


# The stream.


@pytest.mark.parametrize(
    "name",
    ["one-id-two-nodes.jsons", "client-without-utf8.jsons", "usb-3-unplugged.jsons"],
)
def test_a_recording_cut_in_two_ends_in_one_state(name: str) -> None:
    """At every offset the same arrays are found, as test_framing.py shows; here at every 13th."""
    data = recording(name)
    expected = read(data)
    for cut in range(0, len(data) + 1, 13):
        parser = DumpParser()
        parser.feed(data[:cut])
        parser.feed(data[cut:])
        assert parser.snapshot() == expected, cut
        assert parser.parse_errors == parser.pending_bytes == 0, cut


@pytest.mark.parametrize("name", ["usb-1-start.jsons", "usb-2-plugged.jsons"])
@pytest.mark.parametrize("size", [7, 1009])
def test_a_long_recording_in_small_pieces_ends_in_one_state(name: str, size: int) -> None:
    data = recording(name)
    parser = DumpParser()
    for start in range(0, len(data), size):
        parser.feed(data[start : start + size])
    assert parser.snapshot() == read(data)
    assert parser.parse_errors == parser.pending_bytes == 0


@pytest.mark.parametrize(
    "name", [each.name for each in sorted(RECORDINGS.glob("*.jsons")) if "utf8" not in each.name]
)
def test_the_form_of_the_lines_changes_nothing(name: str) -> None:
    """What is read from pw-dump's own form by its look is what decoding all of it gives."""
    data = recording(name)
    values, rest = [], data.decode()
    while rest.strip():
        value, end = json.JSONDecoder().raw_decode(rest.lstrip())
        values.append(value)
        rest = rest.lstrip()[end:]
    assert read(*(compact(*each) for each in values)) == read(data)
    assert read(*(pretty(*each) for each in values)) == read(data)


def test_nothing_is_said_before_the_first_array_is_complete() -> None:
    parser = DumpParser()
    assert parser.feed(pretty(node(40))[:-4]) is None
    assert parser.arrays == 0
    assert parser.feed(pretty(node(40))[-4:]) == read(pretty(node(40)))
    assert parser.arrays == 1


def test_a_first_array_without_nodes_says_that_there_are_none() -> None:
    assert DumpParser().feed(b"[\n]\n") == PipeWireSnapshot()
    assert DumpParser().feed(recording("client-without-utf8.jsons")) == PipeWireSnapshot()


def test_a_stream_cut_off_in_its_last_array_keeps_what_came_before() -> None:
    parser = DumpParser()
    parser.feed(pretty(node(40)))
    parser.feed(pretty(removal(40))[:-3])
    assert len(parser.snapshot().nodes) == 1
    assert parser.pending_bytes > 0


def test_an_array_of_several_megabytes_is_read() -> None:
    nodes = [node(number, params={"EnumFormat": ["x" * 12_000]}) for number in range(1, 301)]
    data = pretty(*nodes)
    assert len(data) > 3_000_000
    parser = DumpParser()
    for start in range(0, len(data), 65_536):
        parser.feed(data[start : start + 65_536])
    assert len(parser.snapshot().nodes) == 300


def test_garbage_between_arrays_loses_nothing_and_is_told() -> None:
    parser = DumpParser()
    parser.feed(pretty(node(40)))
    parser.feed(b"(null): can't \xff [\n\n" + pretty(node(41)) + b"}\n" + pretty(node(42)))
    assert [each.id for each in parser.snapshot().nodes] == [40, 41, 42]
    assert parser.is_garbled
    assert parser.parse_errors >= 2


def test_an_array_that_was_broken_off_is_told_and_the_next_is_read() -> None:
    parser = DumpParser()
    parser.feed(pretty(node(40))[:100] + b"\n" + pretty(node(41)))
    assert [each.id for each in parser.snapshot().nodes] == [41]
    assert parser.is_garbled


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b'    "id": 41,\n    "type": "PipeWire:Interface:Node",\n    x', id="node"),
        pytest.param(b'    "id": 41 broken', id="id"),
        pytest.param(b'    "type": "PipeWire:Interface:Node"', id="without id"),
    ],
)
def test_a_broken_object_costs_no_other_object_of_its_array(body: bytes) -> None:
    first, last = pretty(node(40)).strip(), pretty(node(42)).strip()
    parser = DumpParser()
    parser.feed(pretty(node(41)))
    parser.feed(first[:-2] + b",\n  {\n" + body + b"\n  },\n" + last[2:])
    assert [each.id for each in parser.snapshot().nodes] == [40, 41, 42]
    assert parser.parse_errors == 1
    assert not parser.is_garbled


@pytest.mark.parametrize("value", [7, None, "node", [], {}, {"id": "40"}, {"id": True}])
def test_what_is_no_object_with_an_id_is_counted(value: object) -> None:
    parser = DumpParser()
    parser.feed(compact(value, node(40)))
    assert len(parser.snapshot().nodes) == 1
    assert parser.parse_errors == 1


def test_brackets_nested_too_deep_to_decode_are_an_error_and_no_end() -> None:
    parser = DumpParser()
    parser.feed(b"[" * 20_000 + b"]" * 20_000 + b"\n")
    parser.feed(pretty(node(40)))
    assert parser.parse_errors == 1
    assert len(parser.snapshot().nodes) == 1


def test_the_same_state_again_is_the_same_object() -> None:
    parser = DumpParser()
    first = parser.feed(pretty(node(40), node(41)))
    assert parser.feed(pretty(node(40))) is first
    assert parser.feed(recording("client-without-utf8.jsons")) is first
    assert first is not None
    changed = parser.feed(pretty(node(41, state="running")))
    assert changed is not None
    assert changed != first
    assert changed.nodes[0] is first.nodes[0]


def test_of_many_changes_in_one_piece_the_last_counts() -> None:
    """U18: a storm of which 10,000 arrays end where they began."""
    parser = DumpParser()
    before = parser.feed(pretty(node(40)))
    storm = pretty(node(40, state="running")) + pretty(removal(40)) + pretty(node(40, 99))
    assert parser.feed(storm * 50 + pretty(node(40))) is before
    assert parser.arrays == 152


# Objects that come and go.


def test_a_reused_id_is_another_node() -> None:
    data = recording("one-id-two-nodes.jsons")
    parser = DumpParser()
    seen = []
    for line in data.splitlines(keepends=True):
        snapshot = parser.feed(line)
        if snapshot is not None:
            seen.append([(each.id, each.serial, each.name) for each in snapshot.nodes])
    assert seen == [
        [(33, 35, "rec-a")],
        [],
        [(33, 39, "rec-b")],
        [(33, 39, "rec-b"), (34, 41, "rec-b")],
    ]


@pytest.mark.parametrize("form", [pretty, compact])
def test_removals_of_every_form(form: Any) -> None:
    """U13: a known id goes; one never seen, and what only looks like a removal, change nothing."""
    parser = DumpParser()
    parser.feed(form(node(40), node(41), node(7)))
    parser.feed(form(removal(40)))
    parser.feed(form(removal(999)))
    parser.feed(form({"id": 7, "props": None}))
    parser.feed(form({"id": 41, "type": NODE_TYPE, "info": None}))
    parser.feed(form({"id": 3, "type": "PipeWire:Interface:SecurityContext", "info": None}))
    parser.feed(form({"id": 38, "type": "PipeWire:Interface:Metadata", "props": {}}))
    assert [each.id for each in parser.snapshot().nodes] == [7, 41]
    assert parser.parse_errors == 0


def test_an_id_that_is_another_object_now_is_a_node_no_more() -> None:
    port = {"id": 40, "type": "PipeWire:Interface:Port", "info": {"props": {}}}
    assert read(pretty(node(40)), pretty(port)).nodes == ()
    assert read(compact(node(40)), compact(device(40))).nodes == ()


def test_a_card_that_comes_and_goes_leaves_the_nodes_as_they_were() -> None:
    parser = DumpParser()
    before = parser.feed(recording("usb-1-start.jsons"))
    plugged = parser.feed(recording("usb-2-plugged.jsons"))
    assert before is not None
    assert plugged is not None
    (added,) = set(map(str, plugged.nodes)) - set(map(str, before.nodes))
    assert "alsa_output.usb" in added
    assert parser.feed(recording("usb-3-unplugged.jsons")) == before


def test_a_node_whose_device_is_gone_is_a_leftover() -> None:
    """U15: a name twice, once with a device that lives; and the id of the dead one used again."""
    leftover = node(66, 200, props={"device.id": 50})
    living = node(51, 310, props={"device.id": 43})
    parser = DumpParser()
    parser.feed(pretty(device(50, 180), device(43, 300), leftover, living))
    assert [each.has_live_device for each in parser.snapshot().nodes] == [True, True]
    parser.feed(pretty(removal(50)))
    assert [each.has_live_device for each in parser.snapshot().nodes] == [True, False]
    parser.feed(pretty(device(50, 400)))
    assert [each.has_live_device for each in parser.snapshot().nodes] == [True, False]


def test_a_node_that_comes_before_its_device_lives_once_it_is_there() -> None:
    parser = DumpParser()
    parser.feed(pretty(node(51, 310, props={"device.id": 43})))
    assert not parser.snapshot().nodes[0].has_live_device
    parser.feed(pretty(device(43, 300)))
    assert parser.snapshot().nodes[0].has_live_device


def test_a_node_without_a_device_lives() -> None:
    assert only(pretty(node(40))).has_live_device
    assert only(pretty(node(40, props={"device.id": "none"}))).has_live_device


# Who made a node.


def made_by(number: int, serial: int = 310) -> dict[str, Any]:
    """A node that calls itself a device's, made by a client."""
    return node(51, serial, props={"client.id": number, "audio.liken.sh.device": "speaker"})


def test_a_node_of_a_claim_s_client_is_no_node_whatever_it_calls_itself() -> None:
    claims = client(43, 300, "audio.liken.sh")
    assert read(pretty(claims, made_by(43))).nodes == ()
    assert read(pretty(client(43, 300, "org.flatpak"), made_by(43))).nodes == ()
    assert len(read(pretty(client(43, 300), made_by(43))).nodes) == 1


def test_a_node_is_left_out_until_its_client_is_known() -> None:
    parser = DumpParser()
    parser.feed(pretty(made_by(43)))
    assert parser.snapshot().nodes == ()
    parser.feed(pretty({"id": 43, "type": CLIENT_TYPE, "info": None}))
    assert parser.snapshot().nodes == ()
    parser.feed(pretty(client(43, 300)))
    assert len(parser.snapshot().nodes) == 1


def test_a_client_with_the_id_of_one_that_is_gone_vouches_for_nobody() -> None:
    parser = DumpParser()
    parser.feed(pretty(client(43, 300), made_by(43)))
    parser.feed(pretty(removal(43)))
    assert parser.snapshot().nodes == ()
    parser.feed(pretty(client(43, 400)))
    assert parser.snapshot().nodes == ()
    parser.feed(pretty(client(43, 400, "audio.liken.sh"), made_by(43, 500)))
    assert parser.snapshot().nodes == ()


def test_a_client_whose_id_becomes_another_object_s_is_gone() -> None:
    parser = DumpParser()
    parser.feed(pretty(client(43, 300), made_by(43)))
    parser.feed(pretty(device(43, 400)))
    assert parser.snapshot().nodes == ()


def test_a_node_that_the_agent_made_has_no_client() -> None:
    assert only(pretty(node(40))).name == "speaker"


# What a node says.


def test_a_node_is_read_with_all_that_the_graph_keeps() -> None:
    found = read(recording("usb-1-start.jsons"), recording("usb-2-plugged.jsons")).nodes[-1]
    assert found.name.startswith("alsa_output.usb")
    assert (found.media_class, found.state, found.error) == ("Audio/Sink", "suspended", "")
    assert found.positions == ("FL", "FR")
    assert found.channels == 2
    assert found.has_live_device
    assert found.properties["node.name"] == found.name
    assert found.serial == int(found.properties["object.serial"])


def test_the_format_in_use_is_the_nodes_format() -> None:
    formats = [{"rate": 44100, "channels": 1, "position": ["MONO"]}]
    props = {"audio.rate": 48000, "audio.channels": 2, "audio.position": "[ FL FR ]"}
    running = only(pretty(node(40, props=props, params={"Format": formats})))
    assert (running.rate_hz, running.channels, running.positions) == (44100, 1, ("MONO",))
    suspended = only(pretty(node(40, props=props)))
    assert (suspended.rate_hz, suspended.channels) == (48000, 2)
    assert suspended.positions == ("FL", "FR")


@pytest.mark.parametrize("position", ["FL,FR", "[ FL FR ]", "[FL,FR]", ["FL", "FR"]])
def test_channel_positions_are_read_from_every_form(position: object) -> None:
    found = only(pretty(node(40, props={"audio.position": position})))
    assert (found.positions, found.channels) == (("FL", "FR"), 2)


def test_volumes_are_linear_and_one_for_a_channel() -> None:
    found = only(pretty(with_volume(0.125, 1, mute=True)))
    assert (found.volumes, found.is_muted, found.channels) == ((0.125, 1.0), True, 2)
    session_manager = client(41, 30)  # it was there before the recording began
    (speaker,) = read(pretty(session_manager), recording("bluetooth-volume.jsons")).nodes
    assert len(speaker.volumes) == 2


@pytest.mark.parametrize(
    ("volume", "heard"),
    [
        pytest.param("1.0", (0.5, 0.25), id="as-it-is"),
        pytest.param("4.0", (2.0, 1.0), id="another-program-went-around-the-channels"),
        pytest.param("0.0", (0.0, 0.0), id="silence"),
        pytest.param("nan", (0.5, 0.25), id="no-volume"),
        pytest.param('"x"', (0.5, 0.25), id="no-number"),
    ],
)
def test_a_nodes_channels_are_heard_times_its_volume(
    volume: str, heard: tuple[float, float]
) -> None:
    params = f'{{"Props": [{{"volume": {volume}, "channelVolumes": [0.5, 0.25]}}]}}'
    info = f'{{"props": {{"node.name": "a"}}, "params": {params}}}'
    printed = f'[{{"id": 40, "type": "PipeWire:Interface:Node", "info": {info}}}]'
    snapshot = DumpParser().feed(printed.encode())
    assert snapshot is not None
    assert snapshot.nodes[0].volumes == heard


def test_volumes_that_were_never_announced_are_unknown() -> None:
    """U20: a suspended adapter prints an empty list."""
    assert only(pretty(with_volume())).volumes == ()
    assert only(pretty(node(40, params=None))).volumes == ()


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", "nan", "-nan", "inf", "-0.5"])
def test_a_volume_that_is_none_makes_volumes_unknown_and_loses_nothing(word: str) -> None:
    data = pretty(with_volume(0.5, "HERE"), node(41, props={"node.name": "inf nan"}))
    first, second = read(data.replace(b'"HERE"', word.encode())).nodes
    assert first.volumes == ()
    assert second.name == "inf nan"


def test_odd_types_are_text() -> None:
    """U10: what pw-dump took for numbers and booleans comes back as text, as far as it can."""
    lines = recording("odd-types.jsonl").splitlines()
    nodes = [node(40 + place, props=json.loads(line)) for place, line in enumerate(lines)]
    found = read(pretty(*nodes)).nodes
    texts = [each.properties["node.description"] for each in found]
    assert texts[:6] == ["12", "100000", "true", "null", "nan", '"quoted']
    assert texts[6:8] == ["5平", "0x10"]
    assert texts[9:] == ["7", "tab\there"]
    assert [each.name for each in found] == [f"odd-{letter}" for letter in "abcdefghijk"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, ""),
        ("0012", "0012"),
        (True, "true"),
        (False, "false"),
        (12, "12"),
        (-3, "-3"),
        (100000.0, "100000"),
        (0.5, "0.5"),
        (["FL", "FR"], '["FL", "FR"]'),
        ({"a": "é"}, '{"a": "é"}'),
        ("half \ud83d", "half \ufffd\ufffd\ufffd"),
    ],
)
def test_text_of_any_value(value: object, expected: str) -> None:
    assert text(value) == expected
    text(value).encode()


def test_bytes_that_are_no_utf8_are_replaced_wherever_they_stand() -> None:
    """U11: a name of a node, not only of a client, may hold them."""
    data = pretty(node(40, props={"node.name": "HERE", "note": "x"}))
    found = only(data.replace(b"HERE", b"cl-\xff\xe9"))
    assert found.name == "cl-\ufffd\ufffd"


def test_halves_of_surrogate_pairs_become_valid_text() -> None:
    found = only(pretty(node(40, props={"node.name": "a\ud83d", "\udc00key": "x"})))
    for key, value in found.properties.items():
        (key + value).encode()


@pytest.mark.parametrize(
    "info",
    [
        {},
        {"props": None, "params": None},
        {"props": [], "params": [], "state": 7, "error": 8},
        {"props": {"object.serial": "x"}, "params": {"Props": None, "Format": {}}},
        {"props": {"object.serial": -1}, "params": {"Props": [7], "Format": [None]}},
        {"props": {"object.serial": True}, "params": {"Props": [{"channelVolumes": "loud"}]}},
        {"props": {"audio.channels": 1e300}, "params": {"Props": [{"channelVolumes": [True]}]}},
        {"props": {"device.id": 1.5}, "params": {"Format": [{"rate": "fast", "position": 7}]}},
    ],
)
def test_a_node_of_any_shape_is_read(info: dict[str, Any]) -> None:
    found = only(pretty({"id": 40, "type": NODE_TYPE, "info": info}))
    assert found.id == 40
    assert (found.volumes, found.rate_hz, found.is_muted) == ((), 0, False)
