"""Which jack proves that something is plugged in, and which proves nothing."""

import pytest

from liken_audio.graph.jacks import jacks_of
from liken_audio.graph.model import Card, Connection, Direction, Jack
from tests.builders import card, control, hdmi_pcm, jack, microphone_pcm, pcm


def proofs(its_card: Card, *connections: Connection) -> list[tuple[str, int, bool] | None]:
    """Return name, index and state of each PCM's proving jack."""
    found = jacks_of(its_card, connections)
    return [(each.name, each.index, each.is_plugged) if each else None for each in found]


ANALOG, HDMI, USB, SPDIF = Connection.ANALOG, Connection.HDMI, Connection.USB, Connection.SPDIF

DESKTOP_BOARD = (
    jack("Line Out CLFE Jack", is_plugged=False),
    jack("Line Out Front Jack", is_plugged=False),
    jack("Line Out Surround Phantom Jack"),
    jack("Line Phantom Jack"),
    jack("Mic Jack"),
    jack("Mic Jack", index=1, is_plugged=False),
    jack("SPDIF In Phantom Jack"),
    jack("SPDIF Phantom Jack"),
    jack("SPDIF Phantom Jack", index=1),
)
"""A board's jacks as the kernel showed them with the second microphone pulled."""


def test_a_phantom_jack_gives_no_evidence() -> None:
    """U47: one output is wired without sensing, so no plug proves that nothing is heard."""
    board = card(pcm(), jacks=DESKTOP_BOARD)
    assert proofs(board, ANALOG) == [None]
    assert proofs(card(pcm(), jacks=(jack("Speaker Phantom Jack"),)), ANALOG) == [None]


def test_an_unplugged_second_microphone_leaves_the_first_alone() -> None:
    """U47: the two share one capture PCM; one that is in is enough."""
    board = card(microphone_pcm(), jacks=DESKTOP_BOARD)
    assert proofs(board, ANALOG) == [("Mic Jack", 0, True)]


def test_with_several_inputs_each_has_the_jacks_of_its_own_index() -> None:
    """U47: `Mic Jack` index 1 affects its own input only."""
    inputs = [microphone_pcm(), microphone_pcm(id="ALC892 Alt Analog", device=2)]
    jacks = (jack("Mic Jack"), jack("Mic Jack", index=1, is_plugged=False))
    assert proofs(card(*inputs, jacks=jacks), ANALOG, ANALOG) == [
        ("Mic Jack", 0, True),
        ("Mic Jack", 1, False),
    ]


def test_a_jack_never_speaks_for_the_other_direction() -> None:
    both = card(pcm(), microphone_pcm(), jacks=(jack("Headphone Jack", is_plugged=False),))
    assert proofs(both, ANALOG, ANALOG) == [("Headphone Jack", 0, False), None]


@pytest.mark.parametrize(
    ("name", "playback", "capture"),
    [
        ("Headphone Jack", True, False),
        ("Line Out Jack", True, False),
        ("Line Out Front Jack", True, False),
        ("Dock Line Out Jack", True, False),
        ("Speaker Jack", True, False),
        ("Headphone - Output Jack", True, False),
        ("Headset Jack", True, True),
        ("Headset Mic Jack", False, True),
        ("Headphone Mic Jack", True, True),
        ("Mic Jack", False, True),
        ("Front Mic Jack", False, True),
        ("Line Jack", False, True),
        ("Mic - Input Jack", False, True),
        ("SPDIF Jack", False, False),
        ("HDMI/DP,pcm=3 Jack", False, False),
        ("Unheard Of Jack", False, False),
    ],
)
def test_the_name_tells_the_direction(name: str, playback: bool, capture: bool) -> None:
    both = card(pcm(), microphone_pcm(), jacks=(jack(name),))
    found = [proof is not None for proof in proofs(both, ANALOG, ANALOG)]
    assert found == [playback, capture]


def test_of_several_outputs_one_that_is_in_is_enough() -> None:
    out, plugged = jack("Line Out Jack", is_plugged=False), jack("Headphone Jack")
    assert proofs(card(jacks=(out, plugged)), ANALOG) == [("Headphone Jack", 0, True)]


def test_all_outputs_out_is_unplugged() -> None:
    jacks = (jack("Line Out Jack", is_plugged=False), jack("Headphone Jack", is_plugged=False))
    assert proofs(card(jacks=jacks), USB) == [("Line Out Jack", 0, False)]


def test_a_built_in_speaker_plays_with_every_plug_out() -> None:
    out = (jack("Headphone Jack", is_plugged=False),)
    speaker = (control("Speaker Playback Switch"),)
    assert proofs(card(jacks=out, controls=speaker), ANALOG) == [None]
    microphone = (control("Internal Mic Boost Volume"),)
    mic_out = (jack("Mic Jack", is_plugged=False),)
    its_card = card(microphone_pcm(), jacks=mic_out, controls=microphone)
    assert proofs(its_card, ANALOG) == [None]


def test_a_speaker_that_has_a_jack_is_not_built_in() -> None:
    jacks = (jack("Speaker Jack", is_plugged=False),)
    its_card = card(jacks=jacks, controls=(control("Speaker Playback Switch"),))
    assert proofs(its_card, USB) == [("Speaker Jack", 0, False)]


@pytest.mark.parametrize("comma", [",", ", "])
def test_a_screen_jack_names_its_pcm_with_or_without_a_space(comma: str) -> None:
    """U47: snd-hda and SOF differ in one space."""
    screens = card(
        hdmi_pcm(0),
        hdmi_pcm(1, device=18),
        jacks=(
            jack(f"HDMI/DP{comma}pcm=3 Jack", is_plugged=False),
            jack(f"HDMI/DP{comma}pcm=18 Jack"),
        ),
    )
    found = jacks_of(screens, [HDMI, HDMI])
    assert [each and each.is_plugged for each in found] == [False, True]


def test_a_screen_jack_of_pcm_10_is_not_that_of_pcm_1() -> None:
    its_card = card(hdmi_pcm(0, device=1), jacks=(jack("HDMI/DP,pcm=10 Jack"),))
    assert proofs(its_card, HDMI) == [None]


def test_screen_jacks_that_are_counted_in_their_names_go_by_order() -> None:
    jacks = (jack("DP0 Jack", is_plugged=False), jack("DP1 Jack"))
    its_card = card(hdmi_pcm(0), hdmi_pcm(1), jacks=jacks)
    assert proofs(its_card, HDMI, HDMI) == [("DP0 Jack", 0, False), ("DP1 Jack", 0, True)]


def test_screen_jacks_without_a_number_go_by_order() -> None:
    """U47: others say just `DP Jack`."""
    jacks = (jack("HDMI Jack", is_plugged=False), jack("DP Jack"))
    its_card = card(hdmi_pcm(1), hdmi_pcm(0), jacks=jacks)
    assert proofs(its_card, HDMI, Connection.DISPLAYPORT) == [
        ("DP Jack", 0, True),
        ("HDMI Jack", 0, False),
    ]


def test_nothing_senses_spdif_or_an_hdmi_input() -> None:
    digital = pcm(id="ALC892 Digital", device=1)
    hdmi_in = pcm(id="HDMI In", direction=Direction.CAPTURE)
    its_card = card(digital, hdmi_in, jacks=(*DESKTOP_BOARD, jack("HDMI Jack")))
    assert proofs(its_card, SPDIF, HDMI) == [None, None]


def test_a_card_without_jacks_proves_nothing() -> None:
    none: tuple[Jack, ...] = ()
    assert proofs(card(pcm(), hdmi_pcm(), jacks=none), ANALOG, HDMI) == [None, None]
