"""Claims' status, and the watch of a claim, against a real API server."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import structlog
import yaml

from liken_audio.api import RESOURCE_CLAIMS, Conflict, Json, Rejected
from liken_audio.claim_store import ClaimStore
from liken_audio.controllers.claim_reporter import ClaimReporter
from liken_audio.controllers.claim_watcher import ClaimWatcher
from liken_audio.dra import claim_status
from liken_audio.dra.claims import ClaimRef
from liken_audio.dra.consumers import Consumers, Pod
from liken_audio.graph.device_graph import DeviceGraph
from liken_audio.graph.model import (
    CardsSnapshot,
    ClaimHold,
    ClaimsSnapshot,
    PipeWireSnapshot,
    Source,
)
from liken_audio.kubernetes.client import KubernetesClient
from liken_audio.kubernetes.informer import Informer
from tests.builders import card, claim_record, claimed_device, node
from tests.harness.cluster import Cluster

PATIENCE = 30.0
DRIVER = "audio.liken.sh"
ANALOG = "kitchen-pci-0000-00-1f-3-alc257-analog"
FOREIGN = {"driver": "gpu.example.com", "pool": "gpus", "device": "gpu-0"}


@pytest.fixture
def namespace(cluster: Cluster) -> str:
    name = f"status-{uuid.uuid4().hex[:8]}"
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    return name


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[KubernetesClient]:
    async with KubernetesClient.from_kubeconfig(cluster.kubeconfig) as made:
        yield made


class Claims:
    """Claims in a namespace of the test's own, allocated as a scheduler would."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster = cluster
        self.namespace = namespace

    def make(self, name: str = "speakers", **ours: Any) -> ClaimRef:
        """Allocate our analog sink, and a device of another driver, to a new claim."""
        result = {"request": "out", "driver": DRIVER, "pool": "kitchen", "device": ANALOG} | ours
        results = [result, {"request": "gpu"} | FOREIGN]
        requests = [
            {"name": each["request"], "exactly": {"deviceClassName": "audio-sink"}}
            for each in results
        ]
        self.cluster.apply(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {"name": name, "namespace": self.namespace},
                "spec": {"devices": {"requests": requests}},
            }
        )
        self.change(name, {"allocation": {"devices": {"results": results}}})
        return ClaimRef(self.namespace, name, self.get(name)["metadata"]["uid"])

    def change(self, name: str, status: Json) -> None:
        self.cluster.patch_status("resourceclaim", name, status, self.namespace)

    def make_pod(self, name: str, claim: str = "speakers") -> Pod:
        """Make a pod with a claim; a controller takes away reservations for any other."""
        container = {"name": "main", "image": "none", "resources": {"claims": [{"name": "audio"}]}}
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {
                "nodeName": "no-such-node",
                "containers": [container],
                "resourceClaims": [{"name": "audio", "resourceClaimName": claim}],
            },
        }

        def made() -> Json:
            self.cluster.apply(body)
            return self.cluster.get("pod", name, "--namespace", self.namespace)

        # A new namespace has its service account, which each pod needs, only after a moment.
        return Pod(name, self.cluster.wait_for(f"the pod {name}", made)["metadata"]["uid"])

    def get(self, name: str = "speakers") -> Json:
        return self.cluster.get("resourceclaim", name, "--namespace", self.namespace)

    def entries(self, driver: str = DRIVER, name: str = "speakers") -> list[Json]:
        found = self.get(name)["status"].get("devices", [])
        return [each for each in found if each["driver"] == driver]

    def ready(self) -> tuple[str, str]:
        """Status and reason of our one entry's condition."""
        conditions = [each["conditions"] for each in self.entries()]
        return (conditions[0][0]["status"], conditions[0][0]["reason"]) if conditions else ("", "")


@pytest.fixture
def claims(cluster: Cluster, namespace: str) -> Claims:
    return Claims(cluster, namespace)


class Site:
    """A node's graph and store, with claims prepared."""

    def __init__(self, folder: Path) -> None:
        self.graph = DeviceGraph([Source.VIRTUAL, Source.PIPEWIRE, Source.CLAIMS])
        self.graph.replace(Source.VIRTUAL, CardsSnapshot((card(),)))
        self.graph.replace(Source.PIPEWIRE, PipeWireSnapshot((node(ANALOG),)))
        self.store = ClaimStore(folder / "state", folder / "cdi")

    def prepare(self, ref: ClaimRef, **changes: Any) -> None:
        share_id = changes.pop("share_id", None)
        device = claimed_device(share_id=share_id)
        self.store.save(replace(claim_record(device, ref=ref), **changes))
        self.show()

    def show(self) -> None:
        holds = tuple(
            ClaimHold(
                namespace=record.ref.namespace,
                name=record.ref.name,
                uid=record.ref.uid,
                devices=tuple(each.device for each in record.devices),
                pods=tuple(pod.name for pod in record.consumers.pods),
            )
            for record in self.store.records()
        )
        self.graph.replace(Source.CLAIMS, ClaimsSnapshot(holds))


@pytest.fixture
def site(tmp_path: Path) -> Any:
    made = Site(tmp_path)
    yield made
    made.store.close()


def now() -> datetime:
    return datetime.now(UTC)


@asynccontextmanager
async def running(*loops: ClaimReporter | ClaimWatcher) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(loop.run()) for loop in loops]
        yield
        for task in tasks:
            task.cancel()


async def until(condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
    async with asyncio.timeout(seconds):
        while not await asyncio.to_thread(condition):
            await asyncio.sleep(0.05)


async def settled(reporter: ClaimReporter) -> None:
    """Wait until nothing is left to report."""
    async with asyncio.timeout(PATIENCE):
        while any(each.written != each.wanted for each in reporter._reported.values()) or (
            not reporter._reported
        ):
            await asyncio.sleep(0.05)


async def test_a_prepared_claim_shows_its_device_and_another_drivers_entry_stays(
    client: KubernetesClient, claims: Claims, site: Site
) -> None:
    ref = claims.make()
    foreign = FOREIGN | {"data": {"vendor": "theirs"}}
    claims.change("speakers", {"devices": [foreign]})
    site.prepare(ref)
    reporter = ClaimReporter(site.graph, "kitchen", client, site.store, now)
    async with running(reporter):
        await until(lambda: claims.ready() == ("True", "Ready"))
        (entry,) = claims.entries()
        assert entry["data"] == {
            "request": "out",
            "nodeName": ANALOG,
            "pipewireSocket": f"/run/audio.liken.sh/{ref.uid}/pipewire-0",
            "pulseSocket": f"/run/audio.liken.sh/{ref.uid}/pulse",
        }
        site.graph.replace(Source.VIRTUAL, CardsSnapshot((card(is_present=False),)))
        await until(lambda: claims.ready()[0] == "False")
    (theirs,) = claims.entries("gpu.example.com")
    assert theirs == {"conditions": None} | foreign
    managers = claims.cluster.get(
        "resourceclaim", "speakers", "--namespace", claims.namespace, "--show-managed-fields"
    )["metadata"]["managedFields"]
    assert any(
        each["manager"] == DRIVER and each["operation"] == "Apply" and each["subresource"]
        for each in managers
    )


async def test_another_agent_finds_what_is_stored_and_writes_nothing(
    client: KubernetesClient, claims: Claims, site: Site
) -> None:
    site.prepare(claims.make())
    first = ClaimReporter(site.graph, "kitchen", client, site.store, now)
    async with running(first):
        await until(lambda: claims.ready() == ("True", "Ready"))
    version = claims.get()["metadata"]["resourceVersion"]
    second = ClaimReporter(site.graph, "kitchen", client, site.store, now)
    async with running(second):
        await settled(second)
    assert (second.writes, second.errors) == (0, 0)
    assert claims.get()["metadata"]["resourceVersion"] == version


async def test_a_shared_devices_entry_bears_its_share_id(
    client: KubernetesClient, claims: Claims, site: Site
) -> None:
    share_id = str(uuid.uuid4())
    site.prepare(claims.make(shareID=share_id), share_id=share_id)
    reporter = ClaimReporter(site.graph, "kitchen", client, site.store, now)
    async with running(reporter):
        await until(lambda: claims.ready() == ("True", "Ready"))
        site.graph.replace(Source.VIRTUAL, CardsSnapshot((card(is_present=False),)))
        await until(lambda: claims.ready()[0] == "False")
    (entry,) = claims.entries()
    assert entry["shareID"] == share_id


async def test_a_claim_made_anew_under_its_name_gets_nothing_of_the_old_ones(
    client: KubernetesClient, claims: Claims, site: Site
) -> None:
    old = claims.make()
    claims.change("speakers", {"allocation": None})
    claims.cluster.kubectl("delete", "resourceclaim", "speakers", "-n", claims.namespace)
    claims.make()
    site.prepare(old)
    reporter = ClaimReporter(site.graph, "kitchen", client, site.store, now)
    async with running(reporter):
        await settled(reporter)
    assert (reporter.writes, claims.entries()) == (0, [])
    # Also where it is made anew between the look and the write.
    record = claim_record(ref=old)
    body = claim_status.body(
        old,
        claim_status.statuses(record, {}, {}),
        claims.get() | {"metadata": {"uid": old.uid}},
        now(),
    )
    assert body is not None
    with pytest.raises((Conflict, Rejected)):
        await client.apply(RESOURCE_CLAIMS, body, subresource="status")
    assert claims.entries() == []


async def test_a_deallocated_claim_is_left_alone(
    client: KubernetesClient, claims: Claims, site: Site
) -> None:
    ref = claims.make()
    claims.change("speakers", {"allocation": None})
    site.prepare(ref)
    reporter = ClaimReporter(site.graph, "kitchen", client, site.store, now)
    async with running(reporter):
        await settled(reporter)
    assert (reporter.writes, reporter.errors) == (0, 0)


def limited(cluster: Cluster, folder: Path, namespace: str, rules: list[Json]) -> Path:
    """Return the kubeconfig of a user who has these rights in the namespace."""
    user = f"user-{uuid.uuid4().hex[:8]}"
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "rules": rules}
    cluster.apply(
        role | {"metadata": {"name": user, "namespace": namespace}},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": user, "namespace": namespace},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": user},
            "subjects": [{"kind": "ServiceAccount", "name": user, "namespace": namespace}],
        },
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": user, "namespace": namespace},
        },
    )
    token = cluster.kubectl("create", "token", user, "--namespace", namespace).strip()
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    config["users"] = [{"name": each["name"], "user": {"token": token}} for each in config["users"]]
    path = folder / f"{user}.kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


READ = {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["get"]}
STATUS = {
    "apiGroups": ["resource.k8s.io"],
    "resources": ["resourceclaims/status"],
    "verbs": ["patch"],
}
DRIVER_RIGHTS = {
    "apiGroups": ["resource.k8s.io"],
    "resources": ["resourceclaims/driver"],
    "resourceNames": [DRIVER],
    "verbs": ["arbitrary-node:patch"],
}


@pytest.mark.parametrize(
    ("rules", "status"),
    [
        pytest.param([READ], 403, id="no-right-on-status"),
        pytest.param([READ, STATUS], 422, id="no-right-on-the-drivers-entries"),
    ],
)
async def test_without_the_rights_it_is_said_once_and_nothing_else_is_harmed(
    rules: list[Json], status: int, cluster: Cluster, claims: Claims, site: Site, tmp_path: Path
) -> None:
    for name in ("speakers", "others"):
        site.prepare(claims.make(name))
    path = limited(cluster, tmp_path, claims.namespace, rules)
    async with KubernetesClient.from_kubeconfig(path) as poor:
        reporter = ClaimReporter(site.graph, "kitchen", poor, site.store, now)
        with structlog.testing.capture_logs() as logs:
            async with running(reporter):
                await until(lambda: reporter.errors >= 2)
                site.graph.replace(Source.VIRTUAL, CardsSnapshot((card(is_present=False),)))
                requests = poor.requests
                await until(lambda: any(not w[0].is_ready for w in wanted(reporter)))
    assert [each["event"] for each in logs] == [
        "claims' status can't be written; claims work without it"
    ]
    assert f" {status} " in logs[0]["reason"]
    assert poor.requests == requests, "a refusal isn't tried again for each change"
    assert claims.entries() == []


def wanted(reporter: ClaimReporter) -> list[Any]:
    return [each.wanted for each in reporter._reported.values()]


async def test_with_the_documented_rights_it_is_written(
    cluster: Cluster, claims: Claims, site: Site, tmp_path: Path
) -> None:
    site.prepare(claims.make())
    path = limited(cluster, tmp_path, claims.namespace, [READ, STATUS, DRIVER_RIGHTS])
    async with (
        KubernetesClient.from_kubeconfig(path) as allowed,
        running(ClaimReporter(site.graph, "kitchen", allowed, site.store, now)),
    ):
        await until(lambda: claims.ready() == ("True", "Ready"))


async def test_another_pod_that_gets_a_watched_claim_is_seen(
    client: KubernetesClient, claims: Claims, site: Site
) -> None:
    named, own = claims.make("speakers"), claims.make("own")
    pod, other = claims.make_pod("a"), claims.make_pod("b")
    alone = Consumers(pods=(pod,))
    claims.change("speakers", {"reservedFor": [_reserved(pod)]})
    site.prepare(named, consumers=alone)
    site.prepare(own, consumers=replace(alone, is_for_one=True))
    seen: list[Json] = []

    async def observe(claim: Json) -> None:
        seen.append(claim)

    def watch(ref: ClaimRef) -> Informer:
        assert ref == named, "a claim of a template needs no watch"
        return Informer(
            client,
            RESOURCE_CLAIMS,
            field_selector=f"metadata.namespace={ref.namespace},metadata.name={ref.name}",
        )

    watcher = ClaimWatcher(site.graph, site.store, client, watch, observe)
    async with running(watcher):
        await until(lambda: len(seen) > 0)
        claims.change("speakers", {"reservedFor": [_reserved(pod), _reserved(other)]})
        await until(lambda: len(seen[-1]["status"]["reservedFor"]) == 2)
        site.store.remove(own.uid)
        site.show()
        await until(lambda: watcher.watched == 0)
    assert {each["metadata"]["name"] for each in seen} == {"speakers"}


def _reserved(pod: Pod) -> Json:
    return {"resource": "pods", "name": pod.name, "uid": pod.uid}
