"""Events: once, counted, few, and never in the way."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from liken_audio.api import EVENTS, Json, Unreachable
from liken_audio.controllers.events import (
    BURST,
    MAX_TRIES,
    SERIES_GAP_SECONDS,
    SERIES_SECONDS,
    EventRecorder,
)
from liken_audio.resources.conditions import Transition
from tests.fakes import FakeResourceClient

pytestmark = pytest.mark.looptime

SINK = {
    "apiVersion": "audio.liken.sh/v1alpha1",
    "kind": "Sink",
    "metadata": {"name": "kitchen-hdmi-0", "uid": "u1"},
}
NOW = datetime(2026, 11, 30, 20, 0, 0, 123456, tzinfo=UTC)


def transition(reason: str = "NoMonitor", message: str = "plug one in") -> Transition:
    return Transition(is_warning=True, reason=reason, message=message)


def made() -> tuple[FakeResourceClient, EventRecorder]:
    client = FakeResourceClient()
    return client, EventRecorder(client, "kitchen", lambda: NOW)


@asynccontextmanager
async def running(recorder: EventRecorder) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(recorder.run())
        yield
        task.cancel()


def stored(client: FakeResourceClient) -> list[Json]:
    return [body for (plural, _), body in client.store.items() if plural == EVENTS.plural]


async def test_an_event_says_what_a_person_needs() -> None:
    client, recorder = made()
    async with running(recorder):
        recorder.record(SINK, transition())
        await asyncio.sleep(1)
    (event,) = stored(client)
    assert event["metadata"]["namespace"] == "default"
    assert event["metadata"]["name"].startswith("kitchen-hdmi-0.")
    assert event["regarding"] == {
        "apiVersion": "audio.liken.sh/v1alpha1",
        "kind": "Sink",
        "name": "kitchen-hdmi-0",
        "uid": "u1",
    }
    expected: dict[str, Any] = {
        "reason": "NoMonitor",
        "note": "plug one in",
        "type": "Warning",
        "reportingController": "audio.liken.sh",
        "reportingInstance": "kitchen",
        "eventTime": "2026-11-30T20:00:00.123456Z",
    }
    assert {key: event[key] for key in expected} == expected


async def test_the_same_again_raises_the_count_and_is_written_once_a_minute() -> None:
    client, recorder = made()
    async with running(recorder):
        for _ in range(50):
            recorder.record(SINK, transition())
            await asyncio.sleep(1)
        await asyncio.sleep(SERIES_GAP_SECONDS)
    (event,) = stored(client)
    assert event["series"]["count"] == 50
    assert len(client.writes()) == 2


async def test_the_same_after_a_long_time_is_a_new_event() -> None:
    client, recorder = made()
    async with running(recorder):
        recorder.record(SINK, transition())
        await asyncio.sleep(SERIES_SECONDS + 1)
        client.store.clear()
        recorder.record(SINK, transition())
        await asyncio.sleep(1)
    (event,) = stored(client)
    assert "series" not in event


async def test_an_object_with_too_much_to_say_is_cut_short_and_others_are_not() -> None:
    client, recorder = made()
    other = {**SINK, "metadata": {"name": "other", "uid": "u2"}}
    async with running(recorder):
        for n in range(BURST + 5):
            recorder.record(SINK, transition(message=f"message {n}"))
        recorder.record(other, transition())
        await asyncio.sleep(1)
    assert len(stored(client)) == BURST + 1
    assert recorder.dropped == 5


async def test_an_away_server_is_tried_a_few_times_and_then_let_be() -> None:
    client, recorder = made()
    client.failures = [Unreachable("away", status=503)] * 100
    async with running(recorder):
        recorder.record(SINK, transition())
        await asyncio.sleep(3_600)
    assert len(client.calls) == MAX_TRIES
    assert (recorder.errors, recorder.dropped) == (MAX_TRIES, 1)


async def test_an_event_that_expired_begins_anew() -> None:
    client, recorder = made()
    async with running(recorder):
        recorder.record(SINK, transition())
        await asyncio.sleep(1)
        client.store.clear()
        recorder.record(SINK, transition())
        created: list[Json] = []
        client.admit = created.append
        await asyncio.sleep(2 * SERIES_GAP_SECONDS)
    assert len(stored(client)) == 1
    assert "series" not in created[0]


async def test_recording_before_the_loop_runs_loses_nothing() -> None:
    client, recorder = made()
    recorder.record(SINK, transition())
    async with running(recorder):
        await asyncio.sleep(1)
    assert len(stored(client)) == 1


async def test_a_long_note_is_cut_between_letters() -> None:
    client, recorder = made()
    async with running(recorder):
        recorder.record(SINK, transition(message="ä" * 900))
        await asyncio.sleep(1)
    (event,) = stored(client)
    assert event["note"] == "ä" * 500
