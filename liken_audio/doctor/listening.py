"""The doctor's look at PipeWire and WirePlumber, and a stream of its own that should be linked."""

import asyncio
import contextlib
import os
import re
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Sequence

from liken_audio.doctor.facts import PipeWire, Reach
from liken_audio.pipewire import tool
from liken_audio.pipewire.census import Census
from liken_audio.pipewire.look import LOOK_SECONDS, HangsError, NoAnswerError, look, look_until
from liken_audio.sockets.connection import PipeWireConnection

LINK_SECONDS = 8.0
_VERSION_SECONDS = 5.0
_VERSION = re.compile(r"(?:Linked with lib\w+|^\S+ from util-linux)\s+(\d[\w.]*)", re.MULTILINE)
_NAME = "liken-audio-doctor"


async def versions(programs: Sequence[str]) -> dict[str, str]:
    """The version of each, "?" when it doesn't say; those that aren't installed are left out."""
    found = {}
    for program in programs:
        with contextlib.suppress(OSError):
            found[program] = await _version(program)
    return found


async def server(remote: str, *, tries_link: bool = True) -> PipeWire:
    """Ask the server at a socket; a stream is only tried where WirePlumber is connected."""
    if not os.path.exists(remote):  # noqa: ASYNC240, PTH110 one look at a local file
        return PipeWire(remote=remote, reach=Reach.ABSENT)
    links = None
    try:
        seen = await look(remote)
        if tries_link and seen.has_session_manager:
            links = await _links_streams(remote)
    except HangsError as error:
        # Whoever binds an object that lives in WirePlumber, as pw-dump does with its metadata, waits
        # for WirePlumber. A client that only says hello doesn't.
        if not await _greets(remote):
            return PipeWire(remote=remote, reach=Reach.SILENT, detail=str(error))
        links = False
        seen = Census(has_session_manager=True)
    except (NoAnswerError, OSError) as error:
        return PipeWire(remote=remote, reach=Reach.REFUSES, detail=str(error))
    return PipeWire(
        remote=remote,
        reach=Reach.ANSWERS,
        version=seen.version,
        has_session_manager=seen.has_session_manager,
        links_streams=links,
    )


async def _greets(remote: str) -> bool:
    """Whether PipeWire answers a client that asks for nothing."""
    try:
        connection = await PipeWireConnection.connect(remote)
    except OSError:  # TimeoutError is one
        return False
    has_answered = False
    try:
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(connection.serve())
            await connection.set_up()
            has_answered = True
            serving.cancel()
    except* OSError:
        pass  # it ended the connection, or said nothing
    finally:
        connection.close()
    return has_answered


async def _version(program: str) -> str:
    process = await tool.start("", [program, "--version"])
    try:
        async with asyncio.timeout(_VERSION_SECONDS):
            output, errors = await process.communicate()
    except TimeoutError:
        return "?"
    finally:
        await tool.end(process)
    found = _VERSION.search((output + errors).decode("utf-8", "replace"))
    return found[1] if found else "?"


async def _links_streams(remote: str) -> bool:
    """Make a sink that nobody hears and a stream that wants it, and see whether they are linked."""
    sink = f"{_NAME}-sink-{os.getpid()}"
    stream = f"{_NAME}-stream-{os.getpid()}"
    loopback = [
        "pw-loopback",
        f"--capture-props={{ node.name={sink} media.class=Audio/Sink priority.session=0 }}",
        f"--playback-props={{ node.name={sink}-out node.autoconnect=false }}",
    ]
    player = [
        "pw-record",  # from the monitor of that sink: it needs no file to play
        f"--target={sink}",
        f"--properties={{ node.name={stream} stream.capture.sink=true node.dont-fallback=true }}",
        "--raw",
        "-",
    ]

    def is_there(seen: Census) -> bool:
        return any(each.name == sink for each in seen.sinks)

    def is_linked(seen: Census) -> bool:
        return any(seen.nodes.get(taker) == stream for _, taker in seen.links)

    async def see() -> Census:
        return await look(remote, LOOK_SECONDS)

    async with _running(remote, loopback):
        if not await look_until(is_there, see, LINK_SECONDS):
            return False
        async with _running(remote, player):
            return await look_until(is_linked, see, LINK_SECONDS)


@contextlib.asynccontextmanager
async def _running(remote: str, command: Sequence[str]) -> AsyncIterator[Process]:
    process = await tool.start(remote, command)
    try:
        yield process
    finally:
        await tool.end(process)
