"""The bus's facts are told apart by their type alone."""

from liken_audio.bluez.facts import Added, Owner, Removed


def test_facts_with_the_same_content_are_equal_and_of_other_kinds_are_not() -> None:
    assert Owner(":1.5") == Owner(":1.5")
    assert Added("/a", {}) != Removed("/a", [])
