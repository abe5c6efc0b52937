"""Volume and mute of an endpoint's PipeWire node: what is wanted, shown and to be written.

Volumes are percent as PipeWire's own tools show them: cubic. Undeclared, a node rests at 100 on
its first sight; a volume above maxVolume is brought down to it, the Sink's and that of the classes by
which the device is claimed. When the claim that it was brought down for has ended it rests again.

A Bluetooth speaker that has a volume of its own (absolute volume) isn't brought to rest: it keeps the
volume that a person set there. Whether it has one shows a moment after its node does.
"""

from dataclasses import replace

from liken_audio.graph.endpoints import DEVICE_PROPERTY
from liken_audio.graph.model import Fault, Linear, Node, Percent
from liken_audio.resources.enforcement import Shown, Step, Value, Verdict, believed, enforce
from liken_audio.resources.situation import Change, Judged, Memory, SetMute, SetVolume, Situation

ABSOLUTE_SECONDS = 5.0
"""How long after a Bluetooth speaker's node its absolute volume may take to show."""
LIMIT_SECONDS = 1.0
"""Shortest time between two corrections of a workload that keeps exceeding its class's limit."""
_REST = Percent(100)


def to_linear(percent: Percent) -> Linear:
    """Percent as PipeWire's tools show it → what PipeWire stores: 50 → 0.125."""
    return Linear((percent / 100) ** 3)


def to_percent(linear: Linear) -> Percent:
    """What PipeWire stores → percent as its tools show it: 1.953125 → 125."""
    return Percent(round(100 * max(linear, 0.0) ** (1 / 3)))


def judge(situation: Situation, memory: Memory, now: float) -> Judged:
    """Judge volume and mute, and take note of the node."""
    memory = _seen(situation, memory, now)
    node = situation.endpoint.node
    if node is None:
        return Judged(memory=memory)
    volume = _judge_volume(situation, memory, _shown(node, memory, now))
    mute = _judge_mute(situation, memory, _shown_mute(node, memory, now))
    return Judged(
        steps={"volume": volume, "mute": mute},
        changes=_changes(node, volume, mute),
        memory=replace(
            memory,
            volume=volume.write,
            mute=mute.write,
            has_rested=not _is_undecided(situation, memory, now),
            limited_to=situation.claim_limit,
        ),
    )


def observed_volume(node: Node, memory: Memory, now: float) -> Percent | None:
    """The volume to report: the loudest channel; None when nothing at all is known."""
    value = believed(_shown(node, memory, now), memory.volume)
    return Percent(max(value)) if value else None


def observed_mute(node: Node, memory: Memory, now: float) -> bool:
    """Whether it is muted, for all we know."""
    value = believed(_shown_mute(node, memory, now), memory.mute)
    return bool(value and value[0])


def _seen(situation: Situation, memory: Memory, now: float) -> Memory:
    """Take note of the node: whether it is a new incarnation, since when it runs."""
    node = situation.endpoint.node
    if node is None:
        is_missing = memory.was_missing or situation.endpoint.fault is Fault.NO_NODE
        return replace(memory, live_since=None, was_missing=is_missing)
    if node.serial != memory.serial:
        memory = replace(_met(situation, memory, node), met_at=now)
    if node.state != "running":
        return replace(memory, live_since=None)
    return memory if memory.live_since is not None else replace(memory, live_since=now)


def _met(situation: Situation, memory: Memory, node: Node) -> Memory:
    """The memory of a new incarnation; what is known of its volume needs no write."""
    shown = _volume_of(node)
    is_restart = memory.serial is None and not memory.was_missing
    is_ours = DEVICE_PROPERTY in node.properties
    assumed = None
    if is_restart and is_ours and situation.is_claimed and shown is not None:
        # A pod may have set it while no agent ran; with its last claim the node would have gone.
        assumed = shown
    elif is_restart and situation.reported is not None:
        # An agent before this one saw this very node at that volume: set by hand, it stays.
        assumed = situation.reported if shown in (None, situation.reported) else None
    elif shown is None and is_ours:
        # A node that we made starts at unity, and no session manager touches it.
        assumed = _REST
    return Memory(
        serial=node.serial,
        has_rested=assumed is not None,
        assumed=assumed,
        controls=memory.controls,
        codec=memory.codec,
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
    limits = [each for each in (spec.max_volume, situation.claim_limit) if each is not None]
    limit = min(limits, default=_REST)
    current = believed(shown, memory.volume)
    is_released = situation.claim_limit is None and current == (memory.limited_to,)
    is_over = bool(limits) and _is_over(current, limit, shown)
    is_to_rest = not memory.has_rested and not _has_own_volume(situation)
    is_undecided = _is_undecided(situation, memory, shown.now)
    wanted: Value | None = None
    if spec.volume is not None:
        wanted = (min(spec.volume, limit),)
    elif (is_to_rest and not is_undecided) or is_released or is_over:
        wanted = (limit,)
    step = enforce(wanted, shown, memory.volume)
    if is_undecided and step.recheck_at is None:
        step = replace(step, recheck_at=(memory.met_at or shown.now) + ABSOLUTE_SECONDS)
    if step.verdict is Verdict.CONTESTED and is_over and situation.claim_limit is not None:
        return _persistent(step, wanted, shown)
    return step


def _has_own_volume(situation: Situation) -> bool:
    speaker = situation.endpoint.card.speaker
    return speaker is not None and speaker.has_absolute_volume


def _is_undecided(situation: Situation, memory: Memory, now: float) -> bool:
    """Whether it can't be known yet if the speaker has a volume of its own."""
    if situation.endpoint.card.speaker is None or memory.has_rested or memory.met_at is None:
        return False
    return not _has_own_volume(situation) and now < memory.met_at + ABSOLUTE_SECONDS


def _persistent(step: Step, wanted: Value | None, shown: Shown) -> Step:
    """Correct on, at a bearable pace: who may set a volume must not win by setting it often."""
    if step.write is None:
        return step
    again_at = step.write.at + LIMIT_SECONDS
    if shown.now < again_at:
        return replace(step, recheck_at=again_at)
    return enforce(wanted, shown, replace(step.write, recent=()))


def _is_over(current: Value | None, limit: Percent, shown: Shown) -> bool:
    """Whether the limit is, or by a write that isn't shown yet was, exceeded."""
    if current is None or max(current) > limit:
        return True
    return current == (limit,) and shown.value is not None and max(shown.value) > limit


def _judge_mute(situation: Situation, memory: Memory, shown: Shown) -> Step:
    is_muted = situation.spec.is_muted
    return enforce(None if is_muted is None else (int(is_muted),), shown, memory.mute)


def _changes(node: Node, volume: Step, mute: Step) -> tuple[Change, ...]:
    changes: list[Change] = []
    # Muted first and unmuted last: no burst at the old volume.
    if mute.must_write and mute.write is not None:
        changes.append(SetMute("mute", node, is_muted=bool(mute.write.wanted[0])))
    if volume.must_write and volume.write is not None:
        level = to_linear(Percent(volume.write.wanted[0]))
        at = len(changes) if any(isinstance(c, SetMute) and c.is_muted for c in changes) else 0
        changes.insert(at, SetVolume("volume", node, level))
    return tuple(changes)
