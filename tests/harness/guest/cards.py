"""Runs in the guest: cards of the kernel's own in numbers, and what reading them takes.

Functions for `Guest.call`; the guest has the module `snd-dummy`, whose cards have a driver each.
"""

import asyncio
import time
from pathlib import Path

from liken_audio.alsa.watcher import AlsaCards, Roots
from liken_audio.graph.device_graph import DeviceGraph
from liken_audio.graph.model import Card, Source
from tests.harness.guest import node

MOST = 32
"""Cards that Debian's kernel has room for."""
_SECONDS = 120
_DRIVERS = Path("/sys/bus/platform/drivers/snd_dummy")


def keep(count: int) -> None:
    """Have the first so many cards, and no other of this kind."""
    for number in range(MOST):
        device = f"snd_dummy.{number}"
        if (_DRIVERS / device).exists() != (number < count):
            node.drive("platform", "snd_dummy", device, number < count)


def discovery_seconds(count: int) -> float:
    """Seconds from the start of an agent's source of cards to a graph that has so many."""
    return asyncio.run(_discovery(count))


def agent_kilobytes() -> int:
    """The agent's resident memory."""
    status = Path(f"/proc/{node.agent().agent.pid}/status").read_text()
    return next(int(x.split()[1]) for x in status.splitlines() if x.startswith("VmRSS"))


async def _discovery(count: int) -> float:
    graph = DeviceGraph([Source.ALSA])
    cards = AlsaCards(graph, Roots(Path("/sys"), Path("/dev")), _nowhere)
    changed = asyncio.Event()
    graph.subscribe(changed.set)
    began = time.perf_counter()
    async with asyncio.timeout(_SECONDS), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(cards.run())
        while sum(card.is_present for card in graph.view().cards) != count:
            changed.clear()
            await changed.wait()
        took = time.perf_counter() - began
        running.cancel()
    return took


async def _nowhere(_card: Card) -> bool:
    return False
