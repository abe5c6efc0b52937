"""How long a card that has gone still counts as one that is unplugged."""

import pytest

from liken_audio.alsa.absence import USB_GRACE_SECONDS, absent, still_away
from liken_audio.graph.model import Card
from tests.builders import card, pcm, usb_card, usb_identity

FOLDER = "/sys/devices/x"


def names_away(gone: Card, *present: Card, folders: frozenset[str] = frozenset(), now: float = 1.0):
    return [one.card.id for one in still_away([absent(gone, FOLDER, 0.0)], present, folders, now)]


def test_a_card_that_is_away_is_not_present() -> None:
    gone = usb_card(pcm())
    assert absent(gone, FOLDER, 5.0).card.is_present is False


def test_a_usb_card_counts_for_its_grace_whatever_is_in_the_machine() -> None:
    gone = usb_card(pcm(), id="DAC")
    assert names_away(gone, now=USB_GRACE_SECONDS - 1) == ["DAC"]
    assert names_away(gone, now=USB_GRACE_SECONDS) == []


def test_another_card_counts_while_its_device_is_in_the_machine() -> None:
    gone = card(pcm(), id="PCH")
    assert names_away(gone, folders=frozenset({FOLDER}), now=10 * USB_GRACE_SECONDS) == ["PCH"]
    assert names_away(gone) == []


SERIAL = usb_identity(serial="A4F1-77", port="1-1")
NONE = usb_identity(serial="", port="1-1")
BACK = {
    "the same unit on the same port": (SERIAL, SERIAL, True),
    "the same unit on another port": (SERIAL, usb_identity(serial="A4F1-77", port="2-4"), True),
    "another unit of the model": (SERIAL, usb_identity(serial="B0B0-12", port="1-1"), False),
    "no serial, the same port": (NONE, NONE, True),
    "no serial, another port": (NONE, usb_identity(serial="", port="2-4"), False),
    "a counter is no serial": (
        usb_identity(serial="0123456789AB", port="1-1"),
        usb_identity(serial="0123456789AB", port="2-4"),
        False,
    ),
}


@pytest.mark.parametrize(("gone", "came", "is_back"), BACK.values(), ids=BACK)
def test_a_usb_card_is_back_when_the_same_unit_is(gone, came, is_back: bool) -> None:
    away = names_away(
        usb_card(pcm(), usb=gone, id="DAC"), usb_card(pcm(), usb=came, id="DAC_1", number=7)
    )
    assert away == ([] if is_back else ["DAC"])


def test_a_card_of_another_bus_is_back_at_its_place_under_any_number() -> None:
    gone, back = card(pcm(), id="PCH", number=0), card(pcm(), id="PCH_1", number=3)
    assert names_away(gone, back, folders=frozenset({FOLDER})) == []


def test_one_of_two_cards_on_one_device_is_not_the_other() -> None:
    gone, other = card(pcm(id="Speaker"), id="A"), card(pcm(id="DMIC"), id="B")
    assert names_away(gone, other, folders=frozenset({FOLDER})) == ["A"]
