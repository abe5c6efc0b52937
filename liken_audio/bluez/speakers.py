"""BlueZ's objects over time → the paired speakers, as cards of the graph.

What is published outlives what can be seen. Rules:

- A device is a speaker once it is paired and lists the A2DP sink. It is one by its address: on
  two adapters it is still one, seen through the object by which it can be reached best.
- While bluetoothd, or every adapter that it is paired with, is away, it stays, out of reach. An
  adapter that goes takes its devices' objects along, with or without their own signals.
- When an adapter is there and its object, or its pairing, isn't, for `UNPAIRED_SECONDS`, that
  pairing was removed; the speaker without any leaves. So its pods see it disconnected first, and
  an adapter or a daemon that goes, and takes its devices' objects along before itself, unpairs none.
- It has a microphone once it lists a headset profile while the sound server offers the other side;
  a sound server that restarts takes no microphone away.

Time is an argument, in seconds of any clock that never runs backwards.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from liken_audio.bluez.objects import A2DP_SINK, HEADSET_UUIDS, Adapter, Device, ObjectTree
from liken_audio.graph.model import (
    NO_CARD,
    Card,
    CardsSnapshot,
    Direction,
    Link,
    Pcm,
    Speaker,
)

UNPAIRED_SECONDS = 10.0

_PLAYBACK = Pcm(device=0, id="playback", direction=Direction.PLAYBACK, recipe=None)
_CAPTURE = Pcm(
    device=1, id="capture", direction=Direction.CAPTURE, channels=1, rate_hz=16_000, recipe=None
)


@dataclass(frozen=True, slots=True)
class Seen:
    """The speakers of one moment, and when to look again though nothing changes."""

    snapshot: CardsSnapshot
    look_again_at: float | None


@dataclass(slots=True)
class _Known:
    speaker: Speaker
    has_microphone: bool = False
    pairings: dict[str, float | None] = field(default_factory=dict)
    """Addresses of the adapters that it is paired with, for all we know, and since when that
    doesn't show though the adapter is there."""


@dataclass(frozen=True, slots=True)
class _Sight:
    device: Device
    adapter: Adapter

    @property
    def precedence(self) -> tuple[bool, bool, bool, bool]:
        """The better way to reach it is greater."""
        device, adapter = self.device, self.adapter
        is_up = adapter.is_powered
        return device.is_paired, is_up and device.is_connected, is_up, adapter.has_endpoints


class Speakers:
    """Remembers the paired speakers."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}

    def look(self, tree: ObjectTree | None, now: float) -> Seen:
        """Take what BlueZ shows now (None: it doesn't answer) and return all speakers."""
        adapters = {each.path: each for each in tree.adapters()} if tree else {}
        sights = _sights(tree, adapters)
        for address, its in sights.items():
            self._meet(address, its)
        if tree is None:
            self._lose()
        else:
            present = {adapter.address for adapter in adapters.values()}
            for address, known in list(self._known.items()):
                _follow(known, sights.get(address, ()), present, now)
                if not known.pairings:
                    del self._known[address]
        cards = tuple(_card(self._known[address]) for address in sorted(self._known))
        return Seen(CardsSnapshot(cards), self._next_look())

    def _meet(self, address: str, sights: Sequence[_Sight]) -> None:
        paired = [each for each in sights if each.device.is_paired]
        if address not in self._known and any(A2DP_SINK in e.device.uuids for e in paired):
            name = paired[0].device.name
            self._known[address] = _Known(Speaker(address=address, name=name, link=Link.AWAY))

    def _lose(self) -> None:
        for known in self._known.values():
            known.speaker = _out_of_reach(known.speaker, Link.NO_SERVICE)
            known.pairings = dict.fromkeys(known.pairings)

    def _next_look(self) -> float | None:
        """Return when the first pairing counts as removed that may be."""
        missing = [
            since
            for known in self._known.values()
            for since in known.pairings.values()
            if since is not None
        ]
        return min(missing) + UNPAIRED_SECONDS if missing else None


def best_path(tree: ObjectTree, address: str) -> str | None:
    """Return the object by which a paired device is reached now; None: there is none."""
    adapters = {each.path: each for each in tree.adapters()}
    sights = [s for s in _sights(tree, adapters).get(address, ()) if s.device.is_paired]
    if not sights:
        return None
    return max(sights, key=lambda each: each.precedence).device.path


def _sights(tree: ObjectTree | None, adapters: dict[str, Adapter]) -> dict[str, tuple[_Sight, ...]]:
    found: dict[str, list[_Sight]] = defaultdict(list)
    for device in tree.devices() if tree else ():
        adapter = adapters.get(device.adapter) or adapters.get(device.path.rpartition("/")[0])
        if adapter is not None:
            found[device.address].append(_Sight(device, adapter))
    return {address: tuple(sights) for address, sights in found.items()}


def _follow(known: _Known, sights: Sequence[_Sight], present: set[str], now: float) -> None:
    """Take in what is seen of a speaker now; without a pairing left it is one no more."""
    paired = {each.adapter.address: each for each in sights if each.device.is_paired}
    pairings = known.pairings | dict.fromkeys(paired)
    for adapter, since in pairings.items():
        is_missing = adapter in present and adapter not in paired
        pairings[adapter] = (now if since is None else since) if is_missing else None
    known.pairings = {
        adapter: since
        for adapter, since in pairings.items()
        if since is None or now < since + UNPAIRED_SECONDS
    }
    if not paired:
        is_unpaired = None not in known.pairings.values()
        link = Link.UNPAIRED if is_unpaired else Link.NO_ADAPTER
        known.speaker = _out_of_reach(known.speaker, link)
        return
    best = max(paired.values(), key=lambda each: each.precedence)
    known.speaker = _speaker(best, known.speaker)
    known.has_microphone |= bool(best.device.uuids & HEADSET_UUIDS and best.adapter.has_gateway)


def _speaker(sight: _Sight, before: Speaker) -> Speaker:
    device, adapter = sight.device, sight.adapter
    is_connected = adapter.is_powered and device.is_connected
    reached = Link.CONNECTED if is_connected else Link.AWAY
    return Speaker(
        address=device.address,
        # A device that is only known by its address may have told its name before.
        name=device.name if device.name != device.address else before.name,
        link=reached if adapter.is_powered else Link.ADAPTER_OFF,
        adapter=adapter.address,
        battery=device.battery if is_connected else None,
        has_absolute_volume=is_connected and device.has_absolute_volume,
        transport=device.transport if is_connected else "",
        has_endpoints=adapter.has_endpoints,
        is_blocked=device.is_blocked,
    )


def _out_of_reach(speaker: Speaker, link: Link) -> Speaker:
    return replace(
        speaker,
        link=link,
        battery=None,
        has_absolute_volume=False,
        transport="",
        has_endpoints=True,
        is_blocked=False,
    )


def _card(known: _Known) -> Card:
    speaker = known.speaker
    return Card(
        number=NO_CARD,
        id="",
        name=speaker.name,
        bus="bluetooth",
        path=speaker.address,
        speaker=speaker,
        is_present=speaker.link is Link.CONNECTED,
        pcms=(_PLAYBACK, _CAPTURE) if known.has_microphone else (_PLAYBACK,),
    )
