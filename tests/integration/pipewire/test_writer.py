"""Writes to a real PipeWire, and pw-clis that misbehave."""

import asyncio
import errno
import os
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from liken_audio.graph.device_graph import DeviceGraph
from liken_audio.graph.model import (
    Direction,
    Linear,
    Node,
    NodeId,
    NodeRecipe,
    NodeSerial,
    Route,
    Source,
)
from liken_audio.pipewire import writer as module
from liken_audio.pipewire.watcher import PipeWireWatcher
from liken_audio.pipewire.writer import PipeWireWriter
from tests import builders
from tests.harness.processes import Workspace
from tests.harness.sound_stack import SoundStack

SECONDS = 45
SINK = builders.recipe()
PROPERTIES = {"object.linger": "true"}


@pytest.fixture(scope="module")
def stack() -> Iterator[SoundStack]:
    """One PipeWire for all tests here; each uses a node name of its own."""
    with Workspace("writer") as made, SoundStack(made.path / "sound") as running:
        yield running


@pytest.fixture
def fake_pw_cli(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Put a shell script in the place of pw-cli."""

    def put(script: str) -> None:
        program = workspace / "pw-cli"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{workspace}:{os.environ['PATH']}")

    return put


@asynccontextmanager
async def followed(stack: SoundStack) -> AsyncIterator[DeviceGraph]:
    """A graph that follows the PipeWire."""
    graph = DeviceGraph([Source.PIPEWIRE])
    async with asyncio.TaskGroup() as group:
        task = group.create_task(PipeWireWatcher(graph, str(stack.remote)).run())
        await until(lambda: not graph.view().lost)
        yield graph
        task.cancel()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(SECONDS):
        while not condition():
            await asyncio.sleep(0.01)


def named(graph: DeviceGraph, name: str) -> list[Node]:
    return [each for each in graph.view().nodes if each.name == name]


async def made(
    graph: DeviceGraph, writer: PipeWireWriter, name: str, recipe: NodeRecipe = SINK
) -> Node:
    """Make a node and wait until it shows."""
    await writer.create_node(name, recipe, PROPERTIES)
    await until(lambda: named(graph, name))
    return named(graph, name)[0]


@asynccontextmanager
async def played(
    stack: SoundStack, graph: DeviceGraph, folder: Path, name: str
) -> AsyncIterator[None]:
    """Play silence to a node, so that it runs and announces what is written."""
    silence = folder / "silence.raw"
    silence.write_bytes(bytes(48_000 * 4 * 60))
    player = subprocess.Popen(
        ["pw-play", "--raw", f"--target={name}", str(silence)], env=dict(stack.environment)
    )
    try:
        await until(lambda: named(graph, name)[0].state == "running")
        yield
    finally:
        player.kill()
        player.wait()


async def test_a_node_is_made_at_full_volume_and_outlives_its_maker(stack: SoundStack) -> None:
    writer = PipeWireWriter(str(stack.remote))
    async with followed(stack) as graph:
        node = await made(graph, writer, "maker")
    assert node.volumes == (1.0, 1.0)
    assert not node.is_muted
    assert node.positions == ("FL", "FR")
    assert "maker" in stack.nodes()
    assert writer.writes == 1


async def test_a_null_source_is_made_too(stack: SoundStack) -> None:
    recipe = builders.recipe(Direction.CAPTURE)
    async with followed(stack) as graph:
        node = await made(graph, PipeWireWriter(str(stack.remote)), "source", recipe)
    assert node.media_class == "Audio/Source/Virtual"


async def test_the_volume_of_all_channels_is_set(stack: SoundStack, workspace: Path) -> None:
    writer = PipeWireWriter(str(stack.remote))
    async with followed(stack) as graph:
        node = await made(graph, writer, "volume")
        async with played(stack, graph, workspace, "volume"):
            await writer.set_volume(node, Linear(0.125))
            await until(lambda: named(graph, "volume")[0].volumes == (0.125, 0.125))
            await writer.set_volume(node, Linear(0.0))
            await until(lambda: named(graph, "volume")[0].volumes == (0.0, 0.0))
            await writer.set_volume(node, Linear(1.953125))
            await until(lambda: named(graph, "volume")[0].volumes == (1.953125, 1.953125))


async def test_a_volume_that_another_program_set_beside_the_channels_is_seen_and_undone(
    stack: SoundStack, workspace: Path
) -> None:
    writer = PipeWireWriter(str(stack.remote))
    async with followed(stack) as graph:
        node = await made(graph, writer, "beside")
        async with played(stack, graph, workspace, "beside"):
            stack.run("pw-cli", "set-param", str(node.id), "Props", "{ volume: 4.0 }")
            await until(lambda: named(graph, "beside")[0].volumes == (4.0, 4.0))
            await writer.set_volume(named(graph, "beside")[0], Linear(0.125))
            await until(lambda: named(graph, "beside")[0].volumes == (0.125, 0.125))


async def test_a_node_is_muted_and_unmuted(stack: SoundStack, workspace: Path) -> None:
    writer = PipeWireWriter(str(stack.remote))
    async with followed(stack) as graph:
        node = await made(graph, writer, "mute")
        async with played(stack, graph, workspace, "mute"):
            await writer.set_mute(node, is_muted=True)
            await until(lambda: named(graph, "mute")[0].is_muted)
            await writer.set_mute(node, is_muted=False)
            await until(lambda: not named(graph, "mute")[0].is_muted)
            assert named(graph, "mute")[0].volumes == (1.0, 1.0)


async def test_a_write_to_a_suspended_node_shows_once_it_runs(
    stack: SoundStack, workspace: Path
) -> None:
    """U20."""
    writer = PipeWireWriter(str(stack.remote))
    async with followed(stack) as graph:
        node = await made(graph, writer, "asleep")
        await writer.set_volume(node, Linear(0.5))
        async with played(stack, graph, workspace, "asleep"):
            await until(lambda: named(graph, "asleep")[0].volumes == (0.5, 0.5))


@pytest.mark.parametrize("volume", [-0.1, 10.1, float("nan"), float("inf")])
async def test_what_is_no_volume_is_refused(volume: float) -> None:
    writer = PipeWireWriter("/nowhere")
    with pytest.raises(OSError, match="from 0 to 10") as raised:
        await writer.set_volume(builders.node("any"), Linear(volume))
    assert raised.value.errno == errno.EINVAL


async def test_a_node_is_removed_and_removing_it_again_is_fine(stack: SoundStack) -> None:
    writer = PipeWireWriter(str(stack.remote))
    async with followed(stack) as graph:
        node = await made(graph, writer, "short-lived")
        await writer.destroy_node(node)
        await until(lambda: not named(graph, "short-lived"))
    await writer.destroy_node(node)
    assert writer.errors == 0


async def test_a_node_whose_id_was_used_again_is_left_alone(stack: SoundStack) -> None:
    writer = PipeWireWriter(str(stack.remote))
    async with followed(stack) as graph:
        node = await made(graph, writer, "reused")
        stranger = replace(node, serial=NodeSerial(node.serial - 1))
        await writer.destroy_node(stranger)
        with pytest.raises(FileNotFoundError):
            await writer.set_volume(stranger, Linear(0.5))
        with pytest.raises(FileNotFoundError):
            await writer.set_mute(stranger, is_muted=True)
        assert named(graph, "reused") == [node]
        assert "reused" in stack.nodes()


async def test_a_volume_for_a_node_that_is_gone_says_so(stack: SoundStack) -> None:
    gone = builders.node("gone", id=NodeId(9999))
    writer = PipeWireWriter(str(stack.remote))
    with pytest.raises(FileNotFoundError, match="9999"):
        await writer.set_volume(gone, Linear(0.5))
    assert (writer.writes, writer.errors) == (0, 1)


async def test_properties_arrive_as_they_are(stack: SoundStack) -> None:
    odd = {
        "node.description": 'quote " hash # back \\ brace } bracket ] colon: = , é 平 😀 \t \n end',
        "some.key": "${HOME} $(id) `id` ; | & ' {",
        "empty": "",
    }
    writer = PipeWireWriter(str(stack.remote))
    async with followed(stack) as graph:
        await writer.create_node("odd", SINK, PROPERTIES | odd)
        await until(lambda: named(graph, "odd"))
        found = named(graph, "odd")[0].properties
    assert {key: found.get(key) for key in odd} == odd


async def test_too_many_properties_are_refused_and_not_cut(stack: SoundStack) -> None:
    """pw-cli would write over the end of its buffer."""
    writer = PipeWireWriter(str(stack.remote))
    with pytest.raises(OSError, match="longer than") as raised:
        await writer.create_node("big", SINK, PROPERTIES | {"text": "x" * 4000})
    assert raised.value.errno == errno.E2BIG
    await writer.create_node("nearly-big", SINK, PROPERTIES | {"text": "x" * 3700})
    assert len(stack.nodes()["nearly-big"]["props"]["text"]) == 3700


async def test_without_a_pipewire_a_write_fails_at_once(workspace: Path) -> None:
    writer = PipeWireWriter(str(workspace / "pipewire-0"))
    with pytest.raises(OSError, match="Host is down"):
        await writer.create_node("nobody", SINK, PROPERTIES)
    with pytest.raises(OSError, match="Host is down"):
        await writer.set_volume(builders.node("nobody"), Linear(0.5))
    with pytest.raises(OSError, match="Host is down"):
        await writer.destroy_node(builders.node("nobody"))
    assert writer.errors == 3


async def test_an_error_of_pw_cli_is_seen_though_it_exits_with_0(
    fake_pw_cli: Callable[[str], None],
) -> None:
    fake_pw_cli("echo 'Error: \"something is wrong\"' >&2; exit 0")
    with pytest.raises(OSError, match="something is wrong"):
        await PipeWireWriter("/nowhere").create_node("n", SINK, PROPERTIES)


async def test_an_error_that_pipewire_told_is_seen(fake_pw_cli: Callable[[str], None]) -> None:
    fake_pw_cli(
        "echo '[E] remote 0x5: error id:3 seq:4 res:-1 (Denied): no such thing' >&2; exit 0"
    )
    with pytest.raises(OSError, match="no such thing"):
        await PipeWireWriter("/nowhere").create_node("n", SINK, PROPERTIES)


async def test_an_exit_code_is_an_error_without_words_too(
    fake_pw_cli: Callable[[str], None],
) -> None:
    fake_pw_cli("exit 7")
    with pytest.raises(OSError, match="exit code 7"):
        await PipeWireWriter("/nowhere").create_node("n", SINK, PROPERTIES)


async def test_a_pw_cli_that_hangs_is_ended_at_its_deadline(
    fake_pw_cli: Callable[[str], None], workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WRITE_SECONDS", 0.3)
    fake_pw_cli(f"echo $$ >> {workspace}/pids; exec sleep 1000")
    writer = PipeWireWriter("/nowhere")
    with pytest.raises(TimeoutError, match="didn't take the write"):
        await writer.create_node("n", SINK, PROPERTIES)
    assert are_gone(workspace / "pids")
    assert writer.errors == 1


async def test_a_cancelled_write_leaves_no_process(
    fake_pw_cli: Callable[[str], None], workspace: Path
) -> None:
    fake_pw_cli(f"echo $$ >> {workspace}/pids; exec sleep 1000")
    writer = PipeWireWriter("/nowhere")
    async with asyncio.TaskGroup() as group:
        task = group.create_task(writer.create_node("n", SINK, PROPERTIES))
        await until((workspace / "pids").exists)
        task.cancel()
    assert are_gone(workspace / "pids")


async def test_no_more_than_four_run_at_once(
    fake_pw_cli: Callable[[str], None], workspace: Path
) -> None:
    fake_pw_cli(f"echo + >> {workspace}/log; sleep 0.05; echo - >> {workspace}/log")
    writer = PipeWireWriter("/nowhere")
    async with asyncio.TaskGroup() as group:
        for number in range(20):
            group.create_task(writer.create_node(f"n{number}", SINK, PROPERTIES))
    running = most = 0
    for mark in (workspace / "log").read_text().split():
        running += 1 if mark == "+" else -1
        most = max(most, running)
    assert writer.writes == 20
    assert 2 <= most <= module.MAX_AT_ONCE


async def test_a_pw_cli_that_isnt_there_is_named(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(workspace))
    with pytest.raises(FileNotFoundError, match=r"not installed.*pw-cli"):
        await PipeWireWriter("/nowhere").create_node("n", SINK, PROPERTIES)


def are_gone(file: Path) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in file.read_text().split())


def radio_pw_cli(workspace: Path) -> str:
    return (
        f'echo "$@" >> {workspace}/calls\n'
        '[ "$1" != list-objects ] || echo "	id 46, type PipeWire:Interface:Device/3"'
    )


async def test_a_volume_goes_to_the_route_of_the_nodes_device(
    fake_pw_cli: Callable[[str], None], workspace: Path
) -> None:
    fake_pw_cli(radio_pw_cli(workspace))
    route = Route(device_id=NodeId(46), device_serial=NodeSerial(47), index=1, device=1)
    speaker = builders.speaker_node(volumes=(Linear(1.0), Linear(1.0)), route=route)
    writer = PipeWireWriter("/nowhere")
    await writer.set_volume(speaker, Linear(0.125))
    await writer.set_mute(speaker, is_muted=True)
    calls = [each for each in (workspace / "calls").read_text().splitlines() if "set-param" in each]
    assert calls == [
        "set-param 46 Route { index: 1, device: 1, props: { channelVolumes: [ 0.12500000, 0.12500000 ] } }",
        "set-param 46 Route { index: 1, device: 1, props: { mute: true } }",
    ]
    assert writer.writes == 2


async def test_a_codec_is_written_by_its_number_and_a_profile_by_its_index(
    fake_pw_cli: Callable[[str], None], workspace: Path
) -> None:
    fake_pw_cli(radio_pw_cli(workspace))
    writer = PipeWireWriter("/nowhere")
    card = builders.bluetooth_card()
    await writer.set_codec(card, "sbc_xq")
    await writer.set_profile(card, card.profiles[1])
    calls = [each for each in (workspace / "calls").read_text().splitlines() if "set-param" in each]
    assert calls == [
        "set-param 46 Props { bluetoothAudioCodec: 2 }",
        "set-param 46 Profile { index: 131073, save: false }",
    ]


async def test_a_codec_that_is_not_offered_is_not_written(
    fake_pw_cli: Callable[[str], None], workspace: Path
) -> None:
    fake_pw_cli(radio_pw_cli(workspace))
    with pytest.raises(OSError, match="offered are sbc, sbc_xq, aac, not 'ldac'"):
        await PipeWireWriter("/nowhere").set_codec(builders.bluetooth_card(), "ldac")
    assert not (workspace / "calls").exists()


async def test_a_device_that_is_gone_is_not_written_to(
    fake_pw_cli: Callable[[str], None],
) -> None:
    fake_pw_cli('[ "$1" != list-objects ] || echo "	id 46, type PipeWire:Interface:Node/3"')
    with pytest.raises(FileNotFoundError, match=r"device 46 \(serial 47\) is gone"):
        await PipeWireWriter("/nowhere").set_codec(builders.bluetooth_card(), "aac")
