"""Every example of manifests/examples, applied as a user would and played as far as there is hardware."""

import asyncio
import re
import shutil
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.harness.cluster import Cluster, Json
from tests.harness.kubelet_role import Claim, KubeletRole, PrepareError
from tests.harness.node import DRIVER, TREE, Node, fresh_node
from tests.harness.processes import Program, Programs, Workspace, wait_until
from tests.harness.sound_stack import SoundStack
from tests.harness.tone import Recorder
from tests.harness.workloads import ANALOG, CAPTURE, DARK, HDMI, Namespace

EXAMPLES = TREE / "manifests" / "examples"
SECONDS = 45
ELSEWHERE = {
    "classes.yaml": "tests/conftest.py",
    "monitor-speakers.yaml": "tests/cluster/test_playing.py",
    "virtual-cards.yaml": "tests/cluster/conftest.py",
}
"""Examples that other tests use; `overlay` is in test_manifests.py."""


@pytest.fixture(scope="module")
def node(cluster: Cluster) -> Iterator[Node]:
    """A node with the example's cards for all tests here; they stand for those of "kitchen"."""
    with Workspace("examples") as made:
        cards = made.path / "cards.yaml"
        shutil.copy(EXAMPLES / "virtual-cards.yaml", cards)
        with (
            SoundStack(made.path / "sound") as stack,
            fresh_node(cluster, stack, made.path / "node", cards) as running,
        ):
            running.wait_published(4, 3)
            label = f"-l={DRIVER}/node={running.name}"
            wait_until(lambda: len(cluster.items("sinks", label)) == 3, "the Sinks", SECONDS)
            yield running


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod of an example with its prepared claims, and its one container if it was started."""

    namespace: str
    name: str
    claims: Sequence[Claim]
    devices: Sequence[str]
    program: Program | None


class Example:
    """What a test does with one example; all claims are unprepared at its end."""

    def __init__(self, node: Node, namespace: Namespace, kubelet: KubeletRole) -> None:
        self._node, self._namespace, self._kubelet = node, namespace, kubelet
        self._pods: list[Pod] = []

    def apply(self, name: str) -> None:
        """Apply the file with our node in the place of "kitchen"."""
        text = (EXAMPLES / name).read_text().replace("kitchen-pci", f"{self._node.name}-pci")
        kinds = {each["kind"] for each in yaml.safe_load_all(text)}
        where = () if "Namespace" in kinds else self._namespace.flags

        def applied() -> Json:
            # A new namespace has its service account, which each pod needs, only after a moment.
            self._node.cluster.kubectl("apply", "-f", "-", *where, body=text)
            return {}

        self._node.cluster.wait_for(name, applied)

    async def pod(self, namespace: str = "", *, is_started: bool = True) -> Pod:
        """The one pod of the namespace: bound by the scheduler, its claims prepared."""
        where = namespace or self._namespace.name
        found = self._node.cluster.wait_for("the example's pod", lambda: self._bound(where))
        name = found["metadata"]["name"]
        claims = self._claims(where, found)
        prepared = await self._kubelet.prepare(claims)
        program = self._kubelet.start_container(where, name, prepared) if is_started else None
        pod = Pod(where, name, claims, [each.device for each in prepared], program)
        self._pods.append(pod)
        return pod

    async def end(self) -> None:
        """End the containers and give the claims back."""
        for pod in self._pods:
            if pod.program is not None:
                pod.program.kill()
            await self._kubelet.unprepare(pod.claims)
            self._kubelet.finish(pod.namespace, pod.name)

    def _bound(self, namespace: str) -> Json | None:
        pods = self._node.cluster.items("pods", f"--namespace={namespace}")
        bound = [each for each in pods if each["spec"].get("nodeName") == self._node.name]
        return bound[0] if bound else None

    def _claims(self, namespace: str, pod: Json) -> Sequence[Claim]:
        made = pod["status"].get("extendedResourceClaimStatus")
        if made is None:
            return self._kubelet.claims(namespace, pod["metadata"]["name"])
        claim = self._node.cluster.get(
            "resourceclaim", made["resourceClaimName"], f"--namespace={namespace}"
        )
        return [Claim("", namespace, claim["metadata"]["name"], claim["metadata"]["uid"])]


@pytest.fixture
async def example(node: Node, namespace: Namespace) -> AsyncIterator[Example]:
    """A place to apply an example in."""
    async with node.kubelet() as kubelet:
        await kubelet.register(DRIVER)
        made = Example(node, namespace, kubelet)
        yield made
        await made.end()


@pytest.fixture
def recorder(node: Node, namespace: Namespace) -> Iterator[Recorder]:
    """A recorder of the analog output, running."""
    with Workspace("recorder") as made, Programs(made.path) as programs:
        found = Recorder(node.stack, programs, namespace.device(ANALOG))
        found.start()
        yield found


async def until(is_so: Callable[[], bool], what: str, *programs: Program | None) -> None:
    running = [each for each in programs if each is not None]
    await asyncio.to_thread(wait_until, is_so, what, SECONDS, running)


def test_every_example_is_tested() -> None:
    here = set(re.findall(r'"([a-z-]+\.yaml)"', Path(__file__).read_text()))
    for name, where in ELSEWHERE.items():
        assert name in (TREE / where).read_text()
    assert here == {each.name for each in EXAMPLES.glob("*.yaml")} | {"cards.yaml"}


@pytest.mark.parametrize("name", ["pulse-player.yaml", "voice.yaml"])
async def test_it_is_heard_on_the_analog_output(
    namespace: Namespace, example: Example, recorder: Recorder, name: str
) -> None:
    example.apply(name)
    pod = await example.pod()
    both = [namespace.device(ANALOG), namespace.device(CAPTURE)]
    assert sorted(pod.devices) == (both if name == "voice.yaml" else both[:1])
    await until(lambda: recorder.loud_seconds() >= 1.8, "two seconds of sound", pod.program)
    heard = recorder.stop()
    assert heard.is_tone(440), f"heard: {heard}"


@pytest.mark.usefixtures("recorder")  # a node that has never run announces no volume
async def test_a_class_of_an_administrator_lets_a_mixer_set_the_volume(
    node: Node, namespace: Namespace, example: Example
) -> None:
    example.apply("classes-specific.yaml")
    pod = await example.pod()
    sink = namespace.device(ANALOG)
    assert pod.devices == [sink]

    def is_set() -> bool:
        status = node.cluster.get("sink", sink).get("status", {})
        return bool(status.get("observed", {}).get("volume") == 40)

    await until(is_set, "the mixer's volume", pod.program)
    claim = namespace.make_claim(
        {"name": "out", "exactly": {"deviceClassName": "lg-ultrawide-speakers"}}
    )
    namespace.make_pod("by-class", {"out": claim.name})
    namespace.wait_bound("by-class")
    (result,) = namespace.claim(claim.name)["status"]["allocation"]["devices"]["results"]
    assert result["device"] == namespace.device(HDMI)


async def test_two_namespaces_are_heard_on_one_shared_sink_at_once(
    node: Node, example: Example, recorder: Recorder
) -> None:
    spaces = ("example-music", "example-doorbell")
    try:
        example.apply("shared-sink.yaml")
        pods = [await example.pod(each) for each in spaces]
        assert pods[0].devices == pods[1].devices

        def are_both_heard() -> bool:
            return all(recorder.share(tone) > 0.05 for tone in (440, 1000))

        await until(are_both_heard, "both tones", *[each.program for each in pods])
    finally:
        await example.end()
        for each in spaces:
            node.cluster.kubectl("delete", "namespace", each, "--wait=false")
        sink = f"{node.name}-{ANALOG}"
        node.cluster.kubectl("patch", "sink", sink, "--type=merge", '-p={"spec": null}')


async def test_a_pod_that_tolerates_it_waits_for_its_speaker_and_stays_with_it(
    node: Node, namespace: Namespace, example: Example
) -> None:
    dark = namespace.device(DARK)

    def taints() -> set[str]:
        (device,) = [each for each in node.devices() if each["name"] == dark]
        return {each["key"].removeprefix(f"{DRIVER}/") for each in device.get("taints", ())}

    example.apply("unplugged.yaml")
    with pytest.raises(PrepareError, match="no monitor is connected"):
        await example.pod(is_started=False)
    text = node.virtual.read_text()
    (monitor,) = re.findall(r"eld: (1000.*)", text)
    try:
        node.virtual.write_text(text.replace('eld: ""', f"eld: {monitor}"))
        await until(lambda: taints() == set(), "the monitor")
        pod = await example.pod(is_started=False)
        assert pod.devices == [dark]
    finally:
        node.virtual.write_text(text)
    await until(lambda: taints() == {"disconnected", "no-monitor"}, "no monitor")
    await asyncio.sleep(1.0)  # what would evict the pod does so at once
    found = node.cluster.get("pod", pod.name, *namespace.flags)
    assert "deletionTimestamp" not in found["metadata"]


async def test_a_sink_is_had_as_a_plain_resource(namespace: Namespace, example: Example) -> None:
    example.apply("extended-resource.yaml")
    pod = await example.pod(is_started=False)
    assert pod.devices == [namespace.device(ANALOG)]


def test_a_bluetooth_speaker_is_allocated_by_its_address_with_the_codec(
    node: Node, namespace: Namespace
) -> None:
    """There is no radio here: the test publishes what an agent with this speaker would."""
    text = (EXAMPLES / "bluetooth-speaker.yaml").read_text()
    name = "7c-66-ef-01-23-45"
    attributes = {
        "sink": {"string": name},
        "address": {"string": "7C:66:EF:01:23:45"},
        "connectionType": {"string": "bluetooth"},
        "connected": {"bool": True},
        "codecs": {"string": "sbc sbc_xq"},
    }
    where = f"radio-{node.name}"
    slice_of_it = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": where},
        "spec": {
            "driver": DRIVER,
            "pool": {"name": where, "generation": 1, "resourceSliceCount": 1},
            "nodeName": where,
            "devices": [{"name": name, "attributes": attributes}],
        },
    }
    node.cluster.make_node(where)
    try:
        node.cluster.apply(slice_of_it)

        def bound() -> Json | None:
            node.cluster.kubectl("apply", "-f", "-", *namespace.flags, body=text)
            (pod,) = node.cluster.items("pods", *namespace.flags)
            return pod if pod["spec"].get("nodeName") == where else None

        node.cluster.wait_for("the pod at its speaker", bound)
        (claim,) = node.cluster.items("resourceclaims", *namespace.flags)
        devices = claim["status"]["allocation"]["devices"]
        assert [each["device"] for each in devices["results"]] == [name]
        configs = [each["opaque"] for each in devices["config"] if each["source"] == "FromClaim"]
        assert configs == [{"driver": DRIVER, "parameters": {"codec": "sbc_xq"}}]
    finally:
        node.cluster.kubectl("delete", "resourceslice", where, "--ignore-not-found")
        node.cluster.kubectl("delete", "node", where)


def test_examples_say_what_they_are_for_first() -> None:
    for file in EXAMPLES.glob("*.yaml"):
        assert file.read_text().startswith("# "), file.name
