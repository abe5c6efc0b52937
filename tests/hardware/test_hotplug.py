"""USB cards come and go while another card plays."""

import pytest

from tests.hardware.conftest import ANALOG, LOUD, SECONDS, STICK, STICK_SERIAL, TONE_HZ, Machine
from tests.harness.guest import node
from tests.harness.processes import wait_until

pytestmark = pytest.mark.timeout(2400)
TIMES = 20
GAP_SECONDS = 1.0
"""An emulated processor may itself be late by some tenths of a second."""


def test_a_usb_card_plugged_and_pulled_twenty_times_leaves_nothing_and_another_sink_plays_on(
    machine: Machine,
) -> None:
    machine.wait_devices(ANALOG)
    _cycle(machine)
    files, nodes = machine.guest.call(node.agent_files), machine.guest.call(node.node_names)
    played = machine.guest.played("analog")
    machine.declare(ANALOG, LOUD)
    player = machine.play(ANALOG)
    try:
        wait_until(lambda: played.is_heard(TONE_HZ), "sound", SECONDS)
        played = machine.guest.played("analog")
        for _ in range(TIMES):
            _cycle(machine)
        gap = played.longest_gap_seconds()
    finally:
        machine.stop(player)
    assert gap < GAP_SECONDS, f"{gap} s without sound in {played.seconds:.0f} s"
    wait_until(
        lambda: len(machine.guest.call(node.agent_files)) <= len(files),
        "as many files open as before",
        SECONDS,
    )
    now = {*machine.guest.call(node.node_names)}
    assert not {*nodes} - now, "nodes that are gone"
    assert not now - {*nodes} - ({*machine.devices()} - {STICK}), "nodes of nothing"
    wait_until(lambda: "audio.liken.sh/disconnected" in machine.taints(STICK), "the taint", SECONDS)


def _cycle(machine: Machine) -> None:
    """Plug in and pull out; asked of the cluster, since each look in the guest takes its processor."""
    machine.guest.plug("stick", serial=STICK_SERIAL)
    wait_until(lambda: machine.condition(STICK, "Ready")[0] == "True", "a ready Sink", SECONDS)
    machine.guest.unplug("stick")
    wait_until(lambda: machine.condition(STICK, "Ready")[0] == "False", "no node", SECONDS)
