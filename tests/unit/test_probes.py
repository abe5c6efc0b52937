"""The probes say what is missing, and /metrics is what Prometheus reads."""

from collections.abc import AsyncIterator

import pytest
from aiohttp.test_utils import TestClient, TestServer

from liken_audio.probes import Metric, Probes, metrics_text


def test_each_name_has_one_head_and_labels_are_escaped() -> None:
    text = metrics_text(
        [
            Metric("liken_audio_writes_total", "Writes.", 3, {"loop": "publisher"}),
            Metric("liken_audio_endpoints", "Endpoints.", 64),
            Metric("liken_audio_writes_total", "Writes.", 1, {"loop": 'a"b\\c\nd'}),
        ]
    )
    assert text.splitlines() == [
        "# HELP liken_audio_writes_total Writes.",
        "# TYPE liken_audio_writes_total counter",
        'liken_audio_writes_total{loop="publisher"} 3',
        r'liken_audio_writes_total{loop="a\"b\\c\nd"} 1',
        "# HELP liken_audio_endpoints Endpoints.",
        "# TYPE liken_audio_endpoints gauge",
        "liken_audio_endpoints 64",
    ]


def test_no_metrics_is_an_empty_page() -> None:
    assert metrics_text([]) == "\n"


@pytest.fixture
def missing() -> list[str]:
    return []


@pytest.fixture
async def client(missing: list[str]) -> AsyncIterator[TestClient]:
    probes = Probes("127.0.0.1", 0, missing=lambda: missing, metrics=lambda: [Metric("a", "A.", 1)])
    async with TestClient(TestServer(probes.application())) as client:
        yield client


async def test_ready_while_nothing_is_missing(client: TestClient) -> None:
    answer = await client.get("/readyz")
    assert (answer.status, await answer.text()) == (200, "ok\n")


async def test_not_ready_names_each_missing_thing_on_a_line(
    client: TestClient, missing: list[str]
) -> None:
    missing += ["pipewire: not connected", "kubelet: not registered"]
    answer = await client.get("/readyz")
    assert answer.status == 503
    assert await answer.text() == "pipewire: not connected\nkubelet: not registered\n"


async def test_healthy_even_while_not_ready(client: TestClient, missing: list[str]) -> None:
    missing.append("pipewire: not connected")
    assert (await client.get("/healthz")).status == 200


async def test_the_metrics_page_is_plain_text(client: TestClient) -> None:
    answer = await client.get("/metrics")
    assert answer.content_type == "text/plain"
    assert "a 1" in await answer.text()
