"""What `reconcile` works on: the situation of one endpoint, the memory of it, the changes to make."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from liken_audio.graph.model import (
    Card,
    Control,
    Endpoint,
    Fault,
    Linear,
    Node,
    NodeSerial,
    Percent,
)
from liken_audio.resources.enforcement import Step, Write
from liken_audio.resources.v1alpha1 import RejectedField, Spec


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


@dataclass(frozen=True, slots=True)
class SwitchCodec:
    """Have a Bluetooth speaker play by another codec; its node is made anew."""

    field: str
    address: str
    codec: str


Change = SetVolume | SetMute | SetControl | SwitchCodec
"""A write to the hardware; `field` names the spec field that it is for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecTry:
    """The last switch of a codec that was asked for."""

    serial: NodeSerial
    """Of PipeWire's device: the connection that it was for."""
    codec: str
    at: float
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What was done to one endpoint before; a fresh one after a restart of the agent."""

    serial: NodeSerial | None = None
    """The node incarnation that was last seen."""
    met_at: float | None = None
    """When that incarnation was first seen."""
    was_missing: bool = False
    """Whether PipeWire was seen without a node for it: the next node is a new one for certain."""
    has_rested: bool = False
    """Whether this incarnation's first sight is dealt with."""
    assumed: Percent | None = None
    """Volume that the node has for all we know, until it announces one."""
    live_since: float | None = None
    """When the node was first seen running, now that it runs."""
    limited_to: Percent | None = None
    """The claims' limit at the last look."""
    volume: Write | None = None
    mute: Write | None = None
    controls: Mapping[str, Write] = field(default_factory=dict)
    codec: CodecTry | None = None
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
    is_claimed: bool = False
    """Whether a claim holds it, admin access apart."""
    claim_limit: Percent | None = None
    """The lowest `maxVolume` of the classes by which it is claimed now."""
    claim_codec: str | None = None
    """The codec that a claim asks for."""
    reported: Percent | None = None
    """Volume in the stored status: an agent before this one has seen the node at it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """How the fields of one part stand, and what follows."""

    steps: Mapping[str, Step] = field(default_factory=dict)
    """By field of spec."""
    changes: tuple[Change, ...] = ()
    problems: tuple[RejectedField, ...] = ()
    memory: Memory


def control_field(key: str) -> str:
    """Name of a control's field, as messages give it."""
    return f'controls["{key}"]'


def write_failed(memory: Memory, name: str, text: str) -> Memory:
    """The memory when the write of field `name` failed: as if it had never been tried."""
    failures = {**memory.failures, name: text}
    if name == "volume":
        return replace(memory, volume=None, has_rested=False, failures=failures)
    if name == "mute":
        return replace(memory, mute=None, failures=failures)
    if name == "codec" and memory.codec is not None:
        return replace(memory, codec=replace(memory.codec, failure=text))
    kept = {key: write for key, write in memory.controls.items() if control_field(key) != name}
    return replace(memory, controls=kept, failures=failures)


def write_succeeded(memory: Memory, name: str) -> Memory:
    """The memory when the write of field `name` went through."""
    if name not in memory.failures:
        return memory
    failures = {key: text for key, text in memory.failures.items() if key != name}
    return replace(memory, failures=failures)
