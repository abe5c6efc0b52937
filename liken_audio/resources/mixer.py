"""Mixer controls of an endpoint: what spec declares against what the card has."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from liken_audio.graph.model import Control
from liken_audio.resources import controls
from liken_audio.resources.conditions import Reason
from liken_audio.resources.enforcement import Shown, Step, Write, believed, enforce
from liken_audio.resources.situation import (
    Change,
    Judged,
    Memory,
    SetControl,
    Situation,
    control_field,
)
from liken_audio.resources.v1alpha1 import RejectedField

_ALWAYS = float("-inf")
"""A kernel's control shows each write at once, whatever plays."""


def judge(situation: Situation, memory: Memory, now: float) -> Judged:
    """Judge the declared controls; while the card is absent there is nothing to judge."""
    card = situation.endpoint.card
    if not card.is_present:
        return Judged(memory=replace(memory, controls={}))
    known = controls.keyed(situation.endpoint.controls)
    steps: dict[str, Step] = {}
    writes: dict[str, Write] = {}
    changes: list[Change] = []
    problems: list[RejectedField] = []
    for key, text in situation.spec.controls.items():
        judged = _judge_control(key, text, known, _Past(memory.controls.get(key), now))
        if isinstance(judged, RejectedField):
            problems.append(judged)
            continue
        steps[control_field(key)] = judged
        if judged.write is not None:
            writes[key] = judged.write
            if judged.must_write:
                changes.append(
                    SetControl(control_field(key), card, known[key], judged.write.wanted)
                )
    return Judged(
        steps=steps,
        changes=tuple(changes),
        problems=tuple(problems),
        memory=replace(memory, controls=writes),
    )


@dataclass(frozen=True, slots=True)
class _Past:
    write: Write | None
    now: float


def _judge_control(
    key: str, text: str, known: Mapping[str, Control], past: _Past
) -> Step | RejectedField:
    control = known.get(key)
    name = control_field(key)
    if control is None:
        near = controls.closest(key, known)
        hint = f"did you mean {', '.join(map(repr, near))}?" if near else "this card has none here"
        return RejectedField(name, Reason.UNKNOWN_CONTROL, f"{name}: no such control; {hint}")
    try:
        wanted = controls.parse(text, control)
    except ValueError as error:
        return RejectedField(name, Reason.INVALID_VALUE, f"{name}: {error}")
    step = enforce(wanted, _shown_control(control, past.now), past.write)
    refusal = _refusal(control)
    if step.must_write and refusal is not None:
        return RejectedField(name, refusal[0], f"{name}: {refusal[1]}")
    return step


def _shown_control(control: Control, now: float) -> Shown:
    """A volatile control, or one that can't be read, shows no write: it is written once."""
    is_shown = control.values is not None and not control.is_volatile
    return Shown(
        value=control.values if is_shown else None,
        now=now,
        live_since=_ALWAYS if is_shown else None,
    )


def _refusal(control: Control) -> tuple[Reason, str] | None:
    if not control.is_writable:
        return Reason.CONTROL_READ_ONLY, "the control can't be set; remove the field"
    if control.is_locked:
        return Reason.CONTROL_LOCKED, "another program has locked the control; it is set when free"
    if control.is_inactive:
        return Reason.CONTROL_INACTIVE, (
            "the card ignores the control in its present mode; it is set when the mode allows it"
        )
    return None


def observed_text(control: Control, write: Write | None, now: float) -> str | None:
    """The value to report, None when it isn't known or changes by itself."""
    value = believed(_shown_control(control, now), write)
    return None if value is None else controls.text(control, value)
