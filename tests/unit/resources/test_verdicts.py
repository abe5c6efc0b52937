"""The conditions of one endpoint: every silence has its reason and a next step."""

from typing import Any

import pytest

from liken_audio.graph.eld import decode
from liken_audio.graph.model import Control, ControlType, Direction, Endpoint, Fault
from liken_audio.resources.conditions import ConditionStatus, Reason
from liken_audio.resources.v1alpha1 import Observed, RejectedField, Spec
from liken_audio.resources.verdicts import (
    Standing,
    applied,
    connected,
    gone,
    ready,
    silent_switch,
    silent_volume,
    starting,
)
from tests.builders import (
    HDMI_ELD,
    card,
    control,
    endpoint,
    hdmi_pcm,
    jack,
    microphone_pcm,
    node,
)

ABSENT = endpoint(card=card(is_present=False))
HEARD = Observed(volume=50, is_muted=False)


def with_controls(*controls: Control, direction: Direction = Direction.PLAYBACK) -> Endpoint:
    if direction is Direction.CAPTURE:
        return endpoint(pcm=microphone_pcm(), controls=controls)
    return endpoint(controls=controls)


def switch(name: str, *, is_on: bool = True, index: int = 0) -> Control:
    return control(name, index=index, values=(int(is_on),))


@pytest.mark.parametrize(
    ("one", "fault", "status", "reason"),
    [
        pytest.param(
            endpoint(jack=jack("Headphone Jack")), None, "True", "Connected", id="jack-plugged"
        ),
        pytest.param(
            endpoint(pcm=hdmi_pcm(), monitor=decode(HDMI_ELD)),
            None,
            "True",
            "Connected",
            id="monitor",
        ),
        pytest.param(endpoint(), None, "True", "NotDetectable", id="nothing-can-tell"),
        pytest.param(
            endpoint(jack=jack("Headphone Jack", is_plugged=False)),
            Fault.UNPLUGGED,
            "False",
            "Unplugged",
            id="jack-out",
        ),
        pytest.param(
            endpoint(pcm=hdmi_pcm()), Fault.NO_MONITOR, "False", "NoMonitor", id="no-monitor"
        ),
        pytest.param(ABSENT, Fault.UNPLUGGED, "False", "CardAbsent", id="card-out"),
        pytest.param(
            endpoint(jack=jack("Line Out Jack")),
            Fault.GRAPH_LOST,
            "True",
            "Connected",
            id="graph-lost",
        ),
    ],
)
def test_connected_tells_what_is_plugged_in(
    one: Endpoint, fault: Fault | None, status: str, reason: str
) -> None:
    found = connected(one, fault)
    assert (found.status, found.reason) == (status, reason)


@pytest.mark.parametrize(
    ("one", "fault", "observed", "reason", "hint"),
    [
        pytest.param(endpoint(), None, HEARD, Reason.READY, "can be played", id="fine"),
        pytest.param(
            endpoint(), Fault.GRAPH_LOST, HEARD, Reason.GRAPH_LOST, "pipewire container", id="lost"
        ),
        pytest.param(
            endpoint(node=None, obstacle="another program has it open"),
            Fault.NO_NODE,
            HEARD,
            Reason.NO_NODE,
            "can't have a node for it: another program has it open",
            id="busy",
        ),
        pytest.param(
            endpoint(node=None), Fault.NO_NODE, HEARD, Reason.NO_NODE, "log", id="no-node"
        ),
        pytest.param(
            endpoint(node=node("a", state="error", error="Device or resource busy")),
            Fault.NO_NODE,
            HEARD,
            Reason.NODE_ERROR,
            "Device or resource busy",
            id="node-in-error",
        ),
        pytest.param(
            endpoint(), Fault.NO_MONITOR, HEARD, Reason.NO_MONITOR, "plug", id="no-monitor"
        ),
        pytest.param(endpoint(), Fault.UNPLUGGED, HEARD, Reason.UNPLUGGED, "plug", id="unplugged"),
        pytest.param(ABSENT, Fault.UNPLUGGED, HEARD, Reason.CARD_ABSENT, "plug", id="card-absent"),
        pytest.param(
            endpoint(),
            None,
            Observed(volume=50, is_muted=True),
            Reason.MUTED,
            "spec.mute to false",
            id="muted",
        ),
        pytest.param(
            endpoint(),
            None,
            Observed(volume=0),
            Reason.VOLUME_ZERO,
            "spec.volume",
            id="volume-zero",
        ),
        pytest.param(
            with_controls(switch("Master Playback Switch", is_on=False)),
            None,
            HEARD,
            Reason.SWITCH_OFF,
            "spec.controls['Master Playback Switch'] to \"on\"",
            id="switch-off",
        ),
        pytest.param(
            endpoint(node=None),
            Fault.NO_MONITOR,
            HEARD,
            Reason.NO_MONITOR,
            "",
            id="outermost-first",
        ),
    ],
)
def test_ready_tells_why_not_and_what_to_do(
    one: Endpoint, fault: Fault | None, observed: Observed, reason: Reason, hint: str
) -> None:
    found = ready(one, fault, Spec(), observed)
    assert found.reason is reason
    assert found.status == ("True" if reason is Reason.READY else "False")
    assert hint in found.message


def test_a_microphone_is_ready_to_record() -> None:
    one = endpoint(pcm=microphone_pcm())
    assert "recorded" in ready(one, None, Spec(), HEARD).message


def test_a_declared_mute_says_that_it_is_declared() -> None:
    found = ready(endpoint(), None, Spec(is_muted=True), Observed(is_muted=True))
    assert "as spec.mute says" in found.message


@pytest.mark.parametrize(
    ("controls", "silent"),
    [
        pytest.param(
            [switch("IEC958 Playback Switch", is_on=False)], "IEC958 Playback Switch", id="hdmi"
        ),
        pytest.param([switch("Master Playback Switch")], None, id="on"),
        pytest.param(
            [switch("Headphone Playback Switch", is_on=False), switch("Speaker Playback Switch")],
            None,
            id="one-of-two-plugs-is-on",
        ),
        pytest.param(
            [
                switch("Headphone Playback Switch", is_on=False),
                switch("Speaker Playback Switch", is_on=False),
            ],
            "Headphone Playback Switch",
            id="all-plugs-off",
        ),
        pytest.param(
            [
                switch("Mic Playback Switch", is_on=False),
                switch("Loopback Playback Switch", is_on=False),
            ],
            None,
            id="monitoring-of-inputs-is-off",
        ),
        pytest.param(
            [control("Master Playback Switch", values=None)],
            None,
            id="a-switch-that-can-not-be-read",
        ),
        pytest.param([switch("Auto-Mute Mode", is_on=False)], None, id="no-playback-switch"),
    ],
)
def test_which_switch_makes_silence(controls: list[Control], silent: str | None) -> None:
    assert silent_switch(with_controls(*controls)) == silent


def test_a_capture_switch_silences_a_microphone_only() -> None:
    off = switch("Capture Switch", is_on=False)
    assert silent_switch(with_controls(off, direction=Direction.CAPTURE)) == "Capture Switch"
    assert silent_switch(with_controls(off)) is None


def test_of_a_card_with_two_converters_each_input_has_its_own_switch() -> None:
    on, off = switch("Capture Switch"), switch("Capture Switch", is_on=False, index=1)
    first, second = microphone_pcm(), microphone_pcm(device=2)
    both = card(first, second)
    one, other = (endpoint(card=both, pcm=pcm, controls=(on, off)) for pcm in both.pcms)
    assert silent_switch(one) is None
    assert silent_switch(other) == "Capture Switch,index=1"
    lonely = endpoint(card=card(first), pcm=first, controls=(off,))
    assert silent_switch(lonely) == "Capture Switch,index=1"


def volume(name: str, *values: int, lowest: float | None = -65.25, **changes: Any) -> Control:
    fields = {"maximum": 87, "min_decibels": lowest, "max_decibels": 0.0, "channels": len(values)}
    return control(name, type=ControlType.INTEGER, values=values, **(fields | changes))


@pytest.mark.parametrize(
    ("controls", "silent"),
    [
        pytest.param([volume("Master Playback Volume", 0, 0)], "Master Playback Volume", id="all"),
        pytest.param([volume("Master Playback Volume", 0, 1)], None, id="one-channel-is-up"),
        pytest.param(
            [volume("Headphone Playback Volume", 0), volume("Speaker Playback Volume", 50)],
            None,
            id="one-plug-is-up",
        ),
        pytest.param(
            [volume("Headphone Playback Volume", 0), volume("Speaker Playback Volume", 0)],
            "Headphone Playback Volume",
            id="all-plugs-down",
        ),
        pytest.param([volume("PCM Playback Volume", 0, lowest=-37.0)], None, id="soft-is-heard"),
        pytest.param(
            [volume("PCM Playback Volume", 0, lowest=-37.0, is_silent_at_minimum=True)],
            "PCM Playback Volume",
            id="the-lowest-step-mutes",
        ),
        pytest.param([volume("PCM Playback Volume", 0, lowest=None)], None, id="nothing-is-known"),
        pytest.param([volume("PCM Playback Volume", 0, maximum=0)], None, id="no-range"),
        pytest.param(
            [volume("A.Mstr Vol Volume", 67, maximum=50, lowest=-50.0)], None, id="out-of-range"
        ),
        pytest.param([volume("Mic Playback Volume", 0)], None, id="monitoring-of-an-input"),
        pytest.param([volume("PCM Playback Volume", 0, is_inactive=True)], None, id="inactive"),
        pytest.param([control("PCM Playback Volume", values=None)], None, id="not-readable"),
    ],
)
def test_which_volume_of_the_card_makes_silence(
    controls: list[Control], silent: str | None
) -> None:
    one = with_controls(*controls)
    assert silent_volume(one) == silent
    found = ready(one, None, Spec(), HEARD)
    assert found.reason is (Reason.VOLUME_ZERO if silent else Reason.READY)
    assert f"spec.controls[{silent!r}]" in found.message or not silent


def test_a_microphone_turned_all_the_way_down_says_so() -> None:
    down = volume("Capture Volume", 0, 0, lowest=-74.0)
    assert silent_volume(with_controls(down, direction=Direction.CAPTURE)) == "Capture Volume"
    quiet = volume("Capture Volume", 0, 0, lowest=-17.25)
    assert silent_volume(with_controls(quiet, direction=Direction.CAPTURE)) is None


def problem(reason: Reason, message: str) -> RejectedField:
    return RejectedField("volume", reason, message)


def test_applied_has_all_messages_and_the_first_reason() -> None:
    standing = Standing(
        problems=(problem(Reason.INVALID_VALUE, "first"), problem(Reason.WRITE_FAILED, "second")),
        waiting=("mute",),
    )
    found = applied(Spec(volume=5), standing)
    assert (found.status, found.reason) == (ConditionStatus.FALSE, Reason.INVALID_VALUE)
    assert found.message == "first; second"


@pytest.mark.parametrize(
    ("spec", "standing", "status", "reason"),
    [
        (Spec(), Standing(), "True", "NothingDeclared"),
        (Spec(volume=5), Standing(), "True", "Applied"),
        (Spec(volume=5), Standing(unconfirmed=("volume",)), "True", "Unconfirmed"),
        (Spec(volume=5), Standing(pending=("volume",)), "Unknown", "Unconfirmed"),
        (Spec(volume=5), Standing(waiting=("volume",)), "Unknown", "Waiting"),
    ],
)
def test_applied_without_problems(spec: Spec, standing: Standing, status: str, reason: str) -> None:
    found = applied(spec, standing)
    assert (found.status, found.reason) == (status, reason)


def test_the_first_seconds_are_unknown() -> None:
    assert (starting().status, starting().reason) == ("Unknown", "Starting")


def test_a_gone_device_says_so_in_all_three() -> None:
    assert [(one.type, one.status, one.reason) for one in gone()] == [
        (kind, "False", "DeviceGone") for kind in ("Connected", "Ready", "Applied")
    ]
