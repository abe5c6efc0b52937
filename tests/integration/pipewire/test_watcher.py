"""The watcher against a PipeWire that comes, changes and dies, and pw-dumps that misbehave."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from liken_audio.graph.device_graph import DeviceGraph
from liken_audio.graph.model import Node, Source
from liken_audio.pipewire import watcher as module
from liken_audio.pipewire.watcher import PipeWireWatcher
from tests.harness.processes import Workspace, wait_until
from tests.harness.sound_stack import SoundStack

SECONDS = 45
"""Deadline of everything that is awaited here."""
TREE = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def stack() -> Iterator[SoundStack]:
    """One PipeWire for the tests that leave it as it was."""
    with Workspace("watcher") as made, SoundStack(made.path / "sound") as running:
        yield running


@pytest.fixture
def fake_pw_dump(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Put a shell script in the place of pw-dump."""

    def put(script: str) -> None:
        program = workspace / "pw-dump"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{workspace}:{os.environ['PATH']}")

    return put


@asynccontextmanager
async def watching(remote: object) -> AsyncIterator[tuple[DeviceGraph, PipeWireWatcher]]:
    """Run a watcher; it leaves no process behind."""
    graph = DeviceGraph([Source.PIPEWIRE])
    watcher = PipeWireWatcher(graph, str(remote))
    async with asyncio.TaskGroup() as group:
        task = group.create_task(watcher.run())
        yield graph, watcher
        task.cancel()
    assert pw_dumps(os.getpid()) == []


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(SECONDS):
        while not condition():
            await asyncio.sleep(0.01)


def pw_dumps(parent: int) -> list[int]:
    """The pids of the pw-dumps that a process has started and that still run."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = status.read_text().rpartition(")")
        except OSError:
            continue
        state, its_parent = rest.split()[:2]
        if name.endswith("(pw-dump") and int(its_parent) == parent and state != "Z":
            found.append(int(status.parent.name))
    return found


def node(graph: DeviceGraph, name: str) -> Node | None:
    found = [each for each in graph.view().nodes if each.name == name]
    return found[0] if found else None


def is_lost(graph: DeviceGraph) -> bool:
    return Source.PIPEWIRE in graph.view().lost


def array(state: str) -> str:
    """A node as pw-dump prints it, with the 12 KB that it prints of formats."""
    props = {"node.name": "n", "object.serial": 40, "media.class": "Audio/Sink"}
    params = {"EnumFormat": [{"rate": rate} for rate in range(700)]}
    info = {"state": state, "props": props, "params": params}
    value = [{"id": 40, "type": "PipeWire:Interface:Node", "info": info}]
    return json.dumps(value, indent=2) + "\n"


async def test_a_node_is_followed_from_its_making_to_its_end(stack: SoundStack) -> None:
    async with watching(stack.remote) as (graph, _):
        await until(lambda: not is_lost(graph))
        stack.make_null_node("followed")
        await until(lambda: node(graph, "followed"))
        found = node(graph, "followed")
        assert found is not None
        assert (found.media_class, found.volumes) == ("Audio/Sink", (1.0, 1.0))
        stack.run("pw-cli", "destroy", str(found.id))
        await until(lambda: node(graph, "followed") is None)


async def test_a_running_nodes_volume_shows(stack: SoundStack, workspace: Path) -> None:
    stack.make_null_node("loud")
    silence = workspace / "silence.raw"
    silence.write_bytes(bytes(48_000 * 4 * 30))
    async with watching(stack.remote) as (graph, _):
        player = subprocess.Popen(
            ["pw-play", "--raw", "--target=loud", str(silence)], env=dict(stack.environment)
        )
        try:
            await until(lambda: (found := node(graph, "loud")) and found.state == "running")
            found = node(graph, "loud")
            assert found is not None
            assert found.rate_hz == 48_000
            stack.run(
                "pw-cli", "set-param", str(found.id), "Props", "{ channelVolumes: [ 0.5 1 ] }"
            )
            await until(lambda: (found := node(graph, "loud")) and found.volumes == (0.5, 1.0))
        finally:
            player.kill()
            player.wait()


async def test_without_a_pipewire_the_graph_is_awaited_and_nothing_is_tried_hot(
    workspace: Path,
) -> None:
    """U16."""
    async with watching(workspace / "pipewire-0") as (graph, watcher):
        await until(lambda: watcher.starts >= 2)
        starts = watcher.starts
        await asyncio.sleep(2)
        assert watcher.starts - starts <= 4
        assert graph.view().awaited == {Source.PIPEWIRE}
        assert watcher.losses == 0


async def test_a_pipewire_that_dies_is_lost_and_followed_again_when_it_is_back(
    sound_stack: SoundStack,
) -> None:
    """U16: pw-dump ends with exit code 0 then."""
    sound_stack.make_null_node("first-life")
    async with watching(sound_stack.remote) as (graph, watcher):
        await until(lambda: node(graph, "first-life"))
        sound_stack.pipewire.kill()
        await until(lambda: is_lost(graph))
        assert graph.view().nodes == ()
        sound_stack.restart_pipewire()
        sound_stack.make_null_node("second-life")
        await until(lambda: node(graph, "second-life"))
        assert not is_lost(graph)
        assert watcher.losses == 1


async def test_a_pw_dump_that_is_killed_is_started_again(stack: SoundStack) -> None:
    async with watching(stack.remote) as (graph, watcher):
        await until(lambda: not is_lost(graph))
        (pid,) = pw_dumps(os.getpid())
        os.kill(pid, signal.SIGKILL)
        await until(lambda: watcher.losses == 1)
        await until(lambda: not is_lost(graph))
        assert watcher.starts == 2


async def test_a_pw_dump_that_says_nothing_is_ended_and_counts_as_lost(
    fake_pw_dump: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FIRST_ARRAY_SECONDS", 0.2)
    fake_pw_dump("printf '[\\n  {\\n'; exec sleep 1000")
    async with watching("/nowhere") as (graph, watcher):
        await until(lambda: watcher.starts == 3)
        assert is_lost(graph)


async def test_a_pw_dump_that_ignores_sigterm_is_killed(
    fake_pw_dump: Callable[[str], None], workspace: Path
) -> None:
    fake_pw_dump(f"trap '' TERM; echo '[]'; echo $$ > {workspace}/pid; while :; do sleep 0.1; done")
    async with watching("/nowhere") as (graph, _):
        await until(lambda: not is_lost(graph))
        await until((workspace / "pid").exists)
    pid = (workspace / "pid").read_text().strip()
    assert not Path(f"/proc/{pid}").exists()


async def test_garbage_is_answered_by_a_fresh_start_and_no_loss(
    fake_pw_dump: Callable[[str], None], workspace: Path
) -> None:
    (workspace / "good").write_text(array("idle"))
    fake_pw_dump(f"cat {workspace}/good; sleep 0.3; echo 'garbage ]['; exec sleep 1000")
    async with watching("/nowhere") as (graph, watcher):
        await until(lambda: watcher.starts == 3)
        assert node(graph, "n")
        assert watcher.losses == 0
        assert watcher.parse_errors >= 2


async def test_garbage_before_the_first_array_is_no_graph(
    fake_pw_dump: Callable[[str], None], workspace: Path
) -> None:
    """What follows a lost first array is only what has changed: nodes would seem to be missing."""
    (workspace / "good").write_text(array("idle"))
    fake_pw_dump(f"echo '[ broken'; cat {workspace}/good; exec sleep 1000")
    async with watching("/nowhere") as (graph, watcher):
        await until(lambda: watcher.starts == 3)
        assert graph.view().awaited == {Source.PIPEWIRE}


async def test_a_pw_dump_that_isnt_there_is_named_once_and_tried_again(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(workspace))
    with capture_logs() as logs:
        async with watching("/nowhere"):
            await asyncio.sleep(0.5)
            (workspace / "pw-dump").write_text("#!/bin/sh\necho '[]'; exec /bin/sleep 1000\n")
            (workspace / "pw-dump").chmod(0o755)
            await until(lambda: any(each["event"].endswith("followed") for each in logs))
    (complaint,) = [each for each in logs if each["log_level"] == "warning"]
    assert complaint["error"] == "pw-dump: not installed"


async def test_each_kind_of_complaint_is_logged_once(fake_pw_dump: Callable[[str], None]) -> None:
    fake_pw_dump(
        "for n in 1 2 3; do echo \"odd object $n\" >&2; done; printf '\\377\\n' >&2; exit 1"
    )
    with capture_logs() as logs:
        async with watching("/nowhere") as (_, watcher):
            await until(lambda: watcher.starts == 3)
    lines = [each["line"] for each in logs if each["event"] == "pw-dump says"]
    assert lines == ["odd object 1", "\ufffd"]


async def test_a_storm_ends_in_its_last_state_and_starves_nobody(
    fake_pw_dump: Callable[[str], None], workspace: Path
) -> None:
    """U18: 10,000 arrays of 12 KB, as fast as they are read."""
    (workspace / "some").write_text("".join(map(array, ["running", "idle"] * 50)))
    fake_pw_dump(f"for n in $(seq 100); do cat {workspace}/some; done; echo '[]'; exec sleep 1000")
    async with watching("/nowhere") as (graph, watcher):
        await until(lambda: not is_lost(graph))
        revision = graph.revision
        loop = asyncio.get_running_loop()
        longest, began = 0.0, loop.time()
        expected = 100 * (workspace / "some").stat().st_size + 3
        async with asyncio.timeout(SECONDS * 3):
            while watcher.bytes_read < expected:
                before = loop.time()
                await asyncio.sleep(0.001)
                longest = max(longest, loop.time() - before)
        assert expected > 100_000_000
        assert graph.revision - revision <= (loop.time() - began) / 0.02 + 1
        assert longest < 5, "another task waited so long"
        found = node(graph, "n")
        assert found is not None
        assert found.state == "idle"


async def test_an_agent_that_is_killed_leaves_no_pw_dump(stack: SoundStack) -> None:
    code = (
        "import asyncio; from liken_audio.graph.device_graph import DeviceGraph\n"
        "from liken_audio.pipewire.watcher import PipeWireWatcher\n"
        f"asyncio.run(PipeWireWatcher(DeviceGraph([]), {str(stack.remote)!r}).run())"
    )
    agent = subprocess.Popen(
        [sys.executable, "-c", code], cwd=TREE, stdout=subprocess.DEVNULL, env=dict(os.environ)
    )
    try:
        wait_until(lambda: bool(pw_dumps(agent.pid)), "pw-dump", SECONDS)
        (pid,) = pw_dumps(agent.pid)
    finally:
        agent.kill()
        agent.wait()
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the end of pw-dump", SECONDS)
