"""Quantities by value."""

from fractions import Fraction

import pytest

from liken_audio.dra.quantities import parse


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1024Mi", "1Gi"),
        ("1Ki", "1024"),
        ("1000m", "1"),
        ("0.5", "500m"),
        ("1e3", "1k"),
        ("1E3", "1000"),
        ("1E", "1000P"),
        ("2Ei", "2048Pi"),
        ("1500u", "1.5m"),
        (64, "64"),
        ("-1", "-1000m"),
        (".5", "0.5"),
        ("5.", "5"),
    ],
)
def test_equal_values_in_any_spelling_are_equal(one: object, other: object) -> None:
    assert parse(one) == parse(other) is not None


def test_a_thousand_is_not_1024() -> None:
    assert parse("1k") == Fraction(1000)
    assert parse("1Ki") == Fraction(1024)


@pytest.mark.parametrize("text", ["", "many", "1 Gi", "1GiB", "0x10", "1e", None, "1e9999"])
def test_what_is_no_quantity_has_no_value(text: object) -> None:
    assert parse(text) is None
