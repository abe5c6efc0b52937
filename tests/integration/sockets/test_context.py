"""A security context in a real PipeWire: takes a socket's place whole, and shows when PipeWire is gone."""

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from liken_audio.sockets.connection import PipeWireConnection
from liken_audio.sockets.context import listen, make_context
from tests.harness.sound_stack import SoundStack

PROPERTIES = {"pipewire.sec.engine": "test", "pipewire.access": "claim"}
SECONDS = 45.0


@pytest.fixture
async def connection(sound_stack: SoundStack) -> AsyncIterator[PipeWireConnection]:
    made = await PipeWireConnection.connect(str(sound_stack.remote))
    serving = asyncio.get_running_loop().create_task(made.serve())
    await made.set_up()
    yield made
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)
    made.close()


def connected(path: Path) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.connect(str(path))
    return client


async def test_the_new_context_takes_the_old_one_s_place_and_leaves_its_clients_alone(
    connection: PipeWireConnection, workspace: Path
) -> None:
    path = workspace / "socket"
    first = await make_context(connection, path, PROPERTIES)
    client = connected(path)
    second = await make_context(connection, path, PROPERTIES)
    assert (first.is_at(path), second.is_at(path)) == (False, True)
    client.settimeout(0.3)
    with pytest.raises(TimeoutError):
        client.recv(1)
    first.close()
    client.settimeout(SECONDS)
    assert await asyncio.to_thread(client.recv, 1) == b""
    client.close()
    connected(path).close()
    second.close()
    assert [each.name for each in workspace.iterdir() if each.name.startswith(".")] == []


async def test_a_context_that_cannot_be_made_leaves_the_old_one_in_its_place(
    connection: PipeWireConnection, workspace: Path
) -> None:
    path = workspace / "socket"
    first = await make_context(connection, path, PROPERTIES)
    connection._stream.shutdown(socket.SHUT_RDWR)
    with pytest.raises(OSError, match="Broken pipe"):
        await make_context(connection, path, PROPERTIES)
    assert first.is_at(path)
    assert [each.name for each in workspace.iterdir() if each.name.startswith(".")] == []
    connected(path).close()
    first.close()


async def test_a_context_is_alive_until_pipewire_ends_whatever_becomes_of_the_connection(
    connection: PipeWireConnection, sound_stack: SoundStack, workspace: Path
) -> None:
    context = await make_context(connection, workspace / "socket", PROPERTIES)
    connection._stream.shutdown(socket.SHUT_RDWR)
    assert context.is_alive()
    await asyncio.to_thread(sound_stack.pipewire.kill)
    assert not context.is_alive()
    context.close()


def test_a_socket_listens_under_a_path_that_is_too_long_for_one(workspace: Path) -> None:
    folder = workspace / ("d" * 150)
    folder.mkdir()
    (folder / "socket").write_text("left over")
    with listen(folder / "socket"):
        assert (folder / "socket").stat().st_mode & 0o777 == 0o666
        short = workspace / "short"
        short.symlink_to(folder / "socket")
        connected(short).close()
