"""Claims as a kubelet brings them: what is right, what is wrong, what is asked twice.

Scenarios are numbered by how likely they break a driver; all 25 are in this folder. All tests share one agent; after each nothing of its claims may be left.
"""

import asyncio
import json
import shutil
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.harness.cluster import Cluster, Json
from tests.harness.control_plane import ControlPlane
from tests.harness.kubelet_role import Claim, KubeletRole, PrepareError
from tests.harness.node import DRIVER, TREE, Node, fresh_node
from tests.harness.processes import Workspace, wait_until
from tests.harness.sound_stack import SoundStack
from tests.harness.workloads import ANALOG, CAPTURE, HDMI, POD_CLAIM, Namespace, opaque

pytestmark = pytest.mark.asyncio(loop_scope="function")

MANY = 18
SECOND_CARD = """
  - bus: pci
    path: "0000:05:00.0"
    id: Many
    pcms:
"""


def many(place: int) -> str:
    """Name of a PCM of the second card."""
    return f"pci-0000-05-00-0-line-{place}"


@pytest.fixture(scope="module")
def node(cluster: Cluster) -> Iterator[Node]:
    """One node for the module, with many PCMs."""
    with Workspace("claims") as work, SoundStack(work.path / "sound") as stack:
        virtual = work.path / "cards.yaml"
        shutil.copy(TREE / "manifests" / "examples" / "virtual-cards.yaml", virtual)
        pcms = [f"      - {{device: {n}, id: Line {n}}}\n" for n in range(MANY)]
        virtual.write_text(virtual.read_text() + SECOND_CARD + "".join(pcms))
        with fresh_node(cluster, stack, work.path / "node", virtual) as made:
            made.wait_published(4 + MANY, 3 + MANY)
            yield made


@pytest.fixture
async def kubelet(node: Node, namespace: Namespace) -> AsyncIterator[KubeletRole]:
    """A kubelet's role that at the end unprepares all, after which nothing may be left."""
    async with node.kubelet() as role:
        await role.register(DRIVER)
        yield role
        await role.unprepare(namespace.allocated)
    assert node.cdi_files() == []
    assert node.claim_uids() == set()


async def test_a_claim_is_prepared_once_and_unprepared_without_a_trace(
    node: Node, kubelet: KubeletRole, namespace: Namespace
) -> None:
    claim = namespace.allocate(HDMI)
    (device,) = await kubelet.prepare([claim])
    assert (device.pool, device.device) == (node.name, namespace.device(HDMI))
    assert device.request_names == ("request-0",)
    assert device.cdi_ids == tuple(
        f"{DRIVER}/{kind}={claim.uid}_request-0" for kind in ("claim", "metadata")
    )
    assert device.share_id is None
    assert await kubelet.prepare([claim]) == [device]
    assert len(node.cdi_files()) == 1


async def test_a_claim_that_nobody_knows_is_unprepared_without_a_question_to_the_api(
    control_plane: ControlPlane, node: Node, kubelet: KubeletRole, namespace: Namespace
) -> None:
    """Scenario 4, U68: known, unknown and known again in one call, and the API server hangs."""
    known = namespace.allocate(HDMI)
    await kubelet.prepare([known])
    unknown = Claim(POD_CLAIM, namespace.name, "never-was", str(uuid.uuid4()))
    with control_plane.programs()["apiserver"].frozen():
        await kubelet.unprepare([known, unknown, known])
        assert node.cdi_files() == []
        await kubelet.unprepare([known, unknown])


async def test_a_deleted_claim_is_unprepared(
    kubelet: KubeletRole, namespace: Namespace, node: Node
) -> None:
    """Scenario 4."""
    claim = namespace.allocate(HDMI)
    await kubelet.prepare([claim])
    namespace.delete_claim(claim)
    await kubelet.unprepare([claim])
    assert node.cdi_files() == []


async def test_a_known_claim_is_prepared_again_while_the_api_server_hangs(
    control_plane: ControlPlane, kubelet: KubeletRole, namespace: Namespace
) -> None:
    claim = namespace.allocate(HDMI)
    before = await kubelet.prepare([claim])
    with control_plane.programs()["apiserver"].frozen():
        assert await kubelet.prepare([claim]) == before


async def test_a_replaced_claim_is_refused_by_its_old_uid_whose_unprepare_spares_the_new_one(
    node: Node, kubelet: KubeletRole, namespace: Namespace
) -> None:
    """Scenario 5."""
    old = namespace.allocate(HDMI, name="twice")
    namespace.delete_claim(old)
    new = namespace.allocate(HDMI, name="twice")
    with pytest.raises(PrepareError, match=new.uid):
        await kubelet.prepare([old])
    assert node.cdi_files() == []
    await kubelet.prepare([new])
    await kubelet.unprepare([old])
    assert len(node.cdi_files()) == 1
    assert node.claim_uids() == {new.uid}


async def test_a_claim_replaced_while_prepared_waits_until_the_old_one_is_unprepared(
    kubelet: KubeletRole, namespace: Namespace
) -> None:
    """Scenario 5, of a pod that was deleted by force."""
    old = namespace.allocate(HDMI, name="twice")
    await kubelet.prepare([old])
    namespace.delete_claim(old)
    new = namespace.allocate(HDMI, name="twice")
    with pytest.raises(PrepareError, match=old.uid):
        await kubelet.prepare([new])
    await kubelet.unprepare([old])
    await kubelet.prepare([new])


async def test_a_second_claim_on_a_held_device_is_refused_and_the_first_goes_on(
    kubelet: KubeletRole, namespace: Namespace
) -> None:
    """Scenario 6: the scheduler gave one device away twice."""
    first, second = namespace.allocate(HDMI), namespace.allocate(HDMI)
    before = await kubelet.prepare([first])
    with pytest.raises(PrepareError, match=first.name):
        await kubelet.prepare([second])
    assert await kubelet.prepare([first]) == before
    await kubelet.unprepare([first])
    await kubelet.prepare([second])


async def test_an_administrators_claim_is_prepared_beside_another_and_holds_nothing(
    kubelet: KubeletRole, namespace: Namespace
) -> None:
    """Scenario 6."""
    holder = namespace.allocate(HDMI)
    admin = namespace.allocate(namespace.result(HDMI, adminAccess=True))
    before = await kubelet.prepare([holder])
    await kubelet.prepare([admin])
    assert await kubelet.prepare([holder]) == before
    await kubelet.unprepare([holder])
    await kubelet.prepare([namespace.allocate(HDMI)])


async def test_claims_with_different_shares_have_one_device_and_equal_shares_do_not(
    kubelet: KubeletRole, namespace: Namespace
) -> None:
    """Scenarios 6 and 16."""
    shares = [str(uuid.uuid4()) for _ in range(2)]
    first, second, again = (
        namespace.allocate(namespace.result(HDMI, shareID=share, consumedCapacity={"streams": "1"}))
        for share in (shares[0], shares[1], shares[0])
    )
    devices = await kubelet.prepare([first, second])
    assert [device.share_id for device in devices] == shares
    with pytest.raises(PrepareError, match=first.name):
        await kubelet.prepare([again])


async def test_of_a_claim_on_two_drivers_only_our_device_is_prepared(
    cluster: Cluster, kubelet: KubeletRole, namespace: Namespace
) -> None:
    """Scenario 7; what the other says of its device in the claim's status stays."""
    foreign = {"request": "gpu", "driver": "gpu.example.com", "pool": "p", "device": "gpu-0"}
    config = [opaque({"whatever": True}, "gpu", driver="gpu.example.com")]
    claim = namespace.allocate(namespace.result(HDMI), foreign, config=config)
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "Ready",
        "message": "",
        "lastTransitionTime": "2026-11-30T20:00:00Z",
    }
    entry = {key: value for key, value in foreign.items() if key != "request"}
    entry["conditions"] = [ready]
    cluster.patch_status("resourceclaim", claim.name, {"devices": [entry]}, namespace.name)
    (device,) = await kubelet.prepare([claim])
    assert device.device == namespace.device(HDMI)
    assert device.request_names == ("main",)

    def entries() -> dict[str, Json]:
        status = namespace.claim(claim.name)["status"]["devices"]
        return {each["driver"]: each for each in status}

    wait_until(lambda: DRIVER in entries(), "our entry in the claim's status", 45)
    (condition,) = entries()[DRIVER]["conditions"]
    assert (condition["type"], condition["status"]) == ("Ready", "True")
    assert entries()["gpu.example.com"] == entry


@pytest.mark.parametrize(
    ("named", "is_ours"), [("main", True), ("main/sub", True), ("main/other", False)]
)
async def test_configuration_is_for_its_request_and_its_subrequest(
    kubelet: KubeletRole, namespace: Namespace, named: str, *, is_ours: bool
) -> None:
    """Scenario 8: what applies is read, and so its mistake is found; the answer names the request."""
    wrong = opaque({"volumne": 3}, named)
    result = namespace.result(HDMI, request="main/sub")
    claim = namespace.allocate(result, config=[wrong])
    answer = (await kubelet.ask_prepare([claim]))[claim.uid]
    if is_ours:
        assert "volumne" in answer
    else:
        assert [device.request_names for device in answer if not isinstance(device, str)] == [
            ("main",)
        ]


async def test_the_claims_parameter_beats_the_classs(
    node: Node, kubelet: KubeletRole, namespace: Namespace
) -> None:
    """Scenario 9; the order in which they are listed doesn't matter."""
    by_class, by_claim = opaque({"pulse": True}, source="FromClass"), opaque({"pulse": False})
    for config in ([by_class, by_claim], [by_claim, by_class]):
        claim = namespace.allocate(HDMI, config=config)
        await kubelet.prepare([claim])
        (device,) = node.checkpoint(claim.uid)["devices"]
        assert device["parameters"]["pulse"] is False
        await kubelet.unprepare([claim])


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"volumne": 3}, "known: codec, pulse"),
        ({"pulse": "yes"}, "true or false"),
        ({"setVolume": True}, "only be set in a DeviceClass"),
        ({"codec": "ldac"}, "Bluetooth"),
    ],
)
async def test_wrong_parameters_fail_their_claim_with_what_is_right_and_no_other(
    kubelet: KubeletRole, namespace: Namespace, parameters: dict[str, object], reason: str
) -> None:
    """Scenario 9."""
    wrong = namespace.allocate(HDMI, config=[opaque(parameters)])
    right = namespace.allocate(ANALOG)
    answers = await kubelet.ask_prepare([wrong, right])
    assert reason in answers[wrong.uid]
    (device,) = answers[right.uid]
    assert not isinstance(device, str)
    assert device.device == namespace.device(ANALOG)


async def test_twenty_prepares_at_once_have_each_their_answer(
    node: Node, kubelet: KubeletRole, namespace: Namespace
) -> None:
    """Scenario 11: two of them for one claim."""
    claims = [namespace.allocate(many(place)) for place in range(MANY)]
    asked = [*claims, claims[0], claims[0]]
    answers = await asyncio.gather(*[kubelet.prepare([claim]) for claim in asked])
    assert answers[0] == answers[-2] == answers[-1]
    names = [device.device for (device,) in answers[:MANY]]
    assert names == [namespace.device(many(place)) for place in range(MANY)]
    assert len(node.cdi_files()) == MANY


async def test_a_call_that_the_kubelet_gave_up_is_finished_and_found_by_the_next(
    node: Node, kubelet: KubeletRole, namespace: Namespace
) -> None:
    """Scenario 12, with a deadline of half a second instead of 45."""
    claim = namespace.allocate(HDMI)
    before = node.metrics()
    with node.claim_sockets.frozen():
        with pytest.raises(asyncio.TimeoutError):
            await kubelet.ask_prepare([claim], timeout=0.5)
        again = asyncio.ensure_future(kubelet.prepare([claim]))
        await asyncio.sleep(0.1)  # that it waits behind the first is the point, not needed to pass
    (device,) = await again
    assert device.device == namespace.device(HDMI)
    after = node.metrics()
    calls = {
        kind: f'liken_audio_claims_total{{call="{kind}"}}' for kind in ("prepare", "prepare-again")
    }
    assert after[calls["prepare"]] - before[calls["prepare"]] == 1
    assert after[calls["prepare-again"]] - before[calls["prepare-again"]] == 1


async def test_an_empty_call_is_answered_and_does_nothing(node: Node, kubelet: KubeletRole) -> None:
    """Scenario 17: liveness probes of kubelets' neighbours do this."""
    assert await kubelet.prepare([]) == []
    await kubelet.unprepare([])
    assert node.claim_uids() == set()


async def test_a_claim_without_allocation_is_refused(
    kubelet: KubeletRole, namespace: Namespace
) -> None:
    """Scenario 17."""
    exactly = {"deviceClassName": "audio-sink"}
    claim = namespace.make_claim({"name": "main", "exactly": exactly | {"count": 30}})
    with pytest.raises(PrepareError, match="not allocated"):
        await kubelet.prepare([claim])


async def test_a_claim_without_a_device_of_ours_has_no_device(
    node: Node, kubelet: KubeletRole, namespace: Namespace
) -> None:
    """Scenario 17."""
    foreign = {"request": "gpu", "driver": "gpu.example.com", "pool": "p", "device": "gpu-0"}
    assert await kubelet.prepare([namespace.allocate(foreign)]) == []
    assert node.cdi_files() == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"pool": "other"}, "this node's is"), ({"device": "gone"}, "not known on node")],
)
async def test_a_device_that_is_not_here_is_refused_and_what_is_here_named(
    kubelet: KubeletRole, namespace: Namespace, change: dict[str, str], reason: str
) -> None:
    claim = namespace.allocate(namespace.result(HDMI) | change)
    with pytest.raises(PrepareError, match=reason):
        await kubelet.prepare([claim])


async def test_a_prepared_claim_shows_on_its_sink_until_it_is_unprepared(
    cluster: Cluster, kubelet: KubeletRole, namespace: Namespace
) -> None:
    claim = namespace.allocate(HDMI, CAPTURE)

    def holders(kind: str, device: str) -> list[str]:
        status = cluster.get(kind, namespace.device(device)).get("status", {})
        return [each["uid"] for each in status.get("claims", ())]

    await kubelet.prepare([claim])
    wait_until(lambda: holders("sink", HDMI) == [claim.uid], "the claim on the Sink", 45)
    wait_until(lambda: holders("source", CAPTURE) == [claim.uid], "it on the Source", 45)
    await kubelet.unprepare([claim])
    wait_until(lambda: holders("sink", HDMI) == [], "the Sink without a claim", 45)


async def test_a_claims_cdi_file_is_whole_and_its_folder_is_for_every_user(
    node: Node, kubelet: KubeletRole, namespace: Namespace
) -> None:
    claim = namespace.allocate(HDMI)
    await kubelet.prepare([claim])
    (name,) = node.cdi_files()
    document = json.loads((node.cdi / name).read_text())
    (device,) = document["devices"]
    (mount,) = device["containerEdits"]["mounts"]
    assert mount["hostPath"] == str(node.claims / claim.uid)
    assert "ro" in mount["options"]
    assert Path(mount["hostPath"]).stat().st_mode & 0o005 == 0o005
    assert "deviceNodes" not in device["containerEdits"]
