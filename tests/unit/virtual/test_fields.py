"""Values of the right type, or an error that says where and what would be right."""

import re
from collections.abc import Callable

import pytest

from liken_audio.virtual.fields import Fields, VirtualCardsError, shown

KEYS = ("name", "index", "plugged", "values")


def fields(**values: object) -> Fields:
    return Fields(values, "cards[0].jacks[1]", KEYS)


def complaint(call: Callable[[], object]) -> str:
    with pytest.raises(VirtualCardsError) as caught:
        call()
    return str(caught.value)


def test_values_come_out_with_their_types() -> None:
    made = fields(name="Mic", index=1, plugged=False, values=[1])
    assert made.text("name") == "Mic"
    assert made.integer("index") == 1
    assert made.boolean("plugged", default=True) is False
    assert made.items("values") == [1]
    assert made.number("index") == 1.0


def test_an_absent_key_and_null_give_the_default() -> None:
    for made in (fields(), fields(name=None, index=None, plugged=None, values=None)):
        assert not made.has("name")
        assert made.text("name", "x") == "x"
        assert made.integer("index", 7) == 7
        assert made.boolean("plugged", default=True) is True
        assert made.items("values") == []
        assert made.number("index") is None


def test_a_missing_key_is_named_with_its_place() -> None:
    assert complaint(lambda: fields().text("name")) == "cards[0].jacks[1].name: is missing"
    assert complaint(lambda: fields().require("values")) == "cards[0].jacks[1].values: is missing"


def test_an_unknown_key_is_refused_with_the_closest_and_all_known() -> None:
    assert complaint(lambda: fields(pluged=True)) == (
        "cards[0].jacks[1].pluged: unknown key; "
        "did you mean 'plugged'? Known: name, index, plugged, values"
    )
    assert "did you mean" not in complaint(lambda: fields(zzz=1))


def test_a_key_that_is_no_text_is_refused() -> None:
    assert "jacks[1].True: unknown key" in complaint(
        lambda: Fields({True: 1}, "cards[0].jacks[1]", KEYS)
    )


@pytest.mark.parametrize("value", [None, [], "text", 3])
def test_what_is_no_mapping_is_refused_with_the_keys_of_one(value: object) -> None:
    message = complaint(lambda: Fields(value, "", KEYS))
    assert message.startswith("top level: must be a mapping with the keys name, index")


@pytest.mark.parametrize(
    ("value", "kind"),
    [(12, "an integer"), (True, "a boolean"), (1.5, "a number"), ([], "a list"), ({}, "a mapping")],
)
def test_text_is_never_guessed_from_another_type(value: object, kind: str) -> None:
    message = complaint(lambda: fields(name=value).text("name"))
    assert f"must be text, not {kind}" in message
    assert ("write it in quotes" in message) == isinstance(value, int | float)


@pytest.mark.parametrize("value", ["1", True, 1.0, []])
def test_an_integer_is_nothing_else(value: object) -> None:
    assert "must be an integer, not" in complaint(lambda: fields(index=value).integer("index"))


def test_an_integer_has_bounds() -> None:
    made = fields(index=32)
    assert made.integer("index", low=0, high=32) == 32
    assert complaint(lambda: made.integer("index", low=0, high=31)).endswith(
        "must be from 0 to 31, not 32"
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e9])
def test_a_number_is_finite_and_sane(value: float) -> None:
    assert "must be from" in complaint(lambda: fields(index=value).number("index"))
    assert "must be a number" in complaint(lambda: fields(index="1").number("index"))


@pytest.mark.parametrize("value", ["yes", 0, 1])
def test_a_boolean_is_nothing_else(value: object) -> None:
    assert "must be true or false" in complaint(
        lambda: fields(plugged=value).boolean("plugged", default=True)
    )


def test_a_choice_is_one_of_the_words() -> None:
    words = ("playback", "capture")
    assert fields(name="capture").choice("name", words) == "capture"
    assert fields().choice("name", words, "playback") == "playback"
    assert "did you mean 'capture'? Known: playback, capture" in complaint(
        lambda: fields(name="Capure").choice("name", words)
    )
    assert "not" not in complaint(lambda: fields(name=[]).choice("name", words)).split(";")[1]


def test_text_of_a_form_is_shown_an_example() -> None:
    form = re.compile("[0-9]+")
    assert fields(name="12").matching("name", form, "digits") == "12"
    assert complaint(lambda: fields(name="x").matching("name", form, "digits")).endswith(
        "must be digits, not 'x'"
    )


def test_lists_hold_text_or_mappings_as_asked() -> None:
    assert fields(values=["a", "b"]).texts("values") == ("a", "b")
    assert "values[1]: must be text, not an integer" in complaint(
        lambda: fields(values=["a", 2]).texts("values")
    )
    assert "must be a list, not text" in complaint(lambda: fields(values="a").items("values"))
    (child,) = fields(values=[{"index": 3}]).children("values", ("index",))
    assert child.integer("index") == 3
    assert child.at("index") == "cards[0].jacks[1].values[0].index"
    assert fields(name={"index": 3}).child("name", ("index",)).integer("index") == 3


def test_a_long_value_is_not_shown_whole() -> None:
    assert shown({"a": [1] * 1000}) == "a mapping"
    assert shown("a") == "'a'"
