"""The tone itself, and which sink is meant; that it is heard is an integration test."""

import io
import wave

import pytest

from liken_audio.pipewire.census import SinkNode
from liken_audio.tone import RATE_HZ, Tone, ToneError, find_sink, wav

SINKS = (SinkNode(1, 10, "node-a", "kitchen-hdmi-0"), SinkNode(2, 11, "other-node"))


def test_a_tone_has_its_length_and_begins_and_ends_softly() -> None:
    with wave.open(io.BytesIO(wav(Tone(440, 0.5)))) as reader:
        assert (reader.getnchannels(), reader.getsampwidth()) == (1, 2)
        assert reader.getframerate() == RATE_HZ
        assert reader.getnframes() == RATE_HZ // 2
        samples = memoryview(reader.readframes(RATE_HZ)).cast("h")
    assert max(samples) == pytest.approx(8000, abs=10)
    assert max(map(abs, samples[:20])) < 200
    assert max(map(abs, samples[-20:])) < 200


@pytest.mark.parametrize("name", ["kitchen-hdmi-0", "node-a"], ids=["device", "node"])
def test_a_sink_is_found_by_its_device_s_name_or_its_node_s(name: str) -> None:
    assert find_sink(SINKS, name) == SINKS[0]


def test_an_unknown_sink_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ToneError, match="there are: kitchen-hdmi-0, other-node"):
        find_sink(SINKS, "bedroom")
    with pytest.raises(ToneError, match="there is none"):
        find_sink((), "bedroom")


@pytest.mark.parametrize(
    ("frequency", "seconds"), [(10, 1), (30_000, 1), (440, 0), (440, 600), (float("nan"), 1)]
)
def test_what_is_no_tone_is_refused_with_the_range(frequency: float, seconds: float) -> None:
    with pytest.raises(ToneError, match=r"20 to 20000|0\.1 to 60"):
        Tone(frequency, seconds)
