"""The files of a prepared claim, in the order that makes a crash harmless.

CDI files first, then the checkpoint that says so: what is half done stays known as started. In a
thread each, since each is a few file operations and one or two fsyncs. The claim's lock is the
caller's.
"""

from collections.abc import Sequence
from dataclasses import replace

import structlog

from liken_audio.controllers.file_work import in_thread
from liken_audio.controllers.ports import ClaimStore
from liken_audio.dra import cdi
from liken_audio.dra.claims import ClaimRecord
from liken_audio.dra.metadata import MetadataFile

_log = structlog.get_logger(__name__)


class ClaimFiles:
    """Writes and removes claims' files; `claims_dir` is the host's folder of claim folders."""

    def __init__(self, store: ClaimStore, claims_dir: str) -> None:
        self._store = store
        self._claims_dir = claims_dir

    async def write(
        self, record: ClaimRecord, files: Sequence[MetadataFile], *, is_changed: bool
    ) -> ClaimRecord:
        """Write the CDI files, then the checkpoint unless it says so; return what it says. `OSError`."""

        def write() -> ClaimRecord:
            whole = self._write(record, files)
            if is_changed or whole != record:
                self._store.save(whole)
            return whole

        return await in_thread(write)

    async def forget(self, uid: str) -> None:
        """Remove the CDI files, then the checkpoint. `OSError`."""

        def forget() -> None:
            self._store.remove_cdi(uid)
            self._store.remove(uid)

        await in_thread(forget)

    def _write(self, record: ClaimRecord, files: Sequence[MetadataFile]) -> ClaimRecord:
        spec = cdi.spec(record, self._claims_dir)
        if spec is not None:
            self._store.write_cdi(record.ref.uid, spec)
        had = {
            *(file.request for file in files if self._is_written(record, file)),
            *record.metadata,
        }
        requests = dict.fromkeys(device.request_name for device in record.devices)
        return replace(record, metadata=tuple(name for name in requests if name in had))

    def _is_written(self, record: ClaimRecord, file: MetadataFile) -> bool:
        """Write a request's metadata; a claim works without it, so a failure is only logged."""
        try:
            self._store.write_metadata(record, file)
        except OSError as error:
            _log.warning(
                "metadata can't be written",
                claim=str(record.ref),
                request=file.request,
                reason=str(error),
            )
            return False
        return True
