"""Findings → what is printed: a table for people, JSON for programs."""

import json
from collections.abc import Sequence

from liken_audio.doctor.checks import Finding, State, exit_code

_MARKS = {State.OK: "✓", State.WARNING: "!", State.FAILURE: "✗"}


def as_table(findings: Sequence[Finding]) -> str:
    """A line for each finding, the fix under it; the last line counts."""
    width = max((len(each.check) for each in findings), default=0)
    lines = []
    for each in findings:
        lines.append(f"{_MARKS[each.state]} {each.check.ljust(width)}  {each.what}")
        if each.fix:
            lines.append(f"  {' ' * width}  → {each.fix}")
    return "\n".join([*lines, "", _summary(findings)])


def as_json(findings: Sequence[Finding]) -> str:
    """`{"healthy": …, "findings": [{"check", "state", "what", "fix"}, …]}`."""
    entries = [
        {"check": each.check, "state": each.state.value, "what": each.what, "fix": each.fix}
        for each in findings
    ]
    healthy = exit_code(findings) == 0
    return json.dumps({"healthy": healthy, "findings": entries}, indent=2, ensure_ascii=False)


def _summary(findings: Sequence[Finding]) -> str:
    failures = sum(each.state is State.FAILURE for each in findings)
    warnings = sum(each.state is State.WARNING for each in findings)
    if not failures and not warnings:
        return "all is well"
    return f"{failures} {'failure' if failures == 1 else 'failures'}, {warnings} {'warning' if warnings == 1 else 'warnings'}"
