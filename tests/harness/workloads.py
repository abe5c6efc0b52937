"""What a cluster's users make: a namespace with claims and pods, for one test.

A claim is allocated by the scheduler, as everybody's, or by hand (`allocate`): so a test can have
what no scheduler would do on purpose, and what one did by mistake.
"""

import json
import uuid
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from tests.harness.cluster import Cluster, Json
from tests.harness.kubelet_role import Claim
from tests.harness.node import DRIVER
from tests.harness.processes import HarnessError

HDMI = "pci-0000-00-1f-3-hdmi-0"
"""Of manifests/examples/virtual-cards.yaml, after the node's name: an output with a monitor,"""
DARK = "pci-0000-00-1f-3-hdmi-1"
"""one without,"""
ANALOG = "pci-0000-00-1f-3-alc257-analog"
"""an analog output,"""
CAPTURE = "pci-0000-00-1f-3-alc257-analog-capture"
"""and the microphone."""
POD_CLAIM = "audio"
"""The name that pods here use for their first claim."""


class Namespace:
    """A namespace that only one test has, for one node; a context manager that takes it all away."""

    def __init__(self, cluster: Cluster, node: str) -> None:
        self.cluster = cluster
        self.node = node
        self.name = f"test-{uuid.uuid4().hex[:8]}"
        self.allocated: list[Claim] = []
        """Claims that were allocated by hand."""

    def start(self) -> Self:
        """Make it, with the label that administrators' claims need."""
        labels = {"resource.kubernetes.io/admin-access": "true"}
        self.cluster.apply(
            {
                "apiVersion": "v1",
                "kind": "Namespace",
                "metadata": {"name": self.name, "labels": labels},
            }
        )
        return self

    def end(self) -> None:
        """Take everything away at once, since no kubelet ends these pods and they would be moved on."""
        for kind in ("deployments", "pods", "resourceclaims"):
            self.cluster.kubectl(
                "delete", kind, "--all", *self.flags, "--grace-period=0", "--force"
            )
        self.cluster.kubectl("delete", "namespace", self.name, "--wait=false")

    @property
    def flags(self) -> Sequence[str]:
        """What kubectl is told to work here."""
        return [f"--namespace={self.name}"]

    def device(self, name: str) -> str:
        """The whole name of a device of our node."""
        return f"{self.node}-{name}"

    def result(self, device: str, request: str = "main", **fields: Any) -> Json:
        """An allocation's result for a device of our node."""
        return {
            "request": request,
            "driver": DRIVER,
            "pool": self.node,
            "device": self.device(device),
            **fields,
        }

    def make_claim(self, *requests: Json, name: str = "") -> Claim:
        """Make a claim with these `spec.devices.requests`."""
        body = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name or f"claim-{uuid.uuid4().hex[:8]}", "namespace": self.name},
            "spec": {"devices": {"requests": list(requests)}},
        }
        made = json.loads(
            self.cluster.kubectl("create", "-f", "-", "-o", "json", body=json.dumps(body))
        )
        return Claim(POD_CLAIM, self.name, made["metadata"]["name"], made["metadata"]["uid"])

    def allocate(self, *results: str | Json, name: str = "", config: Sequence[Json] = ()) -> Claim:
        """Make a claim allocated by hand; each result `self.result(…)`, or a device's name alone."""
        whole = [
            self.result(each, f"request-{place}") if isinstance(each, str) else each
            for place, each in enumerate(results)
        ]
        configured = [request for entry in config for request in entry["requests"]]
        claim = self.make_claim(*_requests(whole, configured), name=name)
        here = {"key": "metadata.name", "operator": "In", "values": [self.node]}
        allocation = {
            "devices": {"results": whole, "config": list(config)},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [here]}]},
        }
        self.cluster.patch_status(
            "resourceclaim", claim.name, {"allocation": allocation}, self.name
        )
        self.allocated.append(claim)
        return claim

    def delete_claim(self, claim: Claim) -> None:
        """Delete a claim that no pod has reserved."""
        self.cluster.patch_status("resourceclaim", claim.name, {"allocation": None}, self.name)
        self.cluster.kubectl("delete", "resourceclaim", claim.name, *self.flags)

    def make_pod(
        self, name: str, claims: Mapping[str, str], command: Sequence[str] = ("sleep", "infinity")
    ) -> None:
        """Make a pod for our node whose one container uses these claims: name in the pod → claim."""
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": self.name},
            "spec": {
                "nodeSelector": {"kubernetes.io/hostname": self.node},
                "terminationGracePeriodSeconds": 1,
                "resourceClaims": [
                    {"name": key, "resourceClaimName": claim} for key, claim in claims.items()
                ],
                "containers": [
                    {
                        "name": "main",
                        "image": "pipewire-bin:trixie",
                        "command": list(command),
                        "resources": {"claims": [{"name": key} for key in claims]},
                    }
                ],
            },
        }

        def made() -> Json:
            self.cluster.apply(pod)
            return pod

        # A new namespace has its service account, which each pod needs, only after a moment.
        self.cluster.wait_for(f"the pod {name}", made)

    def wait_bound(self, name: str) -> Json:
        """Wait until the scheduler gave a pod our node."""

        def bound() -> Json | None:
            pod = self.pod(name)
            return pod if pod["spec"].get("nodeName") == self.node else None

        return self.cluster.wait_for(f"the pod {name} on {self.node}", bound)

    def pod(self, name: str) -> Json:
        """Read a pod."""
        return self.cluster.get("pod", name, *self.flags)

    def claim(self, name: str) -> Json:
        """Read a claim."""
        return self.cluster.get("resourceclaim", name, *self.flags)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.end()
        except HarnessError:
            if error is None:
                raise


def request(device: str, name: str = "main", **exactly: Any) -> Json:
    """A claim's request for one sink or source by its whole name."""
    name_of = f'device.attributes["{DRIVER}"]'
    expression = f'{name_of}.?sink.orValue({name_of}.?source.orValue("")) == "{device}"'
    device_class = "audio-source" if device.endswith("-capture") else "audio-sink"
    selectors = [{"cel": {"expression": expression}}]
    return {
        "name": name,
        "exactly": {"deviceClassName": device_class, "selectors": selectors, **exactly},
    }


def opaque(
    parameters: Json, *requests: str, source: str = "FromClaim", driver: str = DRIVER
) -> Json:
    """An allocation's configuration."""
    return {
        "source": source,
        "requests": list(requests),
        "opaque": {"driver": driver, "parameters": parameters},
    }


def _requests(results: Sequence[Json], configured: Sequence[str]) -> Sequence[Json]:
    """Requests that these results would answer, with the alternatives that configuration names."""
    found: dict[str, Json] = {}
    for each in results:
        base, _, sub = str(each["request"]).partition("/")
        entry = found.setdefault(base, {"name": base})
        if sub:
            entry["firstAvailable"] = _alternatives(base, [str(each["request"]), *configured])
            continue
        exactly = entry.setdefault("exactly", {"deviceClassName": "audio-sink", "count": 0})
        exactly["count"] += 1
        if each.get("adminAccess"):
            exactly["adminAccess"] = True
    return list(found.values())


def _alternatives(base: str, requests: Sequence[str]) -> Sequence[Json]:
    subs = dict.fromkeys(
        each.removeprefix(f"{base}/") for each in requests if each.startswith(f"{base}/")
    )
    return [{"name": sub, "deviceClassName": "audio-sink"} for sub in subs]
