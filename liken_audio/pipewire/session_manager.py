"""WirePlumber's restart, asked for by a file: the agent has no right to end another container's process.

The file is in a folder that both containers mount; WirePlumber's liveness probe fails while it is
there, so the kubelet restarts that container, whose start removes the file. Outside of a pod a
service's path unit does the same. A file that is still there was not answered: nobody watches it.
"""

import asyncio
import errno
from pathlib import Path


class RestartFile:
    """Satisfies `controllers.ports.SessionManager`."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.requests = 0

    async def restart(self) -> None:
        """Make the file; `OSError` when it can't be made, or when the last one was not answered."""
        if not self._path:
            raise OSError(errno.ENOTSUP, "no file is set that it watches (--wireplumber-restart)")
        await asyncio.to_thread(_make, Path(self._path))
        self.requests += 1


def _make(path: Path) -> None:
    try:
        path.touch(exist_ok=False)
    except FileExistsError:
        raise FileExistsError(
            errno.EEXIST, "the last request was not answered: does anything watch it?", str(path)
        ) from None
