"""Device health as the kubelet watches it (scenario 25)."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
from grpclib import GRPCError, Status
from grpclib.client import Channel

from liken_audio.kubelet.generated import v1alpha1
from tests.harness.kubelet_role import Health, KubeletRole
from tests.harness.node import Node
from tests.harness.workloads import ANALOG, CAPTURE, DARK, HDMI, Namespace

SECONDS = 20


async def until_status(
    reports: AsyncIterator[Mapping[str, Health]], device: str, status: str
) -> Health:
    async with asyncio.timeout(SECONDS):
        async for report in reports:
            if report[device].status == status:
                return report[device]
    raise AssertionError("the stream ended")


async def test_the_whole_list_comes_at_once_and_again_well_within_its_time(
    node: Node, kubelet: KubeletRole, namespace: Namespace
) -> None:
    reports = kubelet.watch_health()
    async with asyncio.timeout(SECONDS):
        first = await anext(reports)
        second = await anext(reports)
    due = {HDMI: "HEALTHY", ANALOG: "HEALTHY", CAPTURE: "HEALTHY", DARK: "UNHEALTHY"}
    assert {name: health.status for name, health in first.items()} == {
        namespace.device(device): status for device, status in due.items()
    }
    assert {health.pool for health in first.values()} == {node.name}
    assert first[namespace.device(DARK)].message == "no monitor is connected"
    assert min(health.timeout_seconds for health in first.values()) >= SECONDS
    assert first == second
    await reports.aclose()


async def test_a_fault_is_told_to_every_watcher_and_taken_back(
    kubelet: KubeletRole, node: Node, namespace: Namespace, virtual_cards: Path
) -> None:
    """A watcher that went away disturbs nobody."""
    device = namespace.device(HDMI)
    gone, one, two = (kubelet.watch_health() for _ in range(3))
    for reports in (gone, one, two):
        assert (await anext(reports))[device].status == "HEALTHY"
    await gone.aclose()
    plugged = virtual_cards.read_text()
    (line,) = [each for each in plugged.splitlines() if "eld: 1000" in each]
    virtual_cards.write_text(plugged.replace(line.strip(), 'eld: ""'))
    for reports in (one, two):
        assert (await until_status(reports, device, "UNHEALTHY")).message
    virtual_cards.write_text(plugged)
    for reports in (one, two):
        assert not (await until_status(reports, device, "HEALTHY")).message
        await reports.aclose()


async def test_a_lost_graph_is_unhealthy_everywhere(
    kubelet: KubeletRole, node: Node, namespace: Namespace
) -> None:
    device = namespace.device(ANALOG)
    reports = kubelet.watch_health()
    assert (await anext(reports))[device].status == "HEALTHY"
    node.stack.pipewire.kill()
    assert "PipeWire" in (await until_status(reports, device, "UNHEALTHY")).message
    await reports.aclose()


async def test_kubelets_up_to_1_36_watch_by_v1alpha1_and_what_is_unknown_is_said_so(
    node: Node, kubelet: KubeletRole, namespace: Namespace
) -> None:
    channel = Channel(path=str(node.plugin / "dra.sock"))
    try:
        stub = v1alpha1.DraResourceHealthStub(channel)
        async for report in stub.node_watch_resources(v1alpha1.NodeWatchResourcesRequest()):
            assert namespace.device(HDMI) in {each.device.device_name for each in report.devices}
            break
        with pytest.raises(GRPCError) as refusal:
            await v1alpha1.DraResourceHealthStub._unary_unary(
                stub,
                "/v2.DRAResourceHealth/NodeWatchResources",
                v1alpha1.NodeWatchResourcesRequest(),
                v1alpha1.NodeWatchResourcesResponse,
            )
        assert refusal.value.status is Status.UNIMPLEMENTED
    finally:
        channel.close()
