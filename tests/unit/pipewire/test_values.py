"""Values as pw-dump prints them."""

import pytest

from liken_audio.pipewire.values import first, integer, linear_volumes, object_of


@pytest.mark.parametrize(
    ("value", "number"), [(7, 7), ("7", 7), (-7, 0), (None, 0), ("9" * 20, 0), (7.0, 7)]
)
def test_a_number_that_counts_something(value: object, number: int) -> None:
    assert integer({"n": value}, "n") == number


@pytest.mark.parametrize("value", [None, [], "x", [1], {"Props": 1}])
def test_what_is_not_there_is_empty(value: object) -> None:
    assert first({"Props": value}, "Props") == {}
    assert object_of({"Props": [value]}, "Props") == {}


@pytest.mark.parametrize("value", [None, "x", [1.0, True], [-0.1], [float("nan")], [0.5, None]])
def test_one_value_that_is_no_volume_makes_none(value: object) -> None:
    assert linear_volumes(value) == ()


def test_volumes_are_as_they_are_stored() -> None:
    assert linear_volumes([0, 0.125, 1.953125]) == (0.0, 0.125, 1.953125)
