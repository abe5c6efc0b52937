"""Device → the API's JSON (`resource.k8s.io/v1`), and what two such bodies have in common.

The server gives back its own spelling of what it was sent: quantities in canonical form, times
filled in, empty fields gone, fields of disabled gates dropped. So bodies are compared by `meaning`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from liken_audio.api import Json
from liken_audio.dra.devices import Attribute, Capacity, Device
from liken_audio.dra.quantities import parse


@dataclass(frozen=True, slots=True)
class Adoption:
    """The devices of one slice as we sent them and as the server stored them: dropped fields."""

    sent: list[Json]
    stored: list[Json]


def encode(device: Device) -> Json:
    """Return a device as the API has it; fields at their default are left out."""
    body: Json = {"name": str(device.name)}
    if device.attributes:
        body["attributes"] = {key: _attribute(value) for key, value in device.attributes.items()}
    if device.capacity:
        body["capacity"] = {key: _capacity(value) for key, value in device.capacity.items()}
    if device.allow_multiple:
        body["allowMultipleAllocations"] = True
    if device.taints:
        body["taints"] = [
            {
                "key": taint.key,
                "effect": taint.effect,
                **({"value": taint.value} if taint.value else {}),
            }
            for taint in device.taints
        ]
    return body


def _attribute(value: Attribute) -> Json:
    if isinstance(value, bool):
        return {"bool": value}
    return {"int": value} if isinstance(value, int) else {"string": value}


def _capacity(capacity: Capacity) -> Json:
    steps = {"min": capacity.minimum, "max": capacity.maximum, "step": capacity.step}
    return {
        "value": str(capacity.value),
        "requestPolicy": {
            "default": str(capacity.default),
            "validRange": {key: str(value) for key, value in steps.items()},
        },
    }


def meaning(device: Json) -> Json:
    """Return a device as it is compared: no times, quantities as numbers, nothing that is empty."""
    meaning = {key: value for key, value in device.items() if value not in (None, False, [], {})}
    if "taints" in meaning:
        meaning["taints"] = [
            {key: value for key, value in taint.items() if key != "timeAdded" and value != ""}
            for taint in meaning["taints"]
        ]
    if "capacity" in meaning:
        meaning["capacity"] = _by_value(meaning["capacity"])
    return meaning


def _by_value(capacity: Any) -> Any:
    if isinstance(capacity, dict):
        return {key: _by_value(value) for key, value in capacity.items() if value is not None}
    if isinstance(capacity, list):
        return [_by_value(value) for value in capacity]
    quantity = parse(capacity)
    return capacity if quantity is None else quantity


def dropped_fields(sent: Sequence[Json], stored: Sequence[Json]) -> tuple[str, ...]:
    """Name the fields of devices that we sent and the server didn't store, for a person to read."""
    pairs = zip(sent, stored, strict=False)
    dropped = {
        field_name
        for before, after in pairs
        for field_name in _paths(meaning(before)) - _paths(meaning(after))
    }
    return tuple(sorted(dropped))


def adoption(sent: Sequence[Json], stored: Sequence[Json]) -> Adoption | None:
    """Return what must be remembered of a write, None if all was stored as it was sent."""
    before = [meaning(device) for device in sent]
    after = [meaning(device) for device in stored]
    return Adoption(before, after) if before != after else None


def _paths(value: Any, prefix: str = "") -> set[str]:
    """Return the paths of all fields, attribute and capacity names replaced by a star."""
    if isinstance(value, dict):
        is_map = prefix in ("attributes", "capacity")
        return {
            path
            for key, inner in value.items()
            for path in _paths(inner, f"{prefix}.{'*' if is_map else key}".strip("."))
        } | ({prefix} if prefix else set())
    return {prefix}
