"""PipeWire's native protocol: real bytes are read in any portions, ours are as PipeWire wants them."""

import struct
from pathlib import Path

import pytest

from liken_audio.sockets.protocol import (
    CONTEXT_ID,
    REGISTRY_ID,
    SECURITY_CONTEXT,
    Decoder,
    Done,
    Encoder,
    Error,
    Global,
    Ping,
    ProtocolError,
)

RECORDING = Path(__file__).parents[2] / "recordings" / "pipewire-native.txt"


def recorded() -> bytes:
    lines = RECORDING.read_text().splitlines()
    return bytes.fromhex("".join(line for line in lines if not line.startswith("#")))


def message(object_id: int, opcode: int, *fields: bytes) -> bytes:
    """A message of the server, its fields given as whole PODs."""
    inner = b"".join(fields)
    body = struct.pack("=II", len(inner), 14) + inner
    return struct.pack("=IIII", object_id, opcode << 24 | len(body), 7, 0) + body


def number(value: int) -> bytes:
    return struct.pack("=IIi4x", 4, 4, value)


def text(value: bytes) -> bytes:
    padded = value + b"\0"
    return struct.pack("=II", len(padded), 8) + padded + bytes(-len(padded) % 8)


def test_a_real_conversation_is_understood() -> None:
    events = Decoder().feed(recorded())
    assert Global(3, SECURITY_CONTEXT, 3) in events
    assert len([event for event in events if isinstance(event, Global)]) == 34
    assert [event.sequence for event in events if isinstance(event, Done)] == [0, *range(1, 7)]
    errors = [event for event in events if isinstance(event, Error)]
    assert errors == [Error(0, 11, -2, "unknown resource 2 op:1")]


def test_the_portions_in_which_bytes_come_make_no_difference() -> None:
    data = recorded()
    whole = Decoder().feed(data)
    for size in (1, 3, 7, 16, 17, 1000):
        decoder = Decoder()
        events = [
            event
            for start in range(0, len(data), size)
            for event in decoder.feed(data[start : start + size])
        ]
        assert events == whole


@pytest.mark.parametrize("cut", range(0, 600, 5))
def test_a_cut_at_any_byte_loses_nothing(cut: int) -> None:
    data = recorded()[:1200]
    decoder = Decoder()
    assert decoder.feed(data[:cut]) + decoder.feed(data[cut:]) == Decoder().feed(data)


def test_a_ping_is_seen() -> None:
    assert Decoder().feed(message(0, 2, number(0), number(42))) == [Ping(0, 42)]


def test_events_that_are_not_ours_are_passed_over() -> None:
    assert Decoder().feed(message(99, 3, text(b"x")) + message(0, 5)) == []


def test_text_that_is_not_utf8_does_not_end_the_connection() -> None:
    (event,) = Decoder().feed(message(0, 3, number(3), number(1), number(-13), text(b"\xff\xe9")))
    assert isinstance(event, Error)
    assert event.code == -13


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param(message(0, 1, number(1)), id="a-field-is-missing"),
        pytest.param(message(0, 1, text(b"x"), text(b"y")), id="text-for-a-number"),
        pytest.param(struct.pack("=IIII", 0, 1 << 24 | 4, 0, 0) + b"\1\2\3\4", id="no-pod"),
        pytest.param(struct.pack("=IIIIII", 0, 1 << 24 | 8, 0, 0, 900, 14), id="too-short"),
        pytest.param(
            struct.pack("=IIIIIIII", 0, 1 << 24 | 16, 0, 0, 8, 14, 400, 4), id="a-field-too-long"
        ),
    ],
)
def test_what_cannot_be_the_protocol_is_an_error_and_nothing_else(broken: bytes) -> None:
    with pytest.raises(ProtocolError):
        Decoder().feed(broken)


def headers(data: bytes) -> list[tuple[int, int, int, int]]:
    """(object, opcode, sequence, descriptors) of each message; checks that the sizes add up."""
    found = []
    while data:
        object_id, opcode_and_size, sequence, descriptors = struct.unpack_from("=IIII", data)
        size = opcode_and_size & 0xFFFFFF
        assert size % 8 == 0
        found.append((object_id, opcode_and_size >> 24, sequence, descriptors))
        data = data[16 + size :]
    return found


def test_messages_are_numbered_and_go_to_their_objects() -> None:
    encoder = Encoder()
    sent = (
        encoder.hello({"application.name": "x"})
        + encoder.get_registry()
        + encoder.bind(Global(3, SECURITY_CONTEXT, 3))
        + encoder.destroy(REGISTRY_ID)
        + encoder.create_context({"a": "b"})
        + encoder.sync(5)
        + encoder.pong(Ping(0, 9))
    )
    assert headers(sent) == [
        (0, 1, 0, 0),
        (1, 2, 1, 0),
        (0, 5, 2, 0),
        (REGISTRY_ID, 1, 3, 0),
        (0, 7, 4, 0),
        (CONTEXT_ID, 1, 5, 2),
        (0, 2, 6, 0),
        (0, 3, 7, 0),
    ]


def test_a_context_is_created_with_two_descriptors_and_its_properties() -> None:
    body = Encoder().create_context({"pipewire.sec.engine": "é"})[16:]
    descriptors = struct.pack("=IIq", 8, 18, 0) + struct.pack("=IIq", 8, 18, 1)
    pairs = number(1) + text(b"pipewire.sec.engine") + text("é".encode())
    properties = struct.pack("=II", len(pairs), 14) + pairs
    inner = descriptors + properties
    assert body == struct.pack("=II", len(inner), 14) + inner
