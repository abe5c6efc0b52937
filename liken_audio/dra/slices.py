"""ResourceSlices: what is wished, what is there, and the writes that turn one into the other.

`plan` is a function of the wished pool, the slices observed and what was learnt of earlier writes.
It returns the writes in the order in which they must be made; without a difference it returns none.
The rules are those of Kubernetes' own slice controller (`k8s.io/dynamic-resource-allocation`):

1. Obsolete slices go first, then changed ones, then new ones.
2. The generation stays when one update alone makes the pool right, since that is atomic; in all
   other cases it rises by one, above all generations ever seen, and every slice is written.
3. A taint that stays keeps its `timeAdded`, else tolerations would start anew.
4. Comparison is by meaning: quantities by value, empty equals absent; the order of devices counts.
5. Fields that the server dropped are adopted (`Adoption`), else they would be sent for ever.
6. No device at all is one slice without devices: the driver runs and has nothing.

It differs in the names, which are fixed: a slice is updated in place and never doubled when a
create's answer is lost. It must not read a clock, and what it is given is never changed.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count
from typing import Any

from liken_audio.api import DRIVER, RESOURCE_SLICES, Json
from liken_audio.dra.devices import Device
from liken_audio.dra.encoding import Adoption, adoption, encode, meaning

DEVICES_PER_SLICE = 64
"""The server takes 128, but 64 once any device has a taint. Devices of ours gain and lose taints
all the time; a pool that is split the same way with and without them is never incomplete."""

_MAX_NAME = 253


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """What shall be published: a node and its devices, in order (`limits.fit` made them valid)."""

    node: str
    node_uid: str
    devices: tuple[Device, ...]


@dataclass(frozen=True, slots=True)
class Memory:
    """What was learnt from earlier writes and sights; empty at the start."""

    generation: int = 0
    """The highest ever seen."""
    slices: Mapping[str, Json] = field(default_factory=dict)
    """Slices as last seen or written, by name; what somebody else deleted stays."""
    adopted: Mapping[str, Adoption] = field(default_factory=dict)
    """By the slice's name."""
    taken: frozenset[str] = frozenset()
    """Names that something of somebody else has."""

    def saw(self, bodies: Sequence[Json]) -> "Memory":
        """Return the memory after the slices of ours were seen as they are now."""
        return replace(
            self,
            slices={**self.slices, **{body["metadata"]["name"]: body for body in bodies}},
            generation=max(self.generation, *map(_generation, bodies), 0),
        )

    def wrote(self, sent: Json, stored: Json) -> "Memory":
        """Return the memory after a write, with what the server made of it."""
        adopted = dict(self.adopted)
        name = sent["metadata"]["name"]
        adopted.pop(name, None)
        lesson = adoption(devices_of(sent), devices_of(stored))
        if lesson is not None:
            adopted[name] = lesson
        return replace(self.saw((stored,)), adopted=adopted)

    def deleted(self, name: str) -> "Memory":
        """Return the memory after we deleted a slice; its generation stays known."""
        return replace(self, slices={key: v for key, v in self.slices.items() if key != name})


@dataclass(frozen=True, slots=True)
class Create:
    """Create this slice."""

    body: Json


@dataclass(frozen=True, slots=True)
class Update:
    """Replace the slice of this name; `metadata.resourceVersion` is in the body."""

    body: Json


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete the slice, if it still is this one."""

    name: str
    uid: str
    resource_version: str


Write = Create | Update | Delete


def slice_name(node: str, index: int) -> str:
    """Return the name of a node's nth slice, from 0; the longest node names end in a hash."""
    suffix = f"-{DRIVER}" + (f"-{index + 1}" if index else "")
    if len(node) + len(suffix) > _MAX_NAME:
        digest = hashlib.sha256(node.encode()).hexdigest()[:8]
        node = node[: _MAX_NAME - len(suffix) - 9].rstrip("-.") + "-" + digest
    return node + suffix


def is_ours(body: Mapping[str, Any], node: str) -> bool:
    """Whether a slice is this driver's on this node; what else is there is none of our business."""
    spec = body.get("spec", {})
    return bool(spec.get("driver") == DRIVER and spec.get("nodeName") == node)


def plan(pool: Pool, observed: Sequence[Json], memory: Memory | None = None) -> tuple[Write, ...]:
    """Return the writes, in their order, that make the observed slices the pool."""
    memory = memory or Memory()
    ours = {body["metadata"]["name"]: body for body in observed if is_ours(body, pool.node)}
    foreign = {body["metadata"]["name"] for body in observed} - ours.keys()
    names = _names(pool.node, memory.taken | foreign)
    pages = {next(names): page for page in _pages(pool.devices)}
    kept = {
        name: body
        for name, body in ours.items()
        if name in pages and body["spec"]["pool"]["name"] == pool.node
    }
    obsolete = [body for name, body in sorted(ours.items()) if name not in kept]
    changed = {
        name
        for name, body in kept.items()
        if not _is_right(body, pages[name], memory.adopted.get(name))
        or _owner(pool) not in body["metadata"].get("ownerReferences", ())
    }
    generation = max((_generation(body) for body in kept.values()), default=0)
    if not _is_complete(kept, pages, generation) or len(changed) > 1:
        changed = set(kept)
        generation = 1 + max(memory.generation, *map(_generation, ours.values()), 0)
    times = _taint_times(chain(memory.slices.values(), ours.values()))
    spec = _SpecOf(pool, generation, len(pages), times)
    return (
        *(_delete(body) for body in obsolete),
        *(Update(spec.update(kept[name], pages[name])) for name in pages if name in changed),
        *(Create(spec.create(name, page)) for name, page in pages.items() if name not in kept),
    )


@dataclass(frozen=True, slots=True)
class _SpecOf:
    """Builds bodies that share the pool's header."""

    pool: Pool
    generation: int
    slices: int
    times: Mapping[tuple[str, str, str, str], str]

    def create(self, name: str, page: Sequence[Device]) -> Json:
        return {
            "apiVersion": RESOURCE_SLICES.api_version,
            "kind": RESOURCE_SLICES.kind,
            "metadata": {"name": name, "ownerReferences": [_owner(self.pool)]},
            "spec": self._spec(page),
        }

    def update(self, observed: Json, page: Sequence[Device]) -> Json:
        """Keep what others put on the object; one owner may be its controller, and it is ours."""
        metadata = {
            key: value for key, value in observed["metadata"].items() if key != "managedFields"
        }
        owners = [
            owner
            for owner in metadata.get("ownerReferences", ())
            if owner["kind"] != "Node" and not owner.get("controller")
        ]
        metadata["ownerReferences"] = [_owner(self.pool), *owners]
        return {
            "apiVersion": RESOURCE_SLICES.api_version,
            "kind": RESOURCE_SLICES.kind,
            "metadata": metadata,
            "spec": self._spec(page),
        }

    def _spec(self, page: Sequence[Device]) -> Json:
        spec: Json = {
            "driver": DRIVER,
            "nodeName": self.pool.node,
            "pool": {
                "name": self.pool.node,
                "generation": self.generation,
                "resourceSliceCount": self.slices,
            },
        }
        if page:
            spec["devices"] = [self._device(device) for device in page]
        return spec

    def _device(self, device: Device) -> Json:
        body = encode(device)
        for taint in body.get("taints", ()):
            added = self.times.get(_taint_key(device.name, taint))
            if added is not None:
                taint["timeAdded"] = added
        return body


def _pages(devices: Sequence[Device]) -> list[tuple[Device, ...]]:
    """Split by order alone: equal devices are split equally, and none are one empty page."""
    starts = range(0, len(devices), DEVICES_PER_SLICE) if devices else (0,)
    return [tuple(devices[start : start + DEVICES_PER_SLICE]) for start in starts]


def _names(node: str, taken: frozenset[str]) -> Iterator[str]:
    return (name for index in count() if (name := slice_name(node, index)) not in taken)


def _is_complete(
    kept: Mapping[str, Json], pages: Mapping[str, Sequence[Device]], generation: int
) -> bool:
    """Whether all slices are there, agree on the generation and count each other."""
    return len(kept) == len(pages) and all(
        _generation(body) == generation and body["spec"]["pool"]["resourceSliceCount"] == len(pages)
        for body in kept.values()
    )


def _is_right(observed: Json, page: Sequence[Device], adopted: Adoption | None) -> bool:
    wished = [meaning(encode(device)) for device in page]
    there = [meaning(device) for device in devices_of(observed)]
    if wished == there:
        return True
    return adopted is not None and wished == adopted.sent and there == adopted.stored


def _owner(pool: Pool) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "name": pool.node,
        "uid": pool.node_uid,
        "controller": True,
    }


def _delete(body: Json) -> Delete:
    metadata = body["metadata"]
    return Delete(metadata["name"], metadata["uid"], metadata["resourceVersion"])


def devices_of(body: Json) -> list[Json]:
    """Return the devices of a slice, as the API has them."""
    return body["spec"].get("devices") or []


def _generation(body: Json) -> int:
    return int(body.get("spec", {}).get("pool", {}).get("generation", 0))


def _taint_key(device: str, taint: Mapping[str, str]) -> tuple[str, str, str, str]:
    return (device, taint["key"], taint.get("value", ""), taint["effect"])


def _taint_times(slices: Iterator[Json]) -> dict[tuple[str, str, str, str], str]:
    """Map each taint seen to its time; later slices win, so that observed ones beat memories."""
    return {
        _taint_key(device["name"], taint): taint["timeAdded"]
        for body in slices
        for device in devices_of(body)
        for taint in device.get("taints", ())
        if taint.get("timeAdded")
    }
