"""ELD bytes → Eld: what a monitor says of its sound.

An ELD (EDID-Like Data) block is what the display driver hands to the audio driver, and what the
kernel's `ELD` control gives out, for each HDMI or DisplayPort PCM. Layout: Intel High Definition
Audio specification 1.0a, section 7.3.3.34, the same as `struct snd_parsed_hdmi_eld` is read from:

    0      bits 3-7 version (2, or 31 for a partial block), the rest reserved
    2      length of the baseline block in words of four bytes
    4      bits 5-7 CEA version, bits 0-4 length of the monitor's name
    5      bits 4-7 number of audio descriptors, bits 2-3 connection (0 HDMI, 1 DisplayPort)
    7      bits 0-6 speaker allocation
    8-15   port id, little endian
    16-17  maker's id as in the EDID: three letters of five bits, big endian
    18-19  product code, little endian
    20-    the name, then three bytes for each audio descriptor

A block that says nothing (no bytes, zeros, an unknown version, cut within the fixed part) means
that no monitor answers. One that is cut later tells as much as is there. No input raises.
"""

from dataclasses import dataclass
from typing import TypeVar

from liken_audio.graph.model import Connection, Eld

_Name = TypeVar("_Name", int, str)

_FIXED_BYTES = 20
_VERSIONS = (2, 31)
_DISPLAYPORT = 1
_LONGEST_NAME = 16
"""The kernel takes a longer name for nonsense; where the descriptors begin is unknown then."""
_LPCM = 1
_RATES_HZ = (32_000, 44_100, 48_000, 88_200, 96_000, 176_400, 192_000)
_BIT_DEPTHS = (16, 20, 24)
_SPEAKERS = ("FL/FR", "LFE", "FC", "RL/RR", "RC", "FLC/FRC", "RLC/RRC")


@dataclass(frozen=True, slots=True)
class _Lpcm:
    """The widest that all LPCM descriptors together allow."""

    channels: int = 0
    max_rate_hz: int = 0
    bit_depths: tuple[int, ...] = ()


def decode(block: bytes) -> Eld | None:
    """Return what the monitor says; None when there is none."""
    if len(block) < _FIXED_BYTES or block[0] >> 3 not in _VERSIONS:
        return None
    name, descriptors = _variable_part(block)
    lpcm = _widest_lpcm(descriptors)
    manufacturer = _manufacturer(block[16:18])
    product = int.from_bytes(block[18:20], "little")
    is_displayport = block[5] >> 2 & 0b11 == _DISPLAYPORT
    return Eld(
        version=block[0] >> 3,
        connection=Connection.DISPLAYPORT if is_displayport else Connection.HDMI,
        manufacturer=manufacturer,
        product=f"{product:04x}" if manufacturer or product else "",
        name=name,
        port_id=int.from_bytes(block[8:16], "little"),
        lpcm_channels=lpcm.channels,
        lpcm_max_rate_hz=lpcm.max_rate_hz,
        lpcm_bit_depths=lpcm.bit_depths,
        speakers=tuple(_named_bits(block[7], _SPEAKERS)),
    )


def monitor_id(eld: Eld) -> str:
    """Return `maker-product-name` or `maker-product`; "" for a monitor without a maker.

    Display drivers publish the same for the same screen, so the two can be paired: lower case,
    ends trimmed, each run of spaces one dash, all else as the monitor spells it.
    """
    if not eld.manufacturer:
        return ""
    words = "-".join(eld.name.lower().split())
    model = f"{eld.manufacturer.lower()}-{eld.product}"
    return f"{model}-{words}" if words else model


def _variable_part(block: bytes) -> tuple[str, list[bytes]]:
    length = block[4] & 0b11111
    if length > _LONGEST_NAME:
        return "", []
    start = _FIXED_BYTES + length
    end = min(start + 3 * (block[5] >> 4), len(block))
    descriptors = [block[offset : offset + 3] for offset in range(start, end - 2, 3)]
    return _name(block[_FIXED_BYTES:start]), descriptors


def _name(text: bytes) -> str:
    """EDID ends a name with a line feed and pads it with spaces; some drivers leave both in."""
    first_line = text.split(b"\n", 1)[0].split(b"\0", 1)[0].decode("latin-1")
    return "".join(letter if letter.isprintable() else " " for letter in first_line).strip()


def _manufacturer(text: bytes) -> str:
    packed = int.from_bytes(text, "big")
    codes = (packed >> 10 & 31, packed >> 5 & 31, packed & 31)
    if not all(1 <= code <= 26 for code in codes):
        return ""
    return "".join(chr(ord("A") - 1 + code) for code in codes)


def _widest_lpcm(descriptors: list[bytes]) -> _Lpcm:
    channels = max_rate_hz = depth_bits = 0
    for head, rates, depths in descriptors:
        if head >> 3 & 0b1111 != _LPCM:
            continue
        channels = max(channels, (head & 0b111) + 1)
        max_rate_hz = max(max_rate_hz, *_named_bits(rates, _RATES_HZ), 0)
        depth_bits |= depths
    return _Lpcm(channels, max_rate_hz, tuple(_named_bits(depth_bits, _BIT_DEPTHS)))


def _named_bits(bits: int, names: tuple[_Name, ...]) -> list[_Name]:
    return [name for position, name in enumerate(names) if bits >> position & 1]
