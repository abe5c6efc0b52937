"""/sys/class/sound → where each card sits: its bus, its address there, what USB says of it.

The nearest PCI or USB device above the card is its place, so cards that a driver hangs below its
PCI device (SOF, virtio) have that device's address. Everything else is named by its own path below
/sys/devices. Reading is blocking, for a thread.
"""

import dataclasses
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from liken_audio.graph.model import UsbIdentity

_CARD = re.compile(r"card(\d+)")


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Where a card sits."""

    number: int
    folder: str
    """Of the card's device under /sys, links resolved; two cards of one device share it."""
    bus: str
    path: str
    usb: UsbIdentity | None = None
    pcms: tuple[str, ...] = ()
    """Names of the card's PCMs there, like `pcmC0D3p`: they tell when a card gets one more."""


def places(sys: Path) -> tuple[Place, ...]:
    """Return the places of all cards, by number; a card that vanishes meanwhile is left out."""
    found = []
    try:
        names = sorted(entry.name for entry in (sys / "class" / "sound").iterdir())
    except OSError:
        return ()
    for name in names:
        match = _CARD.fullmatch(name)
        place = _place(sys, int(match[1])) if match else None
        if place is not None:
            pcms = tuple(other for other in names if other.startswith(f"pcmC{place.number}D"))
            found.append(dataclasses.replace(place, pcms=pcms))
    return tuple(sorted(found, key=lambda place: place.number))


def existing(folders: Iterable[str]) -> set[str]:
    """Return those of the devices' folders that are still in the machine."""
    return {folder for folder in folders if Path(folder).exists()}


def _place(sys: Path, number: int) -> Place | None:
    card = sys / "class" / "sound" / f"card{number}"
    try:
        folder = (card / "device").resolve(strict=True)
    except OSError:
        if not card.exists():
            return None
        # A card of no device: what is left of its own folder's path.
        own = card.resolve()
        return Place(number, str(own), "other", _text(card / "id") or own.name)
    for above in _upwards(folder, sys):
        bus = _subsystem(above)
        if bus == "pci":
            return Place(number, str(above), "pci", above.name)
        if bus == "usb" and (above / "idVendor").exists():
            return Place(number, str(above), "usb", above.name, _usb(above))
    return Place(number, str(folder), _subsystem(folder) or "other", _below_devices(folder, sys))


def _upwards(folder: Path, sys: Path) -> Iterator[Path]:
    top = (sys / "devices").resolve()
    while folder != top and top in folder.parents:
        yield folder
        folder = folder.parent


def _subsystem(folder: Path) -> str:
    try:
        return (folder / "subsystem").resolve(strict=True).name
    except OSError:
        return ""


def _below_devices(folder: Path, sys: Path) -> str:
    top = (sys / "devices").resolve()
    try:
        parts = folder.relative_to(top).parts
    except ValueError:
        parts = folder.parts[1:]
    return "/".join(parts[1:] if parts[:1] == ("platform",) and len(parts) > 1 else parts)


def _usb(folder: Path) -> UsbIdentity:
    return UsbIdentity(
        vendor=_text(folder / "idVendor").lower(),
        product=_text(folder / "idProduct").lower(),
        serial=_text(folder / "serial"),
        port=folder.name,
        vendor_name=_text(folder / "manufacturer"),
        product_name=_text(folder / "product"),
    )


def _text(path: Path) -> str:
    """Return a file's text without its line's end; "" when it can't be read."""
    try:
        return path.read_bytes().decode("utf-8", "backslashreplace").rstrip("\n")
    except OSError:
        return ""
