"""The harness's real node: pods run on it, and its end leaves the machine as it was."""

from collections.abc import Sequence
from pathlib import Path

from tests.harness.control_plane import ControlPlane
from tests.harness.processes import wait_until
from tests.harness.real_node import PAUSE_IMAGE, RealNode

MOUNTS = Path("/proc/self/mountinfo")
CGROUPS = Path("/sys/fs/cgroup")
SETTINGS = ("/proc/sys/vm/overcommit_memory", "/proc/sys/kernel/panic", "/etc/hostname")


def state_of_the_machine(node: str) -> tuple[object, ...]:
    cgroups = [str(each) for each in CGROUPS.rglob(f"*-{node}") if each.is_dir()]
    return (
        MOUNTS.read_text(),
        [Path(each).read_text() for each in SETTINGS if Path(each).exists()],
        cgroups,
    )


def running(processes: Sequence[int]) -> Sequence[int]:
    return [each for each in processes if Path(f"/proc/{each}").exists()]


def test_a_pod_runs_on_a_node_that_leaves_the_machine_as_it_was(
    real_control_plane: ControlPlane, workspace: Path
) -> None:
    cluster = real_control_plane.cluster
    before = state_of_the_machine("attic")
    with RealNode(workspace / "attic", "attic", real_control_plane) as node:
        cluster.apply(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": "quiet"},
                "spec": {
                    "nodeSelector": {"kubernetes.io/hostname": "attic"},
                    "containers": [{"name": "main", "image": PAUSE_IMAGE}],
                },
            }
        )
        cluster.kubectl("wait", "--for=condition=Ready", "pod/quiet", "--timeout=60s")
        assert node.processes("sleep 1000000")
        processes = node.processes("")
        cluster.kubectl("delete", "pod", "quiet", "--grace-period=1")
        wait_until(lambda: not node.processes("sleep 1000000"), "the pod's end", 60)
    cluster.kubectl("delete", "node", "attic")
    # Whatever reaps the machine's orphans takes a moment.
    wait_until(lambda: not running(processes), "the end of the node's processes", 30)
    assert state_of_the_machine("attic") == before
