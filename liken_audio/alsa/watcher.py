"""The kernel's sound cards → DeviceGraph, for ever.

Each card has a follower of its own, so a card that is slow or broken holds up no other. Which cards
there are is read from /sys whenever the kernel tells of a change, and from time to time regardless
(see `hotplug`). The graph gets the first snapshot when every card that was there at the start has
been read, or can't be; so that nothing of an earlier agent is taken for left over.

A card that goes stays in the snapshot as absent for as long as `absence` says.
"""

import asyncio
import errno
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import structlog

from liken_audio.alsa import cards, sysfs
from liken_audio.alsa.absence import Absent, absent, still_away
from liken_audio.alsa.device import DeviceFile
from liken_audio.alsa.follower import CardFollower, Kernel
from liken_audio.alsa.hotplug import Hotplug
from liken_audio.alsa.reader import Opener
from liken_audio.alsa.sysfs import Place
from liken_audio.alsa.usb_memory import Remembered, UsbMemory
from liken_audio.graph.device_graph import DeviceGraph
from liken_audio.graph.model import Card, CardsSnapshot, Control, NodeRecipe, Source

START_SECONDS = 10.0
"""How long the first snapshot waits for a card that doesn't answer."""
LOOK_GAP_SECONDS = 0.05
"""Shortest time between two looks at /sys."""
PROBE_SECONDS = 4.0
"""How long a card may take to say whether a PCM of it can be opened."""
MAX_THREADS = 8

log = structlog.get_logger()

_Key = tuple[int, str]
"""Number and folder under /sys: one card of this moment."""


@dataclass(frozen=True, slots=True)
class Roots:
    """Where the kernel shows its devices: sysfs, and the folder of device files."""

    sys: Path
    dev: Path
    memory: Path | None = None
    """File in which USB cards are remembered while no agent runs; None: they aren't."""


class AlsaCards:
    """Keeps `Source.ALSA` of the graph equal to the kernel's cards; satisfies `ControlWriter`."""

    def __init__(
        self,
        graph: DeviceGraph,
        roots: Roots,
        is_elsewhere: Callable[[Card], Awaitable[bool]],
        open_device: Opener = DeviceFile,
    ) -> None:
        self._graph = graph
        self._sys = roots.sys
        self._folder = roots.dev / "snd"
        self._memory = UsbMemory(roots.memory) if roots.memory else None
        self._is_elsewhere = is_elsewhere
        self._open_device = open_device
        self._threads = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="alsa")
        self._wake = asyncio.Event()
        self._hotplug = Hotplug(self._folder, self._wake.set)
        self._followers: dict[_Key, tuple[CardFollower, asyncio.Task[None]]] = {}
        self._absent: tuple[Absent, ...] = ()
        self._is_published = False
        self._publish_at = 0.0
        self._present_count = 0
        self.looks = 0
        """How often /sys was read."""
        self.plugs = 0
        """Cards that came."""
        self.unplugs = 0
        """Cards that went."""

    @property
    def failures(self) -> Sequence[str]:
        """Why cards that are there can't be read, in words for a person."""
        return [one.failure for one, _ in self._followers.values() if one.failure]

    def has(self, card: Card) -> bool:
        """Whether the card is one of these, present or absent."""
        return self._follower(card) is not None or any(
            (one.card.bus, one.card.path) == (card.bus, card.path) for one in self._absent
        )

    async def run(self) -> None:
        """Follow the cards for ever; ends only by being cancelled, and leaves no file open."""
        loop = asyncio.get_running_loop()
        self._publish_at = loop.time() + START_SECONDS
        threads = self._threads
        access = Kernel(self._folder, self._open_device, threads, self._is_elsewhere)
        if self._memory:
            remembered = await loop.run_in_executor(threads, self._memory.load)
            self._absent = remembered.absent(loop.time(), time.time())
        self._hotplug.open()
        try:
            async with asyncio.TaskGroup() as tasks:
                was_told = True
                while True:
                    self._wake.clear()
                    self._hotplug.watch_folder()
                    places = await loop.run_in_executor(threads, sysfs.places, self._sys)
                    is_changed = self._take(places, access, tasks)
                    if is_changed and not was_told:
                        self._hotplug.missed()
                    await self._take_absences(threads)
                    await self._remember()
                    await asyncio.sleep(LOOK_GAP_SECONDS)
                    was_told = await self._is_woken()
        finally:
            self._hotplug.close()
            threads.shutdown(wait=False, cancel_futures=True)

    async def write_control(self, card: Card, control: Control, values: Sequence[int]) -> None:
        """Set a control; raises `OSError` with the kernel's errno, `TimeoutError`."""
        follower = self._follower(card)
        if follower is None:
            raise OSError(errno.ENODEV, f"the card at {card.bus} {card.path} is away")
        await follower.write(control, values)

    async def obstacle(self, recipe: NodeRecipe) -> str:
        """Why the PCM that the recipe names can't be opened now, in words; "" when it can be."""
        name = cards.pcm_file(recipe)
        if name is None:
            return ""
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                loop = asyncio.get_running_loop()
                await loop.run_in_executor(self._threads, self._try, self._folder / name)
        except TimeoutError:
            return f"the card hasn't answered for {PROBE_SECONDS:.0f} s"
        except OSError as error:
            if error.errno == errno.EBUSY:
                return "another program has it open, or the card has no converter free for it"
            return f"{self._folder / name}: {error.strerror or error}"
        return ""

    def _try(self, path: Path) -> None:
        self._open_device(path).close()

    def _take(self, places: Sequence[Place], access: Kernel, tasks: asyncio.TaskGroup) -> bool:
        """Start and end followers so that each card has one; whether there was anything to do."""
        self.looks += 1
        by_key = {(place.number, place.folder): place for place in places}
        ended = [
            key for key, (_, task) in self._followers.items() if task.done() or key not in by_key
        ]
        for key in ended:
            self._end(key)
        new = by_key.keys() - self._followers.keys()
        for key, place in by_key.items():
            if key not in new:
                self._followers[key][0].nudge(place)
                continue
            follower = CardFollower(place, access, self._publish)
            task = tasks.create_task(follower.run())
            task.add_done_callback(lambda _task: self._wake.set())
            self._followers[key] = (follower, task)
            self.plugs += 1
        return bool(ended or new)

    def _end(self, key: _Key) -> None:
        follower, task = self._followers.pop(key)
        task.cancel()
        if follower.card is not None:
            self.unplugs += 1
            now = asyncio.get_running_loop().time()
            folders = {one.folder for one in self._absent}
            others = still_away(self._absent, [follower.card], folders, now)
            self._absent = (*others, absent(follower.card, follower.place.folder, now))
            log.info("a sound card has gone", card=follower.card.id, path=follower.card.path)

    async def _take_absences(self, threads: ThreadPoolExecutor) -> None:
        """Look which absent cards' devices are still in the machine, and publish."""
        folders = {one.folder for one in self._absent}
        loop = asyncio.get_running_loop()
        there = await loop.run_in_executor(threads, sysfs.existing, folders) if folders else set()
        present = self._present()
        self._absent = still_away(self._absent, present, there, loop.time())
        self._publish()

    async def _remember(self) -> None:
        """Keep the USB cards on disk, if they are others than were kept last."""
        if self._memory and self._is_published:
            present = [one for one, _ in self._followers.values() if one.card is not None]
            known = Remembered.of(
                [(one.card, one.place.folder) for one in present if one.card],
                self._absent,
                time.time() - asyncio.get_running_loop().time(),
            )
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._threads, self._memory.save, known)

    async def _is_woken(self) -> bool:
        """Wait for a wake-up or for the time to look again; whether it was a wake-up."""
        seconds = self._hotplug.interval
        if not self._is_published:
            seconds = min(seconds, START_SECONDS / 10)
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return not self._is_published
        return True

    def _publish(self) -> None:
        now = asyncio.get_running_loop().time()
        if not self._is_published:
            is_settled = all(one.is_settled for one, _ in self._followers.values())
            if not (self.looks and is_settled) and now < self._publish_at:
                return
            self._is_published = True
            log.info("sound cards are followed", cards=len(self._followers))
        present = self._present()
        if len(present) != self._present_count:
            # They are remembered at the next look.
            self._present_count = len(present)
            self._wake.set()
        folders = {one.folder for one in self._absent}
        away = still_away(self._absent, present, folders, now)
        self._graph.replace(Source.ALSA, CardsSnapshot((*present, *(one.card for one in away))))

    def _present(self) -> tuple[Card, ...]:
        found = [one.card for one, _ in self._followers.values() if one.card is not None]
        return tuple(sorted(found, key=lambda card: card.number))

    def _follower(self, card: Card) -> CardFollower | None:
        for follower, _ in self._followers.values():
            own = follower.card
            if own and (own.number, own.bus, own.path) == (card.number, card.bus, card.path):
                return follower
        return None
