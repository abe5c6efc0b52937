"""Runs in the guest: its media bus with bluetoothd, and the emulated loudspeaker and adapter.

Functions for `Guest.call`; what they make ends with the guest.
"""

import asyncio
import os
import socket
from collections.abc import Mapping
from typing import Any

from dbus_fast import Message, MessageType, Variant
from dbus_fast.aio import MessageBus

from tests.harness.bluez import ADAPTER, DEVICE, PrivateBus
from tests.harness.guest import inside
from tests.harness.processes import HarnessError, wait_until

FOLDER = inside.RUN_FOLDER
SPEAKER_SECONDS = 800
"""bumble's imports take long in an emulated guest on a busy machine."""
_CALL_SECONDS = 120
_DAEMON = "/usr/libexec/bluetooth/bluetoothd"
_CONTROL = FOLDER / "speaker.socket"
_PROPERTIES = "org.freedesktop.DBus.Properties"


class _State:
    """The guest has one bus."""

    def __init__(self) -> None:
        self.bus: PrivateBus | None = None
        self.daemons = 0
        self.runner = asyncio.Runner()
        self.client: MessageBus | None = None


_state = _State()


def start(folder: str, bumble: str) -> str:
    """Start the bus, bluetoothd, the adapter and the loudspeaker; return the bus's address.

    `folder` is shared with the host; `bumble` holds the library.
    """
    _state.bus = PrivateBus(FOLDER)
    _state.bus.start()
    start_bluetoothd()
    path = f"{bumble}{os.pathsep}{os.environ['PYTHONPATH']}"
    command = [inside.python(), "-m", "tests.harness.guest.speaker", folder, str(_CONTROL)]
    inside.start("speaker", command, {"PYTHONPATH": path})
    inside.wait_logged("speaker", "ready", SPEAKER_SECONDS)
    set_property(adapter(), ADAPTER, "Powered", "b", True)
    # Without it nothing is kept of a pairing.
    set_property(adapter(), ADAPTER, "Pairable", "b", True)
    return _state.bus.address


def start_bluetoothd() -> None:
    """Start bluetoothd and wait until it owns its name; for after `kill_bluetoothd`."""
    _state.daemons += 1
    environment = {"DBUS_SYSTEM_BUS_ADDRESS": _bus().address}
    inside.start(_daemon(), [_DAEMON, "--nodetach"], environment)
    wait_until(_is_served, "bluetoothd", _CALL_SECONDS)


def kill_bluetoothd() -> None:
    """End bluetoothd at once, as a crash would."""
    inside.stop(_daemon(), 9)


def tell(command: str) -> str:
    """Have the loudspeaker or the radio do something (see speaker.py); return the answer."""
    with socket.socket(socket.AF_UNIX) as stream:
        stream.settimeout(_CALL_SECONDS)
        stream.connect(str(_CONTROL))
        stream.sendall(f"{command}\n".encode())
        answer = stream.makefile().readline().strip()
    if answer.startswith("failed"):
        raise HarnessError(f"the loudspeaker: {command}: {answer}")
    return answer


def pair(address: str) -> None:
    """Find the loudspeaker, pair with it and trust it."""
    _call(adapter(), ADAPTER, "StartDiscovery")
    wait_until(lambda: bool(_path(address)), f"{address} found", _CALL_SECONDS)
    _call(adapter(), ADAPTER, "StopDiscovery")
    _call(_path(address), DEVICE, "Pair")
    set_property(_path(address), DEVICE, "Trusted", "b", True)


def connect(address: str) -> float:
    """Connect to the loudspeaker; return the guest's uptime when that was asked for."""
    began = inside.uptime()
    _call(_path(address), DEVICE, "Connect")
    return began


def disconnect(address: str) -> None:
    """Hang up."""
    _call(_path(address), DEVICE, "Disconnect")


def device(address: str) -> Mapping[str, Any]:
    """BlueZ's properties of a device; empty where it knows none."""
    found = _objects().get(_path(address), {}).get(DEVICE, {})
    return {name: variant.value for name, variant in found.items()}


def adapter() -> str:
    """Path of the adapter, as soon as there is one."""
    wait_until(lambda: bool(_adapters()), "an adapter", _CALL_SECONDS)
    return _adapters()[0]


def power_on() -> None:
    """Switch the adapter on, as what looks after a node's Bluetooth does with one that comes."""
    set_property(adapter(), ADAPTER, "Powered", "b", True)


def set_property(path: str, interface: str, name: str, signature: str, value: Any) -> None:
    """Set a property of one of BlueZ's objects."""
    body = [interface, name, Variant(signature, value)]
    _call(path, _PROPERTIES, "Set", "ssv", body)


def daemon_log() -> str:
    """What the newest bluetoothd wrote."""
    return inside.log(_daemon())


def _adapters() -> list[str]:
    return sorted(path for path, interfaces in _objects().items() if ADAPTER in interfaces)


def _path(address: str) -> str:
    tail = "/dev_" + address.replace(":", "_")
    return next((path for path in _objects() if path.endswith(tail)), "")


def _objects() -> dict[str, dict[str, dict[str, Variant]]]:
    found: dict[str, dict[str, dict[str, Variant]]] = _call(
        "/", "org.freedesktop.DBus.ObjectManager", "GetManagedObjects"
    )
    return found


def _is_served() -> bool:
    try:
        _objects()
    except HarnessError:
        return False
    return True


def _call(path: str, interface: str, member: str, signature: str = "", body: Any = ()) -> Any:
    message = Message(
        destination="org.bluez",
        path=path,
        interface=interface,
        member=member,
        signature=signature,
        body=list(body),
    )

    async def called() -> Message:
        # BlueZ ends a search when the client that asked for it leaves the bus: it is always the same.
        if _state.client is None:
            _state.client = await MessageBus(bus_address=_bus().address).connect()
        answer = await asyncio.wait_for(_state.client.call(message), _CALL_SECONDS)
        assert answer is not None
        return answer

    answer = _state.runner.run(called())
    if answer.message_type is MessageType.ERROR:
        raise HarnessError(f"{member} of {path}: {answer.error_name}: {answer.body}")
    return answer.body[0] if answer.body else None


def _bus() -> PrivateBus:
    if _state.bus is None:
        raise HarnessError("the guest's media bus isn't started")
    return _state.bus


def _daemon() -> str:
    return f"bluetoothd-{_state.daemons}"
