"""The figures that only a real node has: from `kubectl apply` to sound, memory of each container.

Prepare is measured as the kubelet sees it, by its own metric. Beside ours another driver is measured
in the same run when LIKEN_AUDIO_EXAMPLE_DRIVER names its program: kubernetes-sigs/dra-example-driver,
compiled from its Go module (`go build sigs.k8s.io/dra-example-driver/cmd/dra-example-kubeletplugin` in
a module that requires v0.4.0).
"""

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.bench.figures import Figure
from tests.harness import deployment
from tests.harness.control_plane import ControlPlane
from tests.harness.deployment import Deployment
from tests.harness.processes import Workspace, wait_until
from tests.harness.real_node import RealNode
from tests.harness.workloads import ANALOG, HDMI

CONTAINERS = ("pipewire", "wireplumber", "claim-sockets", "agent")
STREAMS = 8
PREPARED = 20
SETTLE_SECONDS = 20
EXAMPLE_VARIABLE = "LIKEN_AUDIO_EXAMPLE_DRIVER"
_EXAMPLE = "gpu.example.com"
_EXAMPLE_CLASS = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": _EXAMPLE},
    "spec": {"selectors": [{"cel": {"expression": f"device.driver == '{_EXAMPLE}'"}}]},
}
_EXAMPLE_CLAIM = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaim",
    "metadata": {"name": "once"},
    "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": _EXAMPLE}}]}},
}
_CALL = re.compile(
    r'dra_grpc_operations_duration_seconds_(sum|count)\{driver_name="([^"]+)",'
    r'grpc_status_code="OK",method_name="[^"]*NodePrepareResources"\} (\S+)'
)


def measure() -> Sequence[Figure]:
    """Install the product on a node of its own and measure."""
    archive = deployment.image_archive()
    with (
        Workspace("bench") as made,
        ControlPlane(made.folder("control-plane"), controllers="*") as plane,
        RealNode(made.folder("node"), "kitchen", plane) as node,
    ):
        deployment.load_image(node, archive, "1")
        product = Deployment(node, made.folder("product"))
        try:
            return [
                Figure("image, uncompressed", archive.stat().st_size / 1e6, 250, "MB"),
                *_first_sound(product),
                *_memory(product, "idle but for one stream"),
                *_with_streams(product),
                *_prepare(product),
            ]
        finally:
            product.end()


def _first_sound(product: Deployment) -> Iterator[Figure]:
    began = time.monotonic()
    product.apply()
    speakers = deployment.template("speakers", product.device(HDMI))
    source = {"resourceClaimTemplateName": "speakers"}
    product.cluster.apply(speakers, deployment.deployment("music", source))
    product.wait_heard(HDMI)
    # A second of sound is recorded before it is known for one.
    yield Figure("apply → first pod heard", time.monotonic() - began - 1.0, 60, "s")
    product.wait_ready()


def _memory(product: Deployment, when: str) -> Sequence[Figure]:
    """Resident memory of each container once it has settled: what its limit counts, without caches."""
    time.sleep(SETTLE_SECONDS)
    return [
        Figure(f"memory of {name}, {when}", _resident(product, name), None, "MB")
        for name in CONTAINERS
    ]


def _resident(product: Deployment, name: str) -> float:
    """Of all processes of the container, shared pages counted by their share."""
    pid = product.node.host_pid(product.pid(name))
    total = sum(_proportional_kilobytes(each) for each in _family(pid))
    return total / 1000


def _family(pid: int) -> Iterator[int]:
    yield pid
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        yield from _family(int(child))


def _proportional_kilobytes(pid: int) -> int:
    found = re.search(r"^Pss:\s+(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    return int(found[1]) if found else 0


def _with_streams(product: Deployment) -> Sequence[Figure]:
    """One claim, and a pod each for the other streams that play to it."""
    product.cluster.apply(deployment.claim("shared", product.device(ANALOG)))
    names = [f"stream-{number}" for number in range(STREAMS - 1)]
    for name in names:
        product.cluster.apply(deployment.pod(name, {"resourceClaimName": "shared"}))
    for name in names:
        product.cluster.kubectl("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=55s")
    figures = _memory(product, f"{STREAMS} streams")
    product.cluster.kubectl("delete", *(f"pod/{each}" for each in names), "resourceclaim/shared")
    return figures


def _prepare(product: Deployment) -> Iterator[Figure]:
    """Claims of each driver in turn; the mean of each driver's calls, by the kubelet's metric."""
    claims = [deployment.claim("once", product.device(ANALOG))]
    program = os.environ.get(EXAMPLE_VARIABLE, "")
    if program:
        product.node.start_plugin(program)
        product.cluster.apply(_EXAMPLE_CLASS)
        claims.append(_EXAMPLE_CLAIM)
        wait_until(lambda: _registered(product) >= 2, "the example driver", 60)
    before = calls(product)
    for _ in range(PREPARED):
        for claim in claims:
            product.cluster.apply(claim, deployment.pod("once", {"resourceClaimName": "once"}))
            product.cluster.kubectl("wait", "--for=condition=Ready", "pod/once", "--timeout=55s")
            product.cluster.kubectl("delete", "pod/once", "resourceclaim/once", "--wait=true")
    for driver, (seconds, count) in calls(product).items():
        seconds_before, count_before = before.get(driver, (0.0, 0))
        number = count - count_before
        if number:
            mean = (seconds - seconds_before) / number * 1000
            yield Figure(f"Prepare as the kubelet sees it, {driver}", mean, 100, "ms")


def _registered(product: Deployment) -> int:
    return len(list(product.node.path("/var/lib/kubelet/plugins_registry").glob("*.sock")))


def calls(product: Deployment) -> Mapping[str, tuple[float, int]]:
    """Seconds and number of all NodePrepareResources that went well, by driver."""
    program = (
        "import ssl, sys, urllib.request as r; c = ssl._create_unverified_context();"
        " sys.stdout.write(r.urlopen('https://127.0.0.1:10250/metrics', context=c).read().decode())"
    )
    text = product.node.run("python3", "-c", program)
    found: dict[str, dict[str, float]] = {}
    for kind, driver, value in _CALL.findall(text):
        found.setdefault(driver, {})[kind] = float(value)
    return {driver: (each["sum"], int(each["count"])) for driver, each in found.items()}
