"""Registration with the kubelet: what is said, when, and what is left behind."""

import asyncio
import signal
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.harness.cluster import Cluster, Json
from tests.harness.kubelet_role import GET_INFO_SECONDS, KubeletRole
from tests.harness.node import DRIVER, Node, fresh_node
from tests.harness.processes import wait_until
from tests.harness.sound_stack import SoundStack
from tests.harness.workloads import HDMI, Namespace

REGISTRATION, PLUGIN = f"{DRIVER}-reg.sock", "dra.sock"
POD_UID = "0b29379c-df18-4465-b298-c6ee0347787c"
LONGEST_ROOT = "/var/snap/microk8s/common/var/lib/kubelet"
"""A kubelet's folder with which no long name fits."""


def sockets(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir() if stat.S_ISSOCK(each.stat().st_mode))


def devices(node: Node) -> list[Json]:
    """The published devices; since when a taint is there, nobody knows any more once all is wiped."""
    found = [dict(each) for each in node.devices()]
    for each in found:
        each["taints"] = [
            {key: value for key, value in taint.items() if key != "timeAdded"}
            for taint in each.get("taints", ())
        ]
    return found


async def test_the_agent_says_what_a_kubelet_wants_to_hear_and_is_ready_once_registered(
    node: Node,
) -> None:
    """Scenario 15."""
    assert not node.answers("/readyz")
    async with node.kubelet() as kubelet:
        info = await kubelet.register(DRIVER)
        assert (info.type, info.name) == ("DRAPlugin", DRIVER)
        assert info.endpoint == str(node.plugin / PLUGIN)
        assert info.supported_versions[:2] == ["v1.DRAPlugin", "v1beta1.DRAPlugin"]
        assert set(info.supported_versions[2:]) == {
            "v1.DRAResourceHealth",
            "v1alpha1.DRAResourceHealth",
        }
        await asyncio.to_thread(node.wait_ready)


async def test_get_info_answers_within_its_second_while_a_prepare_hangs(
    node: Node, kubelet: KubeletRole, namespace: Namespace
) -> None:
    """Scenario 15."""
    claim = namespace.allocate(HDMI)
    with node.claim_sockets.frozen():
        hanging = asyncio.ensure_future(kubelet.ask_prepare([claim]))
        while not node.checkpoint(claim.uid):
            await asyncio.sleep(0.01)
        async with node.kubelet() as another:
            info = await another.register(DRIVER, timeout=GET_INFO_SECONDS)
    assert info.name == DRIVER
    await hanging
    await kubelet.unprepare([claim])


async def test_a_kubelet_that_knows_v1beta1_alone_is_served_without_shares(
    node: Node, namespace: Namespace
) -> None:
    """Scenario 16."""
    async with node.kubelet() as kubelet:
        kubelet.versions = ("v1beta1.DRAPlugin",)
        await kubelet.register(DRIVER)
        share = "0b29379c-df18-4465-b298-c6ee0347787c"
        shared = namespace.result(HDMI, shareID=share, consumedCapacity={"streams": "1"})
        claim = namespace.allocate(shared)
        (device,) = await kubelet.prepare([claim])
        assert (device.device, device.share_id) == (namespace.device(HDMI), None)
        await kubelet.unprepare([claim])
        assert node.cdi_files() == []


async def test_sigterm_takes_both_sockets_away_and_a_start_brings_them_back(
    node: Node, kubelet: KubeletRole
) -> None:
    """Scenario 13."""
    assert sockets(node.registry) == [REGISTRATION]
    node.agent.send(signal.SIGTERM)
    assert node.agent.wait(15) == 0
    assert sockets(node.registry) == []
    assert sockets(node.plugin) == []
    node.start_agent()
    await kubelet.register(DRIVER)
    await asyncio.to_thread(node.wait_ready)


async def test_a_call_under_way_is_finished_before_the_agent_ends(
    node: Node, kubelet: KubeletRole, namespace: Namespace
) -> None:
    """Scenario 13; the sockets go first, so that no new call comes."""
    claim = namespace.allocate(HDMI)
    with node.claim_sockets.frozen():
        call = asyncio.ensure_future(kubelet.prepare([claim]))
        while not node.checkpoint(claim.uid):
            await asyncio.sleep(0.01)
        node.agent.send(signal.SIGTERM)
        while sockets(node.registry) or sockets(node.plugin):
            await asyncio.sleep(0.01)
        assert node.agent.exit_code is None
    (device,) = await call
    assert device.device == namespace.device(HDMI)
    assert await asyncio.to_thread(node.agent.wait, 15) == 0
    node.start_agent()
    await kubelet.register(DRIVER)
    assert await kubelet.prepare([claim]) == [device]
    await kubelet.unprepare([claim])


async def test_a_killed_agent_is_back_on_new_sockets_of_the_old_names_and_no_slice_changed(
    node: Node, kubelet: KubeletRole
) -> None:
    """Scenario 14, U63."""
    before = node.slices()
    made = (node.registry / REGISTRATION).stat().st_ctime_ns
    node.agent.kill()
    assert sockets(node.registry) == [REGISTRATION]
    assert sockets(node.plugin) == [PLUGIN]
    node.start_agent()
    await kubelet.register(DRIVER)
    await asyncio.to_thread(node.wait_ready)
    assert sockets(node.registry) == [REGISTRATION]
    assert sockets(node.plugin) == [PLUGIN]
    assert (node.registry / REGISTRATION).stat().st_ctime_ns > made
    assert node.slices() == before


async def test_a_kubelet_that_starts_while_the_agent_is_dead_finds_it_and_all_slices_again(
    node: Node, kubelet: KubeletRole
) -> None:
    """Scenario 14 with a kubelet's restart between: it wipes the slices, and dials dead sockets."""
    before = devices(node)
    node.agent.kill()
    kubelet.close()
    async with node.kubelet() as restarted:
        await asyncio.to_thread(restarted.wipe_slices)
        assert node.slices() == []
        node.start_agent()
        await restarted.register(DRIVER)
        await asyncio.to_thread(node.wait_ready)
    assert devices(node) == before


async def test_a_kubelet_that_refuses_is_offered_a_new_socket_and_the_reason_is_shown(
    node: Node,
) -> None:
    """Kubelets up to 1.35 don't look at a socket again whose registration failed."""
    path = node.registry / REGISTRATION
    made = path.stat().st_ctime_ns
    async with node.kubelet() as kubelet:
        kubelet.versions = ()
        with pytest.raises(Exception, match="is known"):
            await kubelet.register(DRIVER)
        assert any("is known" in line for line in node.not_ready())
        wait_until(lambda: path.exists() and path.stat().st_ctime_ns > made, "a new socket", 30)
        kubelet.versions = ("v1.DRAPlugin",)
        await kubelet.register(DRIVER)
        await asyncio.to_thread(node.wait_ready)


def padded(folder: Path, length: int) -> Path:
    """A path below `folder` with so many bytes."""
    missing = length - len(bytes(folder)) - 1
    assert missing > 0, "the machine's temporary folder has too long a path for this test"
    return folder / ("x" * missing)


@contextmanager
def agent_stopped(node: Node) -> Iterator[None]:
    node.agent.send(signal.SIGTERM)
    assert node.agent.wait(15) == 0
    yield


async def test_short_names_are_taken_where_the_kubelets_folder_leaves_no_room_for_long_ones(
    cluster: Cluster, sound_stack: SoundStack, workspace: Path, virtual_cards: Path
) -> None:
    """U62: MicroK8s' folder, with the pod's UID in the names."""
    with fresh_node(cluster, sound_stack, workspace / "node", virtual_cards) as node:
        with agent_stopped(node):
            root = len(LONGEST_ROOT)
            node.registry = padded(workspace, root + len("/plugins_registry"))
            node.plugin = padded(workspace, root + len(f"/plugins/{DRIVER}"))
            node.flags["pod-uid"] = POD_UID
        node.start_agent()
        async with node.kubelet() as kubelet:
            await kubelet.register(DRIVER)
        (registration,) = sockets(node.registry)
        (plugin,) = sockets(node.plugin)
        assert POD_UID not in registration
        assert POD_UID not in plugin


def test_a_folder_too_long_for_any_name_ends_the_agent_with_one_clear_line(
    cluster: Cluster, sound_stack: SoundStack, workspace: Path, virtual_cards: Path
) -> None:
    """U62."""
    with fresh_node(cluster, sound_stack, workspace / "node", virtual_cards) as node:
        with agent_stopped(node):
            node.registry = padded(workspace, 107)
            lines = len(node.agent.log.read_text().splitlines())
        assert node.launch_agent().wait(20) == 1
        said = node.agent.log.read_text().splitlines()[lines:]
        assert len(said) == 1
        assert str(node.registry) in said[0]
        assert "bytes shorter" in said[0]
