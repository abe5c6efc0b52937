"""Virtual controls take what a kernel would take, and remember it."""

import errno
from dataclasses import replace

import pytest

from liken_audio.graph.model import Card, Control, ControlType
from liken_audio.virtual.mixer import Mixer
from tests.builders import card, control, usb_card

VOLUME = control("Master Playback Volume", type=ControlType.INTEGER, maximum=87, values=(87,))
SWITCH = control("Headphone Playback Switch", channels=2, values=(1, 1))


def with_controls(*controls: Control) -> Card:
    return card(controls=controls)


def values(cards: tuple[Card, ...]) -> list[tuple[int, ...] | None]:
    return [each.values for its in cards for each in its.controls]


def test_a_written_value_is_there_afterwards() -> None:
    mixer, cards = Mixer(), (with_controls(VOLUME, SWITCH), usb_card())
    mixer.write(cards, cards[0], VOLUME, [40])
    assert values(mixer.apply(cards)) == [(40,), (1, 1)]
    mixer.write(cards, cards[0], SWITCH, (0, 1))
    assert values(mixer.apply(cards)) == [(40,), (0, 1)]


def test_a_card_nobody_wrote_to_stays_the_same_object() -> None:
    mixer, cards = Mixer(), (with_controls(VOLUME), usb_card())
    mixer.write(cards, cards[0], VOLUME, [40])
    assert mixer.apply(cards)[1] is cards[1]
    mixer.write(cards, cards[0], VOLUME, [87])
    assert mixer.apply(cards)[0] is cards[0]


def test_an_older_record_of_the_control_names_it_too() -> None:
    mixer, cards = Mixer(), (with_controls(VOLUME),)
    mixer.write(cards, cards[0], VOLUME, [40])
    (changed,) = mixer.apply(cards)
    mixer.write(cards, changed, changed.controls[0], [41])
    assert values(mixer.apply(cards)) == [(41,)]


def test_an_index_tells_equal_names_apart() -> None:
    second = replace(VOLUME, index=1)
    mixer, cards = Mixer(), (with_controls(VOLUME, second),)
    mixer.write(cards, cards[0], second, [3])
    assert values(mixer.apply(cards)) == [(87,), (3,)]


def test_a_file_that_says_the_same_keeps_the_written_value() -> None:
    mixer, cards = Mixer(), (with_controls(VOLUME),)
    mixer.write(cards, cards[0], VOLUME, [40])
    assert values(mixer.apply((with_controls(VOLUME),))) == [(40,)]


def test_a_file_that_says_something_else_wins_for_good() -> None:
    mixer, cards = Mixer(), (with_controls(VOLUME),)
    mixer.write(cards, cards[0], VOLUME, [40])
    edited = (with_controls(replace(VOLUME, values=(50,))),)
    assert values(mixer.apply(edited)) == [(50,)]
    assert values(mixer.apply(cards)) == [(87,)]


def test_a_card_that_left_takes_its_written_values_along() -> None:
    mixer, cards = Mixer(), (with_controls(VOLUME),)
    mixer.write(cards, cards[0], VOLUME, [40])
    mixer.apply(())
    assert values(mixer.apply(cards)) == [(87,)]


@pytest.mark.parametrize(
    ("changes", "written", "number"),
    [
        pytest.param({"is_writable": False}, [1], errno.EPERM, id="read-only"),
        pytest.param({"is_inactive": True}, [1], errno.EPERM, id="inactive"),
        pytest.param({"is_locked": True}, [1], errno.EBUSY, id="locked"),
        pytest.param({}, [1, 1], errno.EINVAL, id="too-many-values"),
        pytest.param({}, [], errno.EINVAL, id="no-value"),
        pytest.param({}, [88], errno.EINVAL, id="above-the-range"),
        pytest.param({}, [-1], errno.EINVAL, id="below-the-range"),
    ],
)
def test_what_the_kernel_refuses_is_refused_with_its_errno(
    changes: dict[str, bool], written: list[int], number: int
) -> None:
    """U51."""
    target = replace(VOLUME, **changes)
    mixer, cards = Mixer(), (with_controls(target),)
    with pytest.raises(OSError, match="Master Playback Volume") as caught:
        mixer.write(cards, cards[0], target, written)
    assert caught.value.errno == number
    assert values(mixer.apply(cards)) == [(87,)]


def test_an_unknown_control_or_card_is_refused() -> None:
    mixer, cards = Mixer(), (with_controls(VOLUME),)
    for its_card, target in ((cards[0], SWITCH), (usb_card(), VOLUME)):
        with pytest.raises(FileNotFoundError, match="no control"):
            mixer.write(cards, its_card, target, [1])
