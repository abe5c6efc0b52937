"""Bluetooth speakers: codecs and microphones switched for claims and Sinks, and what keeps them going.

What is to be done unasked (calls to a speaker that is away, a profile that is off, endpoints that are
lost) is decided by `resources.speakers`. A switch makes the speaker's node anew: it is waited for,
for `SWITCH_SECONDS`, by whoever asked, and what doesn't come up is put back as it was.
"""

import asyncio
import contextlib
import errno
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import structlog

from liken_audio.controllers.object_writer import EventSink
from liken_audio.controllers.ports import AudioWriter, ObjectCache, SessionManager, SpeakerCaller
from liken_audio.graph.device_graph import DeviceGraph
from liken_audio.graph.endpoints import endpoints
from liken_audio.graph.model import (
    BluetoothCard,
    Direction,
    Endpoint,
    NodeSerial,
    Source,
    SwitchesSnapshot,
)
from liken_audio.resources import v1alpha1
from liken_audio.resources.conditions import Transition
from liken_audio.resources.speakers import (
    Connect,
    Memory,
    RestartSoundServer,
    SwitchProfile,
    Wish,
    best_headset,
    plan,
)

SWITCH_SECONDS = 10.0
"""How long a node may take to be made anew."""
CLAIM_SECONDS = 45.0
"""How long a microphone that was switched on waits for its claim to be prepared."""
PASS_GAP_SECONDS = 0.2

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Partners:
    """Whom the keeper of speakers calls."""

    audio: AudioWriter
    caller: SpeakerCaller
    session_manager: SessionManager
    sinks: ObjectCache
    events: EventSink


class Speakers:
    """Looks after the speakers of one node while `run` runs; the switches work without it."""

    def __init__(self, graph: DeviceGraph, node_name: str, partners: Partners) -> None:
        self._graph = graph
        self._node_name = node_name
        self._partners = partners
        self._wake = asyncio.Event()
        self._changed = asyncio.Event()
        self._locks: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._switching: set[str] = set()
        self._memory = Memory()
        self._microphones: dict[str, float] = {}
        """Until when a microphone stays on though no claim holds it yet."""
        self._call: asyncio.Task[None] | None = None
        self.calls = 0
        """Calls to speakers that were away."""
        self.switches = 0
        """Profiles and codecs that were switched."""
        self.restarts = 0
        """Times that the session manager was to be restarted."""
        self.errors = 0
        graph.subscribe(self._graph_changed)
        partners.sinks.subscribe(lambda _key: self._wake.set())

    async def run(self) -> None:
        """Look after the speakers for ever."""
        clock = asyncio.get_running_loop().time
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._wake.clear()
                again_at = self._look(tasks, clock())
                await asyncio.sleep(PASS_GAP_SECONDS)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(again_at):
                        await self._wake.wait()

    async def switch_codec(self, address: str, codec: str) -> None:
        """Satisfies `ports.SpeakerSwitcher`."""
        async with self._locks[address]:
            card = self._card(address)
            if card.codec == codec:
                return
            with self._told(address):
                await self._switch_or_back(address, codec, card)

    async def switch_microphone_on(self, address: str) -> None:
        """Have a microphone's node; fine if it is there. `OSError` says why it can't be had.

        Playback and microphone exclude each other in full quality: while anybody plays nothing is
        switched.
        """
        self._microphones[address] = asyncio.get_running_loop().time() + CLAIM_SECONDS
        async with self._locks[address]:
            if _has_node(self._endpoint(address, Direction.CAPTURE)):
                return
            card = self._card(address)
            headset = best_headset(card)
            if headset is None:
                raise OSError(errno.ENODEV, f"{address} offers no headset profile now")
            sink = self._endpoint(address, Direction.PLAYBACK)
            if sink is not None and sink.node is not None and sink.node.state == "running":
                raise OSError(
                    errno.EBUSY,
                    f"{address} plays music, and its microphone would end that: wait until nobody"
                    " plays to it, or stop what does",
                )
            with self._told(address):
                await self._partners.audio.set_profile(card, headset)
                self.switches += 1
                await self._until(
                    lambda: _has_node(self._endpoint(address, Direction.CAPTURE)),
                    f"{address}: its microphone",
                )

    @contextlib.contextmanager
    def _told(self, address: str) -> Iterator[None]:
        """Tell all others that the speaker's node is away on purpose, and for how long."""
        self._switching.add(address)
        self._tell()
        try:
            yield
        finally:
            self._switching.discard(address)
            self._tell()

    def _tell(self) -> None:
        self._graph.replace(Source.SPEAKERS, SwitchesSnapshot(tuple(sorted(self._switching))))

    async def _switch_or_back(self, address: str, codec: str, card: BluetoothCard) -> None:
        before = card.codec
        try:
            await self._switch(address, codec, card)
        except (OSError, TimeoutError) as error:
            if self._offers(address, before):
                with contextlib.suppress(OSError, TimeoutError):
                    await self._switch(address, before, self._card(address))
            raise OSError(errno.EIO, f"{error}; back to {before or 'what it was'}") from error

    async def _switch(self, address: str, codec: str, card: BluetoothCard) -> None:
        old = self._endpoint(address, Direction.PLAYBACK)
        serial = old.node.serial if old and old.node else None
        await self._partners.audio.set_codec(card, codec)
        self.switches += 1
        await self._until(
            lambda: _plays_by(self._endpoint(address, Direction.PLAYBACK), codec, serial),
            f"{address}: its node with codec {codec}",
        )
        _log.info("codec switched", address=address, codec=codec)

    async def _until(self, is_so: Callable[[], bool], what: str) -> None:
        try:
            async with asyncio.timeout(SWITCH_SECONDS):
                while not is_so():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise OSError(
                errno.ETIMEDOUT, f"{what} isn't there after {SWITCH_SECONDS:.0f} s"
            ) from None

    def _card(self, address: str) -> BluetoothCard:
        for card in self._graph.view().bluetooth:
            if card.address == address:
                return card
        raise OSError(errno.ENOTCONN, f"{address} isn't connected")

    def _offers(self, address: str, codec: str) -> bool:
        cards = {card.address: card for card in self._graph.view().bluetooth}
        return address in cards and codec in dict(cards[address].codecs)

    def _endpoint(self, address: str, direction: Direction) -> Endpoint | None:
        for each in endpoints(self._graph.view(), self._node_name):
            speaker = each.card.speaker
            if speaker and speaker.address == address and each.direction is direction:
                return each
        return None

    def _graph_changed(self) -> None:
        self._wake.set()
        self._changed.set()

    def _look(self, tasks: asyncio.TaskGroup, now: float) -> float | None:
        view = self._graph.view()
        found = [each for each in endpoints(view, self._node_name) if each.card.speaker]
        is_lost = Source.PIPEWIRE in view.lost
        is_calling = self._call is not None and not self._call.done()
        memory = replace(self._memory, is_calling=is_calling)
        decided = plan(found, self._wishes(found, now), memory, now, is_graph_lost=is_lost)
        self._memory = decided.memory
        for action in decided.actions:
            match action:
                case Connect(address=address):
                    self._call = tasks.create_task(self._connect(address))
                case SwitchProfile():
                    tasks.create_task(self._switch_profile(action))
                case RestartSoundServer():
                    tasks.create_task(self._restart(action))
        return min(
            (when for when in (decided.look_again_at, *self._microphones.values()) if when),
            default=None,
        )

    def _wishes(self, found: list[Endpoint], now: float) -> Mapping[str, Wish]:
        stored = self._partners.sinks.objects()
        held = {name for hold in self._graph.view().holds for name in hold.devices}
        self._microphones = {a: until for a, until in self._microphones.items() if until > now}
        wishes: dict[str, Wish] = {}
        for each in found:
            address = each.card.path
            before = wishes.get(address, Wish())
            is_microphone = each.direction is Direction.CAPTURE
            has_microphone = address in self._microphones or (is_microphone and each.name in held)
            is_connected = before.is_connected
            if not is_microphone:
                spec, _ = v1alpha1.decode_spec(stored.get(each.name) or {})
                is_connected = bool(spec.is_connect_wanted)
            wishes[address] = Wish(is_connected, before.has_microphone or has_microphone)
        return wishes

    async def _connect(self, address: str) -> None:
        self.calls += 1
        try:
            await self._partners.caller.connect(address)
        except (OSError, TimeoutError) as error:
            _log.debug("a speaker doesn't answer", address=address, reason=str(error))
        else:
            _log.info("a speaker was called and is connected", address=address)
        finally:
            self._wake.set()

    async def _switch_profile(self, action: SwitchProfile) -> None:
        async with self._locks[action.address]:
            try:
                await self._partners.audio.set_profile(action.card, action.profile)
            except (OSError, TimeoutError) as error:
                self.errors += 1
                _log.warning("profile can't be switched", address=action.address, error=str(error))
            else:
                self.switches += 1
                _log.info("profile", address=action.address, profile=action.profile.name)

    async def _restart(self, action: RestartSoundServer) -> None:
        self.restarts += 1
        try:
            await self._partners.session_manager.restart()
            message = "WirePlumber is restarted: it had lost its Bluetooth endpoints"
        except OSError as error:
            self.errors += 1
            message = (
                f"WirePlumber has lost its Bluetooth endpoints and can't be restarted: {error}"
            )
        _log.warning(message, addresses=action.addresses)
        told = Transition(is_warning=True, reason="EndpointsLost", message=message)
        stored = self._partners.sinks.objects()
        for each in endpoints(self._graph.view(), self._node_name):
            if each.card.path in action.addresses and each.name in stored:
                self._partners.events.record(stored[each.name], told)


def _has_node(endpoint: Endpoint | None) -> bool:
    return endpoint is not None and endpoint.node is not None and endpoint.node.state != "error"


def _plays_by(endpoint: Endpoint | None, codec: str, old: NodeSerial | None) -> bool:
    if endpoint is None or endpoint.node is None or endpoint.bluetooth is None:
        return False
    node = endpoint.node
    is_new = node.serial != old and node.state != "error"
    return is_new and endpoint.bluetooth.codec == codec
