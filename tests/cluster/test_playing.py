"""The main job: what a user applies, what the scheduler gives, and what is heard where."""

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.harness.cluster import Json
from tests.harness.kubelet_role import KubeletRole, PrepareError
from tests.harness.node import DRIVER, TREE, Node
from tests.harness.processes import Program, Programs, wait_until
from tests.harness.tone import Recorder, play_command
from tests.harness.workloads import ANALOG, DARK, HDMI, POD_CLAIM, Namespace, request

MONITOR_SPEAKERS = TREE / "manifests" / "examples" / "monitor-speakers.yaml"
SECONDS = 45


async def until(is_so: Callable[[], bool], what: str, *programs: Program) -> None:
    await asyncio.to_thread(wait_until, is_so, what, SECONDS, programs)


@pytest.fixture
def recorders(node: Node, namespace: Namespace, workspace: Path) -> Iterator[dict[str, Recorder]]:
    """Recorders of both sinks that can be heard, running."""
    with Programs(workspace) as programs:
        found = {}
        for device in (HDMI, ANALOG):
            found[device] = Recorder(node.stack, programs, namespace.device(device))
            found[device].start()
        yield found


async def test_a_deployments_pod_is_heard_on_its_claims_sink_alone_over_a_restart_of_the_agent(
    node: Node, kubelet: KubeletRole, namespace: Namespace, recorders: dict[str, Recorder]
) -> None:
    """From a Deployment and a template to the end of the pod, with what a user applies."""
    cluster = node.cluster
    cluster.kubectl("apply", "-f", str(MONITOR_SPEAKERS), *namespace.flags)

    def bound() -> Json | None:
        pods = cluster.items("pods", *namespace.flags, "-l=app=monitor-speakers")
        return next((pod for pod in pods if pod["spec"].get("nodeName") == node.name), None)

    pod = cluster.wait_for("the Deployment's pod on the node", bound)["metadata"]["name"]
    claims = kubelet.claims(namespace.name, pod)
    prepared = await kubelet.prepare(claims)
    assert [device.device for device in prepared] == [namespace.device(HDMI)]
    node.agent.kill()
    await asyncio.to_thread(node.start_agent)
    await kubelet.register(DRIVER)
    assert await kubelet.prepare(claims) == prepared
    player = kubelet.start_container(namespace.name, pod, prepared)
    kubelet.set_running(namespace.name, pod)
    await until(lambda: recorders[HDMI].loud_seconds() >= 1.8, "two seconds of sound", player)
    heard = recorders[HDMI].stop()
    assert heard.is_tone(440), f"heard: {heard}"
    assert recorders[ANALOG].stop().is_silent

    cluster.kubectl("delete", "deployment", "monitor-speakers", *namespace.flags)
    player.kill()
    await kubelet.unprepare(claims)
    kubelet.finish(namespace.name, pod)
    assert node.cdi_files() == []
    assert node.claim_uids() == set()
    gone = "the template's claim deleted"
    await until(lambda: not cluster.items("resourceclaims", *namespace.flags), gone)


async def test_a_pod_plays_on_without_a_gap_while_the_agent_is_killed_and_comes_back(
    node: Node, kubelet: KubeletRole, namespace: Namespace, recorders: dict[str, Recorder]
) -> None:
    claim = namespace.make_claim(request(namespace.device(ANALOG)))
    namespace.make_pod("player", {POD_CLAIM: claim.name}, play_command(440, 6.0))
    namespace.wait_bound("player")
    prepared = await kubelet.prepare(kubelet.claims(namespace.name, "player"))
    player = kubelet.start_container(namespace.name, "player", prepared)
    await until(lambda: recorders[ANALOG].loud_seconds() >= 1.0, "sound", player)
    node.agent.kill()
    await asyncio.to_thread(node.start_agent)
    await kubelet.register(DRIVER)
    await until(lambda: player.exit_code is not None, "the end of the player")
    heard = recorders[ANALOG].stop()
    assert heard.is_tone(440), f"heard: {heard}"
    assert heard.seconds >= 5.5
    assert recorders[HDMI].stop().is_silent
    await kubelet.unprepare([claim])


async def test_a_shared_sink_plays_two_namespaces_claims_at_once(
    node: Node, kubelet: KubeletRole, namespace: Namespace, recorders: dict[str, Recorder]
) -> None:
    sink = namespace.device(HDMI)
    patch = json.dumps({"spec": {"sharing": "Shared"}})
    node.cluster.kubectl("patch", "sink", sink, "--type=merge", f"-p={patch}")
    await until(lambda: is_shared(node, sink), "a device for several claims")
    with Namespace(node.cluster, node.name) as other:
        players, uids, shares = [], [], []
        for where, tone in ((namespace, 440), (other, 1000)):
            claim = where.make_claim(request(sink))
            where.make_pod("player", {POD_CLAIM: claim.name}, play_command(tone, 10.0))
            where.wait_bound("player")
            claims = kubelet.claims(where.name, "player")
            prepared = await kubelet.prepare(claims)
            (device,) = prepared
            uids += claims
            shares.append(device.share_id)
            players.append(kubelet.start_container(where.name, "player", prepared))
        assert None not in shares
        assert len(set(shares)) == 2

        def are_both_heard() -> bool:
            return all(recorders[HDMI].share(tone) > 0.3 for tone in (440, 1000))

        await until(are_both_heard, "both tones", *players)
        assert recorders[ANALOG].stop().is_silent
        status = node.cluster.get("sink", sink)["status"]
        assert {each["uid"] for each in status["claims"]} == {claim.uid for claim in uids}
        for player in players:
            player.kill()
        await kubelet.unprepare(uids)


def is_shared(node: Node, name: str) -> bool:
    (device,) = [each for each in node.devices() if each["name"] == name]
    return bool(device.get("allowMultipleAllocations")) and "streams" in device.get("capacity", {})


async def test_an_exclusive_sink_has_one_claim_of_any_number_of_pods_and_an_administrators(
    node: Node, kubelet: KubeletRole, namespace: Namespace
) -> None:
    sink = namespace.device(HDMI)
    held, wanted = (namespace.make_claim(request(sink)) for _ in range(2))
    admin = namespace.make_claim(request(sink, adminAccess=True))
    for name, claim in {"first": held, "second": held, "admin": admin}.items():
        namespace.make_pod(name, {POD_CLAIM: claim.name})
        namespace.wait_bound(name)
    namespace.make_pod("waiting", {POD_CLAIM: wanted.name})

    def refusal() -> Json | None:
        for condition in namespace.pod("waiting").get("status", {}).get("conditions", ()):
            if condition["type"] == "PodScheduled" and condition["status"] == "False":
                return {"message": condition["message"]}
        return None

    message = node.cluster.wait_for("the scheduler's reason", refusal)["message"]
    assert "cannot allocate all claims" in message
    answers = [
        await kubelet.prepare(kubelet.claims(namespace.name, n)) for n in ("first", "second")
    ]
    assert answers[0] == answers[1]
    await kubelet.prepare(kubelet.claims(namespace.name, "admin"))
    status = node.cluster.get("sink", sink)["status"]
    assert status["claims"][0]["uid"] == held.uid
    await kubelet.unprepare([held, admin])


async def test_a_claim_that_tolerates_a_dark_screen_is_prepared_once_the_screen_is_there(
    node: Node, kubelet: KubeletRole, namespace: Namespace, virtual_cards: Path
) -> None:
    tolerations = [{"operator": "Exists"}]
    claim = namespace.make_claim(request(namespace.device(DARK), tolerations=tolerations))
    namespace.make_pod("patient", {POD_CLAIM: claim.name})
    namespace.wait_bound("patient")
    claims = kubelet.claims(namespace.name, "patient")
    with pytest.raises(PrepareError, match="no monitor is connected"):
        await kubelet.prepare(claims)
    assert node.claim_uids() == set()
    plugged = virtual_cards.read_text().replace('eld: ""', f"eld: {any_eld(virtual_cards)}")
    virtual_cards.write_text(plugged)
    await until(lambda: namespace.device(DARK) in node.stack.nodes(), "the screen's node")
    (device,) = await kubelet.prepare(claims)
    assert device.device == namespace.device(DARK)
    await kubelet.unprepare([claim])


def any_eld(virtual_cards: Path) -> str:
    """The one that the example has."""
    (line,) = [each for each in virtual_cards.read_text().splitlines() if "eld: 1000" in each]
    return line.partition("eld: ")[2]


async def test_a_pulled_monitor_moves_its_pod_away_and_unprepare_works_then(
    node: Node, kubelet: KubeletRole, namespace: Namespace, virtual_cards: Path
) -> None:
    claim = namespace.make_claim(request(namespace.device(HDMI)))
    namespace.make_pod("player", {POD_CLAIM: claim.name})
    namespace.wait_bound("player")
    await kubelet.prepare(kubelet.claims(namespace.name, "player"))
    kubelet.set_running(namespace.name, "player")
    dark = virtual_cards.read_text().replace(any_eld(virtual_cards), '""')
    virtual_cards.write_text(dark)
    evicted = "the pod evicted by the taint"
    await until(lambda: "deletionTimestamp" in namespace.pod("player")["metadata"], evicted)
    await kubelet.unprepare([claim])
    kubelet.finish(namespace.name, "player")
    assert node.claim_uids() == set()
