"""Runs in the guest: a loopback port of the host's, under the same number.

    python -m tests.harness.guest.relay PORT

So a kubeconfig made on the host holds in the guest too, certificate and all.
"""

import asyncio
import contextlib
import sys

HOST = "10.0.2.2"
"""The host's loopback, as QEMU's user network shows it."""


async def _serve(port: int) -> None:
    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(HOST, port)
        await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))

    server = await asyncio.start_server(pass_on, "127.0.0.1", port)
    await server.serve_forever()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    with contextlib.suppress(OSError):
        writer.close()
        await writer.wait_closed()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1])))
