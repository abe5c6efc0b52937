"""What passes between a real client and a claim's socket: heard, kept, and spoken into.

A stream that plays for real needs libpipewire; what it is given, and what may be said in its name,
is had here: the client connects to the wiretap's socket, which connects to the claim's.
"""

import contextlib
import os
import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

_HEADER = struct.Struct("=IIII")
USE_BUFFERS = 8
"""The event of a client's node by which it gets its buffers."""

Hook = Callable[[int, int, bytes], bytes]
"""Object id, opcode and body of what PipeWire said → what to say to it in the client's name."""


class Wiretap:
    """A socket at `path` that leads to the one at `target`; a context manager."""

    def __init__(self, path: Path, target: Path, hook: Hook | None = None) -> None:
        self.descriptors: list[int] = []
        """All that PipeWire passed to the clients."""
        self._target = target
        self._hook = hook
        self._sockets: list[socket.socket] = []
        self._listening = self._keep(socket.socket(socket.AF_UNIX))
        path.unlink(missing_ok=True)
        self._listening.bind(str(path))
        path.chmod(0o666)
        self._listening.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def memories(self) -> dict[int, tuple[int, int]]:
        """Descriptor and size of each shared memory that the clients got, by inode."""
        found = {}
        for each in list(self.descriptors):
            if "memfd" in str(Path(f"/proc/self/fd/{each}").readlink()):
                status = os.fstat(each)
                found[status.st_ino] = (each, status.st_size)
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for each in self._sockets:
            hang_up(each)
        for descriptor in self.descriptors:
            os.close(descriptor)

    def _keep(self, one: socket.socket) -> socket.socket:
        self._sockets.append(one)
        return one

    def _accept(self) -> None:
        while True:
            try:
                client = self._keep(self._listening.accept()[0])
            except OSError:
                return
            server = self._keep(socket.socket(socket.AF_UNIX))
            server.connect(str(self._target))
            pairs = [(client, server, False), (server, client, True)]
            for source, drain, is_server in pairs:
                arguments = (source, drain, is_server)
                threading.Thread(target=self._pump, args=arguments, daemon=True).start()

    def _pump(self, source: socket.socket, drain: socket.socket, is_server: bool) -> None:
        heard = b""
        try:
            while True:
                data, descriptors, _, _ = socket.recv_fds(source, 65536, 64)
                if not data:
                    break
                sent = socket.send_fds(drain, [data], descriptors) if descriptors else 0
                drain.sendall(data[sent:])
                self.descriptors += descriptors
                if is_server and self._hook is not None:
                    heard = self._answer(heard + data, source)
        except OSError:
            pass
        for each in (source, drain):
            hang_up(each)

    def _answer(self, heard: bytes, server: socket.socket) -> bytes:
        """Call the hook for each whole message; return what is left."""
        while len(heard) >= _HEADER.size:
            object_id, word, _, _ = _HEADER.unpack_from(heard)
            end = _HEADER.size + (word & 0xFFFFFF)
            if len(heard) < end:
                break
            body, heard = heard[_HEADER.size : end], heard[end:]
            answer = self._hook(object_id, word >> 24, body) if self._hook else b""
            if answer:
                server.sendall(answer)
        return heard


def hang_up(one: socket.socket) -> None:
    """End a socket that another thread may wait for."""
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
