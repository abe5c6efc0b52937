"""Prepared claims on disk: one checkpoint and one CDI file a claim, each written whole.

The disk is the truth: in a rolling update two agents work on the same folders, and one of them
may unprepare what the other prepared. So nothing is remembered that a look at the files' inodes
doesn't confirm, and `lock` and `reservation` hold across processes: they are record locks of the
kernel on byte ranges of one file, which vanish with the process that held them.

Files: `<state dir>/claims/<uid>.json`, `….broken` for one that can't be read, `.….tmp` while it is
written; `<cdi dir>/<driver>-<uid>.json`; for each request's metadata `<state dir>/dra-device-metadata/<uid>/
<request>/metadata.json` and `<cdi dir>/<driver>_metadata_<uid>_<request>.json`. A container runtime reads every `*.json` in its folder,
hidden ones too: temporary names end differently. All methods block for a few file operations and
may be called from a thread; the locks belong to the event loop.
"""

import asyncio
import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import struct
import threading
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

import structlog

from liken_audio.api import DRIVER
from liken_audio.dra.cdi import CdiSpec, metadata_spec
from liken_audio.dra.checkpoint import CheckpointError, decode, encode
from liken_audio.dra.claim_folder import is_claim_uid
from liken_audio.dra.claims import ClaimRecord
from liken_audio.dra.metadata import MetadataFile

LOCK_SECONDS = 20.0
"""Longest wait for another agent that works on the same claim."""
_FIRST_POLL = 0.002
_LONGEST_POLL = 0.05
_RESERVATION_OFFSET = 0
_UNREADABLE = frozenset({errno.EIO, errno.EBADMSG, errno.EUCLEAN})
_METADATA_PREFIX = f"{DRIVER}_metadata_"

_log = structlog.get_logger(__name__)


class _Durability(Enum):
    """What of a written file outlasts a power cut."""

    NONE = auto()
    CONTENT = auto()
    """What is in it, if its name is there at all."""
    NAME = auto()
    """Everything."""


def read_boot_id(path: Path = Path("/proc/sys/kernel/random/boot_id")) -> str:
    """Return the kernel's id of this boot."""
    return path.read_text().strip()


_Fingerprint = tuple[int, int, int]
"""Inode, time of the last write in ns and bytes of a file: another file has another."""


@dataclass(frozen=True, slots=True)
class _Cached:
    fingerprint: _Fingerprint
    record: ClaimRecord


class ClaimStore:
    """The folders of checkpoints and of CDI files."""

    def __init__(self, state_dir: Path, cdi_dir: Path) -> None:
        self._claims = state_dir / "claims"
        self._cdi = cdi_dir
        self._metadata = state_dir / "dra-device-metadata"
        self._cache: dict[str, _Cached] = {}
        self._cache_lock = threading.Lock()
        self._waiting: dict[str, tuple[asyncio.Lock, int]] = {}
        self._reservation = asyncio.Lock()
        self._claims.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock_file = os.open(state_dir / "claims.lock", os.O_RDWR | os.O_CREAT, 0o600)

    def close(self) -> None:
        """Give up the lock file, and with it every lock."""
        os.close(self._lock_file)

    def load(self, uid: str) -> ClaimRecord | None:
        """Return the record of a claim; None when there is none or it can't be read."""
        if not is_claim_uid(uid):
            return None
        path = self._claims / f"{uid}.json"
        try:
            with path.open("rb") as file:
                fingerprint = _fingerprint(os.fstat(file.fileno()))
                cached = self._cache.get(uid)
                if cached and cached.fingerprint == fingerprint:
                    return cached.record
                record = _decode(file.read(), uid)
        except FileNotFoundError:
            self._forget(uid)
            return None
        except (CheckpointError, ValueError, RecursionError) as error:
            self._set_aside(path, str(error))
            return None
        except OSError as error:
            # One that the disk can't give back must not hide the others for ever.
            if error.errno not in _UNREADABLE:
                raise
            self._set_aside(path, str(error))
            return None
        self._remember(record, fingerprint)
        return record

    def records(self) -> Sequence[ClaimRecord]:
        """Return all records that can be read, ordered by namespace, name and UID.

        Only a file that changed is read again: to ask in a thread would cost more than this does.
        """
        records = []
        present = set()
        with os.scandir(self._claims) as entries:
            for entry in entries:
                if entry.name.endswith(".json"):
                    uid = entry.name.removesuffix(".json")
                    present.add(uid)
                    record = self._unchanged(uid, entry) or self.load(uid)
                    if record:
                        records.append(record)
        with self._cache_lock:
            for uid in self._cache.keys() - present:
                del self._cache[uid]
        return sorted(records, key=lambda r: (r.ref.namespace, r.ref.name, r.ref.uid))

    def save(self, record: ClaimRecord, *, is_durable: bool = True) -> None:
        """Write a checkpoint whole.

        `is_durable` false leaves out the two fsyncs: other processes see it, a power cut may lose
        it. That is right for a reservation, which a power cut ends anyway.
        """
        durability = _Durability.NAME if is_durable else _Durability.NONE
        path = self._checkpoint(record.ref.uid)
        written = _write_whole(path, _text(record), mode=0o600, durability=durability)
        self._remember(record, written)

    def remove(self, uid: str) -> None:
        """Forget a claim, and what was set aside of it; fine if unknown."""
        if not is_claim_uid(uid):
            return
        path = self._checkpoint(uid)
        is_there = _unlink(path)
        _unlink(_temporary(path))
        _unlink(self._claims / f"{uid}.broken")
        self._forget(uid)
        if is_there:
            _sync_folder(self._claims)

    def write_cdi(self, uid: str, spec: CdiSpec) -> None:
        """Write the claim's CDI file whole, unless it is there with the same content.

        Its folder isn't synced: after a power cut the boot is another and the file written anew.
        """
        path = self._cdi_path(_checked(uid))
        text = json.dumps(spec.document, ensure_ascii=False) + "\n"
        with contextlib.suppress(FileNotFoundError, UnicodeDecodeError):
            if path.read_text() == text:
                return
        self._cdi.mkdir(parents=True, exist_ok=True, mode=0o755)
        _write_whole(path, text, mode=0o644, durability=_Durability.CONTENT)

    def write_metadata(self, record: ClaimRecord, file: MetadataFile) -> None:
        """Write a request's metadata whole, then the CDI file that mounts it; no fsync.

        A power cut may lose them: after it the claim is prepared anew. `OSError`.
        """
        uid = _checked(record.ref.uid)
        folder = self._metadata / uid / file.request
        folder.mkdir(parents=True, exist_ok=True)
        for each in (self._metadata, folder.parent, folder):
            each.chmod(0o755)  # whatever the umask
        path = folder / "metadata.json"
        _write_unless_same(path, file.text)
        spec = metadata_spec(record, file, str(path))
        self._cdi.mkdir(parents=True, exist_ok=True, mode=0o755)
        _write_unless_same(
            self._cdi / f"{_METADATA_PREFIX}{uid}_{file.request}.json",
            json.dumps(spec.document, ensure_ascii=False) + "\n",
        )

    def remove_cdi(self, uid: str) -> None:
        """Remove the claim's CDI files, half-written ones too, and what they mount."""
        if not is_claim_uid(uid):
            return
        _unlink(self._cdi_path(uid))
        _unlink(_temporary(self._cdi_path(uid)))
        for path in self._cdi.glob(f".{_METADATA_PREFIX}{uid}_*.tmp"):
            _unlink(path)
        for path in self._cdi.glob(f"{_METADATA_PREFIX}{uid}_*.json"):
            _unlink(path)
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            shutil.rmtree(self._metadata / uid)

    def leftovers(self) -> set[str]:
        """Return the UIDs of temporary and CDI files of ours that have no checkpoint.

        Another agent may just be at work on them: take the claim's lock, look again, and remove
        them by `sweep`.
        """
        known = {path.stem for path in self._claims.glob("*.json")}
        found = {path.name[1:].removesuffix(".json.tmp") for path in self._claims.glob(".*.tmp")}
        prefix = f"{DRIVER}-"
        for path in self._cdi.glob(f"{prefix}*.json"):
            found.add(path.stem.removeprefix(prefix))
        for path in self._cdi.glob(f".{prefix}*.tmp"):
            found.add(path.name[1:].removeprefix(prefix).removesuffix(".json.tmp"))
        for pattern in (f"{_METADATA_PREFIX}*.json", f".{_METADATA_PREFIX}*.tmp"):
            for path in self._cdi.glob(pattern):
                whole = path.name.lstrip(".").removeprefix(_METADATA_PREFIX)
                found.add(whole.rpartition("_")[0])
        if self._metadata.is_dir():
            found |= {path.name for path in self._metadata.iterdir()}
        return {uid for uid in found - known if is_claim_uid(uid)}

    def sweep(self, uid: str) -> None:
        """Remove the temporary files of a claim, and its CDI files when it has no checkpoint."""
        checkpoint, cdi = self._checkpoint(uid), self._cdi_path(uid)
        _unlink(_temporary(checkpoint))
        _unlink(_temporary(cdi))
        for path in self._cdi.glob(f".{_METADATA_PREFIX}{uid}_*.tmp"):
            _unlink(path)
        if not checkpoint.exists():
            self.remove_cdi(uid)

    @contextlib.asynccontextmanager
    async def lock(self, uid: str) -> AsyncIterator[None]:
        """Be the only one, in all agents of this node, to work on a claim. `TimeoutError`."""
        async with self._lock_in_process(uid), self._lock_across(_offset(uid), f"claim {uid}"):
            yield

    @contextlib.asynccontextmanager
    async def reservation(self) -> AsyncIterator[None]:
        """Be the only one to check what is free and to save a reservation. `TimeoutError`."""
        async with self._reservation, self._lock_across(_RESERVATION_OFFSET, "the reservations"):
            yield

    @contextlib.asynccontextmanager
    async def _lock_in_process(self, uid: str) -> AsyncIterator[None]:
        lock, users = self._waiting.get(uid, (asyncio.Lock(), 0))
        self._waiting[uid] = (lock, users + 1)
        try:
            async with asyncio.timeout(LOCK_SECONDS):
                await lock.acquire()
            try:
                yield
            finally:
                lock.release()
        finally:
            lock, users = self._waiting[uid]
            if users == 1:
                del self._waiting[uid]
            else:
                self._waiting[uid] = (lock, users - 1)

    @contextlib.asynccontextmanager
    async def _lock_across(self, offset: int, what: str) -> AsyncIterator[None]:
        """Hold one byte of the lock file. Never waits in the kernel, which would block the loop."""
        poll = _FIRST_POLL
        try:
            async with asyncio.timeout(LOCK_SECONDS):
                while not self._try_lock(fcntl.F_WRLCK, offset):
                    await asyncio.sleep(poll)
                    poll = min(2 * poll, _LONGEST_POLL)
        except TimeoutError:
            raise TimeoutError(f"another agent of this node still works on {what}") from None
        try:
            yield
        finally:
            self._try_lock(fcntl.F_UNLCK, offset)

    def _try_lock(self, kind: int, offset: int) -> bool:
        # Locks of the open file (OFD), not of the process: two stores in one process exclude
        # each other, and closing some other descriptor of the file doesn't drop them.
        flock = struct.pack("hhqqi0q", kind, os.SEEK_SET, offset, 1, 0)
        try:
            fcntl.fcntl(self._lock_file, fcntl.F_OFD_SETLK, flock)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def _unchanged(self, uid: str, entry: "os.DirEntry[str]") -> ClaimRecord | None:
        cached = self._cache.get(uid)
        if cached is None:
            return None
        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            return None
        return cached.record if cached.fingerprint == _fingerprint(status) else None

    def _remember(self, record: ClaimRecord, fingerprint: _Fingerprint) -> None:
        with self._cache_lock:
            self._cache[record.ref.uid] = _Cached(fingerprint, record)

    def _forget(self, uid: str) -> None:
        with self._cache_lock:
            self._cache.pop(uid, None)

    def _set_aside(self, path: Path, reason: str) -> None:
        aside = path.with_suffix(".broken")
        _log.error("checkpoint can't be read: set aside", path=str(aside), reason=reason)
        with contextlib.suppress(FileNotFoundError):
            path.replace(aside)
        self._forget(path.stem)

    def _checkpoint(self, uid: str) -> Path:
        return self._claims / f"{_checked(uid)}.json"

    def _cdi_path(self, uid: str) -> Path:
        return self._cdi / f"{DRIVER}-{uid}.json"


def _decode(content: bytes, uid: str) -> ClaimRecord:
    record = decode(json.loads(content))
    if record.ref.uid != uid:
        raise CheckpointError(f"it is about the claim with UID {record.ref.uid}")
    return record


def _checked(uid: str) -> str:
    if not is_claim_uid(uid):
        raise ValueError(f"{uid!r} is no claim UID")
    return uid


def _offset(uid: str) -> int:
    return 1 + int.from_bytes(hashlib.sha256(uid.encode()).digest()[:7], "big")


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.tmp")


def _fingerprint(status: os.stat_result) -> _Fingerprint:
    return status.st_ino, status.st_mtime_ns, status.st_size


def _text(record: ClaimRecord) -> str:
    return json.dumps(encode(record), ensure_ascii=False, separators=(",", ":"))


def _write_whole(path: Path, text: str, *, mode: int, durability: _Durability) -> _Fingerprint:
    """Replace a file so that a reader, or a power cut, sees the old one or the new one whole."""
    temporary = _temporary(path)
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            if durability is not _Durability.NONE:
                os.fsync(file.fileno())
            written = _fingerprint(os.fstat(file.fileno()))
        temporary.replace(path)
    except OSError:
        _unlink(temporary)
        raise
    if durability is _Durability.NAME:
        _sync_folder(path.parent)
    return written


def _write_unless_same(path: Path, text: str) -> None:
    with contextlib.suppress(FileNotFoundError, UnicodeDecodeError):
        if path.read_text() == text:
            return
    _write_whole(path, text, mode=0o644, durability=_Durability.NONE)
    path.chmod(0o644)  # whatever the umask: any user of a container reads it


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unlink(path: Path) -> bool:
    """Remove a file; return whether it was there."""
    try:
        path.unlink()
    except OSError:
        # A read-only file system refuses even what isn't there, as does a folder that is none.
        if os.path.lexists(path):
            raise
        return False
    return True
