"""What to do for paired speakers, without being asked by a write: call them, repair what is known to help.

Pure: endpoints, wishes and the memory of earlier tries give actions, and the memory to come back
with. Four things are done, each with tries that lie further apart and are few where they hurt:

- A speaker whose Sink says `connect` is called while it is away: after 5 s, twice as long each
  time, 5 minutes at most, for ever; one call at a time, since a radio that pages does nothing else.
- A speaker that is connected with its profile off, or left in its headset's profile by a claim of
  the microphone that has ended, is switched to music: three times for a connection.
- A speaker that is connected without sound, or without music (BlueZ connects each profile once, and
  never what failed then), is called as it is, which connects what is missing: three times, 10 s to
  40 s apart. It isn't disconnected for that: some switch themselves off then.
- A sound server whose endpoints are lost is restarted once that has lasted 10 s: three times, 30 s
  to 2 minutes apart, no more until endpoints have been there for 10 minutes.

Nothing is done about what PipeWire says while PipeWire is lost.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from liken_audio.graph.endpoints import HEADSET, MUSIC
from liken_audio.graph.model import (
    BluetoothCard,
    Direction,
    Endpoint,
    Link,
    NodeSerial,
    Profile,
)

CONNECT_SECONDS = 5.0
MOST_CONNECT_SECONDS = 300.0
PROFILE_SECONDS = 3.0
"""How long a wrong profile must last: the session manager chooses one itself on connecting."""
MOST_PROFILE_TRIES = 3
SILENT_SECONDS = 10.0
"""How long a connected speaker must be without sound: a sound server needs a while to find it."""
MOST_SILENT_TRIES = 3
LOST_SECONDS = 10.0
"""How long endpoints must be missing: a sound server that starts has none for a few seconds."""
RESTART_SECONDS = 30.0
MOST_RESTARTS = 3
FORGIVEN_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Wish:
    """What is wanted of one speaker."""

    is_connected: bool = False
    """Keep it connected (`spec.connect`)."""
    has_microphone: bool = False
    """A claim holds its microphone, or is about to."""


@dataclass(frozen=True, slots=True)
class Connect:
    """Call a speaker; one that is connected, for the profiles that aren't."""

    address: str


@dataclass(frozen=True, slots=True)
class SwitchProfile:
    """Switch a connected speaker to another profile."""

    address: str
    card: BluetoothCard
    profile: Profile


@dataclass(frozen=True, slots=True)
class RestartSoundServer:
    """Restart what should have registered the endpoints."""

    addresses: tuple[str, ...]
    """Of the speakers that are out of reach for it."""


Action = Connect | SwitchProfile | RestartSoundServer


@dataclass(frozen=True, slots=True)
class Tries:
    """Earlier tries at one thing; times of the caller's clock."""

    count: int = 0
    next_at: float = 0.0
    serial: NodeSerial | None = None
    """The connection that they were for."""


@dataclass(frozen=True, slots=True)
class Memory:
    """All earlier tries."""

    calls: Mapping[str, Tries] = field(default_factory=dict)
    profiles: Mapping[str, Tries] = field(default_factory=dict)
    silent: Mapping[str, Tries] = field(default_factory=dict)
    restarts: Tries | None = None
    registered_at: float | None = None
    """Since when the endpoints are there again."""
    is_calling: bool = False
    """Whether a call is under way: there is one at a time."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now, what to remember, and when to look again though nothing changes."""

    actions: tuple[Action, ...]
    memory: Memory
    look_again_at: float | None


def plan(
    endpoints: Sequence[Endpoint],
    wishes: Mapping[str, Wish],
    memory: Memory,
    now: float,
    *,
    is_graph_lost: bool = False,
) -> Plan:
    """Decide for all speakers of the node. `now` is in seconds of a clock that never runs back."""
    sinks = {
        each.card.speaker.address: each
        for each in endpoints
        if each.card.speaker and each.direction is Direction.PLAYBACK
    }
    calls, connects = _calls(sinks, wishes, memory, now)
    profiles, silent = memory.profiles, memory.silent
    restarted = memory
    switches: tuple[Action, ...] = ()
    restarts: tuple[Action, ...] = ()
    if not is_graph_lost:
        profiles, switches = _profiles(sinks, wishes, memory.profiles, now)
        restarted, restarts = _restarts(sinks, memory, now)
        if not connects:
            silent, connects = _silent(sinks, wishes, memory, now)
    after = replace(restarted, calls=calls, profiles=profiles, silent=silent)
    return Plan((*restarts, *switches, *connects), after, _next_look(after, now))


def best_music(card: BluetoothCard) -> Profile | None:
    """Return the profile to play music with, None if it offers none now."""
    found = [each for each in card.profiles if each.is_available and each.name.startswith(MUSIC)]
    return min(found, key=lambda each: not each.name.startswith(MUSIC[0]), default=None)


def best_headset(card: BluetoothCard) -> Profile | None:
    """Return the profile that has the microphone, None if it offers none now."""
    found = [each for each in card.profiles if each.is_available and each.name.startswith(HEADSET)]
    return next(iter(found), None)


def _calls(
    sinks: Mapping[str, Endpoint],
    wishes: Mapping[str, Wish],
    memory: Memory,
    now: float,
) -> tuple[dict[str, Tries], tuple[Action, ...]]:
    after = {}
    due = []
    for address, endpoint in sinks.items():
        if not wishes.get(address, Wish()).is_connected or not _is_to_be_had(endpoint):
            continue
        after[address] = memory.calls.get(address) or Tries(next_at=now + CONNECT_SECONDS)
        if after[address].next_at <= now:
            due.append(address)
    if not due or memory.is_calling:
        return after, ()
    first = min(due, key=lambda address: (after[address].next_at, address))
    count = after[first].count + 1
    delay = min(MOST_CONNECT_SECONDS, CONNECT_SECONDS * 2.0 ** min(count - 1, 20))
    after[first] = Tries(count, now + delay)
    return after, (Connect(first),)


def _silent(
    sinks: Mapping[str, Endpoint],
    wishes: Mapping[str, Wish],
    memory: Memory,
    now: float,
) -> tuple[dict[str, Tries], tuple[Action, ...]]:
    after = {}
    due = []
    for address, endpoint in sinks.items():
        if not _is_silent(endpoint, wishes.get(address, Wish())):
            continue
        tries = memory.silent.get(address) or Tries(next_at=now + SILENT_SECONDS)
        after[address] = tries
        if tries.next_at <= now and tries.count < MOST_SILENT_TRIES:
            due.append(address)
    if not due or memory.is_calling:
        return after, ()
    first = min(due, key=lambda address: (after[address].next_at, address))
    count = after[first].count + 1
    after[first] = Tries(count, now + SILENT_SECONDS * 2.0**count)
    return after, (Connect(first),)


def _is_silent(endpoint: Endpoint, wish: Wish) -> bool:
    """Whether the speaker is connected and PipeWire has no device for it, or one without music."""
    speaker, card = endpoint.card.speaker, endpoint.bluetooth
    if speaker is None or speaker.link is not Link.CONNECTED or not speaker.has_endpoints:
        return False
    return card is None or (best_music(card) is None and not wish.has_microphone)


def _profiles(
    sinks: Mapping[str, Endpoint],
    wishes: Mapping[str, Wish],
    before: Mapping[str, Tries],
    now: float,
) -> tuple[dict[str, Tries], tuple[Action, ...]]:
    after = {}
    switches = []
    for address, endpoint in sinks.items():
        card = endpoint.bluetooth
        has_microphone = wishes.get(address, Wish()).has_microphone
        music = _wrong_profile(card, has_microphone=has_microphone)
        if card is None:
            continue
        known = before.get(address)
        if known is None or known.serial != card.serial:
            known = Tries(serial=card.serial) if music is None else _first_try(card, now)
        elif music is not None and known.count == 0 and known.next_at == 0.0:
            known = _first_try(card, now)
        elif music is None and known.count == 0:
            known = Tries(serial=card.serial)
        if music is not None and known.next_at <= now and known.count < MOST_PROFILE_TRIES:
            switches.append(SwitchProfile(address, card, music))
            delay = PROFILE_SECONDS * 2.0 ** (known.count + 1)
            known = Tries(known.count + 1, now + delay, card.serial)
        after[address] = known
    return after, tuple(switches)


def _first_try(card: BluetoothCard, now: float) -> Tries:
    return Tries(next_at=now + PROFILE_SECONDS, serial=card.serial)


def _wrong_profile(card: BluetoothCard | None, *, has_microphone: bool) -> Profile | None:
    """Return the profile to switch to; None where the one that is on is right, or nothing is better."""
    if card is None or has_microphone:
        return None
    is_wrong = card.profile in {"", "off"} or card.profile.startswith(HEADSET)
    return best_music(card) if is_wrong else None


def _restarts(
    sinks: Mapping[str, Endpoint], memory: Memory, now: float
) -> tuple[Memory, tuple[Action, ...]]:
    reachable = (Link.AWAY, Link.CONNECTED)
    lost = tuple(
        address
        for address, endpoint in sinks.items()
        if endpoint.card.speaker
        and not endpoint.card.speaker.has_endpoints
        and endpoint.card.speaker.link in reachable
    )
    tries = memory.restarts
    if not lost:
        since = now if memory.registered_at is None else memory.registered_at
        is_forgiven = tries is None or tries.count == 0 or now >= since + FORGIVEN_SECONDS
        kept = None if is_forgiven else tries
        return replace(memory, restarts=kept, registered_at=since), ()
    if tries is None or memory.registered_at is not None:
        count = tries.count if tries else 0
        tries = Tries(count, max(now + LOST_SECONDS, tries.next_at if tries else 0.0))
    actions: tuple[Action, ...] = ()
    if tries.next_at <= now and tries.count < MOST_RESTARTS:
        tries = Tries(tries.count + 1, now + RESTART_SECONDS * 2.0**tries.count)
        actions = (RestartSoundServer(lost),)
    return replace(memory, restarts=tries, registered_at=None), actions


def _next_look(memory: Memory, now: float) -> float | None:
    moments = [tries.next_at for tries in memory.calls.values()]
    moments += [
        tries.next_at for tries in memory.profiles.values() if tries.count < MOST_PROFILE_TRIES
    ]
    moments += [
        tries.next_at for tries in memory.silent.values() if tries.count < MOST_SILENT_TRIES
    ]
    if memory.restarts is not None and memory.restarts.count < MOST_RESTARTS:
        moments.append(memory.restarts.next_at)
    return min((moment for moment in moments if moment > now), default=None)


def _is_to_be_had(endpoint: Endpoint) -> bool:
    """Whether it is away, and a call may bring it."""
    speaker = endpoint.card.speaker
    return speaker is not None and speaker.link is Link.AWAY and not speaker.is_blocked
