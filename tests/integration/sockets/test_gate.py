"""The gate before a claim's security context: passes on, cuts who does harm, ends whole.

The context is a real PipeWire's. Behind the gate a server of the test listens, so that what comes
through is seen to the byte; with PipeWire behind it: test_holder.py, test_adversary.py.
"""

import asyncio
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from liken_audio.sockets.connection import PipeWireConnection
from liken_audio.sockets.context import make_context
from liken_audio.sockets.gate import MOST_CONNECTIONS, Gate
from tests.harness.sound_stack import SoundStack

SECONDS = 45.0
PROPERTIES = {"pipewire.sec.engine": "test", "pipewire.access": "claim"}


def message(object_id: int, opcode: int, value: int, descriptors: int = 0) -> bytes:
    """One message of PipeWire's protocol that holds a structure with one number."""
    number = struct.pack("=IIi4x", 4, 4, value)
    body = struct.pack("=II", len(number), 14) + number
    return struct.pack("=IIII", object_id, opcode << 24 | len(body), 1, descriptors) + body


HELLO = message(0, 1, 4)


@dataclass
class Behind:
    """The server behind the gate: answers each portion with what it got."""

    path: Path
    heard: bytearray = field(default_factory=bytearray)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            self.heard += data
            writer.write(data)
            await writer.drain()
        writer.close()


@dataclass
class Site:
    path: Path
    gate: Gate
    behind: Behind

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_unix_connection(self.path)


@pytest.fixture
async def site(sound_stack: SoundStack, workspace: Path) -> AsyncIterator[Site]:
    connection = await PipeWireConnection.connect(str(sound_stack.remote))
    serving = asyncio.get_running_loop().create_task(connection.serve())
    await connection.set_up()
    context = await make_context(connection, workspace / "context", PROPERTIES)
    behind = Behind(workspace / "behind")
    server = await asyncio.start_unix_server(behind.serve, behind.path)
    gate = Gate(workspace / "gate", behind.path, context, "uid-1")
    try:
        async with asyncio.TaskGroup() as tasks:
            gate.start(tasks)
            yield Site(workspace / "gate", gate, behind)
            gate.close()
    finally:
        server.close()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        connection.close()


async def ended(reader: asyncio.StreamReader) -> bool:
    """Whether the connection was cut; fails when it isn't in time."""
    async with asyncio.timeout(SECONDS):
        try:
            return await reader.read() == b""
        except ConnectionError:
            return True


async def test_words_and_answers_pass_unchanged(site: Site) -> None:
    reader, writer = await site.connect()
    writer.write(HELLO)
    async with asyncio.timeout(SECONDS):
        assert await reader.readexactly(len(HELLO)) == HELLO
    assert bytes(site.behind.heard) == HELLO
    writer.close()


async def test_who_does_harm_is_cut_alone(site: Site) -> None:
    reader, writer = await site.connect()
    bad_reader, bad_writer = await site.connect()
    bad_writer.write(message(0, 2, 0, descriptors=1))
    assert await ended(bad_reader)
    bad_writer.close()
    writer.write(HELLO)
    async with asyncio.timeout(SECONDS):
        assert await reader.readexactly(len(HELLO)) == HELLO
    assert bytes(site.behind.heard) == HELLO
    writer.close()


async def test_no_more_connections_than_are_allowed(site: Site) -> None:
    clients = [await site.connect() for _ in range(MOST_CONNECTIONS)]
    async with asyncio.timeout(SECONDS):
        while site.gate.connections < MOST_CONNECTIONS:
            await asyncio.sleep(0.01)
    reader, writer = await site.connect()
    assert await ended(reader)
    for _, each in [*clients, (reader, writer)]:
        each.close()


async def test_its_end_cuts_every_client_and_takes_the_inner_socket_away(site: Site) -> None:
    reader, writer = await site.connect()
    writer.write(HELLO)
    async with asyncio.timeout(SECONDS):
        await reader.readexactly(len(HELLO))
    site.gate.close()
    assert await ended(reader)
    assert not site.behind.path.exists()
    writer.close()


async def test_it_knows_whether_its_file_is_still_its_own(site: Site) -> None:
    assert site.gate.is_at(site.path)
    site.path.unlink()
    assert not site.gate.is_at(site.path)
    assert site.gate.is_alive()
