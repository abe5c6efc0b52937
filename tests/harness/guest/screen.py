"""Runs in the guest: a card's control elements that a driver would make, made by a program.

The kernel lets any program add elements to a card (sound/asound.h, SNDRV_CTL_IOCTL_ELEM_ADD), and
who reads them can't tell them from a driver's: same ioctl, same events. So a screen has an `ELD`, and
a plug a jack, where the emulated card has none. They live until the card or the guest ends.
"""

import fcntl
import struct
import time
from collections.abc import Sequence
from pathlib import Path

_ADD = 0xC1105517
_WRITE = 0xC4C85513
_CARD, _PCM = 0, 3
_BOOLEAN, _BYTES = 1, 4
_READ_WRITE_USER = 1 << 0 | 1 << 1 | 1 << 29
_INFO_BYTES = 272
_VALUES_OFFSET = 72
_VALUE_BYTES = 1224
ELD_BYTES = 96


def eld(name: str, *, product: int = 0x1234, channels: int = 2) -> list[int]:
    """An ELD, version 2: a monitor of LG (GSM) with LPCM up to 48 kHz, padded to `ELD_BYTES`."""
    text = name.encode()
    formats = bytes([1 << 3 | channels - 1, 0x07, 0x01])
    head = bytes([0x60 | len(text), 0x10, 0, 0x01]) + bytes(8) + b"\x1e\x6d"
    block = head + struct.pack("<H", product) + text + formats
    block += bytes(-len(block) % 4)
    whole = bytes([0x10, 0, len(block) // 4, 0]) + block
    return list(whole + bytes(ELD_BYTES - len(whole)))


def add_eld(card: int, pcm: int) -> None:
    """Give a PCM an ELD control that holds nothing: no monitor answers."""
    _add(card, struct.pack("<IiII44sI", 0, _PCM, pcm, 0, b"ELD", 0), _BYTES, ELD_BYTES)


def set_eld(card: int, pcm: int, block: Sequence[int]) -> None:
    """Have the monitor at the PCM say this; nothing but zeros: it sleeps."""
    _write(card, struct.pack("<IiII44sI", 0, _PCM, pcm, 0, b"ELD", 0), bytes(block))


def sleep(card: int, pcm: int, block: Sequence[int], seconds: float) -> float:
    """Have the monitor sleep and wake up again; return how long it was away here."""
    began = time.monotonic()
    set_eld(card, pcm, [0] * ELD_BYTES)
    time.sleep(seconds)
    set_eld(card, pcm, block)
    return time.monotonic() - began


def add_jack(card: int, name: str) -> None:
    """Give a card a jack, with no plug in it."""
    _add(card, struct.pack("<IiII44sI", 0, _CARD, 0, 0, name.encode(), 0), _BOOLEAN, 1)


def set_jack(card: int, name: str, is_plugged: bool) -> None:
    """Put a plug in, or pull it."""
    identity = struct.pack("<IiII44sI", 0, _CARD, 0, 0, name.encode(), 0)
    _write(card, identity, struct.pack("<q", is_plugged))


def _add(card: int, identity: bytes, kind: int, count: int) -> None:
    info = identity + struct.pack("<iIIi", kind, _READ_WRITE_USER, count, 0)
    _ioctl(card, _ADD, info.ljust(_INFO_BYTES, b"\0"))


def _write(card: int, identity: bytes, values: bytes) -> None:
    value = identity.ljust(_VALUES_OFFSET, b"\0") + values
    _ioctl(card, _WRITE, value.ljust(_VALUE_BYTES, b"\0"))


def _ioctl(card: int, number: int, data: bytes) -> None:
    with Path(f"/dev/snd/controlC{card}").open("r+b", buffering=0) as device:
        fcntl.ioctl(device, number, bytearray(data))
