"""Place and reading → the Card: which channels each PCM has, and how PipeWire is to play it.

- A PCM with channel maps has the widest of them, up to eight channels. One without has two, or
  the nearest number that its hardware allows.
- A PCM with a monitor has as many channels as the monitor takes, always an even number of them.
- What can't be known now (no monitor answers, a program has the PCM open) stays as it was, so that
  a screen that sleeps changes nothing; before the first time it is taken to be the usual.
- The rate is left to PipeWire (48 kHz where the hardware takes it), unless it is known that the
  hardware doesn't.

The recipe names the PCM by the card's number of this boot (`hw:0,3`): a card that comes back under
another number gets its node made anew.
"""

import dataclasses
from collections.abc import Sequence

from liken_audio.alsa import reader
from liken_audio.alsa.elements import ChannelMaps, EldBlock
from liken_audio.alsa.kernel import PcmInfo
from liken_audio.alsa.reader import Reading
from liken_audio.alsa.sysfs import Place
from liken_audio.graph import eld
from liken_audio.graph.model import (
    Card,
    CardNumber,
    Control,
    Direction,
    Eld,
    Jack,
    NodeRecipe,
    Pcm,
)

PATH_PROPERTY = "api.alsa.path"
"""Property of a node that names the PCM it plays to."""
MAX_CHANNELS = 8

_FACTORIES = {
    Direction.PLAYBACK: "api.alsa.pcm.sink",
    Direction.CAPTURE: "api.alsa.pcm.source",
}
_USUAL_CHANNELS = 2
_USUAL_RATE_HZ = 48_000
_UNNAMED = frozenset({"UNK", "NA"})


@dataclasses.dataclass(frozen=True, slots=True)
class _Form:
    """Channels and rate of a PCM; no positions: the usual ones."""

    channels: int = _USUAL_CHANNELS
    rate_hz: int = _USUAL_RATE_HZ
    positions: Sequence[str] = ()
    is_known: bool = True


def card(place: Place, reading: Reading, before: Card | None = None) -> Card:
    """Return the card; `before` is what it was when it was read last."""
    found = reading.elements.values()
    return Card(
        number=CardNumber(place.number),
        id=reading.info.id,
        driver=reading.info.driver,
        name=reading.info.name,
        bus=place.bus,
        path=place.path,
        usb=place.usb,
        pcms=tuple(_pcm(place.number, one, reading, before) for one in reading.pcms),
        jacks=tuple(one for one in found if isinstance(one, Jack)),
        controls=tuple(one for one in found if isinstance(one, Control)),
    )


def _pcm(number: int, pcm: reader.Pcm, reading: Reading, before: Card | None) -> Pcm:
    info = pcm.info
    block = _eld(pcm, reading)
    form = _form(pcm, reading)
    if block is not None:
        form = _screen_form(form, eld.decode(block))
    last = None if form.is_known else _last(info, before)
    if last is not None:
        return dataclasses.replace(last, eld=block)
    return Pcm(
        device=info.device,
        id=info.id,
        name=info.name,
        direction=info.direction,
        channels=form.channels,
        rate_hz=form.rate_hz,
        is_form_known=form.is_known,
        eld=block,
        recipe=_recipe(number, pcm, form),
    )


def _eld(pcm: reader.Pcm, reading: Reading) -> bytes | None:
    if pcm.info.direction is Direction.CAPTURE:
        return None
    blocks = (
        one.data
        for one in reading.elements.values()
        if isinstance(one, EldBlock) and one.device == pcm.info.device
    )
    return next(blocks, None)


def _form(pcm: reader.Pcm, reading: Reading) -> _Form:
    for one in reading.elements.values():
        if (
            isinstance(one, ChannelMaps)
            and (one.device, one.direction) == (pcm.info.device, pcm.info.direction)
            and one.maps
        ):
            return _mapped_form(one.maps)
    if pcm.hardware is None:
        return _Form(is_known=False)
    hardware = pcm.hardware
    return _Form(
        channels=min(max(_USUAL_CHANNELS, hardware.min_channels), hardware.max_channels) or 1,
        rate_hz=min(max(_USUAL_RATE_HZ, hardware.min_rate_hz), hardware.max_rate_hz)
        or _USUAL_RATE_HZ,
    )


def _mapped_form(maps: Sequence[Sequence[str]]) -> _Form:
    """Take the widest map that isn't too wide; of a card with wide ones alone, the narrowest."""
    fitting = [one for one in maps if 0 < len(one) <= MAX_CHANNELS]
    chosen = max(fitting, key=len) if fitting else min(maps, key=len)
    is_named = len(set(chosen)) == len(chosen) and not _UNNAMED.intersection(chosen)
    return _Form(channels=max(len(chosen), 1), positions=chosen if is_named else ())


def _screen_form(form: _Form, monitor: Eld | None) -> _Form:
    """Narrow a screen's PCM to what its monitor takes; positions are HDMI's own then."""
    if monitor is None:
        return _Form(is_known=False)
    widest = form.channels if form.is_known else MAX_CHANNELS
    even = min(monitor.lpcm_channels or _USUAL_CHANNELS, widest) // 2 * 2
    rate_hz = min(monitor.lpcm_max_rate_hz or _USUAL_RATE_HZ, _USUAL_RATE_HZ)
    return _Form(channels=max(even, _USUAL_CHANNELS), rate_hz=rate_hz)


def _last(info: PcmInfo, before: Card | None) -> Pcm | None:
    """Return the PCM as it was, if what identifies it is the same."""
    same = (info.device, info.direction, info.id)
    pcms = before.pcms if before else ()
    return next((one for one in pcms if (one.device, one.direction, one.id) == same), None)


def pcm_file(recipe: NodeRecipe) -> str | None:
    """Return the name of the device file that a node of this recipe opens; None: it opens none."""
    path = dict(recipe.properties).get(PATH_PROPERTY, "")
    number, _, device = path.removeprefix("hw:").partition(",")
    if not (number.isdecimal() and device.isdecimal()):
        return None
    return f"pcmC{number}D{device}{'p' if recipe.factory.endswith('sink') else 'c'}"


def _recipe(number: int, pcm: reader.Pcm, form: _Form) -> NodeRecipe:
    properties = [(PATH_PROPERTY, f"hw:{number},{pcm.info.device}")]
    if form.positions:
        properties.append(("audio.position", f"[ {' '.join(form.positions)} ]"))
    if form.rate_hz != _USUAL_RATE_HZ:
        properties.append(("audio.rate", str(form.rate_hz)))
    return NodeRecipe(factory=_FACTORIES[pcm.info.direction], properties=tuple(properties))
