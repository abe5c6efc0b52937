"""What this machine would publish, with no cluster and no sound server.

It reads the cards and stops there: PipeWire is not asked, so a device is shown as it is with its
node in place, and only what the cards themselves say (no monitor, plug out) appears as a taint.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from liken_audio.alsa import census
from liken_audio.alsa.census import Census
from liken_audio.dra.devices import Device, device
from liken_audio.graph.endpoints import endpoints
from liken_audio.graph.model import Card, Endpoint, Fault, GraphView
from liken_audio.settings import Settings
from liken_audio.virtual.cards import VirtualCardsError, decode

__all__ = ["Entry", "VirtualCardsError", "as_objects", "as_table", "cards", "devices", "nothing"]

ADVICE = "run it as a member of the group audio, or as root"
"""What helps where a device file can't be opened."""

_CARD_FAULTS = (Fault.NO_MONITOR, Fault.UNPLUGGED)
_COLUMNS = ("NAME", "CONNECTION", "CARD", "PCM", "MONITOR", "TAINTS")


@dataclass(frozen=True, slots=True)
class Entry:
    """One endpoint and the device made of it."""

    endpoint: Endpoint
    device: Device


def cards(settings: Settings) -> Census:
    """Read the cards of this machine and those of the file that the settings name. Blocking.

    Raises `OSError` and `VirtualCardsError`, both about the file.
    """
    found = Census((), ())
    if settings.has_alsa:
        found = census.take(Path(settings.sys), Path(settings.dev))
    if not settings.virtual:
        return found
    virtual = decode(Path(settings.virtual).read_text(encoding="utf-8")).cards
    return Census((*found.cards, *virtual), found.failures)


def nothing(settings: Settings) -> str:
    """Say why no device is found and what to do."""
    if not settings.has_alsa:
        return "no devices: the file of virtual cards has none; --alsa on adds the machine's own"
    return (
        f"no sound cards in {settings.sys}/class/sound; name a file of virtual ones with --virtual"
    )


def devices(cards: Sequence[Card], node: str) -> tuple[Entry, ...]:
    """Return the devices of the cards."""
    found = []
    for endpoint in endpoints(GraphView(cards=tuple(cards)), node):
        fault = endpoint.fault if endpoint.fault in _CARD_FAULTS else None
        found.append(Entry(endpoint, device(endpoint, fault)))
    return tuple(found)


def as_objects(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """Return the devices as plain data: name, attributes and taints."""
    return [
        {
            "name": str(entry.device.name),
            "attributes": dict(entry.device.attributes),
            "taints": [f"{taint.key}:{taint.effect}" for taint in entry.device.taints],
        }
        for entry in entries
    ]


def as_table(entries: Sequence[Entry]) -> str:
    """Return a table with one line for each device."""
    rows = [_COLUMNS, *(_row(entry) for entry in entries)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _row(entry: Entry) -> tuple[str, ...]:
    endpoint = entry.endpoint
    monitor = endpoint.monitor.name if endpoint.monitor else ""
    taints = ",".join(taint.key.removeprefix("audio.liken.sh/") for taint in entry.device.taints)
    return (
        str(entry.device.name),
        endpoint.connection.value,
        f"{endpoint.card.number} ({endpoint.card.name or endpoint.card.id})",
        f"{endpoint.pcm.device} ({endpoint.pcm.id})",
        monitor or "-",
        taints or "-",
    )
