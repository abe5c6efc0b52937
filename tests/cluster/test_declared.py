"""What is declared in a Sink, kept by a whole agent whatever happens around it."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.harness.cluster import Cluster
from tests.harness.control_plane import ControlPlane
from tests.harness.kubelet_role import KubeletRole
from tests.harness.node import Node
from tests.harness.processes import Programs, wait_until
from tests.harness.sound_stack import SoundStack
from tests.harness.tone import Recorder
from tests.harness.workloads import ANALOG, HDMI, Namespace

SECONDS = 60
ANOTHER_BOOT = "b1e7c0de-0000-4000-8000-00000000b007"
WRITES = "hardware_writes_total"


async def until(is_so: Callable[[], bool], what: str) -> None:
    await asyncio.to_thread(wait_until, is_so, what, SECONDS)


async def test_without_an_api_server_declared_volumes_known_claims_and_unprepare_go_on(
    control_plane: ControlPlane,
    node: Node,
    kubelet: KubeletRole,
    namespace: Namespace,
    cluster: Cluster,
    sound_stack: SoundStack,
    workspace: Path,
) -> None:
    """U81, short: PipeWire restarts meanwhile, so that every node is a new one."""
    sink = f"{node.name}-{ANALOG}"
    named = f"metadata.name={sink}"
    patch = json.dumps({"spec": {"volume": 50}})
    await until(lambda: bool(cluster.items("sinks", f"--field-selector={named}")), "the Sink")
    await asyncio.to_thread(cluster.kubectl, "patch", "sink", sink, "--type=merge", f"-p={patch}")
    await until(lambda: observed(cluster, sink) == 50, "the volume in status")
    claim = namespace.allocate(HDMI)
    before = await kubelet.prepare([claim])
    agent = node.agent.pid

    with control_plane.programs()["apiserver"].frozen():
        await asyncio.to_thread(sound_stack.restart_pipewire)
        await until(lambda: sink in sound_stack.nodes(), "the node")
        with Programs(workspace) as programs:
            # An adapter tells its volume only while it runs, so somebody listens.
            recorder = Recorder(sound_stack, programs, sink)
            await asyncio.to_thread(recorder.start)
            await until(
                lambda: [0.125, 0.125] in volumes(sound_stack, sink),
                "the declared volume on the new node",
            )
            await asyncio.to_thread(recorder.stop)
        assert await kubelet.prepare([claim]) == before
        await kubelet.unprepare([claim])
        assert node.cdi_files() == []
    await until(lambda: not node.not_ready(), "the agent to follow the server again")
    await asyncio.to_thread(
        cluster.kubectl, "patch", "sink", sink, "--type=merge", '-p={"spec":{"volume":60}}'
    )
    await until(lambda: observed(cluster, sink) == 60, "the next volume in status")
    assert node.agent.pid == agent


async def test_after_a_reboot_a_declared_volume_is_set_once_and_status_is_right_again(
    node: Node, cluster: Cluster, sound_stack: SoundStack, workspace: Path
) -> None:
    sink = f"{node.name}-{ANALOG}"
    named = f"--field-selector=metadata.name={sink}"
    patch = json.dumps({"spec": {"volume": 50}})
    await until(lambda: bool(cluster.items("sinks", named)), "the Sink")
    await asyncio.to_thread(cluster.kubectl, "patch", "sink", sink, "--type=merge", f"-p={patch}")
    await until(lambda: observed(cluster, sink) == 50, "the volume in status")
    node.agent.kill()
    await asyncio.to_thread(sound_stack.restart_pipewire)
    node.boot_id = ANOTHER_BOOT
    await asyncio.to_thread(node.start_agent)

    await until(lambda: node_writes(node) == 1, "one write to the hardware")
    with Programs(workspace) as programs:
        recorder = Recorder(sound_stack, programs, sink)
        await asyncio.to_thread(recorder.start)
        await until(lambda: [0.125, 0.125] in volumes(sound_stack, sink), "the declared volume")
        # By hand, and corrected: what was to be written before would have come before that.
        number = str(sound_stack.nodes()[sink]["props"]["object.id"])
        loud = "{ channelVolumes: [ 1.0, 1.0 ] }"
        await asyncio.to_thread(sound_stack.run, "pw-cli", "set-param", number, "Props", loud)
        await until(lambda: node_writes(node) == 2, "a second write, for the hand's")
        await until(lambda: [0.125, 0.125] in volumes(sound_stack, sink), "the volume put back")
        await asyncio.to_thread(recorder.stop)
    assert node_writes(node) == 2
    assert observed(cluster, sink) == 50


def observed(cluster: Cluster, sink: str) -> int | None:
    status = cluster.get("sink", sink).get("status", {})
    volume: int | None = status.get("observed", {}).get("volume")
    return volume


def volumes(stack: SoundStack, name: str) -> list[Any]:
    """What the node's parameters say of its volume, linear by channel."""
    shown = stack.nodes().get(name, {}).get("params", {}).get("Props", ())
    return [each.get("channelVolumes") for each in shown]


def node_writes(node: Node) -> float:
    """Writes of volumes, mutes and controls by the agent that runs now."""
    (count,) = [value for name, value in node.metrics().items() if WRITES in name]
    return count
