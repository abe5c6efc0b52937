"""Recorded sound cards in numbers: how long they take to read and what each costs.

The kernel is `tests/harness/sound_kernel`, whose answers cost about what real ioctls do; what real
hardware adds (a codec that wakes up, a USB transfer) isn't in these figures.
"""

import asyncio
import time
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path

from liken_audio.alsa.watcher import AlsaCards, Roots
from liken_audio.graph.device_graph import DeviceGraph
from liken_audio.graph.model import Card, Source
from tests.bench.figures import Figure
from tests.harness.processes import Workspace
from tests.harness.sound_kernel import SoundMachine

RECORDINGS = Path(__file__).parents[1] / "recordings" / "alsa"
MOST_CONTROLS = 1235
"""Of one card, the most that was seen (a laptop's)."""
PLUGS = 10


def cards() -> Sequence[Figure]:
    """Discovery of 1, 8 and 32 cards and of one with 1,235 controls; plugs; cost of a card."""
    return asyncio.run(_figures())


async def _figures() -> Sequence[Figure]:
    figures = []
    for count, bound in ((1, 0.5), (8, 1.0), (32, 2.0)):
        took, _ = await _discovery(count)
        figures.append(Figure(f"discovery of {count} cards", took, bound, "s"))
    took, lag = await _discovery(1, _many_controls)
    figures.append(Figure(f"discovery of a card of {MOST_CONTROLS} controls", took, 2, "s"))
    figures.append(Figure("longest that the loop waited meanwhile", lag * 1000, 100, "ms"))
    figures.append(Figure("plug to graph, worst of 10", await _plugs(), 1, "s"))
    figures.append(Figure("memory of a card", await _memory() / 1024, 64, "KiB"))
    return figures


class _World:
    """A machine in a folder, and the agent's source of cards on it."""

    def __init__(self, folder: Path) -> None:
        self.machine = SoundMachine(folder)
        self.graph = DeviceGraph([Source.ALSA])
        self.cards = AlsaCards(
            self.graph, Roots(self.machine.sys, self.machine.dev), _nowhere, self.machine.open
        )
        self._changed = asyncio.Event()
        self.graph.subscribe(self._changed.set)

    async def until(self, count: int) -> None:
        """Wait until so many cards are present."""
        async with asyncio.timeout(30):
            while sum(card.is_present for card in self.graph.view().cards) != count:
                self._changed.clear()
                await self._changed.wait()


async def _nowhere(_card: Card) -> bool:
    return False


def _plug(machine: SoundMachine, number: int) -> None:
    """Plug in a card of each kind in turn, each at a place of its own."""
    name = ("hda", "usb", "hdmi", "virtio")[number % 4]
    at = f"pci0000:00/0000:00:{number:02x}.0"
    if name == "usb":
        at += f"/usb{number}/{number}-1"
    machine.plug(RECORDINGS / f"{name}.json", number, at=at, serial=f"SN-{number}X7")


def _many_controls(machine: SoundMachine) -> None:
    """Give card 0 as many controls as a card was ever seen to have."""
    card = machine.cards[0]
    for number in range(MOST_CONTROLS - len(card.elements)):
        card.add(f"Route {number} Playback Volume", like="Master Playback Volume")


async def _discovery(
    count: int, prepare: Callable[[SoundMachine], None] = lambda machine: None
) -> tuple[float, float]:
    """Seconds from the start to a graph that has all cards, and the loop's longest wait."""
    with Workspace("cards") as work:
        world = _World(work.path)
        for number in range(count):
            _plug(world.machine, number)
        prepare(world.machine)
        async with asyncio.TaskGroup() as tasks:
            lag = _Lag()
            running = [tasks.create_task(lag.run())]
            began = time.perf_counter()
            running.append(tasks.create_task(world.cards.run()))
            await world.until(count)
            took = time.perf_counter() - began
            for task in running:
                task.cancel()
        return took, lag.longest


class _Lag:
    """How long the loop let a timer of a millisecond wait."""

    def __init__(self) -> None:
        self.longest = 0.0

    async def run(self) -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(0.001)
            self.longest = max(self.longest, time.perf_counter() - began - 0.001)


async def _plugs() -> float:
    """The longest time from a card's appearing to its being in the graph, in seconds."""
    longest = 0.0
    with Workspace("cards") as work:
        world = _World(work.path)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(world.cards.run())
            await world.until(0)
            for number in range(PLUGS):
                began = time.perf_counter()
                _plug(world.machine, number)
                await world.until(number + 1)
                longest = max(longest, time.perf_counter() - began)
            running.cancel()
    return longest


async def _memory() -> float:
    """Bytes that a card costs the agent, of 32."""
    with Workspace("cards") as work:
        world = _World(work.path)
        async with asyncio.TaskGroup() as tasks:
            tracemalloc.start()
            running = tasks.create_task(world.cards.run())
            await world.until(0)
            for number in range(32):
                _plug(world.machine, number)
            machine_bytes = tracemalloc.get_traced_memory()[0]
            await world.until(32)
            total = tracemalloc.get_traced_memory()[0]
            running.cancel()
        tracemalloc.stop()
    return (total - machine_bytes) / 32
