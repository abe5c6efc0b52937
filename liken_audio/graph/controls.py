"""Card → the kernel controls that belong to each PCM.

The kernel names a control `<source> <direction> <function>`; its direction says whose it is:
- `IEC958 Playback …` with index n: the nth HDMI or DisplayPort output. Index 16 and up, and any
  index on a card without such outputs: the S/PDIF output. (HDA numbers them so.)
- `Playback`: the card's analog and USB outputs.
- `Capture`, `Input Source`, `… Mic Boost`: its analog and USB inputs.
- no direction: as `Playback`.
- jacks: nobody's; they say whether something is plugged in.

What has nowhere to go by that (a card of HDMI outputs alone, of inputs alone) goes to the
outputs, or inputs, that the card has, so that no control is lost.
"""

import re
from collections.abc import Sequence

from liken_audio.graph.jacks import SCREENS
from liken_audio.graph.model import Card, Connection, Control, Direction

_FIRST_SPDIF_INDEX = 16
_CAPTURE = re.compile(r"\bCapture\b|\bInput Source\b|\bMic\w*[ -]Boost\b")
_PLAYBACK = re.compile(r"\bPlayback\b")

_Slots = Sequence[int]
"""Positions in `Card.pcms`."""


class _Outputs:
    """The PCMs of a card by what they are, as positions in `Card.pcms`."""

    def __init__(self, card: Card, connections: Sequence[Connection]) -> None:
        order = sorted(range(len(card.pcms)), key=lambda slot: card.pcms[slot].device)
        sinks = [slot for slot in order if card.pcms[slot].direction is Direction.PLAYBACK]
        sources = [slot for slot in order if card.pcms[slot].direction is Direction.CAPTURE]
        self.screens = [slot for slot in sinks if connections[slot] in SCREENS]
        self.spdif_sinks = [slot for slot in sinks if connections[slot] is Connection.SPDIF]
        self.spdif_sources = [slot for slot in sources if connections[slot] is Connection.SPDIF]
        own_sinks = _without(sinks, self.screens + self.spdif_sinks)
        own_sources = _without(sources, self.spdif_sources)
        self.sinks = own_sinks or sinks or sources
        self.sources = own_sources or sources or sinks


def controls_of(card: Card, connections: Sequence[Connection]) -> list[tuple[Control, ...]]:
    """Return the controls for each of `card.pcms`, in the kernel's order."""
    outputs = _Outputs(card, connections)
    found: list[list[Control]] = [[] for _ in card.pcms]
    for control in card.controls:
        for slot in _owners(control, outputs):
            found[slot].append(control)
    return [tuple(controls) for controls in found]


def _owners(control: Control, outputs: _Outputs) -> _Slots:
    name = control.name
    if name.endswith(" Jack"):
        return ()
    if name.startswith("IEC958 Playback"):
        return _digital_owners(control.index, outputs)
    if _PLAYBACK.search(name):
        return outputs.sinks
    if _CAPTURE.search(name):
        is_digital = name.startswith("IEC958") and bool(outputs.spdif_sources)
        return outputs.spdif_sources if is_digital else outputs.sources
    return outputs.sinks


def _digital_owners(index: int, outputs: _Outputs) -> _Slots:
    if index < len(outputs.screens):
        return [outputs.screens[index]]
    if index >= _FIRST_SPDIF_INDEX or not outputs.screens:
        return outputs.spdif_sinks or outputs.sinks
    return ()


def _without(slots: _Slots, taken: _Slots) -> list[int]:
    return [slot for slot in slots if slot not in taken]
