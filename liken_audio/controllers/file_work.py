"""File work of the loops: in a thread, and never left half done behind a lock."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

_T = TypeVar("_T")


async def in_thread(call: Callable[..., _T], *arguments: Any) -> _T:
    """Do file work in a thread; when cancelled, wait for its end, so that locks cover it."""
    work = asyncio.get_running_loop().run_in_executor(None, call, *arguments)
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait([work])
        raise
