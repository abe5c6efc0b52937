"""USB cards that were seen, on disk: one that is pulled while no agent runs is away, not unknown.

Kept is what names a card and its PCMs, no control and no monitor. A file that is missing or can't be
understood is no memory, and that is all: the cards that are there are read anyway.
"""

import dataclasses
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import structlog

from liken_audio.alsa.absence import Absent
from liken_audio.graph.model import Card, CardNumber, Direction, NodeRecipe, Pcm, UsbIdentity

_VERSION = 1

log = structlog.get_logger()


@dataclasses.dataclass(frozen=True, slots=True)
class _Entry:
    """A USB card; `away_since` is a time of day in seconds, None while it is there."""

    card: Card
    folder: str
    away_since: int | None


@dataclasses.dataclass(frozen=True, slots=True)
class Remembered:
    """The USB cards of a machine."""

    entries: tuple[_Entry, ...] = ()

    @classmethod
    def of(
        cls, present: Iterable[tuple[Card, str]], absent: Iterable[Absent], day_offset: float
    ) -> "Remembered":
        """Return what is to be remembered; a time of day is `since` plus `day_offset`."""
        entries = [_Entry(_bare(card), folder, None) for card, folder in present if card.usb]
        entries += [
            _Entry(_bare(one.card), one.folder, int(one.since + day_offset))
            for one in absent
            if one.card.usb
        ]
        return cls(tuple(sorted(entries, key=lambda entry: (entry.card.path, entry.card.number))))

    def absent(self, now: float, day_now: float) -> tuple[Absent, ...]:
        """Return all as absent: those that were there last from now on, others since they went."""
        return tuple(
            Absent(
                dataclasses.replace(entry.card, is_present=False),
                entry.folder,
                now if entry.away_since is None else min(now, now - (day_now - entry.away_since)),
            )
            for entry in self.entries
        )


class UsbMemory:
    """The file; its methods block, for a thread, and raise nothing."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._kept: Remembered | None = None

    def load(self) -> Remembered:
        """Return what was kept last."""
        try:
            self._kept = _decode(json.loads(self._path.read_bytes()))
        except FileNotFoundError:
            return Remembered()
        except (
            OSError,
            ArithmeticError,
            LookupError,
            ValueError,
            TypeError,
            AttributeError,
            RecursionError,
        ) as error:
            log.warning(
                "USB cards of earlier aren't known", file=str(self._path), reason=str(error)
            )
            return Remembered()
        return self._kept

    def save(self, known: Remembered) -> None:
        """Keep it, whole or not at all, unless it is what is kept."""
        if known == self._kept:
            return
        temporary = self._path.with_name(f".{self._path.name}.tmp")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(_encode(known)))
            temporary.replace(self._path)
        except OSError as error:
            log.warning("USB cards can't be kept", file=str(self._path), reason=str(error))
        # Either way: the next try is at the next change.
        self._kept = known


def _bare(card: Card) -> Card:
    """Return the card as it is kept, and no more."""
    pcms = tuple(
        Pcm(
            device=pcm.device,
            id=pcm.id,
            name=pcm.name,
            direction=pcm.direction,
            channels=pcm.channels,
            recipe=NodeRecipe(factory=""),
        )
        for pcm in card.pcms
    )
    usb = dataclasses.replace(card.usb, is_elsewhere=False) if card.usb else None
    return Card(
        number=card.number,
        id=card.id,
        driver=card.driver,
        name=card.name,
        bus=card.bus,
        path=card.path,
        usb=usb,
        pcms=pcms,
    )


def _encode(known: Remembered) -> dict[str, Any]:
    return {"version": _VERSION, "cards": [_encode_entry(entry) for entry in known.entries]}


def _encode_entry(entry: _Entry) -> dict[str, Any]:
    card = entry.card
    assert card.usb is not None
    facts = {name: getattr(card, name) for name in ("number", "id", "driver", "name", "path")}
    names = ("vendor", "product", "serial", "port", "vendor_name", "product_name")
    facts["usb"] = {name: getattr(card.usb, name) for name in names}
    fields = ("device", "id", "name", "channels")
    facts["pcms"] = [
        {**{name: getattr(pcm, name) for name in fields}, "direction": pcm.direction.value}
        for pcm in card.pcms
    ]
    return {**facts, "folder": entry.folder, "awaySince": entry.away_since}


def _decode(stored: Mapping[str, Any]) -> Remembered:
    if stored["version"] != _VERSION:
        raise ValueError(f"version {stored['version']!r} isn't {_VERSION}")
    return Remembered(tuple(_decode_entry(each) for each in stored["cards"]))


def _decode_entry(stored: Mapping[str, Any]) -> _Entry:
    pcms = tuple(
        Pcm(
            device=int(each["device"]),
            id=str(each["id"]),
            name=str(each["name"]),
            direction=Direction(each["direction"]),
            channels=int(each["channels"]),
            recipe=NodeRecipe(factory=""),
        )
        for each in stored["pcms"]
    )
    card = Card(
        number=CardNumber(int(stored["number"])),
        id=str(stored["id"]),
        driver=str(stored["driver"]),
        name=str(stored["name"]),
        bus="usb",
        path=str(stored["path"]),
        usb=_decode_usb(stored["usb"]),
        pcms=pcms,
    )
    since = stored["awaySince"]
    return _Entry(card, str(stored["folder"]), None if since is None else int(since))


def _decode_usb(stored: Mapping[str, Any]) -> UsbIdentity:
    return UsbIdentity(
        vendor=str(stored["vendor"]),
        product=str(stored["product"]),
        serial=str(stored["serial"]),
        port=str(stored["port"]),
        vendor_name=str(stored["vendor_name"]),
        product_name=str(stored["product_name"]),
    )
