"""BlueZ's objects over time → the paired speakers, as cards of the graph.

What is published outlives what can be seen. Rules:

- A device is a speaker once it is paired and lists the A2DP sink. It is one by its address: on
  two adapters it is still one, seen through the object by which it can be reached best.
- While bluetoothd, or every adapter that it is paired with, is away, it stays, out of reach. An
  adapter that goes takes its devices' objects along, with or without their own signals.
- When an adapter is there and its object, or its pairing, isn't, that pairing was removed. The
  speaker without any leaves `UNPAIRED_SECONDS` later, so that its pods see it disconnected first.
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
    pairings: set[str] = field(default_factory=set)
    """Addresses of the adapters that it is paired with, for all we know."""
    leaves_at: float | None = None


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
        present = {adapter.address for adapter in adapters.values()}
        for address, known in list(self._known.items()):
            self._update(known, sights.get(address, ()), present, is_served=tree is not None)
            self._time(address, known, now)
        waiting = [each.leaves_at for each in self._known.values() if each.leaves_at is not None]
        cards = tuple(_card(self._known[address]) for address in sorted(self._known))
        return Seen(CardsSnapshot(cards), min(waiting, default=None))

    def _meet(self, address: str, sights: Sequence[_Sight]) -> None:
        paired = [each for each in sights if each.device.is_paired]
        if address not in self._known and any(A2DP_SINK in e.device.uuids for e in paired):
            name = paired[0].device.name
            self._known[address] = _Known(Speaker(address=address, name=name, link=Link.AWAY))

    def _update(
        self, known: _Known, sights: Sequence[_Sight], present: set[str], *, is_served: bool
    ) -> None:
        if not is_served:
            known.speaker = _out_of_reach(known.speaker, Link.NO_SERVICE)
            return
        paired = {each.adapter.address: each for each in sights if each.device.is_paired}
        known.pairings = (known.pairings - present) | paired.keys()
        if not paired:
            link = Link.NO_ADAPTER if known.pairings else Link.UNPAIRED
            known.speaker = _out_of_reach(known.speaker, link)
            return
        best = max(paired.values(), key=lambda each: each.precedence)
        known.speaker = _speaker(best, known.speaker)
        known.has_microphone |= bool(best.device.uuids & HEADSET_UUIDS and best.adapter.has_gateway)

    def _time(self, address: str, known: _Known, now: float) -> None:
        if known.speaker.link is Link.NO_SERVICE:
            return
        if known.speaker.link is not Link.UNPAIRED:
            known.leaves_at = None
        elif known.leaves_at is None:
            known.leaves_at = now + UNPAIRED_SECONDS
        elif known.leaves_at <= now:
            del self._known[address]


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
    )


def _out_of_reach(speaker: Speaker, link: Link) -> Speaker:
    return replace(
        speaker,
        link=link,
        battery=None,
        has_absolute_volume=False,
        transport="",
        has_endpoints=True,
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
