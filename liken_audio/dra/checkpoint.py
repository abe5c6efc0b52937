"""The checkpoint of a claim: a `ClaimRecord` as JSON, and back.

Versions only ever add fields, and what an older version doesn't know it keeps: an agent that is
downgraded and upgraded again loses nothing. `version` is the newest that wrote the file.
"""

from collections.abc import Mapping
from typing import Any

from liken_audio.api import Json
from liken_audio.dra.claims import ClaimedDevice, ClaimRecord, ClaimRef, ClaimState
from liken_audio.dra.consumers import Consumers, Pod
from liken_audio.dra.parameters import Parameters
from liken_audio.graph.model import DeviceName, Direction

VERSION = 1
_RECORD_FIELDS = frozenset(
    {"version", "claim", "bootId", "state", "devices", "consumers", "podClaimName", "metadata"}
)
_DEVICE_FIELDS = frozenset(
    {
        "request",
        "pool",
        "device",
        "direction",
        "nodeName",
        "channels",
        "rateHz",
        "shareId",
        "adminAccess",
        "parameters",
    }
)


class CheckpointError(ValueError):
    """A checkpoint can't be read; the message says where."""


def encode(record: ClaimRecord) -> Json:
    """Return the record as one JSON object."""
    newest = max(VERSION, int(record.unknown.get("version", VERSION)))
    encoded: Json = {
        **record.unknown,
        "version": newest,
        "claim": {
            "namespace": record.ref.namespace,
            "name": record.ref.name,
            "uid": record.ref.uid,
        },
        "bootId": record.boot_id,
        "state": str(record.state),
        "devices": [_encode_device(device) for device in record.devices],
    }
    if record.consumers != Consumers():
        encoded["consumers"] = _encode_consumers(record.consumers)
    if record.pod_claim_name:
        encoded["podClaimName"] = record.pod_claim_name
    if record.metadata:
        encoded["metadata"] = list(record.metadata)
    return encoded


def decode(document: object) -> ClaimRecord:
    """Return the record of a parsed file; raises `CheckpointError` when a field is missing or wrong."""
    try:
        return _decode(document)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise CheckpointError(f"{type(error).__name__}: {error}") from error


def _decode(document: Any) -> ClaimRecord:
    claim = document["claim"]
    unknown = {k: v for k, v in document.items() if k not in _RECORD_FIELDS}
    if int(document["version"]) > VERSION:
        unknown["version"] = int(document["version"])
    return ClaimRecord(
        ref=ClaimRef(_text(claim["namespace"]), _text(claim["name"]), _text(claim["uid"])),
        boot_id=_text(document["bootId"]),
        state=ClaimState(document["state"]),
        devices=tuple(_decode_device(device) for device in document["devices"]),
        consumers=_decode_consumers(document.get("consumers", {})),
        pod_claim_name=_text(document.get("podClaimName", "")),
        metadata=tuple(_text(name) for name in document.get("metadata", ())),
        unknown=unknown,
    )


def _encode_consumers(consumers: Consumers) -> Json:
    return {
        "pods": [{"name": pod.name, "uid": pod.uid} for pod in consumers.pods],
        "isForOne": consumers.is_for_one,
        "isShared": consumers.is_shared,
    }


def _decode_consumers(encoded: Mapping[str, Any]) -> Consumers:
    return Consumers(
        pods=tuple(Pod(_text(p["name"]), _text(p["uid"])) for p in encoded.get("pods", ())),
        is_for_one=bool(encoded.get("isForOne", False)),
        is_shared=bool(encoded.get("isShared", False)),
    )


def _encode_device(device: ClaimedDevice) -> Json:
    encoded: Json = {
        **device.unknown,
        "request": device.request,
        "pool": device.pool,
        "device": device.device,
        "direction": str(device.direction),
        "nodeName": device.node_name,
        "channels": device.channels,
        "rateHz": device.rate_hz,
        "parameters": {
            "codec": device.parameters.codec,
            "pulse": device.parameters.pulse,
            "monitor": device.parameters.monitor,
            "setVolume": device.parameters.set_volume,
            "maxVolume": device.parameters.max_volume,
        },
    }
    if device.share_id is not None:
        encoded["shareId"] = device.share_id
    if device.is_admin:
        encoded["adminAccess"] = True
    return encoded


def _decode_device(device: Mapping[str, Any]) -> ClaimedDevice:
    parameters = device["parameters"]
    return ClaimedDevice(
        request=_text(device["request"]),
        pool=_text(device["pool"]),
        device=DeviceName(_text(device["device"])),
        direction=Direction(device["direction"]),
        node_name=_text(device["nodeName"]),
        channels=int(device["channels"]),
        rate_hz=int(device["rateHz"]),
        share_id=_text_or_none(device.get("shareId")),
        is_admin=bool(device.get("adminAccess", False)),
        parameters=Parameters(
            codec=_text_or_none(parameters.get("codec")),
            pulse=bool(parameters.get("pulse", True)),
            monitor=bool(parameters.get("monitor", False)),
            set_volume=bool(parameters.get("setVolume", False)),
            max_volume=_percent_or_none(parameters.get("maxVolume")),
        ),
        unknown={k: v for k, v in device.items() if k not in _DEVICE_FIELDS},
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _text_or_none(value: object) -> str | None:
    return None if value is None else _text(value)


def _percent_or_none(value: object) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= 100:
        raise ValueError(f"{value!r} is no whole number from 0 to 100")
    return value
