"""Workers on a queue, on a virtual clock."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from liken_audio.controllers.workers import Workers
from liken_audio.controllers.workqueue import WorkQueue

pytestmark = pytest.mark.looptime


class Desk:
    """Work that takes a second, and fails as often as it is told to."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.done: list[tuple[str, float]] = []
        self.at_once = 0
        self.most_at_once = 0
        self.workers = Workers(
            WorkQueue[str](first_delay=1.0, max_delay=8.0), self.work, self.failed, (OSError,)
        )

    async def work(self, key: str) -> None:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(1.0)
        self.at_once -= 1
        if self.failures:
            raise self.failures.pop(0)
        self.done.append((key, asyncio.get_running_loop().time()))

    def failed(self, key: str, error: Exception) -> float:
        return 20.0 if str(error) == "asked" else 0.0

    def add(self, *keys: str) -> None:
        for key in keys:
            self.workers.add(key, asyncio.get_running_loop().time())


@asynccontextmanager
async def working(desk: Desk, count: int) -> AsyncIterator[Desk]:
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(desk.workers.run()) for _ in range(count)]
        yield desk
        for task in running:
            task.cancel()


async def test_several_keys_are_worked_on_at_once_one_key_never() -> None:
    async with working(Desk(), 4) as desk:
        desk.add("a", "b")
        await asyncio.sleep(0.5)
        desk.add("a")
        await asyncio.sleep(10)
    assert desk.most_at_once == 2
    assert [key for key, _ in desk.done] == ["a", "b", "a"]


async def test_a_failed_key_comes_again_later() -> None:
    async with working(Desk(OSError("broken"), OSError("broken")), 2) as desk:
        desk.add("a")
        await asyncio.sleep(20)
    ((key, when),) = desk.done
    assert key == "a"
    assert when > 1 + 1 + 1 + 2 + 1


async def test_a_wait_that_was_asked_for_is_kept() -> None:
    async with working(Desk(OSError("asked")), 2) as desk:
        desk.add("a")
        await asyncio.sleep(60)
    assert desk.done[0][1] >= 21


async def test_an_error_that_is_no_failure_of_the_work_ends_the_workers() -> None:
    desk = Desk(KeyError("a mistake"))
    desk.add("a")
    with pytest.raises(KeyError):
        await desk.workers.run()


async def test_discarded_and_put_off_keys_wait() -> None:
    async with working(Desk(), 1) as desk:
        now = asyncio.get_running_loop().time()
        desk.workers.add("a", now + 5)
        desk.workers.put_off("a", now + 30)
        desk.workers.add("b", now + 5)
        desk.workers.discard("b")
        await asyncio.sleep(60)
    assert [key for key, _ in desk.done] == ["a"]
    assert desk.done[0][1] >= now + 30


async def test_what_is_queued_for_a_key_can_be_waited_for() -> None:
    async with working(Desk(), 1) as desk:
        desk.add("a", "b", "c")
        async with asyncio.timeout(2.5):
            await desk.workers.finish(["b", "never added"])
        assert [key for key, _ in desk.done] == ["a", "b"]


async def test_a_key_that_has_failed_is_not_waited_for() -> None:
    async with working(Desk(OSError("asked")), 1) as desk:
        desk.add("a")
        async with asyncio.timeout(1.5):
            await desk.workers.finish(["a"])
    assert desk.done == []
