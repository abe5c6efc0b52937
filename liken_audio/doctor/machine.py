"""The doctor's look at this machine: device files, who holds them, folders, programs' versions.

Everything is read below a root folder, so that a test can lay out a machine. Blocking; to be called
in a thread.
"""

import contextlib
import os
import re
import socket
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from liken_audio.doctor.facts import Folder, Holder, Pcm, Reach, Sound

_PCM = re.compile(r"pcmC(\d+)D(\d+)([pc])")
_OWNER = re.compile(r"^owner_pid\s*:\s*(\d+)", re.MULTILINE)
_KNOCK_SECONDS = 2.0
OUR_SERVER = "pipewire"


def sound(root: Path, virtual: str) -> Sound:
    """The sound devices below `root` ("/" but in tests), and who has one open.

    A PipeWire that shares our view of the processes is taken for ours.
    """
    folder = root / "dev" / "snd"
    files = sorted(each for each in folder.glob("pcmC*") if _PCM.fullmatch(each.name))
    holders = {holder.path: holder for holder in _unseen_holders(root, files)}
    holders |= {holder.path: holder for holder in _seen_holders(root, files)}
    return Sound(
        folder=str(folder),
        is_there=folder.is_dir(),
        pcms=tuple(_pcm(each) for each in files),
        holders=tuple(each for each in holders.values() if each.program != OUR_SERVER),
        virtual=virtual,
    )


def folder(flag: str, path: str) -> Folder:
    """Whether a folder is there and takes a file."""
    return Folder(flag, path, is_there=Path(path).is_dir(), is_writable=_takes_a_file(path))


def bus_path(address: str) -> str:
    """The socket of a D-Bus address like `unix:path=/run/dbus/system_bus_socket`; empty for others."""
    found = re.match(r"unix:path=([^,;]+)", address)
    return found[1] if found else ""


def knock(path: str) -> Reach:
    """Connect to a Unix socket and hang up."""
    if not path or not Path(path).exists():
        return Reach.ABSENT
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        caller.settimeout(_KNOCK_SECONDS)
        try:
            caller.connect(path)
        except TimeoutError:
            return Reach.SILENT
        except OSError:
            return Reach.REFUSES
    return Reach.ANSWERS


def _takes_a_file(path: str) -> bool:
    """Try it: root may write everywhere by its rights, and still not to what is mounted read-only."""
    probe = Path(path) / f".liken-audio-doctor-{os.getpid()}"
    try:
        probe.touch()
        probe.unlink()
    except OSError:
        return False
    return True


def _pcm(path: Path) -> Pcm:
    try:
        # Opened as a sound server does, but let go at once; a card that is busy can be opened too.
        os.close(os.open(path, os.O_RDWR | os.O_NONBLOCK))
        is_usable = True
    except PermissionError:
        is_usable = False
    except OSError:
        is_usable = True
    return Pcm(str(path), is_usable, path.stat().st_gid)


def _seen_holders(root: Path, files: Sequence[Path]) -> Iterator[Holder]:
    """Of the processes that we may look into."""
    numbers = {each.stat().st_rdev or each.stat().st_ino: each for each in files}
    if not numbers:
        return
    for process in (root / "proc").glob("[0-9]*"):
        for handle in _handles(process):
            path = numbers.get(handle)
            if path is not None and int(process.name) != os.getpid():
                yield Holder(str(path), int(process.name), _program(process))


def _handles(process: Path) -> Iterator[int]:
    """Device numbers of the character devices that a process has open, inode numbers of files."""
    with contextlib.suppress(OSError):
        for entry in (process / "fd").iterdir():
            with contextlib.suppress(OSError):
                found = entry.stat()
                is_device = stat.S_ISCHR(found.st_mode)
                yield found.st_rdev if is_device else found.st_ino


def _program(process: Path) -> str:
    try:
        return (process / "comm").read_text().strip()
    except OSError:
        return ""


def _unseen_holders(root: Path, files: Sequence[Path]) -> Iterator[Holder]:
    """Of processes outside of our container: the kernel says that the PCM is open, by process 0."""
    for path in files:
        found = _PCM.fullmatch(path.name)
        if found is None:
            continue
        card, device, direction = found.groups()
        substreams = root / "proc" / "asound" / f"card{card}" / f"pcm{device}{direction}"
        for status in sorted(substreams.glob("sub*/status")):
            owner = _OWNER.search(status.read_text(errors="replace"))
            if owner is not None and int(owner[1]) == 0:
                yield Holder(str(path), 0)
