"""Facts of the sound, from the cards' file and PipeWire to the API and back, by the whole agent."""

import json
from pathlib import Path

from tests.harness.cluster import Cluster
from tests.harness.node import DRIVER, Node
from tests.harness.processes import Programs, wait_until
from tests.harness.sound_stack import SoundStack
from tests.harness.tone import Recorder
from tests.harness.workloads import ANALOG, HDMI

SECONDS = 60


async def test_a_monitor_pulled_out_taints_its_device_and_plugged_in_again_clears_it(
    node: Node, virtual_cards: Path
) -> None:
    def taints() -> list[str]:
        (device,) = [each for each in node.devices() if each["name"] == f"{node.name}-{HDMI}"]
        return sorted(f"{each['key']}:{each['effect']}" for each in device.get("taints", ()))

    plugged = virtual_cards.read_text()
    lines = [line for line in plugged.splitlines() if "eld: 1000" in line]
    virtual_cards.write_text(plugged.replace(lines[0].strip(), 'eld: ""'))
    due = [f"{DRIVER}/disconnected:NoExecute", f"{DRIVER}/no-monitor:NoSchedule"]
    wait_until(lambda: taints() == due, f"the taints {due}", SECONDS)
    virtual_cards.write_text(plugged)
    wait_until(lambda: taints() == [], "no taint", SECONDS)


async def test_pipewire_restarted_brings_every_node_and_volume_back(
    node: Node, cluster: Cluster, sound_stack: SoundStack, workspace: Path
) -> None:
    sink = f"{node.name}-{ANALOG}"
    patch = json.dumps({"spec": {"volume": 50}})
    cluster.kubectl("patch", "sink", sink, "--type=merge", f"-p={patch}")

    def has_volume() -> bool:
        parameters = sound_stack.nodes()[sink]["params"].get("Props", ())
        return [0.125, 0.125] in [each.get("channelVolumes") for each in parameters]

    with Programs(workspace) as programs:
        for is_restarted in (False, True):
            if is_restarted:
                sound_stack.restart_pipewire()
            wait_until(lambda: sink in sound_stack.nodes(), "the node", SECONDS)
            # An adapter tells its volume only while it runs, so somebody listens.
            recorder = Recorder(sound_stack, programs, sink)
            recorder.start()
            wait_until(has_volume, "the volume", SECONDS)
            recorder.stop()
