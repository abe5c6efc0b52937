"""`liken-audio doctor` as a program: on a node that lacks nothing, and on one that lacks everything."""

import json
import subprocess
import sys
from pathlib import Path

from tests.harness.cluster import Cluster
from tests.harness.node import TREE, fresh_node
from tests.harness.processes import python_cache
from tests.harness.sound_stack import SoundStack

CARDS = TREE / "manifests" / "examples" / "virtual-cards.yaml"


def visit(*arguments: str) -> tuple[int, dict[str, list[tuple[str, str]]], str]:
    """The exit code, and what was found by check: its state and its words."""
    done = subprocess.run(
        [sys.executable, "-m", "liken_audio", "doctor", "-o", "json", *arguments],
        env={"PATH": "/usr/bin:/bin:/usr/sbin", "PYTHONPATH": str(TREE), **python_cache()},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.stdout, done.stderr
    found: dict[str, list[tuple[str, str]]] = {}
    for each in json.loads(done.stdout)["findings"]:
        found.setdefault(each["check"], []).append((each["state"], each["what"]))
        assert each["fix"] or each["state"] == "ok", each
    return done.returncode, found, done.stderr


def test_a_node_without_anything_is_told_all_that_it_lacks(workspace: Path) -> None:
    nowhere = workspace / "none"
    status, found, errors = visit(
        f"--pipewire-remote={nowhere}",
        f"--registry-dir={nowhere}",
        f"--cdi-dir={nowhere}",
        "--http-port=0",
        "--node=kitchen",
    )
    assert status == 1
    assert not errors
    for check in ("pipewire", "kubelet folder", "cdi folder", "kubernetes"):
        assert {state for state, _ in found[check]} == {"failure"}, found
    assert "no socket" in found["pipewire"][0][1]
    assert "kubeconfig" in found["kubernetes"][0][1]


async def test_a_node_that_lacks_nothing_is_healthy_but_for_what_the_harness_leaves_out(
    cluster: Cluster, sound_stack: SoundStack, workspace: Path
) -> None:
    with fresh_node(cluster, sound_stack, workspace / "node", CARDS) as node:
        node.wait_published(4, 3)
        async with node.kubelet() as kubelet:
            await kubelet.register("audio.liken.sh")
            node.wait_ready()
            status, found, errors = visit(
                f"--node={node.name}",
                f"--kubeconfig={cluster.kubeconfig}",
                f"--virtual={CARDS}",
                f"--pipewire-remote={sound_stack.remote}",
                f"--registry-dir={node.registry}",
                f"--plugin-dir={node.plugin}",
                f"--cdi-dir={node.cdi}",
                f"--http-port={node.http_port}",
            )
    assert not errors
    # A Node that no kubelet made names neither its version nor its runtime.
    assert [check for check, lines in found.items() if ("failure", lines[0][1]) in lines] == [
        "kubernetes"
    ]
    assert status == 1
    assert found["wireplumber"] == [("ok", "WirePlumber links a stream")]
    assert found["agent"][0][0] == "ok"
    assert found["rights"][0][0] == "ok"
