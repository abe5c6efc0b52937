"""`status.devices` of a claim: whether sound gets through each of its devices, and where to send it.

Pure. The list is a map by driver, pool, device and share id, written by server-side apply: what is
applied replaces our entries of before and nothing of another driver's. `Ready` is the condition
that consumers look for; the time of its last change stays while its status does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from liken_audio.api import DRIVER, RESOURCE_CLAIMS, Json
from liken_audio.dra.claim_folder import CONTAINER_DIR, PULSE_SOCKET, SOCKET
from liken_audio.dra.claims import ClaimedDevice, ClaimRecord, ClaimRef
from liken_audio.dra.health import explain
from liken_audio.graph.model import DeviceName, Endpoint, Fault

READY = "Ready"

_REASONS = {
    Fault.UNPLUGGED: "Unplugged",
    Fault.NO_MONITOR: "NoMonitor",
    Fault.GRAPH_LOST: "GraphLost",
    Fault.NO_NODE: "NoNode",
}
_Key = tuple[str, str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceStatus:
    """What is to be shown of one allocated device."""

    pool: str
    device: DeviceName
    share_id: str | None
    is_ready: bool
    reason: str
    message: str
    data: Mapping[str, str]


def statuses(
    record: ClaimRecord,
    endpoints: Mapping[DeviceName, Endpoint],
    faults: Mapping[DeviceName, Fault | None],
) -> tuple[DeviceStatus, ...]:
    """Return what is to be shown, an entry a device in the order of the allocation.

    `faults` are those that count (see `graph.presence`). Two requests that have one device, with
    admin access, share its entry.
    """
    found: dict[_Key, DeviceStatus] = {}
    for device in record.devices:
        key = (device.pool, str(device.device), device.share_id or "")
        requests = [
            each.request
            for each in record.devices
            if (each.pool, str(each.device), each.share_id or "") == key
        ]
        if key not in found:
            endpoint = endpoints.get(device.device)
            reason, message = _verdict(endpoint, faults.get(device.device))
            found[key] = DeviceStatus(
                pool=device.pool,
                device=device.device,
                share_id=device.share_id,
                is_ready=not message,
                reason=reason,
                message=message,
                data={"request": ",".join(requests), **_data(record, device, endpoint)},
            )
    return tuple(found.values())


def body(ref: ClaimRef, wanted: Sequence[DeviceStatus], claim: Json, now: datetime) -> Json | None:
    """Return what to apply to the claim's status; None when all of it is stored, or it isn't ours.

    `claim` is the claim as stored, `now` a time in UTC.
    """
    status = claim.get("status") or {}
    is_same = (claim.get("metadata") or {}).get("uid") == ref.uid
    if not wanted or not is_same or not status.get("allocation"):
        return None
    stored = {
        _key(entry): entry for entry in status.get("devices") or () if entry.get("driver") == DRIVER
    }
    entries = [_entry(each, stored.get(_key_of(each)), now) for each in wanted]
    if all(_is_stored(entry, stored.get(_key(entry))) for entry in entries):
        return None
    return {
        "apiVersion": RESOURCE_CLAIMS.api_version,
        "kind": RESOURCE_CLAIMS.kind,
        # With its UID, so that a claim made anew under the name is refused instead of written.
        "metadata": {"namespace": ref.namespace, "name": ref.name, "uid": ref.uid},
        "status": {"devices": entries},
    }


def _verdict(endpoint: Endpoint | None, fault: Fault | None) -> tuple[str, str]:
    """Return reason and message; no message: sound gets through."""
    if endpoint is None:
        return "DeviceGone", "the device isn't on this node any more"
    return (_REASONS[fault], explain(fault)) if fault else ("Ready", "")


def _data(record: ClaimRecord, device: ClaimedDevice, endpoint: Endpoint | None) -> dict[str, str]:
    node = endpoint.node if endpoint else None
    folder = f"{CONTAINER_DIR}/{record.ref.uid}"
    data = {
        "nodeName": node.name if node else device.node_name,
        "pipewireSocket": f"{folder}/{SOCKET}",
    }
    return data | ({"pulseSocket": f"{folder}/{PULSE_SOCKET}"} if record.has_pulse else {})


def _entry(wanted: DeviceStatus, stored: Mapping[str, Any] | None, now: datetime) -> Json:
    status = "True" if wanted.is_ready else "False"
    known = _ready(stored)
    changed = known.get("lastTransitionTime") if known.get("status") == status else None
    entry: Json = {"driver": DRIVER, "pool": wanted.pool, "device": str(wanted.device)}
    if wanted.share_id is not None:
        entry["shareID"] = wanted.share_id
    condition = {
        "type": READY,
        "status": status,
        "reason": wanted.reason,
        "message": wanted.message,
        "lastTransitionTime": changed or now.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    return entry | {"conditions": [condition], "data": dict(wanted.data)}


def _is_stored(entry: Json, stored: Mapping[str, Any] | None) -> bool:
    if stored is None or stored.get("data") != entry["data"]:
        return False
    (wanted,) = entry["conditions"]
    known = _ready(stored)
    return all(known.get(name, "") == value for name, value in wanted.items())


def _ready(stored: Mapping[str, Any] | None) -> Mapping[str, Any]:
    conditions = (stored or {}).get("conditions") or ()
    return next((each for each in conditions if each.get("type") == READY), {})


def _key(entry: Mapping[str, Any]) -> _Key:
    return str(entry.get("pool")), str(entry.get("device")), str(entry.get("shareID") or "")


def _key_of(wanted: DeviceStatus) -> _Key:
    return wanted.pool, str(wanted.device), wanted.share_id or ""
