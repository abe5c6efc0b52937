"""The diagnosis is printed for people and for programs."""

import json

from liken_audio.doctor.checks import Finding, State
from liken_audio.doctor.report import as_json, as_table

WELL = Finding("pipewire", State.OK, "answers")
ILL = Finding("cdi folder", State.FAILURE, "isn't there", "mount it")
ODD = Finding("agent", State.WARNING, "absent", "look")


def test_a_table_has_a_line_for_each_finding_and_its_fix_below() -> None:
    assert as_table([WELL, ILL]).splitlines() == [
        "✓ pipewire    answers",
        "✗ cdi folder  isn't there",
        "              → mount it",
        "",
        "1 failure, 0 warnings",
    ]


def test_a_table_without_a_fault_says_so() -> None:
    assert as_table([WELL]).splitlines()[-1] == "all is well"


def test_json_says_whether_the_node_is_healthy_a_warning_is() -> None:
    assert json.loads(as_json([WELL, ODD]))["healthy"] is True
    document = json.loads(as_json([WELL, ILL]))
    assert document["healthy"] is False
    assert document["findings"][1] == {
        "check": "cdi folder",
        "state": "failure",
        "what": "isn't there",
        "fix": "mount it",
    }
