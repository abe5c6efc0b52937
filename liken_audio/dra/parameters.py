"""The opaque parameters of claims and classes: what they may say and for what.

A flat JSON object, strictly read: an unknown key, a wrong type or a key that doesn't fit the
device is an error that names what is right. A class is written by the cluster's admin, a claim by
any user: three keys are the class's alone. Within each, a later entry beats an earlier one; the
claim beats the class.
"""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from liken_audio.api import DRIVER
from liken_audio.graph.model import Connection, Direction, Endpoint

FROM_CLASS = "FromClass"
FROM_CLAIM = "FromClaim"

_CLASS_KEYS = ("codec", "maxVolume", "monitor", "pulse", "setVolume")
_CLAIM_KEYS = ("codec", "pulse")


class ParametersError(ValueError):
    """Parameters can't be used; the message names the key and what is right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """What a claim asks of one of its devices, class and claim together."""

    codec: str | None = None
    """Bluetooth codec; None: leave the one in use."""
    pulse: bool = True
    """Whether the container gets a PulseAudio socket beside PipeWire's."""
    monitor: bool = False
    """Whether it may record what the sink plays."""
    set_volume: bool = False
    """Whether it may change the volume of its node."""
    max_volume: int | None = None
    """Percent that the node's volume can't exceed while it is claimed; None: no limit of its own."""


def resolve(configs: Sequence[Mapping[str, Any]], request: str, endpoint: Endpoint) -> Parameters:
    """Merge the entries of `allocation.devices.config` that apply to `request` (`main`, `main/sub`).

    Raises `ParametersError` for the first entry that applies and can't be used.
    """
    merged: dict[str, Any] = {}
    for source in (FROM_CLASS, FROM_CLAIM):
        for config in configs:
            if config.get("source") == source and _applies(config, request):
                merged |= _values(config, source)
    unknown = {c.get("source") for c in configs if _applies(c, request)} - {FROM_CLASS, FROM_CLAIM}
    if unknown:
        raise ParametersError(f"configuration from {min(map(str, unknown))!r} is not known")
    _check_fit(merged, endpoint)
    return Parameters(
        codec=merged.get("codec"),
        pulse=merged.get("pulse", True),
        monitor=merged.get("monitor", False),
        set_volume=merged.get("setVolume", False),
        max_volume=merged.get("maxVolume"),
    )


def _applies(config: Mapping[str, Any], request: str) -> bool:
    """Whether an entry is for `request`: no list means all; a base name covers its subrequests."""
    opaque = config.get("opaque")
    if isinstance(opaque, Mapping) and opaque.get("driver") != DRIVER:
        return False
    requests = config.get("requests") or ()
    return not requests or request in requests or request.partition("/")[0] in requests


def _values(config: Mapping[str, Any], source: str) -> dict[str, Any]:
    where = "the class's" if source == FROM_CLASS else "the claim's"
    opaque = config.get("opaque")
    if not isinstance(opaque, Mapping):
        raise ParametersError(
            f"{where} configuration is of a kind that this driver doesn't know:"
            f" only `opaque` with driver {DRIVER} is"
        )
    parameters = opaque.get("parameters")
    if not isinstance(parameters, Mapping):
        raise ParametersError(f"{where} parameters must be an object, like {{pulse: false}}")
    for key, value in parameters.items():
        _check_key(key, where, is_class=source == FROM_CLASS)
        _check_type(key, value, where)
    return dict(parameters)


def _check_key(key: str, where: str, *, is_class: bool) -> None:
    if key in (_CLASS_KEYS if is_class else _CLAIM_KEYS):
        return
    if key in _CLASS_KEYS:
        raise ParametersError(
            f"{where} parameters: {key!r} can only be set in a DeviceClass;"
            f" a claim may set {_listed(_CLAIM_KEYS)}"
        )
    known = _CLASS_KEYS if is_class else _CLAIM_KEYS
    raise ParametersError(
        f"{where} parameters: {key!r} is not known{closest(key, known)}; known: {_listed(known)}"
    )


def _check_type(key: str, value: object, where: str) -> None:
    if key == "codec":
        is_right, right = isinstance(value, str) and value != "", "a codec's name, like 'sbc'"
    elif key == "maxVolume":
        is_number = isinstance(value, int) and not isinstance(value, bool)
        is_right = is_number and isinstance(value, int) and 0 <= value <= 100
        right = "a whole number from 0 to 100"
    else:
        is_right, right = isinstance(value, bool), "true or false"
    if not is_right:
        raise ParametersError(f"{where} parameters: {key!r} must be {right}, not {value!r}")


def _check_fit(merged: Mapping[str, Any], endpoint: Endpoint) -> None:
    if "codec" in merged and endpoint.connection is not Connection.BLUETOOTH:
        raise ParametersError(
            f"'codec' is for Bluetooth devices: {endpoint.name} is connected by"
            f" {endpoint.connection} and offers no codec to choose from; leave it out"
        )
    if "codec" in merged:
        _check_codec(merged["codec"], endpoint)
    if merged.get("monitor") and endpoint.direction is Direction.CAPTURE:
        raise ParametersError(
            f"'monitor' is for sinks: {endpoint.name} is a source, recorded as it is; leave it out"
        )


def _check_codec(codec: str, endpoint: Endpoint) -> None:
    """Refuse a codec that isn't offered; of a speaker that isn't connected nothing is known."""
    card = endpoint.bluetooth
    if card is None or codec == card.codec:
        return
    if endpoint.direction is Direction.CAPTURE:
        raise ParametersError(
            f"'codec' is for playing: {endpoint.name} is a microphone, whose profile decides; leave it out"
        )
    offered = list(dict.fromkeys([card.codec, *(name for name, _ in card.codecs)]))
    offered = [name for name in offered if name]
    if codec not in offered:
        raise ParametersError(
            f"codec {codec!r} is not offered by {endpoint.name}{closest(codec, offered)};"
            f" offered: {_listed(offered) or 'none'}"
        )


def closest(name: str, known: Iterable[str]) -> str:
    """Return ` (did you mean 'x'?)` for the known name that is closest, "" when none is close."""
    by_lower = {k.lower(): k for k in known}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return f" (did you mean {by_lower[near[0]]!r}?)" if near else ""


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)
