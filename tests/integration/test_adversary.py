"""A workload that does all it can with its claim's sockets hears, harms and learns nothing.

`test_isolation.py` has what permissions refuse. Here is what they don't cover: what a client may say
of its own streams, how it says it, and how much. Each attack is made while another claim plays on
another sink, whose sound is recorded and measured: it must be whole. All is real, as there.
"""

import contextlib
import mmap
import os
import re
import select
import shlex
import socket
import struct
import threading
import time
import wave
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from liken_audio.dra.claims import ClaimedDevice
from liken_audio.graph.model import Direction
from liken_audio.sockets import protocol
from liken_audio.sockets.gate import MOST_CONNECTIONS
from liken_audio.sockets.pulse import MOST_MEMORY
from liken_audio.sockets.screen import LARGEST_MESSAGE, MOST_OBJECTS
from tests.builders import claimed_device
from tests.harness.claim_site import ClaimSite, SiteClaim, record_command
from tests.harness.processes import HarnessError, Program, Workspace, wait_until
from tests.harness.raw_client import (
    CORE,
    CREATE_OBJECT,
    HELLO,
    SYNC,
    RawClient,
    dictionary,
    is_ready_within,
    number,
    text,
)
from tests.harness.sound_stack import SoundStack
from tests.harness.tone import RATE_HZ
from tests.harness.wiretap import USE_BUFFERS, Wiretap

SINK, OTHER_SINK, MIC = "tv", "headphones", "mic"
OWN_HZ, OTHER_HZ, MIC_HZ = 440, 1000, 1500
PLAY = ("pw-play", f"/sounds/{OWN_HZ}.wav")
SECONDS = 45
NODE_UPDATE, PORT_BUFFERS, SET_ACTIVE = 2, 6, 4
MEGABYTE = 1024 * 1024


@pytest.fixture(scope="module")
def shared_site() -> Iterator[ClaimSite]:
    """One node for all: two sinks, and a microphone that always hears a tone."""
    with Workspace("test") as made, SoundStack(made.path / "sound") as stack:
        for name in (SINK, OTHER_SINK):
            stack.make_null_node(name, device=name)
        stack.make_null_node(MIC, "Audio/Source/Virtual", device=MIC)
        with ClaimSite(made.path / "site", stack) as running:
            for each in (OWN_HZ, OTHER_HZ, MIC_HZ):
                lengthen(running.tone(each, 1), seconds=300)
            running.speak_into(MIC, MIC_HZ)
            yield running


def lengthen(file: Path, seconds: int) -> None:
    """Repeat a sound that is one second of whole periods."""
    with wave.open(str(file), "rb") as reader:
        parameters, second = reader.getparams(), reader.readframes(RATE_HZ)
    with wave.open(str(file), "wb") as writer:
        writer.setparams(parameters)
        for _ in range(seconds):
            writer.writeframes(second)


@pytest.fixture
def site(shared_site: ClaimSite) -> Iterator[ClaimSite]:
    """The node, without what a test left; PipeWire and WirePlumber have outlived the test."""
    daemons = (shared_site.stack.pipewire, shared_site.stack.wireplumber, shared_site.claim_sockets)
    yield shared_site
    shared_site.clear()
    for daemon in daemons:
        daemon.check()


def sink(**changes: Any) -> ClaimedDevice:
    return claimed_device(**({"device": SINK} | changes))


def microphone(**changes: Any) -> ClaimedDevice:
    fields = {"device": MIC, "request": "in", "direction": Direction.CAPTURE}
    return claimed_device(**(fields | changes))


@contextmanager
def another_claim_plays(
    site: ClaimSite, *, on: str = OTHER_SINK, share_id: str | None = None, hz: int = OTHER_HZ
) -> Iterator[Program]:
    """Another claim's player, all of whose sound must be heard, without a gap and at its pitch.

    How pure it is isn't asked: a test machine's clicks come of its load.
    """
    claim = site.prepare(claimed_device(device=on, share_id=share_id), name="victim")
    player = site.start_in(claim, "pw-play", "-P", "{ node.name=victim }", f"/sounds/{hz}.wav")
    wait_until(lambda: ("victim", on) in site.links(), "the victim", SECONDS, [player])
    recorder = site.recorder(on)
    recorder.start()
    begun = time.monotonic()
    wait_until(lambda: recorder.loud_seconds() > 0.1, "the victim's sound", SECONDS, [player])
    yield player
    wait_until(lambda: time.monotonic() - begun > 1.5, "enough to measure", SECONDS)
    player.check()
    heard_seconds = time.monotonic() - begun
    heard = recorder.stop()
    assert heard.frequency_hz == pytest.approx(hz, rel=0.02), str(heard)
    assert heard.seconds > heard_seconds - 1, f"{heard} of {heard_seconds:.1f} s"
    player.kill()


def drivers(site: ClaimSite) -> dict[str, int | None]:
    """By whose clock each node runs, by name: an id."""
    return {name: info["props"].get("node.driver-id") for name, info in site.stack.nodes().items()}


def descriptors_of(program: Program) -> dict[str, str]:
    """What each descriptor of a process is."""
    found = {}
    for path in Path(f"/proc/{program.pid}/fd").iterdir():
        try:
            found[path.name] = str(path.readlink())
        except FileNotFoundError:
            continue
    return found


def memory_of(pid: int) -> int:
    """Resident bytes of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * mmap.PAGESIZE


def seconds_to_get_in(claim: SiteClaim) -> float:
    """How long a client of a claim waits for all that it may see."""
    begun = time.monotonic()
    with RawClient(claim.socket) as client:
        client.hello()
        client.settle(SECONDS)
        assert {kind for _, kind in client.globals()} >= {"Core", "Client", "Factory"}
    return time.monotonic() - begun


# What is learned.


def test_all_that_a_client_ever_hears_is_of_its_own_claim(site: ClaimSite) -> None:
    claim = site.prepare(sink(), name="curious", namespace="spies")
    with another_claim_plays(site), RawClient(claim.socket) as spy:
        spy.hello()
        spy.settle()
        for object_id in range(100):
            for interface in ("Core", "Client", "Node", "Factory"):
                spy.bind(object_id, interface)
        spy.settle(SECONDS)
        heard = set().union(*(message.words() for message in spy.heard))
    secrets = re.compile(
        f"{OTHER_SINK}|{MIC}|victim|pw-play|wireplumber|WirePlumber|claim-sockets|sounds|"
        f"{OTHER_HZ}\\.wav|{re.escape(str(site.claims_dir))}"
    )
    assert not [each for each in heard if secrets.search(each)]
    keys = {each for each in heard if re.fullmatch(r"[a-z-]+(\.[a-z0-9-]+)+", each)}
    assert keys <= KNOWN_KEYS, sorted(keys - KNOWN_KEYS)
    assert spy_kinds(spy) == ["Client", "Core", "Factory", "Node"]


KNOWN_KEYS = {
    # The daemon and its settings.
    "application.language", "application.name", "application.process.binary",
    "application.process.host", "application.process.id", "application.process.user",
    "clock.power-of-two-quantum", "clock.quantum-limit", "config.name", "core.daemon", "core.name",
    "cpu.max-align", "cpu.vm.name", "default.clock.max-quantum", "default.clock.min-quantum",
    "default.clock.quantum", "default.clock.quantum-floor", "default.clock.quantum-limit",
    "default.clock.rate", "default.video.height", "default.video.rate.denom",
    "default.video.rate.num", "default.video.width", "link.max-buffers", "log.level",
    "mem.allow-mlock", "mem.warn-mlock", "settings.check-quantum", "settings.check-rate",
    "pipewire.conf",
    # The client itself.
    "pipewire.access", "pipewire.access.effective", "pipewire.protocol", "pipewire.sec.app-id",
    "pipewire.sec.audio.liken.sh.reach", "pipewire.sec.audio.liken.sh.server",
    "pipewire.sec.engine", "pipewire.sec.gid", "pipewire.sec.instance-id", "pipewire.sec.label",
    "pipewire.sec.pid", "pipewire.sec.socket", "pipewire.sec.uid", "audio.liken.sh",
    # The factory of streams, and the claimed node.
    "factory.id", "factory.name", "factory.type.name", "factory.type.version", "object.id",
    "object.serial", "module.id", "audio.liken.sh.device", "audio.position", "library.name",
    "media.class", "node.driver", "node.loop.name", "node.name", "node.driver-id", "object.linger",
    "port.group", "priority.session", "support.null-audio-sink", "audio.adapt.follower",
    "data-loop.0", "stream.0",
}  # fmt: skip
"""Properties of what a claim's client may see, and values that look like one."""


def spy_kinds(client: RawClient) -> list[str]:
    return sorted(kind for _, kind in client.globals())


def test_the_memory_that_a_stream_shares_holds_no_other_stream_s_sound(site: ClaimSite) -> None:
    ours, others = site.prepare(sink(share_id="a")), site.prepare(sink(share_id="b"))
    with (
        another_claim_plays(site),
        Wiretap(site.out / "ours", ours.socket) as tap,
        Wiretap(site.out / "others", others.socket) as other_tap,
    ):
        for claim, at in ((ours, "ours"), (others, "others")):
            site.start_in(claim, "env", f"PIPEWIRE_REMOTE=/out/{at}", *PLAY)
        wait_until(lambda: len(other_tap.memories()) >= 5, "streams", SECONDS)
        wait_until(lambda: len(tap.memories()) >= 5, "streams", SECONDS)
        common = tap.memories().keys() & other_tap.memories().keys()
        sizes = sorted(tap.memories()[each][1] for each in common)
    # Of the shared sink itself: when it ran, in 2312 bytes. No buffer.
    assert all(size < 4096 for size in sizes), sizes


# Streams that say what would change others.

REACHING_OUT = [
    "node.sync=true node.driver=true priority.driver=900000 node.always-process=true",
    "node.sync=true node.force-quantum=16",
    "node.sync=true node.force-rate=8000 node.lock-rate=true",
    "node.sync=true node.group=pipewire.freewheel",
    "node.group=pipewire.dummy node.link-group=pipewire.dummy node.sync-group=group.sync.0",
    "node.passive=true node.exclusive=true node.trigger=true node.transport=false",
    "stream.dont-remix=true channelmix.disable=true stream.monitor=true node.latency=1/48000",
]


@pytest.mark.parametrize("properties", REACHING_OUT, ids=lambda each: each.partition(" ")[2][:20])
def test_no_property_of_a_stream_disturbs_another_claim_s_sound(
    site: ClaimSite, properties: str
) -> None:
    claim = site.prepare(sink())
    with another_claim_plays(site):
        before = drivers(site)[OTHER_SINK]
        player = site.start_in(claim, PLAY[0], "-P", f"{{ {properties} }}", PLAY[1])
        wait_until(lambda: ("pw-play", SINK) in site.links(), "the stream", SECONDS, [player])
        time.sleep(1)  # for what it does to be heard
        after = drivers(site)
        assert after[OTHER_SINK] == before
        assert after["victim"] != after["pw-play"]
        assert site.stack.nodes()[SINK]["props"].get("node.driver-id") in {
            None,
            node_id(site, SINK),
        }


def node_id(site: ClaimSite, name: str) -> int:
    return int(site.stack.nodes()[name]["props"]["object.id"])


def test_pulseaudio_s_clients_disturb_no_other_claim_s_sound_either(site: ClaimSite) -> None:
    claim = site.prepare(sink())
    properties = [f"--property={each}" for each in REACHING_OUT[0].split()]
    with another_claim_plays(site):
        player = site.start_in(claim, "paplay", *properties, PLAY[1])
        wait_until(lambda: ("paplay", SINK) in site.links(), "the stream", SECONDS, [player])
        time.sleep(1)
        assert drivers(site)["victim"] != drivers(site)["paplay"]


def test_a_node_that_changes_its_properties_later_disturbs_nobody(site: ClaimSite) -> None:
    claim = site.prepare(sink())
    with another_claim_plays(site), RawClient(claim.socket) as shifty:
        before = drivers(site)["victim"]
        shifty.hello()
        shifty.settle()
        node = make_node(shifty, {"node.name": "shifty", "media.class": "Stream/Output/Audio"})
        wanted = dict(each.split("=") for each in REACHING_OUT[0].split())
        update(shifty, node, wanted | {"client.id": "0", "object.serial": "1"})
        shifty.call(node, SET_ACTIVE, protocol._pod(2, struct.pack("=i", 1)))
        shifty.settle()
        wait_until(lambda: "shifty" in site.stack.nodes(), "its node", SECONDS)
        posed = site.stack.nodes()["shifty"]["props"]
        assert {key: value for key, value in posed.items() if key in wanted} == {}
        assert str(posed["client.id"]) != "0"
        time.sleep(0.5)
        assert drivers(site)["victim"] == before


def make_node(client: RawClient, properties: Mapping[str, str]) -> int:
    proxy = client._new_id()
    kind = text("PipeWire:Interface:ClientNode")
    fields = [text("client-node"), kind, number(6), dictionary(properties), number(proxy)]
    client.call(CORE, CREATE_OBJECT, *fields)
    return proxy


def update(client: RawClient, node: int, properties: Mapping[str, str]) -> None:
    """What a node says when its properties change."""
    pairs = [text(part) for pair in properties.items() for part in pair]
    props_changed, none = protocol._pod(5, struct.pack("=q", 2)), protocol._pod(5, bytes(8))
    info = protocol._struct(
        number(0), number(1), props_changed, none, number(len(properties)), *pairs, number(0)
    )
    client.call(node, NODE_UPDATE, number(2), number(0), info)


# Streams that call themselves something else, to be given what they may not hear.

CLASSES = (
    "Stream/Input/Audio", "Stream/Sink/Audio", "Stream/Source/Audio", "Stream/Duplex/Audio",
    "Stream/Output/Audio/Sink", "Stream/Input/Audio/Source", "Stream/Output/Input/Audio",
    "Stream/Input/Output/Audio", "Stream/", "Stream/Audio", "Stream/Input/Audio/Virtual",
    "Stream/Input/Video", "Stream/Input/Midi", "Audio/Source", "Audio/Source/Virtual",
    "Audio/Sink/Monitor", "Audio/Duplex", "Video/Source", "Midi/Bridge", "stream/Input/Audio", "",
)  # fmt: skip


@pytest.mark.parametrize("monitor", ["false", "true"], ids=["sources", "monitors"])
def test_no_class_of_stream_records_anything(site: ClaimSite, monitor: str) -> None:
    claim = site.prepare(sink())
    own = site.start_in(claim, *PLAY)
    files = [site.out / f"class-{monitor}-{place}.raw" for place in range(len(CLASSES))]
    script = site.out / f"classes-{monitor}.sh"
    lines = [
        shlex.join(recorder_of(file, media_class, monitor, [MIC, OTHER_SINK, SINK][place % 3]))
        for place, (file, media_class) in enumerate(zip(files, CLASSES, strict=True))
    ]
    script.write_text(" &\n".join([*lines, "wait"]))
    with another_claim_plays(site):
        site.run_in(claim, "sh", f"/out/{script.name}", seconds=4)
        own.check()
    recorded = {file.name: file.read_bytes() for file in files}
    assert {name: len(data) for name, data in recorded.items() if any(data)} == {}


def recorder_of(file: Path, media_class: str, monitor: str, target: str) -> Sequence[str]:
    """A recorder that no error makes give up, of a stream of that class."""
    properties = (
        f'media.class="{media_class}" stream.capture.sink={monitor} target.object={target} '
        "node.linger=true node.dont-fallback=true audio.liken.sh.device=mic"
    )
    return record_command(file.name, "-P", f"{{ {properties} }}")


def test_there_was_something_to_record(site: ClaimSite) -> None:
    claim = site.prepare(microphone())
    site.run_in(claim, *record_command("voice.raw"), seconds=2)
    heard = site.recorded("voice.raw")
    assert heard.is_tone(MIC_HZ), str(heard)


def test_loops_of_two_containers_stay_apart_and_each_passes_its_own_microphone(
    site: ClaimSite,
) -> None:
    # Their programs have the same process id, after which pw-loopback names its group.
    both = site.prepare(sink(share_id="a"), microphone(share_id="a"))
    other = site.prepare(claimed_device(device=OTHER_SINK), microphone(share_id="b"))
    loops = [site.start_in(claim, "pw-loopback") for claim in (both, other)]

    def is_looped() -> bool:
        into = {sink for stream, sink in site.links() if stream.startswith("output.pw-loopback")}
        return into == {SINK, OTHER_SINK}

    wait_until(is_looped, "both loops", SECONDS, loops)
    groups = {props["node.group"] for props in loop_nodes(site)}
    assert len(groups) == 2
    recorder = site.recorder(SINK)
    recorder.start()
    wait_until(lambda: recorder.loud_seconds() > 1, "the microphone at the sink", SECONDS, loops)
    heard = recorder.stop()
    assert heard.is_tone(MIC_HZ), str(heard)


def loop_nodes(site: ClaimSite) -> list[dict[str, Any]]:
    """Properties of all loops' nodes, which have equal names."""
    infos = [each.get("info") or {} for each in site.stack.objects()]
    properties = [info.get("props") or {} for info in infos]
    return [each for each in properties if "loopback" in str(each.get("node.name"))]


# Two claims of one sink.


def test_claims_that_share_a_sink_neither_mute_nor_end_nor_move_each_other_s_streams(
    site: ClaimSite,
) -> None:
    claim = site.prepare(sink(share_id="a"))
    numbers = " ".join(str(each) for each in range(20, 400))
    script = f"""
        for i in {numbers}; do
            echo kill-sink-input $i; echo kill-client $i; echo set-sink-input-mute $i 1
            echo set-sink-input-volume $i 0; echo move-sink-input $i {OTHER_SINK}
            echo suspend-sink $i 1; echo set-sink-mute $i 1
        done | pactl 2>/dev/null
        pactl set-sink-mute {SINK} 1; pactl suspend-sink {SINK} 1
        pactl set-default-sink {OTHER_SINK}; pactl exit
        pactl list short sink-inputs >/out/seen
    """
    with another_claim_plays(site, on=SINK, share_id="b"):
        done = site.run_in(claim, "sh", "-c", script, seconds=10)
        assert done.output.count("Access denied") >= 2, done.output
        assert (site.out / "seen").read_text() == ""


# How messages may lie.


def garbage() -> bytes:
    return bytes(range(256)) * 64


def header(object_id: int, opcode: int, size: int, descriptors: int = 0) -> bytes:
    return struct.pack("=IIII", object_id, opcode << 24 | size, 1, descriptors)


LIES: Mapping[str, Callable[[], bytes]] = {
    "garbage": garbage,
    "protocol 0": lambda: struct.pack("=II", 0, 1 << 24 | 8) + struct.pack("=II", 0, 14) * 64,
    "descriptors that never come": lambda: header(0, SYNC, 8, 3) + struct.pack("=II", 0, 14),
    "a huge message": lambda: header(0, SYNC, LARGEST_MESSAGE + 1) + bytes(LARGEST_MESSAGE + 1),
    "a wrong struct": lambda: header(0, 5, 16) + struct.pack("=IIII", 0xFFFFFFF0, 14, 4, 4),
    "properties without end": lambda: (
        header(0, CREATE_OBJECT, 24) + struct.pack("=IIIIii", 16, 14, 4, 4, 0x7FFFFFF0, 0)
    ),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES.keys())
@pytest.mark.parametrize("after_hello", [False, True], ids=["at first", "after hello"])
def test_a_client_that_breaks_the_protocol_is_cut_and_nobody_else(
    site: ClaimSite, lie: Callable[[], bytes], *, after_hello: bool
) -> None:
    claim = site.prepare(sink())
    before = descriptors_of(site.stack.pipewire)
    with RawClient(claim.socket) as liar:
        if after_hello:
            liar.hello()
            liar.settle()
        try:
            liar.send(lie())
            is_cut = liar.is_cut()
        except OSError:
            is_cut = True
    assert is_cut
    assert seconds_to_get_in(claim) < SECONDS
    assert descriptors_of(site.stack.pipewire).items() >= before.items()


def test_half_a_message_holds_up_nobody(site: ClaimSite) -> None:
    claim = site.prepare(sink())
    with RawClient(claim.socket) as slow:
        slow.send(header(0, HELLO, 24)[:10])
        assert seconds_to_get_in(claim) < SECONDS
        assert not slow.is_cut(0.2)


def test_descriptors_of_a_client_s_own_never_reach_pipewire(site: ClaimSite) -> None:
    claim = site.prepare(sink())
    memory = os.memfd_create("evil")
    os.ftruncate(memory, 65536)
    before = descriptors_of(site.stack.pipewire)
    try:
        with RawClient(claim.socket) as giver:
            giver.hello()
            giver.settle()
            hidden = protocol._struct(number(0), number(99))
            for _ in range(50):
                giver.send(header(0, SYNC, len(hidden)) + hidden, [memory] * 20)
            giver.settle()  # not asked for: they are dropped, and the client is none the wiser
            giver.send(header(0, SYNC, len(hidden), 1) + hidden, [memory])
            assert giver.is_cut()
    finally:
        os.close(memory)
    assert "evil" not in str(descriptors_of(site.stack.pipewire))
    assert descriptors_of(site.stack.pipewire).items() >= before.items()


def test_a_stream_that_lies_about_its_buffers_has_pipewire_close_none_of_its_own_descriptors(
    site: ClaimSite,
) -> None:
    claim = site.prepare(sink())
    before = descriptors_of(site.stack.pipewire)
    told = []

    def lie(object_id: int, opcode: int, body: bytes) -> bytes:
        if object_id < 2 or opcode != USE_BUFFERS:
            return b""
        direction, port, mix, _, count = (int(str(each)) for each in protocol.fields(body)[:5])
        memory_file = protocol._pod(3, struct.pack("=I", 2)) + protocol._fd(0)
        buffers = (number(1) + memory_file + number(3) + number(0) + number(8192)) * count
        said = protocol._struct(
            number(direction), number(port), number(mix), number(count), buffers
        )
        told.append(count)
        return header(object_id, PORT_BUFFERS, len(said), len(told) % 2) + said

    with another_claim_plays(site), Wiretap(site.out / "tap", claim.socket, lie):
        for _ in range(2):
            site.run_in(claim, "env", "PIPEWIRE_REMOTE=/out/tap", *PLAY, seconds=1)
    assert told
    assert descriptors_of(site.stack.pipewire).items() >= before.items()


def test_a_stream_that_writes_nonsense_into_all_memory_it_shares_harms_its_own_device_alone(
    site: ClaimSite,
) -> None:
    # What this does to its own sink is in docs/limits.md: the sink is made anew here.
    claim = site.prepare(sink())
    with another_claim_plays(site), Wiretap(site.out / "tap", claim.socket) as tap:
        player = site.start_in(claim, "env", "PIPEWIRE_REMOTE=/out/tap", *PLAY)
        wait_until(lambda: ("pw-play", SINK) in site.links(), "the stream", SECONDS, [player])
        wait_until(lambda: len(tap.memories()) >= 5, "its memory", SECONDS)
        scribble(tap, seconds=1)
        player.kill()
        site.unprepare(claim)
        site.stack.run("pw-cli", "destroy", SINK)
        site.stack.make_null_node(SINK, device=SINK)
    with another_claim_plays(site, on=SINK):
        pass


def scribble(tap: Wiretap, seconds: float) -> None:
    mapped = [mmap.mmap(descriptor, size) for descriptor, size in tap.memories().values()]
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for each in mapped:
            each[:] = os.urandom(len(each))
    for each in mapped:
        each.close()


# How much may be said, and kept.


def syncs(count: int) -> bytes:
    body = protocol._struct(number(0), number(7))
    return (header(0, SYNC, len(body)) + body) * count


def test_a_client_that_never_reads_fills_no_memory_of_pipewire_s(site: ClaimSite) -> None:
    claim, other = site.prepare(sink()), site.prepare(sink(device=OTHER_SINK))
    before = memory_of(site.stack.pipewire.pid)
    held = memory_of(site.claim_sockets.pid)
    with RawClient(claim.socket) as deaf:
        deaf.hello()
        deaf.settle()
        deaf._stream.setblocking(False)
        end = time.monotonic() + 3
        while time.monotonic() < end:
            try:
                deaf.send(syncs(1000))
            except BlockingIOError:
                is_ready_within(deaf._stream, 0.1, select.POLLOUT)
            except OSError:
                break
        assert seconds_to_get_in(other) < 2
        assert memory_of(site.stack.pipewire.pid) - before < 8 * MEGABYTE
        assert memory_of(site.claim_sockets.pid) - held < 16 * MEGABYTE


def test_clients_that_never_pause_hold_up_no_other_claim_s(site: ClaimSite) -> None:
    claim, other = site.prepare(sink()), site.prepare(sink(device=OTHER_SINK))
    with talkers(claim, 4), another_claim_plays(site, on=SINK, share_id="b"):
        waits = [seconds_to_get_in(other) for _ in range(5)]
    assert max(waits) < 2


@contextmanager
def talkers(claim: SiteClaim, count: int) -> Iterator[None]:
    """Clients that say things, and hear the answers, as fast as they can."""
    clients = [RawClient(claim.socket) for _ in range(count)]

    def talk(client: RawClient) -> None:
        client.hello()
        with contextlib.suppress(OSError):
            while True:
                client.send(syncs(1000))

    def hear(client: RawClient) -> None:
        with contextlib.suppress(OSError):
            while client._stream.recv(MEGABYTE):
                pass

    threads = [
        threading.Thread(target=act, args=(client,), daemon=True)
        for client in clients
        for act in (talk, hear)
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for client in clients:
            client._stream.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join(SECONDS)
        for client in clients:
            client.close()


def test_a_thousand_connections_leave_room_for_others(site: ClaimSite) -> None:
    claim, other = site.prepare(sink()), site.prepare(sink(device=OTHER_SINK))
    before = len(descriptors_of(site.stack.pipewire))
    made = [socket.socket(socket.AF_UNIX) for _ in range(1000)]
    try:
        for each in made:
            each.connect(str(claim.socket))
        wait_until(lambda: len(hung_up(made)) >= 1000 - MOST_CONNECTIONS, "the excess", SECONDS)
        assert seconds_to_get_in(other) < 2
        added = len(descriptors_of(site.stack.pipewire)) - before
        assert added <= MOST_CONNECTIONS + 8  # and what `other` had
    finally:
        for each in made:
            each.close()
    wait_until(lambda: can_get_in(claim), "the claim's own socket again", SECONDS)


def hung_up(made: Sequence[socket.socket]) -> list[socket.socket]:
    """Those that the other side has closed."""
    polls = select.poll()
    for each in made:
        polls.register(each, select.POLLHUP)
    ended = {descriptor for descriptor, _ in polls.poll(0)}
    return [each for each in made if each.fileno() in ended]


def can_get_in(claim: SiteClaim) -> bool:
    try:
        return seconds_to_get_in(claim) < SECONDS
    except (HarnessError, OSError):
        return False


def test_nodes_without_number_are_not_made(site: ClaimSite) -> None:
    claim, other = site.prepare(sink()), site.prepare(sink(device=OTHER_SINK))
    before = len(descriptors_of(site.stack.pipewire))
    with another_claim_plays(site, on=SINK, share_id="b"), RawClient(claim.socket) as maker:
        maker.hello()
        maker.settle()
        with contextlib.suppress(OSError):
            for place in range(MOST_OBJECTS + 1):
                make_node(maker, {"node.name": f"many-{place}", "media.class": "Stream/x"})
        assert maker.is_cut(SECONDS)
        assert seconds_to_get_in(other) < 2
    wait_until(
        lambda: len(descriptors_of(site.stack.pipewire)) <= before + 8, "what it made", SECONDS
    )


# PulseAudio's socket.

MODULES = (
    "module-native-protocol-tcp", "module-null-sink", "module-pipe-sink file=/tmp/evil",
    "module-pipe-source file=/etc/shadow", "module-loopback", "module-x11-bell",
    "module-rtp-send destination=127.0.0.1", "module-tunnel-sink server=127.0.0.1",
    "module-simple-protocol-tcp", "module-http-protocol-tcp", "module-ladspa-sink plugin=evil",
    "module-combine-sink", "module-switch-on-connect", "module-zeroconf-publish",
)  # fmt: skip


def test_no_module_can_be_loaded_into_pipewire_pulse(site: ClaimSite) -> None:
    claim = site.prepare(sink())
    script = "; ".join(f"pactl load-module {each}" for each in MODULES)
    done = site.run_in(claim, "sh", "-c", f"{script}; pactl list modules >/out/modules")
    assert done.output.count("Failure: Access denied") == len(MODULES), done.output
    assert (site.out / "modules").read_text() == ""


FILTERS = (
    'audioconvert.filter-graph={ nodes=[ { type=builtin name=x label=convolver config={ filename="FILE" } } ] }',
    "audioconvert.filter-graph.1={ nodes=[ { type=ladspa name=x plugin=FILE label=x } ] }",
    "debug.wav-path=FILE",
    "audio.adapt.converter=x library.name=../../../../../../..FILE",
)


@pytest.mark.parametrize("form", FILTERS, ids=["file", "program", "recording", "plug-in"])
def test_no_property_has_pipewire_pulse_open_a_file(site: ClaimSite, form: str) -> None:
    claim = site.prepare(sink())
    bait = site.out / "bait.so"
    if bait.exists():
        bait.unlink()
    if "wav-path" not in form:
        os.mkfifo(bait)  # whoever opens it is noticed
    properties = [f"--property={each}" for each in re.split(r" (?=library)", form)]
    named = bait.with_suffix("") if "library" in form else bait
    properties = [each.replace("FILE", str(named)) for each in properties]
    with another_claim_plays(site):
        site.run_in(claim, "paplay", *properties, PLAY[1], seconds=2)
        if "wav-path" in form:
            assert not bait.exists()
        else:
            with pytest.raises(OSError, match="No such device or address"):
                os.open(bait, os.O_WRONLY | os.O_NONBLOCK)
    bait.unlink(missing_ok=True)


def test_pipewire_pulse_s_log_cannot_be_filled(site: ClaimSite) -> None:
    claim = site.prepare(sink())
    before = site.claim_sockets.log.stat().st_size
    script = (
        "pactl send-message /core pipewire-pulse:log-level 5; "
        "timeout 2 paplay /sounds/440.wav; for i in $(seq 10); do pactl list >/dev/null; done"
    )
    site.run_in(claim, "sh", "-c", script)
    assert site.claim_sockets.log.stat().st_size - before < 32 * 1024


def test_uploads_without_number_end_the_claim_s_own_pipewire_pulse_alone(site: ClaimSite) -> None:
    claim = site.prepare(sink())
    count = 4 * MOST_MEMORY // MEGABYTE
    lengthen(site.tone(250, 1), seconds=5)
    upload = f"for i in $(seq {count}); do pactl upload-sample /sounds/250.wav s$i || exit 3; done"
    with another_claim_plays(site):
        done = site.run_in(claim, "sh", "-c", upload)
        assert done.exit_code == 3
        assert memory_of(site.claim_sockets.pid) < 128 * MEGABYTE
