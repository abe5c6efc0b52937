"""A connection to PipeWire: the real one, and partners that misbehave."""

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from liken_audio.sockets import connection
from liken_audio.sockets.connection import PipeWireConnection, PipeWireError
from liken_audio.sockets.protocol import SECURITY_CONTEXT, Global
from tests.harness.sound_stack import SoundStack

Converse = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def serving(path: Path, converse: Converse) -> AsyncIterator[None]:
    """A stand-in for PipeWire that says what the test wants."""
    talks: list[asyncio.Task[None]] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await converse(reader, writer)
        finally:
            writer.close()

    def start(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talks.append(asyncio.get_running_loop().create_task(talk(reader, writer)))

    server = await asyncio.start_unix_server(start, path)
    try:
        yield
    finally:
        server.close()
        for task in talks:
            task.cancel()
        await asyncio.gather(*talks, return_exceptions=True)


@asynccontextmanager
async def connected(remote: Path) -> AsyncIterator[PipeWireConnection]:
    made = await PipeWireConnection.connect(str(remote))
    reading = asyncio.get_running_loop().create_task(made.serve())
    try:
        yield made
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        made.close()


async def test_the_manager_s_socket_is_taken_where_there_is_one(sound_stack: SoundStack) -> None:
    async with connected(sound_stack.remote) as made:
        assert made.path == f"{sound_stack.remote}-manager"
        await made.set_up()


async def test_else_the_plain_one_is(sound_stack: SoundStack) -> None:
    Path(f"{sound_stack.remote}-manager").unlink()
    async with connected(sound_stack.remote) as made:
        assert made.path == str(sound_stack.remote)
        await made.set_up()


async def test_where_there_is_neither_the_path_is_named(workspace: Path) -> None:
    with pytest.raises(FileNotFoundError, match="pipewire-0"):
        await PipeWireConnection.connect(str(workspace / "pipewire-0"))


async def test_a_refusal_is_an_error_with_pipewire_s_reason(sound_stack: SoundStack) -> None:
    async with connected(sound_stack.remote) as made:
        await made.set_up()
        # The registry was given up in set_up: PipeWire doesn't know it any more.
        with pytest.raises(PipeWireError, match="PipeWire refuses: unknown resource 2"):
            await made._request(made._encoder.bind(Global(9999, SECURITY_CONTEXT, 3)))
        await made._request(b"")  # and the connection is still of use


async def test_a_partner_that_never_answers_is_given_up(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "DEADLINE", 0.1)

    async def silent(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with serving(workspace / "pw", silent), connected(workspace / "pw") as made:
        with pytest.raises(TimeoutError, match=r"doesn't answer"):
            await made.set_up()


async def test_a_partner_that_hangs_up_ends_the_question_under_way(workspace: Path) -> None:
    async def hang_up(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.read(16)

    async with serving(workspace / "pw", hang_up), connected(workspace / "pw") as made:
        for _ in range(2):
            with pytest.raises(OSError, match=r"ended the connection|Broken pipe"):
                await made.set_up()


async def test_a_partner_that_speaks_something_else_is_an_error(workspace: Path) -> None:
    async def http(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(struct.pack("=IIII", 0, 1 << 24 | 8, 0, 0) + b"HTTP/1.1")
        await writer.drain()
        await asyncio.Event().wait()

    async with serving(workspace / "pw", http):
        made = await PipeWireConnection.connect(str(workspace / "pw"))
        with pytest.raises(PipeWireError, match="doesn't speak PipeWire's protocol"):
            await asyncio.wait_for(made.serve(), 10)
        made.close()


async def test_a_pipewire_without_security_contexts_is_an_error_that_says_what_to_load(
    workspace: Path,
) -> None:
    async def bare(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(4096)
        number = struct.Struct("=IIi4x")
        inner = number.pack(4, 4, 0) + number.pack(4, 4, 1)
        body = struct.pack("=II", len(inner), 14) + inner
        writer.write(struct.pack("=IIII", 0, 1 << 24 | len(body), 0, 0) + body)
        await writer.drain()
        await reader.read()

    async with serving(workspace / "pw", bare), connected(workspace / "pw") as made:
        with pytest.raises(PipeWireError, match="libpipewire-module-security-context"):
            await made.set_up()
