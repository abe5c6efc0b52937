"""Cards that were there and aren't now: how long each still counts as a card that is unplugged.

- A USB card: for `USB_GRACE_SECONDS`, or until the same unit is back, on any port. (A unit without
  a serial of its own is known by its port.)
- Any other: as long as the device that it was on is still in the machine; its driver may come back.

Time is an argument, in seconds of any clock that never runs backwards.
"""

import dataclasses
from collections.abc import Collection, Iterable, Sequence

from liken_audio.graph.model import Card
from liken_audio.graph.naming import has_own_serial

USB_GRACE_SECONDS = 24 * 3600.0
"""How long a USB card may be unplugged before its devices leave the slice."""


@dataclasses.dataclass(frozen=True, slots=True)
class Absent:
    """A card that is away."""

    card: Card
    folder: str
    """Of the device that it was on."""
    since: float


def absent(card: Card, folder: str, now: float) -> Absent:
    """Return the record of a card that has just gone."""
    return Absent(dataclasses.replace(card, is_present=False), folder, now)


def still_away(
    cards: Iterable[Absent], present: Sequence[Card], folders: Collection[str], now: float
) -> tuple[Absent, ...]:
    """Return those that still count; `folders` are the devices that are still in the machine."""
    return tuple(
        one
        for one in cards
        if not any(_is_same(one.card, other) for other in present)
        if (now < one.since + USB_GRACE_SECONDS if one.card.usb else one.folder in folders)
    )


def _is_same(gone: Card, present: Card) -> bool:
    if gone.usb and present.usb:
        models = [(usb.vendor, usb.product, usb.serial) for usb in (gone.usb, present.usb)]
        is_anywhere = has_own_serial(gone.usb)
        return models[0] == models[1] and (is_anywhere or gone.usb.port == present.usb.port)
    return _identity(gone) == _identity(present)


def _identity(card: Card) -> tuple[object, ...]:
    return card.bus, card.path, *sorted((pcm.id, pcm.direction.value) for pcm in card.pcms)
