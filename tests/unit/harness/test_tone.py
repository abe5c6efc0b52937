"""The measure of tones: what it must tell apart, so that a demo can't pass by chance."""

import math
import random

import pytest

from tests.harness.tone import FLOOR_DBFS, RATE_HZ, measure


def sine(frequency_hz: float, seconds: float = 1.0, amplitude: float = 0.5) -> list[int]:
    return [
        round(32_767 * amplitude * math.sin(2 * math.pi * frequency_hz * place / RATE_HZ))
        for place in range(round(seconds * RATE_HZ))
    ]


def silence(seconds: float) -> list[int]:
    return [0] * round(seconds * RATE_HZ)


@pytest.mark.parametrize("frequency_hz", [55, 440, 1000, 7040])
def test_a_sine_is_its_tone_and_no_tone_two_percent_away(frequency_hz: float) -> None:
    sound = measure(sine(frequency_hz))
    assert sound.is_tone(frequency_hz)
    assert not sound.is_tone(frequency_hz * 1.02)
    assert not sound.is_tone(frequency_hz * 2)


def test_level_is_the_rms_below_full_scale() -> None:
    assert measure(sine(440, amplitude=1.0)).level_dbfs == pytest.approx(-3.0, abs=0.1)
    assert measure(sine(440, amplitude=0.125)).level_dbfs == pytest.approx(-21.1, abs=0.1)


def test_a_tone_between_silences_is_measured_alone() -> None:
    sound = measure(silence(0.7) + sine(440, 0.5) + silence(1.3))
    assert sound.is_tone(440)
    assert sound.seconds == pytest.approx(0.5, abs=0.11)
    assert sound.level_dbfs == pytest.approx(-9.0, abs=0.2)


def test_digital_silence_is_silent_at_the_floor() -> None:
    sound = measure(silence(1))
    assert sound.is_silent
    assert sound.level_dbfs == FLOOR_DBFS


def test_nothing_recorded_is_silence() -> None:
    assert measure([]).is_silent


def test_a_faint_tone_is_neither_a_tone_nor_silence() -> None:
    sound = measure(sine(440, amplitude=0.0005))
    assert not sound.is_silent
    assert not sound.is_tone(440)


def test_noise_is_no_tone() -> None:
    source = random.Random(1)
    sound = measure([source.randint(-16_000, 16_000) for _ in range(RATE_HZ)])
    assert sound.frequency_hz is not None
    assert not sound.is_tone(sound.frequency_hz)


def test_two_tones_at_once_are_not_one() -> None:
    both = [a + b for a, b in zip(sine(440, 1, 0.3), sine(660, 1, 0.3), strict=True)]
    sound = measure(both)
    assert not sound.is_tone(440)
    assert not sound.is_tone(660)


def test_a_click_is_no_tone() -> None:
    assert measure(silence(0.5) + sine(440, 0.04) + silence(0.5)).frequency_hz is None
