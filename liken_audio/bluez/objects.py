"""The tree of objects that BlueZ shows → its adapters and audio devices.

`ObjectTree` mirrors what `org.freedesktop.DBus.ObjectManager` and the signals say of what is looked at
here: a device's battery, transport and own facts come in any order. While an adapter searches, BlueZ
tells dozens of times a second how strongly each stranger nearby is heard; so each signal is answered
with whether it says anything new of an adapter or a paired device.

Values are plain ones (no D-Bus variants). A device or adapter whose address is none (all zeros, an
empty object) is left out. Interfaces: BlueZ's doc/org.bluez.Adapter.rst, .Device.rst, .Media.rst,
.MediaTransport.rst and .Battery.rst.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

ADAPTER = "org.bluez.Adapter1"
DEVICE = "org.bluez.Device1"
BATTERY = "org.bluez.Battery1"
MEDIA = "org.bluez.Media1"
TRANSPORT = "org.bluez.MediaTransport1"

A2DP_SINK = "110b"
HEADSET_UUIDS = frozenset({"1108", "111e"})
"""Headset (HSP) and Hands-Free (HFP), as the headset lists them."""
GATEWAY_UUIDS = frozenset({"1112", "111f"})
"""Their other sides: an adapter lists them when a sound server offers the profile."""

_LOOKED_AT: Mapping[str, frozenset[str]] = {
    ADAPTER: frozenset({"Address", "Powered", "UUIDs"}),
    DEVICE: frozenset(
        {"Address", "Adapter", "Alias", "Name", "Paired", "Blocked", "Connected", "UUIDs"}
    ),
    BATTERY: frozenset({"Percentage"}),
    MEDIA: frozenset({"SupportedUUIDs"}),
    TRANSPORT: frozenset({"State", "Volume"}),
}
"""Properties that are kept, by interface."""

_ADDRESS = re.compile(r"[0-9A-F]{2}(?::[0-9A-F]{2}){5}")
_NO_ADDRESS = "00:00:00:00:00:00"
_BASE_UUID = re.compile(r"0000([0-9a-f]{4})-0000-1000-8000-00805f9b34fb")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")

Interfaces = Mapping[str, Mapping[str, Any]]
"""Properties by interface."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """An `org.bluez.Adapter1`."""

    path: str
    address: str
    is_powered: bool
    has_endpoints: bool
    """False: it could play (it lists media UUIDs), but no sound server has registered with it."""
    has_gateway: bool
    """Whether a sound server offers the profile of headsets' microphones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """An `org.bluez.Device1`, with what is below it."""

    path: str
    address: str
    name: str
    adapter: str
    """Path of its adapter."""
    is_paired: bool
    is_blocked: bool
    is_connected: bool
    uuids: frozenset[str]
    """Four hex digits of Bluetooth's own, whole ones of others."""
    battery: int | None
    transport: str
    has_absolute_volume: bool


class ObjectTree:
    """BlueZ's objects by path, at one moment."""

    def __init__(self, objects: Mapping[str, Interfaces]) -> None:
        self._objects: dict[str, dict[str, dict[str, Any]]] = {}
        for path, interfaces in objects.items():
            self.add(path, interfaces)

    def add(self, path: str, interfaces: Interfaces) -> bool:
        """Take note of `InterfacesAdded`; return whether it is news."""
        before = self._told(path)
        for interface, properties in interfaces.items():
            if interface in _LOOKED_AT:
                self._objects.setdefault(path, {})[interface] = _looked_at(interface, properties)
        return self._told(path) != before

    def remove(self, path: str, interfaces: Sequence[str]) -> bool:
        """Take note of `InterfacesRemoved`, and return whether it is news.

        An object without interfaces is gone.
        """
        before = self._told(path)
        known = self._objects.get(path, {})
        for interface in interfaces:
            known.pop(interface, None)
        if not known:
            self._objects.pop(path, None)
        return self._told(path) != before

    def change(
        self, path: str, interface: str, changed: Mapping[str, Any], invalidated: Sequence[str]
    ) -> bool:
        """Take note of `PropertiesChanged`, and return whether it is news.

        Of an object that isn't there it says nothing.
        """
        known = self._objects.get(path, {}).get(interface)
        if known is None:
            return False
        before = self._told(path)
        known.update(_looked_at(interface, changed))
        for name in invalidated:
            known.pop(name, None)
        return self._told(path) != before

    def _told(self, path: str) -> dict[str, dict[str, Any]]:
        """Return what an object says; a device that isn't paired is as good as none."""
        return {
            interface: dict(properties)
            for interface, properties in self._objects.get(path, {}).items()
            if interface != DEVICE or properties.get("Paired") is True
        }

    def adapters(self) -> tuple[Adapter, ...]:
        """Return the adapters, ordered by path."""
        found = []
        for path, interfaces in sorted(self._objects.items()):
            properties = interfaces.get(ADAPTER)
            address = _address(properties)
            if properties is None or not address:
                continue
            uuids = _uuids(properties.get("UUIDs"))
            supported = _uuids(interfaces.get(MEDIA, {}).get("SupportedUUIDs"))
            found.append(
                Adapter(
                    path=path,
                    address=address,
                    is_powered=properties.get("Powered") is True,
                    has_endpoints=not supported or bool(uuids & supported),
                    has_gateway=bool(uuids & GATEWAY_UUIDS),
                )
            )
        return tuple(found)

    def devices(self) -> tuple[Device, ...]:
        """Return the devices, ordered by path, whatever they are and whether paired or not."""
        found = []
        by_device = self._transports()
        for path, interfaces in sorted(self._objects.items()):
            properties = interfaces.get(DEVICE)
            address = _address(properties)
            if properties is None or not address:
                continue
            transports = by_device.get(path, [])
            battery = interfaces.get(BATTERY, {}).get("Percentage")
            found.append(
                Device(
                    path=path,
                    address=address,
                    name=_name(properties, address),
                    adapter=str(properties.get("Adapter", "")),
                    is_paired=properties.get("Paired") is True,
                    is_blocked=properties.get("Blocked") is True,
                    is_connected=properties.get("Connected") is True,
                    uuids=_uuids(properties.get("UUIDs")),
                    battery=battery if _is_percent(battery) else None,
                    transport=str(transports[0].get("State", "")) if transports else "",
                    has_absolute_volume=any("Volume" in each for each in transports),
                )
            )
        return tuple(found)

    def _transports(self) -> dict[str, list[Mapping[str, Any]]]:
        """Return the transports below each object, the one that plays first."""
        found: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
        for path, interfaces in sorted(self._objects.items()):
            if TRANSPORT not in interfaces:
                continue
            above = path.rpartition("/")[0]
            while above:
                found[above].append(interfaces[TRANSPORT])
                above = above.rpartition("/")[0]
        for transports in found.values():
            transports.sort(key=lambda each: each.get("State") != "active")
        return found


def _looked_at(interface: str, properties: Mapping[str, Any]) -> dict[str, Any]:
    kept = _LOOKED_AT[interface]
    return {name: value for name, value in properties.items() if name in kept}


def _address(properties: Mapping[str, Any] | None) -> str:
    """Return the address in upper case, "" if it has none."""
    address = str((properties or {}).get("Address", "")).upper()
    return address if _ADDRESS.fullmatch(address) and address != _NO_ADDRESS else ""


def _uuids(values: object) -> frozenset[str]:
    if not isinstance(values, list | tuple):
        return frozenset()
    lowered = [str(value).lower() for value in values]
    found = {text: _BASE_UUID.fullmatch(text) for text in lowered}
    return frozenset(short[1] if short else text for text, short in found.items())


def _name(properties: Mapping[str, Any], address: str) -> str:
    """Return the alias, or the name; the address for a device that BlueZ has named after it."""
    stand_ins = {address, address.replace(":", "-"), address.replace(":", "_"), ""}
    for key in ("Alias", "Name"):
        text = _CONTROL.sub(" ", str(properties.get(key, ""))).strip()
        if text.upper() not in stand_ins:
            return text
    return address


def _is_percent(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 100
