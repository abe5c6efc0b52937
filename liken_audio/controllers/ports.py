"""What the loops call: one Protocol for each partner, with its whole contract.

The edges satisfy these by shape and import nothing of this package; `agent` puts them together
and mypy proves each match there. Every coroutine here has a deadline of its own inside: a caller
need not add one. Errors of the API server are the family in `liken_audio.api`.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from liken_audio.api import Json, Resource
from liken_audio.dra.cdi import CdiSpec
from liken_audio.dra.claims import ClaimedDevice, ClaimRecord
from liken_audio.dra.metadata import MetadataFile
from liken_audio.graph.model import (
    BluetoothCard,
    Card,
    Control,
    DeviceName,
    Linear,
    Node,
    NodeRecipe,
    Profile,
)


class ResourceClient(Protocol):
    """Calls to the API server; each raises an `ApiError` and retries nothing by itself."""

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Json:
        """Read one object."""

    async def create(self, resource: Resource, body: Json) -> Json:
        """Create; namespace and name (or generateName) are the body's. `Conflict` if it exists."""

    async def update(self, resource: Resource, body: Json) -> Json:
        """Replace; with `metadata.resourceVersion` in the body, `Conflict` if it moved on."""

    async def delete(
        self,
        resource: Resource,
        name: str,
        *,
        namespace: str | None = None,
        uid: str | None = None,
        resource_version: str | None = None,
    ) -> None:
        """Delete under the given preconditions; `NotFound` if it is gone already."""

    async def apply(self, resource: Resource, body: Json, *, subresource: str = "") -> Json:
        """Server-side apply with our field manager, forced; an upsert, so safe to repeat."""


class ObjectCache(Protocol):
    """A watched list of objects, kept by an informer."""

    @property
    def is_synced(self) -> bool:
        """Whether the cache has held a complete list at least once since the start."""

    def objects(self) -> Mapping[str, Json]:
        """The objects by `name` or `namespace/name`; must not be changed by the caller."""

    def subscribe(self, callback: Callable[[str], None]) -> None:
        """Have `callback(key)` called after each change of an object, deletions included."""


class WriteThroughCache(ObjectCache, Protocol):
    """A cache that can be told of our own writes before the watch brings them.

    Neither call wakes a subscriber; what the watch says of older versions afterwards is ignored.
    """

    def observe(self, body: Json) -> None:
        """Show the object that a create, update or apply returned."""

    def forget(self, uid: str) -> None:
        """Show no object with this UID any more: we deleted it."""


class AudioWriter(Protocol):
    """Writes to PipeWire; idempotent; raises `OSError` or `TimeoutError` when it can't."""

    async def set_volume(self, node: Node, volume: Linear) -> None:
        """Set all channels of the node to one linear volume."""

    async def set_mute(self, node: Node, *, is_muted: bool) -> None:
        """Mute or unmute the node."""

    async def set_profile(self, card: BluetoothCard, profile: Profile) -> None:
        """Switch a Bluetooth device to another profile; its nodes are made anew."""

    async def set_codec(self, card: BluetoothCard, codec: str) -> None:
        """Switch a Bluetooth device to a codec that it offers; its node is made anew."""

    async def create_node(
        self, name: str, recipe: NodeRecipe, properties: Mapping[str, str]
    ) -> None:
        """Make an adapter node that lives on after us."""

    async def destroy_node(self, node: Node) -> None:
        """Remove a node; fine if it is gone."""


class HardwareSettler(Protocol):
    """Brings the hardware of endpoints to what is asked of it."""

    async def settle(self, names: Collection[DeviceName]) -> None:
        """Return when what the graph asks of the devices' hardware now is written or has failed.

        `TimeoutError` when that takes too long.
        """


class NodeRenewer(Protocol):
    """Makes nodes anew that a workload may have left something on."""

    async def renewed(self, names: Collection[DeviceName]) -> None:
        """Return when no node of the devices is left whose last claim the graph saw go.

        Its successor may not be there yet. `TimeoutError` when that takes too long.
        """


class PcmProbe(Protocol):
    """Looks whether what a node is to play to can be had now."""

    async def obstacle(self, recipe: NodeRecipe) -> str:
        """Why a node can't be made by the recipe now, in words; "" when nothing is in the way."""


class CodecSwitcher(Protocol):
    """Switches codecs of Bluetooth speakers, one switch of a speaker at a time."""

    async def switch_codec(self, address: str, codec: str) -> None:
        """Have a connected speaker play by a codec; one that is in use writes nothing.

        Returns when the node that was made anew is there. When it isn't in time, the codec that was
        in use is put back, and `OSError` says so; it also says what is offered instead.
        """


class SpeakerSwitcher(CodecSwitcher, Protocol):
    """What a claim may need to have switched."""

    async def switch_microphone_on(self, address: str) -> None:
        """Have the microphone of a connected headset; `OSError` says why not, as when it plays."""


class SpeakerCaller(Protocol):
    """Calls paired Bluetooth devices."""

    async def connect(self, address: str) -> None:
        """Connect; `OSError` with BlueZ's words, `TimeoutError` when it doesn't answer."""


class SessionManager(Protocol):
    """The session manager (WirePlumber) as a process that can be started anew."""

    async def restart(self) -> None:
        """Have it restarted; `OSError` where there is no way to."""


class ControlWriter(Protocol):
    """Writes to the mixer of a card, kernel's or virtual; raises `OSError` when it can't."""

    async def write_control(self, card: Card, control: Control, values: Sequence[int]) -> None:
        """Set a control, one value a channel; values that are there already change nothing."""


class ClaimStore(Protocol):
    """Prepared claims on disk; the disk is the truth, so two agents in a rolling update agree."""

    def load(self, uid: str) -> ClaimRecord | None:
        """The record of a claim, None when there is none; a broken one is set aside and logged."""

    def records(self) -> Sequence[ClaimRecord]:
        """All records, ordered by namespace, name and UID."""

    def save(self, record: ClaimRecord, *, is_durable: bool = True) -> None:
        """Write whole: temporary file, fsync, rename, fsync of the folder; not durable: no fsync."""

    def remove(self, uid: str) -> None:
        """Forget a claim; fine if unknown."""

    def write_cdi(self, uid: str, spec: CdiSpec) -> None:
        """Write the claim's CDI file whole, unless it is there with the same content."""

    def write_metadata(self, record: ClaimRecord, file: MetadataFile) -> None:
        """Write a request's metadata, and the CDI file that mounts it, unless they are the same."""

    def remove_cdi(self, uid: str) -> None:
        """Remove the claim's CDI files and what they mount; fine if they are gone."""

    def leftovers(self) -> set[str]:
        """UIDs of files that have no record; another agent may just be at work on them."""

    def sweep(self, uid: str) -> None:
        """Remove a claim's temporary files, and its CDI files unless it has a record."""

    def lock(self, uid: str) -> AbstractAsyncContextManager[None]:
        """Be the only one, in all agents of this node, to work on a claim. `TimeoutError`."""

    def reservation(self) -> AbstractAsyncContextManager[None]:
        """Be the only one to check what is free and to save a reservation. `TimeoutError`."""


class ClaimSockets(Protocol):
    """The claims' directories and the sockets in them."""

    async def open(self, record: ClaimRecord, joined: Sequence[ClaimedDevice] = ()) -> None:
        """Have the claim's directory with its socket ready; idempotent. `OSError` says why not.

        The socket reaches the claim's devices and `joined`; a change of that cuts its clients.
        """

    async def close(self, uid: str) -> None:
        """Cut the claim's connections and remove its directory; fine if there is none."""

    def uids(self) -> set[str]:
        """UIDs that have a directory."""
