"""File work isn't left half done."""

import asyncio
import threading

import pytest

from liken_audio.controllers.file_work import in_thread


async def test_the_result_and_the_error_come_back() -> None:
    assert await in_thread(max, 1, 2) == 2
    with pytest.raises(FileNotFoundError):
        await in_thread(open, "/no/such/file")


async def test_who_is_cancelled_goes_on_only_when_the_work_has_ended() -> None:
    begun, go = threading.Event(), threading.Event()
    order = []

    def work() -> None:
        begun.set()
        go.wait(10)
        order.append("work ended")

    async def call() -> None:
        try:
            await in_thread(work)
        finally:
            order.append("call ended")

    task = asyncio.get_running_loop().create_task(call())
    await asyncio.to_thread(begun.wait, 10)
    task.cancel()
    await asyncio.sleep(0)
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert order == ["work ended", "call ended"]
