"""One print-out of pw-dump, as a person's tools read it."""

import json
from typing import Any

import pytest

from liken_audio.pipewire.census import Census, SinkNode, census


def entry(number: int, kind: str, info: dict[str, Any]) -> dict[str, Any]:
    return {"id": number, "type": f"PipeWire:Interface:{kind}", "info": info}


SINK = entry(
    41,
    "Node",
    {
        "props": {
            "node.name": "kitchen-hdmi",
            "media.class": "Audio/Sink",
            "object.serial": 60,
            "audio.liken.sh.device": "kitchen-hdmi-0",
        },
        "params": {"Props": [{"mute": True}]},
    },
)
STREAM = entry(50, "Node", {"props": {"node.name": "tone", "media.class": "Stream/Output/Audio"}})
GRAPH = [
    entry(0, "Core", {"version": "1.4.2", "props": {}}),
    entry(33, "Client", {"props": {"application.name": "WirePlumber (liken-audio)"}}),
    SINK,
    STREAM,
    entry(70, "Link", {"output-node-id": 50, "input-node-id": 41, "props": {}}),
]


def test_a_whole_graph_is_read() -> None:
    assert census(json.dumps(GRAPH).encode()) == Census(
        version="1.4.2",
        has_session_manager=True,
        sinks=(SinkNode(41, 60, "kitchen-hdmi", "kitchen-hdmi-0", is_muted=True),),
        nodes={41: "kitchen-hdmi", 50: "tone"},
        links=frozenset({(50, 41)}),
    )


def test_a_stream_is_linked_to_the_sink_that_its_link_leads_to_and_no_other() -> None:
    found = census(json.dumps(GRAPH).encode())
    assert found.is_linked("tone", 41)
    assert not found.is_linked("tone", 42)
    assert not found.is_linked("other", 41)


def test_what_has_no_info_is_left_out() -> None:
    odd = [{"id": 7, "info": None}, {"id": 8, "type": "PipeWire:Interface:Node"}, 3]
    assert census(json.dumps([*odd, entry(9, "Client", {"props": None})]).encode()) == Census()


def test_what_a_pod_puts_into_the_graph_blinds_no_tool() -> None:
    """A client may hold any bytes, values that aren't finite, and what looks like another type."""
    odd = entry(60, "Node", {"props": {"node.name": True}, "params": {"Props": ["x"]}})
    others = [odd, entry(61, "Link", {"props": {}}), {"type": 3, "info": {}}]
    printed = json.dumps([*GRAPH, *others]).encode()
    printed = printed.replace(b'"props": {}', b'"props": {"a": nan, "b": -inf, "c": "\xff\xe9"}')
    found = census(printed)
    assert found.sinks == (SinkNode(41, 60, "kitchen-hdmi", "kitchen-hdmi-0", is_muted=True),)
    assert found.nodes == {41: "kitchen-hdmi", 50: "tone", 60: "true"}
    assert found.is_linked("tone", 41)


@pytest.mark.parametrize("printed", [b"", b"{}", b"[1,"])
def test_what_is_no_array_is_an_error(printed: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 json's own, or ours
        census(printed)
