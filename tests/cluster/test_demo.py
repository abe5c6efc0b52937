"""`make demo`: what it prints, and that it leaves nothing."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.demo.demo import ANALOG, SINK
from tests.harness.control_plane import ControlPlane
from tests.harness.node import TREE
from tests.harness.processes import wait_until

SECONDS = 90
"""What a second run may take."""


@pytest.fixture
def temporary(workspace: Path) -> Path:
    """Where the demo makes its folder; a short path, for its sockets."""
    folder = workspace / "t"
    folder.mkdir()
    return folder


@pytest.fixture
def demo(temporary: Path) -> Iterator["subprocess.Popen[str]"]:
    with start(temporary) as process:
        yield process
        process.kill()


def start(temporary: Path, **environment: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "tests.demo"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=TREE,
        env=dict(os.environ) | {"TMPDIR": str(temporary)} | environment,
    )


def programs_in(folder: Path) -> list[str]:
    """Command lines of processes that hold a path of this folder, in arguments or environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            text = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        except OSError:
            continue
        if f"{folder}/liken-audio-".encode() in text:
            found.append((process / "cmdline").read_text().replace("\0", " "))
    return found


def read_until(process: "subprocess.Popen[str]", text: str) -> None:
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if text in line:
            return
    pytest.fail(f"{text!r} never came:\n{''.join(lines)}")


def test_the_demo_hears_the_tone_on_the_claimed_sink_alone(
    control_plane: ControlPlane, demo: "subprocess.Popen[str]", temporary: Path
) -> None:
    output, _ = demo.communicate(timeout=SECONDS)
    assert demo.returncode == 0, output
    assert f"heard 440 Hz on {SINK}" in output
    assert f"silence on {ANALOG}" in output
    assert "PipeWire has 0.125" in output
    table = output.rsplit("$ kubectl get sink ", 1)[1]
    assert table.splitlines()[2].split()[:4] == [SINK, "kitchen", "hdmi", "50"]
    assert programs_in(temporary) == []
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_an_interrupted_demo_leaves_nothing_running(
    control_plane: ControlPlane,
    demo: "subprocess.Popen[str]",
    temporary: Path,
    number: signal.Signals,
) -> None:
    read_until(demo, "container started")
    assert programs_in(temporary)
    demo.send_signal(number)
    demo.communicate(timeout=30)
    assert demo.returncode == (-number if number is signal.SIGKILL else 128 + number)
    wait_until(lambda: not programs_in(temporary), "the end of what the demo started", 10)
    assert str(temporary) not in Path("/proc/mounts").read_text()


def test_a_missing_kubeconfig_is_one_line(temporary: Path) -> None:
    with start(temporary, DEMO_KUBECONFIG="/no/such/file") as process:
        output, _ = process.communicate(timeout=30)
    assert process.returncode == 1
    assert output == "demo: DEMO_KUBECONFIG=/no/such/file: no such file\n"


def test_the_demo_in_a_readers_cluster_leaves_it_as_it_was(
    temporary: Path, workspace: Path
) -> None:
    with ControlPlane(workspace / "readers", controllers="*") as plane:
        before = everything(plane)
        with start(temporary, DEMO_KUBECONFIG=str(plane.kubeconfig)) as process:
            output, _ = process.communicate(timeout=SECONDS)
        assert process.returncode == 0, output
        assert f"heard 440 Hz on {SINK}" in output
        wait_until(lambda: everything(plane) == before, "the cluster as it was", 30)


def everything(plane: ControlPlane) -> set[str]:
    kinds = "nodes,namespaces,customresourcedefinitions,deviceclasses,resourceslices"
    cluster = plane.cluster.kubectl("get", kinds, "-o", "name")
    spaced = plane.cluster.kubectl(
        "get", "pods,deployments,leases,resourceclaims", "-A", "-o", "name"
    )
    return set((cluster + spaced).splitlines())
