"""A security context in PipeWire, at a socket of ours that it listens on."""

import contextlib
import os
import select
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from liken_audio.sockets.connection import PipeWireConnection

_BACKLOG = 64


@dataclass(frozen=True, slots=True)
class Context:
    """A security context that lives until `close`, until we end, or until PipeWire does."""

    closing: int
    """Our end of a pipe of which PipeWire has the other; in error once PipeWire is gone."""
    inode: int
    """Of the socket's file."""

    def is_at(self, path: Path) -> bool:
        """Whether the socket's file is still this context's."""
        try:
            return path.stat().st_ino == self.inode
        except OSError:
            return False

    def is_alive(self) -> bool:
        """Whether the PipeWire that it was made in still runs."""
        poll = select.poll()
        poll.register(self.closing, 0)
        return not poll.poll(0)

    def close(self) -> None:
        """Have PipeWire disconnect the clients and stop listening; the socket's file stays."""
        os.close(self.closing)


async def make_context(
    connection: PipeWireConnection, path: Path, properties: Mapping[str, str]
) -> Context:
    """Make a security context whose socket takes the place of whatever is at `path`.

    `properties` are stamped on its clients. Raises `OSError` or `TimeoutError`; then `path` is as
    it was.
    """
    new = path.with_name(f".{path.name}")
    listening = listen(new)
    ours, theirs = -1, -1
    try:
        theirs, ours = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        await connection.create_context(listening, theirs, properties)
        inode = new.stat().st_ino
        new.replace(path)
    except BaseException:
        if ours >= 0:
            os.close(ours)
        with contextlib.suppress(OSError):
            new.unlink()
        raise
    finally:
        listening.close()
        if theirs >= 0:
            os.close(theirs)
    return Context(ours, inode)


def listen(path: Path) -> socket.socket:
    """Return a socket that listens at `path`, for any user that can get there.

    Bound through the folder's descriptor: the path of a folder may be longer than a socket's can.
    """
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        short = Path(f"/proc/self/fd/{folder}/{path.name}")
        short.unlink(missing_ok=True)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            listening.bind(str(short))
            short.chmod(0o666)
            listening.listen(_BACKLOG)
        except BaseException:
            listening.close()
            raise
        return listening
    finally:
        os.close(folder)
