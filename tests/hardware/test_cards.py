"""Emulated cards, real drivers, the whole agent: found, played through, and heard behind the card."""

import pytest

from tests.hardware.conftest import ANALOG, DAC, LOUD, SECONDS, TONE_HZ, TV, VIRTIO, Machine
from tests.harness.guest import inside, node
from tests.harness.processes import wait_until

pytestmark = pytest.mark.timeout(1500)


def test_a_card_whose_switch_is_off_says_so_and_is_heard_once_its_sink_declares_it_on(
    machine: Machine,
) -> None:
    machine.wait_devices(ANALOG)
    machine.declare(ANALOG, None)
    card = _card_number(machine)
    machine.guest.call(inside.run, ["amixer", "-q", "-c", card, "sset", "Master", "mute"])
    wait_until(lambda: machine.condition(ANALOG, "Ready")[0] == "False", "not Ready", SECONDS)
    assert "'Master Playback Switch' is off" in machine.condition(ANALOG, "Ready")[1]
    machine.declare(ANALOG, LOUD)
    wait_until(lambda: machine.condition(ANALOG, "Ready")[0] == "True", "Ready", SECONDS)
    shown = machine.guest.call(inside.run, ["amixer", "-c", card, "sget", "Master"])
    assert "Playback 74 [100%]" in shown
    assert "[on]" in shown


@pytest.mark.parametrize(
    ("name", "card", "connection"),
    [(ANALOG, "analog", "analog"), (VIRTIO, "virt", "analog"), (DAC, "dac", "usb")],
    ids=["hda", "virtio", "usb"],
)
def test_a_card_of_each_kind_is_found_and_what_is_played_to_its_node_leaves_the_card(
    machine: Machine, name: str, card: str, connection: str
) -> None:
    machine.wait_devices(name)
    attributes = machine.devices()[machine.device_name(name)]["attributes"]
    assert attributes["connectionType"] == {"string": connection}
    assert attributes["nodeName"] == {"string": machine.device_name(name)}
    if name == ANALOG:
        machine.declare(ANALOG, LOUD)
    assert_heard(machine, name, card)


def test_a_screen_without_a_monitor_is_found_and_tainted(machine: Machine) -> None:
    machine.wait_devices(ANALOG)
    assert machine.taints(TV) == ["audio.liken.sh/disconnected", "audio.liken.sh/no-monitor"]
    attributes = machine.devices()[machine.device_name(TV)]["attributes"]
    assert attributes["connectionType"] == {"string": "hdmi"}


def test_inventory_names_what_the_agent_publishes(machine: Machine) -> None:
    machine.wait_devices(ANALOG, VIRTIO, DAC)
    command = [machine.guest.call(inside.python), "-m", "liken_audio", "inventory"]
    shown = machine.guest.call(inside.run, [*command, f"--node={machine.name}"])
    assert {line.split()[0] for line in shown.splitlines()[1:]} == set(machine.devices())


def test_what_is_turned_on_the_card_is_seen_in_the_sinks_status(machine: Machine) -> None:
    machine.wait_devices(ANALOG)
    machine.declare(ANALOG, None)
    command = ["amixer", "-q", "-c", _card_number(machine), "sset", "Master", "33"]
    began = machine.guest.call(inside.uptime)
    machine.guest.call(inside.run, command)

    def observed() -> str:
        return str(machine.sink(ANALOG)["status"]["observed"]["controls"]["Master Playback Volume"])

    wait_until(lambda: observed() == "33", "33 in the Sink's status", SECONDS)
    print(f"seen after {machine.guest.call(inside.uptime) - began:.1f} s of the guest")


def test_an_agent_that_is_killed_and_started_again_interrupts_nothing_that_plays(
    machine: Machine,
) -> None:
    machine.wait_devices(ANALOG)
    machine.declare(ANALOG, LOUD)
    player = machine.play(ANALOG)
    try:
        played = machine.guest.played("analog")
        wait_until(lambda: played.is_heard(TONE_HZ), "sound", SECONDS)
        before = machine.guest.call(node.node_properties, machine.device_name(ANALOG))
        links = machine.guest.call(node.links)
        assert links
        machine.guest.call(node.kill_agent)
        played = machine.guest.played("analog")
        machine.guest.call(node.start_agent)
        machine.wait_devices(ANALOG)
        wait_until(lambda: played.is_heard(TONE_HZ), "sound after the restart", SECONDS)
        after = machine.guest.call(node.node_properties, machine.device_name(ANALOG))
        assert after["object.serial"] == before["object.serial"], "the node was made anew"
        assert machine.guest.call(node.links) == links, "the stream was linked anew"
        assert machine.guest.call(inside.is_running, player)
        # Not held to a bound: where the processor is emulated, a busy machine makes gaps of its own.
        print(f"longest gap: {played.longest_gap_seconds():.2f} s of {played.seconds:.0f} s")
    finally:
        machine.stop(player)


def assert_heard(machine: Machine, name: str, card: str) -> None:
    played = machine.guest.played(card)
    player = machine.play(name)
    try:
        wait_until(lambda: played.is_heard(TONE_HZ), f"the tone from {card}", SECONDS)
    finally:
        machine.stop(player)


def _card_number(machine: Machine) -> str:
    device = machine.devices()[machine.device_name(ANALOG)]
    return str(device["attributes"]["card"]["int"])
