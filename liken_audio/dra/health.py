"""Endpoint → the health that the kubelet shows in a pod's status.

Follows faults at once: the debounce is for taints, which evict; health only tells.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from liken_audio.graph.model import Endpoint, Fault

_MESSAGES = {
    Fault.UNPLUGGED: "nothing is plugged in",
    Fault.NO_MONITOR: "no monitor is connected",
    Fault.GRAPH_LOST: "PipeWire doesn't answer",
    Fault.NO_NODE: "PipeWire has no working node for it",
}


class HealthStatus(StrEnum):
    """Whether sound gets through."""

    UNKNOWN = "unknown"
    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceHealth:
    """The health of one device of our pool."""

    pool: str
    device: str
    status: HealthStatus
    message: str = ""
    """Why, when it isn't healthy; at most 1024 bytes."""


def health(endpoints: Iterable[Endpoint], pool: str, *, is_known: bool) -> tuple[DeviceHealth, ...]:
    """Return the health of each endpoint; all unknown until PipeWire has spoken once."""
    return tuple(_device(endpoint, pool, is_known=is_known) for endpoint in endpoints)


def explain(fault: Fault) -> str:
    """Return why no sound gets through."""
    return _MESSAGES[fault]


def _device(endpoint: Endpoint, pool: str, *, is_known: bool) -> DeviceHealth:
    if not is_known:
        status, message = HealthStatus.UNKNOWN, "PipeWire hasn't answered since the agent's start"
    elif endpoint.fault is None:
        status, message = HealthStatus.HEALTHY, ""
    else:
        status, message = HealthStatus.UNHEALTHY, explain(endpoint.fault)
    return DeviceHealth(pool=pool, device=endpoint.name, status=status, message=message)
