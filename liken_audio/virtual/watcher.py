"""The file of virtual cards → DeviceGraph, again whenever the file changes.

The file's state is looked at twice a second, which also sees what a ConfigMap does (a symbolic
link that is swapped). A changed file is read once it has stood still from one look to the next,
so one that is being written isn't taken half; if it can't be understood, the last good cards
stay and the reason is logged once.

Controls of virtual cards can be written as a real card's are (see `mixer`).
"""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

import structlog

from liken_audio.graph.device_graph import DeviceGraph
from liken_audio.graph.model import Card, CardsSnapshot, Control, Source
from liken_audio.virtual.cards import VirtualCardsError, decode
from liken_audio.virtual.mixer import Mixer

log = structlog.get_logger()

POLL_SECONDS = 0.5

_FileState = tuple[int, int, int, int]
"""Device, inode, size and time of change (in nanoseconds)."""


class VirtualCards:
    """Keeps `Source.VIRTUAL` of the graph equal to a file of virtual cards."""

    def __init__(self, graph: DeviceGraph, path: str | Path) -> None:
        self._graph = graph
        self._path = Path(path)
        self._taken: _FileState | None = None
        """State of the file when it was last read, understood or not."""
        self._moving: _FileState | None = None
        """State of a changed file that may still be being written."""
        self._cards: tuple[Card, ...] | None = None
        self._mixer = Mixer()
        self._complaint = ""
        self.reads = 0
        """How often the file was read and understood."""
        self.errors = 0
        """How often it was not, each new reason counted once."""

    def load(self) -> None:
        """Read the file now; raises `VirtualCardsError`, which names it and says what is wrong."""
        self._taken, text = _read(self._path)
        self._take(text)

    async def run(self) -> None:
        """Follow the file for ever; only the first reading, if `load` made none, may raise."""
        if self._cards is None:
            self._taken, text = await asyncio.to_thread(_read, self._path)
            self._take(text)
        while True:
            await asyncio.sleep(POLL_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Read the file again if it has changed and has stood still since the last look."""
        state = await asyncio.to_thread(_state, self._path)
        if state is None:
            self._taken = self._moving = None
            self._complain(f"{self._path} is gone")
            return
        if state == self._taken:
            return
        if state != self._moving:
            self._moving = state
            return
        self._taken, self._moving = state, None
        try:
            self._taken, text = await asyncio.to_thread(_read, self._path)
            self._take(text)
        except VirtualCardsError as error:
            self._complain(str(error))

    def has(self, card: Card) -> bool:
        """Whether the card is one of the file's."""
        return any((own.bus, own.path) == (card.bus, card.path) for own in self._cards or ())

    async def write_control(self, card: Card, control: Control, values: Sequence[int]) -> None:
        """Set a control; raises `OSError` with the errno that a kernel would give."""
        cards = self._cards or ()
        self._mixer.write(cards, card, control, values)
        self._publish(cards)

    def _take(self, text: str) -> None:
        try:
            self._cards = decode(text).cards
        except VirtualCardsError as error:
            raise VirtualCardsError(f"{self._path}: {error}") from error
        self.reads += 1
        if self._complaint:
            self._complaint = ""
            log.info("the file of virtual cards is followed again", path=str(self._path))
        self._publish(self._cards)

    def _publish(self, cards: Sequence[Card]) -> None:
        self._graph.replace(Source.VIRTUAL, CardsSnapshot(self._mixer.apply(cards)))

    def _complain(self, message: str) -> None:
        if message == self._complaint:
            return
        self._complaint = message
        self.errors += 1
        log.error("virtual cards stay as they were last", error=message)


def _state(path: Path) -> _FileState | None:
    """Return the state of the file that a path, or the link there, leads to; None: there is none."""
    try:
        return _as_state(path.stat())
    except OSError:
        return None


def _read(path: Path) -> tuple[_FileState, str]:
    try:
        with path.open("rb") as file:
            state = _as_state(os.fstat(file.fileno()))
            return state, file.read().decode("utf-8")
    except OSError as error:
        raise VirtualCardsError(f"{path}: can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise VirtualCardsError(f"{path}: no UTF-8 at byte {error.start}") from error


def _as_state(status: os.stat_result) -> _FileState:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
