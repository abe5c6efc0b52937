"""A program that lets a node without a network reach one address of this machine: the API server.

usage: python -m tests.harness.real_node_door PID TARGET LISTEN...

It listens in the network namespace of the process PID and connects in its own; TARGET and LISTEN are
`address:port`. A socket stays in the namespace in which it was made.
"""

import asyncio
import contextlib
import ctypes
import os
import socket
import sys
from collections.abc import Sequence

_CLONE_NEWNET = 0x40000000
_CHUNK = 65_536


def main(arguments: Sequence[str]) -> None:
    """Listen, say so on standard output, and forward until we are ended."""
    pid, target, *listen = arguments
    own = os.open("/proc/self/ns/net", os.O_RDONLY)
    theirs = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    _enter(theirs)
    sockets = [socket.create_server(_address(each)) for each in listen]
    _enter(own)
    print("listening", flush=True)
    asyncio.run(_serve(sockets, _address(target)))


async def _serve(sockets: Sequence[socket.socket], target: tuple[str, int]) -> None:
    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            far_reader, far_writer = await asyncio.open_connection(*target)
            await asyncio.gather(_pass(reader, far_writer), _pass(far_reader, writer))

    servers = [await asyncio.start_server(accepted, sock=each) for each in sockets]
    await asyncio.gather(*(each.serve_forever() for each in servers))


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
    # The other direction ends with it: HTTP keeps no half of a connection open.
    writer.close()


def _enter(namespace: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, _CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


if __name__ == "__main__":
    main(sys.argv[1:])
