"""Comparing a stored status with the wanted one."""

from typing import Any

import pytest

from liken_audio.resources.drift import covers, has_more, without_times


def condition(kind: str, status: str = "True", time: str = "t1") -> dict[str, Any]:
    return {"type": kind, "status": status, "lastTransitionTime": time}


def test_fields_of_other_managers_make_no_difference() -> None:
    stored = {"node": "a", "theirs": 1, "conditions": [condition("Ready"), condition("Theirs")]}
    assert covers(stored, {"node": "a", "conditions": [condition("Ready")]})


@pytest.mark.parametrize(
    "stored",
    [
        pytest.param({}, id="nothing-stored"),
        pytest.param({"node": "b", "conditions": [condition("Ready")]}, id="another-value"),
        pytest.param({"node": "a", "conditions": []}, id="a-condition-missing"),
        pytest.param({"node": "a", "conditions": "broken"}, id="no-list"),
        pytest.param({"node": "a", "conditions": [condition("Ready", "False")]}, id="its-status"),
        pytest.param({"node": "a", "conditions": [condition("Ready", time="t2")]}, id="its-time"),
    ],
)
def test_what_differs_in_ours_is_a_difference(stored: dict[str, Any]) -> None:
    assert not covers(stored, {"node": "a", "conditions": [condition("Ready")]})


def test_other_lists_are_equal_or_not() -> None:
    assert not covers({"positions": ["FL", "FR", "LFE"]}, {"positions": ["FL", "FR"]})


def test_a_field_that_is_no_longer_wanted_is_seen() -> None:
    assert has_more({"claimedBy": "a/b", "node": "a"}, {"node": "a"})
    assert has_more({"observed": {"volume": 1, "mute": True}}, {"observed": {"volume": 1}})
    assert not has_more({"node": "a"}, {"node": "b", "claimedBy": "a/b"})


def test_an_entry_of_a_keyed_list_that_is_no_longer_wanted_is_seen() -> None:
    claims = [{"uid": "1"}, {"uid": "2"}]
    assert has_more({"claims": claims}, {"claims": claims[:1]})
    assert not has_more({"claims": claims[:1]}, {"claims": claims})


def test_times_are_left_out_of_what_changes() -> None:
    one = {"node": "a", "conditions": [condition("Ready", time="t1")]}
    other = {"node": "a", "conditions": [condition("Ready", time="t2")]}
    assert without_times(one) == without_times(other)
    assert one["conditions"][0]["lastTransitionTime"] == "t1"
