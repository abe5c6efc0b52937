"""Whether another node has a live device of the name that a USB card's serial makes.

Two units with one serial do exist, on two nodes as well. A Sink or Source is named as its device and
says in its status whose it is and whether it is connected: so one question for each PCM, asked when
the card is plugged in, tells; a second one whether that node is up. Where it can't be answered (no API server, no such object, no custom
resource) the serial is believed, as nothing speaks against it.

A card that a claim holds under the name of its place keeps that name.
"""

import asyncio

import structlog

from liken_audio.api import NODES, SINKS, SOURCES, ApiError, Json, NotFound, Resource
from liken_audio.controllers.ports import ResourceClient
from liken_audio.controllers.tracked import status_of
from liken_audio.graph.device_graph import DeviceGraph
from liken_audio.graph.model import Card, DeviceName, Direction
from liken_audio.graph.naming import device_name, place_name

ASK_SECONDS = 2.0
"""How long the API server may take for one card."""

_log = structlog.get_logger(__name__)


class ForeignNames:
    """Asks the API server; errors count as no answer."""

    def __init__(self, graph: DeviceGraph, client: ResourceClient, node_name: str) -> None:
        self._graph = graph
        self._client = client
        self._node_name = node_name

    async def has_live(self, card: Card) -> bool:
        """Whether a live device of another node has the name of one of the card's PCMs."""
        held = {name for hold in self._graph.view().holds for name in hold.devices}
        if any(place_name(self._node_name, card, pcm) in held for pcm in card.pcms):
            return True
        try:
            async with asyncio.timeout(ASK_SECONDS):
                for pcm in card.pcms:
                    name = device_name(self._node_name, card, pcm)
                    kind = SINKS if pcm.direction is Direction.PLAYBACK else SOURCES
                    if name not in held and await self._is_live_elsewhere(kind, name):
                        _log.info("a USB serial is that of another node's device", device=name)
                        return True
        except (ApiError, TimeoutError) as error:
            _log.debug("no other node is known to have a card", card=card.id, reason=repr(error))
        return False

    async def _is_live_elsewhere(self, kind: Resource, name: DeviceName) -> bool:
        try:
            body = await self._client.get(kind, name)
            owner = status_of(body).get("node")
            if owner in (None, "", self._node_name) or not _is_true(body, "Connected"):
                return False
            # What a node that is down said last is no sign of life.
            return _is_true(await self._client.get(NODES, str(owner)), "Ready")
        except NotFound:
            return False


def _is_true(body: Json, condition: str) -> bool:
    return any(
        one.get("type") == condition and one.get("status") == "True"
        for one in status_of(body).get("conditions") or ()
    )
