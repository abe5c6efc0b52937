"""Which pods have a claim, as far as it was seen: `status.reservedFor`, and who the claim was made for.

A claim from a template is owned by its pod and can be no other's. A named claim may get a second
pod at any time, and the kubelet doesn't tell: it calls Prepare for the first one alone. So what was
seen once is remembered: a claim that had a second pod counts as shared until it is unprepared, also
when that pod has ended, since its first pod's clients would be cut by every change back.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from liken_audio.api import Json

POD_CLAIM_NAME = "resource.kubernetes.io/pod-claim-name"
"""Annotation of a claim made from a template: its name in the pod's spec."""


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod that has a claim. The UID is the identity."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumers:
    """Who has a claim; nobody when it isn't known."""

    pods: tuple[Pod, ...] = ()
    """As last seen, ordered by name and UID."""
    is_for_one: bool = False
    """Made from a template for its one pod: no other can come."""
    is_shared: bool = False
    """A second consumer was seen, or one that isn't a pod and may stand for many."""

    @property
    def only_pod(self) -> Pod | None:
        """The pod that alone has the claim; None when there are others, or nothing is known."""
        return self.pods[0] if len(self.pods) == 1 and not self.is_shared else None


def consumers(claim: Json) -> Consumers:
    """Return who has a claim, as served."""
    reserved = (claim.get("status") or {}).get("reservedFor") or ()
    pods = {
        Pod(str(entry.get("name", "")), str(entry["uid"]))
        for entry in reserved
        if _is_pod(entry) and entry.get("uid")
    }
    ordered = tuple(sorted(pods, key=lambda pod: (pod.name, pod.uid)))
    are_all = all(_is_pod(entry) for entry in reserved)
    owner = _owner(claim)
    return Consumers(
        pods=ordered,
        is_for_one=owner is not None and are_all and all(pod.uid == owner for pod in ordered),
        is_shared=len(ordered) > 1 or not are_all,
    )


def seen(known: Consumers, now: Consumers) -> Consumers:
    """Return what is known after another look: once shared, or taken by another pod, always shared."""
    before = {pod.uid for pod in known.pods}
    has_new = bool(before) and any(pod.uid not in before for pod in now.pods)
    return replace(now, is_shared=now.is_shared or known.is_shared or has_new)


def pod_claim_name(claim: Json) -> str:
    """Return the claim's name in its pod's spec when a template made it, else ""."""
    annotations = (claim.get("metadata") or {}).get("annotations") or {}
    return str(annotations.get(POD_CLAIM_NAME) or "")


def _is_pod(entry: Mapping[str, Any]) -> bool:
    return entry.get("resource") == "pods" and not entry.get("apiGroup")


def _owner(claim: Json) -> str | None:
    """Return the UID of the pod that the claim was made for."""
    owners = (claim.get("metadata") or {}).get("ownerReferences") or ()
    uids = [o.get("uid") for o in owners if o.get("controller") and _is_pod_reference(o)]
    return str(uids[0]) if uids and uids[0] else None


def _is_pod_reference(owner: Mapping[str, Any]) -> bool:
    return owner.get("kind") == "Pod" and owner.get("apiVersion") == "v1"
