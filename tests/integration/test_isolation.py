"""A claim's container reaches the claim's devices and nothing else, whatever it tries.

Everything is real: PipeWire, WirePlumber with our profile, claim-sockets, and the tools that users
use, in a container with the claim's CDI edits, no capability and an unprivileged user.
"""

import contextlib
import json
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from liken_audio.dra.claims import ClaimedDevice
from liken_audio.dra.parameters import Parameters
from liken_audio.graph.model import Direction
from liken_audio.pipewire.dump import DumpParser
from tests.builders import claimed_device
from tests.harness.claim_site import ClaimSite, SiteClaim, record_command
from tests.harness.processes import Program, Workspace, wait_until
from tests.harness.raw_client import (
    ANY,
    BIND,
    CLIENT,
    DESTROY,
    EVERYTHING,
    REGISTRY,
    UPDATE_PERMISSIONS,
    UPDATE_PROPERTIES,
    RawClient,
    dictionary,
    error_of,
    number,
    permission,
    props_param,
    text,
)
from tests.harness.sound_stack import SoundStack

SINK, OTHER_SINK, MIC = "tv", "headphones", "mic"
SECONDS = 45
TONE_HZ, MIC_HZ = 440, 1000
PLAY = ("pw-play", f"/sounds/{TONE_HZ}.wav")


def make_nodes(stack: SoundStack) -> None:
    stack.make_null_node(SINK, device=SINK)
    stack.make_null_node(OTHER_SINK, device=OTHER_SINK)
    stack.make_null_node(MIC, "Audio/Source/Virtual", device=MIC)


@pytest.fixture(scope="module")
def shared_site() -> Iterator[ClaimSite]:
    """One node for the tests that leave it as it was."""
    with Workspace("test") as made, SoundStack(made.path / "sound") as stack:
        make_nodes(stack)
        with ClaimSite(made.path / "site", stack) as running:
            running.tone(TONE_HZ)
            yield running


@pytest.fixture
def site(shared_site: ClaimSite) -> Iterator[ClaimSite]:
    """The shared node, without what a test left playing."""
    yield shared_site
    shared_site.clear()


@pytest.fixture
def speaking(site: ClaimSite) -> Iterator[None]:
    """While it is in use the microphone hears a tone."""
    speaker = site.speak_into(MIC, MIC_HZ)
    yield
    speaker.end()


@pytest.fixture
def own_site(workspace: Path, sound_stack: SoundStack) -> Iterator[ClaimSite]:
    """A node of the test's own, for what harms it."""
    make_nodes(sound_stack)
    with ClaimSite(workspace / "site", sound_stack) as running:
        running.tone(TONE_HZ)
        yield running


def sink(**changes: Any) -> ClaimedDevice:
    return claimed_device(**({"device": SINK} | changes))


def microphone(**changes: Any) -> ClaimedDevice:
    fields = {"device": MIC, "request": "in", "direction": Direction.CAPTURE}
    return claimed_device(**(fields | changes))


def visible(site: ClaimSite, claim: SiteClaim) -> list[tuple[str, str]]:
    """What pw-dump sees in the claim's container: kind and name, sorted."""
    done = site.run_in(claim, "sh", "-c", "pw-dump >/out/dump.json 2>/out/dump.err")
    assert done.exit_code == 0, done.output
    found = []
    for each in json.loads((site.out / "dump.json").read_text()):
        properties = (each.get("info") or {}).get("props") or {}
        name = properties.get("node.name") or properties.get("factory.name") or ""
        found.append((str(each["type"]).rpartition(":")[2], str(name)))
    return sorted(found)


def is_playing(site: ClaimSite, *into: str) -> bool:
    return {sink for stream, sink in site.links() if stream == "pw-play"} == set(into)


def wait_playing(site: ClaimSite, player: Program, *into: str) -> None:
    wait_until(lambda: is_playing(site, *into), f"a stream to {into}", SECONDS, [player])


# What is seen, and what plays and records.


def test_a_claim_s_container_sees_its_node_and_nothing_else(site: ClaimSite) -> None:
    claim = site.prepare(sink())
    assert visible(site, claim) == [
        ("Client", ""),
        ("Core", ""),
        ("Factory", "client-node"),
        ("Node", SINK),
    ]


@pytest.mark.parametrize(
    ("options", "environment"),
    [
        ((), {}),
        (("--target", OTHER_SINK), {}),
        (("--target", SINK), {}),
        (("--target", "0"), {}),
        ((), {"PIPEWIRE_NODE": OTHER_SINK, "PIPEWIRE_REMOTE": "/run/pipewire/pipewire-0"}),
        (("-P", "{ node.target=37 target.object=headphones node.dont-fallback=true }"), {}),
    ],
    ids=["plain", "other", "own", "no target", "image's variables", "properties"],
)
def test_whatever_a_player_asks_for_it_is_heard_at_the_claimed_sink_alone(
    site: ClaimSite, options: tuple[str, ...], environment: dict[str, str]
) -> None:
    claim = site.prepare(sink())
    recorders = [site.recorder(SINK), site.recorder(OTHER_SINK)]
    for recorder in recorders:
        recorder.start()
    done = site.run_in(claim, PLAY[0], *options, *PLAY[1:], environment=environment, seconds=2)
    claimed, other = [recorder.stop() for recorder in recorders]
    assert done.exit_code == 124 or not done.output, done.output
    if options != ("--target", "0"):
        assert claimed.is_tone(TONE_HZ), f"{claimed} {done.output}"
    assert other.is_silent, str(other)


@pytest.mark.usefixtures("speaking")
@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--target", MIC),
        ("-P", f"{{ target.object={MIC} node.dont-fallback=true }}"),
        ("-P", "{ media.category=Manager stream.monitor=true }"),
    ],
    ids=["plain", "by name", "by property", "as a manager"],
)
def test_a_claim_of_a_sink_records_no_microphone_and_is_told_so(
    site: ClaimSite, options: tuple[str, ...]
) -> None:
    claim = site.prepare(sink(), name="speakers", namespace="default")
    done = site.run_in(claim, *record_command("stolen.raw", *options), seconds=3)
    assert done.exit_code == 1, done.output
    assert "the claim default/speakers holds no source" in done.output
    assert (site.out / "stolen.raw").stat().st_size == 0


@pytest.mark.parametrize("target", [SINK, OTHER_SINK, MIC], ids=["own", "other's", "microphone's"])
def test_no_monitor_is_recorded_and_the_error_says_what_would_allow_it(
    site: ClaimSite, target: str
) -> None:
    claim = site.prepare(sink(), name="speakers", namespace="default")
    player = site.start_host("pw-play", "--target", target, str(site.tone(TONE_HZ)))
    options = f"{{ stream.capture.sink=true target.object={target} }}"
    done = site.run_in(claim, *record_command("stolen.raw", "-P", options), seconds=3)
    player.end()
    assert done.exit_code == 1, done.output
    assert (
        "the claim default/speakers may not record what its sink plays:"
        " its class doesn't set monitor" in done.output
    )
    assert (site.out / "stolen.raw").stat().st_size == 0


def test_a_class_with_monitor_lets_its_own_sink_be_recorded(site: ClaimSite) -> None:
    claim = site.prepare(sink(parameters=Parameters(monitor=True)))
    player = site.start_host("pw-play", "--target", SINK, str(site.tone(TONE_HZ)))
    other = site.start_host("pw-play", "--target", OTHER_SINK, str(site.tone(660)))
    options = f"{{ stream.capture.sink=true target.object={OTHER_SINK} }}"
    done = site.run_in(claim, *record_command("monitor.raw", "-P", options), seconds=3)
    for each in (player, other):
        each.end()
    heard = site.recorded("monitor.raw")
    assert heard.is_tone(TONE_HZ), f"{heard} {done.output}"


@pytest.mark.usefixtures("speaking")
@pytest.mark.parametrize("options", [(), ("--target", OTHER_SINK)], ids=["plain", "other's name"])
def test_a_claim_of_a_microphone_records_it(site: ClaimSite, options: tuple[str, ...]) -> None:
    claim = site.prepare(microphone())
    done = site.run_in(claim, *record_command("voice.raw", *options), seconds=3)
    heard = site.recorded("voice.raw")
    assert heard.is_tone(MIC_HZ), f"{heard} {done.output}"


def test_a_claim_of_a_microphone_plays_nowhere_and_records_no_sink(site: ClaimSite) -> None:
    claim = site.prepare(microphone(), name="ear", namespace="default")
    played = site.run_in(claim, *PLAY, seconds=3)
    assert played.exit_code == 1
    assert "the claim default/ear holds no sink" in played.output
    options = f"{{ stream.capture.sink=true target.object={SINK} }}"
    recorded = site.run_in(claim, *record_command("stolen.raw", "-P", options), seconds=3)
    assert recorded.exit_code == 1
    assert "the claim default/ear holds no sink" in recorded.output


def test_all_requests_of_a_claim_are_in_its_reach(site: ClaimSite) -> None:
    claim = site.prepare(
        sink(request="left"), sink(request="right", device=OTHER_SINK), microphone()
    )
    nodes = [name for kind, name in visible(site, claim) if kind == "Node"]
    assert nodes == sorted([SINK, OTHER_SINK, MIC])
    for target in (SINK, OTHER_SINK):
        recorder = site.recorder(target)
        recorder.start()
        site.run_in(claim, "sh", "-c", f"PIPEWIRE_NODE={target} exec {' '.join(PLAY)}", seconds=2)
        assert recorder.stop().is_tone(TONE_HZ)


def test_claims_of_two_namespaces_share_a_sink_and_cannot_see_each_other(site: ClaimSite) -> None:
    claims = [
        site.prepare(sink(share_id=space), namespace=space, name="same") for space in ("one", "two")
    ]
    players = [site.start_in(claim, *PLAY) for claim in claims]
    wait_until(
        lambda: sum(each == "pw-play" for each in streams(site)) == 2,
        "two streams",
        SECONDS,
        players,
    )
    for claim in claims:
        assert [name for kind, name in visible(site, claim) if kind == "Node"] == [SINK]
        assert [kind for kind, _ in visible(site, claim)].count("Client") == 1
    # What one of them plays can't be recorded by the other as a stream either.
    options = "{ target.object=pw-play }"
    done = site.run_in(claims[0], *record_command("stolen.raw", "-P", options), seconds=2)
    assert "the claim one/same holds no source" in done.output


def streams(site: ClaimSite) -> list[str]:
    """Names of all streams that are linked to the claimed sink, each as often as it is there."""
    objects = site.stack.objects()
    infos = {each["id"]: each.get("info") or {} for each in objects}
    linked = {
        info["output-node-id"]
        for each in objects
        if str(each["type"]).endswith(":Link") and (info := infos[each["id"]])
    }
    return [str(infos[each]["props"].get("node.name")) for each in linked if infos.get(each)]


def test_nobody_gets_a_shared_device_for_himself(site: ClaimSite) -> None:
    claim = site.prepare(sink(share_id="one"), name="same", namespace="one")
    other = site.prepare(sink(share_id="two"))
    done = site.run_in(claim, "pw-play", "-P", "{ node.exclusive=true }", PLAY[1], seconds=3)
    assert done.exit_code == 1
    assert "the claim one/same shares its device and can't have it exclusively" in done.output
    player = site.start_in(other, *PLAY)
    wait_playing(site, player, SINK)


def test_a_device_that_is_a_claim_s_alone_may_be_used_exclusively(site: ClaimSite) -> None:
    player = site.start_in(
        site.prepare(sink()), "pw-play", "-P", "{ node.exclusive=true }", PLAY[1]
    )
    wait_playing(site, player, SINK)


# ALSA's programs, by its PipeWire plugin.


@pytest.mark.parametrize(
    "options", [(), ("-D", f"pipewire:NODE={OTHER_SINK}")], ids=["plain", "other"]
)
def test_alsa_plays_at_the_claimed_sink_alone(site: ClaimSite, options: tuple[str, ...]) -> None:
    claim = site.prepare(sink())
    recorders = [site.recorder(SINK), site.recorder(OTHER_SINK)]
    for recorder in recorders:
        recorder.start()
    done = site.run_in(claim, "aplay", *options, PLAY[1], seconds=2)
    claimed, other = [recorder.stop() for recorder in recorders]
    assert claimed.is_tone(TONE_HZ), f"{claimed} {done.output}"
    assert other.is_silent, str(other)


def arecord(name: str) -> tuple[str, ...]:
    return ("arecord", "-t", "raw", "-f", "dat", f"/out/{name}")


@pytest.mark.usefixtures("speaking")
def test_alsa_records_the_claimed_microphone_and_no_other(site: ClaimSite) -> None:
    site.run_in(site.prepare(microphone()), *arecord("voice.raw"), seconds=3)
    assert site.recorded("voice.raw").is_tone(MIC_HZ)
    done = site.run_in(site.prepare(sink()), *arecord("never.raw"), seconds=3)
    assert done.exit_code == 1
    assert "Unable to install hw params" in done.output
    assert not (site.out / "never.raw").exists()


# What the tools may do to what is seen.


@pytest.mark.parametrize(
    "command",
    [
        ("pw-cli", "destroy", SINK),
        ("pw-cli", "set-param", SINK, "Props", "{ mute: true, channelVolumes: [ 0.1, 0.1 ] }"),
        ("pw-cli", "send-command", SINK, "Suspend"),
        ("pw-metadata", "0", "default.audio.sink", '{ "name": "headphones" }'),
        ("pw-link", f"{MIC}:capture_FL", f"{SINK}:playback_FL"),
        ("pw-cli", "create-link", SINK, "0", SINK, "0", "{ object.linger=true }"),
        (
            "pw-cli",
            "create-node",
            "adapter",
            "{ factory.name=support.null-audio-sink node.name=evil object.linger=true }",
        ),
        ("pw-cli", "create-node", "spa-node-factory", "{ factory.name=support.node.driver }"),
        ("pw-cli", "create-device", "spa-device-factory", "{ factory.name=api.alsa.pcm.device }"),
        ("wpctl", "set-volume", SINK, "10%"),
        ("pw-cli", "permissions", "0", "0", "7"),
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_no_tool_changes_anything(site: ClaimSite, command: tuple[str, ...]) -> None:
    claim = site.prepare(sink(parameters=Parameters(set_volume=True)))
    before = state(site)
    site.run_in(claim, *command, seconds=3)
    assert state(site) == before


def state(site: ClaimSite) -> dict[str, Any]:
    """All that isn't a program's own: objects, their volumes and the metadata."""
    found = {}
    for each in site.stack.objects():
        kind = str(each["type"]).rpartition(":")[2]
        info = each.get("info") or {}
        properties = info.get("props") or {}
        if kind in {"Client", "Link", "Port"} or str(properties.get("node.name")).startswith("pw-"):
            continue
        params = (info.get("params") or {}).get("Props") or [{}]
        volumes = [params[0].get("channelVolumes"), params[0].get("mute")]
        found[f"{kind} {each['id']}"] = [properties.get("node.name"), volumes, each.get("metadata")]
    return found


def test_the_host_s_own_socket_and_other_claims_are_out_of_the_container_s_sight(
    site: ClaimSite,
) -> None:
    other = site.prepare(sink())
    claim = site.prepare(sink(device=OTHER_SINK))
    done = site.run_in(claim, "find", "/run", "/tmp", "/var", "-type", "s")
    uid = claim.record.ref.uid
    folder = f"/run/audio.liken.sh/{uid}"
    assert sorted(done.output.split()) == [f"{folder}/pipewire-0", f"{folder}/pulse"]
    assert str(other.folder) not in done.output
    for path in (site.stack.remote.parent, site.control.with_name("sockets.pulse")):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    removed = site.run_in(claim, "rm", "-f", f"{folder}/pipewire-0", f"{folder}/claim.json")
    assert removed.output.count("Read-only file system") == 2
    assert claim.socket.exists()


# A client that says what it likes.

BOASTS = {
    "pipewire.access": "unrestricted",
    "pipewire.client.access": "unrestricted",
    "pipewire.access.effective": "unrestricted",
    "pipewire.access.portal.app_id": "",
    "pipewire.sec.engine": "none",
    "pipewire.sec.flatpak": "true",
    "pipewire.sec.app-id": "other/claim",
    "pipewire.sec.audio.liken.sh.reach": json.dumps({MIC: {"direction": "capture"}}),
    "pipewire.sec.audio.liken.sh.server": "pulse",
    "access": "unrestricted",
    "default_permissions": "all",
    "media.category": "Manager",
    "application.name": "wireplumber",
    "wireplumber.daemon": "true",
    "audio.liken.sh.reach": json.dumps({MIC: {"direction": "capture"}}),
}


def of_the_claim(site: ClaimSite) -> set[str]:
    """What any client of a claim of the sink may see, by kind."""
    numbers = {str(info["props"]["object.id"]) for info in [site.stack.nodes()[SINK]]}
    return {"Core", "Client", "Factory"} | {f"Node {each}" for each in numbers}


def seen_by(client: RawClient) -> set[str]:
    return {f"{kind} {number}" if kind == "Node" else kind for number, kind in client.globals()}


def test_what_a_client_says_of_itself_gives_it_nothing(site: ClaimSite) -> None:
    claim = site.prepare(sink())
    with RawClient(claim.socket) as liar:
        liar.hello(**BOASTS)
        liar.settle()
        liar.call(CLIENT, UPDATE_PROPERTIES, dictionary(BOASTS))
        liar.settle()
        assert seen_by(liar) == of_the_claim(site)
        found = [each for each in site.stack.objects() if str(each["type"]).endswith(":Client")]
        (mine,) = [
            each["info"]["props"]
            for each in found
            if each["info"]["props"].get("pipewire.sec.instance-id") == claim.record.ref.uid
        ]
    assert mine["pipewire.access"] == "claim"
    assert mine["pipewire.sec.engine"] == "audio.liken.sh"
    assert mine["pipewire.sec.app-id"] == str(claim.record.ref)
    assert mine["pipewire.sec.audio.liken.sh.server"] == "pipewire"
    # pw-dump takes JSON in a property's text for an object.
    reach = mine["pipewire.sec.audio.liken.sh.reach"]
    reach = json.loads(reach) if isinstance(reach, str) else reach
    assert reach == {SINK: {"direction": "playback"}}


INTERFACES = (
    "Core", "Registry", "Client", "Node", "Port", "Link", "Factory", "Module", "Device",
    "Metadata", "Profiler", "SecurityContext", "ClientNode", "EndpointLink", "Session",
)  # fmt: skip
FACTORIES = (
    ("link-factory", "Link"), ("adapter", "Node"), ("spa-node-factory", "Node"),
    ("spa-device-factory", "Device"), ("client-device", "Device"), ("metadata", "Metadata"),
    ("session", "Session"), ("endpoint", "Endpoint"), ("support.null-audio-sink", "Node"),
)  # fmt: skip


def test_a_client_that_binds_every_id_by_every_interface_gets_what_it_sees(site: ClaimSite) -> None:
    claim = site.prepare(sink())
    bound, own = set(), set()
    for interface in INTERFACES:  # a connection for each: what one may have is limited
        with RawClient(claim.socket) as prober:
            prober.hello()
            prober.settle()
            own |= {
                f"{kind} {each}" for each, kind in prober.globals() if kind in {interface, "Node"}
            }
            proxies = {prober.bind(each, interface): each for each in range(200)}
            events = prober.settle(60)
            bound |= {
                f"{interface} {each}"
                for proxy, each in proxies.items()
                if error_of(events, proxy) is None
            }
    assert bound == own


def test_no_factory_but_that_of_streams_makes_anything(site: ClaimSite) -> None:
    claim = site.prepare(sink())
    before = state(site)
    with RawClient(claim.socket) as maker:
        maker.hello()
        maker.settle()
        properties = {
            "factory.name": "support.null-audio-sink", "node.name": "evil", "metadata.name": "evil",
            "link.output.node": "0", "link.input.node": "0", "object.linger": "true",
        }  # fmt: skip
        for factory, interface in FACTORIES:
            proxy = maker.create(factory, interface, properties)
            assert error_of(maker.settle(), proxy) == f"unknown factory name {factory}"
    assert state(site) == before


def test_a_client_cannot_raise_its_permissions(site: ClaimSite) -> None:
    claim = site.prepare(sink())
    before = state(site)
    with RawClient(claim.socket) as climber:
        climber.hello()
        climber.settle()
        (me,) = [each for each, kind in climber.globals() if kind == "Client"]
        proxies = [CLIENT, climber.bind(me, "Client")]
        for proxy in proxies:
            for object_id in (ANY, *range(100)):
                climber.call(proxy, UPDATE_PERMISSIONS, *permission(object_id, EVERYTHING))
        climber.settle()
        assert seen_by(climber) <= of_the_claim(site)
        assert node_is_out_of_hand(site, climber)
    assert state(site) == before


def node_is_out_of_hand(site: ClaimSite, client: RawClient) -> bool:
    """Whether the claimed node can neither be set nor commanded nor removed."""
    number_of_node = int(site.stack.nodes()[SINK]["props"]["object.id"])
    node = client.bind(number_of_node, "Node")
    client.call(node, 3, number(2), number(0), props_param(0.1))
    client.call(node, 4, number(0))
    client.call(REGISTRY, DESTROY, number(number_of_node))
    said = [
        str(each.fields[3]) for each in client.settle() if (each.object_id, each.opcode) == (0, 3)
    ]
    refused = [each for each in said if "no permission to" in each]
    return len(refused) == 3


@pytest.mark.parametrize("allowed", [False, True], ids=["plain", "with setVolume"])
def test_a_client_destroys_nothing_and_sets_nothing(site: ClaimSite, *, allowed: bool) -> None:
    claim = site.prepare(sink(parameters=Parameters(set_volume=allowed)))
    before = state(site)
    with RawClient(claim.socket) as destroyer:
        destroyer.hello()
        destroyer.settle()
        (me,) = [each for each, kind in destroyer.globals() if kind == "Client"]
        assert node_is_out_of_hand(site, destroyer)
        for each in range(200):
            if each != me:
                destroyer.call(REGISTRY, DESTROY, number(each))
        destroyer.settle()
    assert state(site) == before


def test_a_client_that_never_introduces_itself_sees_nothing(site: ClaimSite) -> None:
    claim = site.prepare(sink())
    with RawClient(claim.socket) as mute:
        mute.call(0, 1, number(4))
        mute.call(0, 5, number(3), number(REGISTRY))
        for each in range(100):
            mute.call(REGISTRY, BIND, *binding(each))
            mute.call(REGISTRY, DESTROY, number(each))
        proxy = mute.create("client-node", "ClientNode", {"node.name": "evil"})
        events = mute.settle()
        assert error_of(events, proxy) == "unknown factory name client-node"
        assert mute.globals() == set()


def binding(global_id: int) -> list[bytes]:
    return [number(global_id), text("PipeWire:Interface:Node"), number(3), number(50 + global_id)]


# A client that makes a node which poses as somebody else's.


POSE = {
    "media.class": "Audio/Sink",
    "node.name": SINK,
    "audio.liken.sh.device": SINK,
    "priority.session": "99999",
    "node.virtual": "false",
    "client.id": "0",
    "node.autoconnect": "false",
    "filter.smart": "true",
}


def posing(pose: dict[str, str]) -> tuple[str, ...]:
    """A filter whose input calls itself something else, and that no error makes give up."""
    properties = " ".join(f"{key}={value}" for key, value in pose.items())
    return (
        "pw-loopback",
        f"--capture-props={{ {properties} }}",
        "--playback-props={ node.autoconnect=false }",
    )


@pytest.mark.parametrize("media_class", ["Audio/Sink", "Audio/Duplex", "Stream/Input/Audio"])
def test_a_node_that_poses_as_a_device_s_hears_no_other_claim(
    site: ClaimSite, media_class: str
) -> None:
    thief = site.prepare(sink(share_id="one"), name="thief")
    honest = site.prepare(sink(share_id="two"))
    poser = site.start_in(thief, *posing(POSE | {"media.class": media_class}))
    wait_until(lambda: len(nodes_named(site, SINK)) == 2, "the poser's node", SECONDS, [poser])
    genuine, posed = sorted(nodes_named(site, SINK), key=lambda each: "client.id" in each["props"])
    recorder = site.recorder(str(genuine["props"]["object.serial"]))
    recorder.start()
    site.run_in(honest, *PLAY, seconds=2)
    assert recorder.stop().is_tone(TONE_HZ)
    assert [name for kind, name in visible(site, honest) if kind == "Node"] == [SINK]
    assert posed["props"]["client.id"] != 0
    # Nor does the agent take it for the device's node.
    parser = DumpParser()
    parser.feed(site.stack.run("pw-dump", "--no-colors").encode())
    taken = [each.serial for each in parser.snapshot().nodes if each.name == SINK]
    assert taken == [genuine["props"]["object.serial"]]


def nodes_named(site: ClaimSite, name: str) -> list[Any]:
    """All nodes of a name."""
    nodes = [each for each in site.stack.objects() if str(each["type"]).endswith(":Node")]
    infos = [each["info"] for each in nodes if each.get("info")]
    return [info for info in infos if info["props"].get("node.name") == name]


def test_a_node_that_is_no_stream_is_refused_by_name(site: ClaimSite) -> None:
    claim = site.prepare(sink(), name="thief", namespace="default")
    properties = "{ media.class=Audio/Sink node.name=tv }"
    done = site.run_in(claim, "pw-record", "-P", properties, "/out/posed.wav", seconds=3)
    assert done.exit_code == 1
    assert "the claim default/thief allows streams only, no node of class Audio/Sink" in done.output


def test_a_poser_that_was_there_before_wireplumber_hears_no_other_claim(
    own_site: ClaimSite,
) -> None:
    thief = own_site.prepare(sink(share_id="one"))
    honest = own_site.prepare(sink(share_id="two"))
    player = own_site.start_in(honest, *PLAY)
    poser = own_site.start_in(thief, *posing(POSE))
    wait_until(lambda: len(nodes_named(own_site, SINK)) == 2, "the poser", SECONDS, [poser])
    for _ in range(3):
        own_site.stack.restart_wireplumber()
        wait_playing(own_site, player, SINK)
        linked = [link for link in own_site.links() if SINK in link]
        assert linked == [("pw-play", SINK)]
        (poser_node,) = [
            each["props"] for each in nodes_named(own_site, SINK) if "client.id" in each["props"]
        ]
        assert not links_of(own_site, poser_node["object.id"])


def links_of(site: ClaimSite, node_id: int) -> list[Any]:
    links = [each for each in site.stack.objects() if str(each["type"]).endswith(":Link")]
    infos = [each["info"] for each in links if each.get("info")]
    return [each for each in infos if node_id in (each["input-node-id"], each["output-node-id"])]


# What restarts and comes again.


def make_bluetooth_node(stack: SoundStack, name: str, address: str, **properties: str) -> None:
    """A stand-in for a node that WirePlumber makes of a Bluetooth device."""
    its = {"media.class": "Audio/Sink", "api.bluez5.address": address} | properties
    listed = " ".join(f'{key}="{value}"' for key, value in its.items())
    stack.run(
        *("pw-cli", "create-node", "adapter"),
        "{ factory.name=support.null-audio-sink object.linger=true audio.position=[FL FR] "
        f"node.name={name} {listed} }}",
    )
    wait_until(lambda: name in stack.nodes(), f"the node {name}", SECONDS)


def test_a_bluetooth_speaker_s_node_is_its_claim_s_by_its_address_alone(
    own_site: ClaimSite,
) -> None:
    site, stack = own_site, own_site.stack
    claim = site.prepare(sink(device="00-1b-dc-00-00-0f", node_name="bluez_output.1"))
    player = site.start_in(claim, *PLAY)
    make_bluetooth_node(stack, "neighbour", "00:1B:DC:00:00:01")
    loopback = {"bluez5.loopback": "true"}
    make_bluetooth_node(stack, "loopback", "00:1B:DC:00:00:0F", **loopback)
    make_bluetooth_node(stack, "bluez_output.1", "00:1B:DC:00:00:0F")
    wait_playing(site, player, "bluez_output.1")
    assert [n for kind, n in visible(site, claim) if kind == "Node" and "play" not in n] == [
        "bluez_output.1"
    ]
    # Another codec, another node.
    stack.run("pw-cli", "destroy", "bluez_output.1")
    make_bluetooth_node(stack, "bluez_output.2", "00:1B:DC:00:00:0F")
    wait_playing(site, player, "bluez_output.2")


def test_a_headset_s_microphone_is_its_own_claim_s_and_a_phone_s_music_is_none(
    own_site: ClaimSite,
) -> None:
    site, stack = own_site, own_site.stack
    source = {"media.class": "Audio/Source"}
    for name, profile in (("music", "a2dp-source"), ("speech", "headset-head-unit")):
        its = source | {"api.bluez5.profile": profile}
        make_bluetooth_node(stack, name, "00:1B:DC:00:00:0F", **its)
    claim = site.prepare(microphone(device="00-1b-dc-00-00-0f-capture", node_name="speech"))
    assert [n for kind, n in visible(site, claim) if kind == "Node"] == ["speech"]


def test_a_stream_waits_while_its_node_is_away_and_goes_on_whatever_the_new_one_is_called(
    own_site: ClaimSite,
) -> None:
    site = own_site
    claim = site.prepare(sink())
    player = site.start_in(claim, *PLAY)
    wait_playing(site, player, SINK)
    number_of_node = site.stack.nodes()[SINK]["props"]["object.id"]
    site.stack.run("pw-cli", "destroy", SINK)
    wait_until(lambda: is_playing(site), "the end of the link", SECONDS, [player])
    # A stranger takes the id: what the claim might do with it went with the node.
    takers = 0
    while SINK not in site.stack.nodes() and takers < 20:
        takers += 1
        site.stack.make_null_node(f"stranger-{takers}", device="stranger")
        if site.stack.nodes()[f"stranger-{takers}"]["props"]["object.id"] == number_of_node:
            break
    else:
        pytest.fail("no stranger got the id")
    assert [kind for kind, _ in visible(site, claim)] == ["Client", "Core", "Factory"]
    assert is_playing(site)
    site.stack.make_null_node("tv-again", device=SINK)
    wait_playing(site, player, "tv-again")
    assert [name for kind, name in visible(site, claim) if kind == "Node"] == ["tv-again"]


def test_wireplumber_s_death_ends_the_links_and_its_return_brings_them_back(
    own_site: ClaimSite,
) -> None:
    site = own_site
    claim = site.prepare(sink())
    player = site.start_in(claim, *PLAY)
    wait_playing(site, player, SINK)
    site.stack.wireplumber.kill()
    wait_until(lambda: is_playing(site), "the end of the link", SECONDS, [player])
    with RawClient(claim.socket) as early:
        early.hello(**BOASTS)
        early.listen(1)
        assert early.globals() == set()
        waiting = site.start_in(claim, *record_command("stolen.raw"))
        site.stack.start_wireplumber()
        wait_playing(site, player, SINK)
        early.settle()
        assert seen_by(early) == of_the_claim(site)
    assert waiting.wait(SECONDS) == 1
    assert "holds no source" in waiting.log.read_text()
    assert (site.out / "stolen.raw").stat().st_size == 0


def test_after_pipewire_s_restart_a_client_sees_no_more_from_the_first_moment_on(
    own_site: ClaimSite,
) -> None:
    site = own_site
    claim = site.prepare(sink())
    player = site.start_in(claim, *PLAY)
    wait_playing(site, player, SINK)
    site.stack.pipewire.kill()
    assert player.wait(SECONDS) != 124
    site.stack.wireplumber.end()
    site.stack.start_pipewire()
    make_nodes(site.stack)

    def connected() -> bool:
        try:
            clients.append(RawClient(claim.socket))
        except ConnectionRefusedError:
            return False
        return True

    clients: list[RawClient] = []
    wait_until(connected, "the claim's socket", SECONDS)
    with clients[0] as first:
        first.hello(**BOASTS)
        first.listen(0.5)
        assert first.globals() == set()
        site.stack.start_wireplumber()
        first.settle()
        assert seen_by(first) == of_the_claim(site)
    again = site.start_in(claim, *PLAY)
    wait_playing(site, again, SINK)


def test_unprepare_cuts_every_client_within_two_seconds(own_site: ClaimSite) -> None:
    site = own_site
    claim, other = site.prepare(sink(share_id="one")), site.prepare(sink(share_id="two"))
    staying = site.start_in(other, *PLAY)
    player = site.start_in(claim, *PLAY)
    pulse = site.start_in(claim, "paplay", PLAY[1])
    raw = RawClient(claim.socket)
    wait_until(
        lambda: sorted(streams(site)) == ["paplay", "pw-play", "pw-play"], "streams", SECONDS
    )
    begun = time.monotonic()
    site.unprepare(claim)
    player.wait(SECONDS)
    pulse.wait(SECONDS)
    while raw.listen(SECONDS):
        pass
    raw.close()
    assert time.monotonic() - begun < 2
    assert not claim.folder.exists()
    assert staying.exit_code is None
    assert streams(site) == ["pw-play"]


def test_a_killed_claim_sockets_leaves_nothing_and_its_next_one_serves_at_the_same_place(
    own_site: ClaimSite,
) -> None:
    site = own_site
    claim = site.prepare(sink())
    player = site.start_in(claim, "paplay", PLAY[1])
    wait_until(lambda: streams(site) == ["paplay"], "a stream", SECONDS, [player])
    site.claim_sockets.kill()
    player.wait(SECONDS)
    wait_until(lambda: not pulse_servers(site), "the end of pipewire-pulse", SECONDS)
    site.start_claim_sockets()
    again = [site.start_in(claim, *PLAY), site.start_in(claim, "paplay", PLAY[1])]
    wait_until(lambda: sorted(streams(site)) == ["paplay", "pw-play"], "streams", SECONDS, again)


def pulse_servers(site: ClaimSite) -> list[int]:
    """Processes of pipewire-pulse for this site."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if f"-c\0{site.control}.pulse/" in path.read_text():
                found.append(int(path.parent.name))
    return found
