"""One endpoint judged as a whole, and that it always converges."""

from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from liken_audio.graph.model import ControlType, Endpoint, Fault, Linear, NodeSerial
from liken_audio.resources.conditions import ConditionType, Reason
from liken_audio.resources.loudness import to_percent
from liken_audio.resources.reconcile import Outcome, reconcile
from liken_audio.resources.situation import (
    Memory,
    SetControl,
    SetMute,
    SetVolume,
    Situation,
    write_failed,
)
from liken_audio.resources.v1alpha1 import RejectedField, Spec
from tests.builders import card, control, endpoint, node

NODE = node("kitchen-pci-0000-00-1f-3-alc257-analog", state="running", volumes=(1.0, 1.0))


def situation(one: Endpoint | None = None, **changes: Any) -> Situation:
    fields: dict[str, Any] = {"endpoint": one or endpoint(node=NODE), "fault": None, "spec": Spec()}
    return Situation(**(fields | changes))


def condition(outcome: Outcome, kind: ConditionType) -> tuple[str, str, str]:
    (found,) = (one for one in outcome.conditions if one.type is kind)
    return str(found.status), str(found.reason), found.message


def applied(outcome: Outcome) -> tuple[str, str]:
    return condition(outcome, ConditionType.APPLIED)[:2]


def test_nothing_declared_on_a_node_at_rest_does_nothing() -> None:
    outcome = reconcile(situation(), Memory(), 0.0)
    assert outcome.changes == ()
    assert applied(outcome) == ("True", "NothingDeclared")
    assert outcome.recheck_at is None


def test_a_written_volume_is_pending_then_applied() -> None:
    first = reconcile(situation(spec=Spec(volume=50)), Memory(), 0.0)
    assert applied(first) == ("Unknown", "Unconfirmed")
    assert first.recheck_at is not None
    there = endpoint(node=replace(NODE, volumes=(0.125, 0.125)))
    second = reconcile(situation(there, spec=Spec(volume=50)), first.memory, 0.1)
    assert applied(second) == ("True", "Applied")


def test_a_believed_volume_is_marked_unconfirmed() -> None:
    """U20."""
    asleep = endpoint(node=replace(NODE, state="suspended"))
    outcome = reconcile(situation(asleep, spec=Spec(volume=50)), Memory(), 0.0)
    assert applied(outcome) == ("True", "Unconfirmed")
    assert outcome.observed.volume == 50
    again = reconcile(situation(asleep, spec=Spec(volume=50)), outcome.memory, 99.0)
    assert (again.changes, again.conditions) == ((), outcome.conditions)


def test_a_ceiling_over_a_sleeping_node_stays_unconfirmed() -> None:
    asleep = endpoint(node=replace(NODE, state="suspended"))
    first = reconcile(situation(asleep, spec=Spec(max_volume=60)), Memory(), 0.0)
    again = reconcile(situation(asleep, spec=Spec(max_volume=60)), first.memory, 9.0)
    assert again.conditions == first.conditions


def test_hardware_that_ignores_becomes_a_condition() -> None:
    """U36: at most two writes, observed stays what is read, the reason says so."""
    memory, writes = Memory(), 0
    for n in range(100):
        outcome = reconcile(situation(spec=Spec(volume=30)), memory, n / 10)
        memory, writes = outcome.memory, writes + len(outcome.changes)
    assert writes == 2
    assert outcome.observed.volume == 100
    status, reason, message = condition(outcome, ConditionType.APPLIED)
    assert (status, reason) == ("False", "NotConfirmed")
    assert "100" in message


def test_a_failed_write_is_told_with_its_error_and_tried_again() -> None:
    first = reconcile(situation(spec=Spec(volume=30)), Memory(), 0.0)
    memory = write_failed(first.memory, "volume", "Broken pipe")
    second = reconcile(situation(spec=Spec(volume=30)), memory, 1.0)
    assert len(second.changes) == 1
    status, reason, message = condition(second, ConditionType.APPLIED)
    assert (status, reason) == ("False", "WriteFailed")
    assert "Broken pipe" in message


def test_what_waits_for_a_node_says_so() -> None:
    one = endpoint(node=None, fault=Fault.NO_NODE)
    outcome = reconcile(
        situation(one, fault=Fault.NO_NODE, spec=Spec(volume=30, is_muted=True)), Memory(), 0.0
    )
    status, reason, message = condition(outcome, ConditionType.APPLIED)
    assert (status, reason) == ("Unknown", "Waiting")
    assert "volume, mute" in message


def test_controls_of_an_absent_card_wait() -> None:
    one = endpoint(card=card(is_present=False), fault=Fault.UNPLUGGED, node=None)
    spec = Spec(controls={"Loudness": "on"})
    outcome = reconcile(situation(one, fault=Fault.UNPLUGGED, spec=spec), Memory(), 0.0)
    assert applied(outcome) == ("Unknown", "Waiting")


def test_fields_for_bluetooth_are_refused_elsewhere() -> None:
    outcome = reconcile(situation(spec=Spec(codec="aac", is_connect_wanted=True)), Memory(), 0.0)
    status, reason, message = condition(outcome, ConditionType.APPLIED)
    assert (status, reason) == ("False", "NotSupported")
    assert "codec" in message
    assert "connect" in message


def test_rejected_fields_are_told_while_the_others_are_applied() -> None:
    rejected = (RejectedField("mute", Reason.INVALID_VALUE, "mute: 'yes' is neither"),)
    outcome = reconcile(situation(spec=Spec(volume=30), rejected=rejected), Memory(), 0.0)
    assert len(outcome.changes) == 1
    assert applied(outcome) == ("False", "InvalidValue")


def test_a_gap_of_the_node_leaves_ready_open() -> None:
    one = endpoint(node=None, fault=Fault.NO_NODE)
    outcome = reconcile(situation(one, is_settling=True), Memory(), 0.0)
    assert condition(outcome, ConditionType.READY)[:2] == ("Unknown", "Starting")


def test_a_muted_node_is_not_ready() -> None:
    outcome = reconcile(situation(endpoint(node=replace(NODE, is_muted=True))), Memory(), 0.0)
    assert condition(outcome, ConditionType.READY)[:2] == ("False", "Muted")


def test_status_lists_the_controls_with_their_values() -> None:
    """U44: the one that can't be read is listed without a value."""
    controls = (control("Loudness"), control("TL I2S Reference", values=None))
    outcome = reconcile(situation(endpoint(node=NODE, controls=controls)), Memory(), 0.0)
    assert outcome.observed.controls == {"Loudness": "on"}
    assert set(outcome.observed.capabilities) == {"Loudness", "TL I2S Reference"}
    assert outcome.observed.omitted_controls == 0


LEVEL = control("Level", type=ControlType.INTEGER, maximum=20, values=(7,))


@dataclass
class Machine:
    """A node and a card that take writes, or not, as a random script has it."""

    endpoint: Endpoint = field(default_factory=lambda: endpoint(node=NODE, controls=(LEVEL,)))
    spec: Spec = field(default_factory=Spec)
    memory: Memory = field(default_factory=Memory)
    now: float = 0.0
    hidden: tuple[float, bool] | None = None
    """What a suspended node really has."""
    writes: int = 0

    def act(self, action: tuple[str, Any]) -> None:
        kind, value = action
        its_node = self.endpoint.node
        match kind:
            case "declare":
                self.spec = value
            case "restart":
                self.memory = Memory()
            case "wait":
                self.now += value
            case "lose":
                self.endpoint = replace(self.endpoint, node=None, fault=Fault.NO_NODE)
                self.hidden = None
            case "make":
                self.endpoint = replace(
                    self.endpoint, node=replace(NODE, serial=NodeSerial(value)), fault=None
                )
                self.hidden = None
            case "sleep" if its_node and its_node.state == "running":
                self.hidden = (its_node.volumes[0], its_node.is_muted)
                self._node(state="suspended")
            case "wake" if self.hidden:
                self._wake()
            case "turn" if its_node and its_node.state == "running":
                self._node(volumes=(Linear(value), Linear(value)))
            case "level":
                self._level(value)
        self.settle()

    def _wake(self) -> None:
        assert self.hidden is not None
        volume, is_muted = self.hidden
        self.hidden = None
        self._node(state="running", volumes=(volume, volume), is_muted=is_muted)

    def _node(self, **changes: Any) -> None:
        assert self.endpoint.node is not None
        self.endpoint = replace(self.endpoint, node=replace(self.endpoint.node, **changes))

    def _level(self, value: int) -> None:
        self.endpoint = replace(self.endpoint, controls=(replace(LEVEL, values=(value,)),))

    def settle(self, passes: int = 4) -> None:
        for _ in range(passes):
            self.now += 0.05
            fault = self.endpoint.fault
            outcome = reconcile(
                Situation(endpoint=self.endpoint, fault=fault, spec=self.spec),
                self.memory,
                self.now,
            )
            self.memory = outcome.memory
            for change in outcome.changes:
                self.writes += 1
                self._take(change)

    def _take(self, change: object) -> None:
        is_asleep = self.hidden is not None
        match change:
            case SetVolume(volume=volume) if is_asleep:
                self.hidden = (volume, self.hidden[1] if self.hidden else False)
            case SetVolume(volume=volume):
                self._node(volumes=(volume, volume))
            case SetMute(is_muted=is_muted) if is_asleep:
                self.hidden = (self.hidden[0] if self.hidden else 1.0, is_muted)
            case SetMute(is_muted=is_muted):
                self._node(is_muted=is_muted)
            case SetControl(values=(value,)):
                self._level(value)


percents = st.integers(0, 100)
specs = st.builds(
    Spec,
    volume=st.none() | percents,
    max_volume=st.none() | percents,
    is_muted=st.none() | st.booleans(),
    controls=st.just({}) | st.integers(0, 20).map(lambda level: {"Level": str(level)}),
)
actions = st.one_of(
    st.tuples(st.just("declare"), specs),
    st.tuples(st.just("restart"), st.none()),
    st.tuples(st.just("wait"), st.floats(0.0, 100.0)),
    st.tuples(st.just("lose"), st.none()),
    st.tuples(st.just("make"), st.integers(41, 60)),
    st.tuples(st.just("sleep"), st.none()),
    st.tuples(st.just("wake"), st.none()),
    st.tuples(st.just("turn"), st.floats(0.0, 2.0)),
    st.tuples(st.just("level"), st.integers(0, 20)),
)


@given(st.lists(actions, max_size=25))
def test_whatever_happens_the_hardware_converges_to_what_is_declared(
    script: list[tuple[str, Any]],
) -> None:
    """Random edits, hands on the hardware, restarts, sleep and loss; and the writes are few."""
    machine = Machine()
    for action in script:
        before = machine.writes
        machine.act(action)
        assert machine.writes - before <= 3  # one for each of volume, mute and level
    for rounds in range(2):
        machine.act(("wait", 120.0))
        machine.act(("wake", None))
        machine.act(("wait", 5.0))
        if machine.endpoint.node is not None:
            assert_holds(machine)
        if rounds == 0:
            machine.act(("make", 99))
            assert_rests(machine)
    before = machine.writes
    machine.act(("wait", 1_000.0))
    assert machine.writes == before


def assert_holds(machine: Machine) -> None:
    """Declared values are on the hardware; nothing is louder than the ceiling."""
    its_node, spec = machine.endpoint.node, machine.spec
    assert its_node is not None
    limit = 200 if spec.max_volume is None else spec.max_volume
    heard = {to_percent(volume) for volume in its_node.volumes}
    assert max(heard) <= limit
    if spec.volume is not None:
        assert heard == {min(spec.volume, limit)}
    if spec.is_muted is not None:
        assert its_node.is_muted == spec.is_muted
    for level in spec.controls.values():
        assert machine.endpoint.controls[0].values == (int(level),)


def assert_rests(machine: Machine) -> None:
    """A new node without a declared volume is at 100, or at the ceiling."""
    its_node, spec = machine.endpoint.node, machine.spec
    assert its_node is not None
    if spec.volume is None:
        limit = 100 if spec.max_volume is None else spec.max_volume
        assert {to_percent(volume) for volume in its_node.volumes} == {limit}
