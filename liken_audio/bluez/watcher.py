"""BlueZ on its bus → DeviceGraph, for ever, and calls to its devices.

Signals are subscribed to first, then the whole tree is read; a daemon that comes back is read
again. Where there is no bus nothing is loaded and nothing is an error: the graph has no speakers,
and the bus is looked for again after a while that doubles from 0.5 s to 15 s. Changes that follow
each other closely make one snapshot; what a search tells of strangers makes none.

The object of a device is looked up for each call: an adapter that comes back has other paths.
"""

import asyncio
import contextlib
import errno
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from liken_audio.bluez.facts import Added, Changed, Fact, Owner, Removed, Tree
from liken_audio.bluez.objects import DEVICE, ObjectTree
from liken_audio.bluez.speakers import Speakers, best_path
from liken_audio.graph.device_graph import DeviceGraph
from liken_audio.graph.model import Source

if TYPE_CHECKING:
    from liken_audio.bluez.bus import Bus

log = structlog.get_logger()

SYSTEM_BUS = "unix:path=/run/dbus/system_bus_socket"
FIRST_DELAY = 0.5
MAX_DELAY = 15.0
STABLE_SECONDS = 10.0
"""A connection of this length ends well enough for the next to be made at once."""
SETTLE_SECONDS = 0.05
"""Changes within this time make one snapshot."""
RELOAD_SECONDS = 2.0
"""Time until a tree that couldn't be read is asked for again; doubles up to `MAX_DELAY`."""

_random = random.SystemRandom()


class BlueZWatcher:
    """Keeps `Source.BLUEZ` of the graph equal to BlueZ's speakers.

    `address` is a D-Bus address like `unix:path=/run/dbus/system_bus_socket`.
    """

    def __init__(self, graph: DeviceGraph, address: str = "") -> None:
        self._graph = graph
        self._address = address or SYSTEM_BUS
        self._speakers = Speakers()
        self._tree: ObjectTree | None = None
        self._owner = ""
        self._bus: Bus | None = None
        self._wake = asyncio.Event()
        self._load_at: float | None = None
        """When all objects are to be read."""
        self._delay = FIRST_DELAY
        self._reported = ""
        self.connections = 0
        """How often a bus was connected to."""
        self.trees = 0
        """How often all objects were read."""
        self.signals = 0
        self.errors = 0
        """Connections and readings that failed, the absence of a bus apart."""

    @property
    def is_served(self) -> bool:
        """Whether bluetoothd answers."""
        return self._tree is not None

    async def run(self) -> None:
        """Follow BlueZ for ever; ends only by being cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            started = loop.time()
            await self._run_once()
            if loop.time() - started >= STABLE_SECONDS:
                self._delay = FIRST_DELAY
            await asyncio.sleep(self._delay * _random.uniform(0.8, 1.2))
            self._delay = min(MAX_DELAY, self._delay * 2)

    async def connect(self, address: str) -> None:
        """Connect a paired device with all its profiles.

        `OSError` with BlueZ's words, ENOENT when it isn't there; `TimeoutError`.
        """
        path = best_path(self._tree, address) if self._tree else None
        if path is None or self._bus is None:
            raise OSError(errno.ENOENT, "BlueZ doesn't show it now", address)
        await self._bus.call(path, DEVICE, "Connect")

    async def _run_once(self) -> None:
        if not await asyncio.to_thread(_may_exist, self._address):
            self._report("no bus")
            self._publish()
            return
        try:
            async with self._connected() as bus:
                await self._follow(bus)
        except (OSError, TimeoutError) as error:
            self.errors += 1
            self._report("not reached", error=str(error))
        self._publish()

    @contextlib.asynccontextmanager
    async def _connected(self) -> "AsyncIterator[Bus]":
        from liken_audio.bluez.bus import Bus

        bus = await Bus.open(self._address, self._hear)
        self.connections += 1
        self._bus = bus
        try:
            yield bus
        finally:
            self._bus, self._tree, self._owner = None, None, ""
            bus.close()

    async def _follow(self, bus: "Bus") -> None:
        """Follow until the connection ends."""
        async with asyncio.TaskGroup() as tasks:
            looking = tasks.create_task(self._look_for_ever(bus))
            await bus.closed()
            looking.cancel()
        self._report("bus lost")

    async def _look_for_ever(self, bus: "Bus") -> None:
        delay = RELOAD_SECONDS
        while True:
            self._wake.clear()
            if self._load_at is not None and self._load_at <= asyncio.get_running_loop().time():
                is_read = await self._load(bus, delay)
                delay = RELOAD_SECONDS if is_read else min(MAX_DELAY, delay * 2)
            looks = [when for when in (self._publish(), self._load_at) if when is not None]
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(min(looks, default=None)):
                    await self._wake.wait()
            await asyncio.sleep(SETTLE_SECONDS)

    async def _load(self, bus: "Bus", delay: float) -> bool:
        """Read all objects; return whether it went well, else it is tried again after the delay."""
        self._load_at = None
        try:
            await bus.ask_for_tree()
        except (OSError, TimeoutError) as error:
            self.errors += 1
            log.warning("BlueZ's objects can't be read now", error=str(error))
            if self._owner and self._load_at is None:
                self._load_at = asyncio.get_running_loop().time() + delay
            return False
        return True

    def _hear(self, fact: Fact) -> None:
        self.signals += 1
        is_news = True
        match fact:
            case Owner(name=name):
                self._owner, self._tree = name, None
                self._load_at = 0.0 if name else None
                self._report("served" if name else "no daemon")
            case Tree(objects=objects):
                self.trees += 1
                self._tree = ObjectTree(objects)
            case _ if self._tree is not None:
                is_news = _taken(fact, self._tree)
        if is_news:
            self._wake.set()

    def _publish(self) -> float | None:
        """Put what is known into the graph; return when to look again."""
        seen = self._speakers.look(self._tree, asyncio.get_running_loop().time())
        self._graph.replace(Source.BLUEZ, seen.snapshot)
        return seen.look_again_at

    def _report(self, state: str, **facts: object) -> None:
        """Log a change of the way to BlueZ."""
        if self._reported == state:
            return
        self._reported = state
        words = {
            "served": "BlueZ is followed",
            "no daemon": "the bus has no BlueZ now",
            "no bus": "no Bluetooth: there is no bus",
            "bus lost": "the bus of BlueZ has gone",
            "not reached": "the bus of BlueZ can't be reached",
        }
        log.info(words[state], bus=self._address, **facts)


def _taken(fact: Added | Removed | Changed, tree: ObjectTree) -> bool:
    """Take a signal into the tree and return whether it is news."""
    match fact:
        case Added(path=path, interfaces=interfaces):
            return tree.add(path, interfaces)
        case Removed(path=path, interfaces=removed):
            return tree.remove(path, removed)
        case Changed():
            return tree.change(fact.path, fact.interface, fact.changed, fact.invalidated)


def _may_exist(address: str) -> bool:
    """Whether there can be a bus: a socket's path says so before anything is loaded."""
    paths = [
        value
        for each in address.split(";")
        for key, _, value in (option.partition("=") for option in each.partition(":")[2].split(","))
        if key == "path"
    ]
    return not paths or any(Path(path).exists() for path in paths)
