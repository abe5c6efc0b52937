"""Claims over restarts of the agent, of the node, and of what they need; and two agents at once."""

import asyncio
import shutil
import signal
from collections.abc import Callable, Mapping

import pytest
from grpclib.exceptions import GRPCError, StreamTerminatedError

from tests.harness.control_plane import ControlPlane
from tests.harness.kubelet_role import Claim, KubeletRole, PrepareError
from tests.harness.node import DRIVER, Node
from tests.harness.processes import wait_until
from tests.harness.workloads import ANALOG, CAPTURE, HDMI, Namespace

ANOTHER_BOOT = "b0075eca-1d5c-4d0f-8b3e-2f6a9d6f0c11"
MOST_STEPS = 60
SECONDS = 45
"""Until what should come by itself."""


async def until(is_so: Callable[[], bool], what: str) -> None:
    await asyncio.to_thread(wait_until, is_so, what, SECONDS)


async def restart(node: Node, kubelet: KubeletRole, *, number: int = signal.SIGKILL) -> None:
    """End the agent by a signal and register the next one."""
    node.agent.send(number)
    await asyncio.to_thread(node.agent.wait, 15)
    await asyncio.to_thread(node.start_agent)
    await kubelet.register(DRIVER)


def cdi_content(node: Node) -> dict[str, str]:
    """All CDI files that a runtime reads, by name."""
    return {each.name: each.read_text() for each in node.cdi.glob("*.json")}


def wipe(node: Node) -> None:
    for each in node.cdi.iterdir():
        each.unlink()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
async def test_a_claim_prepared_before_a_restart_is_unprepared_after_it(
    node: Node, kubelet: KubeletRole, namespace: Namespace, number: int
) -> None:
    """Scenario 1."""
    claim = namespace.allocate(HDMI)
    await kubelet.prepare([claim])
    await restart(node, kubelet, number=number)
    assert node.claim_uids() == {claim.uid}
    await kubelet.unprepare([claim])
    assert node.cdi_files() == []
    assert node.claim_uids() == set()


async def test_after_a_reboot_prepared_claims_have_their_files_with_todays_facts(
    node: Node, kubelet: KubeletRole, namespace: Namespace
) -> None:
    """Scenario 2, U65: another boot id, an empty CDI folder, everything started anew."""
    claim = namespace.allocate(HDMI)
    before = await kubelet.prepare([claim])
    content = cdi_content(node)
    node.agent.kill()
    node.claim_sockets.kill()
    for folder in (node.cdi, node.claims):
        shutil.rmtree(folder)
    node.stack.restart_pipewire()
    node.boot_id = ANOTHER_BOOT
    node.start_claim_sockets()
    node.start_agent()
    is_back = "the CDI files, before anybody asks"
    await until(lambda: node.cdi.exists() and cdi_content(node) == content, is_back)
    await kubelet.register(DRIVER)
    assert await kubelet.prepare([claim]) == before
    assert cdi_content(node) == content
    assert node.checkpoint(claim.uid)["bootId"] == ANOTHER_BOOT
    await kubelet.unprepare([claim])
    assert node.cdi_files() == []
    assert node.claim_uids() == set()


async def test_a_known_claim_has_its_cdi_file_again_after_the_folder_was_wiped(
    node: Node, kubelet: KubeletRole, namespace: Namespace
) -> None:
    """Scenario 2, U65: by Prepare, and by a start of the agent."""
    claim = namespace.allocate(HDMI, CAPTURE)
    before = await kubelet.prepare([claim])
    content = cdi_content(node)
    wipe(node)
    assert await kubelet.prepare([claim]) == before
    assert cdi_content(node) == content
    wipe(node)
    await restart(node, kubelet)
    await until(lambda: cdi_content(node) == content, "the CDI files after the start")
    await kubelet.unprepare([claim])


async def test_an_agent_killed_after_the_reservation_prepares_the_claim_at_the_next_call(
    node: Node, kubelet: KubeletRole, namespace: Namespace
) -> None:
    """Scenario 10: the record is there, the socket isn't."""
    claim = namespace.allocate(HDMI)
    with node.claim_sockets.frozen():
        call = asyncio.ensure_future(kubelet.ask_prepare([claim]))
        while not node.checkpoint(claim.uid):
            await asyncio.sleep(0.01)
        node.agent.kill()
    await asyncio.gather(call, return_exceptions=True)
    assert node.checkpoint(claim.uid)["state"] == "started"
    await asyncio.to_thread(node.start_agent)
    await kubelet.register(DRIVER)
    (device,) = await kubelet.prepare([claim])
    assert device.device == namespace.device(HDMI)
    await kubelet.unprepare([claim])
    assert node.cdi_files() == []
    assert node.claim_uids() == set()


async def test_a_claim_killed_half_way_and_deleted_meanwhile_leaves_nothing(
    node: Node, kubelet: KubeletRole, namespace: Namespace
) -> None:
    """Scenario 10: nobody asks for it again, so the agent itself cleans up, and frees the device."""
    claim = namespace.allocate(HDMI)
    with node.claim_sockets.frozen():
        call = asyncio.ensure_future(kubelet.ask_prepare([claim]))
        while not node.checkpoint(claim.uid):
            await asyncio.sleep(0.01)
        node.agent.kill()
    await asyncio.gather(call, return_exceptions=True)
    namespace.delete_claim(claim)
    await asyncio.to_thread(node.start_agent)
    await until(lambda: node.claim_uids() == set(), "the claim's end")
    assert node.cdi_files() == []
    await kubelet.register(DRIVER)
    another = namespace.allocate(HDMI)
    await kubelet.prepare([another])
    await kubelet.unprepare([another])


@pytest.mark.timeout(300)
async def test_an_agent_killed_before_any_of_its_steps_leaves_nothing_half_done(
    node: Node, kubelet: KubeletRole, namespace: Namespace
) -> None:
    """Scenario 10: SIGKILL before each change of a file, through all of Prepare and Unprepare.

    Each claim dies one step later than the one before it, and is taken up by the next agent.
    """
    died = {"prepare": 0, "unprepare": 0}
    claim, where = None, ""
    for step in range(1, MOST_STEPS):
        following = namespace.allocate(HDMI)
        node.die_at = (following.uid, step)
        await restart(node, kubelet)
        if claim is not None:
            if where == "prepare":
                (device,) = await kubelet.prepare([claim])
                assert device.device == namespace.device(HDMI)
                assert len(node.cdi_files()) == 1
            await kubelet.unprepare([claim])
            assert node.cdi_files() == []
            assert node.claim_uids() == set()
        claim, where = following, await killed_in(kubelet, following)
        if where == "":
            break
        died[where] += 1
    assert where == "", f"more than {MOST_STEPS} steps"
    assert died["prepare"] >= 6
    assert died["unprepare"] >= 3


async def killed_in(kubelet: KubeletRole, claim: Claim) -> str:
    """Prepare and unprepare; returns the call in which the agent died, or nothing."""
    try:
        await kubelet.prepare([claim])
    except (GRPCError, OSError, StreamTerminatedError):
        return "prepare"
    try:
        await kubelet.unprepare([claim])
    except (GRPCError, OSError, StreamTerminatedError):
        return "unprepare"
    return ""


async def test_a_step_that_fails_takes_the_steps_before_it_back(
    node: Node, kubelet: KubeletRole, namespace: Namespace
) -> None:
    """The CDI folder can't be made: the error names it, and the device is free for others."""
    first, second = namespace.allocate(HDMI), namespace.allocate(HDMI)
    node.cdi.rmdir()
    node.cdi.write_text("in the way")
    with pytest.raises(PrepareError, match="cdi"):
        await kubelet.prepare([first])
    assert node.claim_uids() == set()
    node.cdi.unlink()
    await kubelet.prepare([second])
    with pytest.raises(PrepareError, match=second.name):
        await kubelet.prepare([first])
    await kubelet.unprepare([second])


async def test_claim_sockets_that_is_away_is_named_and_its_return_is_enough(
    node: Node, kubelet: KubeletRole, namespace: Namespace
) -> None:
    claim = namespace.allocate(HDMI)
    node.claim_sockets.kill()
    with pytest.raises(PrepareError, match="claim-sockets"):
        await kubelet.prepare([claim])
    node.start_claim_sockets()
    await kubelet.prepare([claim])
    await kubelet.unprepare([claim])


async def test_an_agent_that_starts_while_the_api_server_hangs_serves_known_claims(
    control_plane: ControlPlane, node: Node, kubelet: KubeletRole, namespace: Namespace
) -> None:
    """U81: what was prepared is prepared again and unprepared; what is new says why it can't be."""
    known, new = namespace.allocate(HDMI), namespace.allocate(ANALOG)
    before = await kubelet.prepare([known])
    node.agent.kill()
    with control_plane.programs()["apiserver"].frozen():
        await asyncio.to_thread(node.start_agent)
        await kubelet.register(DRIVER)
        assert await kubelet.prepare([known]) == before
        answers = await kubelet.ask_prepare([new])
        assert "can't be read now" in answers[new.uid]
        await kubelet.unprepare([known])
        assert node.cdi_files() == []
    await asyncio.to_thread(node.wait_ready)
    await kubelet.prepare([new])
    await kubelet.unprepare([new])


async def test_a_checkpoint_that_cannot_be_read_costs_its_own_claim_alone_and_that_one_recovers(
    node: Node, kubelet: KubeletRole, namespace: Namespace
) -> None:
    broken, whole = namespace.allocate(HDMI), namespace.allocate(ANALOG)
    before = await kubelet.prepare([broken, whole])
    node.agent.kill()
    (node.plugin / "claims" / f"{broken.uid}.json").write_text('{"version": 1, "cl')
    await asyncio.to_thread(node.start_agent)
    await kubelet.register(DRIVER)
    assert await kubelet.prepare([whole, broken]) == [before[1], before[0]]
    await kubelet.unprepare([broken, whole])
    assert node.cdi_files() == []
    assert node.claim_uids() == set()


def must_have_new_nodes(node: Node, before: Mapping[str, int], outputs: set[str]) -> None:
    """Wait until the nodes of these outputs are made anew, and of no other device."""
    claimed = {f"{node.name}-{output}" for output in outputs}

    def are_new() -> bool:
        infos = node.stack.nodes()
        changed = {
            name
            for name, serial in before.items()
            if name in infos and infos[name]["props"]["object.serial"] != serial
        }
        return before.keys() <= infos.keys() and changed == claimed

    wait_until(are_new, "new nodes of the claimed devices", 20)


async def test_two_agents_of_a_rolling_update_share_claims_and_change_no_slice(
    node: Node, namespace: Namespace
) -> None:
    """Scenario 22: prepared by one, unprepared by the other, then the first one stops."""
    node.agent.send(signal.SIGTERM)
    assert node.agent.wait(15) == 0
    node.flags["pod-uid"] = "aaaaaaaa-0000-4000-8000-000000000001"
    node.start_agent()
    slices = node.slices()
    nodes = {name: info["props"]["object.serial"] for name, info in node.stack.nodes().items()}
    rival = node.rival()
    rival.flags["pod-uid"] = "bbbbbbbb-0000-4000-8000-000000000002"
    try:
        rival.start_agent()
        async with node.kubelet() as old, rival.kubelet() as new:
            await old.register(DRIVER, pattern="*aaaaaaaa*")
            await new.register(DRIVER, pattern="*bbbbbbbb*")
            await asyncio.to_thread(rival.wait_ready)
            first, second = namespace.allocate(HDMI), namespace.allocate(ANALOG)
            before = await old.prepare([first])
            assert await new.prepare([first]) == before
            with pytest.raises(PrepareError, match=first.name):
                await new.prepare([namespace.allocate(HDMI)])
            await new.unprepare([first])
            assert node.cdi_files() == []
            both = [old.prepare([second]), new.prepare([second])]
            one, other = await asyncio.gather(*both)
            assert one == other
            node.agent.send(signal.SIGTERM)
            assert await asyncio.to_thread(node.agent.wait, 15) == 0
            assert await new.prepare([second]) == one
            await new.unprepare([second])
        assert node.claim_uids() == set()
        assert [each.name for each in node.registry.iterdir()] == [
            f"{DRIVER}-{rival.flags['pod-uid']}-reg.sock"
        ]
        assert node.slices() == slices
        await asyncio.to_thread(must_have_new_nodes, node, nodes, {HDMI, ANALOG})
    finally:
        rival.end()
