"""Opens claims' sockets with the reach that `dra.reach` decides, and changes it as claims come and go.

A claim that becomes prepared is joined with its pod's other claims before the kubelet is answered:
the pod's containers don't run yet, so nobody is cut. One that is unprepared leaves their reach. A
second pod that comes to have a named claim cuts that claim's reach to its own devices at once.

A claim's lock is never waited for while another's is held.
"""

from dataclasses import replace
from typing import Protocol

import structlog

from liken_audio.api import RESOURCE_CLAIMS, ApiError, Json
from liken_audio.controllers.file_work import in_thread
from liken_audio.controllers.ports import ClaimSockets, ClaimStore, ResourceClient
from liken_audio.dra import reach
from liken_audio.dra.claim_folder import is_claim_uid
from liken_audio.dra.claims import ClaimRecord, ClaimState
from liken_audio.dra.consumers import consumers, seen

_log = structlog.get_logger(__name__)


class ReachListener(Protocol):
    """Who looks after the claims' records."""

    def noted(self, record: ClaimRecord) -> None:
        """A record was saved because other pods have the claim now."""

    def failed(self, uid: str) -> None:
        """A claim's reach could not be changed: its files are to be written again later."""


class ClaimReach:
    """Opens the sockets of one node's claims."""

    def __init__(
        self,
        client: ResourceClient,
        store: ClaimStore,
        sockets: ClaimSockets,
        listener: ReachListener,
    ) -> None:
        self._client = client
        self._store = store
        self._sockets = sockets
        self._listener = listener

    async def open(self, record: ClaimRecord) -> None:
        """Have the claim's socket ready with the reach of now; its lock is the caller's."""
        records = self._store.records()
        await self._sockets.open(record, reach.joined(record, records))

    async def join(self, record: ClaimRecord) -> None:
        """Have the sockets of the pod's other claims reach this one's devices.

        Who else may have a named claim by now is asked first; what can't be read isn't joined.
        """
        for other in reach.neighbours(record, self._store.records()):
            ref = other.ref
            if other.consumers.is_for_one:
                await self._open_again(ref.uid)
                continue
            try:
                claim = await self._client.get(RESOURCE_CLAIMS, ref.name, ref.namespace)
            except ApiError as error:
                _log.warning(
                    "claim isn't joined: it can't be read", claim=str(ref), reason=str(error)
                )
            else:
                await self._open_again(_uid(claim), claim)

    async def leave(self, record: ClaimRecord) -> None:
        """Take this claim's devices, which are free now, from the reach of the pod's other claims."""
        for other in reach.neighbours(record, self._store.records()):
            await self._open_again(other.ref.uid)

    async def observe(self, claim: Json) -> None:
        """Take note of who has a claim now, as served."""
        uid = _uid(claim)
        record = await in_thread(self._store.load, uid)
        if record and seen(record.consumers, consumers(claim)) != record.consumers:
            await self._open_again(uid, claim)

    async def _open_again(self, uid: str, claim: Json | None = None) -> None:
        """Bring a prepared claim's reach in line; what fails is told to the listener."""
        if not is_claim_uid(uid):
            return
        try:
            async with self._store.lock(uid):
                record = await in_thread(self._store.load, uid)
                if record is None or record.state is not ClaimState.COMPLETED:
                    return
                if claim is not None:
                    record = await self._noted(record, claim)
                await self.open(record)
        except (OSError, TimeoutError) as error:
            self._listener.failed(uid)
            _log.warning("claim's reach can't be changed now", uid=uid, reason=str(error))

    async def _noted(self, record: ClaimRecord, claim: Json) -> ClaimRecord:
        now = seen(record.consumers, consumers(claim))
        if now == record.consumers:
            return record
        if now.is_shared and not record.consumers.is_shared:
            _log.info(
                "claim has another pod now: it reaches its own devices", claim=str(record.ref)
            )
        noted = replace(record, consumers=now)
        await in_thread(self._store.save, noted)
        self._listener.noted(noted)
        return noted


def _uid(claim: Json) -> str:
    return str((claim.get("metadata") or {}).get("uid", ""))
