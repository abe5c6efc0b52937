"""An API server of 1.34's kind, without our kinds: what the agent does without, and finds later."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.cluster import Cluster, Json
from tests.harness.control_plane import ControlPlane, control_plane_program
from tests.harness.node import DRIVER, TREE, Node
from tests.harness.processes import HarnessError, Workspace, wait_until
from tests.harness.sound_stack import SoundStack
from tests.harness.workloads import HDMI, Namespace

SECONDS = 45
WRITES = 'liken_audio_api_writes_total{loop="publisher"}'
GATES = "DRADeviceTaints=false,DRADeviceTaintRules=false,DRAConsumableCapacity=false"
CRDS = str(TREE / "manifests" / "crds")


@pytest.fixture(scope="module")
def control_plane() -> Iterator[ControlPlane]:
    """A control plane of the module's own, with the gates as they are by default in 1.34 and 1.35."""
    try:
        control_plane_program()
    except HarnessError as error:
        pytest.skip(str(error))
    with Workspace("old") as made:
        plane = ControlPlane(made.folder("control-plane"))
        plane.feature_gates = GATES
        with plane:
            yield plane


@pytest.fixture(scope="module")
def cluster(control_plane: ControlPlane) -> Cluster:
    """kubectl on it; nobody installed our kinds."""
    examples = TREE / "manifests" / "examples" / "classes.yaml"
    control_plane.cluster.kubectl("apply", "-f", str(examples))
    return control_plane.cluster


@pytest.fixture
def node(
    cluster: Cluster, sound_stack: SoundStack, workspace: Path, virtual_cards: Path
) -> Iterator[Node]:
    """A node with the example's devices; the cluster ends with the module, and so nothing is deleted."""
    name = workspace.name[-8:].replace("_", "-").strip("-")
    cluster.make_node(name)
    folder = workspace / "node"
    with Node(folder, name, cluster=cluster, stack=sound_stack, virtual=virtual_cards) as made:
        wait_until(lambda: len(made.devices()) == 4, "the devices", SECONDS)
        yield made


def said(node: Node, event: str) -> list[dict[str, object]]:
    """The agent's lines of a kind."""
    lines = [json.loads(line) for line in node.agent.log.read_text().splitlines()]
    return [line for line in lines if line["event"].startswith(event)]


def unserved(node: Node) -> list[str]:
    """What the agent says of kinds that aren't installed."""
    return [line for line in node.not_ready() if "install the custom resource definitions" in line]


def objects(cluster: Cluster, node: Node) -> Json | None:
    """All four objects of the node, or None while one is missing."""
    found = cluster.items("sinks,sources", f"-l={DRIVER}/node={node.name}")
    return {"items": found} if len(found) == 4 else None


async def test_claims_are_prepared_without_our_kinds_and_objects_come_with_them(
    node: Node, cluster: Cluster
) -> None:
    """U79: not there at first, deleted later, and back; the agent is never started anew."""
    async with node.kubelet() as kubelet:
        await kubelet.register(DRIVER)
        with Namespace(cluster, node.name) as namespace:
            claim = namespace.allocate(HDMI)
            await kubelet.prepare([claim])
            await kubelet.unprepare([claim])
        for _ in range(2):
            wait_until(lambda: len(unserved(node)) == 2, "both kinds named", SECONDS)
            cluster.kubectl("apply", "-k", CRDS)
            wait_until(lambda: not node.not_ready(), "readiness", SECONDS)
            cluster.wait_for("the objects", lambda: objects(cluster, node))
            cluster.kubectl("delete", "-k", CRDS)
    assert len(said(node, "agent started")) == 1
    node.agent.check()


async def test_fields_that_the_server_drops_are_named_once_and_come_when_it_takes_them(
    node: Node, control_plane: ControlPlane, virtual_cards: Path
) -> None:
    """Scenario 21: no loop of updates; with the gates on, the next change brings the taints."""
    assert not any("taints" in device for device in node.devices())
    text = virtual_cards.read_text()
    add = "      - {device: 9, id: Line 9}\n"
    virtual_cards.write_text(text + add)
    wait_until(lambda: len(node.devices()) == 5, "the fifth device", SECONDS)
    assert node.metrics()[WRITES] == 2
    assert len(said(node, "the API server doesn't store some fields")) == 1
    control_plane.feature_gates = ""
    control_plane.restart_apiserver()
    virtual_cards.write_text(text)
    wait_until(lambda: len(node.devices()) == 4, "the four devices", SECONDS)
    tainted = [device for device in node.devices() if "taints" in device]
    assert len(tainted) == 1
