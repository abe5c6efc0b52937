"""Writes to PipeWire, each by one pw-cli with a deadline.

pw-cli exits with 0 whatever happens; an error that it knows is a line on stderr, one that only
PipeWire knows (a factory that can't make the node) isn't told at all. So a created node counts
once it shows in the graph. Ids are re-used at once, and pw-cli takes nothing but ids: each write
to a node first asks for the serial behind the id and leaves a stranger alone.

A write to a suspended node is taken and not announced until the node runs.

The volume of a node whose device has a route for it is the route's: written to the node itself, it
would not reach a Bluetooth speaker's own volume.
"""

import asyncio
import contextlib
import errno
import json
import math
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

from liken_audio.graph.model import (
    BluetoothCard,
    Linear,
    Node,
    NodeId,
    NodeRecipe,
    NodeSerial,
    Profile,
)
from liken_audio.pipewire import tool

WRITE_SECONDS = 5.0
"""Deadline of one write, waiting for its turn included."""
MAX_AT_ONCE = 4
"""How many pw-cli may run at once."""
MAX_COMMAND_BYTES = 4000
"""pw-cli copies its arguments into 4096 bytes and doesn't look where they end."""

_ERROR = re.compile(r'^Error: "?(?P<said>.*?)"?$|\berror id:\d+.*?: (?P<told>.*)$', re.MULTILINE)
_UNKNOWN = re.compile(r"\bunknown global\b")
_LISTED = re.compile(
    r"^\s*id (?P<id>\d+), type PipeWire:Interface:(?P<kind>Node|Device)/", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class _Object:
    """One incarnation of a node or a device."""

    kind: str
    id: NodeId
    serial: NodeSerial
    name: str


class PipeWireWriter:
    """Satisfies `controllers.ports.AudioWriter`.

    `remote` is the absolute path of PipeWire's socket. All methods raise `TimeoutError` after
    `WRITE_SECONDS`, and `OSError` with pw-cli's words when the write isn't possible: ENOENT when
    the node is gone, EINVAL for a value that is none.
    """

    def __init__(self, remote: str) -> None:
        self._remote = remote
        self._turns = asyncio.Semaphore(MAX_AT_ONCE)
        self.writes = 0
        """Writes that pw-cli took."""
        self.errors = 0

    async def set_volume(self, node: Node, volume: Linear) -> None:
        """Set all channels of the node to one linear volume, from 0 to 10."""
        if not math.isfinite(volume) or not 0 <= volume <= 10:
            raise OSError(errno.EINVAL, f"a volume is from 0 to 10, not {volume}", node.name)
        channels = len(node.volumes) or node.channels or 1
        values = ", ".join([f"{volume:.8f}"] * channels)
        channels_alone = f"channelVolumes: [ {values} ]"
        # PipeWire multiplies a node's channels by its `volume`, which another program may have set.
        await self._set_audio(
            node, channels_alone if node.route else f"volume: 1.0, {channels_alone}"
        )

    async def set_mute(self, node: Node, *, is_muted: bool) -> None:
        """Mute or unmute the node."""
        await self._set_audio(node, f"mute: {'true' if is_muted else 'false'}")

    async def set_profile(self, card: BluetoothCard, profile: Profile) -> None:
        """Switch a Bluetooth device to another profile; its nodes are made anew."""
        value = f"{{ index: {profile.index}, save: false }}"
        await self._set_param(_device(card.id, card.serial, card.address), "Profile", value)

    async def set_codec(self, card: BluetoothCard, codec: str) -> None:
        """Switch a Bluetooth device to a codec that it offers; its node is made anew."""
        number = dict(card.codecs).get(codec)
        if number is None:
            offered = ", ".join(name for name, _ in card.codecs) or "none"
            raise OSError(errno.EINVAL, f"offered are {offered}, not {codec!r}", card.address)
        value = f"{{ bluetoothAudioCodec: {number} }}"
        await self._set_param(_device(card.id, card.serial, card.address), "Props", value)

    async def create_node(
        self, name: str, recipe: NodeRecipe, properties: Mapping[str, str]
    ) -> None:
        """Ask for an adapter node; that it isn't there afterwards, the graph alone tells."""
        everything = {"factory.name": recipe.factory, **dict(recipe.properties)}
        everything |= {**properties, "node.name": name}
        async with self._turn(name):
            await self._run("create-node", "adapter", _spa_json(everything))
            self.writes += 1

    async def destroy_node(self, node: Node) -> None:
        """Remove a node; fine if it is gone."""
        async with self._turn(node.name):
            if await self._is_there(_node(node)):
                await self._run("destroy", str(node.id))
            self.writes += 1

    async def _set_audio(self, node: Node, props: str) -> None:
        route = node.route
        if route is None:
            await self._set_param(_node(node), "Props", f"{{ {props} }}")
            return
        device = _device(route.device_id, route.device_serial, node.name)
        value = f"{{ index: {route.index}, device: {route.device}, props: {{ {props} }} }}"
        await self._set_param(device, "Route", value)

    async def _set_param(self, target: _Object, param: str, value: str) -> None:
        async with self._turn(target.name):
            if not await self._is_there(target):
                message = f"{target.kind.lower()} {target.id} (serial {target.serial}) is gone"
                raise OSError(errno.ENOENT, message)
            await self._run("set-param", str(target.id), param, value)
            self.writes += 1

    @contextlib.asynccontextmanager
    async def _turn(self, name: str) -> AsyncIterator[None]:
        """Wait for a turn and hold a write to its deadline."""
        try:
            async with asyncio.timeout(WRITE_SECONDS), self._turns:
                yield
        except TimeoutError:
            self.errors += 1
            message = f"PipeWire didn't take the write within {WRITE_SECONDS:.0f} s"
            raise TimeoutError(errno.ETIMEDOUT, message, name) from None
        except OSError:
            self.errors += 1
            raise

    async def _is_there(self, target: _Object) -> bool:
        """Whether the id still belongs to the object that is meant.

        That it doesn't must be seen twice: once, on a busy machine, a node that was there wasn't
        listed.
        """
        for _ in range(2):
            # Lists what has the serial; ids are on one line with the type, properties follow.
            printed = await self._run("list-objects", str(target.serial))
            listed = {(found["kind"], int(found["id"])) for found in _LISTED.finditer(printed)}
            if (target.kind, target.id) in listed:
                return True
        return False

    async def _run(self, *arguments: str) -> str:
        """Run pw-cli and return what it printed; ENOENT for an id that is unknown."""
        if sum(len(each.encode()) + 1 for each in arguments) > MAX_COMMAND_BYTES:
            raise OSError(errno.E2BIG, f"longer than {MAX_COMMAND_BYTES} bytes", arguments[0])
        process = await tool.start(self._remote, ["pw-cli", *arguments])
        try:
            output, errors = await process.communicate()
        finally:
            exit_code = await tool.end(process)
        said = errors.decode("utf-8", "replace")
        found = _ERROR.search(said)
        if found is None and exit_code == 0:
            return output.decode("utf-8", "replace")
        message = (found["said"] or found["told"]) if found else said.strip()[-500:]
        number = errno.ENOENT if _UNKNOWN.search(said) else errno.EIO
        raise OSError(number, message or f"exit code {exit_code}", f"pw-cli {arguments[0]}")


def _node(node: Node) -> _Object:
    return _Object("Node", node.id, node.serial, node.name)


def _device(number: NodeId, serial: NodeSerial, name: str) -> _Object:
    return _Object("Device", number, serial, name)


def _spa_json(properties: Mapping[str, str]) -> str:
    """Write properties so that pw-cli reads each value back as it is, whatever its letters.

    JSON is SPA-JSON too; pw-cli itself ends a command at the first `#`.
    """
    members = [f"{_quoted(key)}: {_quoted(value)}" for key, value in properties.items()]
    return f"{{ {', '.join(members)} }}"


def _quoted(text: str) -> str:
    return json.dumps(text).replace("#", "\\u0023")
