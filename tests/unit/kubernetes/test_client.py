"""What an answer means; the calls themselves are tested on a wire (tests/integration)."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import yaml

from liken_audio.api import ApiError, Conflict, Gone, NotFound, Rejected, Unreachable
from liken_audio.kubernetes import client
from liken_audio.kubernetes.client import MAX_RETRY_AFTER, error_of, yaml_of


def status(**fields: Any) -> bytes:
    return json.dumps({"kind": "Status", "apiVersion": "v1", **fields}).encode()


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (400, Rejected),
        (401, Unreachable),
        (403, Rejected),
        (404, NotFound),
        (405, Rejected),
        (408, Unreachable),
        (409, Conflict),
        (410, Gone),
        (413, Rejected),
        (415, Rejected),
        (422, Rejected),
        (429, Unreachable),
        (302, Unreachable),
        (500, Unreachable),
        (502, Unreachable),
        (503, Unreachable),
        (504, Unreachable),
    ],
)
def test_each_status_is_one_of_the_family(code: int, kind: type[ApiError]) -> None:
    error = error_of(code, status(reason="Because", message="it is so"), path="/api/v1/nodes")
    assert type(error) is kind
    assert error.status == code
    assert error.reason == "Because"
    assert str(error) == f"/api/v1/nodes: {code} it is so"


@pytest.mark.parametrize(
    "body", [b"", b"<html>bad gateway</html>", b"[1]", b"\xff\xfe", b'{"details": 3}', b"null"]
)
def test_an_answer_that_is_no_status_object_is_an_error_all_the_same(body: bytes) -> None:
    assert error_of(502, body).status == 502


@pytest.mark.parametrize(
    ("header", "details", "seconds"),
    [
        ("7", None, 7.0),
        (None, 3, 3.0),
        ("7", 3, 7.0),
        ("0", None, None),
        ("-1", None, None),
        ("Wed, 21 Oct 2026 07:28:00 GMT", None, None),
        ("1e9", None, MAX_RETRY_AFTER),
        ("nan", None, None),
        (None, None, None),
    ],
)
def test_the_server_may_say_when_to_come_back(
    header: str | None, details: int | None, seconds: float | None
) -> None:
    body = status(details={"retryAfterSeconds": details}) if details else status()
    assert error_of(429, body, retry_after=header).retry_after == seconds


async def chunks(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def lines(*parts: bytes) -> list[bytes]:
    return [line async for line in client._lines(chunks(*parts))]


async def test_lines_are_the_same_however_the_bytes_are_cut() -> None:
    stream = b'{"a":1}\n\n{"b":2}\r\n{"c":"' + b"x" * 300 + b'"}\n'
    whole = await lines(stream)
    assert [json.loads(line) for line in whole] == [{"a": 1}, {"b": 2}, {"c": "x" * 300}]
    for size in (1, 2, 3, 7, 64):
        parts = [stream[start : start + size] for start in range(0, len(stream), size)]
        assert await lines(*parts) == whole


async def test_a_line_of_two_megabytes_is_a_line() -> None:
    """U78."""
    line = b"x" * 2_000_000
    parts = [line[start : start + 65_536] for start in range(0, len(line), 65_536)]
    assert await lines(*parts, b"\n") == [line]


async def test_a_stream_that_ends_inside_a_line_is_broken() -> None:
    with pytest.raises(ValueError, match="inside an event"):
        await lines(b'{"a":1}\n{"b"')


async def test_a_line_without_end_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MAX_WATCH_LINE", 1000)
    with pytest.raises(ValueError, match="more than 1000 bytes"):
        await lines(*[b"x" * 100] * 20)


ODD_TEXT = (
    "\U0001f50a Küche 平 \0\x01\t\n\x7f\x80\x85\x9f\xa0\u2028\u2029\ufeff\ufffe\uffff\"\\u0041 # '"
)


def test_what_is_applied_is_yaml_and_json_of_the_same_text() -> None:
    body = {"metadata": {"name": ODD_TEXT}, ODD_TEXT: [ODD_TEXT, 1, 1.5, True, None]}
    encoded = yaml_of(body)
    assert json.loads(encoded) == body
    assert yaml.safe_load(encoded) == body


def test_half_a_letter_does_not_cost_the_rest_of_what_is_applied() -> None:
    assert yaml.safe_load(yaml_of({"name": "a\ud83d b"})) == {"name": "a\ufffd b"}
