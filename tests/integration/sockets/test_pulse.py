"""PulseAudio's clients of a claim: the same reach as PipeWire's, by a server that is there while used."""

import asyncio
import os
import shutil
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from liken_audio.dra.claims import ClaimedDevice
from liken_audio.dra.parameters import Parameters
from liken_audio.graph.model import Direction
from liken_audio.sockets import pulse
from liken_audio.sockets.client import SocketClient
from liken_audio.sockets.holder import Holder
from tests.builders import claim_record, claim_ref, claimed_device
from tests.harness.claim_site import ClaimSite, SiteClaim
from tests.harness.processes import Workspace, wait_until
from tests.harness.sound_stack import SoundStack
from tests.harness.tone import RATE_HZ, Sound

SINK, OTHER_SINK, MIC = "tv", "headphones", "mic"
SECONDS = 45.0
TONE_HZ, MIC_HZ = 440, 1000
TONE = f"/sounds/{TONE_HZ}.wav"


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


def make_nodes(stack: SoundStack) -> None:
    stack.make_null_node(SINK, device=SINK)
    stack.make_null_node(OTHER_SINK, device=OTHER_SINK)
    stack.make_null_node(MIC, "Audio/Source/Virtual", device=MIC)


def sink(**changes: Any) -> ClaimedDevice:
    return claimed_device(**({"device": SINK} | changes))


def microphone() -> ClaimedDevice:
    return claimed_device(device=MIC, request="in", direction=Direction.CAPTURE)


def listed(site: ClaimSite, claim: SiteClaim, kind: str) -> list[str]:
    """Names that `pactl list short` gives."""
    done = site.run_in(claim, "pactl", "list", "short", kind)
    assert done.exit_code == 0, done.output
    return names_in(done.output)


def names_in(output: str) -> list[str]:
    return [line.split("\t")[1] for line in output.splitlines() if "\t" in line]


def parecord(name: str, *options: str) -> list[str]:
    form = [f"--rate={RATE_HZ}", "--channels=2", "--format=s16le", "--raw"]
    return ["sh", "-c", f'exec "$@" >/out/{name}', "-", "parecord", *form, *options]


# What a client reaches.


@pytest.mark.parametrize(
    ("options", "environment"),
    [
        ((), {}),
        ((f"--device={OTHER_SINK}",), {}),
        (("--property=target.object=headphones", "--property=node.target=headphones"), {}),
        ((), {"PULSE_SERVER": "tcp:127.0.0.1", "PULSE_SINK": OTHER_SINK}),
        ((), {"PULSE_PROP_OVERRIDE": "media.category=Manager pipewire.access=unrestricted"}),
    ],
    ids=["plain", "other's name", "properties", "image's variables", "boasts"],
)
def test_a_player_is_heard_at_the_claimed_sink_alone(
    site: ClaimSite, options: tuple[str, ...], environment: dict[str, str]
) -> None:
    claim = site.prepare(sink())
    recorders = [site.recorder(SINK), site.recorder(OTHER_SINK)]
    for recorder in recorders:
        recorder.start()
    done = site.run_in(claim, "paplay", *options, TONE, environment=environment, seconds=2)
    claimed, other = [recorder.stop() for recorder in recorders]
    assert claimed.is_tone(TONE_HZ), f"{claimed} {done.output}"
    assert other.is_silent, str(other)


def test_what_is_listed_is_the_claim_s_and_the_default_is_its_too(site: ClaimSite) -> None:
    claim = site.prepare(sink(), microphone())
    assert listed(site, claim, "sinks") == [SINK]
    assert sorted(listed(site, claim, "sources")) == [MIC, f"{SINK}.monitor"]
    assert listed(site, claim, "cards") == listed(site, claim, "modules") == []
    assert len(listed(site, claim, "clients")) == 1
    for what, name in (("sink", SINK), ("source", MIC)):
        done = site.run_in(claim, "pactl", f"get-default-{what}")
        assert done.output.splitlines()[-1] == name
        assert (
            site.run_in(claim, "pactl", f"get-{what}-mute", f"@DEFAULT_{what.upper()}@").exit_code
            == 0
        )


def test_a_second_claim_s_client_is_not_seen(site: ClaimSite) -> None:
    claims = [site.prepare(sink(share_id=each), namespace=each) for each in ("one", "two")]
    players = [site.start_in(claim, "paplay", TONE) for claim in claims]
    wait_until(
        lambda: len([name for name, _ in all_links(site) if name == "paplay"]) == 2,
        "two streams",
        SECONDS,
        players,
    )
    for claim in claims:
        assert listed(site, claim, "sink-inputs") == []
        assert len(listed(site, claim, "clients")) == 1


def all_links(site: ClaimSite) -> list[tuple[str, int]]:
    """Of each linked output node the name and the id."""
    objects = site.stack.objects()
    infos = {each["id"]: each.get("info") or {} for each in objects}
    ids = {
        info["output-node-id"]
        for each in objects
        if str(each["type"]).endswith(":Link") and (info := infos[each["id"]])
    }
    return [(str(infos[each]["props"].get("node.name")), each) for each in ids]


@pytest.mark.usefixtures("speaking")
@pytest.mark.parametrize(
    "options",
    [(), (f"--device={MIC}",), (f"--device={SINK}.monitor",), (f"--device={OTHER_SINK}.monitor",)],
    ids=["plain", "microphone", "its monitor", "other's monitor"],
)
def test_a_claim_of_a_sink_records_nothing_and_is_told_so(
    site: ClaimSite, options: tuple[str, ...]
) -> None:
    claim = site.prepare(sink())
    done = site.run_in(claim, *parecord("stolen.raw", *options), seconds=3)
    assert done.exit_code == 1
    assert "Access denied" in done.output or "No such entity" in done.output
    assert (site.out / "stolen.raw").stat().st_size == 0


@pytest.mark.usefixtures("speaking")
def test_a_claim_of_a_microphone_records_it(site: ClaimSite) -> None:
    claim = site.prepare(microphone())
    done = site.run_in(claim, *parecord("voice.raw", "--latency-msec=200"), seconds=3)
    heard = site.recorded("voice.raw")
    assert is_about(heard, MIC_HZ), f"{heard} {done.output}"


def is_about(heard: Sound, frequency_hz: float) -> bool:
    """Whether it is that tone, with the dropouts that a capture stream has on a busy machine."""
    found = heard.frequency_hz
    return found is not None and abs(found - frequency_hz) < 0.1 * frequency_hz


def test_a_class_with_monitor_lets_its_own_sink_be_recorded(site: ClaimSite) -> None:
    claim = site.prepare(sink(parameters=Parameters(monitor=True)))
    player = site.start_host("pw-play", "--target", SINK, str(site.tone(TONE_HZ)))
    options = (f"--device={SINK}.monitor", "--latency-msec=200")
    done = site.run_in(claim, *parecord("monitor.raw", *options), seconds=3)
    player.end()
    heard = site.recorded("monitor.raw")
    assert is_about(heard, TONE_HZ), f"{heard} {done.output}"


def volume(site: ClaimSite, name: str = SINK) -> tuple[float, bool]:
    props = site.stack.nodes()[name]["params"]["Props"][0]
    return round(props["channelVolumes"][0], 3), props["mute"]


def test_volume_and_mute_are_set_only_where_the_class_says_so(site: ClaimSite) -> None:
    player = site.start_host("pw-play", "--target", SINK, str(site.tone(TONE_HZ)))
    plain = site.prepare(sink(share_id="one"))
    for command in (("set-sink-volume", SINK, "50%"), ("set-sink-mute", SINK, "1")):
        done = site.run_in(plain, "pactl", *command)
        assert "Access denied" in done.output
    assert volume(site) == (1.0, False)
    trusted = site.prepare(sink(share_id="two", parameters=Parameters(set_volume=True)))
    try:
        for command in (("set-sink-volume", SINK, "50%"), ("set-sink-mute", SINK, "1")):
            assert site.run_in(trusted, "pactl", *command).exit_code == 0
        wait_until(lambda: volume(site) == (0.125, True), "the volume", SECONDS, [player])
        other = site.run_in(trusted, "pactl", "set-sink-volume", OTHER_SINK, "50%")
        assert "No such entity" in other.output
    finally:
        site.run_in(trusted, "pactl", "set-sink-mute", SINK, "0")
        site.run_in(trusted, "pactl", "set-sink-volume", SINK, "100%")
    player.end()


def test_a_limit_holds_also_against_who_sets_the_volume_all_the_time(site: ClaimSite) -> None:
    player = site.start_host("pw-play", "--target", SINK, str(site.tone(TONE_HZ)))
    wait_until(lambda: ("pw-play", SINK) in site.links(), "sound", SECONDS, [player])
    claim = site.prepare(sink(parameters=Parameters(set_volume=True, max_volume=50)))
    louder = f"pactl set-sink-volume {SINK} 150%"
    # The last setting comes from a client that is gone when it shows.
    site.run_in(claim, "sh", "-c", f"for i in $(seq 30); do {louder}; done")
    wait_until(lambda: volume(site) == (0.125, False), "the limit", SECONDS, [player])
    site.run_in(claim, "pactl", "set-sink-volume", SINK, "20%")
    wait_until(lambda: volume(site) == (0.008, False), "what is under it", SECONDS, [player])
    wait_until(lambda: "20%" in listed_volume(site, claim), "what its client sees", SECONDS)
    site.unprepare(claim)
    trusted = site.prepare(sink(parameters=Parameters(set_volume=True)))
    wait_until(lambda: is_set_to_full(site, trusted), "no limit after the claim", SECONDS, [player])
    player.end()


def listed_volume(site: ClaimSite, claim: SiteClaim) -> str:
    return site.run_in(claim, "pactl", "get-sink-volume", SINK).output


def is_set_to_full(site: ClaimSite, claim: SiteClaim) -> bool:
    site.run_in(claim, "pactl", "set-sink-volume", SINK, "100%")
    return volume(site) == (1.0, False)


def test_a_client_loads_no_module_and_moves_no_stream_elsewhere(site: ClaimSite) -> None:
    claim = site.prepare(sink(parameters=Parameters(set_volume=True)))
    before = sorted(site.stack.nodes())
    for command in (
        ("load-module", "module-null-sink"),
        ("load-module", "module-native-protocol-tcp", "port=4713", "auth-anonymous=1"),
        ("load-module", "module-pipe-sink", "file=/tmp/pipe"),
        ("unload-module", "1"),
    ):
        assert site.run_in(claim, "pactl", *command).exit_code == 1
    assert sorted(site.stack.nodes()) == before


def test_a_client_cannot_lead_its_server_to_another_pipewire(site: ClaimSite) -> None:
    claim = site.prepare(sink())
    remote = site.stack.remote
    for wish in (
        f"remote.name={remote}",
        f"remote.name={remote}-manager remote.intention=manager",
        "remote.intention=manager",
    ):
        done = site.run_in(
            claim, "pactl", "list", "short", "sinks", environment={"PULSE_PROP_OVERRIDE": wish}
        )
        assert names_in(done.output) == [SINK]


def test_a_client_has_no_file_written_by_its_server(site: ClaimSite) -> None:
    claim = site.prepare(sink())
    player = site.start_in(claim, "paplay", "--property=debug.wav-path=/out/evil.wav", TONE)
    wait_until(lambda: "paplay" in site.stack.nodes(), "a stream", SECONDS, [player])
    assert site.stack.nodes()["paplay"]["props"]["debug.wav-path"] == ""
    assert not (site.out / "evil.wav").exists()


def test_a_claim_without_pulse_has_no_socket_for_it(site: ClaimSite) -> None:
    claim = site.prepare(sink(parameters=Parameters(pulse=False)))
    done = site.run_in(claim, "sh", "-c", "ls /run/audio.liken.sh/*; env")
    assert "pipewire-0" in done.output
    assert "pulse" not in done.output.lower()


# When the server runs.


class Claims:
    """A holder in our process with one claim."""

    def __init__(self, folder: Path, stack: SoundStack) -> None:
        self.holder = Holder(folder / "claims", str(stack.remote), folder / "control" / "sockets")
        self.client = SocketClient(folder / "claims", folder / "control" / "sockets")
        self.stack = stack
        self.record = claim_record(claimed_device(device=SINK), ref=claim_ref("a"))
        self.pulse = folder / "claims" / "a" / "pulse"
        self.private = folder / "control" / "sockets.pulse"

    @property
    def server(self) -> pulse.PulseServer:
        server = self.holder._held["a"].pulse
        assert server is not None
        return server

    @property
    def pid(self) -> int | None:
        """Of its pipewire-pulse, None while there is none."""
        process = self.server._process
        return process._pid if process else None

    async def pactl(self, *command: str) -> tuple[int, str]:
        environment = dict(self.stack.environment) | {"PULSE_SERVER": f"unix:{self.pulse}"}
        process = await asyncio.create_subprocess_exec(
            "pactl",
            *command,
            env=environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await asyncio.wait_for(process.communicate(), SECONDS)
        return process.returncode or 0, output.decode()

    async def sinks(self) -> str:
        return (await self.pactl("list", "short", "sinks"))[1]


@pytest.fixture
async def claims(
    workspace: Path, sound_stack: SoundStack, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Claims]:
    monkeypatch.setattr(pulse, "IDLE_SECONDS", 0.3)
    monkeypatch.setattr(pulse, "LOOK_INTERVAL", 0.1)
    await asyncio.to_thread(sound_stack.make_null_node, SINK, device=SINK)
    made = Claims(workspace / "site", sound_stack)
    async with running(made):
        await made.client.open(made.record)
        yield made


@asynccontextmanager
async def running(claims: Claims) -> AsyncIterator[None]:
    task = asyncio.get_running_loop().create_task(claims.holder.run())
    try:
        await until(claims.client._control.exists)
        yield
    finally:
        claims.client.hang_up()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS):
        while not is_so():
            await asyncio.sleep(0.02)


async def test_the_server_is_started_by_the_first_connection_and_ends_when_nobody_is_left(
    claims: Claims,
) -> None:
    assert (claims.pid, claims.server.started) == (None, 0)
    assert SINK in await claims.sinks()
    pid = claims.pid
    assert pid is not None
    await until(lambda: claims.pid is None)
    assert not Path(f"/proc/{pid}").exists()
    assert list(claims.private.iterdir()) == []
    assert SINK in await claims.sinks()
    assert claims.server.started == 2


async def test_the_server_stays_while_somebody_is_connected_also_from_another_network_namespace(
    claims: Claims,
) -> None:
    environment = dict(claims.stack.environment) | {"PULSE_SERVER": f"unix:{claims.pulse}"}
    listener = await asyncio.create_subprocess_exec(
        "unshare", "--net", "pactl", "subscribe", env=environment, stdout=asyncio.subprocess.DEVNULL
    )
    try:
        await until(lambda: claims.pid is not None)
        pid = claims.pid
        await asyncio.sleep(6 * pulse.IDLE_SECONDS)
        assert (claims.pid, claims.server.started) == (pid, 1)
    finally:
        listener.kill()
        await listener.wait()
    await until(lambda: claims.pid is None)


async def test_a_connection_that_comes_as_the_server_is_stopped_finds_the_next_one(
    claims: Claims, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = pulse._Process.stop_if_unused
    late = socket.socket(socket.AF_UNIX)

    def stop_and_connect(process: pulse._Process, listening: int) -> bool:
        is_stopped = stop(process, listening)
        if is_stopped and claims.server.started == 1:
            late.connect(str(claims.pulse))
        return is_stopped

    monkeypatch.setattr(pulse._Process, "stop_if_unused", stop_and_connect)
    await claims.sinks()
    await until(lambda: claims.server.started == 2)
    late.close()


async def test_a_server_that_was_killed_is_there_again_for_the_next_client(claims: Claims) -> None:
    await claims.sinks()
    pid = claims.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    await until(lambda: claims.pid is None)
    assert SINK in await claims.sinks()


async def test_a_server_that_cannot_start_is_an_error_for_the_client_and_no_loop(
    claims: Claims, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = workspace / "bin"
    broken.mkdir()
    for name in ("sh", "setpriv"):
        (broken / name).symlink_to(shutil.which(name) or "")
    path = os.environ["PATH"]
    monkeypatch.setenv("PATH", str(broken))
    monkeypatch.setattr(
        claims.stack.__class__, "environment", claims.stack.environment | {"PATH": path}
    )
    code, output = await claims.pactl("info")
    assert (code, "Connection failure" in output) == (1, True)
    assert claims.server.started == 1
    monkeypatch.setenv("PATH", path)
    assert SINK in await claims.sinks()


async def test_pipewire_s_restart_ends_the_server_and_the_next_client_finds_a_new_one(
    claims: Claims,
) -> None:
    await claims.sinks()
    pid = claims.pid
    await asyncio.to_thread(claims.stack.restart_pipewire)
    await asyncio.to_thread(claims.stack.make_null_node, SINK, device=SINK)
    await until(lambda: claims.holder.created == 2)
    assert not Path(f"/proc/{pid}").exists()
    assert SINK in await claims.sinks()


async def test_closing_the_claim_ends_the_server_and_its_clients(claims: Claims) -> None:
    client = socket.socket(socket.AF_UNIX)
    client.connect(str(claims.pulse))
    await until(lambda: claims.pid is not None)
    pid = claims.pid
    await claims.client.close("a")
    client.settimeout(2.0)  # the contract's
    assert await asyncio.to_thread(is_hung_up, client)
    client.close()
    await until(lambda: not Path(f"/proc/{pid}").exists())
    assert list(claims.private.iterdir()) == []


def is_hung_up(client: socket.socket) -> bool:
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


async def test_the_server_s_socket_is_anybody_s_and_its_way_to_pipewire_nobody_else_s(
    claims: Claims,
) -> None:
    await claims.sinks()
    assert claims.pulse.stat().st_mode & 0o777 == 0o666
    assert claims.private.stat().st_mode & 0o777 == 0o700


async def test_what_the_server_says_is_a_line_of_the_log(
    claims: Claims, capfd: pytest.CaptureFixture[str]
) -> None:
    await claims.sinks()
    process = claims.server._process
    assert process is not None
    Path(f"/proc/{process._pid}/fd/2").write_text("first\nsecond\n")
    await asyncio.sleep(0)
    await until(lambda: claims.pid is None)
    printed = capfd.readouterr()
    assert (printed.out + printed.err).count("pipewire-pulse says") == 2


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


async def test_many_claims_leave_no_descriptor_and_no_process(claims: Claims) -> None:
    before = descriptors()
    refs = [claim_ref(f"many-{number}") for number in range(20)]
    for ref in refs:
        await claims.client.open(claim_record(claimed_device(device=SINK), ref=ref))
    servers = [claims.holder._held[ref.uid].pulse for ref in refs]
    clients = []
    for ref in refs:
        clients.append(socket.socket(socket.AF_UNIX))
        clients[-1].connect(str(claims.pulse.parents[1] / ref.uid / "pulse"))
    await until(lambda: all(each and each._process for each in servers))
    processes = [each._process._pid for each in servers if each and each._process]
    for ref in refs:
        await claims.client.close(ref.uid)
    for client in clients:
        client.close()
    await until(lambda: descriptors() <= before)
    assert len(processes) == 20
    assert not [pid for pid in processes if Path(f"/proc/{pid}").exists()]
