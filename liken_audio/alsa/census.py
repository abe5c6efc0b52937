"""All cards of this moment, read once: for a look without a loop (`liken-audio inventory`)."""

from dataclasses import dataclass
from pathlib import Path

from liken_audio.alsa import cards, reader, sysfs
from liken_audio.alsa.device import DeviceFile
from liken_audio.alsa.reader import Opener
from liken_audio.graph.model import Card


@dataclass(frozen=True, slots=True)
class Census:
    """The cards that could be read, by number, and why others couldn't."""

    cards: tuple[Card, ...]
    failures: tuple[str, ...]


def take(sys: Path, dev: Path, open_device: Opener = DeviceFile) -> Census:
    """Read every card of `sys`, with its device files in the folder `snd` of `dev`. Blocking."""
    found, failures = [], []
    folder = dev / "snd"
    for place in sysfs.places(sys):
        path = folder / f"controlC{place.number}"
        try:
            device = open_device(path)
            try:
                reading = reader.read_card(device, folder, open_device)
            finally:
                device.close()
        except OSError as error:
            failures.append(f"{path}: {error.strerror or error}")
        else:
            found.append(cards.card(place, reading))
    return Census(tuple(found), tuple(failures))
