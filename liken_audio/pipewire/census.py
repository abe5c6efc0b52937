"""What one whole print-out of pw-dump says of the graph → Census, for the tools of a person.

The agent follows the graph with `dump`; here it is looked at once: who manages it, which sinks
there are, and which streams are linked to them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from liken_audio.pipewire.values import decoded, first, integer, object_of, text

_SESSION_MANAGER = "WirePlumber"  # followed by the profile in parentheses
DEVICE_PROPERTY = "audio.liken.sh.device"
"""The agent's mark on the node of a device."""


@dataclass(frozen=True, slots=True)
class SinkNode:
    """A node that a stream can play to."""

    id: int
    serial: int
    name: str
    device: str = ""
    """The device that it belongs to; empty for nodes that the agent didn't make."""
    is_muted: bool = False


@dataclass(frozen=True, slots=True)
class Census:
    """One moment of the graph."""

    version: str = ""
    """PipeWire's own."""
    has_session_manager: bool = False
    """Whether WirePlumber is connected; it may hang all the same."""
    sinks: tuple[SinkNode, ...] = ()
    nodes: Mapping[int, str] = field(default_factory=dict)
    """Names by id, of all nodes."""
    links: frozenset[tuple[int, int]] = frozenset()
    """Node that gives, node that takes."""

    def is_linked(self, stream: str, sink: int) -> bool:
        """Whether a node of that name plays to that sink."""
        return any(self.nodes.get(giver) == stream for giver, taker in self.links if taker == sink)


def census(printed: bytes) -> Census:
    """Decode it; `ValueError` when it is no array of objects."""
    objects = decoded(printed)
    if not isinstance(objects, list):
        raise ValueError("pw-dump printed no array")  # noqa: TRY004 it is the text that is wrong
    infos = [
        (each, each["info"])
        for each in objects
        if isinstance(each, dict) and isinstance(each.get("info"), dict)
    ]
    nodes = [(each, info) for each, info in infos if _kind(each) == "Node"]
    return Census(
        version=next(
            (text(info.get("version")) for each, info in infos if _kind(each) == "Core"), ""
        ),
        has_session_manager=any(
            _kind(each) == "Client"
            and text(_props(info).get("application.name")).startswith(_SESSION_MANAGER)
            for each, info in infos
        ),
        sinks=tuple(
            _sink(each, info)
            for each, info in nodes
            if _props(info).get("media.class") == "Audio/Sink"
        ),
        nodes={integer(each, "id"): text(_props(info).get("node.name")) for each, info in nodes},
        links=frozenset(
            (integer(info, "output-node-id"), integer(info, "input-node-id"))
            for each, info in infos
            if _kind(each) == "Link"
        ),
    )


def _sink(each: Mapping[str, Any], info: Mapping[str, Any]) -> SinkNode:
    props = _props(info)
    return SinkNode(
        id=integer(each, "id"),
        serial=integer(props, "object.serial"),
        name=text(props.get("node.name")),
        device=text(props.get(DEVICE_PROPERTY)),
        is_muted=first(object_of(info, "params"), "Props").get("mute") is True,
    )


def _kind(each: Mapping[str, Any]) -> str:
    return text(each.get("type")).rpartition(":")[2]


def _props(info: Mapping[str, Any]) -> Mapping[str, Any]:
    return object_of(info, "props")
