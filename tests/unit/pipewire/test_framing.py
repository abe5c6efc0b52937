"""Arrays are found wherever the stream is cut, and after anything that is no array."""

import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liken_audio.pipewire.framing import ArrayFramer

RECORDINGS = Path(__file__).parents[2] / "recordings" / "pw-dump"
PRETTY = b'[\n  {\n    "id": 7,\n    "info": null\n  }\n]\n'
NESTED = b'[\n  {\n    "id": 8,\n    "list": [\n      1,\n      [ 2 ]\n    ]\n  }\n]\n'
COMPACT = b'[{"id":9,"text":"a ] \\" [ \\\\"}]'


def frames(framer: ArrayFramer, data: bytes, size: int = 0) -> list[bytes]:
    step = size or len(data)
    return [
        array
        for start in range(0, len(data), step)
        for array in framer.feed(data[start : start + step])
    ]


@pytest.mark.parametrize(
    "separator", [b"", b"\n", b" ", b"\r\n\t"], ids=["none", "line", "blank", "blanks"]
)
def test_arrays_are_told_apart_whatever_blanks_lie_between(separator: bytes) -> None:
    stream = separator.join([PRETTY.strip(), NESTED.strip(), COMPACT, COMPACT, PRETTY.strip()])
    framer = ArrayFramer()
    found = frames(framer, stream)
    assert [json.loads(each)[0]["id"] for each in found] == [7, 8, 9, 9, 7]
    assert framer.errors == framer.pending_bytes == 0


def test_an_array_is_found_at_its_bracket_not_at_the_next_byte() -> None:
    framer = ArrayFramer()
    assert len(framer.feed(PRETTY.strip())) == 1
    assert len(framer.feed(COMPACT)) == 1
    assert framer.feed(b"[]") == [b"[]"]


def test_every_cut_in_two_finds_the_same_arrays() -> None:
    stream = PRETTY + COMPACT + NESTED
    for cut in range(len(stream) + 1):
        framer = ArrayFramer()
        found = framer.feed(stream[:cut]) + framer.feed(stream[cut:])
        assert found == [PRETTY.strip(), COMPACT, NESTED.strip()], cut
        assert framer.errors == 0


@pytest.mark.parametrize("path", sorted(RECORDINGS.glob("[co]*.jsons")), ids=lambda each: each.name)
def test_a_recording_cut_in_two_at_every_offset_holds_the_same_arrays(path: Path) -> None:
    data = path.read_bytes()
    expected = ArrayFramer().feed(data)
    assert expected
    for cut in range(len(data) + 1):
        framer = ArrayFramer()
        assert framer.feed(data[:cut]) + framer.feed(data[cut:]) == expected, cut
        assert framer.errors == framer.pending_bytes == 0, cut


def test_bytes_one_by_one_find_the_same_arrays() -> None:
    framer = ArrayFramer()
    assert len(frames(framer, (PRETTY + COMPACT + b"\n" + NESTED) * 3, 1)) == 9
    assert framer.errors == 0


GARBAGE = [
    pytest.param(b"warning: something\n", id="a line"),
    pytest.param(b'} "open [ {\nmore\n', id="lines with brackets and a quote"),
    pytest.param(b"\xff\xfe\x00\n", id="no text"),
    pytest.param(b'[\n  {\n    "id": 1,\n    "te', id="an array broken off in text"),
    pytest.param(b'[\n  {\n    "id": 1,\n    "list": [\n', id="an array broken off in a list"),
    pytest.param(b'[{"id":1,"text":"open\n', id="a line broken off in text"),
    pytest.param(b'[{"id":1,"list":[\n', id="a line broken off in a list"),
    pytest.param(b"garbage without a line", id="no line at all"),
]


@pytest.mark.parametrize("garbage", GARBAGE)
@pytest.mark.parametrize("size", [0, 1, 7])
def test_garbage_costs_no_array_before_or_after_it(garbage: bytes, size: int) -> None:
    framer = ArrayFramer()
    found = frames(framer, PRETTY + garbage + b"\n" + PRETTY + garbage + PRETTY + PRETTY, size)
    whole = [each for each in found if each == PRETTY.strip()]
    assert len(whole) >= 3
    assert len(found) - len(whole) + framer.errors >= 2
    # Without a line break before it, the array after the garbage may be part of it; no more.
    assert len(whole) == 4 or not garbage.endswith(b"\n")


def test_a_run_of_garbage_counts_once_however_it_is_cut() -> None:
    framer = ArrayFramer()
    assert len(frames(framer, b"one two\nthree\n" + PRETTY, 1)) == 1
    assert framer.errors == 1


def test_an_endless_array_is_given_up_and_the_next_one_is_found() -> None:
    framer = ArrayFramer(max_array_bytes=1000)
    assert frames(framer, b"[\n" + b'  "x",\n' * 1000, 100) == []
    assert framer.pending_bytes <= 1000
    assert framer.errors >= 1
    assert framer.feed(b"\n" + PRETTY) == [PRETTY.strip()]


def test_an_array_cut_off_at_the_end_is_pending() -> None:
    framer = ArrayFramer()
    assert framer.feed(PRETTY[:-3]) == []
    assert framer.pending_bytes == len(PRETTY) - 3


@pytest.mark.parametrize("kind", ["lines", "one line"])
def test_the_time_is_linear_in_the_bytes(kind: str) -> None:
    """Were all that came before looked at again with each of 8,000 pieces: over 4 GB."""
    row = json.dumps({"id": 1, "text": "x" * 50}, indent=2 if kind == "lines" else None)
    data = f"[{', '.join([row] * 15_000)}]".encode()
    assert len(data) > 1_000_000
    framer = ArrayFramer()
    started = time.process_time()
    assert len(frames(framer, data, 130)) == 1
    assert time.process_time() - started < 3


# What a framer could stumble over; all of Unicode would cost hypothesis seconds at its first use.
texts = st.text(alphabet='ab0 {}[],:"\\/\n\r\t\0\x7fé\u2028\ud800\U0001f50a', max_size=12)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner) | st.dictionaries(texts, inner),
    max_leaves=8,
)


@given(
    arrays=st.lists(st.lists(json_values, max_size=4), max_size=4),
    indent=st.sampled_from([None, 2]),
    cuts=st.lists(st.integers(1, 30), max_size=20),
    is_ascii=st.booleans(),
)
def test_whatever_arrays_hold_and_however_they_are_cut(
    arrays: list[object], indent: int | None, cuts: list[int], is_ascii: bool
) -> None:
    texts = [json.dumps(each, indent=indent, ensure_ascii=is_ascii) for each in arrays]
    data = "\n".join(texts).encode("utf-8", "replace")
    framer = ArrayFramer()
    found = []
    for cut in cuts:
        found += framer.feed(data[:cut])
        data = data[cut:]
    found += framer.feed(data)
    assert [json.loads(each) for each in found] == [
        json.loads(each.encode("utf-8", "replace")) for each in texts
    ]
    assert framer.errors == 0
