"""The kernel's bytes are read as asound.h lays them out; numbers and sizes are its own."""

import struct

import pytest

from liken_audio.alsa import kernel
from liken_audio.alsa.kernel import Access, ElementType, Event, HardwareRange, Interface, Uevent
from liken_audio.graph.model import Direction


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("CARD_INFO", 0x81785501),
        ("ELEMENT_LIST", 0xC0505510),
        ("ELEMENT_INFO", 0xC1105511),
        ("ELEMENT_READ", 0xC4C85512),
        ("ELEMENT_WRITE", 0xC4C85513),
        ("SUBSCRIBE_EVENTS", 0xC0045516),
        ("TLV_READ", 0xC008551A),
        ("PCM_NEXT_DEVICE", 0x80045530),
        ("PCM_INFO", 0xC1205531),
        ("PCM_HW_REFINE", 0xC2604110),
    ],
)
def test_each_ioctl_has_the_number_that_a_c_compiler_gives_it(name: str, number: int) -> None:
    assert getattr(kernel, name) == number


def identity(number: int, name: bytes, interface: int = Interface.MIXER, index: int = 0) -> bytes:
    return struct.pack("<IiII44sI", number, interface, 3, 0, name, index)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"MISSION USB Audio 2.0 ", "MISSION USB Audio 2.0 "),
        (b"Call DTM #", "Call DTM #"),
        (b"HDMI/DP,pcm=3 Jack", "HDMI/DP,pcm=3 Jack"),
        (b"odd \xff\xe9", "odd \\xff\\xe9"),
        ("Lautstärke".encode(), "Lautstärke"),
        (b"N" * 44, "N" * 44),
        (b"", ""),
    ],
)
def test_a_name_keeps_each_of_its_bytes(raw: bytes, text: str) -> None:
    assert kernel.element_ids(identity(7, raw))[0].name == text


def test_an_array_of_ids_that_is_cut_gives_the_whole_ones() -> None:
    ids = kernel.element_ids(identity(1, b"A") + identity(2, b"B", index=1) + b"\1\0\0")
    assert [(one.number, one.name, one.index) for one in ids] == [(1, "A", 0), (2, "B", 1)]
    assert ids[0].device == 3


def info(kind: int, value: bytes, *, count: int = 2, access: int = 3) -> bytes:
    return struct.pack("<64siIIi128s64x", identity(5, b"X"), kind, access, count, 0, value)


def test_an_integers_range_is_of_64_bits() -> None:
    found = kernel.element_info(info(ElementType.INTEGER, struct.pack("<qqq", -127, 8, 1)))
    assert (found.minimum, found.maximum, found.step, found.count) == (-127, 8, 1, 2)


def test_an_enumeration_has_its_items_from_zero() -> None:
    value = struct.pack("<II64s", 3, 1, b"Rear Mic")
    found = kernel.element_info(info(ElementType.ENUMERATED, value, count=1))
    assert (found.items, found.item_name, found.minimum, found.maximum) == (3, "Rear Mic", 0, 2)


def test_access_flags_are_read_one_by_one() -> None:
    found = kernel.element_info(info(ElementType.BOOLEAN, b"", access=1 | 1 << 8 | 1 << 9))
    assert found.has(Access.READ)
    assert found.has(Access.INACTIVE)
    assert found.has(Access.LOCK)
    assert not found.has(Access.WRITE)
    assert not found.has(Access.VOLATILE)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (ElementType.INTEGER, (80, -75)),
        (ElementType.BOOLEAN, (1, 0)),
        (ElementType.ENUMERATED, (2, 1)),
    ],
)
def test_what_is_written_is_what_is_read(kind: ElementType, values: tuple[int, ...]) -> None:
    written = kernel.element_write_request(5, kind, values)
    assert len(written) == 1224
    assert kernel.element_values(written, kernel.element_info(info(kind, b""))) == values


def test_more_channels_than_fit_are_cut() -> None:
    found = kernel.element_info(info(ElementType.INTEGER, b"", count=999))
    assert len(kernel.element_values(bytes(1224), found)) == 128


def test_events_tell_which_element_and_whether_it_is_new_or_gone() -> None:
    def event(kind: int, mask: int, number: int) -> bytes:
        return struct.pack("<iI", kind, mask) + identity(number, b"X")

    told = event(0, 1, 4) + event(0, 4, 9) + event(0, 0xFFFFFFFF, 2) + event(7, 1, 3) + b"cut"
    assert kernel.events(told) == [
        Event(4, is_removed=False, is_added=False),
        Event(9, is_removed=False, is_added=True),
        Event(2, is_removed=True, is_added=False),
    ]


def test_a_request_for_a_pcm_names_its_device_and_direction() -> None:
    request = kernel.pcm_info_request(3, Direction.CAPTURE)
    assert struct.unpack_from("<IIi", request) == (3, 0, 1)


def test_a_request_for_the_hardwares_range_rules_nothing_out() -> None:
    asked = kernel.hardware_range(kernel.hardware_range_request())
    assert asked == HardwareRange(0, 0xFFFFFFFF, 0, 0xFFFFFFFF)


def tlv(*words: int) -> bytes:
    return b"".join(struct.pack("<I", word & 0xFFFFFFFF) for word in words)


GAINS = {
    "scale with an alsactl dump's words": (tlv(1, 8, 0xFFFFEC14, 0x14), 0, 255, -51.0, 0.0),
    "scale up to a boost": (tlv(1, 8, 0xFFFFF448, 0x32), 0, 120, -30.0, 30.0),
    "scale of a laptop's speaker": (tlv(1, 8, -6525, 75 | 0x10000), 0, 87, -65.25, 0.0),
    "both ends": (tlv(4, 8, -12799, 800), 0, 256, -127.99, 8.0),
    "both ends, the lowest is silence": (tlv(5, 8, -9_999_999, 0), 0, 63, None, 0.0),
    "linear": (tlv(2, 8, -4000, 600), 0, 100, -40.0, 6.0),
    "in a container": (tlv(0, 16, 1, 8, -1600, 100), 0, 46, -16.0, 30.0),
    "ranges": (tlv(3, 48, 0, 9, 1, 8, -5000, 100, 10, 50, 1, 8, -4000, 50), 0, 50, -50.0, -20.0),
    "ranges beyond the control's own": (
        tlv(3, 48, 0, 9, 1, 8, -5000, 100, 10, 50, 1, 8, -4000, 50),
        *(0, 9, -50.0, -41.0),
    ),
    "ranges that end beyond the control's own": (
        tlv(3, 48, 0, 9, 1, 8, -5000, 100, 10, 50, 1, 8, -4000, 50),
        *(0, 30, -50.0, -30.0),
    ),
    "none": (b"", 0, 50, None, None),
    "cut": (tlv(1, 8, -5100), 0, 255, None, None),
    "body of no length": (tlv(1, 0), 0, 255, None, None),
    "unknown type": (tlv(77, 8, 1, 2), 0, 255, None, None),
    "a range that is cut": (tlv(3, 24, 0, 9, 1, 8, -5000), 0, 9, None, None),
}


@pytest.mark.parametrize(
    ("data", "minimum", "maximum", "lowest", "highest"), GAINS.values(), ids=GAINS
)
def test_gains_are_those_of_the_controls_ends(
    data: bytes, minimum: int, maximum: int, lowest: float | None, highest: float | None
) -> None:
    assert kernel.gains(data, minimum, maximum) == (lowest, highest)


@pytest.mark.parametrize(
    ("data", "is_silent"),
    [
        pytest.param(tlv(1, 8, -6525, 75), False, id="scale"),
        pytest.param(tlv(1, 8, -4650, 150 | 0x10000), True, id="scale-that-mutes"),
        pytest.param(tlv(4, 8, -2837, 0), False, id="both-ends"),
        pytest.param(tlv(5, 8, -2837, 0), True, id="both-ends-and-mute"),
        pytest.param(tlv(2, 8, -9_999_999, 600), True, id="linear-from-nothing"),
        pytest.param(tlv(0, 16, 1, 8, -4650, 150 | 0x10000), True, id="in-a-container"),
        pytest.param(
            tlv(3, 48, 0, 9, 1, 8, -5000, 100 | 0x10000, 10, 50, 1, 8, -4000, 50),
            True,
            id="first-of-several-ranges",
        ),
        pytest.param(
            tlv(3, 48, 0, 9, 1, 8, -5000, 100, 10, 50, 1, 8, -4000, 50 | 0x10000),
            False,
            id="not-the-first-range",
        ),
        pytest.param(b"", False, id="none"),
        pytest.param(tlv(1, 8, -5100), False, id="cut"),
    ],
)
def test_whether_the_lowest_value_is_silence(data: bytes, is_silent: bool) -> None:
    assert kernel.is_silent_at_minimum(data, 0, 50) is is_silent


@pytest.mark.parametrize("length", range(0, 40, 3))
def test_no_tlv_data_of_any_length_raises(length: int) -> None:
    for kind in (0, 1, 2, 3, 4, 5, 0x101):
        data = tlv(kind, 24, 0, 9, 1, 8, 5, 6)[:length]
        kernel.gains(data, 0, 10)
        kernel.is_silent_at_minimum(data, 0, 10)
        kernel.channel_maps(data)


def test_tlv_data_is_cut_to_its_own_length() -> None:
    data = tlv(4, 8, -12799, 800)
    buffer = struct.pack("<II", 3, 4096) + data + b"\7" * 100
    assert kernel.tlv_data(buffer) == data
    assert kernel.tlv_data(struct.pack("<II", 3, 0)) == b""


def test_channel_maps_are_in_pipewires_words() -> None:
    stereo, surround = tlv(0x101, 8, 3, 4), tlv(0x102, 24, 3, 4, 5, 6, 7, 8)
    flagged = tlv(0x103, 8, 2 | 1 << 16, 999)
    container = tlv(0, len(stereo + surround + flagged)) + stereo + surround + flagged
    assert kernel.channel_maps(container) == [
        ("FL", "FR"),
        ("FL", "FR", "RL", "RR", "FC", "LFE"),
        ("MONO", "UNK"),
    ]


def test_a_uevent_is_action_path_and_subsystem() -> None:
    message = b"add@/devices/pci0/card1\0ACTION=add\0DEVPATH=/x\0SUBSYSTEM=sound\0SEQNUM=12\0"
    assert kernel.uevent(message) == Uevent("add", "/devices/pci0/card1", "sound")


@pytest.mark.parametrize("message", [b"", b"libudev\0\xfe\xed\xca\xfe", b"\0\0"])
def test_what_isnt_the_kernels_is_no_uevent(message: bytes) -> None:
    assert kernel.uevent(message) is None


def test_a_uevent_without_texts_has_no_subsystem() -> None:
    assert kernel.uevent(b"remove@/devices/x") == Uevent("remove", "/devices/x", "")
