"""Channels, rate and recipe of each PCM follow what the card and its monitor say."""

import dataclasses

import pytest

from liken_audio.alsa import cards, reader
from liken_audio.alsa.elements import ChannelMaps, EldBlock, Element
from liken_audio.alsa.kernel import CardInfo, HardwareRange, PcmInfo
from liken_audio.alsa.reader import Reading
from liken_audio.alsa.sysfs import Place
from liken_audio.graph.model import Direction, Pcm
from tests.builders import HDMI_ELD

PLACE = Place(1, "/sys/devices/pci0000:00/0000:00:1f.3", "pci", "0000:00:1f.3")
STEREO = ("FL", "FR")
QUAD = ("FL", "FR", "RL", "RR")
SURROUND = ("FL", "FR", "RL", "RR", "FC", "LFE")
WIDE = ("UNK",) * 10


def pcm_info(device: int = 0, direction: Direction = Direction.PLAYBACK) -> PcmInfo:
    return PcmInfo(
        device=device, direction=direction, id="X", name="X", is_for_sound=True, free_subdevices=1
    )


def reading(*found: Element, hardware: HardwareRange | None = None, device: int = 0) -> Reading:
    info = CardInfo(number=1, id="PCH", driver="HDA-Intel", name="HDA Intel PCH", long_name="")
    pcms = (reader.Pcm(pcm_info(device), hardware),)
    return Reading(info, pcms, dict(enumerate(found)))


def only_pcm(read: Reading, before: Pcm | None = None) -> Pcm:
    known = None if before is None else dataclasses.replace(cards.card(PLACE, read), pcms=(before,))
    (pcm,) = cards.card(PLACE, read, known).pcms
    return pcm


def properties(pcm: Pcm) -> dict[str, str]:
    return dict(pcm.recipe.properties)


MAPS = {
    "stereo": ((STEREO,), 2, "[ FL FR ]"),
    "the widest": ((STEREO, QUAD, SURROUND), 6, "[ FL FR RL RR FC LFE ]"),
    "the widest of up to eight": ((STEREO, WIDE), 2, "[ FL FR ]"),
    "none of up to eight": ((WIDE,), 10, None),
    "mono": ((("MONO",),), 1, "[ MONO ]"),
    "unnamed": ((("UNK", "UNK"),), 2, None),
    "named twice": ((("FL", "FL"),), 2, None),
    "of no channel": (((),), 1, None),
}


@pytest.mark.parametrize(("maps", "channels", "positions"), MAPS.values(), ids=MAPS)
def test_channels_are_those_of_the_widest_map(
    maps: tuple[tuple[str, ...], ...], channels: int, positions: str | None
) -> None:
    pcm = only_pcm(reading(ChannelMaps(0, Direction.PLAYBACK, maps)))
    assert pcm.channels == channels
    assert properties(pcm).get("audio.position") == positions
    assert pcm.is_form_known


RANGES = {
    "any": (HardwareRange(1, 32, 8_000, 192_000), 2, 48_000),
    "a mono microphone": (HardwareRange(1, 1, 16_000, 16_000), 1, 16_000),
    "always ten channels": (HardwareRange(10, 10, 44_100, 96_000), 10, 48_000),
    "fast only": (HardwareRange(2, 2, 96_000, 192_000), 2, 96_000),
    "nothing": (HardwareRange(0, 0, 0, 0), 1, 48_000),
}


@pytest.mark.parametrize(("hardware", "channels", "rate_hz"), RANGES.values(), ids=RANGES)
def test_without_a_map_it_is_stereo_at_48_khz_or_what_is_nearest(
    hardware: HardwareRange, channels: int, rate_hz: int
) -> None:
    pcm = only_pcm(reading(hardware=hardware))
    assert (pcm.channels, pcm.rate_hz, pcm.is_form_known) == (channels, rate_hz, True)


def test_a_rate_is_declared_only_where_it_isnt_the_usual_one() -> None:
    assert "audio.rate" not in properties(only_pcm(reading()))
    odd = HardwareRange(2, 2, 44_100, 44_100)
    assert properties(only_pcm(reading(hardware=odd)))["audio.rate"] == "44100"


def test_the_map_of_the_other_direction_or_another_pcm_doesnt_count() -> None:
    pcm = only_pcm(
        reading(
            ChannelMaps(0, Direction.CAPTURE, (QUAD,)), ChannelMaps(1, Direction.PLAYBACK, (QUAD,))
        )
    )
    assert (pcm.channels, pcm.is_form_known) == (2, False)


def eld(*, channels: int, rates: int = 7) -> bytes:
    """Return the builders' monitor with another LPCM descriptor."""
    start = 20 + (HDMI_ELD[4] & 31)
    changed = bytearray(HDMI_ELD)
    changed[start : start + 3] = bytes([1 << 3 | channels - 1, rates, 7])
    return bytes(changed)


EIGHT = ChannelMaps(3, Direction.PLAYBACK, (STEREO, QUAD, SURROUND, (*SURROUND, "RLC", "RRC")))


@pytest.mark.parametrize(
    ("taken", "channels"), [(1, 2), (2, 2), (3, 2), (5, 4), (6, 6), (7, 6), (8, 8)]
)
def test_a_screens_pcm_has_an_even_number_of_the_monitors_channels(
    taken: int, channels: int
) -> None:
    pcm = only_pcm(reading(EldBlock(3, eld(channels=taken)), EIGHT, device=3))
    assert (pcm.channels, pcm.is_form_known) == (channels, True)
    assert "audio.position" not in properties(pcm)


def test_a_screens_pcm_has_no_more_channels_than_the_card() -> None:
    narrow = ChannelMaps(3, Direction.PLAYBACK, (STEREO,))
    assert only_pcm(reading(EldBlock(3, eld(channels=8)), narrow, device=3)).channels == 2


def test_a_monitor_that_takes_less_than_48_khz_is_given_what_it_takes() -> None:
    pcm = only_pcm(reading(EldBlock(3, eld(channels=2, rates=0b11)), EIGHT, device=3))
    assert properties(pcm)["audio.rate"] == "44100"


def test_a_screen_that_sleeps_keeps_its_recipe() -> None:
    awake = only_pcm(reading(EldBlock(3, eld(channels=6)), EIGHT, device=3))
    asleep = only_pcm(reading(EldBlock(3, b""), EIGHT, device=3), before=awake)
    assert asleep == dataclasses.replace(awake, eld=b"")
    assert asleep.channels == 6


def test_a_screen_that_sleeps_from_the_start_is_of_unknown_form() -> None:
    pcm = only_pcm(reading(EldBlock(3, bytes(128)), EIGHT, device=3))
    assert (pcm.channels, pcm.is_form_known) == (2, False)


def test_another_monitor_makes_another_recipe() -> None:
    tv = only_pcm(reading(EldBlock(3, eld(channels=2)), EIGHT, device=3))
    receiver = only_pcm(reading(EldBlock(3, eld(channels=8)), EIGHT, device=3), before=tv)
    assert (tv.channels, receiver.channels) == (2, 8)


def test_a_pcm_that_is_busy_keeps_the_form_that_it_told() -> None:
    told = only_pcm(reading(hardware=HardwareRange(4, 4, 96_000, 96_000)))
    assert only_pcm(reading(), before=told) == told


def test_another_pcm_in_the_place_of_one_starts_anew() -> None:
    told = dataclasses.replace(only_pcm(reading(hardware=HardwareRange(4, 4, 8, 8))), id="Other")
    assert only_pcm(reading(), before=told).channels == 2


def test_an_eld_of_a_capture_pcms_number_isnt_its_own() -> None:
    info = CardInfo(number=1, id="PCH", driver="", name="", long_name="")
    pcms = (reader.Pcm(pcm_info(3, Direction.CAPTURE)),)
    (pcm,) = cards.card(PLACE, Reading(info, pcms, {0: EldBlock(3, HDMI_ELD)})).pcms
    assert pcm.eld is None


def test_the_recipe_names_factory_and_pcm() -> None:
    pcm = only_pcm(reading(device=7))
    assert pcm.recipe.factory == "api.alsa.pcm.sink"
    assert properties(pcm)["api.alsa.path"] == "hw:1,7"


def test_the_card_has_its_facts_and_place() -> None:
    card = cards.card(PLACE, reading())
    assert (card.number, card.id, card.driver, card.name) == (
        1,
        "PCH",
        "HDA-Intel",
        "HDA Intel PCH",
    )
    assert (card.bus, card.path, card.is_present) == ("pci", "0000:00:1f.3", True)


def test_a_recipe_leads_back_to_the_file_of_its_pcm() -> None:
    playback = only_pcm(reading(device=7)).recipe
    assert playback is not None
    assert cards.pcm_file(playback) == "pcmC1D7p"
    capture = dataclasses.replace(playback, factory="api.alsa.pcm.source")
    assert cards.pcm_file(capture) == "pcmC1D7c"
    assert cards.pcm_file(dataclasses.replace(playback, properties=())) is None
