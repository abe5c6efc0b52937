"""What the API server accepts of a device, enforced before anything is sent.

One value that breaks a rule makes the server refuse the whole slice, and with it all sound of the
node. So a value that is too long is cut, one that can't be sent is left out, and each such thing
is reported as a problem; the rest is published. Rules: `resource.k8s.io/v1`, Kubernetes 1.34+.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from liken_audio.dra.devices import Attribute, Device, Taint

MAX_TEXT_BYTES = 64
MAX_ATTRIBUTES = 32
"""Attributes and capacities of one device together."""
MAX_TAINTS = 16

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(r"(?=.{1,63}$)[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}")
_TAINT_KEY = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_EFFECTS = ("None", "NoSchedule", "NoExecute")


@dataclass(frozen=True, slots=True)
class Fitted:
    """Devices that the server accepts, ordered by name, and what had to be changed."""

    devices: tuple[Device, ...]
    problems: tuple[str, ...]


def fit(devices: Sequence[Device]) -> Fitted:
    """Return the devices that can be published, each name once."""
    fitted: dict[str, Device] = {}
    problems: list[str] = []
    for device in sorted(devices, key=lambda device: device.name):
        if not _LABEL.fullmatch(device.name):
            problems.append(f"{device.name!r}: left out, no DNS label of at most 63 characters")
        elif device.name in fitted:
            problems.append(f"{device.name}: a second device of this name is left out")
        else:
            fitted[device.name] = _fit_device(device, problems)
    return Fitted(tuple(fitted.values()), tuple(problems))


def cut(text: str) -> str:
    """Return valid UTF-8 of at most 64 bytes, cut between two characters."""
    encoded = text.encode("utf-8", "replace")
    return encoded[:MAX_TEXT_BYTES].decode("utf-8", "ignore")


def _fit_device(device: Device, problems: list[str]) -> Device:
    attributes: dict[str, Attribute] = {}
    room = MAX_ATTRIBUTES - len(device.capacity)
    for key, value in device.attributes.items():
        if not _is_qualified(key):
            problems.append(f"{device.name}: attribute {key!r} left out, its name isn't allowed")
            continue
        fitted = _fit_value(value)
        if fitted is None:
            problems.append(f"{device.name}: attribute {key} left out, {value!r} can't be sent")
        elif len(attributes) == room:
            problems.append(f"{device.name}: attribute {key} left out, {room} are enough")
        elif fitted != "":
            attributes[key] = fitted
            if fitted != value:
                problems.append(f"{device.name}: attribute {key} cut to {MAX_TEXT_BYTES} bytes")
    taints = tuple(taint for taint in device.taints if _is_taint(taint))[:MAX_TAINTS]
    if taints != device.taints:
        problems.append(f"{device.name}: taints left out of {device.taints!r}")
    if attributes == device.attributes and taints == device.taints:
        return device
    return replace(device, attributes=attributes, taints=taints)


def _fit_value(value: object) -> Attribute | None:
    if isinstance(value, str):
        return cut(value)
    if isinstance(value, bool):
        return value
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return value
    return None


def _is_qualified(name: str) -> bool:
    domain, slash, identifier = name.rpartition("/")
    is_domain = not slash or bool(_SUBDOMAIN.fullmatch(domain))
    return is_domain and bool(_IDENTIFIER.fullmatch(identifier))


def _is_taint(taint: Taint) -> bool:
    domain, slash, name = taint.key.rpartition("/")
    is_key = (not slash or bool(_SUBDOMAIN.fullmatch(domain))) and bool(_TAINT_KEY.fullmatch(name))
    is_value = not taint.value or bool(_TAINT_KEY.fullmatch(taint.value))
    return is_key and is_value and taint.effect in _EFFECTS
