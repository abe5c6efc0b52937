"""The conditions Connected, Ready and Applied of one endpoint, from what is known now.

Each message says what is the case and the next step; `kubectl describe` alone should be enough.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from liken_audio.graph.model import Connection, Control, ControlType, Direction, Endpoint, Fault
from liken_audio.resources import bluetooth
from liken_audio.resources.conditions import Condition, ConditionStatus, ConditionType, Reason
from liken_audio.resources.controls import keyed
from liken_audio.resources.v1alpha1 import Observed, RejectedField, Spec

_SCREENS = (Connection.HDMI, Connection.DISPLAYPORT)

_SERIES = ("", "Master", "PCM", "IEC958", "Digital", "Speaker+LO")
"""Controls that all sound of an output passes: a switch that is off, a volume at its lowest is silence."""
_PARALLEL = ("Headphone", "Headset", "Speaker", "Front", "Line Out", "Bass Speaker")
"""Controls of one plug each: silence is only when all of them are so."""
_UNHEARD = -50.0
"""A volume whose lowest step has this gain, or less, is not heard there by anybody."""


def connected(endpoint: Endpoint, fault: Fault | None) -> Condition:
    """Whether something is plugged in; True also where nothing can tell."""
    if endpoint.card.speaker is not None:
        return bluetooth.connected(endpoint, endpoint.card.speaker)
    if not endpoint.card.is_present:
        return _connected_not(Reason.CARD_ABSENT, "the sound card is unplugged; plug it in again")
    if fault is Fault.NO_MONITOR:
        return _connected_not(Reason.NO_MONITOR, _NO_MONITOR)
    if fault is Fault.UNPLUGGED:
        return _connected_not(Reason.UNPLUGGED, _unplugged(endpoint))
    if endpoint.jack is None and endpoint.monitor is None:
        message = "the card can't tell whether something is plugged in here; it counts as connected"
        return _connected(ConditionStatus.TRUE, Reason.NOT_DETECTABLE, message)
    name = f"the monitor {endpoint.monitor.name}".rstrip() if endpoint.monitor else "something"
    return _connected(ConditionStatus.TRUE, Reason.CONNECTED, f"{name} is plugged in")


def ready(endpoint: Endpoint, fault: Fault | None, spec: Spec, observed: Observed) -> Condition:
    """Whether a stream can be heard (or recorded), and the outermost reason why not."""
    reason, message = _silence(endpoint, fault, spec, observed)
    if reason is Reason.READY:
        reason, message = bluetooth.remark(endpoint) or (reason, message)
        return Condition(ConditionType.READY, ConditionStatus.TRUE, reason, message)
    return Condition(ConditionType.READY, ConditionStatus.FALSE, reason, message)


def starting() -> Condition:
    """Ready in the first seconds, when a missing node may only be late."""
    message = "waiting a few seconds for PipeWire to show the node"
    return Condition(ConditionType.READY, ConditionStatus.UNKNOWN, Reason.STARTING, message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How the declared fields stand; all but `problems` are names of fields."""

    problems: tuple[RejectedField, ...] = ()
    waiting: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()
    unconfirmed: tuple[str, ...] = ()


def applied(spec: Spec, standing: Standing) -> Condition:
    """Whether every declared field holds, else the first reason and all messages."""
    if standing.problems:
        text = "; ".join(problem.message for problem in standing.problems)
        return _applied(ConditionStatus.FALSE, standing.problems[0].reason, text)
    if standing.waiting:
        text = f"{', '.join(standing.waiting)}: set as soon as the device is back; see Ready"
        return _applied(ConditionStatus.UNKNOWN, Reason.WAITING, text)
    if standing.pending:
        text = f"{', '.join(standing.pending)}: written, not shown yet; wait a second or two"
        return _applied(ConditionStatus.UNKNOWN, Reason.UNCONFIRMED, text)
    if standing.unconfirmed:
        text = f"{', '.join(standing.unconfirmed)}: written; PipeWire confirms when a stream plays"
        return _applied(ConditionStatus.TRUE, Reason.UNCONFIRMED, text)
    if spec.is_empty:
        text = "nothing is declared in spec; the hardware is left as it is"
        return _applied(ConditionStatus.TRUE, Reason.NOTHING_DECLARED, text)
    return _applied(ConditionStatus.TRUE, Reason.APPLIED, "every declared field holds")


def gone() -> tuple[Condition, ...]:
    """The conditions of an object that was declared, but whose device is not there (any more)."""
    message = (
        "no device of this name is on the node any more; if it never comes back, delete this object "
        "(names of the devices that are there: kubectl get audio)"
    )
    return _all_false(Reason.DEVICE_GONE, message)


def no_device(near: Sequence[str]) -> tuple[Condition, ...]:
    """The conditions of an object that no node has a device for; `near`: names it may have meant."""
    meant = f"; did you mean {' or '.join(near)}?" if near else ""
    message = (
        f"no node has a device of this name{meant} (kubectl get audio lists all that there are); "
        "delete this object, or leave it if the device is still to come"
    )
    return _all_false(Reason.NO_DEVICE, message)


def _all_false(reason: Reason, message: str) -> tuple[Condition, ...]:
    return tuple(
        Condition(type_, ConditionStatus.FALSE, reason, message) for type_ in ConditionType
    )


_NO_MONITOR = (
    "no monitor answers on this output; plug one in, switch it on, or check that the monitor takes "
    "sound over this cable"
)


def _connected(status: ConditionStatus, reason: Reason, message: str) -> Condition:
    return Condition(ConditionType.CONNECTED, status, reason, message)


def _connected_not(reason: Reason, message: str) -> Condition:
    return _connected(ConditionStatus.FALSE, reason, message)


def _applied(status: ConditionStatus, reason: Reason, message: str) -> Condition:
    return Condition(ConditionType.APPLIED, status, reason, message)


def _unplugged(endpoint: Endpoint) -> str:
    jack = f" (jack {endpoint.jack.name!r})" if endpoint.jack else ""
    return f"nothing is plugged in{jack}; plug it in"


def _silence(
    endpoint: Endpoint, fault: Fault | None, spec: Spec, observed: Observed
) -> tuple[Reason, str]:
    speaker = endpoint.card.speaker
    silence = bluetooth.silence(endpoint, speaker, fault) if speaker else None
    if silence is not None:
        return silence
    if fault is not None:
        return _fault(endpoint, fault)
    if observed.is_muted:
        return Reason.MUTED, _muted(spec)
    silence = _turned_down(endpoint, observed)
    if silence is not None:
        return silence
    what = "played" if endpoint.direction is Direction.PLAYBACK else "recorded"
    return Reason.READY, f"a stream can be {what}"


def _turned_down(endpoint: Endpoint, observed: Observed) -> tuple[Reason, str] | None:
    """Say which switch or volume, of the card or PipeWire's, lets nothing through."""
    switch = silent_switch(endpoint)
    if switch:
        return Reason.SWITCH_OFF, (
            f'the card\'s switch {switch!r} is off; set spec.controls[{switch!r}] to "on"'
        )
    if observed.volume == 0:
        return Reason.VOLUME_ZERO, "the volume is 0; set spec.volume"
    volume = silent_volume(endpoint)
    if volume:
        return Reason.VOLUME_ZERO, (
            f"the card's volume {volume!r} is at its lowest, where nothing is heard;"
            f" set spec.controls[{volume!r}] (its range: status.capabilities)"
        )
    return None


def _muted(spec: Spec) -> str:
    if spec.is_muted:
        return "it is muted, as spec.mute says; set it to false or remove it and unmute"
    return "a program has muted it; set spec.mute to false to have it unmuted"


def _fault(endpoint: Endpoint, fault: Fault) -> tuple[Reason, str]:
    if not endpoint.card.is_present:
        return Reason.CARD_ABSENT, "the sound card is unplugged; plug it in again"
    if fault is Fault.NO_MONITOR:
        return Reason.NO_MONITOR, _NO_MONITOR
    if fault is Fault.UNPLUGGED:
        return Reason.UNPLUGGED, _unplugged(endpoint)
    if fault is Fault.GRAPH_LOST:
        return Reason.GRAPH_LOST, (
            "PipeWire doesn't answer on the node; look at the pipewire container of the agent's pod"
        )
    if endpoint.node is not None and endpoint.node.state == "error":
        text = endpoint.node.error or "no text given"
        return Reason.NODE_ERROR, (
            f"PipeWire's node is in error: {text}; another program may have the device open"
        )
    return Reason.NO_NODE, _no_node(endpoint)


def _no_node(endpoint: Endpoint) -> str:
    if endpoint.obstacle:
        return f"PipeWire can't have a node for it: {endpoint.obstacle}; it is tried again"
    return "PipeWire has no node for it; the agent makes one, and its log says why if it can't"


def silent_switch(endpoint: Endpoint) -> str | None:
    """Key of the mixer switch that keeps all sound of this endpoint away, None if there is none."""
    switches = _loudness(endpoint, "Switch", ControlType.BOOLEAN)
    return _silent(
        {key: (part, not any(one.values or ())) for key, (part, one) in switches.items()}
    )


def silent_volume(endpoint: Endpoint) -> str | None:
    """Key of the mixer volume that does so, since nobody has set it since the card came up."""
    volumes = _loudness(endpoint, "Volume", ControlType.INTEGER)
    return _silent({key: (part, _is_unheard(one)) for key, (part, one) in volumes.items()})


def _loudness(endpoint: Endpoint, word: str, kind: ControlType) -> dict[str, tuple[str, Control]]:
    """Return what it has of the loudness chain, by key: which part of the chain it is, and the control.

    Of several with one name (a card with two converters has `Capture Switch` twice) the one whose index
    is the PCM's own place among the card's counts alone, where there is such a one.
    """
    is_sink = endpoint.direction is Direction.PLAYBACK
    suffix = f" Playback {word}" if is_sink else f"Capture {word}"
    place = sum(
        pcm.direction is endpoint.direction and pcm.device < endpoint.pcm.device
        for pcm in endpoint.card.pcms
    )
    found = {
        key: one
        for key, one in keyed(endpoint.controls).items()
        if one.type is kind and one.values and one.name.endswith(suffix)
    }
    placed = {one.name for one in found.values() if one.index == place}
    return {
        key: (one.name.removesuffix(suffix).strip(), one)
        for key, one in found.items()
        if one.index == place or one.name not in placed
    }


def _is_unheard(control: Control) -> bool:
    """Whether it is at its lowest on all channels, and that is known to be as good as silence."""
    lowest = control.min_decibels
    is_silence = control.is_silent_at_minimum or (lowest is not None and lowest <= _UNHEARD)
    is_lowest = max(control.values or (control.maximum,)) <= control.minimum < control.maximum
    return is_silence and is_lowest and not control.is_inactive


def _silent(controls: Mapping[str, tuple[str, bool]]) -> str | None:
    """Key of the control that makes silence, of controls as (part of the chain, whether silent)."""
    series = [key for key, (part, is_silent) in controls.items() if is_silent and part in _SERIES]
    if series:
        return series[0]
    parallel = {key: silent for key, (part, silent) in controls.items() if part in _PARALLEL}
    return next(iter(parallel)) if parallel and all(parallel.values()) else None
