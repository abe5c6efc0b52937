"""ELD blocks of real monitors, and every way in which one can be broken."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liken_audio.graph.eld import decode, monitor_id
from liken_audio.graph.model import Connection, Eld

RECORDINGS = Path(__file__).parents[2] / "recordings"


def recorded(name: str) -> bytes:
    for line in (RECORDINGS / "eld-blocks.txt").read_text().splitlines():
        if line.startswith(f"{name} "):
            return bytes.fromhex(line.split()[1])
    raise KeyError(name)


def block(
    *,
    version: int = 2,
    maker: bytes = b"\x1e\x6d",
    product: bytes = b"\x09\x5b",
    name: bytes = b"",
    name_length: int | None = None,
    descriptors: bytes = b"",
    descriptor_count: int | None = None,
    speakers: int = 1,
    port: bytes = bytes(8),
    connection: int = 0,
) -> bytes:
    count = len(descriptors) // 3 if descriptor_count is None else descriptor_count
    length = len(name) if name_length is None else name_length
    head = bytes([version << 3, 0, 0, 0, length, count << 4 | connection << 2, 0, speakers])
    return head + port + maker + product + name + descriptors


def known(data: bytes) -> Eld:
    eld = decode(data)
    assert eld is not None
    return eld


@pytest.mark.parametrize(
    ("name", "connection", "identity", "monitor", "channels", "depths"),
    [
        ("dell-u2415", "displayport", "del-4071-dell-u2415", "DELL U2415", 8, (16, 20, 24)),
        ("lg-ultrawide", "hdmi", "gsm-5b09-lg-ultrawide", "LG ULTRAWIDE", 2, (16, 20, 24)),
        ("nvidia-samsung", "hdmi", "sam-0bb2-samsung", "SAMSUNG", 2, (16, 20, 24)),
        ("acer-dp", "displayport", "acr-0490-xb271hu", "XB271HU", 2, (16,)),
        ("onkyo-avr", "displayport", "onk-0a32-tx-sr308", "TX-SR308", 2, (16, 20, 24)),
        ("aoc-dp", "displayport", "aoc-2790-u2790b", "U2790B", 2, (16, 20, 24)),
        ("sharp-noname", "hdmi", "", "", 2, (16,)),
    ],
)
def test_real_monitors_are_read_as_they_are(
    name: str,
    connection: str,
    identity: str,
    monitor: str,
    channels: int,
    depths: tuple[int, ...],
) -> None:
    eld = known(recorded(name))
    assert eld.connection == connection
    assert monitor_id(eld) == identity
    assert eld.name == monitor
    assert eld.lpcm_channels == channels
    assert eld.lpcm_bit_depths == depths
    assert eld.lpcm_max_rate_hz == 48_000
    assert eld.version == 2
    assert eld.speakers[0] == "FL/FR"


def test_a_real_monitor_with_two_lpcm_descriptors_takes_what_the_wider_one_says() -> None:
    eld = known(recorded("dell-p1917s"))
    assert monitor_id(eld) == "del-d093-dell-p1917s"
    assert (eld.lpcm_channels, eld.lpcm_max_rate_hz) == (6, 192_000)
    assert eld.speakers == ("FL/FR", "LFE", "FC", "RL/RR")


LPCM_2, LPCM_8, AC3, DTS = b"\x09\x7f\x07", b"\x0f\x7f\x07", b"\x15\x07\x50", b"\x3d\x07\xc0"


@pytest.mark.parametrize(
    ("maker", "product", "name", "descriptors", "speakers", "identity", "channels", "places"),
    [
        pytest.param(
            *(0x104D, 0x101E, b"SHARP HDMI", b"\x09\x07\x01", 0x01),
            *("shp-101e-sharp-hdmi", 2, "FL/FR"),
            id="tv",
        ),
        pytest.param(
            *(0x2F41, 0, b"SC-57\n       ", LPCM_2 + LPCM_8 + AC3 + DTS, 0x4F),
            *("pio-0000-sc-57", 8, "FL/FR LFE FC RL/RR RLC/RRC"),
            id="receiver-whose-second-lpcm-is-wider",
        ),
        pytest.param(
            *(0xEE11, 0x1C, b"DENON-AVAMP", LPCM_8 + 6 * AC3, 0x5F),
            *("don-001c-denon-avamp", 8, "FL/FR LFE FC RL/RR RC RLC/RRC"),
            id="receiver",
        ),
        pytest.param(
            *(0x6D1E, 1, b"LG TV", DTS + AC3 + LPCM_2, 0x01),
            *("gsm-0001-lg-tv", 2, "FL/FR"),
            id="tv-whose-lpcm-comes-last",
        ),
        pytest.param(*(0, 0, b"", LPCM_2, 0x01), *("", 2, "FL/FR"), id="neither-name-nor-maker"),
        pytest.param(
            *(0x6D1E, 1, b"TV", LPCM_2, 0x7E),
            *("gsm-0001-tv", 2, "LFE FC RL/RR RC FLC/FRC RLC/RRC"),
            id="tv-that-lists-no-front-speakers",
        ),
    ],
)
def test_what_the_kernels_text_says_of_monitors_is_said_of_their_blocks(
    maker: int,
    product: int,
    name: bytes,
    descriptors: bytes,
    speakers: int,
    identity: str,
    channels: int,
    places: str,
) -> None:
    """The kernel prints maker and product as numbers of two bytes, the lower one first."""
    eld = known(
        block(
            maker=maker.to_bytes(2, "little"),
            product=product.to_bytes(2, "little"),
            name=name,
            descriptors=descriptors,
            speakers=speakers,
        )
    )
    assert monitor_id(eld) == identity
    assert (eld.lpcm_channels, " ".join(eld.speakers)) == (channels, places)


def test_a_name_that_ends_with_a_line_feed_and_spaces_is_cleaned() -> None:
    """U53: NVIDIA leaves the EDID's padding in, and 59 zero bytes after the block."""
    eld = known(recorded("nvidia-samsung"))
    assert len(recorded("nvidia-samsung")) == 95
    assert (eld.manufacturer, eld.product, eld.name) == ("SAM", "0bb2", "SAMSUNG")
    assert eld.speakers == ("FL/FR",)


def test_a_monitor_without_name_and_maker_is_still_a_monitor() -> None:
    """U54: 24 bytes from a television that plays well."""
    eld = known(recorded("sharp-noname"))
    assert (eld.manufacturer, eld.product, eld.name) == ("", "", "")


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="no-bytes"),
        pytest.param(bytes(128), id="zeros-of-a-soc"),
        pytest.param(bytes(20), id="short-zeros"),
        pytest.param(recorded("lg-ultrawide")[:19], id="cut-in-the-fixed-part"),
        pytest.param(block(version=1), id="unknown-version"),
        pytest.param(block(version=3), id="unknown-later-version"),
    ],
)
def test_a_block_that_says_nothing_means_no_monitor(data: bytes) -> None:
    """U56: not an error, and no monitor."""
    assert decode(data) is None


def test_a_partial_block_of_version_31_is_read_too() -> None:
    assert known(block(version=31, name=b"TV")).version == 31


def test_speakers_have_the_kernels_names_in_its_order() -> None:
    assert known(block(speakers=0x5F)).speakers == (
        *("FL/FR", "LFE", "FC", "RL/RR", "RC"),
        "RLC/RRC",
    )


def test_the_first_lpcm_descriptor_need_not_come_first() -> None:
    """Recording D: DTS and AC-3 six channels, then LPCM two channels up to 192 kHz."""
    dts, ac3, lpcm = b"\x3d\x07\x00", b"\x15\x07\x00", b"\x09\x57\x07"
    eld = known(block(descriptors=dts + ac3 + lpcm))
    assert (eld.lpcm_channels, eld.lpcm_max_rate_hz) == (2, 192_000)


def test_of_several_lpcm_descriptors_the_widest_counts() -> None:
    """Recording B: stereo at high rates and deep samples, eight channels at low ones."""
    stereo, surround = b"\x09\x7f\x04", b"\x0f\x07\x01"
    eld = known(block(descriptors=stereo + surround))
    assert (eld.lpcm_channels, eld.lpcm_max_rate_hz) == (8, 192_000)
    assert eld.lpcm_bit_depths == (16, 24)


def test_without_lpcm_there_are_no_lpcm_facts() -> None:
    eld = known(block(descriptors=b"\x15\x07\x00"))
    assert (eld.lpcm_channels, eld.lpcm_max_rate_hz, eld.lpcm_bit_depths) == (0, 0, ())


def test_a_block_cut_in_the_name_keeps_what_is_there() -> None:
    eld = known(recorded("lg-ultrawide")[:22])
    assert (eld.name, eld.lpcm_channels) == ("LG", 0)


def test_a_block_cut_in_the_descriptors_keeps_the_whole_ones() -> None:
    eld = known(block(name=b"TV", descriptors=b"\x09\x07\x07\x0f\x07", descriptor_count=2))
    assert eld.lpcm_channels == 2


def test_a_name_longer_than_the_format_allows_is_not_trusted() -> None:
    eld = known(block(name=b"x" * 31, descriptors=b"\x09\x07\x07"))
    assert (eld.name, eld.lpcm_channels, eld.manufacturer) == ("", 0, "GSM")


def test_the_name_holds_no_control_letters_and_no_padding() -> None:
    assert known(block(name=b" SC\x01-57\n    ")).name == "SC -57"
    assert known(block(name=b"TV\0\0\0")).name == "TV"


def test_the_id_keeps_everything_but_case_and_spaces() -> None:
    """A display driver makes it by the same rule; a product code of zero is a code."""
    assert monitor_id(known(block(name=b"Mi  TV 4.3/x"))) == "gsm-5b09-mi-tv-4.3/x"
    pioneer = block(maker=b"\x41\x2f", product=b"\0\0", name=b"SC-57\n")
    assert monitor_id(known(pioneer)) == "pio-0000-sc-57"


def test_a_panel_without_a_name_has_the_id_of_its_model() -> None:
    assert monitor_id(known(block(maker=b"\x09\xe5", product=b"\x5f\x09"))) == "boe-095f"


@pytest.mark.parametrize("maker", [b"\0\0", b"\x7f\xff", b"\x04\x00"])
def test_a_maker_that_is_not_three_letters_gives_no_id(maker: bytes) -> None:
    eld = known(block(maker=maker, name=b"TV"))
    assert (eld.manufacturer, monitor_id(eld)) == ("", "")


def test_the_port_id_is_read_when_the_kernel_gives_one() -> None:
    assert known(block(port=b"\0\0\2\0\0\0\0\0")).port_id == 0x20000
    assert known(block(connection=1)).connection is Connection.DISPLAYPORT


@given(st.binary(max_size=300))
def test_no_bytes_at_all_make_it_raise(data: bytes) -> None:
    eld = decode(data)
    assert eld is None or monitor_id(eld).isprintable()


@given(st.binary(min_size=20, max_size=120), st.sampled_from([0x10, 0xF8]))
def test_any_block_of_a_known_version_is_a_monitor_with_facts_in_range(
    data: bytes, version: int
) -> None:
    eld = known(bytes([version]) + data[1:])
    assert 0 <= eld.lpcm_channels <= 8
    assert len(eld.manufacturer) in (0, 3)
    assert len(eld.name) <= 16
    assert eld.name == eld.name.strip()
    assert eld.name.isprintable()


@given(st.integers(min_value=0, max_value=200))
def test_zeros_after_the_block_change_nothing(count: int) -> None:
    for name in ("lg-ultrawide", "dell-u2415", "sharp-noname"):
        assert decode(recorded(name) + bytes(count)) == decode(recorded(name))
