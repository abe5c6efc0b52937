"""The agent with its own account's rights and no more: manifests/rights on a real API server."""

import asyncio
import json
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from liken_audio.api import NODE_LABEL, RESOURCE_CLAIMS, SINKS, SOURCES, Rejected
from liken_audio.kubernetes.client import KubernetesClient
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
        return {} if all(is_refused(body) for body in unbound) else None

    def is_refused(body: str) -> bool:
        try:
            cluster.kubectl("create", "-f", "-", "--dry-run=server", *agent, body=body)
        except HarnessError as error:
            return "names no node" in str(error)
        return False

    unbound = (slice_of("any"), json.dumps(sink_of("any")), json.dumps(event_of()))
    cluster.wait_for("the policies in force", in_force)
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


def sink_of(node: str, name: str = "", **parts: Any) -> Json:
    """A Sink with the node's label."""
    metadata = {"name": name or f"{node}-pci-of-a-test", "labels": {NODE_LABEL: node}}
    return {"apiVersion": "audio.liken.sh/v1alpha1", "kind": "Sink", "metadata": metadata, **parts}


def event_of(controller: str = DRIVER, namespace: str = "default") -> Json:
    """An Event about a Sink, as the agent writes them."""
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": f"event-{uuid.uuid4().hex[:8]}", "namespace": namespace},
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": controller,
        "reportingInstance": "of-a-test",
        "action": "Observe",
        "reason": "Tested",
        "type": "Normal",
        "regarding": {"apiVersion": "audio.liken.sh/v1alpha1", "kind": "Sink", "name": "any"},
    }


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
    misspelt = sink_of(node.name, f"{sink}x")
    del misspelt["metadata"]["labels"]
    node.cluster.apply(misspelt)
    wait_until(
        lambda: "NoDevice" in json.dumps(node.cluster.get("sink", f"{sink}x")), "the word", SECONDS
    )
    node.cluster.kubectl("delete", "sink", f"{sink}x")
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


@pytest.fixture
def other_nodes(node: Node) -> Iterator[str]:
    """Another node, whose agent made two Sinks: one is the node's, one moves with its USB card."""
    other = f"other-{node.name}"
    names = [f"{other}-pci-0000-00-1f-3-hdmi-0", f"usb-1234-5678-{node.name}-usb-audio"]
    node.cluster.apply(*[sink_of(other, name) for name in names])
    yield other
    node.cluster.kubectl("delete", "sinks", *names)


async def test_an_agent_writes_sinks_of_its_own_node_alone(
    node: Node, workspace: Path, other_nodes: str
) -> None:
    agent = Cluster(workspace / "kubeconfig")
    theirs, moving = (
        f"{other_nodes}-pci-0000-00-1f-3-hdmi-0",
        f"usb-1234-5678-{node.name}-usb-audio",
    )
    mine = node.devices()[0]["name"]
    kind = "sink" if not mine.endswith("-capture") else "source"
    ours = json.dumps({"metadata": {"labels": {NODE_LABEL: node.name}}})

    def refused(message: str, *arguments: str, body: str | None = None) -> None:
        with pytest.raises(HarnessError, match=message):
            agent.kubectl(*arguments, body=body)

    create = ("create", "-f", "-")
    refused("of that node alone", *create, body=json.dumps(sink_of(other_nodes)))
    unlabelled = sink_of(node.name)
    del unlabelled["metadata"]["labels"]
    refused("of that node alone", *create, body=json.dumps(unlabelled))
    loud = sink_of(node.name, spec={"volume": 100})
    refused("may not change the spec", *create, body=json.dumps(loud))
    refused("of that node alone", "patch", "sink", theirs, "--type=merge", "-p", ours)
    refused("of that node alone", "delete", "sink", theirs)
    unlabelled["metadata"]["name"] = nobodys = f"{node.name}-of-nobody"
    node.cluster.apply(unlabelled)
    resource = SINKS if kind == "sink" else SOURCES
    body = {"apiVersion": SINKS.api_version, "status": {"node": other_nodes}}
    async with KubernetesClient.from_kubeconfig(str(workspace / "kubeconfig")) as client:
        for which, name, message in (
            (SINKS, theirs, "of that node alone"),
            (SINKS, nobodys, "of that node alone"),
            (resource, mine, "is on that node alone"),
        ):
            named = body | {"kind": which.kind, "metadata": {"name": name}}
            with pytest.raises(Rejected, match=message):
                await client.apply(which, named, subresource="status")
    node.cluster.kubectl("delete", "sink", nobodys)
    spec = ["--type=merge", "-p", '{"spec": {"mute": true}}']
    refused("may not change the spec", "patch", kind, mine, *spec)
    node.cluster.kubectl("patch", kind, mine, *spec)
    refused("nor delete one that has a spec", "delete", kind, mine)
    refused("orbidden", "replace", "-f", "-", body=json.dumps(agent.get("sink", theirs)))
    agent.kubectl("patch", "sink", moving, "--type=merge", "-p", ours, "--dry-run=server")


async def test_an_agent_writes_the_status_of_its_own_nodes_claims_and_its_own_entries_alone(
    node: Node, workspace: Path, namespace: Namespace
) -> None:
    claim = namespace.allocate(HDMI).name
    unallocated = namespace.make_claim(
        {"name": "main", "exactly": {"deviceClassName": "audio-sink"}}
    )

    def body(status: Json, name: str = claim) -> Json:
        metadata = {"name": name, "namespace": namespace.name}
        head = {"apiVersion": RESOURCE_CLAIMS.api_version, "kind": RESOURCE_CLAIMS.kind}
        return head | {"metadata": metadata, "status": status}

    pod = {"resource": "pods", "name": "theirs", "uid": str(uuid.uuid4())}
    foreign = {"driver": "gpu.example.com", "pool": node.name, "device": "gpu-0"}
    entry = {"driver": DRIVER, "pool": node.name, "device": namespace.device(HDMI)}
    async with KubernetesClient.from_kubeconfig(str(workspace / "kubeconfig")) as client:
        for refused in (
            body({"reservedFor": [pod]}),
            body({"devices": [foreign]}),
            body({"reservedFor": [pod]}, unallocated.name),
        ):
            with pytest.raises(Rejected, match=r"alone|orbidden|not authorized"):
                await client.apply(RESOURCE_CLAIMS, refused, subresource="status")
        await client.apply(RESOURCE_CLAIMS, body({"devices": [entry]}), subresource="status")


def test_an_agent_writes_its_own_events_alone(node: Node, workspace: Path) -> None:
    agent = Cluster(workspace / "kubeconfig")
    for body, message in (
        (event_of("kubelet"), "its own Events alone"),
        (event_of(namespace=ACCOUNT), "orbidden"),
    ):
        with pytest.raises(HarnessError, match=message):
            agent.kubectl("create", "-f", "-", body=json.dumps(body))
    agent.kubectl("create", "-f", "-", "--dry-run=server", body=json.dumps(event_of()))


@pytest.mark.parametrize(
    "asked",
    [
        "get secrets",
        "get configmaps",
        "list pods",
        "create pods",
        "list nodes",
        "patch nodes",
        "update resourceslices/status",
        "deletecollection resourceslices",
        "create resourceclaims",
        "delete resourceclaims",
        "patch resourceclaims",
        "update resourceclaims/status",
        "patch resourceclaims/binding",
        "create deviceclasses",
        "update sinks",
        "deletecollection sinks",
        "update sinks/status",
        "create serviceaccounts/token",
        "impersonate users",
        "delete events",
    ],
)
def test_the_account_may_not(rights: Cluster, asked: str) -> None:
    verb, resource = asked.split()
    resource, _, subresource = resource.partition("/")
    part = [f"--subresource={subresource}"] if subresource else []
    account = f"--as=system:serviceaccount:{ACCOUNT}:{ACCOUNT}"
    with pytest.raises(HarnessError, match=r"can-i.*: *$"):
        rights.kubectl("auth", "can-i", verb, resource, *part, account, "--all-namespaces", "-q")


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
