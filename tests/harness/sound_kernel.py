"""A kernel's sound cards from recordings: answers ioctls with the bytes that a real kernel gave.

`python -m tests.harness.sound_kernel FOLDER` records every card of the machine it runs on, one JSON
file each: the bytes of each answer (hex, zeros at the end left out) and the texts of /sys. A
`RecordedCard` then stands where `alsa.device.DeviceFile` would; values, flags and monitors can be
changed in it as a driver would, and whoever subscribed is told.
"""

import errno
import json
import os
import struct
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from liken_audio.alsa import kernel, reader, sysfs
from liken_audio.alsa.device import DeviceFile
from liken_audio.graph.model import Direction

_VALUE_MASK, _INFO_MASK, _ADD_MASK, _REMOVE_MASK = 1, 2, 4, 0xFFFFFFFF
_ACCESS_AT = 68
_VALUE_AT = 72
_TEXTS = ("idVendor", "idProduct", "serial", "manufacturer", "product")


@dataclass
class RecordedElement:
    """Answers of one control element, as bytearrays of full length."""

    info: bytearray
    items: list[bytes]
    value: bytearray
    tlv: bytes = b""
    read_error: int = 0
    """errno of each read, 0: it works."""

    @property
    def id(self) -> bytes:
        """`struct snd_ctl_elem_id`."""
        return bytes(self.info[: kernel.ELEMENT_ID_BYTES])


@dataclass
class RecordedCard:
    """One card; `open` returns its devices."""

    facts: Mapping[str, Any]
    number: int
    elements: dict[int, RecordedElement] = field(default_factory=dict)
    is_plugged: bool = True
    open_devices: list["RecordedDevice"] = field(default_factory=list)
    busy: set[str] = field(default_factory=set)
    """PCMs that a program has open, like `D0p`."""
    reads: list[int] = field(default_factory=list)
    """Elements that were read, in order."""
    writes: list[tuple[int, bytes]] = field(default_factory=list)

    def open(self, name: str) -> "RecordedDevice":
        """Open `controlCn` or `pcmCnDmp`."""
        if not self.is_plugged:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
        pcm = name.partition("D")[2]
        if pcm and f"D{pcm}" in self.busy:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        device = RecordedDevice(self, f"D{pcm}" if pcm else "")
        self.open_devices.append(device)
        return device

    def number_of(self, name: str, index: int = 0) -> int:
        """Return the number of the element of that name."""
        for number, element in self.elements.items():
            identity = kernel.element_ids(element.id)[0]
            if (identity.name, identity.index) == (name, index):
                return number
        raise KeyError(name)

    def set_values(self, name: str, *values: int) -> None:
        """Change an element's values, as a driver or another program does."""
        number = self.number_of(name)
        info = kernel.element_info(self.elements[number].info)
        self.elements[number].value = kernel.element_write_request(number, info.type, values)
        self.tell(number, _VALUE_MASK)

    def set_data(self, name: str, data: bytes) -> None:
        """Change the bytes of an element: another monitor, or none."""
        number = self.number_of(name)
        element = self.elements[number]
        struct.pack_into("<I", element.info, _ACCESS_AT + 4, len(data))
        element.value[_VALUE_AT:] = data.ljust(len(element.value) - _VALUE_AT, b"\0")
        self.tell(number, _VALUE_MASK)

    def set_access(self, name: str, access: int, *, is_told: bool = True) -> None:
        """Change an element's access flags (the kernel tells nobody of a lock)."""
        number = self.number_of(name)
        struct.pack_into("<I", self.elements[number].info, _ACCESS_AT, access)
        if is_told:
            self.tell(number, _INFO_MASK)

    def add(self, name: str, like: str) -> None:
        """Add an element that is like another one."""
        model = self.elements[self.number_of(like)]
        number = max(self.elements) + 1
        info = bytearray(model.info)
        struct.pack_into("<I", info, 0, number)
        info[16:60] = name.encode().ljust(44, b"\0")
        self.elements[number] = RecordedElement(
            info, list(model.items), bytearray(model.value), model.tlv
        )
        self.tell(number, _ADD_MASK)

    def remove(self, name: str) -> None:
        """Remove an element."""
        number = self.number_of(name)
        del self.elements[number]
        self.tell(number, _REMOVE_MASK)

    def tell(self, number: int, mask: int) -> None:
        """Queue an event for everyone who subscribed."""
        identity = struct.pack("<I60x", number)
        for device in self.open_devices:
            if device.is_subscribed:
                device.queue(struct.pack("<iI", 0, mask) + identity)

    def unplug(self) -> None:
        """Take the card out: every open device fails from now on."""
        self.is_plugged = False
        for device in self.open_devices:
            device.queue(b"")


class RecordedDevice:
    """Satisfies `reader.SoundDevice`."""

    def __init__(self, card: RecordedCard, pcm: str) -> None:
        self._card = card
        self._pcm = pcm
        self._handle = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._events: list[bytes] = []
        self.is_subscribed = False

    def fileno(self) -> int:
        """Return a file descriptor that is readable when an event waits."""
        return self._handle

    def queue(self, event: bytes) -> None:
        """Have an event wait."""
        self._events.append(event)
        os.eventfd_write(self._handle, 1)

    def read(self, size: int) -> bytes:
        """Return waiting events."""
        self._must_be_plugged()
        if not self._events:
            raise BlockingIOError
        os.eventfd_read(self._handle)
        data = b"".join(self._events)
        self._events.clear()
        assert len(data) <= size, "more events than a test should make at once"
        return data

    def close(self) -> None:
        """Close the file."""
        self._card.open_devices.remove(self)
        os.close(self._handle)

    def element_ids(self) -> bytes:
        """Return the ids of all elements."""
        self._must_be_plugged()
        return b"".join(element.id for element in self._card.elements.values())

    def ioctl(self, request: int, buffer: bytearray) -> None:
        """Answer as the recorded kernel did."""
        self._must_be_plugged()
        answers: dict[int, Callable[[bytearray], bytes]] = {
            kernel.CARD_INFO: self._card_info,
            kernel.ELEMENT_INFO: self._element_info,
            kernel.ELEMENT_READ: self._element_read,
            kernel.ELEMENT_WRITE: self._element_write,
            kernel.TLV_READ: self._tlv_read,
            kernel.SUBSCRIBE_EVENTS: self._subscribe,
            kernel.PCM_NEXT_DEVICE: self._next_pcm,
            kernel.PCM_INFO: self._pcm_info,
            kernel.PCM_HW_REFINE: self._hw_refine,
        }
        if request not in answers:
            raise OSError(errno.ENOTTY, os.strerror(errno.ENOTTY))
        answer = answers[request](buffer)
        buffer[:] = answer[: len(buffer)].ljust(len(buffer), b"\0")

    def _must_be_plugged(self) -> None:
        if not self._card.is_plugged:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))

    def _element(self, buffer: bytes | bytearray) -> RecordedElement:
        number = struct.unpack_from("<I", buffer)[0]
        if number not in self._card.elements:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        return self._card.elements[number]

    def _card_info(self, _buffer: bytearray) -> bytes:
        info = bytearray(_bytes(self._card.facts["card"], 376))
        struct.pack_into("<i", info, 0, self._card.number)
        return bytes(info)

    def _element_info(self, buffer: bytearray) -> bytes:
        element = self._element(buffer)
        item = struct.unpack_from("<I", buffer, 84)[0]
        return element.items[item] if element.items else bytes(element.info)

    def _element_read(self, buffer: bytearray) -> bytes:
        element = self._element(buffer)
        self._card.reads.append(struct.unpack_from("<I", buffer)[0])
        if element.read_error:
            raise OSError(element.read_error, os.strerror(element.read_error))
        return bytes(element.value)

    def _element_write(self, buffer: bytearray) -> bytes:
        element = self._element(buffer)
        access = struct.unpack_from("<I", element.info, _ACCESS_AT)[0]
        if access & kernel.Access.LOCK:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        if not access & kernel.Access.WRITE or access & kernel.Access.INACTIVE:
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))
        number = struct.unpack_from("<I", buffer)[0]
        self._card.writes.append((number, bytes(buffer[_VALUE_AT : _VALUE_AT + 64])))
        if element.value[_VALUE_AT:] != buffer[_VALUE_AT:]:
            element.value = bytearray(buffer)
            self._card.tell(number, _VALUE_MASK)
        return bytes(buffer)

    def _tlv_read(self, buffer: bytearray) -> bytes:
        tlv = self._element(buffer).tlv
        if not tlv:
            raise OSError(errno.ENXIO, os.strerror(errno.ENXIO))
        return bytes(buffer[:8]) + tlv

    def _subscribe(self, buffer: bytearray) -> bytes:
        self.is_subscribed = True
        return bytes(buffer)

    def _next_pcm(self, buffer: bytearray) -> bytes:
        after = int.from_bytes(buffer, "little", signed=True)
        devices = {int(name[1:-1]) for name in self._card.facts["pcms"]}
        found = min((device for device in devices if device > after), default=-1)
        return found.to_bytes(4, "little", signed=True)

    def _pcm_info(self, buffer: bytearray) -> bytes:
        device, _sub, stream = struct.unpack_from("<IIi", buffer)
        name = f"D{device}{'c' if stream else 'p'}"
        if name not in self._card.facts["pcms"]:
            raise OSError(errno.ENXIO, os.strerror(errno.ENXIO))
        info = bytearray(_bytes(self._card.facts["pcms"][name], 288))
        struct.pack_into("<I", info, 204, 0 if name in self._card.busy else 1)
        return bytes(info)

    def _hw_refine(self, _buffer: bytearray) -> bytes:
        if self._pcm not in self._card.facts["hardware"]:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return _bytes(self._card.facts["hardware"][self._pcm], 608)


def load(path: Path, number: int) -> RecordedCard:
    """Return a card of its recording, under a card number of the caller's choice."""
    facts = json.loads(path.read_text())
    elements = {}
    for entry in facts["elements"]:
        info = bytearray(_bytes(entry["info"], 272))
        elements[struct.unpack_from("<I", info)[0]] = RecordedElement(
            info=info,
            items=[_bytes(item, 272) for item in entry.get("items", ())],
            value=bytearray(_bytes(entry.get("value", ""), 1224)),
            tlv=_tlv_bytes(entry.get("tlv", "")),
            read_error=entry.get("readError", 0),
        )
    return RecordedCard(facts, number, elements)


class SoundMachine:
    """A folder with `sys` and `dev` as a kernel shows them for recorded cards."""

    def __init__(self, root: Path) -> None:
        self.sys, self.dev = root / "sys", root / "dev"
        self.cards: dict[int, RecordedCard] = {}
        self._folders: dict[int, Path] = {}
        (self.sys / "class" / "sound").mkdir(parents=True)
        (self.sys / "devices").mkdir()
        (self.dev / "snd").mkdir(parents=True)

    def plug(self, recording: Path, number: int, *, at: str = "", **usb: str) -> RecordedCard:
        """Plug a card in; `at` is another place below devices, `usb` its other texts there."""
        card = load(recording, number)
        place = card.facts["place"]
        folder = self.sys / "devices" / (at or place["folder"])
        top = folder
        folder.mkdir(parents=True)
        if place["bus"] == "usb":
            for name, text in {**place["usb"], **usb}.items():
                (folder / name).write_text(f"{text}\n")
            folder = folder / f"{folder.name}:1.0"
            folder.mkdir()
        for one in {folder, top}:
            bus = self.sys / "bus" / place["bus"]
            bus.mkdir(parents=True, exist_ok=True)
            (one / "subsystem").symlink_to(bus)
        own = folder / "sound" / f"card{number}"
        own.mkdir(parents=True)
        (own / "device").symlink_to(folder)
        sound = self.sys / "class" / "sound"
        for name in card.facts["pcms"]:
            (sound / f"pcmC{number}{name}").symlink_to(own)
        (sound / f"card{number}").symlink_to(own)
        self.cards[number], self._folders[number] = card, top
        (self.dev / "snd" / f"controlC{number}").touch()
        return card

    def unplug(self, number: int, *, is_device_gone: bool = True) -> None:
        """Take a card out; what it was on stays if only its driver goes."""
        card = self.cards.pop(number)
        card.unplug()
        sound = self.sys / "class" / "sound"
        for name in card.facts["pcms"]:
            (sound / f"pcmC{number}{name}").unlink()
        (sound / f"card{number}").unlink()
        folder = self._folders.pop(number)
        if is_device_gone:
            folder.rename(folder.with_name(f"gone-{number}-{folder.name}"))
        (self.dev / "snd" / f"controlC{number}").unlink()

    def open(self, path: Path) -> RecordedDevice:
        """Stand in for `DeviceFile`."""
        number = int("".join(filter(str.isdigit, path.name.partition("D")[0])))
        if number not in self.cards:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        return self.cards[number].open(path.name)


def _bytes(text: str, length: int) -> bytes:
    return bytes.fromhex(text).ljust(length, b"\0")


def _tlv_bytes(text: str) -> bytes:
    data = bytes.fromhex(text)
    return data + bytes(-len(data) % 4)


def _hex(data: bytes | bytearray) -> str:
    return bytes(data).rstrip(b"\0").hex()


def record(place: sysfs.Place, dev: Path) -> dict[str, Any]:
    """Return the recording of one card of this machine."""
    device = DeviceFile(dev / f"controlC{place.number}")
    try:
        info = kernel.card_info_request()
        device.ioctl(kernel.CARD_INFO, info)
        pcms, hardware = _record_pcms(device, place.number, dev)
        return {
            "place": _record_place(place),
            "card": _hex(info),
            "pcms": pcms,
            "hardware": hardware,
            "elements": [
                _record_element(device, identity.number)
                for identity in kernel.element_ids(device.element_ids())
            ],
        }
    finally:
        device.close()


def _record_place(place: sysfs.Place) -> dict[str, Any]:
    folder = Path(place.folder)
    texts = {
        name: (folder / name).read_text().rstrip("\n")
        for name in _TEXTS
        if place.usb and (folder / name).exists()
    }
    below = place.folder.partition("/devices/")[2]
    return {"bus": place.bus, "folder": below, "usb": texts}


def _record_pcms(
    device: DeviceFile, number: int, dev: Path
) -> tuple[dict[str, str], dict[str, str]]:
    pcms, hardware = {}, {}
    for pcm in reader.read_pcms(device):
        name = f"D{pcm.device}{'p' if pcm.direction is Direction.PLAYBACK else 'c'}"
        request = kernel.pcm_info_request(pcm.device, pcm.direction)
        device.ioctl(kernel.PCM_INFO, request)
        pcms[name] = _hex(request)
        try:
            opened = DeviceFile(dev / f"pcmC{number}{name}")
        except OSError:
            continue
        buffer = kernel.hardware_range_request()
        opened.ioctl(kernel.PCM_HW_REFINE, buffer)
        hardware[name] = _hex(buffer)
        opened.close()
    return pcms, hardware


def _record_element(device: DeviceFile, number: int) -> dict[str, Any]:
    request = kernel.element_info_request(number)
    device.ioctl(kernel.ELEMENT_INFO, request)
    info = kernel.element_info(request)
    entry: dict[str, Any] = {"info": _hex(request)}
    if info.items:
        entry["items"] = []
        for item in range(info.items):
            buffer = kernel.element_info_request(number, item)
            device.ioctl(kernel.ELEMENT_INFO, buffer)
            entry["items"].append(_hex(buffer))
    value = kernel.element_value_request(number)
    try:
        device.ioctl(kernel.ELEMENT_READ, value)
        entry["value"] = _hex(value)
    except OSError as error:
        entry["readError"] = error.errno
    if info.has(kernel.Access.TLV_READ):
        tlv = kernel.tlv_request(number)
        device.ioctl(kernel.TLV_READ, tlv)
        entry["tlv"] = kernel.tlv_data(tlv).hex()
    return entry


if __name__ == "__main__":
    for one in sysfs.places(Path("/sys")):
        target = Path(sys.argv[1]) / f"card{one.number}.json"
        target.write_text(json.dumps(record(one, Path("/dev/snd")), indent=1) + "\n")
