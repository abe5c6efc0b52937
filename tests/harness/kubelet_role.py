"""A test in the kubelet's role: all that a kubelet does with a DRA driver over its two sockets.

It watches the registry folder, asks GetInfo, connects, tells the driver that it is registered,
fetches the claims of a pod with the rights of the node, has them prepared under the kubelet's
deadline, starts the pod's container with the CDI edits (`container`), keeps the pod's status, and
unprepares at the end. Deadlines and checks are those of kubelet 1.36.
"""

import asyncio
import json
import stat
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from grpclib.client import Channel

from liken_audio.kubelet.generated import v1 as health_v1
from liken_audio.kubelet.generated.k8s.io.kubelet.pkg.apis.dra import v1, v1beta1
from liken_audio.kubelet.generated.pluginregistration import (
    InfoRequest,
    PluginInfo,
    RegistrationStatus,
    RegistrationStub,
)
from tests.harness.cluster import Cluster, Json
from tests.harness.container import read_edits, start_container
from tests.harness.processes import POLL_SECONDS, HarnessError, Program, Programs

GET_INFO_SECONDS = 1.0
NOTIFY_SECONDS = 5.0
CALL_SECONDS = 45.0
"""Deadline of NodePrepareResources and NodeUnprepareResources."""
_VERSIONS = {"v1.DRAPlugin": v1, "v1beta1.DRAPlugin": v1beta1}


@dataclass(frozen=True, slots=True)
class Claim:
    """An allocated claim of a pod."""

    pod_claim: str
    """Its name in the pod's spec."""
    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Prepared:
    """One device as the driver answered."""

    pod_claim: str
    request_names: tuple[str, ...]
    pool: str
    device: str
    cdi_ids: tuple[str, ...]
    share_id: str | None = None


@dataclass(frozen=True, slots=True)
class Health:
    """What the driver says of one device."""

    pool: str
    status: str
    """`UNKNOWN`, `HEALTHY` or `UNHEALTHY`."""
    message: str
    timeout_seconds: int


class PrepareError(HarnessError):
    """The driver refused a claim, or its answer is one that a kubelet refuses."""


class KubeletRole:
    """The kubelet's side of one driver on one node; a context manager that ends what it started."""

    def __init__(
        self, cluster: Cluster, node: str, *, registry: Path, cdi: Sequence[Path], work: Path
    ) -> None:
        self.versions: Sequence[str] = tuple(_VERSIONS)
        """Versions of the plug-in API that this kubelet knows."""
        self._cluster = cluster
        self._node = node
        self._registry = registry
        self._cdi = cdi
        self._containers = Programs(work)
        self._channel: Channel | None = None
        self._api: Any = None
        self.plugin: PluginInfo | None = None
        """What the driver said of itself."""

    async def register(
        self, driver: str, timeout: float = 30, *, pattern: str = "[!.]*"
    ) -> PluginInfo:
        """Wait for the driver's registration socket and do a kubelet's registration.

        `pattern` picks one of several instances by the name of its socket.
        """
        deadline = asyncio.get_running_loop().time() + timeout
        refusal: Exception | None = None
        while asyncio.get_running_loop().time() < deadline:
            for path in self._sockets(pattern):
                try:
                    found = await self._try(path, driver)
                except (OSError, TimeoutError) as error:
                    refusal = error
                else:
                    if found is not None:
                        return found
            await asyncio.sleep(POLL_SECONDS)
        raise HarnessError(
            f"no driver {driver} in {self._registry} within {timeout:.0f} s"
            + (f": {refusal!r}" if refusal else "")
        )

    def claims(self, namespace: str, pod_name: str) -> Sequence[Claim]:
        """Fetch the pod's claims with the node's rights; each must be allocated and reserved."""
        pod = self._get("pod", namespace, pod_name)
        generated = {
            each["name"]: each.get("resourceClaimName")
            for each in pod.get("status", {}).get("resourceClaimStatuses", ())
        }
        found = []
        for reference in pod["spec"].get("resourceClaims", ()):
            name = reference.get("resourceClaimName") or generated.get(reference["name"])
            if name is None:
                raise HarnessError(f"{namespace}/{pod_name}: {reference['name']} has no claim yet")
            claim = self._get("resourceclaim", namespace, name)
            _check_reserved(claim, pod["metadata"]["uid"])
            found.append(Claim(reference["name"], namespace, name, claim["metadata"]["uid"]))
        return found

    async def prepare(self, claims: Sequence[Claim]) -> Sequence[Prepared]:
        """NodePrepareResources for these claims; `PrepareError` for what fails a pod's start."""
        answers = await self.ask_prepare(claims)
        found: list[Prepared] = []
        for claim in claims:
            answer = answers[claim.uid]
            if isinstance(answer, str):
                raise PrepareError(f"claim {claim.namespace}/{claim.name}: {answer}")
            found += answer
        return found

    async def ask_prepare(
        self, claims: Sequence[Claim], timeout: float = CALL_SECONDS
    ) -> Mapping[str, Sequence[Prepared] | str]:
        """NodePrepareResources; the devices or the error of each claim, by UID."""
        request = self._api.NodePrepareResourcesRequest(claims=self._message(claims))
        answer = await self._stub().node_prepare_resources(request, timeout=timeout)
        _check_entries(claims, answer.claims)
        return {
            claim.uid: answer.claims[claim.uid].error
            or [_prepared(claim, device) for device in answer.claims[claim.uid].devices]
            for claim in claims
        }

    async def unprepare(self, claims: Sequence[Claim]) -> None:
        """NodeUnprepareResources for these claims."""
        request = self._api.NodeUnprepareResourcesRequest(claims=self._message(claims))
        answer = await self._stub().node_unprepare_resources(request, timeout=CALL_SECONDS)
        _check_entries(claims, answer.claims)
        for claim in claims:
            if answer.claims[claim.uid].error:
                raise PrepareError(f"claim {claim.name}: {answer.claims[claim.uid].error}")

    async def watch_health(self, timeout: float = 60) -> AsyncIterator[Mapping[str, Health]]:
        """NodeWatchResources: each report, by device; ends with an error after `timeout` s."""
        if self._channel is None:
            raise HarnessError("no driver is registered")
        stub = health_v1.DraResourceHealthStub(self._channel)
        request = health_v1.NodeWatchResourcesRequest()
        async for report in stub.node_watch_resources(request, timeout=timeout):
            yield {each.device.device_name: _health(each) for each in report.devices}

    def wipe_slices(self) -> None:
        """Delete all slices of the node, as a kubelet does when it starts."""
        selector = f"fieldSelector=spec.nodeName%3D{self._node}"
        self._as_node("delete", f"--raw=/apis/resource.k8s.io/v1/resourceslices?{selector}")

    def start_container(
        self,
        namespace: str,
        pod_name: str,
        prepared: Sequence[Prepared],
        container: int = 0,
        command: Sequence[str] = (),
    ) -> Program:
        """Start a container of the pod with the edits of the claims that it names.

        `command` stands in for the container's own, as `kubectl exec` runs one beside it.
        """
        pod = self._get("pod", namespace, pod_name)
        spec = pod["spec"]["containers"][container]
        edits = read_edits(self._cdi, _cdi_ids(spec, prepared))
        environment = {each["name"]: each.get("value", "") for each in spec.get("env", ())}
        command = command or [*spec.get("command", ()), *spec.get("args", ())]
        name = f"{pod_name}-{spec['name']}"
        return start_container(self._containers, name, command, environment, edits)

    def set_running(self, namespace: str, pod_name: str) -> None:
        """Say that all containers of the pod run."""
        pod = self._get("pod", namespace, pod_name)
        status = pod.setdefault("status", {})
        kept = [
            each
            for each in status.get("conditions", ())
            if each["type"] not in {"Ready", "ContainersReady"}
        ]
        ready = [{"type": kind, "status": "True"} for kind in ("ContainersReady", "Ready")]
        status["phase"] = "Running"
        status["conditions"] = kept + ready
        status["containerStatuses"] = [
            {
                "name": each["name"],
                "image": each.get("image", ""),
                "imageID": "",
                "ready": True,
                "restartCount": 0,
                "state": {"running": {}},
            }
            for each in pod["spec"]["containers"]
        ]
        # A node may write a pod's status but not read that subresource, which kubectl patch does.
        path = f"/api/v1/namespaces/{namespace}/pods/{pod_name}/status"
        self._as_node("replace", "--raw", path, "-f", "-", body=json.dumps(pod))

    def finish(self, namespace: str, pod_name: str) -> None:
        """Take the pod away for good, as a kubelet does once a deleted pod has ended."""
        self._as_node(
            *("delete", "pod", pod_name, f"--namespace={namespace}"),
            *("--grace-period=0", "--force", "--ignore-not-found"),
        )

    def close(self) -> None:
        """End the containers and the connection."""
        self._containers.end()
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _sockets(self, pattern: str) -> Sequence[Path]:
        # As a kubelet's watcher: hidden files and what is no socket don't count.
        entries = sorted(self._registry.glob(pattern))
        return [each for each in entries if stat.S_ISSOCK(each.stat().st_mode)]

    async def _try(self, path: Path, driver: str) -> PluginInfo | None:
        """Register the plug-in behind one socket; None when it is another driver's."""
        channel = Channel(path=str(path))
        try:
            registration = RegistrationStub(channel)
            info = await registration.get_info(InfoRequest(), timeout=GET_INFO_SECONDS)
            if info.name != driver:
                return None
            error = self._connect(info, path)
            await registration.notify_registration_status(
                RegistrationStatus(plugin_registered=not error, error=error), timeout=NOTIFY_SECONDS
            )
        finally:
            channel.close()
        if error:
            raise HarnessError(f"{path}: {error}")
        self.plugin = info
        return info

    def _connect(self, info: PluginInfo, path: Path) -> str:
        """Connect to the driver's socket; returns why a kubelet would refuse it, or nothing."""
        known = [each for each in info.supported_versions if each in self.versions]
        if info.type != "DRAPlugin":
            return f"unknown plug-in type {info.type}"
        if not known:
            return f"none of {info.supported_versions} is known"
        if self._channel is not None:
            self._channel.close()
        self._api = _VERSIONS[known[0]]
        self._channel = Channel(path=info.endpoint or str(path))
        return ""

    def _stub(self) -> Any:
        if self._channel is None:
            raise HarnessError("no driver is registered")
        return self._api.DraPluginStub(self._channel)

    def _message(self, claims: Sequence[Claim]) -> list[Any]:
        if self._api is None:
            raise HarnessError("no driver is registered")
        return [
            self._api.Claim(namespace=each.namespace, uid=each.uid, name=each.name)
            for each in claims
        ]

    def _as_node(self, *arguments: str, body: str | None = None) -> str:
        node = [f"--as=system:node:{self._node}", "--as-group=system:nodes"]
        return self._cluster.kubectl(*arguments, *node, body=body)

    def _get(self, kind: str, namespace: str, name: str) -> Json:
        # The node's right to read a claim follows the pod's binding with a little delay.
        arguments = ("get", kind, name, f"--namespace={namespace}", "-o=json")
        return self._cluster.wait_for(
            f"{kind} {namespace}/{name}", lambda: json.loads(self._as_node(*arguments)), 10
        )


def _check_reserved(claim: Json, pod_uid: str) -> None:
    status = claim.get("status", {})
    name = claim["metadata"]["name"]
    if "allocation" not in status:
        raise HarnessError(f"claim {name} is not allocated")
    if pod_uid not in [each["uid"] for each in status.get("reservedFor", ())]:
        raise HarnessError(f"claim {name} is not reserved for the pod")


def _check_entries(claims: Sequence[Claim], entries: Mapping[str, object]) -> None:
    asked = {claim.uid for claim in claims}
    if set(entries) != asked:
        raise PrepareError(f"one entry for each claim was due: asked {asked}, got {set(entries)}")


def _prepared(claim: Claim, device: Any) -> Prepared:
    if not device.pool_name or not device.device_name:
        raise PrepareError(f"claim {claim.name}: a device without pool or name")
    return Prepared(
        pod_claim=claim.pod_claim,
        request_names=tuple(device.request_names),
        pool=device.pool_name,
        device=device.device_name,
        cdi_ids=tuple(device.cdi_device_ids),
        share_id=getattr(device, "share_id", None),
    )


def _health(device: health_v1.DeviceHealth) -> Health:
    return Health(
        pool=device.device.pool_name,
        status=health_v1.HealthStatus(device.health).name or "",
        message=device.message,
        timeout_seconds=device.health_check_timeout_seconds,
    )


def _cdi_ids(container: Json, prepared: Sequence[Prepared]) -> Sequence[str]:
    """The devices of the claims and requests that the container names."""
    found: list[str] = []
    for use in container.get("resources", {}).get("claims", ()):
        request = use.get("request")
        for device in prepared:
            is_asked = not request or not device.request_names or request in device.request_names
            if device.pod_claim == use["name"] and is_asked:
                found += device.cdi_ids
    return found
