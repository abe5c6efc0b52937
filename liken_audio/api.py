"""The names that this product shares with the API server, and what a call to it can end in.

Pure data: the driver's name, the kinds it touches with their paths, and one family of errors
that every caller can tell apart without knowing the HTTP library.
"""

from dataclasses import dataclass
from typing import Any

DRIVER = "audio.liken.sh"
"""The DRA driver name; also the domain of attributes, taints and our API group."""

GROUP = "audio.liken.sh"
VERSION = "v1alpha1"
FIELD_MANAGER = "audio.liken.sh"
"""Field manager of everything the agent applies (status, labels, claim status)."""

NODE_LABEL = "audio.liken.sh/node"
"""Label by which an agent lists and watches only its own node's Sinks and Sources."""

Json = dict[str, Any]
"""One JSON object as the API server gives it; decoded at the border, never passed inward whole."""


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of API object and where it is served."""

    group: str
    version: str
    plural: str
    kind: str
    is_namespaced: bool = False

    @property
    def api_version(self) -> str:
        """`apiVersion` of its objects."""
        return f"{self.group}/{self.version}" if self.group else self.version


SINKS = Resource(GROUP, VERSION, "sinks", "Sink")
SOURCES = Resource(GROUP, VERSION, "sources", "Source")
RESOURCE_SLICES = Resource("resource.k8s.io", "v1", "resourceslices", "ResourceSlice")
RESOURCE_CLAIMS = Resource(
    "resource.k8s.io", "v1", "resourceclaims", "ResourceClaim", is_namespaced=True
)
NODES = Resource("", "v1", "nodes", "Node")
EVENTS = Resource("events.k8s.io", "v1", "events", "Event", is_namespaced=True)


class ApiError(Exception):
    """A call to the API server failed; `status` is its HTTP code, 0 when no answer came."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 0,
        reason: str = "",
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.retry_after = retry_after
        """Seconds the server asked to wait before the next call, when it did."""


class NotFound(ApiError):
    """404: no such object, or no such resource type (a CRD that isn't there)."""


class Conflict(ApiError):
    """409: the object changed or exists already; read again, then decide again."""


class Gone(ApiError):
    """410: the resourceVersion is too old; list again."""


class Rejected(ApiError):
    """400, 403, 422: the server understood and refuses; the same body will be refused again."""


class Unreachable(ApiError):
    """No answer, a broken connection, 429 or 5xx: worth trying again later."""
