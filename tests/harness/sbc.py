"""What a Bluetooth loudspeaker was sent: SBC frames in a file that grows, decoded by Debian's libsbc.

The frames' header is that of A2DP 1.3, 12.9.
"""

import array
import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.harness.processes import HarnessError
from tests.harness.tone import Sound, measure

_SYNC = 0x9C
_RATES_HZ = (16_000, 32_000, 44_100, 48_000)
_MODES = ("mono", "dual", "stereo", "joint")
_HEADER_BYTES = 4
_MOST_SAMPLE_BYTES = 4 * 16 * 8
_SOME_SECONDS = 0.5


class _Decoder(ctypes.Structure):
    """`sbc_t` of sbc/sbc.h."""

    _fields_ = (
        ("flags", ctypes.c_ulong),
        ("form", ctypes.c_uint8 * 7),
        ("private", ctypes.c_void_p),
        ("private_base", ctypes.c_void_p),
    )


@dataclass(frozen=True, slots=True)
class Form:
    """How frames are coded."""

    rate_hz: int
    mode: str
    """`mono`, `dual`, `stereo` or `joint`; SBC-XQ is `dual`."""
    blocks: int
    subbands: int
    bitpool: int

    @property
    def frame_bytes(self) -> int:
        """Length of one frame."""
        channels = 1 if self.mode == "mono" else 2
        bits = self.blocks * self.bitpool * (channels if self.mode == "dual" else 1)
        bits += self.subbands if self.mode == "joint" else 0
        return _HEADER_BYTES + 4 * self.subbands * channels // 8 + (bits + 7) // 8

    @property
    def seconds(self) -> float:
        """How much sound a frame holds."""
        return self.blocks * self.subbands / self.rate_hz


class Received:
    """What comes in from when this was made."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._start = file.stat().st_size if file.exists() else 0

    def frames(self) -> Sequence[tuple[Form, bytes]]:
        """All whole frames."""
        return list(_frames(self._data()))

    def form(self) -> Form | None:
        """How the latest frame is coded; None before the first."""
        found = self.frames()
        return found[-1][0] if found else None

    def is_heard(self, frequency_hz: float) -> bool:
        """Whether the latest half second, of one form, is that tone and little else."""
        latest: list[bytes] = []
        form = None
        for its, frame in reversed(self.frames()):
            form = form or its
            if its != form or len(latest) * form.seconds >= _SOME_SECONDS:
                break
            latest.append(frame)
        if form is None or len(latest) * form.seconds < _SOME_SECONDS:
            return False
        return sound(form, latest[::-1]).is_tone(frequency_hz)

    def _data(self) -> bytes:
        if not self._file.exists():
            return b""
        with self._file.open("rb") as opened:
            opened.seek(self._start)
            return opened.read()


def sound(form: Form, frames: Sequence[bytes]) -> Sound:
    """Measure the left channel of frames of one form."""
    return measure(decode(frames)[:: 1 if form.mode == "mono" else 2], form.rate_hz)


def decode(frames: Sequence[bytes]) -> Sequence[int]:
    """The samples of frames of one form, channels in turn."""
    library = ctypes.CDLL("libsbc.so.1")
    library.sbc_decode.restype = ctypes.c_ssize_t
    decoder = _Decoder()
    library.sbc_init(ctypes.byref(decoder), ctypes.c_ulong(0))
    samples = array.array("h")
    buffer = ctypes.create_string_buffer(_MOST_SAMPLE_BYTES)
    written = ctypes.c_size_t()
    try:
        for frame in frames:
            done = library.sbc_decode(
                ctypes.byref(decoder),
                frame,
                ctypes.c_size_t(len(frame)),
                buffer,
                ctypes.c_size_t(len(buffer)),
                ctypes.byref(written),
            )
            if done != len(frame):
                raise HarnessError(f"a frame of {len(frame)} bytes that can't be decoded: {done}")
            samples.frombytes(buffer.raw[: written.value])
    finally:
        library.sbc_finish(ctypes.byref(decoder))
    return samples


def _frames(data: bytes) -> Iterator[tuple[Form, bytes]]:
    place = 0
    while place + _HEADER_BYTES <= len(data):
        if data[place] != _SYNC:
            raise HarnessError(f"no SBC frame begins at byte {place} of {len(data)}")
        form = _form(data[place + 1], data[place + 2])
        end = place + form.frame_bytes
        if end > len(data):
            return
        yield form, data[place:end]
        place = end


def _form(bits: int, bitpool: int) -> Form:
    return Form(
        rate_hz=_RATES_HZ[bits >> 6],
        mode=_MODES[bits >> 2 & 3],
        blocks=4 * ((bits >> 4 & 3) + 1),
        subbands=8 if bits & 1 else 4,
        bitpool=bitpool,
    )
