"""A device file of /dev/snd: opened, asked by ioctl, read, closed.

All calls may block (a codec that wakes up, a USB device that doesn't answer takes seconds), so
they are made in a thread; `read` alone never blocks. The device is opened for reading and writing
where its permissions allow that, else for reading, which is enough for everything but writes on
some kernels.
"""

import ctypes
import fcntl
import os
from pathlib import Path

from liken_audio.alsa import kernel

_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC
_MAX_ROUNDS = 5
"""How often a list that grows while it is read is read again."""


class DeviceFile:
    """Satisfies `reader.SoundDevice`; every method raises `OSError` with the kernel's errno.

    ENODEV: the card was taken out.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._handle = os.open(path, os.O_RDWR | _FLAGS)
        except PermissionError:
            self._handle = os.open(path, os.O_RDONLY | _FLAGS)

    def fileno(self) -> int:
        """Return the file descriptor."""
        return self._handle

    def ioctl(self, request: int, buffer: bytearray) -> None:
        """Ask the driver; the answer is written over the buffer."""
        fcntl.ioctl(self._handle, request, buffer, True)  # noqa: FBT003 the signature is the library's

    def element_ids(self) -> bytes:
        """Return the ids of all control elements, as an array of `struct snd_ctl_elem_id`."""
        space = 0
        for _ in range(_MAX_ROUNDS):
            room = ctypes.create_string_buffer(max(space, 1) * kernel.ELEMENT_ID_BYTES)
            request = kernel.element_list_request(space, ctypes.addressof(room) if space else 0)
            self.ioctl(kernel.ELEMENT_LIST, request)
            used, count = kernel.element_list(request)
            if used >= count:
                break
            space = count + 16
        return room.raw[: used * kernel.ELEMENT_ID_BYTES]

    def read(self, size: int) -> bytes:
        """Return waiting events; `BlockingIOError` when there is none."""
        return os.read(self._handle, size)

    def close(self) -> None:
        """Close the file."""
        os.close(self._handle)
