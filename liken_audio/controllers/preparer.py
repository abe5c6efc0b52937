"""Prepare and Unprepare: decide by `dra.claims`, then carry it out, once, whoever asks how often.

A claim's way, under its lock: reserve its devices (a checkpoint `started`, which every agent of
the node sees), have its folder with the socket, and beside that write its CDI file, then checkpoint
`completed`. What fails is undone; what a crash left as `started` is done again, or undone when the
claim is gone; of what it left as `completed` the socket is had again.
Nothing is remembered between calls: in a rolling update another agent may have moved on.

The work runs in tasks of `run`, not of the call: when the kubelet gives up after 45 s and asks
again, the second call finds the first one's result instead of half of it.
"""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import structlog

from liken_audio.api import RESOURCE_CLAIMS, ApiError, Json, NotFound, Unreachable
from liken_audio.controllers.claim_files import ClaimFiles
from liken_audio.controllers.claim_reach import ClaimReach
from liken_audio.controllers.file_work import in_thread
from liken_audio.controllers.ports import (
    ClaimSockets,
    ClaimStore,
    HardwareSettler,
    NodeRenewer,
    ResourceClient,
    SpeakerSwitcher,
)
from liken_audio.dra import cdi, claims, metadata
from liken_audio.dra.claim_folder import is_claim_uid
from liken_audio.dra.claims import (
    ClaimError,
    ClaimRecord,
    ClaimRef,
    ClaimState,
    HeldError,
    NodeFacts,
    NotReadyError,
    PreparedDevice,
)
from liken_audio.dra.health import DeviceHealth, health
from liken_audio.dra.metadata import MetadataFile
from liken_audio.graph.device_graph import DeviceGraph
from liken_audio.graph.endpoints import endpoints, is_switched_off
from liken_audio.graph.model import (
    ClaimHold,
    ClaimsSnapshot,
    DeviceName,
    Endpoint,
    Source,
)

NODE_SECONDS = 5.0
"""How long Prepare waits for a node that is just being made anew."""
CLAIM_SECONDS = 30.0
"""Longest that one claim may take; the kubelet waits 45 s."""
FOLLOW_SECONDS = 1.0
"""Longest time between looks at the records: another agent of the node may have changed them."""
SETTLE_SECONDS = 0.1
"""Changes of the graph within this time are looked at together."""
BUSY_SECONDS = 1.0
"""How long calls that follow on one another put that off at most."""
CLEAN_SECONDS = 600.0
"""Time between looks for claims that were started and are gone."""
_FIRST_RETRY = 1.0
_LONGEST_RETRY = 60.0

_T = TypeVar("_T")
_Held = tuple[ClaimRecord, tuple[ClaimHold, ...]]

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Partners:
    """Whom the preparer calls."""

    client: ResourceClient
    store: ClaimStore
    sockets: ClaimSockets
    speakers: SpeakerSwitcher | None = None
    """None: there is no Bluetooth."""
    hardware: HardwareSettler | None = None
    """None: nobody looks after volumes."""
    nodes: NodeRenewer | None = None
    """None: nobody makes nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the preparer is."""

    node: str
    """Name of the node, and so of its pool."""
    boot_id: str
    claims_dir: str
    """The host's folder of claim folders."""


class Preparer:
    """Prepares and unprepares claims while `run` runs, and keeps their files right."""

    def __init__(self, graph: DeviceGraph, place: Place, partners: Partners) -> None:
        self._graph = graph
        self._place = place
        self._client = partners.client
        self._store = partners.store
        self._sockets = partners.sockets
        self._files = ClaimFiles(partners.store, place.claims_dir)
        self._speakers = partners.speakers
        self._hardware = partners.hardware
        self._nodes = partners.nodes
        self._reach = ClaimReach(partners.client, partners.store, partners.sockets, self)
        self._tasks: asyncio.TaskGroup | None = None
        self._changed = asyncio.Event()
        self._subscribers: list[Callable[[], None]] = []
        self._endpoints: Sequence[Endpoint] = ()
        self._by_name: Mapping[DeviceName, Endpoint] = {}
        self._holds: dict[str, _Held] = {}
        self._quiet_at = 0.0
        """Until then another call is to be expected; time of the loop's clock."""
        self._noted = 0
        """Rises with each change of `_holds` that a call made."""
        self._repairs: dict[str, _Repair] = {}
        self.prepared = 0
        """Claims that became prepared here."""
        self.repeated = 0
        """Prepare calls for claims that were prepared already."""
        self.unprepared = 0
        self.rewritten = 0
        """Live claims whose files were written anew because facts had changed."""
        self.undone = 0
        """Claims of which a part was done and taken back."""
        self.errors = 0
        graph.subscribe(self._graph_changed)

    async def run(self) -> None:
        """Serve calls and keep the files of live claims right, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            try:
                await self._look_after_claims()
            finally:
                self._tasks = None

    async def prepare(
        self, refs: Sequence[ClaimRef]
    ) -> Mapping[str, tuple[PreparedDevice, ...] | ClaimError]:
        """Prepare claims side by side; one entry a UID."""
        return await self._each(refs, self._prepare)

    async def unprepare(self, refs: Sequence[ClaimRef]) -> Mapping[str, ClaimError | None]:
        """Unprepare claims side by side; one entry a UID. Asks the API server nothing."""
        return await self._each(refs, self._unprepare)

    def health(self) -> Sequence[DeviceHealth]:
        """Return the health of all devices now."""
        is_known = Source.PIPEWIRE not in self._graph.view().awaited
        return health(self._current().values(), self._place.node, is_known=is_known)

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Have `callback` called when health may have changed; call what is returned to end it."""
        self._subscribers.append(callback)
        return lambda: self._subscribers.remove(callback)

    async def observe(self, claim: Json) -> None:
        """Take note of who has a claim now, as served: another pod may cut what its socket reaches."""
        await self._reach.observe(claim)

    def noted(self, record: ClaimRecord) -> None:
        """Have a record that was saved shown soon: what follows from it must not hold up a call."""
        self._holds[record.ref.uid] = (record, claims.holds(record))
        self._noted += 1
        self._wake()

    def failed(self, uid: str) -> None:
        """Have the files of a claim written again later."""
        self._repairs.setdefault(uid, _Repair())

    async def _each(
        self,
        refs: Sequence[ClaimRef],
        carry_out: Callable[[ClaimRef], Coroutine[Any, Any, _T]],
    ) -> dict[str, _T | ClaimError]:
        if self._tasks is None:
            stopped = ClaimError("the audio agent is starting or stopping: the kubelet asks again")
            return {ref.uid: stopped for ref in refs}
        tasks = {
            uid: self._tasks.create_task(self._caught(carry_out, ref))
            for uid, ref in {ref.uid: ref for ref in refs}.items()
        }
        if tasks:
            await asyncio.wait(tasks.values())
        self._quiet_at = asyncio.get_running_loop().time() + SETTLE_SECONDS
        return {uid: task.result() for uid, task in tasks.items()}

    async def _caught(
        self, carry_out: Callable[[ClaimRef], Coroutine[Any, Any, _T]], ref: ClaimRef
    ) -> _T | ClaimError:
        """Carry out within the deadline; every failure becomes the claim's own error."""
        try:
            async with asyncio.timeout(CLAIM_SECONDS):
                return await carry_out(ref)
        except ClaimError as error:
            self.errors += 1
            return error
        except (OSError, TimeoutError) as error:
            self.errors += 1
            reason = str(error) or f"not done within {CLAIM_SECONDS:.0f} s"
            return ClaimError(f"claim {ref}: {reason}")
        except Exception as error:  # noqa: BLE001 one claim's fault must not end the others' tasks
            self.errors += 1
            _log.exception("internal error", claim=str(ref), uid=ref.uid)
            return ClaimError(f"internal error of the driver: {type(error).__name__}: {error}")

    async def _prepare(self, ref: ClaimRef) -> tuple[PreparedDevice, ...]:
        if not is_claim_uid(ref.uid):
            raise ClaimError(f"{ref.uid!r} is no claim UID")
        async with self._store.lock(ref.uid):
            known = self._store.load(ref.uid)  # reads one small file: a thread would cost more
            if known and self._is_prepared(known):
                self.repeated += 1
                return cdi.prepared(await self._repeat(known))
            record = await self._decide(ref, known)
            if record.devices:
                record = await self._finish(record, known)
                self.prepared += 1
            elif known:
                await self._undo(ref.uid)
        if record.devices:
            await self._reach.join(record)
            await self._limit(record)
        return cdi.prepared(record)

    async def _limit(self, record: ClaimRecord) -> None:
        """Have volumes within the claim's limits before its pod plays.

        Brought down later, a volume would be loud for a moment, and one that the pod has set by then
        would be lost.
        """
        limited = [d.device for d in record.devices if d.parameters.max_volume is not None]
        if not limited or self._hardware is None:
            return
        self._show()
        try:
            await self._hardware.settle(limited)
        except TimeoutError:
            _log.warning(
                "a claim's volume limit takes long", claim=str(record.ref), devices=limited
            )

    async def _unprepare(self, ref: ClaimRef) -> None:
        if not is_claim_uid(ref.uid):
            return  # never prepared, so it is unprepared
        async with self._store.lock(ref.uid):
            known = self._store.load(ref.uid)
            await self._sockets.close(ref.uid)
            await self._forget(ref.uid)
            self.unprepared += 1
        if known:
            await self._reach.leave(known)

    def _is_prepared(self, record: ClaimRecord) -> bool:
        is_this_boot = record.boot_id == self._place.boot_id
        return record.state is ClaimState.COMPLETED and is_this_boot

    async def _repeat(self, known: ClaimRecord) -> ClaimRecord:
        """Have everything of a prepared claim there, and disturb nobody who uses it."""
        record = claims.refreshed(known, self._current())
        await self._reach.open(record)
        return await self._write(record, is_changed=record != known)

    async def _decide(self, ref: ClaimRef, known: ClaimRecord | None) -> ClaimRecord:
        """Return a reserved record: from the claim, or from what is known when no API answers."""
        try:
            claim = await self._client.get(RESOURCE_CLAIMS, ref.name, ref.namespace)
        except NotFound:
            raise ClaimError(f"claim {ref} doesn't exist any more") from None
        except Unreachable as error:
            if known is None or known.state is not ClaimState.COMPLETED:
                raise ClaimError(f"claim {ref} can't be read now: {error}") from error
            # Prepared before a reboot: what was allocated to it then still is.
            return await self._reserve_again(known)
        except ApiError as error:
            raise ClaimError(f"claim {ref} can't be read: {error}") from error
        return await self._reserve(claim, ref)

    async def _reserve_again(self, known: ClaimRecord) -> ClaimRecord:
        record = replace(
            claims.refreshed(known, self._current()),
            state=ClaimState.STARTED,
            boot_id=self._place.boot_id,
            metadata=(),
        )
        async with self._store.reservation():
            await in_thread(lambda: self._store.save(record, is_durable=False))
        return record

    async def _reserve(self, claim: Json, ref: ClaimRef) -> ClaimRecord:
        """Decide and reserve; waits a moment for a node, and clears a dead reservation away."""
        await self._renew(claims.allocated_names(claim))
        loop = asyncio.get_running_loop()
        deadline = loop.time() + NODE_SECONDS
        cleared: set[str] = set()
        while True:
            changed = self._changed
            try:
                async with self._store.reservation():
                    return self._reserve_now(claim, ref, self._current())
            except NotReadyError:
                if loop.time() >= deadline:
                    raise
                await self._switch_microphones_on(claim)
                await _woken(changed, deadline - loop.time())
            except HeldError as error:
                holder = error.holder
                if holder.state is ClaimState.COMPLETED or holder.ref.uid in cleared:
                    raise
                cleared.add(holder.ref.uid)
                if not await self._clean(holder.ref):
                    raise

    def _reserve_now(
        self, claim: Json, ref: ClaimRef, current: Mapping[DeviceName, Endpoint]
    ) -> ClaimRecord:
        here = NodeFacts(
            pool=self._place.node,
            boot_id=self._place.boot_id,
            endpoints=current,
            records=self._store.records(),
        )
        record = claims.prepare(claim, ref, here)
        if record.devices:
            self._store.save(record, is_durable=False)
        return record

    async def _renew(self, names: Collection[DeviceName]) -> None:
        """Have no node that a claim before this one left something on.

        Made anew later, it would cut this claim's stream, and undo what its pod has set by then.
        """
        if self._nodes is None:
            return
        shown = self._graph.view().holds
        if any(hold.uid not in self._holds and {*hold.devices} & {*names} for hold in shown):
            self._show()
        try:
            await self._nodes.renewed(names)
        except TimeoutError:
            _log.warning("nodes of a claim before take long to go", devices=names)

    async def _switch_microphones_on(self, claim: Json) -> None:
        """Have the microphones that a claim waits for; `OSError` says why one can't be had."""
        for name in claims.allocated_names(claim):
            endpoint = self._current().get(name)
            if self._speakers and endpoint and endpoint.bluetooth and is_switched_off(endpoint):
                await self._speakers.switch_microphone_on(endpoint.bluetooth.address)

    async def _with_codecs(self, record: ClaimRecord) -> ClaimRecord:
        """Have connected speakers play by the codecs that the claim asks for."""
        for device in record.devices:
            endpoint = self._current().get(device.device)
            codec = device.parameters.codec
            if codec and self._speakers and endpoint and endpoint.bluetooth:
                await self._speakers.switch_codec(endpoint.bluetooth.address, codec)
        return claims.refreshed(record, self._current())

    async def _finish(self, record: ClaimRecord, known: ClaimRecord | None) -> ClaimRecord:
        """Carry a reserved claim out; when that fails, undo it."""
        uid = record.ref.uid
        try:
            record = await self._with_codecs(record)
            if known and known.devices != record.devices:
                await self._sockets.close(uid)
            completed = replace(record, state=ClaimState.COMPLETED)
            # The socket first: claim-sockets is at work on it while the files are written. Whichever
            # of the two a crash cuts short, the claim's next Prepare or the next start does it again.
            writing = self._files.write(completed, self._metadata(completed), is_changed=True)
            whole = await _both(self._reach.open(completed), writing)
        except BaseException:
            if known and known.state is ClaimState.COMPLETED:
                await in_thread(self._store.save, known)  # of an earlier boot: still worth knowing
            else:
                await self._undo(uid)
            raise
        self.noted(whole)
        return whole

    async def _write(self, record: ClaimRecord, *, is_changed: bool) -> ClaimRecord:
        whole = await self._files.write(record, self._metadata(record), is_changed=is_changed)
        self.noted(whole)
        return whole

    def _metadata(self, record: ClaimRecord) -> Sequence[MetadataFile]:
        return metadata.files(record, self._current())

    async def _forget(self, uid: str) -> None:
        await self._files.forget(uid)
        if self._holds.pop(uid, None):
            self._noted += 1
            self._wake()

    async def _undo(self, uid: str) -> None:
        """Take back what was done of a claim; what can't be stays known, for the next call or start."""
        try:
            await self._sockets.close(uid)
            await self._forget(uid)
        except (OSError, TimeoutError) as error:
            _log.warning("claim can't be undone now", uid=uid, reason=str(error))
        else:
            self.undone += 1

    async def _look_after_claims(self) -> None:
        loop = asyncio.get_running_loop()
        clean_at = 0.0
        is_recovered = False
        while True:
            changed = self._changed
            try:
                if not is_recovered:
                    await self._read()  # who holds what is to be known before what takes long
                    await self._recover()
                    is_recovered = True
                await self._follow()
                if loop.time() >= clean_at:
                    await self._clean_started()
                    clean_at = loop.time() + CLEAN_SECONDS
            except (OSError, TimeoutError) as error:
                self.errors += 1
                _log.error("claims can't be looked after now", reason=str(error))
            await _woken(changed, FOLLOW_SECONDS)
            await self._settle()

    async def _settle(self) -> None:
        """Let changes that belong together come together, and calls that follow on another end.

        What is shown here has status written, which would compete with the kubelet's next call.
        """
        loop = asyncio.get_running_loop()
        latest = loop.time() + BUSY_SECONDS
        quiet_at = loop.time() + SETTLE_SECONDS
        while (now := loop.time()) < min(quiet_at, latest):
            await asyncio.sleep(quiet_at - now)
            quiet_at = self._quiet_at

    async def _recover(self) -> None:
        """Remove what no claim owns, and have the files of every prepared claim written anew."""
        records = await in_thread(self._store.records)
        known = {record.ref.uid for record in records}
        leftovers = await in_thread(self._store.leftovers)
        for uid in sorted((leftovers | self._sockets.uids()) - known):
            async with self._store.lock(uid):
                if await in_thread(self._store.load, uid) is None:
                    _log.info("removing what is left of a claim", uid=uid)
                    await self._sockets.close(uid)
                    await in_thread(self._store.sweep, uid)
        for record in records:
            self._repairs[record.ref.uid] = _Repair()

    async def _follow(self) -> None:
        """Bring live claims' files in line with the facts of now."""
        records = await self._read()
        now = asyncio.get_running_loop().time()
        completed = [r for r in records if r.state is ClaimState.COMPLETED]
        self._repairs = {
            r.ref.uid: self._repairs[r.ref.uid] for r in completed if r.ref.uid in self._repairs
        }
        for record in completed:
            if claims.refreshed(record, self._current()) != record:
                self._repairs.setdefault(record.ref.uid, _Repair())
        due = [uid for uid, repair in self._repairs.items() if repair.at <= now]
        async with asyncio.TaskGroup() as repairs:
            for uid in due:
                repairs.create_task(self._repair(uid))

    async def _repair(self, uid: str) -> None:
        try:
            async with self._store.lock(uid):
                await self._rewrite(uid)
        except (OSError, TimeoutError) as error:
            repair = self._repairs[uid] = self._repairs[uid].later(
                asyncio.get_running_loop().time()
            )
            _log.warning(
                "claim's files can't be written now",
                uid=uid,
                reason=str(error),
                retry_seconds=repair.delay,
            )
        else:
            del self._repairs[uid]

    async def _rewrite(self, uid: str) -> None:
        known = await in_thread(self._store.load, uid)
        if known is None or known.state is not ClaimState.COMPLETED:
            return
        record = claims.refreshed(known, self._current())
        await self._write(record, is_changed=record != known)
        if record != known:
            self.rewritten += 1
            _log.info("claim's files follow the facts", claim=str(record.ref), uid=uid)
        await self._reach.open(record)

    async def _clean_started(self) -> None:
        for record in await in_thread(self._store.records):
            if record.state is ClaimState.STARTED:
                await self._clean(record.ref)

    async def _clean(self, ref: ClaimRef) -> bool:
        """Undo a started claim that nobody will finish; return whether it is gone."""
        async with self._store.lock(ref.uid):
            record = await in_thread(self._store.load, ref.uid)
            if record is None:
                return True
            if record.state is not ClaimState.STARTED or await self._is_alive(ref):
                return False
            _log.info("undoing a claim that was never finished", claim=str(ref), uid=ref.uid)
            await self._undo(ref.uid)
            return True

    async def _is_alive(self, ref: ClaimRef) -> bool:
        """Whether the claim is still allocated; True when nobody can tell."""
        try:
            claim = await self._client.get(RESOURCE_CLAIMS, ref.name, ref.namespace)
        except NotFound:
            return False
        except ApiError:
            return True
        is_same = (claim.get("metadata") or {}).get("uid") == ref.uid
        return is_same and bool((claim.get("status") or {}).get("allocation"))

    async def _read(self) -> Sequence[ClaimRecord]:
        """Read all records, another agent's too, and show what they hold."""
        noted = self._noted
        records = await in_thread(self._store.records)
        if noted == self._noted:  # else what was read may be older than what is known: next time
            # The store gives the same object for a file that is the same: only what is new is made.
            self._holds = {
                record.ref.uid: known
                if (known := self._holds.get(record.ref.uid)) and known[0] is record
                else (record, claims.holds(record))
                for record in records
            }
        self._show()
        return records

    def _show(self) -> None:
        ordered = sorted(self._holds.values(), key=_by_name_of_claim)
        holds = tuple(hold for _, found in ordered for hold in found)
        self._graph.replace(Source.CLAIMS, ClaimsSnapshot(holds))

    def _current(self) -> Mapping[DeviceName, Endpoint]:
        found = endpoints(self._graph.view(), self._place.node)
        if found is not self._endpoints:  # it gives the same object while nothing has changed
            self._endpoints, self._by_name = found, {each.name: each for each in found}
        return self._by_name

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _graph_changed(self) -> None:
        self._wake()
        for callback in list(self._subscribers):
            callback()


@dataclass(frozen=True, slots=True)
class _Repair:
    """When the files of a claim are to be written next; times of the loop's clock."""

    at: float = 0.0
    delay: float = 0.0

    def later(self, now: float) -> "_Repair":
        """Return the next attempt after a failed one."""
        delay = min(max(_FIRST_RETRY, 2 * self.delay), _LONGEST_RETRY)
        return _Repair(now + delay, delay)


def _by_name_of_claim(held: _Held) -> tuple[str, str, str]:
    ref = held[0].ref
    return ref.namespace, ref.name, ref.uid


async def _both(first: Coroutine[Any, Any, None], second: Coroutine[Any, Any, _T]) -> _T:
    """Do both side by side and wait for both, so that nothing is at work when one has failed."""
    error: BaseException | None
    result: _T | BaseException
    error, result = await asyncio.gather(first, second, return_exceptions=True)
    if error is not None:
        raise error
    if isinstance(result, BaseException):
        raise result
    return result


async def _woken(event: asyncio.Event, seconds: float) -> None:
    """Wait for the event, at most so long."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
