"""Card → the jack that proves, for each PCM, whether something is plugged in.

- HDMI and DisplayPort: the jack that names the PCM (`HDMI/DP,pcm=3 Jack`, with or without a space
  after the comma), else the nth screen jack for the nth HDMI or DisplayPort PCM.
- Analog and USB: the card's jacks of that direction. One plug that is in means connected, all
  out means unplugged. A `Phantom` jack always reads as plugged, so it proves nothing itself; and
  where one is, or a built-in speaker or microphone has a control, sound may have somewhere to go
  with every plug out: then no jack proves anything. With several PCMs of one direction, jacks of
  index n speak for the nth.
- S/PDIF: nothing senses it.

Kernel names as in the driver's sources: `Headphone Jack`, `Line Out Front Jack`, `Mic Jack` with
an index, `Line Jack` (a line *input*), `Headset Jack` and `Headphone Mic Jack` (both),
`Headphone - Output Jack` (USB).
"""

import re
from collections.abc import Sequence

from liken_audio.graph.model import Card, Connection, Direction, Jack, Pcm

SCREENS = (Connection.HDMI, Connection.DISPLAYPORT)
"""Connections whose other end is a monitor."""

_PLUGGED_BY_HAND = (Connection.ANALOG, Connection.USB)
_PCM_NUMBER = re.compile(r"pcm=(\d{1,9})\b")
_SCREEN = re.compile(r"^(?:HDMI|DP|DisplayPort)(?:\d|\b)", re.IGNORECASE)
_SPDIF = re.compile(r"S/?PDIF|IEC958|Optical", re.IGNORECASE)
_INPUT = re.compile(r"\b(?:Mic|Microphone|Line(?! Out)|Input|Aux)\b", re.IGNORECASE)
_OUTPUT = re.compile(r"\b(?:Headphone|Line Out|Speaker|Output)\b", re.IGNORECASE)
_BOTH = re.compile(r"\bHeadset(?! Mic)\b|\bHeadphone Mic\b", re.IGNORECASE)
_BUILT_IN = {
    Direction.PLAYBACK: re.compile(r"\bSpeaker\b"),
    Direction.CAPTURE: re.compile(r"\b(?:Internal|Int|Digital) Mic\b|\bDMic", re.IGNORECASE),
}


def jacks_of(card: Card, connections: Sequence[Connection]) -> list[Jack | None]:
    """Return the proving jack, or None, for each of `card.pcms`, whose connections are given."""
    if not card.jacks:
        return [None] * len(card.pcms)
    pcms = list(zip(card.pcms, connections, strict=True))
    found: list[Jack | None] = []
    for pcm, connection in pcms:
        alike = [
            other
            for other, others_connection in pcms
            if other.direction is pcm.direction
            and _senses_alike(others_connection) == _senses_alike(connection)
        ]
        if connection in SCREENS:
            found.append(_screen_jack(card, pcm, alike))
        elif connection in _PLUGGED_BY_HAND:
            found.append(_plug(card, pcm, alike))
        else:
            found.append(None)
    return found


def _senses_alike(connection: Connection) -> str:
    if connection in SCREENS:
        return "screen"
    return "plug" if connection in _PLUGGED_BY_HAND else connection.value


def _position(pcm: Pcm, alike: Sequence[Pcm]) -> int:
    return sum(other.device < pcm.device for other in alike)


def _screen_jack(card: Card, pcm: Pcm, alike: Sequence[Pcm]) -> Jack | None:
    if pcm.direction is Direction.CAPTURE:
        return None
    unnumbered = []
    for jack in card.jacks:
        if _is_phantom(jack) or not _SCREEN.search(jack.name):
            continue
        number = _PCM_NUMBER.search(jack.name)
        if number is None:
            unnumbered.append(jack)
        elif int(number[1]) == pcm.device:
            return jack
    position = _position(pcm, alike)
    return unnumbered[position] if position < len(unnumbered) else None


def _plug(card: Card, pcm: Pcm, alike: Sequence[Pcm]) -> Jack | None:
    jacks = [jack for jack in card.jacks if _serves(jack, pcm.direction)]
    if len(alike) > 1:
        position = _position(pcm, alike)
        jacks = [jack for jack in jacks if jack.index == position]
    sensing = [jack for jack in jacks if not _is_phantom(jack)]
    plugged = next((jack for jack in sensing if jack.is_plugged), None)
    if plugged or not sensing:
        return plugged
    if len(sensing) < len(jacks) or _has_built_in(card, pcm.direction, sensing):
        return None
    return sensing[0]


def _serves(jack: Jack, direction: Direction) -> bool:
    name = jack.name
    if _PCM_NUMBER.search(name) or _SCREEN.search(name) or _SPDIF.search(name):
        return False
    if _BOTH.search(name):
        return True
    is_input = bool(_INPUT.search(name))
    if direction is Direction.CAPTURE:
        return is_input
    return not is_input and bool(_OUTPUT.search(name))


def _is_phantom(jack: Jack) -> bool:
    return "Phantom" in jack.name


def _has_built_in(card: Card, direction: Direction, sensing: Sequence[Jack]) -> bool:
    """Whether a control tells of a speaker or microphone that no jack senses."""
    pattern = _BUILT_IN[direction]
    if any(pattern.search(jack.name) for jack in sensing):
        return False
    return any(pattern.search(control.name) for control in card.controls)
