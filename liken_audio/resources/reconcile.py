"""Endpoint + spec + memory + now → what to write, what to report, what to remember.

Pure and level-triggered: called again with the same situation and the memory that it returned, it
writes nothing. Nothing is ever written to a field that isn't declared, with two exceptions: a
node's first sight (volume rests at 100, not at a session manager's default), and a volume above
maxVolume. When a value is written, and when no more, is decided in `enforcement`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from liken_audio.graph.endpoints import DEVICE_PROPERTY
from liken_audio.graph.model import (
    Card,
    Connection,
    Control,
    Endpoint,
    Fault,
    Linear,
    Node,
    NodeSerial,
    Percent,
)
from liken_audio.resources import controls as mixer
from liken_audio.resources import verdicts
from liken_audio.resources.conditions import Condition, Reason
from liken_audio.resources.enforcement import (
    Shown,
    Step,
    Value,
    Verdict,
    Write,
    believed,
    enforce,
)
from liken_audio.resources.v1alpha1 import Observed, RejectedField, Spec

_REST = Percent(100)


@dataclass(frozen=True, slots=True)
class SetVolume:
    """Set all channels of the node to one volume."""

    field: str
    node: Node
    volume: Linear


@dataclass(frozen=True, slots=True)
class SetMute:
    """Mute or unmute the node."""

    field: str
    node: Node
    is_muted: bool


@dataclass(frozen=True, slots=True)
class SetControl:
    """Set a mixer control of the card, one value a channel."""

    field: str
    card: Card
    control: Control
    values: tuple[int, ...]


Change = SetVolume | SetMute | SetControl
"""A write to the hardware; `field` names the spec field that it is for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What was done to one endpoint before; a fresh one after a restart of the agent."""

    serial: NodeSerial | None = None
    """The node incarnation that was last seen."""
    was_missing: bool = False
    """Whether PipeWire was seen without a node for it: the next node is a new one for certain."""
    has_rested: bool = False
    """Whether this incarnation's first sight is dealt with."""
    assumed: Percent | None = None
    """Volume that the node has for all we know, until it announces one."""
    live_since: float | None = None
    """When the node was first seen running, now that it runs."""
    volume: Write | None = None
    mute: Write | None = None
    controls: Mapping[str, Write] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)
    """Error text of the last write, by field, of the fields whose last write failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """All that counts for one endpoint now."""

    endpoint: Endpoint
    fault: Fault | None
    """The fault that counts; None also while a gap of the node is too short to count."""
    is_settling: bool = False
    """Whether such a gap runs, so that Ready can't be known."""
    spec: Spec
    rejected: tuple[RejectedField, ...] = ()
    reported: Percent | None = None
    """Volume in the stored status: an agent before this one has seen the node at it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What to do, to report and to remember; `recheck_at` is when to ask again regardless."""

    changes: tuple[Change, ...]
    observed: Observed
    conditions: tuple[Condition, ...]
    memory: Memory
    recheck_at: float | None = None


def reconcile(situation: Situation, memory: Memory, now: float) -> Outcome:
    """Judge one endpoint. `now` is the loop's clock in seconds, the same in all calls."""
    memory = _seen(situation, memory, now)
    steps: dict[str, Step] = {}
    changes: list[Change] = []
    node = situation.endpoint.node
    if node is not None:
        volume = _judge_volume(situation, memory, _shown(node, memory, now))
        mute = _judge_mute(situation, memory, _shown_mute(node, memory, now))
        steps = {"volume": volume, "mute": mute}
        changes += _audio_changes(node, volume, mute)
        memory = replace(memory, volume=volume.write, mute=mute.write, has_rested=True)
    judged = _judge_controls(situation, memory, now)
    changes += judged.changes
    steps |= judged.steps
    memory = replace(memory, controls=judged.writes)
    observed = _observe(situation, memory, now)
    problems = [*situation.rejected, *_unsupported(situation), *judged.problems]
    problems += _failed(situation, steps, memory)
    return Outcome(
        changes=tuple(changes),
        observed=observed,
        conditions=_conditions(situation, observed, problems, steps),
        memory=memory,
        recheck_at=min((s.recheck_at for s in steps.values() if s.recheck_at), default=None),
    )


def write_failed(memory: Memory, name: str, text: str) -> Memory:
    """The memory when the write of field `name` failed: as if it had never been tried."""
    failures = {**memory.failures, name: text}
    if name == "volume":
        return replace(memory, volume=None, has_rested=False, failures=failures)
    if name == "mute":
        return replace(memory, mute=None, failures=failures)
    kept = {key: write for key, write in memory.controls.items() if _control_field(key) != name}
    return replace(memory, controls=kept, failures=failures)


def write_succeeded(memory: Memory, name: str) -> Memory:
    """The memory when the write of field `name` went through."""
    if name not in memory.failures:
        return memory
    failures = {key: text for key, text in memory.failures.items() if key != name}
    return replace(memory, failures=failures)


def to_linear(percent: Percent) -> Linear:
    """Percent as PipeWire's tools show it → what PipeWire stores: 50 → 0.125."""
    return Linear((percent / 100) ** 3)


def to_percent(linear: Linear) -> Percent:
    """What PipeWire stores → percent as its tools show it: 1.953125 → 125."""
    return Percent(round(100 * max(linear, 0.0) ** (1 / 3)))


def _seen(situation: Situation, memory: Memory, now: float) -> Memory:
    """Take note of the node: whether it is a new incarnation, since when it runs."""
    node = situation.endpoint.node
    if node is None:
        is_missing = memory.was_missing or situation.endpoint.fault is Fault.NO_NODE
        return replace(memory, live_since=None, was_missing=is_missing)
    if node.serial != memory.serial:
        memory = _met(situation, memory, node)
    if node.state != "running":
        return replace(memory, live_since=None)
    return memory if memory.live_since is not None else replace(memory, live_since=now)


def _met(situation: Situation, memory: Memory, node: Node) -> Memory:
    """The memory of a new incarnation; what is known of its volume needs no write."""
    shown = _volume_of(node)
    is_restart = memory.serial is None and not memory.was_missing
    assumed = None
    if is_restart and situation.reported is not None:
        # An agent before this one saw this very node at that volume: set by hand, it stays.
        assumed = situation.reported if shown in (None, situation.reported) else None
    elif shown is None and DEVICE_PROPERTY in node.properties:
        # A node that we made starts at unity, and no session manager touches it.
        assumed = _REST
    return Memory(
        serial=node.serial,
        has_rested=assumed is not None,
        assumed=assumed,
        controls=memory.controls,
        failures=memory.failures,
    )


def _volume_of(node: Node) -> Percent | None:
    """The loudest channel, None before the node has announced any."""
    return max(map(to_percent, node.volumes), default=None)


def _shown(node: Node, memory: Memory, now: float) -> Shown:
    percents = tuple(map(to_percent, node.volumes))
    if not percents and memory.assumed is not None:
        percents = (memory.assumed,)
    value = percents[:1] if len(set(percents)) == 1 else percents
    return Shown(value=value or None, now=now, live_since=memory.live_since)


def _shown_mute(node: Node, memory: Memory, now: float) -> Shown:
    return Shown(value=(int(node.is_muted),), now=now, live_since=memory.live_since)


def _judge_volume(situation: Situation, memory: Memory, shown: Shown) -> Step:
    spec = situation.spec
    limit = _REST if spec.max_volume is None else spec.max_volume
    current = believed(shown, memory.volume)
    wanted: Value | None = None
    if spec.volume is not None:
        wanted = (min(spec.volume, limit),)
    elif not memory.has_rested or (spec.max_volume is not None and _is_over(current, limit, shown)):
        wanted = (limit,)
    return enforce(wanted, shown, memory.volume)


def _is_over(current: Value | None, limit: Percent, shown: Shown) -> bool:
    """Whether the limit is, or by a write that isn't shown yet was, exceeded."""
    if current is None or max(current) > limit:
        return True
    return current == (limit,) and shown.value is not None and max(shown.value) > limit


def _judge_mute(situation: Situation, memory: Memory, shown: Shown) -> Step:
    is_muted = situation.spec.is_muted
    return enforce(None if is_muted is None else (int(is_muted),), shown, memory.mute)


def _audio_changes(node: Node, volume: Step, mute: Step) -> list[Change]:
    changes: list[Change] = []
    # Muted first and unmuted last: no burst at the old volume.
    if mute.must_write and mute.write is not None:
        changes.append(SetMute("mute", node, is_muted=bool(mute.write.wanted[0])))
    if volume.must_write and volume.write is not None:
        level = to_linear(Percent(volume.write.wanted[0]))
        at = len(changes) if any(isinstance(c, SetMute) and c.is_muted for c in changes) else 0
        changes.insert(at, SetVolume("volume", node, level))
    return changes


@dataclass(frozen=True, slots=True, kw_only=True)
class _JudgedControls:
    steps: Mapping[str, Step]
    """By field."""
    writes: Mapping[str, Write]
    """By key."""
    changes: tuple[Change, ...] = ()
    problems: tuple[RejectedField, ...] = ()


def _judge_controls(situation: Situation, memory: Memory, now: float) -> _JudgedControls:
    card = situation.endpoint.card
    if not card.is_present:
        return _JudgedControls(steps={}, writes={})
    known = mixer.keyed(situation.endpoint.controls)
    steps: dict[str, Step] = {}
    writes: dict[str, Write] = {}
    changes: list[Change] = []
    problems: list[RejectedField] = []
    for key, text in situation.spec.controls.items():
        judged = _judge_control(key, text, known, _Past(memory.controls.get(key), now))
        if isinstance(judged, RejectedField):
            problems.append(judged)
            continue
        steps[_control_field(key)] = judged
        if judged.write is not None:
            writes[key] = judged.write
            if judged.must_write:
                changes.append(
                    SetControl(_control_field(key), card, known[key], judged.write.wanted)
                )
    return _JudgedControls(
        steps=steps, writes=writes, changes=tuple(changes), problems=tuple(problems)
    )


@dataclass(frozen=True, slots=True)
class _Past:
    write: Write | None
    now: float


def _judge_control(
    key: str, text: str, known: Mapping[str, Control], past: _Past
) -> Step | RejectedField:
    control = known.get(key)
    name = _control_field(key)
    if control is None:
        near = mixer.closest(key, known)
        hint = f"did you mean {', '.join(map(repr, near))}?" if near else "this card has none here"
        return RejectedField(name, Reason.UNKNOWN_CONTROL, f"{name}: no such control; {hint}")
    try:
        wanted = mixer.parse(text, control)
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
        value=control.values if is_shown else None, now=now, live_since=now if is_shown else None
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


def _control_field(key: str) -> str:
    return f'controls["{key}"]'


def _observe(situation: Situation, memory: Memory, now: float) -> Observed:
    node = situation.endpoint.node
    volume = mute = None
    if node is not None:
        volume = believed(_shown(node, memory, now), memory.volume)
        mute = believed(_shown_mute(node, memory, now), memory.mute)
    known = mixer.keyed(situation.endpoint.controls)
    listed = mixer.subset(known, situation.spec.controls)
    values = {key: _control_text(one, memory.controls.get(key), now) for key, one in listed.items()}
    return Observed(
        volume=Percent(max(volume)) if volume else None,
        is_muted=bool(mute[0]) if mute else None,
        controls={key: text for key, text in values.items() if text is not None},
        capabilities={key: mixer.capability(one) for key, one in listed.items()},
        omitted_controls=len(known) - len(listed),
    )


def _control_text(control: Control, write: Write | None, now: float) -> str | None:
    value = believed(_shown_control(control, now), write)
    return None if value is None else mixer.text(control, value)


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
                f"{name}: another program keeps changing it; find it (wpctl status lists the"
                " clients) or remove the field"
            )
            problems.append(RejectedField(name, Reason.CONTESTED, message))
    return problems


def _had(situation: Situation, name: str) -> str:
    node = situation.endpoint.node
    if name == "volume" and node is not None:
        percents = ",".join(str(to_percent(volume)) for volume in node.volumes)
        return percents or "no known value"
    if name == "mute":
        return "another one"
    known = mixer.keyed(situation.endpoint.controls)
    control = next((one for key, one in known.items() if _control_field(key) == name), None)
    if control is None or control.values is None:
        return "no known value"
    return mixer.text(control, control.values)


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
    fields = {"volume": spec.volume, "maxVolume": spec.max_volume, "mute": spec.is_muted}
    return [name for name, value in fields.items() if value is not None]


def _waiting(situation: Situation) -> tuple[str, ...]:
    """The declared fields that can't be written now for want of a node or a card."""
    endpoint, spec = situation.endpoint, situation.spec
    waiting = _declared(spec) if endpoint.node is None else []
    if not endpoint.card.is_present:
        waiting += map(_control_field, spec.controls)
    return tuple(waiting)


def _standing(situation: Situation, steps: Mapping[str, Step], verdict: Verdict) -> tuple[str, ...]:
    """The fields of that verdict which are declared; a first sight's rest is nobody's concern."""
    undeclared = {"volume", "mute"} - set(_declared(situation.spec))
    return tuple(
        name for name, step in steps.items() if step.verdict is verdict and name not in undeclared
    )
