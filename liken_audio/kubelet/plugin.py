"""DRAPlugin and DRAResourceHealth: the kubelet's messages ↔ the handler that is declared here.

Whatever happens, the kubelet gets exactly one entry for each UID that it asked for: a missing
entry and an RPC error both fail claims that may be fine. So an exception inside is the error of
its claims, and is logged. Kubelets from 1.34 to 1.37 speak one of two versions of each service;
they differ in the share id (plugin, v1 only) and in the package's name (health).
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import structlog

from liken_audio.dra.claims import ClaimError, ClaimRef, PreparedDevice
from liken_audio.dra.health import DeviceHealth
from liken_audio.kubelet.generated import v1 as health_v1
from liken_audio.kubelet.generated import v1alpha1 as health_v1alpha1
from liken_audio.kubelet.generated.k8s.io.kubelet.pkg.apis.dra import v1 as dra_v1
from liken_audio.kubelet.generated.k8s.io.kubelet.pkg.apis.dra import v1beta1 as dra_v1beta1

SUPPORTED_VERSIONS = (
    "v1.DRAPlugin",
    "v1beta1.DRAPlugin",
    "v1.DRAResourceHealth",
    "v1alpha1.DRAResourceHealth",
)
"""For GetInfo. The kubelet takes the first plugin version that it knows, so v1 comes first."""

HEALTH_INTERVAL = 5.0
"""Seconds after which an unchanged report is sent again; kubelet forgets after HEALTH_TIMEOUT."""
HEALTH_TIMEOUT = 30
HEALTH_SETTLE = 0.2
"""Seconds in which changes become one report."""
_LONGEST_MESSAGE = 1024

_Answer = TypeVar("_Answer")

_log = structlog.get_logger(__name__)


class ClaimHandler(Protocol):
    """Who prepares claims. Idempotent, safe to call at the same time, bounded below 45 s."""

    async def prepare(
        self, refs: Sequence[ClaimRef]
    ) -> Mapping[str, tuple[PreparedDevice, ...] | ClaimError]:
        """Prepare; one entry a UID. A claim that is prepared already gets the same answer."""

    async def unprepare(self, refs: Sequence[ClaimRef]) -> Mapping[str, ClaimError | None]:
        """Undo; one entry a UID. None is success, also for a UID never seen."""

    def health(self) -> Sequence[DeviceHealth]:
        """Return the health of all devices now."""

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Have `callback` called after a change of health; call what is returned to end it."""


def services(handler: ClaimHandler) -> list[Any]:
    """Return the four services for one socket."""
    return [
        _PluginV1(handler),
        _PluginV1Beta1(handler),
        _HealthV1(handler),
        _HealthV1Alpha1(handler),
    ]


class _PluginV1(dra_v1.DraPluginBase):
    def __init__(self, handler: ClaimHandler) -> None:
        self._handler = handler

    async def node_prepare_resources(
        self, node_prepare_resources_request: dra_v1.NodePrepareResourcesRequest
    ) -> dra_v1.NodePrepareResourcesResponse:
        refs = _refs(node_prepare_resources_request.claims)
        answers = await _answers("prepare", self._handler.prepare, refs)
        return dra_v1.NodePrepareResourcesResponse(
            claims={
                uid: dra_v1.NodePrepareResourceResponse(error=_error(answer))
                if isinstance(answer, ClaimError)
                else dra_v1.NodePrepareResourceResponse(
                    devices=[
                        dra_v1.Device(**_device(device), share_id=device.share_id)
                        for device in answer or ()
                    ]
                )
                for uid, answer in answers.items()
            }
        )

    async def node_unprepare_resources(
        self, node_unprepare_resources_request: dra_v1.NodeUnprepareResourcesRequest
    ) -> dra_v1.NodeUnprepareResourcesResponse:
        refs = _refs(node_unprepare_resources_request.claims)
        answers = await _answers("unprepare", self._handler.unprepare, refs)
        return dra_v1.NodeUnprepareResourcesResponse(
            claims={
                uid: dra_v1.NodeUnprepareResourceResponse(error=_error(answer))
                for uid, answer in answers.items()
            }
        )


class _PluginV1Beta1(dra_v1beta1.DraPluginBase):
    def __init__(self, handler: ClaimHandler) -> None:
        self._handler = handler

    async def node_prepare_resources(
        self, node_prepare_resources_request: dra_v1beta1.NodePrepareResourcesRequest
    ) -> dra_v1beta1.NodePrepareResourcesResponse:
        refs = _refs(node_prepare_resources_request.claims)
        answers = await _answers("prepare", self._handler.prepare, refs)
        return dra_v1beta1.NodePrepareResourcesResponse(
            claims={
                uid: dra_v1beta1.NodePrepareResourceResponse(error=_error(answer))
                if isinstance(answer, ClaimError)
                else dra_v1beta1.NodePrepareResourceResponse(
                    devices=[dra_v1beta1.Device(**_device(device)) for device in answer or ()]
                )
                for uid, answer in answers.items()
            }
        )

    async def node_unprepare_resources(
        self, node_unprepare_resources_request: dra_v1beta1.NodeUnprepareResourcesRequest
    ) -> dra_v1beta1.NodeUnprepareResourcesResponse:
        refs = _refs(node_unprepare_resources_request.claims)
        answers = await _answers("unprepare", self._handler.unprepare, refs)
        return dra_v1beta1.NodeUnprepareResourcesResponse(
            claims={
                uid: dra_v1beta1.NodeUnprepareResourceResponse(error=_error(answer))
                for uid, answer in answers.items()
            }
        )


class _HealthV1(health_v1.DraResourceHealthBase):
    def __init__(self, handler: ClaimHandler) -> None:
        self._handler = handler

    async def node_watch_resources(
        self, node_watch_resources_request: health_v1.NodeWatchResourcesRequest
    ) -> AsyncIterator[health_v1.NodeWatchResourcesResponse]:
        async for report in _reports(self._handler):
            yield health_v1.NodeWatchResourcesResponse(
                devices=[
                    health_v1.DeviceHealth(
                        device=health_v1.DeviceIdentifier(d.pool, d.device),
                        health=health_v1.HealthStatus[d.status.name],
                        **_health_fields(d),
                    )
                    for d in report
                ]
            )


class _HealthV1Alpha1(health_v1alpha1.DraResourceHealthBase):
    def __init__(self, handler: ClaimHandler) -> None:
        self._handler = handler

    async def node_watch_resources(
        self, node_watch_resources_request: health_v1alpha1.NodeWatchResourcesRequest
    ) -> AsyncIterator[health_v1alpha1.NodeWatchResourcesResponse]:
        async for report in _reports(self._handler):
            yield health_v1alpha1.NodeWatchResourcesResponse(
                devices=[
                    health_v1alpha1.DeviceHealth(
                        device=health_v1alpha1.DeviceIdentifier(d.pool, d.device),
                        health=health_v1alpha1.HealthStatus[d.status.name],
                        **_health_fields(d),
                    )
                    for d in report
                ]
            )


def _refs(claims: Sequence[dra_v1.Claim] | Sequence[dra_v1beta1.Claim]) -> list[ClaimRef]:
    """Return the claims asked for, each UID once."""
    by_uid = {c.uid: ClaimRef(namespace=c.namespace, name=c.name, uid=c.uid) for c in claims}
    return list(by_uid.values())


async def _answers(
    call: str,
    carry_out: Callable[[Sequence[ClaimRef]], Awaitable[Mapping[str, _Answer | ClaimError]]],
    refs: Sequence[ClaimRef],
) -> dict[str, _Answer | ClaimError]:
    """Return exactly one answer a UID, whatever the handler does."""
    if not refs:  # liveness probes ask for nothing and want no effect
        return {}
    started = time.monotonic()
    try:
        answers = await carry_out(refs)
    except Exception as error:  # noqa: BLE001 an RPC error would fail claims that are fine
        _log.exception("call failed", call=call, claims=[str(ref) for ref in refs])
        failure = ClaimError(f"internal error of the driver: {type(error).__name__}: {error}")
        answers = {ref.uid: failure for ref in refs}
    whole = {
        ref.uid: answers[ref.uid]
        if ref.uid in answers
        else ClaimError("internal error of the driver: the claim was passed over")
        for ref in refs
    }
    # After the answer is on its way: the kubelet waits for that, and nobody for the log.
    milliseconds = round((time.monotonic() - started) * 1e3, 1)
    asyncio.get_running_loop().call_soon(_tell, call, refs, whole, milliseconds)
    return whole


def _tell(
    call: str,
    refs: Sequence[ClaimRef],
    answers: Mapping[str, _Answer | ClaimError],
    milliseconds: float,
) -> None:
    for ref in refs:
        answer = answers[ref.uid]
        log = _log.bind(call=call, claim=str(ref), uid=ref.uid, milliseconds=milliseconds)
        if isinstance(answer, ClaimError):
            log.warning("claim failed", reason=str(answer))
        else:
            log.info("claim done")


def _error(answer: ClaimError | None) -> str:
    return (str(answer) or "failed without a reason") if answer is not None else ""


def _device(device: PreparedDevice) -> dict[str, Any]:
    return {
        "request_names": list(device.request_names),
        "pool_name": device.pool,
        "device_name": device.device,
        "cdi_device_ids": list(device.cdi_ids),
    }


async def _reports(handler: ClaimHandler) -> AsyncIterator[Sequence[DeviceHealth]]:
    """Yield all devices at once, after each change and every HEALTH_INTERVAL seconds."""
    changed = asyncio.Event()
    unsubscribe = handler.subscribe(changed.set)
    try:
        while True:
            changed.clear()
            report = handler.health()
            yield report
            await _until_different(handler, report, changed)
    finally:
        unsubscribe()


async def _until_different(
    handler: ClaimHandler, report: Sequence[DeviceHealth], changed: asyncio.Event
) -> None:
    try:
        async with asyncio.timeout(HEALTH_INTERVAL):
            while True:
                await changed.wait()
                changed.clear()
                await asyncio.sleep(HEALTH_SETTLE)
                if handler.health() != report:
                    return
    except TimeoutError:
        return


def _health_fields(device: DeviceHealth) -> dict[str, Any]:
    return {
        "last_updated_time": int(time.time()),
        "health_check_timeout_seconds": HEALTH_TIMEOUT,
        "message": _cut(device.message),
    }


def _cut(text: str) -> str:
    """Return the text in at most 1024 bytes of UTF-8, as the kubelet would cut it."""
    encoded = text.encode()
    if len(encoded) <= _LONGEST_MESSAGE:
        return text
    return encoded[: _LONGEST_MESSAGE - 3].decode(errors="ignore") + "..."
