"""Workers on a work queue: each key by one worker at a time, failures later again."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Hashable
from typing import Generic, TypeVar

from liken_audio.controllers.workqueue import WorkQueue

K = TypeVar("K", bound=Hashable)


class Workers(Generic[K]):
    """A queue and what its workers wait on; `run` is started once for each worker.

    `work(key)` does the work. An error that is one of `recoverable` is handed to `failed`, which
    returns the seconds to wait at least; any other ends `run`.
    """

    def __init__(
        self,
        queue: WorkQueue[K],
        work: Callable[[K], Awaitable[None]],
        failed: Callable[[K, Exception], float],
        recoverable: tuple[type[Exception], ...],
    ) -> None:
        self._queue = queue
        self._work = work
        self._failed = failed
        self._recoverable = recoverable
        self._wake = asyncio.Event()
        self._done = asyncio.Event()

    def add(self, key: K, when: float) -> None:
        """Have `key` worked on from `when` on, or earlier if that was wished before."""
        self._queue.add(key, when)
        self._wake.set()

    def put_off(self, key: K, when: float) -> None:
        """Have `key` worked on from `when` on, whatever was wished before."""
        self._queue.put_off(key, when)
        self._wake.set()

    def discard(self, key: K) -> None:
        """There is nothing to do for `key` any more."""
        self._queue.discard(key)

    async def finish(self, keys: Collection[K]) -> None:
        """Return when what is queued for `keys` is done or has failed; never before workers run."""
        while any(map(self._queue.is_open, keys)):
            await self._done.wait()

    async def run(self) -> None:
        """Work for ever."""
        clock = asyncio.get_running_loop().time
        while True:
            self._wake.clear()
            key = self._queue.take(clock())
            if key is not None:
                await self._do(key)
                continue
            try:
                async with asyncio.timeout_at(self._queue.next_at()):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _do(self, key: K) -> None:
        try:
            await self._work(key)
        except self._recoverable as error:
            wait = self._failed(key, error)
            self._queue.failed(key, asyncio.get_running_loop().time(), at_least=wait)
        else:
            self._queue.done(key)
        # A worker that found this key taken may sleep past it.
        self._wake.set()
        done, self._done = self._done, asyncio.Event()
        done.set()
