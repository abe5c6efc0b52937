"""What a claim gets: its allocation, its parameters and this node's endpoints, decided.

`prepare` is deterministic: the same claim and the same node give the same record, so a repeated
call of the kubelet, a second agent in a rolling update or a restart end alike. It is also the last
line of defence: it takes nothing from the scheduler on trust (pool, device, double allocation).
An error is for one claim alone and says what is right. Nothing here is carried out; see
`controllers.preparer`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from liken_audio.api import DRIVER, Json
from liken_audio.dra.consumers import Consumers, consumers, pod_claim_name
from liken_audio.dra.parameters import Parameters, ParametersError, closest, resolve
from liken_audio.graph.model import (
    ClaimHold,
    DeviceName,
    Direction,
    Endpoint,
    Fault,
    Percent,
)

_LISTED_DEVICES = 12
"""How many known devices an error names at most."""

_NO_NODE_ADVICE = {
    Fault.UNPLUGGED: "nothing is plugged in: plug it in, or tolerate the taint only where silence is fine",
    Fault.NO_MONITOR: "no monitor is connected: connect one and switch it on",
    Fault.GRAPH_LOST: "PipeWire doesn't answer on this node: look at the log of its container",
    Fault.NO_NODE: "PipeWire has no node for it: look at the logs of PipeWire and the agent",
}


@dataclass(frozen=True, slots=True)
class ClaimRef:
    """A claim as the kubelet names it. The UID is the identity: names are used again."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedDevice:
    """One allocated device as the kubelet is told of it."""

    request_names: tuple[str, ...]
    """Base names: kubelet compares them with the container's own."""
    pool: str
    device: str
    cdi_ids: tuple[str, ...]
    share_id: str | None = None


class ClaimError(Exception):
    """One claim can't be prepared; the text goes to the pod's events."""


class NotReadyError(ClaimError):
    """A device has no PipeWire node now; worth a short wait, then a `ClaimError` like others."""


class HeldError(ClaimError):
    """Another claim holds a device; `holder` is its record."""

    def __init__(self, message: str, holder: "ClaimRecord") -> None:
        super().__init__(message)
        self.holder = holder


class ClaimState(StrEnum):
    """How far a claim got."""

    STARTED = "started"
    """Devices reserved; what else was done is unknown: to be done again, or rolled back."""
    COMPLETED = "completed"
    """Socket, directory and CDI file were there when this was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedDevice:
    """One allocation result of ours, with the facts that its container is told."""

    request: str
    """As allocated: `main`, or `main/sub`."""
    pool: str
    device: DeviceName
    direction: Direction
    node_name: str
    """PipeWire node that a stream goes to or comes from, as last seen."""
    channels: int
    rate_hz: int
    share_id: str | None = None
    is_admin: bool = False
    parameters: Parameters = field(default_factory=Parameters)
    unknown: Mapping[str, Any] = field(default_factory=dict)
    """Fields that a newer version wrote; kept."""

    @property
    def request_name(self) -> str:
        """Base name of the request."""
        return self.request.partition("/")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRecord:
    """A claim that is prepared, or is being prepared: what the checkpoint holds."""

    ref: ClaimRef
    boot_id: str
    """Boot in which it was prepared: a reboot empties /run, but not the checkpoint."""
    state: ClaimState
    devices: tuple[ClaimedDevice, ...] = ()
    """In the order of the allocation."""
    consumers: Consumers = field(default_factory=Consumers)
    pod_claim_name: str = ""
    """The claim's name in its pod's spec when a template made it."""
    metadata: tuple[str, ...] = ()
    """Requests whose metadata files were written: see `dra.metadata`."""
    unknown: Mapping[str, Any] = field(default_factory=dict)
    """Fields that a newer version wrote; kept."""

    @property
    def has_pulse(self) -> bool:
        """Whether the claim has a PulseAudio socket: it reaches all devices, so each must allow it."""
        return all(device.parameters.pulse for device in self.devices)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """What `prepare` has to know of this node."""

    pool: str
    boot_id: str
    endpoints: Mapping[DeviceName, Endpoint]
    records: Sequence[ClaimRecord]
    """Claims prepared here; one with the UID in question is left out of account."""


def prepare(claim: Json, ref: ClaimRef, here: NodeFacts) -> ClaimRecord:
    """Decide what a claim gets: a record in the state `started`.

    `claim` is the ResourceClaim as served. Results of other drivers are none of our business; with
    none of ours the record has no devices. Raises `ClaimError`: `NotReadyError` when only a node
    is missing, `HeldError` when another claim is in the way.
    """
    devices = _allocated(claim, ref)
    configs = devices.get("config") or ()
    results = [r for r in devices.get("results") or () if r.get("driver") == DRIVER]
    claimed: list[ClaimedDevice] = []
    for result in results:
        endpoint = _endpoint(result, here.pool, here.endpoints)
        device = _claimed(result, endpoint, configs)
        _check_free(device, claimed, [r for r in here.records if r.ref.uid != ref.uid])
        claimed.append(device)
    for device in claimed:
        _check_node(here.endpoints[device.device])
    return ClaimRecord(
        ref=ref,
        boot_id=here.boot_id,
        state=ClaimState.STARTED,
        devices=tuple(claimed),
        consumers=consumers(claim),
        pod_claim_name=pod_claim_name(claim),
    )


def allocated_names(claim: Json) -> tuple[DeviceName, ...]:
    """Return the names of our devices that are allocated to a claim, as served."""
    allocation = (claim.get("status") or {}).get("allocation") or {}
    results = (allocation.get("devices") or {}).get("results") or ()
    return tuple(DeviceName(str(r.get("device"))) for r in results if r.get("driver") == DRIVER)


def refreshed(record: ClaimRecord, by_name: Mapping[DeviceName, Endpoint]) -> ClaimRecord:
    """Return the record with the facts of now; a device without a node keeps its last ones."""
    devices = tuple(_refreshed(device, by_name.get(device.device)) for device in record.devices)
    return record if devices == record.devices else replace(record, devices=devices)


def _refreshed(device: ClaimedDevice, endpoint: Endpoint | None) -> ClaimedDevice:
    if endpoint is None or endpoint.node is None:
        return device
    facts = _facts(endpoint)
    is_same = all(getattr(device, name) == value for name, value in facts.items())
    return device if is_same else replace(device, **facts)


def holds(record: ClaimRecord) -> tuple[ClaimHold, ...]:
    """Return what a completed record holds, for the graph; nothing before it is completed.

    A result with admin access counts for nothing: a claim whose results are partly of that kind is two holds: one that counts, one that doesn't.
    """
    if record.state is not ClaimState.COMPLETED:
        return ()
    found = []
    for is_admin in (False, True):
        claimed = [d for d in record.devices if d.is_admin is is_admin]
        if claimed:
            found.append(
                ClaimHold(
                    namespace=record.ref.namespace,
                    name=record.ref.name,
                    uid=record.ref.uid,
                    devices=tuple(d.device for d in claimed),
                    is_admin=is_admin,
                    pods=tuple(pod.name for pod in record.consumers.pods),
                    max_volumes=tuple(
                        (d.device, Percent(d.parameters.max_volume))
                        for d in claimed
                        if d.parameters.max_volume is not None
                    ),
                    codecs=tuple(
                        (d.device, d.parameters.codec) for d in claimed if d.parameters.codec
                    ),
                )
            )
    return tuple(found)


def _allocated(claim: Json, ref: ClaimRef) -> Mapping[str, Any]:
    """Return `status.allocation.devices` after the checks of who the claim is."""
    uid = (claim.get("metadata") or {}).get("uid")
    if uid != ref.uid:
        raise ClaimError(
            f"claim {ref} was deleted and made anew: its UID is {uid}, the pod's is {ref.uid}"
        )
    allocation = (claim.get("status") or {}).get("allocation")
    if not allocation:
        raise ClaimError(f"claim {ref} is not allocated")
    devices: Mapping[str, Any] = allocation.get("devices") or {}
    return devices


def _endpoint(
    result: Mapping[str, Any], pool: str, by_name: Mapping[DeviceName, Endpoint]
) -> Endpoint:
    name = str(result.get("device", ""))
    if result.get("pool") != pool:
        raise ClaimError(
            f"device {name!r} is allocated from pool {result.get('pool')!r}; this node's is {pool!r}"
        )
    endpoint = by_name.get(DeviceName(name))
    if endpoint is None:
        known = sorted(by_name)
        listed = ", ".join(known[:_LISTED_DEVICES]) or "none"
        more = f" and {len(known) - _LISTED_DEVICES} more" if len(known) > _LISTED_DEVICES else ""
        raise ClaimError(
            f"device {name!r} is not known on node {pool}{closest(name, known)};"
            f" known: {listed}{more}"
        )
    return endpoint


def _claimed(
    result: Mapping[str, Any], endpoint: Endpoint, configs: Sequence[Mapping[str, Any]]
) -> ClaimedDevice:
    request = str(result.get("request", ""))
    try:
        parameters = resolve(configs, request, endpoint)
    except ParametersError as error:
        raise ClaimError(f"request {request!r}: {error}") from error
    return ClaimedDevice(
        request=request,
        pool=str(result["pool"]),
        device=endpoint.name,
        direction=endpoint.direction,
        share_id=result.get("shareID") or None,
        is_admin=bool(result.get("adminAccess")),
        parameters=parameters,
        **_facts(endpoint),
    )


def _facts(endpoint: Endpoint) -> dict[str, Any]:
    """Return the facts that change: a node may be renamed or come back with another format."""
    node = endpoint.node
    return {
        "node_name": node.name if node else endpoint.name,
        "channels": (node.channels if node else 0) or endpoint.pcm.channels,
        "rate_hz": (node.rate_hz if node else 0) or endpoint.pcm.rate_hz,
    }


def _check_free(
    device: ClaimedDevice, own: Sequence[ClaimedDevice], others: Sequence[ClaimRecord]
) -> None:
    for other in own:
        if _collide(device, other):
            raise ClaimError(
                f"device {device.device} is allocated twice to this claim:"
                f" for request {other.request!r} and for {device.request!r}"
            )
    for record in others:
        if any(_collide(device, other) for other in record.devices):
            raise HeldError(
                f"device {device.device} is held by claim {record.ref} (UID {record.ref.uid}):"
                " it becomes free when that claim's pod has ended",
                record,
            )


def _collide(one: ClaimedDevice, other: ClaimedDevice) -> bool:
    if (one.pool, one.device) != (other.pool, other.device) or one.is_admin or other.is_admin:
        return False
    return one.share_id is None or other.share_id is None or one.share_id == other.share_id


def _check_node(endpoint: Endpoint) -> None:
    if endpoint.node is None:
        reason = _NO_NODE_ADVICE[endpoint.fault or Fault.NO_NODE]
        raise NotReadyError(f"device {endpoint.name} has no PipeWire node: {reason}")
