"""The agent with its own account's rights and no more: manifests/rights on a real API server."""

import asyncio
import json
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.cluster import Cluster, Json
from tests.harness.kubelet_role import KubeletRole
from tests.harness.node import DRIVER, TREE, Node, fresh_node
from tests.harness.processes import HarnessError, wait_until
from tests.harness.sound_stack import SoundStack
from tests.harness.workloads import HDMI, Namespace

ACCOUNT = "liken-audio"
SECONDS = 45


@pytest.fixture(scope="module")
def rights(cluster: Cluster) -> Iterator[Cluster]:
    """A cluster in which the agent's rights are installed, and in force."""
    where = str(TREE / "manifests" / "rights")
    cluster.kubectl("apply", "-k", where)
    agent = [f"--as=system:serviceaccount:{ACCOUNT}:{ACCOUNT}"]

    def in_force() -> Json | None:
        try:
            cluster.kubectl("create", "-f", "-", "--dry-run=server", *agent, body=slice_of("any"))
        except HarnessError as error:
            return {"refused": True} if "names no node" in str(error) else None
        return None

    cluster.wait_for("the policy in force", in_force)
    yield cluster
    cluster.kubectl("delete", "-k", where, "--wait=false")


def slice_of(node: str, name: str = "", driver: str = DRIVER, **spec: Any) -> str:
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name or f"slice-{uuid.uuid4().hex[:8]}"},
        "spec": {
            "driver": driver,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            **(spec or {"nodeName": node}),
        },
    }
    return json.dumps(body)


@pytest.fixture
def node(
    rights: Cluster, sound_stack: SoundStack, workspace: Path, virtual_cards: Path
) -> Iterator[Node]:
    """A node whose agent has the token of a pod on it, as a DaemonSet's pod has."""
    with fresh_node(rights, sound_stack, workspace / "node", virtual_cards) as made:
        made.agent.send(signal.SIGTERM)
        assert made.agent.wait(15) == 0
        made.flags["kubeconfig"] = str(kubeconfig(rights, made.name, workspace))
        made.start_agent()
        made.wait_published(4, 3)
        yield made
        rights.kubectl("delete", "pod", made.name, f"-n={ACCOUNT}", "--grace-period=0", "--force")


def kubeconfig(cluster: Cluster, node: str, folder: Path) -> Path:
    """A kubeconfig with a token that is bound to a pod on the node."""
    container = {"name": "agent", "image": "agent"}
    spec = {"serviceAccountName": ACCOUNT, "nodeName": node, "containers": [container]}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": node, "namespace": ACCOUNT},
        "spec": spec,
    }
    cluster.apply(pod)
    uid = cluster.get("pod", node, f"-n={ACCOUNT}")["metadata"]["uid"]
    bound = ["--bound-object-kind=Pod", f"--bound-object-name={node}", f"--bound-object-uid={uid}"]
    token = cluster.kubectl("create", "token", ACCOUNT, f"-n={ACCOUNT}", *bound).strip()
    document = json.loads(cluster.kubeconfig.read_text())
    document["users"][0]["user"] = {"token": token}
    made = folder / "kubeconfig"
    made.write_text(json.dumps(document))
    return made


def refusals(node: Node) -> list[str]:
    """Lines of the agent's log about rights that it lacks."""
    lines = node.agent.log.read_text().splitlines()
    return [line for line in lines if "orbidden" in line or " 403 " in line or " 422 " in line]


async def test_the_agents_own_rights_are_enough_for_all_that_it_does(
    node: Node, kubelet: KubeletRole, namespace: Namespace, virtual_cards: Path
) -> None:
    """Scenario 23: slices, Sinks, Events, claims and their status, over a wipe and an unplugged screen."""
    await asyncio.to_thread(node.wait_ready)
    claim = namespace.allocate(HDMI)
    await kubelet.prepare([claim])
    wait_until(lambda: bool(our_status(namespace, claim.name)), "the claim's status", SECONDS)
    await asyncio.to_thread(kubelet.wipe_slices)
    wait_until(lambda: len(node.devices()) == 4, "the slices again", SECONDS)
    text = virtual_cards.read_text()
    (line,) = [each for each in text.splitlines() if "eld: 1000" in each]
    virtual_cards.write_text(text.replace(line.strip(), 'eld: ""'))
    sink = namespace.device(HDMI)

    def events() -> bool:
        fields = f"--field-selector=regarding.name={sink}"
        found = node.cluster.items("events.events.k8s.io", "--all-namespaces", fields)
        return bool(found)

    wait_until(events, "an Event on the Sink", SECONDS)
    node.cluster.kubectl("delete", "sink", sink)
    node.cluster.wait_for("the Sink again", lambda: node.cluster.get("sink", sink))
    await kubelet.unprepare([claim])
    assert refusals(node) == []


def our_status(namespace: Namespace, claim: str) -> list[Json]:
    entries = namespace.claim(claim)["status"].get("devices", ())
    return [each for each in entries if each["driver"] == DRIVER]


async def test_an_agent_writes_slices_of_its_own_node_and_driver_alone(
    node: Node, workspace: Path
) -> None:
    """Scenario 23, with the agent's own token."""
    agent = Cluster(workspace / "kubeconfig")
    other = f"other-{node.name}"
    for body in (
        slice_of(other),
        slice_of(node.name, allNodes=True),
        slice_of(node.name, driver="gpu.example.com"),
    ):
        with pytest.raises(HarnessError, match="alone"):
            agent.kubectl("create", "-f", "-", body=body)
    name = f"foreign-{node.name}"
    node.cluster.kubectl("create", "-f", "-", body=slice_of(other, name))
    with pytest.raises(HarnessError, match="alone"):
        agent.kubectl("delete", "resourceslice", name)
    node.cluster.kubectl("delete", "resourceslice", name)
    agent.kubectl("create", "-f", "-", "--dry-run=server", body=slice_of(node.name))


def test_an_agent_that_is_told_the_wrong_node_says_so_and_lives(node: Node) -> None:
    """Scenario 23: refused, it neither ends nor is hot."""
    other = f"other-{node.name}"
    node.cluster.make_node(other)
    node.agent.send(signal.SIGTERM)
    assert node.agent.wait(15) == 0
    node.flags["node"] = other
    node.start_agent()
    said = "may write slices of that node alone"
    wait_until(lambda: said in node.agent.log.read_text(), "the reason in the log", SECONDS)
    assert any("isn't published" in line for line in node.not_ready())
    assert node.answers("/healthz")
    node.cluster.kubectl("delete", "node", other)


async def test_without_the_right_to_a_claims_status_the_claim_is_prepared_and_the_rest_follows_later(
    node: Node, kubelet: KubeletRole, namespace: Namespace
) -> None:
    """Scenario 24: on 1.36 and newer the refusal comes as 422."""
    role = node.cluster.get("clusterrole", ACCOUNT)
    whole = role["rules"]
    role["rules"] = [rule for rule in whole if "resourceclaims/driver" not in rule["resources"]]
    node.cluster.kubectl("replace", "-f", "-", body=json.dumps(role))
    try:
        claim = namespace.allocate(HDMI)
        await asyncio.sleep(1.0)  # until the API server's authorizer knows the role
        (device,) = await kubelet.prepare([claim])
        assert device.device == namespace.device(HDMI)
        wait_until(lambda: bool(refusals(node)), "the refusal in the log", SECONDS)
        assert our_status(namespace, claim.name) == []
    finally:
        patch = json.dumps({"rules": whole})
        node.cluster.kubectl("patch", "clusterrole", ACCOUNT, "--type=merge", f"-p={patch}")
    node.agent.kill()
    await asyncio.to_thread(node.start_agent)
    await kubelet.register(DRIVER)
    wait_until(lambda: bool(our_status(namespace, claim.name)), "the claim's status", SECONDS)
    await kubelet.unprepare([claim])
