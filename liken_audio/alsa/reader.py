"""What a control device tells when it is asked: a card's facts, PCMs and elements.

Blocking, for a thread. An element or a PCM that can't be read is left out or has no value, and
everything else is complete; only a card that is gone (ENODEV) ends a reading, with an `OSError`.
"""

import errno
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from liken_audio.alsa import elements, kernel
from liken_audio.alsa.elements import Element
from liken_audio.alsa.kernel import Access, CardInfo, ElementInfo, ElementType, PcmInfo
from liken_audio.graph.model import Direction

MAX_PCM_DEVICES = 256

PcmPlace = tuple[int, Direction]


class SoundDevice(Protocol):
    """A file of /dev/snd; each method raises `OSError` with the kernel's errno."""

    def fileno(self) -> int:
        """Return the file descriptor; readable when an event waits or the card is gone."""

    def ioctl(self, request: int, buffer: bytearray) -> None:
        """Ask the driver; the answer is written over the buffer."""

    def element_ids(self) -> bytes:
        """Return the ids of all control elements, as an array of `struct snd_ctl_elem_id`."""

    def read(self, size: int) -> bytes:
        """Return waiting events without blocking; `BlockingIOError` when there is none."""

    def close(self) -> None:
        """Close the file."""


Opener = Callable[[Path], SoundDevice]


@dataclass(frozen=True, slots=True)
class Pcm:
    """A PCM and, where it has no channel map, what its hardware allows; None: it can't be asked."""

    info: PcmInfo
    hardware: kernel.HardwareRange | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """All that a card told."""

    info: CardInfo
    pcms: Sequence[Pcm]
    elements: Mapping[int, Element]
    """By the element's number."""


def read_card(
    device: SoundDevice, folder: Path, open_device: Opener, before: Reading | None = None
) -> Reading:
    """Return everything; `folder` is where the PCMs' device files are (/dev/snd).

    A PCM that told its range at the reading `before` isn't asked again.
    """
    buffer = kernel.card_info_request()
    device.ioctl(kernel.CARD_INFO, buffer)
    info = kernel.card_info(buffer)
    ids = kernel.element_ids(device.element_ids())
    found = read_elements(device, (one.number for one in ids))
    mapped = {
        (one.device, one.direction)
        for one in found.values()
        if isinstance(one, elements.ChannelMaps) and one.maps
    }
    screens = {
        (one.device, Direction.PLAYBACK)
        for one in found.values()
        if isinstance(one, elements.EldBlock)
    }
    known = {_place(one.info): one.hardware for one in before.pcms} if before else {}
    pcms = []
    for pcm in read_pcms(device):
        hardware = known.get(_place(pcm))
        if not hardware and pcm.free_subdevices and _place(pcm) not in mapped | screens:
            hardware = _hardware(folder / _pcm_file(info.number, pcm), open_device)
        pcms.append(Pcm(pcm, hardware))
    return Reading(info, tuple(pcms), found)


def subscribe(device: SoundDevice) -> None:
    """Have the device tell of changes of its elements from now on."""
    device.ioctl(kernel.SUBSCRIBE_EVENTS, bytearray((1).to_bytes(4, "little")))


def read_pcms(device: SoundDevice) -> list[PcmInfo]:
    """Return both directions of each PCM."""
    found = []
    number = -1
    for _ in range(MAX_PCM_DEVICES):
        buffer = bytearray(number.to_bytes(4, "little", signed=True))
        device.ioctl(kernel.PCM_NEXT_DEVICE, buffer)
        number = int.from_bytes(buffer, "little", signed=True)
        if number < 0:
            break
        for direction in Direction:
            request = kernel.pcm_info_request(number, direction)
            if _is_answered(device, kernel.PCM_INFO, request):
                info = kernel.pcm_info(request)
                if info.is_for_sound:
                    found.append(info)
    return found


def read_elements(device: SoundDevice, numbers: Iterable[int]) -> dict[int, Element]:
    """Return what these elements are now; those that are nothing to us are left out."""
    found = {}
    for number in numbers:
        element = _element(device, number)
        if element is not None:
            found[number] = element
    return found


def write_element(device: SoundDevice, number: int, values: Sequence[int]) -> None:
    """Set an element, one value a channel; raises `OSError`: EPERM, EBUSY (locked), EINVAL…"""
    info = _info(device, number)
    if info is None:
        raise FileNotFoundError(errno.ENOENT, f"control {number} is gone")
    device.ioctl(kernel.ELEMENT_WRITE, kernel.element_write_request(number, info.type, values))


def _element(device: SoundDevice, number: int) -> Element | None:
    info = _info(device, number)
    if info is None:
        return None
    if elements.is_eld(info):
        buffer = kernel.element_value_request(number)
        is_read = _is_answered(device, kernel.ELEMENT_READ, buffer)
        return elements.EldBlock(
            info.id.device, kernel.element_data(buffer, info) if is_read else b""
        )
    if elements.is_channel_map(info):
        return elements.channel_maps(info, _tlv(device, info))
    if elements.is_jack(info):
        return elements.jack(info, _values(device, info))
    if elements.is_control(info):
        return elements.control(
            info, _values(device, info), _items(device, info), _tlv(device, info)
        )
    return None


def _info(device: SoundDevice, number: int) -> ElementInfo | None:
    request = kernel.element_info_request(number)
    if not _is_answered(device, kernel.ELEMENT_INFO, request):
        return None
    return kernel.element_info(request)


def _values(device: SoundDevice, info: ElementInfo) -> tuple[int, ...] | None:
    buffer = kernel.element_value_request(info.id.number)
    if not info.has(Access.READ) or not _is_answered(device, kernel.ELEMENT_READ, buffer):
        return None
    return kernel.element_values(buffer, info)


def _items(device: SoundDevice, info: ElementInfo) -> tuple[str, ...]:
    if info.type != ElementType.ENUMERATED:
        return ()
    names = []
    for item in range(min(info.items, elements.MAX_ITEMS)):
        request = kernel.element_info_request(info.id.number, item)
        is_told = _is_answered(device, kernel.ELEMENT_INFO, request)
        names.append(kernel.element_info(request).item_name if is_told else f"item {item}")
    return tuple(names)


def _tlv(device: SoundDevice, info: ElementInfo) -> bytes:
    buffer = kernel.tlv_request(info.id.number)
    if not info.has(Access.TLV_READ) or not _is_answered(device, kernel.TLV_READ, buffer):
        return b""
    return kernel.tlv_data(buffer)


def _hardware(path: Path, open_device: Opener) -> kernel.HardwareRange | None:
    """Ask a PCM for its range; one that is in use, or has nothing to play to, isn't asked."""
    try:
        device = open_device(path)
    except OSError:
        return None
    try:
        buffer = kernel.hardware_range_request()
        is_told = _is_answered(device, kernel.PCM_HW_REFINE, buffer)
        return kernel.hardware_range(buffer) if is_told else None
    finally:
        device.close()


def _place(pcm: PcmInfo) -> PcmPlace:
    return pcm.device, pcm.direction


def _pcm_file(card: int, pcm: PcmInfo) -> str:
    letter = "p" if pcm.direction is Direction.PLAYBACK else "c"
    return f"pcmC{card}D{pcm.device}{letter}"


def _is_answered(device: SoundDevice, request: int, buffer: bytearray) -> bool:
    """Ask; False when the driver refuses, an error only when the card is gone."""
    try:
        device.ioctl(request, buffer)
    except OSError as error:
        if error.errno in (errno.ENODEV, errno.EBADF):
            raise
        return False
    return True
