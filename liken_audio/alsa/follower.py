"""One card: opened, read, then read again where its events say that something changed.

The device is told to report changes before it is read, so none is missed in between. A change is
read within 20 ms, many at once in one go; nothing is read without an event, but for elements that
another program has locked: the kernel doesn't tell when they become free, so they are looked at
every 30 s. A USB card with a serial of its own waits until it is known whether another node has a
live device of its name, and asks that again from time to time while one has. A card that can't be opened or read is tried again after a while that doubles from 0.1 s
to 60 s. All calls of a device are made in threads, one at a time, and it is closed after the last.
"""

import asyncio
import dataclasses
import errno
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, TypeVar

import structlog

from liken_audio.alsa import cards, kernel, reader
from liken_audio.alsa.elements import Element
from liken_audio.alsa.reader import Opener, Reading, SoundDevice
from liken_audio.alsa.sysfs import Place
from liken_audio.graph.model import Card, Control
from liken_audio.graph.naming import has_own_serial

GATHER_SECONDS = 0.02
"""How long changes are gathered before they are read."""
LOCKED_SECONDS = 30.0
FIRST_DELAY = 0.1
MAX_DELAY = 60.0
ELSEWHERE_SECONDS = 10.0
"""How often it is asked whether the other node's device is still there."""
TURN_SECONDS = 10.0
"""How long a write waits for the reading that is under way."""
_EVENTS_AT_ONCE = 64

_T = TypeVar("_T")

log = structlog.get_logger()


@dataclasses.dataclass(frozen=True, slots=True)
class Kernel:
    """How devices are reached."""

    folder: Path
    """/dev/snd."""
    open_device: Opener
    threads: Executor
    is_elsewhere: Callable[[Card], Awaitable[bool]]
    """Whether another node has a live device of the card's name; raises nothing."""


class CardFollower:
    """Keeps `card` equal to what the card at `place` is; `changed` is called when it differs."""

    def __init__(self, place: Place, kernel_access: Kernel, changed: Callable[[], None]) -> None:
        self.place = place
        self.card: Card | None = None
        """None: not read yet."""
        self.failure = ""
        """Why the card can't be read, in words; "" when it can."""
        self._kernel = kernel_access
        self._changed = changed
        self._device: SoundDevice | None = None
        self._reading: Reading | None = None
        self._turn = asyncio.Lock()
        self._wake = asyncio.Event()
        self._dirty: set[int] = set()
        self._is_all_dirty = True
        self._is_gone = False
        self._is_elsewhere: bool | None = None
        self.readings = 0
        """How often all of the card was read."""

    @property
    def is_settled(self) -> bool:
        """Whether the first reading has come to an end, good or bad."""
        return self.card is not None or bool(self.failure)

    async def run(self) -> None:
        """Follow the card until it is gone."""
        delay = FIRST_DELAY
        while not self._is_gone:
            try:
                await self._follow()
            except OSError as error:
                self._fail(error)
                await self._wait(delay)
                delay = min(MAX_DELAY, delay * 2)

    def nudge(self, place: Place) -> None:
        """Say that something has changed at the card's place: a device file, a PCM."""
        if place.pcms != self.place.pcms:
            self._is_all_dirty = True
            self._wake.set()
        self.place = place
        if self.failure:
            self._wake.set()

    async def write(self, control: Control, values: Sequence[int]) -> None:
        """Set a control of the card; raises `OSError` with the kernel's errno, `TimeoutError`."""
        number = self._number(control)
        async with asyncio.timeout(TURN_SECONDS):
            await self._turn.acquire()
        try:
            if self._device is None:
                raise OSError(errno.ENODEV, f"card {self.place.number} isn't open")
            await self._in_thread(reader.write_element, self._device, number, values)
        finally:
            self._turn.release()
        # A write that changes nothing makes no event, and some drivers take less than they are told.
        self._dirty.add(number)
        self._wake.set()

    async def _follow(self) -> None:
        path = self._kernel.folder / f"controlC{self.place.number}"
        device = await self._in_thread(self._kernel.open_device, path)
        loop = asyncio.get_running_loop()
        try:
            self._device = device
            self._is_all_dirty = True
            async with self._turn:
                await self._in_thread(reader.subscribe, device)
            loop.add_reader(device.fileno(), self._read_events, device)
            while not self._is_gone:
                await self._refresh(device)
                await self._wait_for_change()
        except OSError as error:
            if error.errno != errno.ENODEV or self._reading is None:
                raise
            self._is_gone = True
        finally:
            loop.remove_reader(device.fileno())
            async with self._turn:
                self._device = None
                device.close()

    async def _refresh(self, device: SoundDevice) -> None:
        async with self._turn:
            if self._is_all_dirty or self._reading is None:
                self._is_all_dirty = False
                self._dirty.clear()
                self._reading = await self._in_thread(
                    reader.read_card,
                    device,
                    self._kernel.folder,
                    self._kernel.open_device,
                    self._reading,
                )
                self.readings += 1
            elif self._dirty:
                numbers, self._dirty = self._dirty, set()
                found = await self._in_thread(reader.read_elements, device, numbers)
                self._reading = _with(self._reading, numbers, found)
        card = await self._placed(cards.card(self.place, self._reading, self.card))
        was_failing, self.failure = bool(self.failure), ""
        if card != self.card or was_failing:
            self.card = card
            self._changed()

    async def _placed(self, card: Card) -> Card:
        """Note in a card that its serial is no identity here, if so."""
        if card.usb is None or not has_own_serial(card.usb):
            return card
        if self._is_elsewhere is None:
            self._is_elsewhere = await self._kernel.is_elsewhere(card)
        if not self._is_elsewhere:
            return card
        return dataclasses.replace(card, usb=dataclasses.replace(card.usb, is_elsewhere=True))

    async def _wait_for_change(self) -> None:
        locked = self._locked()
        deadlines = [LOCKED_SECONDS] if locked else []
        deadlines += [ELSEWHERE_SECONDS] if self._is_elsewhere else []
        if await self._wait(min(deadlines, default=None)):
            await asyncio.sleep(GATHER_SECONDS)
            return
        self._dirty |= locked
        self._is_elsewhere = None

    async def _wait(self, seconds: float | None) -> bool:
        """Wait to be woken; False when it took longer."""
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return False
        self._wake.clear()
        return True

    def _read_events(self, device: SoundDevice) -> None:
        try:
            data = device.read(_EVENTS_AT_ONCE * kernel.EVENT_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            # A card that is taken out says so to everyone who has it open.
            self._is_gone = True
            asyncio.get_running_loop().remove_reader(device.fileno())
        for event in kernel.events(data):
            self._is_all_dirty |= event.is_added or event.is_removed
            self._dirty.add(event.number)
        self._wake.set()

    def _locked(self) -> set[int]:
        controls = self.card.controls if self.card else ()
        return {control.number for control in controls if control.is_locked}

    def _number(self, control: Control) -> int:
        for own in self.card.controls if self.card else ():
            if (own.name, own.index) == (control.name, control.index) and control.number in (
                0,
                own.number,
            ):
                return own.number
        raise FileNotFoundError(
            errno.ENOENT, f"no control {control.name!r},{control.index} on card {self.place.number}"
        )

    def _fail(self, error: OSError) -> None:
        path = self._kernel.folder / f"controlC{self.place.number}"
        failure = f"{path}: {error.strerror or error}"
        # The kernel shows a card a moment before its device file, and after it.
        is_usual = error.errno in (errno.ENOENT, errno.ENODEV)
        if failure != self.failure:
            (log.debug if is_usual else log.warning)("a sound card can't be read", reason=failure)
        self.failure = failure
        self._changed()

    async def _in_thread(self, call: Callable[..., _T], *arguments: Any) -> _T:
        """Make a call that may block; when cancelled, wait for its end, so that locks cover it."""
        work = asyncio.get_running_loop().run_in_executor(self._kernel.threads, call, *arguments)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            await asyncio.wait([work])
            raise


def _with(reading: Reading, numbers: set[int], found: dict[int, Element]) -> Reading:
    """Put elements in place, in the kernel's order; those that weren't found are gone."""
    changed = dict(reading.elements)
    for number in numbers:
        if number in found:
            changed[number] = found[number]
        else:
            changed.pop(number, None)
    return dataclasses.replace(reading, elements=changed)
