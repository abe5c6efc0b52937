"""Sinks against a real PipeWire: what is declared is what its tools show. The API is a fake."""

import asyncio
import json
import wave
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from liken_audio.api import SINKS, SOURCES, Json
from liken_audio.controllers.node_keeper import NodeKeeper
from liken_audio.controllers.reconciler import Partners, Reconciler
from liken_audio.graph.device_graph import DeviceGraph
from liken_audio.graph.model import CardsSnapshot, Linear, Node, NodeRecipe, Source
from liken_audio.pipewire.watcher import PipeWireWatcher
from liken_audio.pipewire.writer import PipeWireWriter
from liken_audio.resources.conditions import Transition
from tests.builders import card, pcm
from tests.fakes import FakeHardware, FakeResourceClient
from tests.harness.sound_stack import SoundStack

NAME = "kitchen-pci-0000-00-1f-3-alc257-analog"
DEADLINE = 45.0
QUIET = 1.0


class Counted:
    """The real writer, and what was asked of it."""

    def __init__(self, remote: str) -> None:
        self.writer = PipeWireWriter(remote)
        self.calls: list[tuple[str, Any]] = []

    async def set_volume(self, node: Node, volume: Linear) -> None:
        self.calls.append(("volume", round(volume, 3)))
        await self.writer.set_volume(node, volume)

    async def set_mute(self, node: Node, *, is_muted: bool) -> None:
        self.calls.append(("mute", is_muted))
        await self.writer.set_mute(node, is_muted=is_muted)

    async def create_node(self, name: str, recipe: NodeRecipe, properties: Any) -> None:
        await self.writer.create_node(name, recipe, properties)

    async def destroy_node(self, node: Node) -> None:
        await self.writer.destroy_node(node)


class Silent:
    """Takes Events."""

    def record(self, stored: Json, transition: Transition) -> None:
        """Nobody reads them here."""


@dataclass
class Room:
    """A node whose sound is real."""

    stack: SoundStack
    writer: Counted
    client: FakeResourceClient = field(default_factory=FakeResourceClient)

    def declare(self, **spec: Any) -> None:
        self.client.put(SINKS, {**self.client.store["sinks", NAME], "spec": spec})

    async def eventually(self, is_so: Callable[[Json], bool]) -> Json:
        async with asyncio.timeout(DEADLINE):
            while True:
                sink = self.client.store.get(("sinks", NAME), {})
                if "status" in sink and is_so(sink["status"]):
                    return sink
                await asyncio.sleep(0.02)

    async def tool(self, *command: str) -> str:
        process = await asyncio.create_subprocess_exec(
            *command, env=dict(self.stack.environment), stdout=asyncio.subprocess.PIPE
        )
        try:
            async with asyncio.timeout(DEADLINE):
                output, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return output.decode(errors="replace")

    async def volumes(self) -> list[float]:
        """What PipeWire itself says."""
        (one,) = json.loads(await self.tool("pw-dump", NAME))
        (props,) = [each for each in one["info"]["params"]["Props"] if "channelVolumes" in each]
        return [round(volume, 3) for volume in props["channelVolumes"]]

    @asynccontextmanager
    async def playing(self, folder: Path) -> AsyncIterator[None]:
        sound = folder / "silence.wav"
        with wave.open(str(sound), "wb") as file:
            file.setnchannels(2)
            file.setsampwidth(2)
            file.setframerate(48_000)
            file.writeframes(bytes(4 * 48_000 * 60))
        process = await asyncio.create_subprocess_exec(
            "pw-play", "--target", NAME, str(sound), env=dict(self.stack.environment)
        )
        try:
            yield
        finally:
            process.terminate()
            await process.wait()


@asynccontextmanager
async def room(stack: SoundStack) -> AsyncIterator[Room]:
    graph = DeviceGraph([Source.VIRTUAL, Source.PIPEWIRE])
    made = Room(stack, Counted(str(stack.remote)))
    partners = Partners(
        client=made.client,
        sinks=made.client.cache(SINKS),
        sources=made.client.cache(SOURCES),
        audio=made.writer,
        mixer=FakeHardware(graph),
        events=Silent(),
    )
    graph.replace(Source.VIRTUAL, CardsSnapshot((card(pcm()),)))
    loops = (
        PipeWireWatcher(graph, str(stack.remote)),
        NodeKeeper(graph, "kitchen", made.writer),
        Reconciler(graph, "kitchen", partners, lambda: datetime.now(UTC)),
    )
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(loop.run()) for loop in loops]
        try:
            await made.eventually(is_ready)
            yield made
        finally:
            for task in running:
                task.cancel()


def condition(status: Json, kind: str) -> str:
    (found,) = (one["reason"] for one in status["conditions"] if one["type"] == kind)
    return str(found)


def is_ready(status: Json) -> bool:
    return condition(status, "Ready") == "Ready"


async def test_a_sleeping_node_is_written_once_and_confirmed_by_the_first_stream(
    sound_stack: SoundStack, workspace: Path
) -> None:
    """U20: PipeWire takes the volume of a suspended node and doesn't say so."""
    async with room(sound_stack) as here:
        here.declare(volume=50)
        sink = await here.eventually(lambda status: condition(status, "Applied") == "Unconfirmed")
        assert sink["status"]["observed"]["volume"] == 50
        async with here.playing(workspace):
            await here.eventually(lambda status: condition(status, "Applied") == "Applied")
            assert await here.volumes() == [0.125, 0.125]
    assert here.writer.calls == [("volume", 0.125)]


async def test_a_hand_on_the_volume_is_seen_and_put_back_only_where_declared(
    sound_stack: SoundStack, workspace: Path
) -> None:
    async with room(sound_stack) as here, here.playing(workspace):
        await here.tool(
            "pw-cli", "set-param", NAME, "Props", "{ channelVolumes = [ 0.512 0.512 ] }"
        )
        await here.eventually(lambda status: status["observed"]["volume"] == 80)
        assert here.writer.calls == []
        here.declare(maxVolume=40)
        await here.eventually(lambda status: status["observed"]["volume"] == 40)
        await here.tool("pw-cli", "set-param", NAME, "Props", "{ channelVolumes = [ 1.0 1.0 ] }")
        async with asyncio.timeout(DEADLINE):
            while len(here.writer.calls) < 2 or await here.volumes() != [0.064, 0.064]:
                await asyncio.sleep(0.05)
        await asyncio.sleep(QUIET)
        assert here.writer.calls == [("volume", 0.064)] * 2


async def test_mute_is_what_pipewire_says_and_ready_tells_it(
    sound_stack: SoundStack, workspace: Path
) -> None:
    async with room(sound_stack) as here, here.playing(workspace):
        here.declare(mute=True)
        sink = await here.eventually(lambda status: condition(status, "Ready") == "Muted")
        assert sink["status"]["observed"]["mute"]
        here.declare(mute=False)
        await here.eventually(is_ready)
    assert here.writer.calls == [("mute", True), ("mute", False)]


async def test_a_restart_of_wireplumber_or_pipewire_writes_what_is_declared_at_most_once_more(
    sound_stack: SoundStack,
) -> None:
    async with room(sound_stack) as here:
        here.declare(volume=50)
        await here.eventually(lambda status: status["observed"]["volume"] == 50)
        await asyncio.to_thread(sound_stack.restart_wireplumber)
        await asyncio.sleep(QUIET)
        assert here.writer.calls == [("volume", 0.125)]
        await asyncio.to_thread(sound_stack.restart_pipewire)
        async with asyncio.timeout(DEADLINE):
            while len(here.writer.calls) < 2:
                await asyncio.sleep(0.05)
        await here.eventually(is_ready)
        await asyncio.sleep(QUIET)
        assert here.writer.calls == [("volume", 0.125)] * 2
