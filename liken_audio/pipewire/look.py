"""One look at PipeWire's graph: pw-dump run once, under a deadline."""

import asyncio
from collections.abc import Awaitable, Callable

from liken_audio.pipewire import tool
from liken_audio.pipewire.census import Census, census

LOOK_SECONDS = 5.0
_POLL_SECONDS = 0.1


class NoAnswerError(Exception):
    """PipeWire wasn't reached; the message says why."""


class HangsError(NoAnswerError):
    """It took the connection and said nothing within the deadline."""


async def look(remote: str, seconds: float = LOOK_SECONDS) -> Census:
    """Return what is in the graph now; `NoAnswerError`, or `OSError` when pw-dump isn't installed."""
    process = await tool.start(remote, ["pw-dump", "--no-colors"])
    try:
        async with asyncio.timeout(seconds):
            output, errors = await process.communicate()
    except TimeoutError:
        raise HangsError(f"no answer within {seconds:.0f} s") from None
    finally:
        exit_code = await tool.end(process)
    if exit_code != 0:
        said = errors.decode("utf-8", "replace").strip()[-200:]
        raise NoAnswerError(said or f"pw-dump ended with {exit_code}")
    try:
        return census(output)
    except ValueError as error:
        raise NoAnswerError(f"pw-dump printed what can't be read: {error}") from None


async def look_until(
    is_so: Callable[[Census], bool], see: Callable[[], Awaitable[Census]], seconds: float
) -> bool:
    """Look again and again; returns whether it was so within that time."""
    try:
        async with asyncio.timeout(seconds):
            while True:
                if is_so(await see()):
                    return True
                await asyncio.sleep(_POLL_SECONDS)
    except TimeoutError:
        return False
