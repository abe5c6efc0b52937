"""The doctor's questions to the API server, with the rights of the agent."""

from collections.abc import Sequence

from liken_audio.api import (
    DRIVER,
    GROUP,
    NODES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    SINKS,
    SOURCES,
    ApiError,
    NotFound,
    Rejected,
    Resource,
)
from liken_audio.doctor.facts import Cluster, Right
from liken_audio.kubernetes.client import KubernetesClient

_REVIEWS = Resource(
    "authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview"
)
_DRA = RESOURCE_SLICES.group
NEEDED: Sequence[Right] = (
    *(
        Right(verb, kind, GROUP)
        for kind in (SINKS.plural, SOURCES.plural)
        for verb in ("get", "list", "watch", "create", "patch", "delete")
    ),
    *(Right("patch", kind, GROUP, "status") for kind in (SINKS.plural, SOURCES.plural)),
    # Where the Events about objects without a namespace are.
    *(Right(verb, "events", "events.k8s.io", namespace="default") for verb in ("create", "update")),
    Right("get", "nodes"),
    *(
        Right(verb, RESOURCE_SLICES.plural, _DRA)
        for verb in ("get", "list", "watch", "create", "update", "delete")
    ),
    *(Right(verb, RESOURCE_CLAIMS.plural, _DRA) for verb in ("get", "list", "watch")),
    Right("patch", RESOURCE_CLAIMS.plural, _DRA, "status"),
    Right("associated-node:patch", RESOURCE_CLAIMS.plural, _DRA, "driver", DRIVER),
)
"""As manifests/rights/role.yaml gives them."""


async def cluster(client: KubernetesClient, node: str) -> Cluster:
    """Ask all of it; what can't be asked is part of the answer."""
    try:
        not_served = [
            each for each in (SINKS, SOURCES, RESOURCE_SLICES) if not await _is_served(client, each)
        ]
        denied = [right for right in NEEDED if not await _is_allowed(client, right)]
    except ApiError as error:
        return Cluster(error=str(error), node=node)
    info, error_text = await _node_info(client, node)
    return Cluster(
        not_served=tuple(f"{each.plural}.{each.group}" for each in not_served),
        denied=tuple(denied),
        node=node,
        node_error=error_text,
        kubelet_version=str(info.get("kubeletVersion", "")),
        runtime=str(info.get("containerRuntimeVersion", "")),
    )


async def _is_served(client: KubernetesClient, resource: Resource) -> bool:
    try:
        # No object has this name; the lack of the type is told by another message.
        await client.get(resource, "liken-audio-doctor")
    except NotFound as error:
        return error.reason == "NotFound" and "liken-audio-doctor" in str(error)
    except Rejected:
        return True
    return True


async def _is_allowed(client: KubernetesClient, right: Right) -> bool:
    attributes = {
        "verb": right.verb,
        "group": right.group,
        "resource": right.resource,
        "subresource": right.subresource,
        "name": right.name,
        "namespace": right.namespace,
    }
    body = {
        "apiVersion": _REVIEWS.api_version,
        "kind": _REVIEWS.kind,
        "metadata": {},
        "spec": {"resourceAttributes": attributes},
    }
    answer = await client.create(_REVIEWS, body)
    return bool(answer.get("status", {}).get("allowed"))


async def _node_info(client: KubernetesClient, node: str) -> tuple[dict[str, str], str]:
    try:
        found = await client.get(NODES, node)
    except ApiError as error:
        return {}, str(error)
    return dict(found.get("status", {}).get("nodeInfo") or {}), ""
