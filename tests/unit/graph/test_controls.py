"""Which kernel control belongs to which endpoint."""

import pytest

from liken_audio.graph.controls import controls_of
from liken_audio.graph.model import Card, Connection, Control
from tests.builders import card, control, hdmi_pcm, microphone_pcm, pcm, usb_card

ANALOG, HDMI, USB, SPDIF = Connection.ANALOG, Connection.HDMI, Connection.USB, Connection.SPDIF

DIGITAL = pcm(id="ALC892 Digital", device=1)


def owned(its_card: Card, *connections: Connection) -> list[list[tuple[str, int]]]:
    return [
        [(each.name, each.index) for each in controls]
        for controls in controls_of(its_card, connections)
    ]


def laptop(*names: str) -> Card:
    """Return a card with an output, a screen, an S/PDIF output and an input."""
    pcms = (pcm(), hdmi_pcm(), DIGITAL, microphone_pcm())
    return card(*pcms, controls=tuple(map(control, names)))


@pytest.mark.parametrize(
    ("name", "owner"),
    [
        ("Master Playback Volume", "sink"),
        ("Headphone Playback Switch", "sink"),
        ("Mic Playback Volume", "sink"),
        ("Auto-Mute Mode", "sink"),
        ("Loudness", "sink"),
        ("MISSION USB Audio 2.0 ", "sink"),
        ("Call DTM #", "sink"),
        ("Channel Mode", "sink"),
        ("Bass Boost", "sink"),
        ("Capture Volume", "source"),
        ("Capture Switch", "source"),
        ("Capture Source", "source"),
        ("Input Source", "source"),
        ("Mic Boost Volume", "source"),
        ("Front Mic Boost Volume", "source"),
        ("Mic Boost (+20dB)", "source"),
        ("Mic1-Boost (30dB)", "source"),
        ("Digital Capture Volume", "source"),
        ("HDMI/DP,pcm=3 Jack", "nobody"),
        ("Mic Jack", "nobody"),
    ],
)
def test_the_name_says_whose_a_control_is(name: str, owner: str) -> None:
    sink, screen, digital, source = owned(laptop(name), ANALOG, HDMI, SPDIF, ANALOG)
    assert (screen, digital) == ([], [])
    assert bool(sink) == (owner == "sink")
    assert bool(source) == (owner == "source")


def iec958(*indices: int) -> tuple[Control, ...]:
    return tuple(control("IEC958 Playback Switch", index=index) for index in indices)


def test_the_nth_iec958_switch_is_the_nth_screens() -> None:
    """Recording: an Intel card with three slots; the list of PCMs need not be in order."""
    its_card = card(hdmi_pcm(1), hdmi_pcm(0), hdmi_pcm(2), controls=iec958(0, 1, 2))
    assert owned(its_card, HDMI, Connection.DISPLAYPORT, HDMI) == [
        [("IEC958 Playback Switch", 1)],
        [("IEC958 Playback Switch", 0)],
        [("IEC958 Playback Switch", 2)],
    ]


def test_index_16_and_up_is_the_spdif_output() -> None:
    its_card = card(pcm(), DIGITAL, hdmi_pcm(), controls=iec958(0, 16))
    assert owned(its_card, ANALOG, SPDIF, HDMI) == [
        [],
        [("IEC958 Playback Switch", 16)],
        [("IEC958 Playback Switch", 0)],
    ]


def test_without_screens_the_switch_is_the_spdif_outputs() -> None:
    its_card = card(pcm(), DIGITAL, controls=iec958(0))
    assert owned(its_card, ANALOG, SPDIF) == [[], [("IEC958 Playback Switch", 0)]]


def test_a_switch_of_a_screen_that_has_no_pcm_is_nobodys() -> None:
    assert owned(card(pcm(), hdmi_pcm(), controls=iec958(1)), ANALOG, HDMI) == [[], []]


def test_the_capture_side_of_spdif_goes_to_the_digital_input() -> None:
    digital_in = microphone_pcm(id="ALC892 Digital", device=1)
    names = ("IEC958 Capture Switch", "Capture Volume")
    its_card = card(microphone_pcm(), digital_in, controls=tuple(map(control, names)))
    assert owned(its_card, ANALOG, SPDIF) == [
        [("Capture Volume", 0)],
        [("IEC958 Capture Switch", 0)],
    ]


def test_no_control_is_lost_on_a_card_with_one_kind_of_pcm() -> None:
    screens = card(hdmi_pcm(), controls=(control("Master Playback Volume"),))
    assert owned(screens, HDMI) == [[("Master Playback Volume", 0)]]
    microphone = usb_card(microphone_pcm(), controls=(control("Mic Playback Volume"), control("X")))
    assert owned(microphone, USB) == [[("Mic Playback Volume", 0), ("X", 0)]]
    speaker = usb_card(pcm(), controls=(control("Capture Volume"),))
    assert owned(speaker, USB) == [[("Capture Volume", 0)]]


def test_several_outputs_share_the_cards_controls() -> None:
    its_card = card(
        pcm(), pcm(id="Alt Analog", device=2), controls=(control("Master Playback Volume"),)
    )
    assert owned(its_card, ANALOG, ANALOG) == [[("Master Playback Volume", 0)]] * 2


def test_equal_names_and_odd_names_stay_as_they_are_and_in_order() -> None:
    """Recording: two raw `Master Playback Volume` with index 0, and a trailing space."""
    names = ["Master Playback Volume", "Master Playback Volume", "D10s ", "E30 "]
    its_card = card(pcm(), controls=tuple(map(control, names)))
    assert owned(its_card, ANALOG) == [[(name, 0) for name in names]]


def test_a_card_without_pcms_owns_nothing() -> None:
    none = card(controls=(control("Master Playback Volume"),))
    assert controls_of(none, [ANALOG])[0]
    assert (
        controls_of(
            Card(number=none.number, id="X", bus="pci", path="x", controls=none.controls), []
        )
        == []
    )
