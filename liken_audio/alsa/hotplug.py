"""Wakes its owner when a sound device comes or goes.

Two ways, side by side: the kernel's uevents (netlink), and the folder of device files (inotify).
The first isn't allowed in each sandbox and shows nothing in a user namespace; the second needs
/dev/snd to be the kernel's own folder. Neither can be relied on alone, so the owner looks from time
to time as well: often while neither way is open, or once a look has found what neither told.
"""

import asyncio
import ctypes
import os
import socket
from collections.abc import Callable
from pathlib import Path

import structlog

from liken_audio.alsa import kernel

SELDOM_SECONDS = 30.0
OFTEN_SECONDS = 1.0
"""Between two looks of one who isn't told."""

_KERNEL_GROUP = 1
_MESSAGE_BYTES = 16 * 1024
_BUFFER_BYTES = 1024 * 1024
_IN_ATTRIB, _IN_CREATE, _IN_DELETE, _IN_DELETE_SELF = 0x4, 0x100, 0x200, 0x400

log = structlog.get_logger()


class Hotplug:
    """Calls `wake` from the event loop; `open` and `close` are called there too."""

    def __init__(self, folder: Path, wake: Callable[[], None]) -> None:
        self._folder = folder
        self._wake = wake
        self._uevents: socket.socket | None = None
        self._inotify = -1
        self._is_folder_watched = False
        self._is_deaf = False
        self.uevents = 0
        """Kernel uevents of sound devices."""

    @property
    def interval(self) -> float:
        """How long the owner may wait for a wake-up before it looks by itself, in seconds."""
        is_told = self._uevents is not None or self._is_folder_watched
        return SELDOM_SECONDS if is_told and not self._is_deaf else OFTEN_SECONDS

    def missed(self) -> None:
        """Take note that a look found a change that nothing had told of."""
        if not self._is_deaf:
            self._is_deaf = True
            log.info("sound cards are looked for each second: the kernel doesn't tell of them here")

    def open(self) -> None:
        """Begin to listen, in each way that is open here."""
        loop = asyncio.get_running_loop()
        self._uevents = _uevent_socket()
        if self._uevents is not None:
            loop.add_reader(self._uevents, self._read_uevents)
        self._inotify = _inotify()
        if self._inotify >= 0:
            loop.add_reader(self._inotify, self._read_folder)
        self.watch_folder()

    def watch_folder(self) -> None:
        """Begin to watch the folder if it is there and isn't watched; call it at each look."""
        if self._inotify < 0 or self._is_folder_watched:
            return
        mask = _IN_ATTRIB | _IN_CREATE | _IN_DELETE | _IN_DELETE_SELF
        path = os.fsencode(self._folder)
        self._is_folder_watched = _libc().inotify_add_watch(self._inotify, path, mask) >= 0

    def close(self) -> None:
        """Stop listening."""
        loop = asyncio.get_running_loop()
        if self._uevents is not None:
            loop.remove_reader(self._uevents)
            self._uevents.close()
            self._uevents = None
        if self._inotify >= 0:
            loop.remove_reader(self._inotify)
            os.close(self._inotify)
            self._inotify, self._is_folder_watched = -1, False

    def _read_uevents(self) -> None:
        while self._uevents is not None:
            try:
                message, sender = self._uevents.recvfrom(_MESSAGE_BYTES)
            except BlockingIOError:
                return
            except OSError:
                # ENOBUFS: a storm, of which some is lost.
                self._wake()
                return
            event = kernel.uevent(message) if sender[0] == 0 else None
            if event is not None and event.subsystem == "sound":
                self.uevents += 1
                self._wake()

    def _read_folder(self) -> None:
        try:
            data = os.read(self._inotify, _MESSAGE_BYTES)
        except OSError:
            return
        # A folder that is removed takes its watch along; the next look finds a new one.
        self._is_folder_watched = self._is_folder_watched and self._folder.is_dir() and bool(data)
        self._wake()


def _uevent_socket() -> socket.socket | None:
    """Return a socket that the kernel sends uevents to; None where that isn't allowed."""
    kind = socket.SOCK_RAW | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
    try:
        made = socket.socket(socket.AF_NETLINK, kind, kernel.NETLINK_KOBJECT_UEVENT)
    except OSError:
        return None
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        made.bind((0, _KERNEL_GROUP))
    except OSError:
        made.close()
        return None
    return made


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _inotify() -> int:
    return int(_libc().inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
