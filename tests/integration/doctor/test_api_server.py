"""The API server answers for the account that asks."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from liken_audio.doctor import api_server
from liken_audio.kubernetes.client import KubernetesClient
from tests.harness.cluster import Cluster, Json
from tests.harness.control_plane import ControlPlane
from tests.harness.node import TREE

NODE = "doctors-node"


@pytest.fixture
async def administrator(
    control_plane: ControlPlane, cluster: Cluster
) -> AsyncIterator[KubernetesClient]:
    cluster.make_node(NODE)
    async with KubernetesClient.from_kubeconfig(control_plane.kubeconfig) as made:
        yield made
    cluster.kubectl("delete", "node", NODE)


def token_file(cluster: Cluster, account: str, workspace: Path) -> Path:
    """A kubeconfig with the rights of a service account of the namespace `default`."""
    token = cluster.kubectl("create", "token", account).strip()
    made = json.loads(cluster.kubeconfig.read_text())
    made["users"][0]["user"] = {"token": token}
    file = workspace / f"{account}.kubeconfig"
    file.write_text(json.dumps(made))
    return file


async def test_an_account_that_may_do_all_lacks_nothing(administrator: KubernetesClient) -> None:
    found = await api_server.cluster(administrator, NODE)
    assert (found.error, found.not_served, found.denied) == ("", (), ())
    assert found.node_error == ""


async def test_a_node_by_another_name_is_told(administrator: KubernetesClient) -> None:
    found = await api_server.cluster(administrator, "no-such-node")
    assert "no-such-node" in found.node_error


async def test_each_right_that_an_account_lacks_is_named(
    administrator: KubernetesClient, cluster: Cluster, workspace: Path
) -> None:
    cluster.kubectl("create", "serviceaccount", "doctor-test")
    try:
        file = token_file(cluster, "doctor-test", workspace)
        async with KubernetesClient.from_kubeconfig(file) as client:
            found = await api_server.cluster(client, NODE)
    finally:
        cluster.kubectl("delete", "serviceaccount", "doctor-test")
    assert found.denied == tuple(api_server.NEEDED)
    assert found.not_served == ()


async def test_the_rights_of_the_manifests_are_all_that_is_asked_for(
    administrator: KubernetesClient, cluster: Cluster, workspace: Path
) -> None:
    role = TREE / "manifests" / "rights" / "role.yaml"
    printed = cluster.kubectl("create", "-f", str(role), "--dry-run=client", "-o", "json")
    # Bound to an account of the test's own, by names of its own.
    account = {"kind": "ServiceAccount", "name": "full", "namespace": "default"}
    made = [{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "full"}}]
    for each in _documents(printed):
        each["metadata"]["name"] = "doctor-full"
        if each["kind"].endswith("Binding"):
            each |= {"subjects": [account], "roleRef": each["roleRef"] | {"name": "doctor-full"}}
        made.append(each)
    cluster.apply(*made)
    try:
        file = token_file(cluster, "full", workspace)
        async with KubernetesClient.from_kubeconfig(file) as client:
            found = await api_server.cluster(client, NODE)
    finally:
        kinds = "clusterrolebinding,clusterrole,rolebinding,role"
        cluster.kubectl("delete", kinds, "doctor-full", "--ignore-not-found")
        cluster.kubectl("delete", "serviceaccount", "full")
    assert found.denied == ()


async def test_a_resource_that_is_not_served_is_named(
    administrator: KubernetesClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = api_server.Resource("audio.liken.sh", "v1alpha1", "gongs", "Gong")
    monkeypatch.setattr(api_server, "SINKS", gone)
    found = await api_server.cluster(administrator, NODE)
    assert found.not_served == ("gongs.audio.liken.sh",)


def _documents(text: str) -> list[Json]:
    decoder, found, place = json.JSONDecoder(), [], 0
    while place < len(text.rstrip()):
        document, place = decoder.raw_decode(text, place)
        found += document["items"] if document["kind"] == "List" else [document]
        while place < len(text) and text[place].isspace():
            place += 1
    return found
