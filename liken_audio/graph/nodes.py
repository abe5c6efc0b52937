"""Endpoints and the nodes of the graph → which nodes to make and which to remove.

A node is ours when it bears a device's name in our property; nodes outlive the agent that made
them, so one that an earlier agent left is kept as it is. A foreign node that has a device's name
serves as well and is never removed. Rules:

- An endpoint without a node gets one, unless its card is away or its screen is: then there is
  nothing to play to. A node that is there when the screen goes stays, since screens that sleep
  take their monitor along for a second and pods play on.
- A node of ours that is stale (its last claim has gone, and may have left something on it) goes.
- A node of ours goes when no endpoint has its name, when its card is away (it would hold the
  card's files open, and the card's number may become another card's), when it was made by another
  recipe, when it is in error, and when the endpoint has chosen another node. What replaces it is
  planned once it is gone.
- A PCM without a recipe is none of ours: its session manager makes the node.
- While PipeWire isn't known nothing is planned; while cards aren't known yet nothing is removed
  for want of an endpoint.

Of two nodes with one name the endpoint has chosen one (see `endpoints`), so two agents that
overlap in a rolling update agree on which to keep.
"""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from liken_audio.graph.endpoints import DEVICE_PROPERTY
from liken_audio.graph.model import (
    DeviceName,
    Direction,
    Endpoint,
    Fault,
    GraphView,
    Node,
    NodeRecipe,
    NodeSerial,
    Source,
)

RECIPE_PROPERTY = "audio.liken.sh.recipe"
"""Property that tells by which recipe a node was made."""

_MEDIA_CLASSES = {Direction.PLAYBACK: "Audio/Sink", Direction.CAPTURE: "Audio/Source"}
# pipewire-pulse makes the node with the highest its client's default, and counts a sink's monitor
# among the sources.
_PRIORITIES = {Direction.PLAYBACK: "1000", Direction.CAPTURE: "2000"}
_POSITIONS = {
    1: "MONO",
    2: "FL FR",
    3: "FL FR LFE",
    4: "FL FR RL RR",
    6: "FL FR RL RR FC LFE",
    8: "FL FR RL RR FC LFE SL SR",
}
"""In the kernel's order of channels (its default channel maps)."""


@dataclass(frozen=True, slots=True)
class CreateNode:
    """Make a node that lives on after us."""

    name: DeviceName
    recipe: NodeRecipe
    properties: Mapping[str, str]
    """All that is set besides the recipe's own properties, and over them."""


@dataclass(frozen=True, slots=True)
class DestroyNode:
    """Remove one incarnation of a node."""

    name: DeviceName
    """The device it was made for, which may be no endpoint any more."""
    node: Node
    reason: str


def plan_nodes(
    view: GraphView, endpoints: Sequence[Endpoint], stale: Collection[NodeSerial] = ()
) -> tuple[CreateNode | DestroyNode, ...]:
    """Return what turns the nodes that are there into those that should be, removals first.

    `stale` are nodes to be made anew.
    """
    if Source.PIPEWIRE in view.lost or Source.PIPEWIRE in view.awaited:
        return ()
    by_name = {endpoint.name: endpoint for endpoint in endpoints}
    are_cards_known = not view.awaited & {Source.ALSA, Source.VIRTUAL}
    destroys = []
    taken = set()
    for node in view.nodes:
        name = DeviceName(node.properties.get(DEVICE_PROPERTY, ""))
        if not name:
            continue
        taken.add(name)
        endpoint = by_name.get(name)
        if endpoint is None and not are_cards_known:
            continue
        reason = _wrong(node, endpoint) or (
            "its last claim has gone" if node.serial in stale else ""
        )
        if reason:
            destroys.append(DestroyNode(name, node, reason))
    creates = [
        CreateNode(endpoint.name, endpoint.pcm.recipe, _properties(endpoint, endpoint.pcm.recipe))
        for endpoint in endpoints
        if endpoint.pcm.recipe is not None
        if endpoint.node is None and endpoint.name not in taken and _is_wanted(endpoint)
    ]
    return (*destroys, *creates)


def _is_wanted(endpoint: Endpoint) -> bool:
    return endpoint.card.is_present and endpoint.fault is not Fault.NO_MONITOR


def _wrong(node: Node, endpoint: Endpoint | None) -> str:
    """Return why a node of ours can't stay, "" if it can."""
    if endpoint is None:
        return "its device is gone"
    recipe = endpoint.pcm.recipe
    if recipe is None:
        return "its device's node is the session manager's"
    if not endpoint.card.is_present:
        return "its card is away"
    if endpoint.node is None or endpoint.node.serial != node.serial:
        return "its device has another node" if endpoint.node else "it isn't what its device needs"
    if not _is_made_for(node, endpoint, recipe):
        return "it was made by another recipe"
    return f"it is in error: {node.error}" if node.state == "error" else ""


def _is_made_for(node: Node, endpoint: Endpoint, recipe: NodeRecipe) -> bool:
    """Whether the node is made by the endpoint's recipe.

    Where channels and rate aren't known now (the screen sleeps, the PCM is being played to), one
    that an earlier agent made is right as long as it has all else that the recipe says.
    """
    if node.properties.get(RECIPE_PROPERTY) == _fingerprint(endpoint, recipe):
        return True
    is_alike = all(node.properties.get(key) == value for key, value in recipe.properties)
    return not endpoint.pcm.is_form_known and is_alike


def _properties(endpoint: Endpoint, recipe: NodeRecipe) -> Mapping[str, str]:
    added = {
        "object.linger": "true",
        # Where the host's WirePlumber runs and not ours, it must not put back an old volume.
        "state.restore-props": "false",
        "priority.session": _PRIORITIES[endpoint.pcm.direction],
        "node.description": _description(endpoint),
        DEVICE_PROPERTY: endpoint.name,
        RECIPE_PROPERTY: _fingerprint(endpoint, recipe),
    }
    return {**_defaults(endpoint, recipe), **added}


def _defaults(endpoint: Endpoint, recipe: NodeRecipe) -> Mapping[str, str]:
    """Return what every node has, where the recipe doesn't say it."""
    pcm = endpoint.pcm
    positions = _POSITIONS.get(pcm.channels) or " ".join(f"AUX{n}" for n in range(pcm.channels))
    defaults = {
        "media.class": _MEDIA_CLASSES[pcm.direction],
        "audio.channels": str(pcm.channels),
        "audio.position": f"[ {positions} ]",
    }
    said = dict(recipe.properties)
    return {key: value for key, value in defaults.items() if key not in said}


def _description(endpoint: Endpoint) -> str:
    pcm = endpoint.pcm
    place = endpoint.monitor.name if endpoint.monitor and endpoint.monitor.name else ""
    return ", ".join(filter(None, (endpoint.card.name, place or pcm.name or pcm.id)))


def _fingerprint(endpoint: Endpoint, recipe: NodeRecipe) -> str:
    """Return a word for the recipe; led by a letter, as pw-dump takes some hex for a number."""
    said = sorted({**_defaults(endpoint, recipe), **dict(recipe.properties)}.items())
    return "r" + hashlib.sha256(repr((recipe.factory, said)).encode()).hexdigest()[:12]
