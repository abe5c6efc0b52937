"""Claims from the kubelet's call to the socket that a container gets: every part real but the API server."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from grpclib import GRPCError, Status
from grpclib.client import Channel

from liken_audio.api import DRIVER, RESOURCE_CLAIMS
from liken_audio.claim_store import ClaimStore
from liken_audio.controllers.preparer import Partners, Place, Preparer
from liken_audio.graph.device_graph import DeviceGraph
from liken_audio.graph.model import CardsSnapshot, PipeWireSnapshot, Source
from liken_audio.kubelet import plugin
from liken_audio.kubelet.generated.k8s.io.kubelet.pkg.apis.dra import v1 as dra
from liken_audio.kubelet.generated.k8s.io.kubelet.pkg.apis.dra import v1beta1 as dra_v1beta1
from liken_audio.kubelet.server import KubeletServer
from liken_audio.kubelet.socket_paths import SocketPaths, socket_paths
from liken_audio.sockets.client import SocketClient
from liken_audio.sockets.holder import Holder
from tests.builders import allocated, card, claim_ref, node, pcm, result
from tests.fakes import FakeResourceClient
from tests.harness.sound_stack import SoundStack

ANALOG = "kitchen-pci-0000-00-1f-3-alc257-analog"
DEADLINE = 45.0


class SlowSockets(SocketClient):
    """The real client, held up on demand."""

    def __init__(self, claims_dir: Path, control: Path) -> None:
        super().__init__(claims_dir, control)
        self.go = asyncio.Event()
        self.go.set()
        self.entered = asyncio.Event()
        self.opens = 0

    async def open(self, record: Any, joined: Any = ()) -> None:
        self.opens += 1
        self.entered.set()
        await self.go.wait()
        await super().open(record, joined)


class Agent:
    """What a kubelet meets of one agent."""

    def __init__(self, preparer: Preparer, paths: SocketPaths, sockets: SlowSockets) -> None:
        self.preparer = preparer
        self.paths = paths
        self.sockets = sockets

    @asynccontextmanager
    async def stub(self, api: Any = dra) -> AsyncIterator[Any]:
        channel = Channel(path=str(self.paths.plugin))
        try:
            yield api.DraPluginStub(channel)
        finally:
            channel.close()

    async def prepare(self, *uids: str, api: Any = dra, timeout: float = 45.0) -> dict[str, Any]:
        claims = [api.Claim(namespace="media", name=f"claim-{uid}", uid=uid) for uid in uids]
        async with self.stub(api) as stub:
            request = api.NodePrepareResourcesRequest(claims=claims)
            return dict((await stub.node_prepare_resources(request, timeout=timeout)).claims)

    async def unprepare(self, *uids: str) -> dict[str, str]:
        claims = [dra.Claim(namespace="media", name=f"claim-{uid}", uid=uid) for uid in uids]
        async with self.stub() as stub:
            request = dra.NodeUnprepareResourcesRequest(claims=claims)
            answer = await stub.node_unprepare_resources(request, timeout=45.0)
            return {uid: entry.error for uid, entry in answer.claims.items()}


class NodeUnderTest:
    """One node's folders, graph, PipeWire and claim-sockets; agents come and go."""

    def __init__(self, folder: Path, stack: SoundStack) -> None:
        self.folder = folder
        self.stack = stack
        self.client = FakeResourceClient()
        self.graph = DeviceGraph([Source.VIRTUAL, Source.PIPEWIRE])
        self.graph.replace(Source.VIRTUAL, CardsSnapshot((card(pcm()),)))
        self.graph.replace(Source.PIPEWIRE, PipeWireSnapshot((node(ANALOG),)))

    def allocate(self, uid: str, **changes: Any) -> None:
        body = allocated(result(ANALOG, **changes), name=f"claim-{uid}", uid=uid)
        self.client.put(RESOURCE_CLAIMS, body)

    def holder(self) -> Holder:
        control = self.folder / "control" / "claim-sockets"
        return Holder(self.folder / "claims", str(self.stack.remote), control)

    @asynccontextmanager
    async def agent(self, pod_uid: str = "") -> AsyncIterator[Agent]:
        store = ClaimStore(self.folder / "plugin", self.folder / "cdi")
        sockets = SlowSockets(self.folder / "claims", self.folder / "control" / "claim-sockets")
        place = Place(node="kitchen", boot_id="boot-1", claims_dir=str(self.folder / "claims"))
        preparer = Preparer(self.graph, place, Partners(self.client, store, sockets))
        paths = socket_paths(DRIVER, self.folder / "registry", self.folder / "plugin", pod_uid)
        server = KubeletServer(DRIVER, paths, plugin.services(preparer), plugin.SUPPORTED_VERSIONS)
        async with AsyncExitStack() as stack:
            stack.callback(store.close)
            stack.callback(sockets.hang_up)
            await stack.enter_async_context(background(preparer.run))
            await stack.enter_async_context(background(server.run))
            await until(paths.registration.exists)
            yield Agent(preparer, paths, sockets)

    def edits(self, cdi_id: str) -> dict[str, Any]:
        """The edits of one CDI device, found as a runtime finds them."""
        kind, _, name = cdi_id.partition("=")
        for path in (self.folder / "cdi").glob("*.json"):
            spec = json.loads(path.read_text())
            for device in spec["devices"]:
                if (spec["kind"], device["name"]) == (kind, name):
                    edits: dict[str, Any] = device["containerEdits"]
                    return edits
        raise AssertionError(f"unresolvable CDI device {cdi_id}")


@asynccontextmanager
async def background(run: Callable[[], Any]) -> AsyncIterator[None]:
    task = asyncio.get_running_loop().create_task(run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def kitchen(workspace: Path, sound_stack: SoundStack) -> AsyncIterator[NodeUnderTest]:
    made = NodeUnderTest(workspace / "kitchen", sound_stack)
    async with background(made.holder().run):
        await until((made.folder / "control" / "claim-sockets").exists)
        yield made


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE):
        while not is_so():
            await asyncio.sleep(0.01)


async def test_a_prepared_claim_s_container_reaches_pipewire_and_nothing_is_left_at_the_end(
    kitchen: NodeUnderTest,
) -> None:
    kitchen.allocate("7c")
    async with kitchen.agent() as agent:
        (device,) = (await agent.prepare("7c"))["7c"].devices
        edits = kitchen.edits(device.cdi_device_ids[0])
        environment = dict(entry.split("=", 1) for entry in edits["env"])
        (mount,) = edits["mounts"]
        inside = environment["PIPEWIRE_REMOTE"]
        assert inside.startswith(mount["containerPath"])
        remote = inside.replace(mount["containerPath"], mount["hostPath"])  # the bind mount
        process = await asyncio.create_subprocess_exec(
            "pw-cli", "info", "0", env=dict(kitchen.stack.environment) | {"PIPEWIRE_REMOTE": remote}
        )
        assert await asyncio.wait_for(process.wait(), DEADLINE) == 0
        assert await agent.unprepare("7c") == {"7c": ""}
        assert not Path(remote).exists()
    for folder in ("cdi", "claims", "plugin/claims"):
        assert list((kitchen.folder / folder).iterdir()) == []


async def test_in_a_rolling_update_one_agent_ends_what_the_other_began(
    kitchen: NodeUnderTest,
) -> None:
    kitchen.allocate("a")
    async with AsyncExitStack() as old_pod:
        old = await old_pod.enter_async_context(kitchen.agent("pod-old"))
        async with kitchen.agent("pod-new") as new:
            first = await old.prepare("a")
            assert await new.prepare("a") == first
            await old_pod.aclose()
            assert new.paths.plugin.exists()
            assert new.paths.registration.exists()
            assert kitchen.edits(first["a"].devices[0].cdi_device_ids[0])
            assert await new.unprepare("a") == {"a": ""}
    assert list((kitchen.folder / "claims").iterdir()) == []


async def test_a_kubelet_whose_deadline_passes_gets_the_result_at_its_next_try(
    kitchen: NodeUnderTest,
) -> None:
    kitchen.allocate("a")
    async with kitchen.agent() as agent:
        agent.sockets.go.clear()
        with pytest.raises((GRPCError, TimeoutError)) as caught:
            await agent.prepare("a", timeout=0.3)
        if isinstance(caught.value, GRPCError):
            assert caught.value.status is Status.DEADLINE_EXCEEDED
        agent.sockets.go.set()
        assert (await agent.prepare("a"))["a"].error == ""
        assert agent.preparer.prepared == 1


async def test_twenty_calls_at_once_and_one_claim_twice_each_get_their_answer(
    kitchen: NodeUnderTest,
) -> None:
    uids = [f"uid-{i}" for i in range(20)]
    for uid in uids:
        kitchen.allocate(uid, shareID=f"share-{uid}")
    async with kitchen.agent() as agent:
        answers = await asyncio.gather(*(agent.prepare(uid) for uid in [*uids, "uid-0"]))
        assert answers[0] == answers[-1]
        assert [entry.error for answer in answers for entry in answer.values()] == [""] * 21
        assert answers[3]["uid-3"].devices[0].share_id == "share-uid-3"
        old = (await agent.prepare("uid-3", api=dra_v1beta1))["uid-3"].devices[0]
        assert old.cdi_device_ids == answers[3]["uid-3"].devices[0].cdi_device_ids
        assert len(list((kitchen.folder / "cdi").glob("audio.liken.sh-*.json"))) == 20
        assert set((await agent.unprepare(*uids)).values()) == {""}
    assert list((kitchen.folder / "cdi").iterdir()) == []


async def test_without_claim_sockets_prepare_says_so_and_leaves_nothing(
    workspace: Path, sound_stack: SoundStack
) -> None:
    alone = NodeUnderTest(workspace / "kitchen", sound_stack)
    alone.allocate("a")
    async with alone.agent() as agent:
        assert "claim-sockets isn't running" in (await agent.prepare("a"))["a"].error
        assert await agent.unprepare("a") == {"a": ""}
    assert list((alone.folder / "claims").iterdir()) == []


async def test_a_claim_that_is_not_there_is_an_error_and_its_unprepare_a_success(
    kitchen: NodeUnderTest,
) -> None:
    async with kitchen.agent() as agent:
        assert "doesn't exist any more" in (await agent.prepare("gone"))["gone"].error
        calls = len(kitchen.client.calls)
        assert await agent.unprepare("gone", "never") == {"gone": "", "never": ""}
        assert len(kitchen.client.calls) == calls
    assert claim_ref("gone").uid not in {path.name for path in kitchen.folder.rglob("*")}
