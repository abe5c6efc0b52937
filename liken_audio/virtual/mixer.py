"""Values written to the controls of virtual cards: kept in memory, as hardware keeps them.

A written value holds until the file says something else about that control.
"""

import dataclasses
import errno
from collections.abc import Sequence

from liken_audio.graph.model import Card, Control

_Place = tuple[str, str, int]
"""Bus and path of the card, position of the control on it: names need not be unique."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Written:
    """A control as the file has it, and the values written to it since."""

    before: Control
    values: tuple[int, ...]


class Mixer:
    """Remembers what was written."""

    def __init__(self) -> None:
        self._written: dict[_Place, _Written] = {}

    def apply(self, cards: Sequence[Card]) -> tuple[Card, ...]:
        """Return the file's cards with the written values in place."""
        controls = {
            (card.bus, card.path, position): control
            for card in cards
            for position, control in enumerate(card.controls)
        }
        self._written = {
            place: written
            for place, written in self._written.items()
            if controls.get(place) == written.before
        }
        return tuple(self._applied(card) for card in cards)

    def write(
        self, cards: Sequence[Card], card: Card, control: Control, values: Sequence[int]
    ) -> None:
        """Set a control of one of the file's `cards`.

        `card` and `control` may be older records: bus and path, name and index name them. Raises
        `OSError` with the kernel's errno: ENOENT no such card or control, EPERM not writable or
        inactive, EBUSY locked, EINVAL a wrong number of values or one out of range.
        """
        for own_card in cards:
            if (own_card.bus, own_card.path) != (card.bus, card.path):
                continue
            for position, own in enumerate(own_card.controls):
                if (own.name, own.index) == (control.name, control.index):
                    _check(own, values)
                    place = (own_card.bus, own_card.path, position)
                    self._written[place] = _Written(own, tuple(values))
                    return
        message = f"no control {control.name!r},{control.index} on {card.bus} {card.path}"
        raise FileNotFoundError(errno.ENOENT, message)

    def _applied(self, card: Card) -> Card:
        controls = tuple(
            self._value(control, (card.bus, card.path, position))
            for position, control in enumerate(card.controls)
        )
        return card if controls == card.controls else dataclasses.replace(card, controls=controls)

    def _value(self, control: Control, place: _Place) -> Control:
        written = self._written.get(place)
        return dataclasses.replace(control, values=written.values) if written else control


def _check(control: Control, values: Sequence[int]) -> None:
    name = f"{control.name!r},{control.index}"
    if not control.is_writable or control.is_inactive:
        raise PermissionError(errno.EPERM, f"{name} can't be written now")
    if control.is_locked:
        raise OSError(errno.EBUSY, f"{name} is locked by another process")
    if len(values) != control.channels:
        raise OSError(errno.EINVAL, f"{name} takes {control.channels} values, not {len(values)}")
    if not all(control.minimum <= value <= control.maximum for value in values):
        bounds = f"{control.minimum} to {control.maximum}"
        raise OSError(errno.EINVAL, f"{name} takes {bounds}, not {list(values)}")
