"""What is remembered of one object, and what its status should be."""

from datetime import UTC, datetime
from typing import Any

from liken_audio.api import NODE_LABEL, Json
from liken_audio.controllers.tracked import GONE_SECONDS, Tracked, is_labelled, status_of
from liken_audio.resources.drift import without_times
from liken_audio.resources.reconcile import reconcile
from liken_audio.resources.situation import Memory, Situation
from liken_audio.resources.v1alpha1 import Spec
from tests.builders import endpoint, node

NOW = datetime(2026, 11, 30, 20, 0, tzinfo=UTC)
LATER = datetime(2026, 11, 30, 21, 0, tzinfo=UTC)


def tracked(**changes: Any) -> Tracked:
    one = endpoint(node=node("a", state="running", volumes=(1.0,)))
    outcome = reconcile(Situation(endpoint=one, fault=None, spec=Spec()), Memory(), 0.0)
    return Tracked(endpoint=one, outcome=outcome, **changes)


def stored(status: Json, **more: Any) -> Json:
    return {"metadata": {"name": "a", "generation": 3, "labels": {}}, "status": status, **more}


def test_what_is_stored_as_wanted_needs_no_write() -> None:
    one = tracked()
    wanted = one.wanted_status("kitchen", None, NOW)
    assert one.is_stored(stored(wanted), wanted)
    later = one.wanted_status("kitchen", stored(wanted), LATER)
    assert [c["lastTransitionTime"] for c in later["conditions"]] == ["2026-11-30T20:00:00Z"] * 3


def test_a_foreign_addition_needs_no_write_once_we_have_applied() -> None:
    one = tracked()
    wanted = one.wanted_status("kitchen", None, NOW)
    one.applied = without_times(wanted)
    assert one.is_stored(stored({**wanted, "theirs": 1}), wanted)


def test_after_a_restart_what_is_stored_beyond_ours_is_written_over_once() -> None:
    """It may be a field of ours from before, which only an apply can take away."""
    one = tracked()
    wanted = one.wanted_status("kitchen", None, NOW)
    assert not one.is_stored(stored({**wanted, "claimedBy": "a/b"}), wanted)


def test_a_foreign_change_needs_a_write() -> None:
    one = tracked()
    wanted = one.wanted_status("kitchen", None, NOW)
    one.applied, one.answer = without_times(wanted), wanted
    assert not one.is_stored(stored({**wanted, "node": "elsewhere"}), wanted)


def test_a_field_that_the_server_drops_is_not_written_for_ever() -> None:
    one = tracked()
    wanted = one.wanted_status("kitchen", None, NOW)
    kept = {key: value for key, value in wanted.items() if key != "location"}
    assert not one.is_stored(stored(kept), wanted)
    one.applied, one.answer = without_times(wanted), kept
    assert one.is_stored(stored(kept), wanted)


def test_without_a_device_the_status_says_that_it_is_gone() -> None:
    status = Tracked().wanted_status("kitchen", stored({"node": "kitchen", "nodeName": "a"}), NOW)
    assert status["node"] == "kitchen"
    assert "nodeName" not in status
    assert {one["reason"] for one in status["conditions"]} == {"DeviceGone"}


def test_only_what_is_gone_for_long_and_undeclared_is_deleted() -> None:
    gone = Tracked(gone_since=0.0)
    assert not gone.is_to_delete(stored({}), GONE_SECONDS - 1)
    assert gone.is_to_delete(stored({}), GONE_SECONDS)
    assert not gone.is_to_delete(stored({}, spec={"volume": 5}), GONE_SECONDS)
    assert not Tracked().is_to_delete(stored({}), GONE_SECONDS)


def test_odd_objects_have_an_empty_status_and_no_label() -> None:
    assert status_of(None) == status_of({"status": None}) == status_of({"status": "x"}) == {}
    assert not is_labelled({"metadata": {"labels": None}}, "kitchen")
    assert is_labelled({"metadata": {"labels": {NODE_LABEL: "kitchen"}}}, "kitchen")
