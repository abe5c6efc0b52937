r"""Bytes of the kernel's sound interface ↔ records: the one place that knows their layout.

Structures and numbers: include/uapi/sound/asound.h (control interface 2.0.9, PCM interface 2.0.18)
and include/uapi/sound/tlv.h; channel positions from `enum snd_pcm_chmap_position` in asound.h.
Layouts are those of 64-bit kernels (x86_64 and arm64 agree, little endian); the numbers of ioctls
are worked out from the sizes as include/uapi/asm-generic/ioctl.h says, so a layout that is wrong
is refused by the kernel (ENOTTY) and never misread. Kernel uevents: lib/kobject_uevent.c.

Text keeps its bytes: what is no UTF-8 is shown as `\xNN`, so two odd names stay two.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from liken_audio.graph.model import Decibel, Direction

_READ, _WRITE = 2, 1
_MAX_UNSIGNED = 0xFFFFFFFF

_CARD_INFO = struct.Struct("<i4x16s16s32s80s16x80s128s")
_ELEMENT_ID = struct.Struct("<IiII44sI")
_ELEMENT_LIST = struct.Struct("<IIIIQ50x6x")
_ELEMENT_INFO = struct.Struct("<64siIIi128s64x")
_ELEMENT_VALUE = struct.Struct("<64sI4x1024s128x")
_INTEGER_RANGE = struct.Struct("<qqq")
_ENUMERATION = struct.Struct("<II64s")
_EVENT = struct.Struct("<iI64s")
_PCM_INFO = struct.Struct("<IIii64s80s32siiII16x64x")
_TLV_HEADER = struct.Struct("<II")
_HW_PARAMS_BYTES = 608
_FIRST_INTERVAL_AT = 4 + 3 * 32 + 5 * 32
"""`struct snd_pcm_hw_params`: flags, 3 masks and 5 reserved ones of 32 bytes, then intervals of 12."""
_CHANNELS_AT = _FIRST_INTERVAL_AT + 2 * 12
_RATE_AT = _FIRST_INTERVAL_AT + 3 * 12
_RMASK_AT = 4 + 8 * 32 + 21 * 12

ELEMENT_ID_BYTES = _ELEMENT_ID.size
EVENT_BYTES = _EVENT.size
TLV_BYTES = 4096
"""Room for one control's TLV data; the longest known, an HDMI card's channel maps, need a third."""
NETLINK_KOBJECT_UEVENT = 15
"""Netlink protocol of uevents, include/uapi/linux/netlink.h."""


def _number(direction: int, group: str, number: int, size: int) -> int:
    return direction << 30 | size << 16 | ord(group) << 8 | number


CARD_INFO = _number(_READ, "U", 0x01, _CARD_INFO.size)
ELEMENT_LIST = _number(_READ | _WRITE, "U", 0x10, _ELEMENT_LIST.size)
ELEMENT_INFO = _number(_READ | _WRITE, "U", 0x11, _ELEMENT_INFO.size)
ELEMENT_READ = _number(_READ | _WRITE, "U", 0x12, _ELEMENT_VALUE.size)
ELEMENT_WRITE = _number(_READ | _WRITE, "U", 0x13, _ELEMENT_VALUE.size)
SUBSCRIBE_EVENTS = _number(_READ | _WRITE, "U", 0x16, 4)
TLV_READ = _number(_READ | _WRITE, "U", 0x1A, _TLV_HEADER.size)
PCM_NEXT_DEVICE = _number(_READ, "U", 0x30, 4)
PCM_INFO = _number(_READ | _WRITE, "U", 0x31, _PCM_INFO.size)
PCM_HW_REFINE = _number(_READ | _WRITE, "A", 0x10, _HW_PARAMS_BYTES)


class Interface(IntEnum):
    """`snd_ctl_elem_iface_t`."""

    CARD = 0
    HWDEP = 1
    MIXER = 2
    PCM = 3
    RAWMIDI = 4
    TIMER = 5
    SEQUENCER = 6


class ElementType(IntEnum):
    """`snd_ctl_elem_type_t`."""

    NONE = 0
    BOOLEAN = 1
    INTEGER = 2
    ENUMERATED = 3
    BYTES = 4
    IEC958 = 5
    INTEGER64 = 6


class Access(IntEnum):
    """`SNDRV_CTL_ELEM_ACCESS_*`, those that are looked at."""

    READ = 1 << 0
    WRITE = 1 << 1
    VOLATILE = 1 << 2
    TLV_READ = 1 << 4
    INACTIVE = 1 << 8
    LOCK = 1 << 9


@dataclass(frozen=True, slots=True, kw_only=True)
class CardInfo:
    """`struct snd_ctl_card_info`."""

    number: int
    id: str
    driver: str
    name: str
    long_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementId:
    """`struct snd_ctl_elem_id`; `number` (numid) is the element's own as long as the card lives."""

    number: int
    interface: int
    device: int
    name: str
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementInfo:
    """`struct snd_ctl_elem_info`."""

    id: ElementId
    type: int
    access: int
    count: int
    """Values: channels, or bytes."""
    minimum: int = 0
    maximum: int = 0
    step: int = 0
    items: int = 0
    item_name: str = ""
    """Of an enumeration the text of the item that was asked for."""

    def has(self, access: Access) -> bool:
        """Whether the element has this access flag."""
        return bool(self.access & access)


@dataclass(frozen=True, slots=True)
class Event:
    """`struct snd_ctl_event` of one element."""

    number: int
    is_removed: bool
    is_added: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PcmInfo:
    """`struct snd_pcm_info`."""

    device: int
    direction: Direction
    id: str
    name: str
    is_for_sound: bool
    """False for a modem's."""
    free_subdevices: int


@dataclass(frozen=True, slots=True)
class HardwareRange:
    """What `SNDRV_PCM_IOCTL_HW_REFINE` leaves of all channels and rates."""

    min_channels: int
    max_channels: int
    min_rate_hz: int
    max_rate_hz: int


@dataclass(frozen=True, slots=True)
class Uevent:
    """A kernel uevent."""

    action: str
    path: str
    """Of the device under /sys."""
    subsystem: str


# --- control devices --------------------------------------------------------------------------------


def card_info_request() -> bytearray:
    """Return the buffer for `CARD_INFO`."""
    return bytearray(_CARD_INFO.size)


def card_info(buffer: bytes | bytearray) -> CardInfo:
    """Decode the answer to `CARD_INFO`."""
    number, card_id, driver, name, long_name, _mixer, _components = _CARD_INFO.unpack(buffer)
    return CardInfo(
        number=number,
        id=_text(card_id),
        driver=_text(driver),
        name=_text(name),
        long_name=_text(long_name),
    )


def element_list_request(space: int = 0, address: int = 0) -> bytearray:
    """Return the buffer for `ELEMENT_LIST` with room for `space` ids at a memory address."""
    return bytearray(_ELEMENT_LIST.pack(0, space, 0, 0, address))


def element_list(buffer: bytes | bytearray) -> tuple[int, int]:
    """Return how many ids were filled in and how many there are."""
    _offset, _space, used, count, _address = _ELEMENT_LIST.unpack(buffer)
    return used, count


def element_ids(buffer: bytes | bytearray) -> list[ElementId]:
    """Decode an array of `struct snd_ctl_elem_id`."""
    whole = len(buffer) - len(buffer) % _ELEMENT_ID.size
    return [_element_id(*fields) for fields in _ELEMENT_ID.iter_unpack(bytes(buffer[:whole]))]


def element_info_request(number: int, item: int = 0) -> bytearray:
    """Return the buffer for `ELEMENT_INFO`; `item` is one of an enumeration's."""
    value = _ENUMERATION.pack(0, item, b"").ljust(128, b"\0")
    return bytearray(_ELEMENT_INFO.pack(_id_by_number(number), 0, 0, 0, 0, value))


def element_info(buffer: bytes | bytearray) -> ElementInfo:
    """Decode the answer to `ELEMENT_INFO`."""
    identity, kind, access, count, _owner, value = _ELEMENT_INFO.unpack(buffer)
    minimum = maximum = step = items = 0
    item_name = b""
    if kind in (ElementType.INTEGER, ElementType.INTEGER64):
        minimum, maximum, step = _INTEGER_RANGE.unpack_from(value)
    elif kind == ElementType.BOOLEAN:
        maximum = 1
    elif kind == ElementType.ENUMERATED:
        items, _item, item_name = _ENUMERATION.unpack_from(value)
        maximum = max(items - 1, 0)
    return ElementInfo(
        id=_element_id(*_ELEMENT_ID.unpack(identity)),
        type=kind,
        access=access,
        count=count,
        minimum=minimum,
        maximum=maximum,
        step=step,
        items=items,
        item_name=_text(item_name),
    )


def element_value_request(number: int) -> bytearray:
    """Return the buffer for `ELEMENT_READ`."""
    return bytearray(_ELEMENT_VALUE.pack(_id_by_number(number), 0, b""))


def element_values(buffer: bytes | bytearray, info: ElementInfo) -> tuple[int, ...]:
    """Decode the values of a boolean, an integer or an enumeration: one a channel."""
    value = _ELEMENT_VALUE.unpack(buffer)[2]
    form, most = _value_form(info.type)
    return struct.unpack_from(f"<{min(info.count, most)}{form}", value)


def element_data(buffer: bytes | bytearray, info: ElementInfo) -> bytes:
    """Decode the value of a `BYTES` element; 512 bytes fit."""
    value: bytes = _ELEMENT_VALUE.unpack(buffer)[2]
    return value[: min(info.count, 512)]


def element_write_request(number: int, kind: int, values: Sequence[int]) -> bytearray:
    """Return the buffer for `ELEMENT_WRITE`; raises `struct.error` for a value that can't fit."""
    form, _most = _value_form(kind)
    return bytearray(
        _ELEMENT_VALUE.pack(_id_by_number(number), 0, struct.pack(f"<{len(values)}{form}", *values))
    )


def _value_form(kind: int) -> tuple[str, int]:
    """Letter of one value for `struct`, and how many fit."""
    return ("I", 128) if kind == ElementType.ENUMERATED else ("q", 128)


def events(buffer: bytes) -> list[Event]:
    """Decode what reading a subscribed control device gives; what is no element's is left out."""
    found = []
    whole = len(buffer) - len(buffer) % _EVENT.size
    for kind, mask, identity in _EVENT.iter_unpack(buffer[:whole]):
        if kind == 0:
            number = _ELEMENT_ID.unpack(identity)[0]
            is_removed = mask == _MAX_UNSIGNED
            found.append(Event(number, is_removed, not is_removed and bool(mask & 1 << 2)))
    return found


def _id_by_number(number: int) -> bytes:
    return _ELEMENT_ID.pack(number, 0, 0, 0, b"", 0)


def _element_id(
    number: int,
    interface: int,
    device: int,
    _subdevice: int,
    *rest: object,
) -> ElementId:
    name, index = rest
    assert isinstance(name, bytes)
    assert isinstance(index, int)
    return ElementId(
        number=number, interface=interface, device=device, name=_text(name), index=index
    )


# --- PCMs -------------------------------------------------------------------------------------------


def pcm_info_request(device: int, direction: Direction) -> bytearray:
    """Return the buffer for `PCM_INFO`."""
    stream = 0 if direction is Direction.PLAYBACK else 1
    return bytearray(_PCM_INFO.pack(device, 0, stream, 0, b"", b"", b"", 0, 0, 0, 0))


def pcm_info(buffer: bytes | bytearray) -> PcmInfo:
    """Decode the answer to `PCM_INFO`."""
    device, _sub, stream, _card, pcm_id, name, _subname, kind, _, _count, free = _PCM_INFO.unpack(
        buffer
    )
    return PcmInfo(
        device=device,
        direction=Direction.PLAYBACK if stream == 0 else Direction.CAPTURE,
        id=_text(pcm_id),
        name=_text(name),
        is_for_sound=kind != 2,
        free_subdevices=free,
    )


def hardware_range_request() -> bytearray:
    """Return the buffer for `PCM_HW_REFINE` that rules nothing out."""
    buffer = bytearray(_HW_PARAMS_BYTES)
    buffer[4 : 4 + 3 * 32] = b"\xff" * (3 * 32)
    for number in range(12):
        struct.pack_into("<III", buffer, _FIRST_INTERVAL_AT + 12 * number, 0, _MAX_UNSIGNED, 0)
    struct.pack_into("<I", buffer, _RMASK_AT, _MAX_UNSIGNED)
    return buffer


def hardware_range(buffer: bytes | bytearray) -> HardwareRange:
    """Decode the answer to `PCM_HW_REFINE`."""
    channels = struct.unpack_from("<II", buffer, _CHANNELS_AT)
    rates = struct.unpack_from("<II", buffer, _RATE_AT)
    return HardwareRange(*channels, *rates)


# --- TLV data ---------------------------------------------------------------------------------------

_CONTAINER, _DB_SCALE, _DB_LINEAR, _DB_RANGE, _DB_MINMAX, _DB_MINMAX_MUTE = range(6)
_CHANNEL_MAPS = (0x101, 0x102, 0x103)
_POSITION_BITS = 0xFFFF
_MUTE_BIT = 0x10000
_GAIN_MUTE = -9_999_999
"""`SNDRV_CTL_TLVD_DB_GAIN_MUTE`: the lowest step is silence and has no gain."""
# fmt: off
_POSITIONS = (
    "UNK", "NA", "MONO", "FL", "FR", "RL", "RR", "FC", "LFE", "SL", "SR", "RC", "FLC", "FRC", "RLC",
    "RRC", "FLW", "FRW", "FLH", "FCH", "FRH", "TC", "TFL", "TFR", "TFC", "TRL", "TRR", "TRC",
)
# fmt: on
"""`enum snd_pcm_chmap_position` in PipeWire's words (spa/param/audio/raw.h)."""

Gains = tuple[Decibel | None, Decibel | None]


def tlv_request(number: int) -> bytearray:
    """Return the buffer for `TLV_READ`."""
    return bytearray(_TLV_HEADER.pack(number, TLV_BYTES) + bytes(TLV_BYTES))


def tlv_data(buffer: bytes | bytearray) -> bytes:
    """Return the TLV data behind its header, cut to its own length."""
    _number, room = _TLV_HEADER.unpack_from(buffer)
    data = bytes(buffer[_TLV_HEADER.size : _TLV_HEADER.size + room])
    if len(data) < _TLV_HEADER.size:
        return b""
    length = _TLV_HEADER.unpack_from(data)[1]
    return data[: _TLV_HEADER.size + length]


def gains(tlv: bytes, minimum: int, maximum: int) -> Gains:
    """Return the gain in dB at both ends of a range of raw values; None: not told, or silence."""
    for kind, body in _tlvs(tlv):
        found = _gains(kind, body, minimum, maximum)
        if found is not None:
            return found
    return None, None


def is_silent_at_minimum(tlv: bytes, minimum: int, maximum: int) -> bool:
    """Whether the lowest raw value is silence, whatever gain the scale would have there."""
    for kind, body in _tlvs(tlv):
        gain = _gains(kind, body, minimum, maximum)
        if gain is not None:
            return gain[0] is None or _has_mute(kind, body, minimum)
    return False


def channel_maps(tlv: bytes) -> list[tuple[str, ...]]:
    """Return the channel positions that the card offers, in the kernel's order."""
    return [
        tuple(_position(word & _POSITION_BITS) for (word,) in struct.iter_unpack("<I", body))
        for kind, body in _tlvs(tlv)
        if kind in _CHANNEL_MAPS
    ]


def _tlvs(data: bytes) -> list[tuple[int, bytes]]:
    """Return (type, body) of all that isn't a container; what is cut ends the list."""
    found: list[tuple[int, bytes]] = []
    while len(data) >= _TLV_HEADER.size:
        kind, length = _TLV_HEADER.unpack_from(data)
        padded = (length + 3) // 4 * 4
        body = data[_TLV_HEADER.size : _TLV_HEADER.size + padded]
        if len(body) < padded:
            break
        found += _tlvs(body) if kind == _CONTAINER else [(kind, body)]
        data = data[_TLV_HEADER.size + padded :]
    return found


def _gains(kind: int, body: bytes, minimum: int, maximum: int) -> Gains | None:
    if kind == _DB_RANGE:
        return _range_gains(body, minimum, maximum)
    if len(body) < 8:
        return None
    low, second = struct.unpack_from("<iI", body)
    if kind == _DB_SCALE:
        return _decibels(low), _decibels(low + (second & 0xFFFF) * (maximum - minimum))
    if kind in (_DB_LINEAR, _DB_MINMAX, _DB_MINMAX_MUTE):
        return _decibels(low), _decibels(struct.unpack_from("<i", body, 4)[0])
    return None


def _range_gains(body: bytes, minimum: int, maximum: int) -> Gains | None:
    """Of several ranges, each with its own TLV, the lowest and the highest that the control has."""
    ends: list[Gains] = []
    while len(body) >= 16:
        low, high = struct.unpack_from("<ii", body)
        kind, length = _TLV_HEADER.unpack_from(body, 8)
        inner = body[16 : 16 + length]
        found = _gains(kind, inner, low, min(high, maximum)) if len(inner) == length else None
        if found is None:
            break
        if low <= maximum and high >= minimum:
            ends.append(found)
        body = body[16 + (length + 3) // 4 * 4 :]
    return (ends[0][0], ends[-1][1]) if ends else None


def _has_mute(kind: int, body: bytes, minimum: int) -> bool:
    """Whether a TLV that gives gains says that its lowest value mutes."""
    if kind == _DB_RANGE:
        while len(body) >= 16:
            _low, high, inner, length = struct.unpack_from("<iiII", body)
            if minimum <= high:
                return _has_mute(inner, body[16 : 16 + length], minimum)
            body = body[16 + (length + 3) // 4 * 4 :]
        return False
    is_scale = kind == _DB_SCALE and len(body) >= 8
    return kind == _DB_MINMAX_MUTE or (
        is_scale and bool(struct.unpack_from("<I", body, 4)[0] & _MUTE_BIT)
    )


def _decibels(hundredths: int) -> Decibel | None:
    return None if hundredths <= _GAIN_MUTE else Decibel(hundredths / 100)


def _position(number: int) -> str:
    return _POSITIONS[number] if number < len(_POSITIONS) else "UNK"


# --- uevents ----------------------------------------------------------------------------------------


def uevent(message: bytes) -> Uevent | None:
    """Decode `ACTION@PATH` and its `KEY=VALUE` texts; None for what isn't the kernel's."""
    head, *texts = message.rstrip(b"\0").split(b"\0")
    action, mark, path = head.partition(b"@")
    if not mark:
        return None
    values = dict(text.partition(b"=")[::2] for text in texts)
    return Uevent(_text(action), _text(path), _text(values.get(b"SUBSYSTEM", b"")))


def _text(data: bytes) -> str:
    return data.split(b"\0", 1)[0].decode("utf-8", "backslashreplace")
