"""What is heard at a sink: its monitor recorded with pw-record, and the sound measured.

Levels are dBFS of the RMS, so a sine of full scale has -3. The measures need no library: a tone is
found by its zero crossings, and its purity is the share of the energy at that frequency (Goertzel).
"""

import array
import itertools
import math
import struct
import wave
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tests.harness.processes import Program, Programs, wait_until

RATE_HZ = 48_000
SILENCE_DBFS = -90.0
"""Below it nothing can be heard; the lowest bit of 16 alone has about -90."""
FLOOR_DBFS = -120.0
"""What digital silence is given as."""
_WINDOW = RATE_HZ // 20
_LOUD_DBFS = -60.0
_START_SECONDS = 45


@dataclass(frozen=True, slots=True)
class Sound:
    """What one recording holds."""

    frequency_hz: float | None
    """Of the longest loud stretch; None when there is none."""
    purity: float
    """Share of that stretch's energy at the frequency, 0 to 1."""
    level_dbfs: float
    """Of that stretch; of the whole recording when there is none."""
    seconds: float
    """Length of that stretch."""

    @property
    def is_silent(self) -> bool:
        """Whether nothing could be heard at any time."""
        return self.frequency_hz is None and self.level_dbfs < SILENCE_DBFS

    def is_tone(self, frequency_hz: float) -> bool:
        """Whether it is that tone, within 1 %, and little else."""
        heard = self.frequency_hz
        return (
            heard is not None
            and abs(heard - frequency_hz) <= 0.01 * frequency_hz
            and self.purity >= 0.9
        )

    def __str__(self) -> str:
        if self.is_silent or self.frequency_hz is None:
            return f"nothing ({self.level_dbfs:.0f} dBFS)"
        return (
            f"{self.frequency_hz:.1f} Hz, {self.level_dbfs:.1f} dBFS, {self.seconds:.1f} s, "
            f"{self.purity:.0%} pure"
        )


def play_command(frequency_hz: int, seconds: float) -> Sequence[str]:
    """A container's command that plays a tone with pw-play, to where its environment says."""
    samples = round(seconds * RATE_HZ)
    step = 2 * math.pi * frequency_hz / RATE_HZ
    make = f'BEGIN {{ for (i = 0; i < {samples}; i++) printf "%c", 128 + 64 * sin({step} * i) }}'
    play = f"pw-play --raw --format u8 --rate {RATE_HZ} --channels 1 -"
    return ["sh", "-c", f"export LC_ALL=C; awk '{make}' | {play}"]


class Reachable(Protocol):
    """A PipeWire that tools can reach."""

    @property
    def environment(self) -> Mapping[str, str]:
        """All that a tool needs to reach it."""


class Recorder:
    """Records the monitor of one sink from `start` to `stop`."""

    def __init__(self, stack: Reachable, programs: Programs, node_name: str) -> None:
        self._stack = stack
        self._programs = programs
        self._node_name = node_name
        self._file = programs.folder / f"{node_name}.s16"
        self._program: Program | None = None

    def start(self) -> None:
        """Start and wait until samples arrive, so that what is played from now on is heard."""
        self._file.unlink(missing_ok=True)
        command = [
            "pw-record",
            "--raw",
            f"--target={self._node_name}",
            "--properties={ stream.capture.sink=true node.dont-fallback=true node.linger=true }",
            f"--rate={RATE_HZ}",
            "--channels=2",
            "--format=s16",
            "-",
        ]
        # Raw samples go to its standard output only.
        into_file = [
            "sh",
            "-c",
            'file=$1; shift; exec "$@" >"$file"',
            "-",
            str(self._file),
            *command,
        ]
        name = f"record-{self._node_name}"
        self._program = self._programs.start(name, into_file, self._stack.environment)
        wait_until(
            self._has_samples, f"recording {self._node_name}", _START_SECONDS, [self._program]
        )

    def seconds(self) -> float:
        """How much is recorded; an error when the recorder died."""
        if self._program is not None:
            self._program.check()
        return len(read_left(self._file)) / RATE_HZ

    def loud_seconds(self) -> float:
        """Length of the longest loud stretch so far."""
        return measure(read_left(self._file)).seconds

    def share(self, frequency_hz: float) -> float:
        """Share of the energy of the last half second at that frequency, 0 to 1."""
        return _purity(read_left(self._file)[-RATE_HZ // 2 :], frequency_hz, RATE_HZ)

    def stop(self) -> Sound:
        """Stop and measure; an error when the recorder died on the way."""
        if self._program is not None:
            self._program.check()
            self._program.end()
        return measure(read_left(self._file))

    def _has_samples(self) -> bool:
        return self._file.exists() and self._file.stat().st_size > 0


def write_tone(file: Path, frequency_hz: float, seconds: float = 1.0) -> None:
    """Write a sine of half of full scale into a WAV file, stereo, 16 bits."""
    samples = [
        round(16_000 * math.sin(2 * math.pi * frequency_hz * place / RATE_HZ))
        for place in range(round(RATE_HZ * seconds))
    ]
    with wave.open(str(file), "wb") as writer:
        writer.setparams((2, 2, RATE_HZ, 0, "NONE", ""))
        writer.writeframes(b"".join(struct.pack("<hh", each, each) for each in samples))


def read_left(file: Path, start: int = 0) -> Sequence[int]:
    """The left channel of raw stereo samples of 16 bits, from a byte of the file on."""
    with file.open("rb") as opened:
        opened.seek(start)
        data = opened.read()
    samples = array.array("h")
    samples.frombytes(data[: len(data) // 4 * 4])
    return samples[::2]


def measure(samples: Sequence[int], rate_hz: int = RATE_HZ) -> Sound:
    """Measure the longest loud stretch of one channel of samples of 16 bits."""
    begin, end = _longest_loud(samples)
    if end - begin < 3 * _WINDOW:
        return Sound(None, 0.0, _level(samples), 0.0)
    # The first and last window hold the tone's beginning and end.
    stretch = samples[begin + _WINDOW : end - _WINDOW]
    frequency = _frequency(stretch, rate_hz)
    purity = _purity(stretch, frequency, rate_hz) if frequency else 0.0
    return Sound(frequency, purity, _level(stretch), (end - begin) / rate_hz)


def _level(samples: Sequence[int]) -> float:
    energy = sum(sample * sample for sample in samples)
    if not energy:
        return FLOOR_DBFS
    return 10 * math.log10(energy / len(samples) / 32_768**2)


def _longest_loud(samples: Sequence[int]) -> tuple[int, int]:
    best = (0, 0)
    begin: int | None = None
    starts = range(0, len(samples) - _WINDOW + 1, _WINDOW)
    for start in starts:
        is_loud = _level(samples[start : start + _WINDOW]) > _LOUD_DBFS
        if not is_loud:
            begin = None
            continue
        begin = start if begin is None else begin
        best = max(best, (begin, start + _WINDOW), key=lambda span: span[1] - span[0])
    return best


def _frequency(samples: Sequence[int], rate_hz: int) -> float | None:
    """From the first to the last upward zero crossing, each found between two samples."""
    crossings = [
        place + before / (before - after)
        for place, (before, after) in enumerate(itertools.pairwise(samples))
        if before < 0 <= after
    ]
    if len(crossings) < 2:
        return None
    return (len(crossings) - 1) * rate_hz / (crossings[-1] - crossings[0])


def _purity(samples: Sequence[int], frequency_hz: float, rate_hz: int) -> float:
    """Share of the energy within the resolution of a fifth of a second around the frequency."""
    length = min(len(samples), rate_hz // 5)
    coefficient = 2 * math.cos(2 * math.pi * frequency_hz / rate_hz)
    before, last, energy = 0.0, 0.0, 0
    for sample in samples[:length]:
        before, last = last, sample + coefficient * last - before
        energy += sample * sample
    power = last * last + before * before - coefficient * last * before
    return power * 2 / length / energy if energy else 0.0
