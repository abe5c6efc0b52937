"""A PipeWire device as pw-dump prints it → its routes and, for Bluetooth, its profiles and codecs.

A route carries the volume of the nodes whose `card.profile.device` it names. Codecs are known by
the short names that the nodes bear (`sbc_xq`); `PropInfo` lists them by number and by label
(`SBC-XQ`). A codec whose own profile (`a2dp-sink-ldac`) isn't available isn't offered: switching to
it would take all sound away. `bluez5.profile` among the properties says nothing: it is `off` even
while the device plays.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from liken_audio.graph.endpoints import MUSIC
from liken_audio.graph.model import BluetoothCard, NodeId, NodeSerial, Profile, Route
from liken_audio.pipewire.values import first, integer, linear_volumes, object_of, text

_ADDRESS = re.compile(r"[0-9A-F]{2}(?::[0-9A-F]{2}){5}")
_NO_CODEC = re.compile(r"id-[0-9a-f]+")
_NO_LETTER = re.compile(r"[^a-z0-9]+")


def routes(number: int, info: Mapping[str, Any]) -> tuple[Route, ...]:
    """Return the active routes of the device with the given id."""
    serial = NodeSerial(integer(object_of(info, "props"), "object.serial"))
    found = []
    for route in _objects(info, "Route"):
        props = object_of(route, "props")
        found.append(
            Route(
                device_id=NodeId(number),
                device_serial=serial,
                index=integer(route, "index"),
                device=integer(route, "device"),
                volumes=linear_volumes(props.get("channelVolumes")),
                is_muted=props.get("mute") is True,
            )
        )
    return tuple(found)


def bluetooth_card(number: int, info: Mapping[str, Any]) -> BluetoothCard | None:
    """Return the Bluetooth device with the given id; None if it is another kind."""
    properties = object_of(info, "props")
    address = text(properties.get("api.bluez5.address")).upper()
    if text(properties.get("device.api")) != "bluez5" or not _ADDRESS.fullmatch(address):
        return None
    params = object_of(info, "params")
    profiles = tuple(
        Profile(
            index=integer(each, "index"),
            name=text(each.get("name")),
            is_available=text(each.get("available")) != "no",
        )
        for each in _objects(info, "EnumProfile")
    )
    return BluetoothCard(
        id=NodeId(number),
        serial=NodeSerial(integer(properties, "object.serial")),
        address=address,
        profile=text(first(params, "Profile").get("name")),
        profiles=profiles,
        codec=codec_name(text(first(params, "Props").get("bluetoothAudioCodec"))),
        codecs=tuple(_codecs(info, profiles)),
    )


def codec_name(label: str) -> str:
    """Return a codec's short name from its label: `SBC-XQ` → `sbc_xq`, `aptX HD` → `aptx_hd`.

    While there is none pw-dump prints `id-00000000`, for which the answer is "".
    """
    if _NO_CODEC.fullmatch(label):
        return ""
    return _NO_LETTER.sub("_", label.lower()).strip("_")


def _codecs(info: Mapping[str, Any], profiles: Sequence[Profile]) -> Iterator[tuple[str, int]]:
    refused = {profile.name for profile in profiles if not profile.is_available}
    for each in _objects(info, "PropInfo"):
        if each.get("id") != "bluetoothAudioCodec":
            continue
        labels = each.get("labels")
        flat = labels if isinstance(labels, list) else []
        for codec, label in zip(flat[::2], flat[1::2], strict=False):
            name = codec_name(text(label))
            is_number = isinstance(codec, int) and not isinstance(codec, bool)
            if name and is_number and refused.isdisjoint(f"{music}-{name}" for music in MUSIC):
                yield name, codec


def _objects(info: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    values = object_of(info, "params").get(key)
    return [each for each in values if isinstance(each, dict)] if isinstance(values, list) else []
