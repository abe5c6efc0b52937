"""Client, informer and publisher against a real API server."""

import asyncio
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from liken_audio.api import (
    NODES,
    RESOURCE_SLICES,
    Conflict,
    Json,
    NotFound,
    Rejected,
    Resource,
)
from liken_audio.controllers.publisher import Publisher
from liken_audio.graph.device_graph import DeviceGraph
from liken_audio.graph.endpoints import endpoints
from liken_audio.graph.model import (
    Card,
    CardNumber,
    CardsSnapshot,
    NodeId,
    PipeWireSnapshot,
    Source,
)
from liken_audio.kubernetes.client import KubernetesClient
from liken_audio.kubernetes.informer import Informer, Trouble
from tests import builders
from tests.harness.control_plane import ControlPlane, control_plane_program
from tests.harness.processes import HarnessError, Workspace

PATIENCE = 30.0
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap", is_namespaced=True)
CRDS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", "x")


@pytest.fixture
async def client(control_plane: ControlPlane) -> AsyncIterator[KubernetesClient]:
    async with KubernetesClient.from_kubeconfig(control_plane.kubeconfig) as made:
        yield made


@pytest.fixture
def name() -> str:
    """A name that no other test uses."""
    return f"n{uuid.uuid4().hex[:8]}"


@asynccontextmanager
async def running(*loops: Informer | Publisher) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(loop.run()) for loop in loops]
        yield
        for task in tasks:
            task.cancel()


async def until(condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


def config_map(name: str, **data: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "default", "labels": {"test": name}},
        "data": data,
    }


async def test_an_object_is_made_read_changed_and_deleted_under_preconditions(
    client: KubernetesClient, name: str
) -> None:
    made = await client.create(CONFIG_MAPS, config_map(name, a="1"))
    with pytest.raises(Conflict) as exists:
        await client.create(CONFIG_MAPS, config_map(name))
    assert exists.value.reason == "AlreadyExists"
    assert (await client.get(CONFIG_MAPS, name, "default"))["data"] == {"a": "1"}
    changed = await client.update(CONFIG_MAPS, {**made, "data": {"a": "2"}})
    with pytest.raises(Conflict):
        await client.update(CONFIG_MAPS, {**made, "data": {"a": "3"}})
    uid, version = changed["metadata"]["uid"], changed["metadata"]["resourceVersion"]
    with pytest.raises(Conflict):
        await client.delete(CONFIG_MAPS, name, namespace="default", uid="another")
    with pytest.raises(Conflict):
        await client.delete(
            CONFIG_MAPS,
            name,
            namespace="default",
            resource_version=made["metadata"]["resourceVersion"],
        )
    await client.delete(CONFIG_MAPS, name, namespace="default", uid=uid, resource_version=version)
    with pytest.raises(NotFound):
        await client.delete(CONFIG_MAPS, name, namespace="default")
    with pytest.raises(NotFound):
        await client.get(CONFIG_MAPS, name, "default")


async def test_an_apply_makes_and_changes_and_leaves_what_others_own(
    client: KubernetesClient, name: str
) -> None:
    first = await client.apply(CONFIG_MAPS, config_map(name, ours="1"))
    await client.update(CONFIG_MAPS, {**first, "data": {"ours": "1", "theirs": "1"}})
    second = await client.apply(CONFIG_MAPS, config_map(name, ours="2"))
    assert second["data"] == {"ours": "2", "theirs": "1"}
    again = await client.apply(CONFIG_MAPS, config_map(name, ours="2"))
    assert again["metadata"]["resourceVersion"] == second["metadata"]["resourceVersion"]


async def test_an_apply_takes_text_of_any_letters(client: KubernetesClient, name: str) -> None:
    odd = '\U0001f50a \0\x01\t\n\x7f\x85\u2028\ufeff\uffff"\\ 平é: # end '
    stored = await client.apply(CONFIG_MAPS, config_map(name, ours=odd))
    assert stored["data"] == {"ours": odd}


async def test_a_field_that_does_not_exist_is_refused_and_named(
    client: KubernetesClient, name: str
) -> None:
    with pytest.raises(Rejected, match="colour"):
        await client.create(CONFIG_MAPS, config_map(name) | {"colour": "red"})


async def test_an_informer_follows_selected_objects_and_our_own_writes(
    client: KubernetesClient, name: str
) -> None:
    informer = Informer(client, CONFIG_MAPS, label_selector=f"test={name}")
    woken: list[str] = []
    informer.subscribe(woken.append)
    key = f"default/{name}"
    async with running(informer):
        await informer.synced()
        informer.observe(await client.create(CONFIG_MAPS, config_map(name, a="1")))
        assert informer.objects()[key]["data"] == {"a": "1"}
        await client.create(CONFIG_MAPS, config_map(f"{name}-other"))
        await client.apply(CONFIG_MAPS, config_map(name, a="2"))
        await until(lambda: informer.objects()[key]["data"] == {"a": "2"})
        assert list(informer.objects()) == [key]
        assert "managedFields" not in informer.objects()[key]["metadata"]
        await client.delete(CONFIG_MAPS, name, namespace="default")
        await until(lambda: key not in informer.objects())
    assert 2 <= len(woken) <= 3, "the watch may show our own create before its answer comes"


def crd(plural: str) -> Json:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.test.liken.sh"},
        "spec": {
            "group": "test.liken.sh",
            "scope": "Cluster",
            "names": {"plural": plural, "singular": plural, "kind": plural.capitalize()},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                }
            ],
        },
    }


async def test_a_crd_may_come_go_and_come_back_while_we_run(
    client: KubernetesClient, name: str
) -> None:
    """U79."""
    things = Resource("test.liken.sh", "v1", name, name.capitalize())
    thing = {
        "apiVersion": things.api_version,
        "kind": things.kind,
        "metadata": {"name": "thing"},
    }
    informer = Informer(client, things)

    async def make() -> None:
        await client.create(CRDS, crd(name))
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    await client.create(things, thing)
                except NotFound:
                    await asyncio.sleep(0.1)
                else:
                    return

    async with running(informer):
        await until(lambda: informer.trouble is Trouble.NOT_SERVED)
        await make()
        await until(lambda: "thing" in informer.objects(), 12.0)
        await client.delete(CRDS, f"{name}.test.liken.sh")
        await until(lambda: not informer.objects())
        await until(lambda: informer.trouble is Trouble.NOT_SERVED)
        await make()
        await until(lambda: "thing" in informer.objects(), 12.0)
    await client.delete(CRDS, f"{name}.test.liken.sh")


class Kitchen:
    """A node with its graph, its informer and its publisher, under a name of its own."""

    def __init__(self, client: KubernetesClient, node: str) -> None:
        self.node = node
        self.client = client
        self.graph = DeviceGraph([Source.VIRTUAL, Source.PIPEWIRE])
        selector = f"spec.driver=audio.liken.sh,spec.nodeName={node}"
        self.slices = Informer(client, RESOURCE_SLICES, field_selector=selector)
        self.shared: set[str] = set()
        self.publisher = Publisher(
            self.graph, client, self.slices, node, lambda name: name in self.shared
        )

    def plug(self, *cards: Card) -> None:
        """Have these cards and a node for each of their endpoints."""
        names = [each.name for each in endpoints(builders.view(*cards), self.node)]
        nodes = [builders.node(each, id=NodeId(40 + at)) for at, each in enumerate(names)]
        self.graph.replace(Source.PIPEWIRE, PipeWireSnapshot(tuple(nodes)))
        self.graph.replace(Source.VIRTUAL, CardsSnapshot(cards))

    async def stored(self) -> dict[str, Json]:
        """The slices as the server has them, not as our cache does."""
        selector = f"spec.driver=audio.liken.sh,spec.nodeName={self.node}"
        listed = await self.client.list(RESOURCE_SLICES, field_selector=selector)
        return {body["metadata"]["name"]: body for body in listed["items"]}

    async def devices(self) -> dict[str, Json]:
        stored = await self.stored()
        return {
            device["name"]: device
            for body in stored.values()
            for device in body["spec"].get("devices", ())
        }


@asynccontextmanager
async def kitchen(client: KubernetesClient, name: str, *cards: Card) -> AsyncIterator[Kitchen]:
    """A published node."""
    await client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    made = Kitchen(client, name)
    made.plug(*(cards or (builders.card(builders.pcm(), builders.hdmi_pcm()),)))
    async with running(made.slices, made.publisher):
        await until(lambda: made.publisher.is_published)
        yield made
    await client.delete(NODES, name)  # the garbage collector takes the slices with it


async def test_devices_are_published_owned_by_the_node_and_written_once(
    client: KubernetesClient, name: str
) -> None:
    async with kitchen(client, name) as node:
        (body,) = (await node.stored()).values()
        assert body["metadata"]["name"] == f"{name}-audio.liken.sh"
        (owner,) = body["metadata"]["ownerReferences"]
        uid = (await client.get(NODES, name))["metadata"]["uid"]
        assert (owner["kind"], owner["name"], owner["uid"]) == ("Node", name, uid)
        assert len(body["spec"]["devices"]) == 2
        requests = client.requests
        await asyncio.sleep(1.0)
        assert client.requests == requests, "at rest nothing is asked"
    assert node.publisher.writes == 1


async def test_a_long_name_in_another_script_never_costs_the_slice(
    client: KubernetesClient, name: str
) -> None:
    """U71."""
    long = "Lautsprecher für die Küche " * 4
    card = builders.usb_card(
        builders.pcm(id="ÄÖÜ " * 30),
        usb=builders.usb_identity(serial="A1/B2 C3:ÄÖ" * 12),
        name=long,
    )
    async with kitchen(client, name, card) as node:
        (device,) = (await node.devices()).values()
        texts = [value["string"] for value in device["attributes"].values() if "string" in value]
        assert texts
        assert all(len(text.encode()) <= 64 for text in texts)


async def test_slices_that_a_kubelet_wipes_are_back_within_two_seconds(
    control_plane: ControlPlane, client: KubernetesClient, name: str
) -> None:
    """U64, three times as a kubelet that starts three times."""
    async with kitchen(client, name) as node:
        generation = 0
        for _ in range(3):
            (before,) = (await node.stored()).values()
            assert before["spec"]["pool"]["generation"] > generation
            generation = before["spec"]["pool"]["generation"]
            creates = node.publisher.counts.creates
            selector = f"--field-selector=spec.nodeName={name}"
            await asyncio.to_thread(
                control_plane.cluster.kubectl, "delete", "resourceslices", selector
            )
            await until(lambda seen=creates: node.publisher.counts.creates > seen, 2.0)
            assert len(await node.devices()) == 2


async def test_a_taint_that_stays_keeps_its_time_when_another_comes(
    client: KubernetesClient, name: str
) -> None:
    dark = builders.hdmi_pcm(eld=builders.NO_ELD)
    async with kitchen(client, name, builders.card(builders.pcm(), dark)) as node:
        (tainted,) = [each for each in (await node.devices()).values() if "taints" in each]
        times = [taint["timeAdded"] for taint in tainted["taints"]]
        await asyncio.sleep(1.1)  # times are in whole seconds
        node.plug(builders.card(builders.pcm(), dark, number=CardNumber(3)))
        await until(lambda: node.publisher.writes == 2)
        after = (await node.devices())[tainted["name"]]
        assert after["attributes"]["card"] == {"int": 3}
        assert [taint["timeAdded"] for taint in after["taints"]] == times


async def test_a_hundred_and_thirty_devices_are_three_slices_that_agree(
    client: KubernetesClient, name: str
) -> None:
    """dra-facts: 128 devices a slice, 64 once one is tainted."""
    slots = [builders.hdmi_pcm(number) for number in range(13)]
    cards = [
        builders.card(*slots, number=CardNumber(number), path=f"0000:{number:02}:1f.3")
        for number in range(10)
    ]
    async with kitchen(client, name, *cards) as node:
        stored = await node.stored()
        assert sorted(stored) == [f"{name}-audio.liken.sh{end}" for end in ("", "-2", "-3")]
        assert pools(stored) == {(1, 3)}
        dark = builders.hdmi_pcm(0, eld=builders.NO_ELD)
        node.plug(replace(cards[0], pcms=(dark, *slots[1:])), *cards[1:])
        await until(lambda: node.publisher.counts.updates == 1)
        assert pools(await node.stored()) == {(1, 3)}
        node.plug(cards[0])
        await until(lambda: node.publisher.counts.deletes == 2)
        await until(lambda: node.publisher.counts.updates == 2)
        assert pools(await node.stored()) == {(2, 1)}
        assert node.publisher.errors == node.publisher.counts.conflicts == 0


def pools(stored: Mapping[str, Json]) -> set[tuple[int, int]]:
    """Return the generations and counts of slices."""
    headers = [body["spec"]["pool"] for body in stored.values()]
    return {(each["generation"], each["resourceSliceCount"]) for each in headers}


async def test_a_shared_device_is_taken_with_its_capacity_and_is_not_written_again(
    client: KubernetesClient, name: str
) -> None:
    async with kitchen(client, name) as node:
        device = next(iter(await node.devices()))
        node.shared.add(device)
        node.publisher.wake()
        await until(lambda: node.publisher.writes == 2)
        stored = (await node.devices())[device]
        assert stored["allowMultipleAllocations"] is True
        assert stored["capacity"]["streams"]["requestPolicy"]["validRange"]["min"] == "1"
        await asyncio.sleep(1.0)
    assert node.publisher.writes == 2
    assert node.publisher.dropped_fields == ()


async def test_a_restarted_publisher_finds_its_slice_and_writes_nothing(
    client: KubernetesClient, name: str
) -> None:
    card = builders.card(builders.pcm(), builders.hdmi_pcm(eld=builders.NO_ELD))
    async with kitchen(client, name, card) as node:
        again = Kitchen(client, name)
        again.shared = node.shared
        again.plug(card)
        async with running(again.slices, again.publisher):
            await until(lambda: again.publisher.is_published)
        assert again.publisher.writes == 0


async def test_a_foreign_slice_with_our_name_is_left_alone(
    client: KubernetesClient, name: str
) -> None:
    foreign = {
        "apiVersion": RESOURCE_SLICES.api_version,
        "kind": "ResourceSlice",
        "metadata": {"name": f"{name}-audio.liken.sh"},
        "spec": {
            "driver": "gpu.example.com",
            "nodeName": name,
            "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
        },
    }
    await client.create(RESOURCE_SLICES, foreign)
    async with kitchen(client, name) as node:
        assert list(await node.stored()) == [f"{name}-audio.liken.sh-2"]
    await client.delete(RESOURCE_SLICES, f"{name}-audio.liken.sh")


class GatesOff(ControlPlane):
    """An API server that drops taints and shared devices, as 1.34 and 1.35 do by default."""

    def _apiserver_flags(self) -> Mapping[str, str]:
        gates = "DRADeviceTaints=false,DRADeviceTaintRules=false,DRAConsumableCapacity=false"
        return {**super()._apiserver_flags(), "feature-gates": gates}


@pytest.fixture
def old_control_plane() -> Iterator[ControlPlane]:
    try:
        control_plane_program()
    except HarnessError as error:
        pytest.skip(str(error))
    with Workspace("gates") as made, GatesOff(made.folder("control-plane")) as up:
        yield up


async def test_fields_of_disabled_gates_are_named_once_and_not_sent_again(
    old_control_plane: ControlPlane, name: str
) -> None:
    dark = builders.card(builders.pcm(), builders.hdmi_pcm(eld=builders.NO_ELD))
    async with KubernetesClient.from_kubeconfig(old_control_plane.kubeconfig) as client:
        await client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
        node = Kitchen(client, name)
        node.plug(dark)
        node.shared = {each.name for each in endpoints(node.graph.view(), name)}
        async with running(node.slices, node.publisher):
            await until(lambda: node.publisher.is_published)
            await asyncio.sleep(2.0)
        assert node.publisher.writes == 1
        assert {"taints", "allowMultipleAllocations"} <= set(node.publisher.dropped_fields)
        assert len(await node.devices()) == 2


async def test_our_modules_load_few_of_the_librarys(workspace: Path) -> None:
    """Plain, the library is 859 modules and 32 MB; a fresh process shows what we load."""
    count = "sum(name.startswith('kubernetes_asyncio') for name in sys.modules)"
    program = f"import sys, liken_audio.kubernetes.client, liken_audio.kubernetes.informer; print({count})"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0
    assert 0 < int(output) < 30
