"""What breaks naive drivers, tried on the whole agent as a kubelet would meet it.

Claims are allocated by writing their status, so that a test can have what a scheduler would never
do; the kubelet's role fetches nothing but what is in the API.
"""

import asyncio
import json
import signal
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.harness.cluster import Cluster
from tests.harness.kubelet_role import Claim, KubeletRole, PrepareError
from tests.harness.node import DRIVER, Node
from tests.harness.processes import Programs, wait_until
from tests.harness.sound_stack import SoundStack
from tests.harness.tone import Recorder

HDMI = "pci-0000-00-1f-3-hdmi-0"
ANALOG = "pci-0000-00-1f-3-alc257-analog"
CAPTURE = "pci-0000-00-1f-3-alc257-analog-capture"

Allocate = Callable[..., Claim]


@pytest.fixture
async def kubelet(node: Node) -> AsyncIterator[KubeletRole]:
    """A kubelet's role with which the agent is registered."""
    async with node.kubelet() as role:
        await role.register(DRIVER)
        yield role


@pytest.fixture
def allocate(cluster: Cluster, node: Node) -> Allocate:
    """Make an allocated claim: `allocate(device, …)`, each device `request → device`'s tail."""

    def make(
        *devices: str,
        name: str = "",
        extra: Sequence[Mapping[str, Any]] = (),
        config: Sequence[Mapping[str, Any]] = (),
    ) -> Claim:
        name = name or f"claim-{uuid.uuid4().hex[:8]}"
        requests = [f"request-{place}" for place in range(len(devices) + len(extra))]
        exactly = {"deviceClassName": "audio-sink"}
        spec = [{"name": request, "exactly": exactly} for request in requests]
        cluster.apply(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {"name": name},
                "spec": {"devices": {"requests": spec}},
            }
        )
        ours = [
            {"driver": DRIVER, "pool": node.name, "device": f"{node.name}-{device}"}
            for device in devices
        ]
        results = [
            {"request": request, **result}
            for request, result in zip(requests, [*ours, *extra], strict=True)
        ]
        devices_status = {"results": results, "config": list(config)}
        cluster.patch_status(
            "resourceclaim", name, {"allocation": {"devices": devices_status}}, "default"
        )
        uid = cluster.get("resourceclaim", name)["metadata"]["uid"]
        return Claim("claim", "default", name, uid)

    return make


def delete(cluster: Cluster, claim: Claim) -> None:
    cluster.patch_status("resourceclaim", claim.name, {"allocation": None}, "default")
    cluster.kubectl("delete", "resourceclaim", claim.name)


def cdi_files(node: Node) -> list[str]:
    return sorted(each.name for each in node.cdi.iterdir())


async def test_a_claim_prepared_before_a_restart_is_unprepared_after_it(
    node: Node, kubelet: KubeletRole, allocate: Allocate
) -> None:
    claim = allocate(HDMI)
    await kubelet.prepare([claim])
    assert cdi_files(node)
    assert (node.claims / claim.uid).exists()
    node.agent.kill()
    node.start_agent()
    await kubelet.register(DRIVER)
    await kubelet.unprepare([claim])
    assert cdi_files(node) == []
    assert not (node.claims / claim.uid).exists()


async def test_a_known_claim_has_its_cdi_file_back_after_the_folder_was_wiped(
    node: Node, kubelet: KubeletRole, allocate: Allocate
) -> None:
    claim = allocate(HDMI)
    before = await kubelet.prepare([claim])
    (file,) = node.cdi.iterdir()
    content = file.read_bytes()
    file.unlink()
    assert await kubelet.prepare([claim]) == before
    assert file.read_bytes() == content


async def test_slices_that_a_kubelet_wiped_come_back_as_they_were(
    node: Node, cluster: Cluster
) -> None:
    (before,) = node.slices()
    cluster.kubectl("delete", "resourceslice", before["metadata"]["name"])
    (after,) = cluster.wait_for(
        "the slice", lambda: {"items": found} if (found := node.slices()) else None
    )["items"]
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    assert after["spec"]["devices"] == before["spec"]["devices"]
    assert after["spec"]["pool"]["name"] == node.name
    assert len(after["metadata"]["ownerReferences"]) == 1


async def test_a_claim_that_nobody_knows_is_unprepared_without_a_word(
    kubelet: KubeletRole,
) -> None:
    await kubelet.unprepare([Claim("claim", "default", "never-was", str(uuid.uuid4()))])


async def test_a_replaced_claim_is_refused_by_its_old_uid_and_left_alone_by_its_unprepare(
    node: Node, cluster: Cluster, kubelet: KubeletRole, allocate: Allocate
) -> None:
    old = allocate(HDMI, name=f"{node.name}-twice")
    delete(cluster, old)
    new = allocate(HDMI, name=old.name)
    with pytest.raises(PrepareError, match=old.name):
        await kubelet.prepare([old])
    assert cdi_files(node) == []
    await kubelet.prepare([new])
    await kubelet.unprepare([old])
    assert len(cdi_files(node)) == 1


async def test_a_second_claim_on_a_held_device_is_refused_and_the_first_goes_on(
    node: Node, kubelet: KubeletRole, allocate: Allocate
) -> None:
    first, second = allocate(HDMI), allocate(HDMI)
    before = await kubelet.prepare([first])
    with pytest.raises(PrepareError, match=first.name):
        await kubelet.prepare([second])
    assert await kubelet.prepare([first]) == before
    await kubelet.unprepare([first])
    await kubelet.prepare([second])


async def test_of_a_claim_on_two_drivers_only_our_device_is_prepared(
    node: Node, cluster: Cluster, kubelet: KubeletRole, allocate: Allocate
) -> None:
    foreign = {"driver": "gpu.example.com", "pool": "p", "device": "gpu-0"}
    opaque = {"driver": "gpu.example.com", "parameters": {"whatever": True}}
    config = [{"source": "FromClaim", "requests": ["request-1"], "opaque": opaque}]
    claim = allocate(HDMI, extra=[foreign], config=config)
    (device,) = await kubelet.prepare([claim])
    assert device.device == f"{node.name}-{HDMI}"
    assert device.request_names == ("request-0",)


async def test_unknown_parameters_fail_their_claim_and_no_other(
    kubelet: KubeletRole, allocate: Allocate
) -> None:
    opaque = {"driver": DRIVER, "parameters": {"volumne": 3}}
    config = [{"source": "FromClaim", "requests": [], "opaque": opaque}]
    wrong, right = allocate(HDMI, config=config), allocate(ANALOG)
    with pytest.raises(PrepareError, match="volumne"):
        await kubelet.prepare([wrong, right])
    await kubelet.prepare([right])


async def test_an_agent_killed_in_the_middle_of_prepare_leaves_nothing_half_done(
    node: Node, kubelet: KubeletRole, allocate: Allocate
) -> None:
    claims = [allocate(device) for device in (HDMI, ANALOG, CAPTURE)]
    asked = [asyncio.ensure_future(kubelet.prepare([claim])) for claim in claims]
    await asyncio.sleep(0)  # the calls are on their way
    node.agent.kill()
    await asyncio.gather(*asked, return_exceptions=True)
    node.start_agent()
    await kubelet.register(DRIVER)
    await kubelet.prepare(claims)
    assert len(cdi_files(node)) == 3
    await kubelet.unprepare(claims)
    assert cdi_files(node) == []
    assert [each for each in node.claims.iterdir() if each.is_dir()] == []


async def test_the_same_claim_prepared_many_times_at_once_has_one_answer(
    node: Node, kubelet: KubeletRole, allocate: Allocate
) -> None:
    claims = [allocate(HDMI), allocate(ANALOG), allocate(CAPTURE)]
    answers = await asyncio.gather(*[kubelet.prepare([each]) for each in claims * 7])
    assert all(answer == answers[place % 3] for place, answer in enumerate(answers))
    assert len(cdi_files(node)) == 3


async def test_sigterm_takes_both_sockets_away_and_a_start_brings_them_back(
    node: Node, kubelet: KubeletRole
) -> None:
    assert list(node.registry.iterdir())
    node.agent.send(signal.SIGTERM)
    assert node.agent.wait(15) == 0
    assert list(node.registry.iterdir()) == []
    assert not [each for each in node.plugin.rglob("*") if each.is_socket()]
    node.start_agent()
    await kubelet.register(DRIVER)


async def test_a_killed_agent_is_back_on_its_old_sockets_and_its_slices_never_changed(
    node: Node, cluster: Cluster, kubelet: KubeletRole
) -> None:
    before = node.slices()
    node.agent.kill()
    assert list(node.registry.iterdir())
    node.start_agent()
    await kubelet.register(DRIVER)
    node.wait_ready()
    after = node.slices()
    assert [each["metadata"]["resourceVersion"] for each in after] == [
        each["metadata"]["resourceVersion"] for each in before
    ]


async def test_registration_says_what_a_kubelet_wants_to_hear(
    node: Node, kubelet: KubeletRole
) -> None:
    info = await kubelet.register(DRIVER)
    assert (info.type, info.name) == ("DRAPlugin", DRIVER)
    assert info.endpoint.startswith(str(node.plugin))
    assert list(info.supported_versions[:2]) == ["v1.DRAPlugin", "v1beta1.DRAPlugin"]


async def test_prepare_of_a_known_claim_and_unprepare_need_no_claim_object(
    node: Node, cluster: Cluster, kubelet: KubeletRole, allocate: Allocate
) -> None:
    claim = allocate(HDMI)
    before = await kubelet.prepare([claim])
    delete(cluster, claim)
    assert await kubelet.prepare([claim]) == before
    await kubelet.unprepare([claim])
    assert cdi_files(node) == []


async def test_a_prepared_claim_shows_on_its_sink_until_it_is_unprepared(
    node: Node, cluster: Cluster, kubelet: KubeletRole, allocate: Allocate
) -> None:
    sink = f"{node.name}-{HDMI}"

    def claims() -> list[str]:
        status = cluster.get("sink", sink).get("status", {})
        return [each["name"] for each in status.get("claims", ())]

    claim = allocate(HDMI)
    await kubelet.prepare([claim])
    wait_until(lambda: claims() == [claim.name], "the claim on the Sink", 10)
    await kubelet.unprepare([claim])
    wait_until(lambda: claims() == [], "the Sink without a claim", 10)


async def test_a_monitor_pulled_out_taints_its_device_and_plugged_in_again_clears_it(
    node: Node, virtual_cards: Path
) -> None:
    def taints() -> list[str]:
        (device,) = [each for each in node.devices() if each["name"] == f"{node.name}-{HDMI}"]
        return sorted(f"{each['key']}:{each['effect']}" for each in device.get("taints", ()))

    plugged = virtual_cards.read_text()
    lines = [line for line in plugged.splitlines() if "eld: 1000" in line]
    virtual_cards.write_text(plugged.replace(lines[0].strip(), 'eld: ""'))
    due = [f"{DRIVER}/disconnected:NoExecute", f"{DRIVER}/no-monitor:NoSchedule"]
    wait_until(lambda: taints() == due, f"the taints {due}", 15)
    virtual_cards.write_text(plugged)
    wait_until(lambda: taints() == [], "no taint", 15)


async def test_pipewire_restarted_brings_every_node_and_volume_back(
    node: Node, cluster: Cluster, sound_stack: SoundStack, workspace: Path
) -> None:
    sink = f"{node.name}-{ANALOG}"
    patch = json.dumps({"spec": {"volume": 50}})
    cluster.kubectl("patch", "sink", sink, "--type=merge", f"-p={patch}")

    def has_volume() -> bool:
        parameters = sound_stack.nodes()[sink]["params"].get("Props", ())
        return [0.125, 0.125] in [each.get("channelVolumes") for each in parameters]

    with Programs(workspace) as programs:
        for is_restarted in (False, True):
            if is_restarted:
                sound_stack.restart_pipewire()
            wait_until(lambda: sink in sound_stack.nodes(), "the node", 15)
            # An adapter tells its volume only while it runs, so somebody listens.
            recorder = Recorder(sound_stack, programs, sink)
            recorder.start()
            wait_until(has_volume, "the volume", 15)
            recorder.stop()
