"""A control element as the kernel describes it → what it is to us.

- `… Jack` of the card's interface: says whether a plug is in.
- `ELD` of a PCM: what the monitor there says of itself.
- `Playback Channel Map`, `Capture Channel Map` of a PCM: the channels that it has.
- A boolean, integer or enumeration of the mixer's or the card's interface: a control that a person
  can set, or could if the card let them.
- All else (IEC958 status bits, byte blobs, what belongs to one PCM alone): nothing, and not read.

A control that can't be read is a control without values; an element never fails its card.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from liken_audio.alsa import kernel
from liken_audio.alsa.kernel import Access, ElementInfo, ElementType, Interface
from liken_audio.graph.model import Control, ControlType, Direction, Jack

MAX_ITEMS = 1024
"""Items of one enumeration that are asked for; more is no real card's."""

_TYPES = {
    ElementType.BOOLEAN: ControlType.BOOLEAN,
    ElementType.INTEGER: ControlType.INTEGER,
    ElementType.INTEGER64: ControlType.INTEGER,
    ElementType.ENUMERATED: ControlType.ENUMERATED,
}
_MAPS = {
    "Playback Channel Map": Direction.PLAYBACK,
    "Capture Channel Map": Direction.CAPTURE,
}


@dataclass(frozen=True, slots=True)
class EldBlock:
    """The monitor's data at one PCM."""

    device: int
    data: bytes


@dataclass(frozen=True, slots=True)
class ChannelMaps:
    """The channel positions that one PCM offers, one tuple for each number and order of channels."""

    device: int
    direction: Direction
    maps: tuple[tuple[str, ...], ...]


Element = Control | Jack | EldBlock | ChannelMaps


def is_jack(info: ElementInfo) -> bool:
    """Whether the element tells of a plug."""
    is_switch = info.type == ElementType.BOOLEAN
    return info.id.interface == Interface.CARD and is_switch and info.id.name.endswith(" Jack")


def is_eld(info: ElementInfo) -> bool:
    """Whether the element holds a monitor's data; some drivers put a word before the name."""
    is_block = info.type == ElementType.BYTES and info.id.interface == Interface.PCM
    return is_block and (info.id.name == "ELD" or info.id.name.endswith(" ELD"))


def is_channel_map(info: ElementInfo) -> bool:
    """Whether the element tells a PCM's channels."""
    return info.id.interface == Interface.PCM and info.id.name in _MAPS


def is_control(info: ElementInfo) -> bool:
    """Whether the element is one that a person can set."""
    is_own = info.id.interface in (Interface.MIXER, Interface.CARD)
    return is_own and info.type in _TYPES and info.count > 0 and not is_jack(info)


def jack(info: ElementInfo, values: Sequence[int] | None) -> Jack:
    """Return a jack; one that can't be read counts as plugged, since nothing says otherwise."""
    is_plugged = True if values is None else any(values)
    return Jack(name=info.id.name, index=info.id.index, is_plugged=is_plugged)


def channel_maps(info: ElementInfo, tlv: bytes) -> ChannelMaps:
    """Return a PCM's channel maps."""
    maps = tuple(kernel.channel_maps(tlv))
    return ChannelMaps(info.id.device, _MAPS[info.id.name], maps)


def control(
    info: ElementInfo, values: tuple[int, ...] | None, items: tuple[str, ...], tlv: bytes
) -> Control:
    """Return a control; `values` None: it can't be read."""
    minimum, maximum = info.minimum, info.maximum
    gains: kernel.Gains = (None, None)
    is_silent = False
    if info.type == ElementType.INTEGER:
        gains = kernel.gains(tlv, minimum, maximum)
        is_silent = kernel.is_silent_at_minimum(tlv, minimum, maximum)
    return Control(
        name=info.id.name,
        index=info.id.index,
        number=info.id.number,
        type=_TYPES[ElementType(info.type)],
        minimum=minimum,
        maximum=maximum,
        step=info.step,
        min_decibels=gains[0],
        max_decibels=gains[1],
        is_silent_at_minimum=is_silent,
        items=items,
        channels=info.count,
        values=values,
        is_writable=info.has(Access.WRITE),
        is_locked=info.has(Access.LOCK),
        is_inactive=info.has(Access.INACTIVE),
        is_volatile=info.has(Access.VOLATILE),
    )
