"""Endpoint + spec + memory + now → what to write, what to report, what to remember.

Pure and level-triggered: called again with the same situation and the memory that it returned, it
writes nothing. Nothing is ever written to a field that isn't declared, with two exceptions: a
node's first sight (volume rests at 100, not at a session manager's default), and a volume above
maxVolume. When a value is written, and when no more, is decided in `enforcement`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from liken_audio.graph.model import Connection
from liken_audio.resources import codec, controls, loudness, mixer, verdicts
from liken_audio.resources.conditions import Condition, Reason
from liken_audio.resources.enforcement import Step, Verdict
from liken_audio.resources.situation import (
    Change,
    Memory,
    SetMute,
    SetVolume,
    Situation,
    control_field,
)
from liken_audio.resources.v1alpha1 import Observed, RejectedField, Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What to do, to report and to remember; `recheck_at` is when to ask again regardless."""

    changes: tuple[Change, ...]
    observed: Observed
    conditions: tuple[Condition, ...]
    memory: Memory
    recheck_at: float | None = None
    steps: Mapping[str, Step] = field(default_factory=dict)
    """How each judged field stands."""


def reconcile(situation: Situation, memory: Memory, now: float) -> Outcome:
    """Judge one endpoint. `now` is the loop's clock in seconds, the same in all calls."""
    audio = loudness.judge(situation, memory, now)
    card = mixer.judge(situation, audio.memory, now)
    radio = codec.judge(situation, card.memory, now)
    steps = {**audio.steps, **card.steps, **radio.steps}
    observed = _observe(situation, card.memory, now)
    problems = [*situation.rejected, *_unsupported(situation), *card.problems, *radio.problems]
    problems += _failed(situation, steps, card.memory)
    rechecks = [step.recheck_at for step in steps.values() if step.recheck_at is not None]
    return Outcome(
        changes=audio.changes + card.changes + radio.changes,
        observed=observed,
        conditions=_conditions(situation, observed, problems, steps),
        memory=radio.memory,
        recheck_at=min(rechecks, default=None),
        steps=steps,
    )


def still_wanted(
    queued: Mapping[str, Change], before: Situation, now: Situation, outcome: Outcome
) -> dict[str, Change]:
    """The changes to carry out: of those queued what nothing has overtaken, and the new ones.

    A queued change may wait for a minute, after a failure. `before` is the situation of the
    judgement before this one.
    """
    kept = {
        name: change
        for name, change in queued.items()
        if not _is_overtaken(change, before, now, outcome.steps.get(name))
    }
    return kept | {change.field: change for change in outcome.changes}


def _is_overtaken(change: Change, before: Situation, now: Situation, step: Step | None) -> bool:
    """Whether it is for a node that is gone, needless now, or nobody asks for it any more."""
    if isinstance(change, SetVolume | SetMute):
        node = now.endpoint.node
        if node is not None and node.serial != change.node.serial:
            return True
    if step is not None and step.verdict is not Verdict.UNDECLARED:
        return step.verdict is Verdict.HOLDS
    return _asked(change.field, before) != _asked(change.field, now)


def _asked(name: str, situation: Situation) -> object:
    """What is declared that a field's value follows from."""
    spec = situation.spec
    if name == "volume":
        return spec.volume, spec.max_volume, situation.claim_limit
    if name == "mute":
        return spec.is_muted
    if name == "codec":
        return situation.claim_codec or spec.codec
    return {control_field(key): text for key, text in spec.controls.items()}.get(name)


def _observe(situation: Situation, memory: Memory, now: float) -> Observed:
    node = situation.endpoint.node
    known = controls.keyed(situation.endpoint.controls)
    listed = controls.subset(known, situation.spec.controls)
    values = {
        key: mixer.observed_text(one, memory.controls.get(key), now) for key, one in listed.items()
    }
    return Observed(
        volume=loudness.observed_volume(node, memory, now) if node else None,
        is_muted=loudness.observed_mute(node, memory, now) if node else None,
        controls={key: text for key, text in values.items() if text is not None},
        capabilities={key: controls.capability(one) for key, one in listed.items()},
        omitted_controls=len(known) - len(listed),
    )


def _unsupported(situation: Situation) -> list[RejectedField]:
    if situation.endpoint.connection is Connection.BLUETOOTH:
        return []
    wanted = {
        "codec": situation.spec.codec is not None,
        "connect": situation.spec.is_connect_wanted is not None,
    }
    return [
        RejectedField(
            name, Reason.NOT_SUPPORTED, f"{name}: only Bluetooth devices have it; remove the field"
        )
        for name, is_wanted in wanted.items()
        if is_wanted
    ]


def _failed(situation: Situation, steps: Mapping[str, Step], memory: Memory) -> list[RejectedField]:
    """The declared fields that were written in vain."""
    problems = []
    for name, step in steps.items():
        if step.verdict is Verdict.UNDECLARED:
            continue
        if name in memory.failures and step.verdict is not Verdict.HOLDS:
            message = f"{name}: the write failed ({memory.failures[name]}); it is tried again"
            problems.append(RejectedField(name, Reason.WRITE_FAILED, message))
        elif step.verdict is Verdict.IGNORED:
            message = (
                f"{name}: written twice, and the hardware doesn't take it (it has"
                f" {_had(situation, name)}); declare a value that it takes, or remove the field"
            )
            problems.append(RejectedField(name, Reason.NOT_CONFIRMED, message))
        elif step.verdict is Verdict.CONTESTED:
            message = (
                f"{name}: another program, or another Sink of this card, keeps changing it; find it"
                " (wpctl status lists the programs) or remove the field"
            )
            problems.append(RejectedField(name, Reason.CONTESTED, message))
    return problems


def _had(situation: Situation, name: str) -> str:
    node = situation.endpoint.node
    if name == "volume" and node is not None:
        percents = ",".join(str(loudness.to_percent(volume)) for volume in node.volumes)
        return percents or "no known value"
    if name == "mute":
        return "another one"
    known = controls.keyed(situation.endpoint.controls)
    control = next((one for key, one in known.items() if control_field(key) == name), None)
    if control is None or control.values is None:
        return "no known value"
    return controls.text(control, control.values)


def _conditions(
    situation: Situation,
    observed: Observed,
    problems: list[RejectedField],
    steps: Mapping[str, Step],
) -> tuple[Condition, ...]:
    endpoint, spec, fault = situation.endpoint, situation.spec, situation.fault
    ready = verdicts.ready(endpoint, fault, spec, observed)
    if fault is None and situation.is_settling:
        ready = verdicts.starting()
    standing = verdicts.Standing(
        problems=tuple(problems),
        waiting=_waiting(situation),
        pending=_standing(situation, steps, Verdict.PENDING),
        unconfirmed=_standing(situation, steps, Verdict.BELIEVED),
    )
    return (verdicts.connected(endpoint, fault), ready, verdicts.applied(spec, standing))


def _declared(spec: Spec) -> list[str]:
    """The declared fields that need a node."""
    fields = {
        "volume": spec.volume,
        "maxVolume": spec.max_volume,
        "mute": spec.is_muted,
        "codec": spec.codec,
    }
    return [name for name, value in fields.items() if value is not None]


def _waiting(situation: Situation) -> tuple[str, ...]:
    """The declared fields that can't be written now for want of a node or a card."""
    endpoint, spec = situation.endpoint, situation.spec
    waiting = _declared(spec) if endpoint.node is None else []
    if not endpoint.card.is_present:
        waiting += map(control_field, spec.controls)
    return tuple(waiting)


def _standing(situation: Situation, steps: Mapping[str, Step], verdict: Verdict) -> tuple[str, ...]:
    """The fields of that verdict which are declared; a first sight's rest is nobody's concern."""
    undeclared = {"volume", "mute", "codec"} - set(_declared(situation.spec))
    return tuple(
        name for name, step in steps.items() if step.verdict is verdict and name not in undeclared
    )
