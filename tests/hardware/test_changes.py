"""A screen comes, sleeps and changes; cards come in another order and under other numbers.

QEMU's HDMI card answers no monitor, so a PCM of snd-dummy is given an ELD control by a program: the
kernel's ioctls and events are those of a driver's.
"""

import json
import time
from collections.abc import Callable
from functools import partial

import pytest

from tests.hardware.conftest import (
    ANALOG,
    DAC,
    DUMMIES,
    SECONDS,
    STICK,
    STICK_SERIAL,
    TONE_HZ,
    Machine,
)
from tests.harness.guest import inside, node, screen
from tests.harness.processes import wait_until

pytestmark = pytest.mark.timeout(1500)
SCREEN, OTHER = DUMMIES
DISCONNECTED, NO_MONITOR = "audio.liken.sh/disconnected", "audio.liken.sh/no-monitor"
DEBOUNCE_SECONDS = 3
PLAYED_BY_HAND = "Audio Output Volume Control Playback Volume"
"""Of QEMU's USB card."""


def test_a_monitor_that_comes_takes_the_taint_away_and_one_that_changes_is_published(
    machine: Machine,
) -> None:
    machine.wait_devices(SCREEN)
    card = machine.card_number(SCREEN)
    machine.guest.call(screen.add_eld, card, 0)
    _within(machine, "taint", lambda: machine.taints(SCREEN) == [DISCONNECTED, NO_MONITOR])
    for name, product in (("Lab TV", 0x1234), ("Lab Wall", 0x4321)):
        machine.guest.call(screen.set_eld, card, 0, screen.eld(name, product=product))
        _within(machine, name, partial(_has_monitor, machine, name))
        _within(machine, "no taint", lambda: machine.taints(SCREEN) == [])
        attributes = machine.devices()[machine.device_name(SCREEN)]["attributes"]
        assert attributes["product"] == {"string": f"{product:04x}"}
        assert attributes["connectionType"] == {"string": "hdmi"}
    monitor = machine.sink(SCREEN)["status"]["monitor"]
    assert "Lab Wall" in json.dumps(monitor)


def test_a_screen_that_sleeps_for_a_second_is_not_tainted_and_one_that_stays_away_is(
    machine: Machine,
) -> None:
    machine.wait_devices(SCREEN)
    card = machine.card_number(SCREEN)
    if machine.device_attribute(SCREEN, "monitorName") is None:
        machine.guest.call(screen.add_eld, card, 0)
    lab_tv = screen.eld("Lab TV")
    machine.guest.call(screen.set_eld, card, 0, lab_tv)
    _within(machine, "Lab TV", lambda: _monitor(machine) == "Lab TV")
    machine.wait_devices(SCREEN)
    before = machine.devices()[machine.device_name(SCREEN)]
    slept = machine.guest.call(screen.sleep, card, 0, lab_tv, 1.0)
    # Events of one card come in order: who saw this one saw the screen go and come.
    machine.guest.call(
        inside.run, ["amixer", "-q", "-c", str(card), "cset", "name=Master Volume", "17"]
    )
    _within(machine, "17", lambda: _observed(machine, SCREEN, "Master Volume").startswith("17"))
    if slept < DEBOUNCE_SECONDS - 1:
        assert machine.devices()[machine.device_name(SCREEN)] == before
    machine.guest.call(screen.set_eld, card, 0, [0] * screen.ELD_BYTES)
    _within(machine, "taint", lambda: machine.taints(SCREEN) == [DISCONNECTED, NO_MONITOR])
    machine.guest.call(screen.set_eld, card, 0, lab_tv)
    machine.wait_devices(SCREEN)


def test_equal_cards_that_come_in_another_order_keep_their_names(machine: Machine) -> None:
    machine.wait_devices(SCREEN, OTHER)
    before = [machine.card_number(name) for name in DUMMIES]
    for number in (0, 1):
        machine.guest.call(node.drive, "platform", "snd_dummy", f"snd_dummy.{number}", False)
    for number in (1, 0):
        machine.guest.call(node.drive, "platform", "snd_dummy", f"snd_dummy.{number}", True)
    _within(
        machine,
        "numbers",
        lambda: [machine.card_number(name) for name in DUMMIES] == [before[1], before[0]],
    )
    machine.wait_devices(SCREEN, OTHER)


def test_a_usb_card_under_another_number_has_its_name_its_controls_and_what_played_to_it(
    machine: Machine,
) -> None:
    machine.wait_devices(DAC, ANALOG)
    machine.declare(DAC, {PLAYED_BY_HAND: "200"})
    _within(machine, "200", lambda: _observed(machine, DAC, PLAYED_BY_HAND).startswith("200"))
    before = machine.card_number(DAC)
    # As a claim's streams are: they wait for their node, and go to no other.
    player = machine.play(DAC, "node.dont-fallback=true node.linger=true")
    try:
        played = machine.guest.played("dac")
        wait_until(lambda: played.is_heard(TONE_HZ), "sound", SECONDS)
        machine.guest.unplug("dac")
        _within(machine, "no card", lambda: DAC not in machine.guest.call(node.node_names))
        machine.guest.plug("stick", serial=STICK_SERIAL)
        machine.wait_devices(STICK)
        machine.guest.plug("dac", serial="SN4711")
        # QEMU begins the file anew.
        played = machine.guest.played("dac")
        _within(machine, "number", lambda: machine.card_number(DAC) != before)
        machine.wait_devices(DAC)
        _within(machine, "200", lambda: _observed(machine, DAC, PLAYED_BY_HAND).startswith("200"))
        wait_until(lambda: played.is_heard(TONE_HZ), "sound once more", SECONDS)
    finally:
        machine.stop(player)
        machine.declare(DAC, None)
        if STICK in machine.guest.call(node.node_names):
            machine.guest.unplug("stick")


def _within(machine: Machine, what: str, is_so: Callable[[], bool]) -> None:
    """Wait for something, and print how long it took the guest."""
    began = time.monotonic()
    try:
        wait_until(is_so, what, SECONDS)
    except Exception as error:
        raise AssertionError(f"{error}\n{machine.state()}") from error
    print(f"{what}: {time.monotonic() - began:.1f} s")


def _has_monitor(machine: Machine, name: str) -> bool:
    return _monitor(machine) == name


def _monitor(machine: Machine) -> str | None:
    return machine.device_attribute(SCREEN, "monitorName")


def _observed(machine: Machine, name: str, control: str) -> str:
    observed = machine.sink(name)["status"]["observed"].get("controls", {})
    return str(observed.get(control, ""))
