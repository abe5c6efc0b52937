"""The harness's control plane does what a cluster does."""

from tests.harness.cluster import Cluster, Json
from tests.harness.control_plane import ControlPlane
from tests.harness.processes import Workspace

NODE = "harness-node"


def pod(name: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": NODE},
            "containers": [{"name": "one", "image": "none"}],
        },
    }


def test_a_pod_is_scheduled_to_a_made_node(cluster: Cluster) -> None:
    cluster.make_node(NODE)
    try:
        cluster.apply(pod("harness-pod"))
        bound = cluster.wait_for(
            "the pod's node", lambda: cluster.get("pod", "harness-pod")["spec"].get("nodeName")
        )
        assert bound == NODE
    finally:
        cluster.kubectl("delete", "pod", "harness-pod", "--force", "--grace-period=0")
        cluster.kubectl("delete", "node", NODE)


def test_our_kinds_and_classes_are_there(cluster: Cluster) -> None:
    cluster.items("sinks")
    assert {each["metadata"]["name"] for each in cluster.items("deviceclasses")} >= {
        "audio-sink",
        "audio-source",
    }


def test_a_second_control_plane_runs_beside_the_first(cluster: Cluster) -> None:
    cluster.make_node(NODE)
    try:
        with Workspace("second") as made, ControlPlane(made.folder("plane")) as second:
            assert second.cluster.items("nodes") == []
            programs = second.programs().values()
            assert [each.exit_code for each in programs] == [None] * 4
        assert all(each.exit_code is not None for each in programs)
    finally:
        cluster.kubectl("delete", "node", NODE)
