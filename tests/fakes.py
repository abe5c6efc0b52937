"""In-memory stand-ins for the ports of the loops.

They behave as the real partner does in what the loops rely on (versions, conflicts, preconditions),
count what was asked of them, and fail on demand.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from liken_audio.api import ApiError, Conflict, Json, NotFound, Resource, Unreachable
from liken_audio.graph.device_graph import DeviceGraph
from liken_audio.graph.model import (
    BluetoothCard,
    Card,
    Control,
    Linear,
    Node,
    NodeRecipe,
    PipeWireSnapshot,
    Profile,
    Source,
)

Key = tuple[str, str]
"""(plural, name) or (plural, namespace/name)."""


class FakeResourceClient:
    """Satisfies `ResourceClient` with a dict; tells its caches of each change, as a watch would.

    `failures` are raised by the next calls, one each; None in it lets one call pass.
    """

    def __init__(self) -> None:
        self.store: dict[Key, Json] = {}
        self.calls: list[tuple[str, str, str]] = []
        """(verb, plural, key) of each call, refused ones too."""
        self.failures: list[ApiError | None] = []
        self.lose_answers = 0
        """How many of the next creates are carried out and then answered by nothing."""
        self.admit: Callable[[Json], None] = lambda body: None
        """Changes a body as it is stored, as a server does that drops fields of disabled gates."""
        self._revision = 100
        self._caches: list[tuple[Resource, FakeCache]] = []

    def cache(self, resource: Resource) -> "FakeCache":
        """Return a synced cache that follows the store at once."""
        cache = FakeCache()
        self._caches.append((resource, cache))
        for (plural, key), body in self.store.items():
            if plural == resource.plural:
                cache.put(body, key)
        return cache

    def writes(self, plural: str = "") -> list[tuple[str, str, str]]:
        """Return the calls that write, of one kind or of all."""
        return [
            call for call in self.calls if call[0] != "get" and (not plural or call[1] == plural)
        ]

    def put(self, resource: Resource, body: Json) -> Json:
        """Store an object as somebody else's write would; no call is counted."""
        return self._store(resource, copy.deepcopy(body))

    def remove(self, resource: Resource, key: str) -> None:
        """Remove an object as somebody else's delete would; no call is counted."""
        self.store.pop((resource.plural, key), None)
        self._tell(resource, key)

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Json:
        key = f"{namespace}/{name}" if namespace else name
        self._called("get", resource, key)
        return copy.deepcopy(self._existing(resource, key))

    async def create(self, resource: Resource, body: Json) -> Json:
        key = key_of(body)
        self._called("create", resource, key)
        if (resource.plural, key) in self.store:
            raise Conflict(f"{key} exists", status=409, reason="AlreadyExists")
        stored = self._store(resource, copy.deepcopy(body))
        if self.lose_answers:
            self.lose_answers -= 1
            raise Unreachable("the answer was lost")
        return stored

    async def update(self, resource: Resource, body: Json) -> Json:
        key = key_of(body)
        self._called("update", resource, key)
        stored = self._existing(resource, key)["metadata"]
        sent = body["metadata"].get("resourceVersion", stored["resourceVersion"])
        if sent != stored["resourceVersion"] or body["metadata"].get("uid") not in {
            None,
            stored["uid"],
        }:
            raise Conflict(f"{key} has been modified", status=409, reason="Conflict")
        changed = copy.deepcopy(body)
        changed["metadata"]["uid"] = stored["uid"]
        return self._store(resource, changed)

    async def delete(
        self,
        resource: Resource,
        name: str,
        *,
        namespace: str | None = None,
        uid: str | None = None,
        resource_version: str | None = None,
    ) -> None:
        key = f"{namespace}/{name}" if namespace else name
        self._called("delete", resource, key)
        stored = self._existing(resource, key)["metadata"]
        wanted = {"uid": uid, "resourceVersion": resource_version}
        if any(value is not None and stored[field] != value for field, value in wanted.items()):
            raise Conflict(f"{key}: precondition failed", status=409, reason="Conflict")
        self.remove(resource, key)

    async def apply(self, resource: Resource, body: Json, *, subresource: str = "") -> Json:
        key = key_of(body)
        self._called("apply", resource, key)
        stored = self.store.get((resource.plural, key))
        if stored is None and subresource:
            raise NotFound(f"{key} not found", status=404, reason="NotFound")
        merged = copy.deepcopy(stored) if stored is not None else {}
        _merge(merged, body)
        return self._store(resource, merged)

    def _called(self, verb: str, resource: Resource, key: str) -> None:
        self.calls.append((verb, resource.plural, key))
        failure = self.failures.pop(0) if self.failures else None
        if failure is not None:
            raise failure

    def _existing(self, resource: Resource, key: str) -> Json:
        try:
            return self.store[resource.plural, key]
        except KeyError:
            raise NotFound(f"{key} not found", status=404, reason="NotFound") from None

    def _store(self, resource: Resource, body: Json) -> Json:
        key = key_of(body)
        before = self.store.get((resource.plural, key))
        self.admit(body)
        metadata = body["metadata"]
        metadata.setdefault("uid", f"uid-{self._revision + 1}")
        if before is not None:
            metadata["resourceVersion"] = before["metadata"]["resourceVersion"]
            if body == before:
                return copy.deepcopy(before)
        self._revision += 1
        metadata["resourceVersion"] = str(self._revision)
        self.store[resource.plural, key] = body
        self._tell(resource, key)
        return copy.deepcopy(body)

    def _tell(self, resource: Resource, key: str) -> None:
        body = self.store.get((resource.plural, key))
        for watched, cache in self._caches:
            if watched == resource and not cache.is_paused:
                if body is None:
                    cache.remove(key)
                else:
                    cache.put(body, key)


class FakeCache:
    """Satisfies `WriteThroughCache`; while `is_paused` it is behind, as a slow watch is."""

    def __init__(self, *objects: Json) -> None:
        self.is_synced = True
        self.is_paused = False
        self._objects: dict[str, Json] = {key_of(body): body for body in objects}
        self._callbacks: list[Callable[[str], None]] = []

    def objects(self) -> Mapping[str, Json]:
        return self._objects

    def subscribe(self, callback: Callable[[str], None]) -> None:
        self._callbacks.append(callback)

    def put(self, body: Json, key: str | None = None) -> None:
        """Show an object and say so."""
        key = key or key_of(body)
        self._objects[key] = copy.deepcopy(body)
        self._changed(key)

    def remove(self, key: str) -> None:
        """Show that an object is gone and say so."""
        if self._objects.pop(key, None) is not None:
            self._changed(key)

    def observe(self, body: Json) -> None:
        self._objects[key_of(body)] = copy.deepcopy(body)

    def forget(self, uid: str) -> None:
        for key, body in list(self._objects.items()):
            if body["metadata"]["uid"] == uid:
                del self._objects[key]

    def _changed(self, key: str) -> None:
        for callback in self._callbacks:
            callback(key)


def key_of(body: Mapping[str, Any]) -> str:
    """Return `name` or `namespace/name` of an object."""
    metadata = body["metadata"]
    namespace = metadata.get("namespace")
    return f"{namespace}/{metadata['name']}" if namespace else str(metadata["name"])


def _merge(target: Json, source: Mapping[str, Any]) -> None:
    for name, value in source.items():
        if isinstance(value, dict) and isinstance(target.get(name), dict):
            _merge(target[name], value)
        else:
            target[name] = copy.deepcopy(value)


class FakeHardware:
    """Satisfies `AudioWriter` and `ControlWriter`; a node's volume and mute show in the graph.

    `failures` are raised by the next writes, one each; None in it lets one through. While
    `is_deaf` it takes writes and shows nothing.
    """

    def __init__(self, graph: DeviceGraph) -> None:
        self.calls: list[tuple[str, Any]] = []
        """(what, value) of each write, failed ones too."""
        self.failures: list[OSError | None] = []
        self.is_deaf = False
        self._graph = graph

    async def set_volume(self, node: Node, volume: Linear) -> None:
        self._called("volume", volume)
        self._change(node, volumes=(volume, volume))

    async def set_mute(self, node: Node, *, is_muted: bool) -> None:
        self._called("mute", is_muted)
        self._change(node, is_muted=is_muted)

    async def set_profile(self, card: BluetoothCard, profile: Profile) -> None:
        self._called(f"profile {card.address}", profile.name)

    async def set_codec(self, card: BluetoothCard, codec: str) -> None:
        self._called(f"codec {card.address}", codec)

    async def create_node(
        self, name: str, recipe: NodeRecipe, properties: Mapping[str, str]
    ) -> None:
        self._called("create", name)

    async def destroy_node(self, node: Node) -> None:
        self._called("destroy", node.name)

    async def write_control(self, card: Card, control: Control, values: Sequence[int]) -> None:
        self._called(control.name, tuple(values))

    def _called(self, what: str, value: Any) -> None:
        self.calls.append((what, value))
        failure = self.failures.pop(0) if self.failures else None
        if failure is not None:
            raise failure

    def _change(self, target: Node, **changes: Any) -> None:
        if self.is_deaf:
            return
        view = self._graph.view()
        nodes = [
            replace(one, **changes) if one.serial == target.serial else one for one in view.nodes
        ]
        self._graph.replace(Source.PIPEWIRE, PipeWireSnapshot(tuple(nodes), view.bluetooth))
