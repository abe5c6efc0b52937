"""pw-dump --monitor → DeviceGraph, for ever.

One pw-dump runs at a time. Its end, whatever its exit code (0 when PipeWire dies), means that the
graph is lost; it is started again after a while that doubles from 0.1 s to 5 s. A pw-dump that
doesn't bring its first array within 5 s is ended and counts as lost too.

In a storm the graph changes 50 times a second at most; a lone change waits for nothing. What can't
be understood (never seen from a real pw-dump) is answered by a fresh start, whose first array holds
everything; the graph isn't lost meanwhile.
"""

import asyncio
import random
import re
from enum import StrEnum

import structlog

from liken_audio.graph.device_graph import DeviceGraph
from liken_audio.graph.model import PipeWireSnapshot, Source
from liken_audio.pipewire import tool
from liken_audio.pipewire.dump import DumpParser

log = structlog.get_logger()

COMMAND = ("pw-dump", "--monitor", "--no-colors")
FIRST_ARRAY_SECONDS = 5.0
FIRST_DELAY = 0.1
MAX_DELAY = 5.0
STABLE_SECONDS = 10.0
"""A run of this length ends well enough for the next to start at once."""
STORM_INTERVAL = 0.02
"""Shortest time between two changes of the graph, in seconds."""
STORM_BYTES = 2**17
"""How much that changes nothing is read without a pause of that length."""
CHUNK_BYTES = 2 * tool.STREAM_LIMIT_BYTES
MAX_COMPLAINTS = 50
"""How many different lines of pw-dump's errors are logged."""

_NUMBER = re.compile(r"0x[0-9a-f]+|\d+")


_random = random.SystemRandom()


class End(StrEnum):
    """Why a run of pw-dump ended."""

    NOT_STARTED = "not started"
    CLOSED = "its output ended"
    SILENT = "its first array didn't come in time"
    UNREADABLE = "its first array can't be understood"
    GARBLED = "a later array can't be understood"


class PipeWireWatcher:
    """Keeps `Source.PIPEWIRE` of the graph equal to what PipeWire says.

    `remote` is the absolute path of PipeWire's socket.
    """

    def __init__(self, graph: DeviceGraph, remote: str) -> None:
        self._graph = graph
        self._remote = remote
        self._delay = FIRST_DELAY
        self._reported = ""
        self._complaints: set[str] = set()
        self.starts = 0
        """How often pw-dump was started."""
        self.losses = 0
        """How often the graph was there and was lost."""
        self.parse_errors = 0
        """Arrays and objects that weren't understood."""
        self.bytes_read = 0

    async def run(self) -> None:
        """Follow PipeWire for ever; ends only by being cancelled, and leaves no process."""
        loop = asyncio.get_running_loop()
        while True:
            started = loop.time()
            end = await self._run_once()
            if end is not End.GARBLED:
                self._lose()
            if loop.time() - started >= STABLE_SECONDS:
                self._delay = FIRST_DELAY
            await asyncio.sleep(self._delay * _random.uniform(0.8, 1.2))
            self._delay = min(MAX_DELAY, self._delay * 2)

    async def _run_once(self) -> End:
        try:
            process = await tool.start(self._remote, COMMAND)
        except OSError as error:
            self._report(End.NOT_STARTED, error=f"{COMMAND[0]}: {error.strerror}")
            return End.NOT_STARTED
        self.starts += 1
        end = End.CLOSED
        try:
            async with asyncio.TaskGroup() as tasks:
                errors = tasks.create_task(self._read_errors(_stream(process.stderr)))
                end = await self._read_output(_stream(process.stdout))
                errors.cancel()
        finally:
            exit_code = await tool.end(process)
        self._report(end, exit_code=exit_code)
        return end

    async def _read_output(self, output: asyncio.StreamReader) -> End:
        parser = DumpParser()
        object_errors = unpaused = 0
        try:
            async with asyncio.timeout(FIRST_ARRAY_SECONDS) as deadline:
                while data := await output.read(CHUNK_BYTES):
                    self.bytes_read += len(data)
                    snapshot = parser.feed(data)
                    self.parse_errors += parser.parse_errors - object_errors
                    object_errors = parser.parse_errors
                    if parser.is_garbled:
                        return End.UNREADABLE if deadline.when() else End.GARBLED
                    if snapshot is not None:
                        deadline.reschedule(None)
                        revision = self._graph.revision
                        self._put(snapshot)
                        unpaused += len(data)
                        if self._graph.revision != revision or unpaused > STORM_BYTES:
                            # What comes meanwhile is read in one piece.
                            await asyncio.sleep(STORM_INTERVAL)
                            unpaused = 0
        except TimeoutError:
            return End.SILENT
        return End.CLOSED

    async def _read_errors(self, errors: asyncio.StreamReader) -> None:
        """Log each line that differs from earlier ones in more than numbers; clients cause some."""
        while data := await errors.read(CHUNK_BYTES):
            for line in data.decode("utf-8", "replace").splitlines():
                kind = _NUMBER.sub("#", line)
                if kind not in self._complaints and len(self._complaints) < MAX_COMPLAINTS:
                    self._complaints.add(kind)
                    log.info("pw-dump says", line=line[:500])

    def _put(self, snapshot: PipeWireSnapshot) -> None:
        self._graph.replace(Source.PIPEWIRE, snapshot)
        if self._reported != "connected":
            self._reported = "connected"
            log.info("the PipeWire graph is followed", remote=self._remote)

    def _lose(self) -> None:
        if Source.PIPEWIRE not in self._graph.view().lost:
            self.losses += 1
        self._graph.lose(Source.PIPEWIRE)

    def _report(self, end: End, **facts: object) -> None:
        """Log the end of a run, unless the one before it ended in the same way."""
        if self._reported != end:
            self._reported = end
            log.warning("pw-dump ended", why=str(end), remote=self._remote, **facts)


def _stream(stream: asyncio.StreamReader | None) -> asyncio.StreamReader:
    assert stream is not None  # `tool.start` asks for pipes
    return stream
