"""A pod with several claims: each of its sockets leads to all of them, and nobody else's does."""

import asyncio
import json
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.harness.cluster import Json
from tests.harness.kubelet_role import Claim, KubeletRole, Prepared
from tests.harness.node import DRIVER, Node
from tests.harness.processes import Program, wait_until
from tests.harness.tone import play_command
from tests.harness.workloads import ANALOG, CAPTURE, HDMI, Namespace, request

SECONDS = 45
PLAY = play_command(440, 60.0)


async def until(is_so: Callable[[], bool], what: str, *programs: Program) -> None:
    await asyncio.to_thread(wait_until, is_so, what, SECONDS, programs)


class Pods:
    """Pods with claims of one sink or source each, as a kubelet brings them."""

    def __init__(self, node: Node, kubelet: KubeletRole, namespace: Namespace) -> None:
        self.node = node
        self.kubelet = kubelet
        self.namespace = namespace
        self.claims: dict[str, Claim] = {}

    async def start(self, pod: str, *devices: str) -> Sequence[Prepared]:
        """Have a pod bound and its claims prepared, new ones and those that other pods have."""
        for device in devices:
            if device not in self.claims:
                wanted = request(self.namespace.device(device))
                self.claims[device] = self.namespace.make_claim(wanted)
        names = {f"c{place}": self.claims[each].name for place, each in enumerate(devices)}
        self.namespace.make_pod(pod, names)
        self.namespace.wait_bound(pod)
        return await self.kubelet.prepare(self.kubelet.claims(self.namespace.name, pod))

    def run(self, pod: str, prepared: Sequence[Prepared], *command: str) -> Program:
        return self.kubelet.start_container(self.namespace.name, pod, prepared, command=command)

    def document(self, device: str) -> Json:
        """The claim's `claim.json`."""
        file = self.node.claims / self.claims[device].uid / "claim.json"
        found: Json = json.loads(file.read_text())
        return found

    def joined(self, device: str) -> set[str]:
        """What a claim's socket reaches beside its own device."""
        found = self.document(device).get("joined", ())
        whole = {self.namespace.device(each): each for each in (HDMI, ANALOG, CAPTURE)}
        return {whole[each["device"]] for each in found}

    async def seen(self, pod: str, prepared: Sequence[Prepared], socket: str) -> set[str]:
        """Names of the devices' nodes that a program of the pod sees through a claim's socket."""
        mark = f"--- {uuid.uuid4()}"  # all programs of a container write to one file
        command = ("sh", "-c", f"echo {mark}; pw-dump --no-colors")
        program = self.run(pod, prepared, *through(self, socket, *command))
        code = await asyncio.to_thread(program.wait, SECONDS)
        text = program.log.read_text(errors="replace").partition(f"{mark}\n")[2]
        assert code == 0, text
        return {
            each for each in (HDMI, ANALOG, CAPTURE) if f'"{self.namespace.device(each)}"' in text
        }


@pytest.fixture
def pods(node: Node, kubelet: KubeletRole, namespace: Namespace) -> Pods:
    return Pods(node, kubelet, namespace)


def linked(node: Node) -> set[tuple[str, str]]:
    """Names of linked nodes: (output, input)."""
    objects = node.stack.objects()
    names = {each["id"]: _properties(each).get("node.name", "") for each in objects}
    return {
        (names.get(info["output-node-id"], ""), names.get(info["input-node-id"], ""))
        for each in objects
        if str(each["type"]).endswith(":Link") and (info := each.get("info"))
    }


def _properties(item: Json) -> Any:
    return (item.get("info") or {}).get("props") or {}


@pytest.mark.parametrize("order", [(HDMI, CAPTURE), (CAPTURE, HDMI)], ids=["sink-last", "mic-last"])
async def test_playback_goes_to_the_claimed_sink_and_capture_comes_from_the_claimed_source(
    pods: Pods, order: tuple[str, str]
) -> None:
    """With no argument at all, whichever claim's edits come last."""
    prepared = await pods.start("caller", *order)
    sink, source = (pods.namespace.device(each) for each in (HDMI, CAPTURE))
    player = pods.run("caller", prepared, *PLAY)
    await until(lambda: (player_name(pods.node), sink) in linked(pods.node), "playback", player)
    recorder = pods.run("caller", prepared, "pw-record", "--raw", "/dev/null")
    await until(lambda: (source, "pw-record") in linked(pods.node), "capture", recorder)
    for program in (player, recorder):
        program.kill()
    await pods.kubelet.unprepare(list(pods.claims.values()))
    assert pods.node.claim_uids() == set()


def player_name(node: Node) -> str:
    """The name of the one stream that plays."""
    streams = [
        _properties(each).get("node.name", "")
        for each in node.stack.objects()
        if _properties(each).get("media.class") == "Stream/Output/Audio"
    ]
    return streams[0] if streams else "none"


async def test_each_claims_metadata_is_where_every_drivers_is(pods: Pods) -> None:
    prepared = await pods.start("reader", HDMI, CAPTURE)
    root = "/var/run/kubernetes.io/dra-device-attributes/resourceclaims"
    for device, kind in ((HDMI, "sink"), (CAPTURE, "source")):
        claim = pods.claims[device]
        mark = f"--- {device}"
        file = f"{root}/{claim.name}/main/{DRIVER}-metadata.json"
        program = pods.run("reader", prepared, "sh", "-c", f"echo {mark}; cat {file}")
        assert await asyncio.to_thread(program.wait, SECONDS) == 0
        newest, _ = program.log.read_text().partition(f"{mark}\n")[2].splitlines()
        document = json.loads(newest)
        assert document["metadata"]["uid"] == claim.uid
        (entry,) = document["requests"][0]["devices"]
        assert entry["attributes"][kind] == {"string": pods.namespace.device(device)}
    await pods.kubelet.unprepare(list(pods.claims.values()))
    assert pods.node.claim_uids() == set()


async def test_another_pod_that_gets_one_claim_never_reaches_the_first_ones_others(
    pods: Pods,
) -> None:
    both = await pods.start("first", HDMI, ANALOG)
    assert (pods.joined(HDMI), pods.joined(ANALOG)) == ({ANALOG}, {HDMI})
    for socket in (HDMI, ANALOG):
        assert await pods.seen("first", both, socket) == {HDMI, ANALOG}
    player = pods.run("first", both, *through(pods, HDMI, *PLAY))
    sink = pods.namespace.device(HDMI)
    await until(lambda: (player_name(pods.node), sink) in linked(pods.node), "playback", player)

    one = await pods.start("second", ANALOG)
    await until(lambda: pods.joined(ANALOG) == set(), "the reach of the shared claim cut")
    assert await pods.seen("second", one, ANALOG) == {ANALOG}
    assert await pods.seen("first", both, ANALOG) == {ANALOG}
    assert await pods.seen("first", both, HDMI) == {HDMI, ANALOG}
    assert player.exit_code is None, "who plays through another socket isn't cut"
    player.kill()

    pods.kubelet.finish(pods.namespace.name, "second")
    node = pods.node
    node.agent.kill()
    await asyncio.to_thread(node.start_agent)
    await pods.kubelet.register(DRIVER)
    again = pods.kubelet.claims(pods.namespace.name, "first")
    assert await pods.kubelet.prepare(again) == both
    assert pods.joined(ANALOG) == set(), "a change back would cut the first pod's clients"


def through(pods: Pods, device: str, *command: str) -> Sequence[str]:
    """A command on one claim's socket, to its device."""
    socket = f"/run/{DRIVER}/{pods.claims[device].uid}/pipewire-0"
    where = f"PIPEWIRE_REMOTE={socket} PIPEWIRE_NODE={pods.namespace.device(device)}"
    return ["sh", "-c", f'{where} exec "$@"', "-", *command]


async def test_another_pod_that_came_while_the_agent_was_away_is_noticed_at_its_start(
    pods: Pods,
) -> None:
    await pods.start("first", HDMI, ANALOG)
    pods.node.agent.kill()
    names = {"c0": pods.claims[ANALOG].name}
    pods.namespace.make_pod("second", names)
    pods.namespace.wait_bound("second")
    assert pods.joined(ANALOG) == {HDMI}
    await asyncio.to_thread(pods.node.start_agent)
    await until(lambda: pods.joined(ANALOG) == set(), "the reach of the shared claim cut")
    assert pods.joined(HDMI) == {ANALOG}
