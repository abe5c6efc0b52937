"""Virtual cards → nodes of a real PipeWire, linked and left at rest by a real WirePlumber.

Watcher, writer and keeper are the real ones; only the cluster is away.
"""

import asyncio
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from liken_audio.controllers.node_keeper import NodeKeeper
from liken_audio.graph.device_graph import DeviceGraph
from liken_audio.graph.endpoints import endpoints
from liken_audio.graph.model import Card, CardsSnapshot, DeviceName, Endpoint, Node, Source
from liken_audio.pipewire.watcher import PipeWireWatcher
from liken_audio.pipewire.writer import PipeWireWriter
from liken_audio.virtual.cards import decode
from tests.builders import KITCHEN_CARDS
from tests.harness.processes import Programs
from tests.harness.sound_stack import SoundStack

SECONDS = 45
ANALOG = DeviceName("kitchen-pci-0000-00-1f-3-alc257-analog")
MICROPHONE = DeviceName(f"{ANALOG}-capture")
SAVED_QUIET = "[stream-properties]\n" + "".join(
    f'Audio/Sink:node.name:{name}={{"volume":1.0, "mute":true, '
    '"channelVolumes":[0.064, 0.064], "channelMap":["FL", "FR"]}\n'
    for name in (ANALOG, "another-node")
)
"""What a WirePlumber that keeps state would have saved of two sinks: muted, at 40 %."""


class Agent:
    """The part of an agent that is about PipeWire."""

    def __init__(self, stack: SoundStack, cards: tuple[Card, ...]) -> None:
        self.graph = DeviceGraph([Source.VIRTUAL, Source.PIPEWIRE])
        self.watcher = PipeWireWatcher(self.graph, str(stack.remote))
        self.writer = PipeWireWriter(str(stack.remote))
        self.keeper = NodeKeeper(self.graph, "kitchen", self.writer)
        self.cards(cards)

    def cards(self, cards: tuple[Card, ...]) -> None:
        self.graph.replace(Source.VIRTUAL, CardsSnapshot(cards))

    @property
    def endpoints(self) -> dict[DeviceName, Endpoint]:
        return {each.name: each for each in endpoints(self.graph.view(), "kitchen")}

    def node(self, name: DeviceName) -> Node | None:
        return self.endpoints[name].node

    @property
    def is_ready(self) -> bool:
        """Whether both nodes show with all that is announced; a write may not have ended yet."""
        nodes = [self.node(name) for name in (ANALOG, MICROPHONE)]
        return all(node is not None and node.volumes for node in nodes)


@asynccontextmanager
async def running(*agents: Agent) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        loops = [loop for each in agents for loop in (each.watcher.run, each.keeper.run)]
        tasks = [group.create_task(loop()) for loop in loops]
        yield
        for task in tasks:
            task.cancel()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(SECONDS):
        while not condition():
            await asyncio.sleep(0.01)


def kitchen() -> tuple[Card, ...]:
    return decode(KITCHEN_CARDS).cards


@asynccontextmanager
async def played(stack: SoundStack, folder: Path, agent: Agent, name: str) -> AsyncIterator[None]:
    """Play silence to a node until it runs: what its volume is shows only then."""
    (folder / "silence.raw").write_bytes(bytes(48_000 * 4 * 60))
    command = ["pw-play", "--raw", f"--target={name}", str(folder / "silence.raw")]
    player = subprocess.Popen(command, env=dict(stack.environment))
    try:
        await until(lambda: any(is_running(each, name) for each in agent.graph.view().nodes))
        yield
    finally:
        player.kill()
        player.wait()


def is_running(node: Node, name: str) -> bool:
    return node.name == name and node.state == "running"


async def test_each_endpoint_has_its_node_at_full_volume(sound_stack: SoundStack) -> None:
    agent = Agent(sound_stack, kitchen())
    async with running(agent):
        await until(lambda: agent.is_ready)
        await until(lambda: agent.keeper.writes == 2)
        sink, source = agent.node(ANALOG), agent.node(MICROPHONE)
    assert sink is not None
    assert source is not None
    assert (sink.name, sink.media_class, sink.volumes) == (ANALOG, "Audio/Sink", (1.0, 1.0))
    assert (source.media_class, source.volumes) == ("Audio/Source/Virtual", (1.0, 1.0))
    names = set(sound_stack.nodes())
    assert names >= {ANALOG, MICROPHONE}
    assert not [name for name in names if "hdmi" in name], "an output without a monitor"
    assert agent.keeper.failures == {}


async def test_the_next_agent_adopts_the_nodes_and_writes_nothing(sound_stack: SoundStack) -> None:
    first, second = Agent(sound_stack, kitchen()), Agent(sound_stack, kitchen())
    async with running(first):
        await until(lambda: first.is_ready)
    async with running(second):
        await until(lambda: second.is_ready)
        await asyncio.sleep(1)
        assert second.node(ANALOG) == first.node(ANALOG)
    assert second.keeper.writes == 0


async def test_after_a_restart_of_pipewire_the_nodes_are_made_again(
    sound_stack: SoundStack,
) -> None:
    agent = Agent(sound_stack, kitchen())
    async with running(agent):
        await until(lambda: agent.is_ready)
        sound_stack.pipewire.kill()
        await until(lambda: Source.PIPEWIRE in agent.graph.view().lost)
        await asyncio.to_thread(sound_stack.restart_pipewire)
        await until(lambda: agent.is_ready)
        await until(lambda: agent.keeper.writes == 4)


async def test_two_agents_that_overlap_leave_one_node_of_each_name(
    sound_stack: SoundStack,
) -> None:
    agents = [Agent(sound_stack, kitchen()) for _ in range(2)]

    def names() -> list[str]:
        return [each.name for each in agents[0].graph.view().nodes if "kitchen" in each.name]

    async with running(*agents):
        await until(lambda: all(each.is_ready for each in agents))
        # Both may have asked for each node before either saw one.
        await asyncio.sleep(1)
        await until(lambda: sorted(names()) == [ANALOG, MICROPHONE])
        writes = sum(each.keeper.writes for each in agents)
        await asyncio.sleep(2)
        assert sorted(names()) == [ANALOG, MICROPHONE]
        assert sum(each.keeper.writes for each in agents) == writes
        assert agents[0].node(ANALOG) == agents[1].node(ANALOG)


async def test_a_card_that_leaves_takes_its_nodes_along(sound_stack: SoundStack) -> None:
    agent = Agent(sound_stack, kitchen())
    async with running(agent):
        await until(lambda: agent.is_ready)
        agent.cards(())
        await until(lambda: not any("kitchen" in each.name for each in agent.graph.view().nodes))
        agent.cards(kitchen())
        await until(lambda: agent.is_ready)


async def test_a_volume_that_was_saved_is_not_put_back(
    sound_stack: SoundStack, workspace: Path
) -> None:
    """U19, U21: with our profile of WirePlumber nothing comes back, with the stock one ours stay."""
    state = Path(sound_stack.environment["XDG_STATE_HOME"]) / "wireplumber" / "stream-properties"
    state.parent.mkdir(parents=True, exist_ok=True)
    state.write_text(SAVED_QUIET)
    sound_stack.restart_wireplumber()
    agent = Agent(sound_stack, kitchen())
    async with running(agent):
        await until(lambda: agent.is_ready)
        await asyncio.to_thread(sound_stack.make_null_node, "another-node")
        for name in (ANALOG, "another-node"):
            async with played(sound_stack, workspace, agent, name):
                assert volume(agent, name) == ((1.0, 1.0), False)
        agent.cards(())
        await until(lambda: not any("kitchen" in each.name for each in agent.graph.view().nodes))
        sound_stack.wireplumber.end()
        state.write_text(SAVED_QUIET)
        with Programs(workspace) as programs:
            # Without our file in its folder.
            stock = {**sound_stack.environment, "XDG_CONFIG_HOME": str(workspace)}
            programs.start("stock-wireplumber", ["wireplumber"], stock)
            # The stock profile is up and puts volumes back once it has done so to the other node.
            async with played(sound_stack, workspace, agent, "another-node"):
                await until(lambda: volume(agent, "another-node") == ((0.064, 0.064), True))
            agent.cards(kitchen())
            await until(lambda: agent.is_ready)
            async with played(sound_stack, workspace, agent, ANALOG):
                assert volume(agent, ANALOG) == ((1.0, 1.0), False)


def volume(agent: Agent, name: str) -> tuple[tuple[float, ...], bool]:
    (found,) = [each for each in agent.graph.view().nodes if each.name == name]
    return found.volumes, found.is_muted
