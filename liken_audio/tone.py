"""`liken-audio tone`: a short tone on one sink, and what is known of whether it was heard.

The tone goes the way of any stream: pw-play, linked by WirePlumber. A stream whose sink isn't there
is given no other one, so the tone is never played where nobody asked for it.
"""

import asyncio
import contextlib
import io
import math
import os
import struct
import wave
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from liken_audio.pipewire import tool
from liken_audio.pipewire.census import Census, SinkNode
from liken_audio.pipewire.look import NoAnswerError, look, look_until

RATE_HZ = 48_000
LINK_SECONDS = 10.0
"""How long WirePlumber has to link the stream."""
_END_SECONDS = 10.0
_AMPLITUDE = 8_000  # a quarter of full scale: loud enough to be heard, no start to be feared
_FADE_SECONDS = 0.02
_STREAM = "liken-audio-tone"


class ToneError(Exception):
    """The tone can't be played; the message says why and what there is."""


@dataclass(frozen=True, slots=True)
class Tone:
    """What to play."""

    frequency_hz: float = 440.0
    seconds: float = 1.0

    def __post_init__(self) -> None:
        """Refuse what no loudspeaker plays."""
        if not 20 <= self.frequency_hz <= 20_000:
            raise ToneError(f"{self.frequency_hz:g} Hz can't be heard: 20 to 20000")
        if not 0.1 <= self.seconds <= 60:
            raise ToneError(f"{self.seconds:g} s is no short tone: 0.1 to 60")


def wav(tone: Tone) -> bytes:
    """The tone as a WAV file: mono, 16 bits, faded in and out so that it doesn't click."""
    count = round(tone.seconds * RATE_HZ)
    fade = _FADE_SECONDS * RATE_HZ
    step = 2 * math.pi * tone.frequency_hz / RATE_HZ
    samples = [
        round(_AMPLITUDE * min(1.0, place / fade, (count - place) / fade) * math.sin(step * place))
        for place in range(count)
    ]
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setparams((1, 2, RATE_HZ, 0, "NONE", ""))
        writer.writeframes(struct.pack(f"<{count}h", *samples))
    return file.getvalue()


def find_sink(sinks: Sequence[SinkNode], name: str) -> SinkNode:
    """The sink of that device or node name; `ToneError` names those that there are."""
    for each in sinks:
        if name in {each.device, each.name}:
            return each
    names = sorted(each.device or each.name for each in sinks)
    there_are = f"there are: {', '.join(names)}" if names else "there is none"
    raise ToneError(f"no sink {name!r} can be played to now; {there_are}")


async def play(remote: str, name: str, tone: Tone) -> str:
    """Play it to the end and return what was done; `ToneError` when it was played nowhere."""
    try:
        sink = find_sink((await look(remote)).sinks, name)
        with _memory_file(wav(tone)) as path:
            await _play(remote, sink, path, tone)
        # What was written to a node that slept is only shown once it has run.
        is_muted = find_sink((await look(remote)).sinks, name).is_muted
    except NoAnswerError as error:
        raise ToneError(f"PipeWire at {remote}: {error} (liken-audio doctor tells more)") from None
    except FileNotFoundError as error:
        raise ToneError(f"{error.filename} isn't installed: it comes with pipewire-bin") from None
    muted = "; the sink is muted, so nothing was heard" if is_muted else ""
    return f"played {tone.frequency_hz:g} Hz for {tone.seconds:g} s on {name}{muted}"


async def _play(remote: str, sink: SinkNode, path: str, tone: Tone) -> None:
    properties = f"{{ node.name={_STREAM} node.dont-fallback=true node.dont-move=true }}"
    options = [f"--target={sink.serial}", f"--properties={properties}"]
    process = await tool.start(remote, ["pw-play", *options, path])

    def is_linked(found: Census) -> bool:
        return found.is_linked(_STREAM, sink.id) or process.returncode is not None

    try:
        if not await look_until(is_linked, lambda: look(remote), LINK_SECONDS):
            raise ToneError(
                f"WirePlumber didn't link the tone to {sink.name} within {LINK_SECONDS:.0f} s:"
                " look whether it runs (liken-audio doctor)"
            )
        async with asyncio.timeout(tone.seconds + _END_SECONDS):
            _, errors = await process.communicate()
    except TimeoutError:
        raise ToneError(f"{sink.name} took the tone and doesn't play it to its end") from None
    finally:
        exit_code = await tool.end(process)
    if exit_code != 0:
        said = errors.decode("utf-8", "replace").strip()[-200:]
        raise ToneError(f"pw-play: {said or exit_code}")


@contextlib.contextmanager
def _memory_file(data: bytes) -> Iterator[str]:
    """A path that a child reads, on a machine where nothing may be written."""
    handle = os.memfd_create("tone.wav")
    try:
        with open(handle, "wb", closefd=False) as file:
            file.write(data)
        yield f"/proc/{os.getpid()}/fd/{handle}"
    finally:
        os.close(handle)
