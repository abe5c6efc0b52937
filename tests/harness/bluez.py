"""A D-Bus message bus of our own, and a stand-in for bluetoothd on it.

The stand-in holds a tree of objects, answers `GetManagedObjects` and `Device1.Connect`, and signals
as BlueZ does what a test changes. It talks D-Bus for real; what it says is a test's.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dbus_fast import Message, MessageType, RequestNameReply, Variant
from dbus_fast.aio import MessageBus

from tests.harness.processes import Program, Programs, wait_until

A2DP = "0000110b-0000-1000-8000-00805f9b34fb"
SOURCE = "0000110a-0000-1000-8000-00805f9b34fb"
DEVICE = "org.bluez.Device1"
ADAPTER = "org.bluez.Adapter1"

_READY_SECONDS = 30
_SIGNATURES = {str: "s", bool: "b", int: "y", list: "as"}
_CONFIG = """<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>system</type>
  <listen>{address}</listen>
  <policy context="default">
    <allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/><allow own="*"/>
  </policy>
</busconfig>
"""

Interfaces = Mapping[str, Mapping[str, Any]]


class PrivateBus:
    """A message bus at an address of its own; it can end and come back there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = folder / "media-bus"
        self.address = f"unix:path={self.socket}"
        self._programs = Programs(folder)
        self._program: Program | None = None

    def start(self) -> None:
        """Start it and wait until it listens."""
        self.socket.unlink(missing_ok=True)
        config = self.folder / "bus.conf"
        config.write_text(_CONFIG.format(address=self.address))
        command = ["dbus-daemon", f"--config-file={config}", "--nofork", "--nopidfile"]
        self._program = self._programs.start("media-bus", command, os.environ)
        wait_until(self._listens, "the media bus", _READY_SECONDS, [self._program])

    def _listens(self) -> bool:
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as attempt:
            return attempt.connect_ex(str(self.socket)) == 0

    def kill(self) -> None:
        """End it at once; its socket's file stays, as after a crash."""
        if self._program is not None:
            self._program.kill()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._programs.end()


class FakeBlueZ:
    """`org.bluez` on a bus; its objects outlive a `stop`, as pairings do."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._bus: MessageBus | None = None
        self.objects: dict[str, dict[str, dict[str, Any]]] = {}
        self.connects: list[str] = []
        """Paths of the devices that were asked to connect."""
        self.refusal = ""
        """What `Connect` is refused with; "": it connects."""
        self.answers = asyncio.Event()
        """Cleared: `Connect` waits for it."""
        self.answers.set()
        self.trees = 0
        self._pending: set[asyncio.Task[None]] = set()

    async def start(self, name: str = "org.bluez") -> None:
        """Connect and own the name."""
        bus = await MessageBus(bus_address=self._address).connect()
        bus.add_message_handler(self._called)
        self._bus = bus
        assert await bus.request_name(name) is RequestNameReply.PRIMARY_OWNER

    async def stop(self) -> None:
        """End as a daemon does; fine if the bus went first."""
        bus, self._bus = self._bus, None
        if bus is not None and bus.connected:
            bus.disconnect()
        for task in list(self._pending):
            task.cancel()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()

    def add_adapter(self, number: int = 0, **changes: Any) -> str:
        """Add an adapter with a sound server's endpoints; return its path."""
        path = f"/org/bluez/hci{number}"
        properties = {
            "Address": f"02:00:00:00:10:0{number}",
            "Powered": True,
            "UUIDs": [SOURCE],
        }
        media = {"org.bluez.Media1": {"SupportedUUIDs": [SOURCE, A2DP]}}
        self.add(path, {ADAPTER: properties | changes, **media})
        return path

    def add_speaker(self, address: str, adapter: int = 0, **changes: Any) -> str:
        """Add a paired speaker that isn't connected; return its path."""
        path = f"/org/bluez/hci{adapter}/dev_{address.replace(':', '_')}"
        properties = {
            "Address": address,
            "Alias": f"Speaker {address[-2:]}",
            "Paired": True,
            "Connected": False,
            "UUIDs": [A2DP],
        }
        self.add(path, {DEVICE: properties | changes})
        return path

    def add(self, path: str, interfaces: Interfaces) -> None:
        """Add interfaces of an object."""
        known = self.objects.setdefault(path, {})
        for name, properties in interfaces.items():
            known[name] = dict(properties)
        body = [path, {name: _variants(values) for name, values in interfaces.items()}]
        self._signal("/", "org.freedesktop.DBus.ObjectManager", "InterfacesAdded", body)

    def remove(self, path: str, *, is_told: bool = True) -> None:
        """Remove an object and, silently, all below it."""
        interfaces = list(self.objects.pop(path, {}))
        for child in [each for each in self.objects if each.startswith(f"{path}/")]:
            del self.objects[child]
        if is_told:
            body = [path, interfaces]
            self._signal("/", "org.freedesktop.DBus.ObjectManager", "InterfacesRemoved", body)

    def change(self, path: str, interface: str, **properties: Any) -> None:
        """Change properties of an object."""
        self.objects[path][interface] |= properties
        body = [interface, _variants(properties), []]
        self._signal(path, "org.freedesktop.DBus.Properties", "PropertiesChanged", body)

    async def burst(self, path: str, interface: str, changes: Sequence[Mapping[str, Any]]) -> None:
        """Change properties many times, as fast as the bus takes it.

        The library gives its connection up when a burst fills the socket, so it isn't asked.
        """
        assert self._bus is not None
        assert self._bus._sock is not None
        data = bytearray()
        for properties in changes:
            self.objects[path][interface] |= properties
            body = [interface, _variants(properties), []]
            message = _signal(path, "org.freedesktop.DBus.Properties", "PropertiesChanged", body)
            message.serial = self._bus.next_serial()
            data += message._marshall(False)
        await asyncio.get_running_loop().sock_sendall(self._bus._sock, data)

    def _signal(self, path: str, interface: str, member: str, body: list[Any]) -> None:
        if self._bus is not None:
            self._bus.send(_signal(path, interface, member, body))

    def _called(self, message: Message) -> Message | bool:
        if message.message_type is not MessageType.METHOD_CALL:
            return False
        if message.member == "GetManagedObjects":
            self.trees += 1
            tree = {
                path: {name: _variants(values) for name, values in interfaces.items()}
                for path, interfaces in self.objects.items()
            }
            return Message.new_method_return(message, "a{oa{sa{sv}}}", [tree])
        if message.member == "Connect" and message.interface == DEVICE:
            task = asyncio.get_running_loop().create_task(self._connect(message))
            self._pending.add(task)
            task.add_done_callback(self._pending.discard)
            return True
        return False

    async def _connect(self, message: Message) -> None:
        path = str(message.path)
        self.connects.append(path)
        await self.answers.wait()
        if self._bus is None:
            return
        if path not in self.objects:
            error = "org.freedesktop.DBus.Error.UnknownObject"
            await self._bus.send(Message.new_error(message, error, "no such object"))
        elif self.refusal:
            await self._bus.send(Message.new_error(message, "org.bluez.Error.Failed", self.refusal))
        else:
            await self._bus.send(Message.new_method_return(message))
            self.change(path, DEVICE, Connected=True)


def _signal(path: str, interface: str, member: str, body: list[Any]) -> Message:
    signature = {
        "InterfacesAdded": "oa{sa{sv}}",
        "InterfacesRemoved": "oas",
        "PropertiesChanged": "sa{sv}as",
    }[member]
    return Message(
        message_type=MessageType.SIGNAL,
        path=path,
        interface=interface,
        member=member,
        signature=signature,
        body=body,
    )


def _variants(properties: Mapping[str, Any]) -> dict[str, Variant]:
    return {name: _variant(value) for name, value in properties.items()}


def _variant(value: str | bool | int | Sequence[str]) -> Variant:
    return Variant(_SIGNATURES[type(value)], value)
