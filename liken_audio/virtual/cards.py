"""YAML text → CardsSnapshot: sound cards that exist in a file only.

Decoding is strict: a key that isn't known, a value of a wrong type and a key that is there twice
are refused with their place and what would be right there, since a card that silently isn't what
its author meant is worse than none. The format is described in docs/virtual-cards.md.

Each PCM is played by a null node of PipeWire: the recipe names its factory, media class, channel
positions and rate.
"""

import re
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import yaml

from liken_audio.graph.model import (
    Card,
    CardNumber,
    CardsSnapshot,
    Control,
    ControlType,
    Decibel,
    Direction,
    Jack,
    NodeRecipe,
    Pcm,
    UsbIdentity,
)
from liken_audio.virtual.fields import Fields, VirtualCardsError, shown

__all__ = ["POSITIONS", "VirtualCardsError", "decode"]

POSITIONS: Mapping[int, tuple[str, ...]] = {
    1: ("MONO",),
    2: ("FL", "FR"),
    4: ("FL", "FR", "RL", "RR"),
    6: ("FL", "FR", "FC", "LFE", "RL", "RR"),
    8: ("FL", "FR", "FC", "LFE", "RL", "RR", "SL", "SR"),
}
"""Channel positions by number of channels, in PipeWire's names and order."""

_CARD_KEYS = (
    *("bus", "path", "usb", "number", "id", "driver", "name", "present"),
    *("pcms", "jacks", "controls"),
)
_USB_KEYS = ("vendor", "product", "serial", "port", "vendorName", "productName")
_PCM_KEYS = ("device", "id", "name", "direction", "channels", "rate", "eld")
_JACK_KEYS = ("name", "index", "plugged")
_CONTROL_KEYS = (
    *("name", "index", "type", "min", "max", "step", "minDecibels", "maxDecibels", "items"),
    *("channels", "values", "writable", "locked", "inactive", "volatile"),
)

_FACTORY = "support.null-audio-sink"
_MEDIA_CLASSES = {
    Direction.PLAYBACK: "Audio/Sink",
    Direction.CAPTURE: "Audio/Source/Virtual",
}
_BUSES = ("pci", "usb", "platform")
_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_USB_PORT = re.compile(r"[0-9]+-[0-9]+(\.[0-9]+)*")
_HEX4 = re.compile(r"[0-9a-f]{4}")


def decode(text: str) -> CardsSnapshot:
    """Return the cards that `text` describes; raises `VirtualCardsError`."""
    top = Fields(_load(text), "", ("cards",))
    top.require("cards")
    cards = tuple(
        _card(fields, position) for position, fields in enumerate(top.children("cards", _CARD_KEYS))
    )
    _refuse_twins("cards", "number", [str(card.number) for card in cards])
    _refuse_twins("cards", "bus and path", [f"{card.bus} {card.path}" for card in cards])
    return CardsSnapshot(cards)


class _Loader(yaml.SafeLoader):
    """The safe loader; a key that is there twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:  # noqa: FBT001, FBT002 the signature is the library's
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for key, count in Counter(keys).items():
            if count > 1:
                line = node.start_mark.line + 1
                raise VirtualCardsError(f"line {line}: the key {key!r} is there {count} times")
        return super().construct_mapping(node, deep=deep)


def _load(text: str) -> object:
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506 it derives from the safe one
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "somewhere"
        raise VirtualCardsError(f"{place}: no YAML: {error.problem or error.context}") from error
    except (yaml.YAMLError, ValueError, TypeError, AttributeError, LookupError) as error:
        # A scalar that doesn't fit its type (a date 2026-99-99) escapes the library's own errors.
        raise VirtualCardsError(f"no YAML: {error}") from error
    except RecursionError as error:
        raise VirtualCardsError("no description of cards: nested too deeply") from error


def _card(card: Fields, position: int) -> Card:
    bus = card.choice("bus", _BUSES)
    usb = _usb(card, bus)
    card.require("pcms")
    pcms = tuple(_pcm(fields) for fields in card.children("pcms", _PCM_KEYS))
    places = [f"{pcm.device} ({pcm.direction.value})" for pcm in pcms]
    _refuse_twins(card.at("pcms"), "device and direction", places)
    number = card.integer("number", position, low=0, high=31)
    return Card(
        number=CardNumber(number),
        id=card.text("id", f"Virtual{number}"),
        driver=card.text("driver", "virtual"),
        name=card.text("name", f"Virtual card {number}"),
        bus=bus,
        path=usb.port if usb else _path(card, bus),
        usb=usb,
        is_present=card.boolean("present", default=True),
        pcms=pcms,
        jacks=tuple(_jack(fields) for fields in card.children("jacks", _JACK_KEYS)),
        controls=tuple(_control(fields) for fields in card.children("controls", _CONTROL_KEYS)),
    )


def _path(card: Fields, bus: str) -> str:
    if bus == "pci":
        return card.matching("path", _PCI_ADDRESS, 'a PCI address like "0000:00:1f.3"')
    path = card.text("path")
    if not path.strip():
        raise card.error("path", 'must be a device path like "soc/fef00700.hdmi", not empty')
    return path


def _usb(card: Fields, bus: str) -> UsbIdentity | None:
    if bus != "usb":
        if card.has("usb"):
            raise card.error("usb", f"is for cards of bus usb, this one's bus is {bus}")
        return None
    if card.has("path"):
        raise card.error("path", "is for cards of other buses, a USB card has usb.port")
    usb = card.child("usb", _USB_KEYS)
    like = 'four hex digits in quotes, like "20b1"'
    return UsbIdentity(
        vendor=usb.matching("vendor", _HEX4, like),
        product=usb.matching("product", _HEX4, like),
        serial=usb.text("serial", ""),
        port=usb.matching("port", _USB_PORT, 'a port path like "1-1.2"'),
        vendor_name=usb.text("vendorName", ""),
        product_name=usb.text("productName", ""),
    )


def _pcm(pcm: Fields) -> Pcm:
    direction = Direction(pcm.choice("direction", Direction, Direction.PLAYBACK.value))
    channels = pcm.integer("channels", 2)
    if channels not in POSITIONS:
        counts = ", ".join(map(str, POSITIONS))
        raise pcm.error("channels", f"must be one of {counts}, not {channels}")
    rate_hz = pcm.integer("rate", 48_000, low=8_000, high=768_000)
    pcm_id = pcm.text("id")
    return Pcm(
        device=pcm.integer("device", low=0, high=255),
        id=pcm_id,
        name=pcm.text("name", pcm_id),
        direction=direction,
        channels=channels,
        rate_hz=rate_hz,
        eld=_eld(pcm, direction),
        recipe=_recipe(direction, channels, rate_hz),
    )


def _eld(pcm: Fields, direction: Direction) -> bytes | None:
    if not pcm.has("eld"):
        return None
    if direction is not Direction.PLAYBACK:
        raise pcm.error("eld", "is for playback PCMs, a monitor has speakers")
    try:
        return bytes.fromhex("".join(pcm.text("eld").split()))
    except ValueError as error:
        message = 'must be bytes in hex like "1000 0800", empty for no monitor'
        raise pcm.error("eld", f"{message}: {error}") from error


def _recipe(direction: Direction, channels: int, rate_hz: int) -> NodeRecipe:
    return NodeRecipe(
        factory=_FACTORY,
        properties=(
            ("media.class", _MEDIA_CLASSES[direction]),
            ("audio.channels", str(channels)),
            ("audio.position", f"[ {' '.join(POSITIONS[channels])} ]"),
            ("audio.rate", str(rate_hz)),
        ),
    )


def _jack(jack: Fields) -> Jack:
    return Jack(
        name=jack.text("name"),
        index=jack.integer("index", 0, low=0),
        is_plugged=jack.boolean("plugged", default=True),
    )


def _control(control: Fields) -> Control:
    kind = ControlType(control.choice("type", ControlType))
    items = _items(control, kind)
    minimum, maximum = _range(control, kind, items)
    values = _values(control, kind, items)
    channels = control.integer("channels", len(values) if values else 1, low=1, high=128)
    if values is not None and len(values) != channels:
        raise control.error("values", f"must be {channels}, one for a channel, not {len(values)}")
    min_decibels, max_decibels = control.number("minDecibels"), control.number("maxDecibels")
    if (min_decibels is None) != (max_decibels is None):
        raise control.error("minDecibels", "and maxDecibels go together")
    return Control(
        name=control.text("name"),
        index=control.integer("index", 0, low=0),
        type=kind,
        minimum=minimum,
        maximum=maximum,
        step=control.integer("step", 0, low=0),
        min_decibels=None if min_decibels is None else Decibel(min_decibels),
        max_decibels=None if max_decibels is None else Decibel(max_decibels),
        items=items,
        channels=channels,
        values=values,
        is_writable=control.boolean("writable", default=True),
        is_locked=control.boolean("locked", default=False),
        is_inactive=control.boolean("inactive", default=False),
        is_volatile=control.boolean("volatile", default=False),
    )


def _items(control: Fields, kind: ControlType) -> tuple[str, ...]:
    items = control.texts("items")
    if kind is ControlType.ENUMERATED and not items:
        raise control.error("items", "is missing: the texts that an enumerated control can be")
    if kind is not ControlType.ENUMERATED and items:
        raise control.error("items", f"is for enumerated controls, this one is {kind.value}")
    return items


def _range(control: Fields, kind: ControlType, items: Sequence[str]) -> tuple[int, int]:
    if kind is ControlType.INTEGER:
        minimum = control.integer("min", 0)
        return minimum, control.integer("max", low=minimum)
    for key in ("min", "max", "step"):
        if control.has(key):
            raise control.error(key, f"is for integer controls, this one is {kind.value}")
    return 0, 1 if kind is ControlType.BOOLEAN else len(items) - 1


def _values(control: Fields, kind: ControlType, items: Sequence[str]) -> tuple[int, ...] | None:
    """Return a value for each channel, None when the key is absent: a read that fails.

    A value outside the control's own range is let through: hardware does that too.
    """
    if not control.has("values"):
        return None
    values = []
    for position, value in enumerate(control.items("values")):
        number = _value(value, kind, items)
        if number is None:
            right = {
                ControlType.BOOLEAN: "true or false",
                ControlType.INTEGER: "an integer of 32 bits",
                ControlType.ENUMERATED: f"one of {', '.join(items)}",
            }[kind]
            raise control.error(f"values[{position}]", f"must be {right}, not {shown(value)}")
        values.append(number)
    return tuple(values)


def _value(value: object, kind: ControlType, items: Sequence[str]) -> int | None:
    if kind is ControlType.BOOLEAN:
        return int(value) if isinstance(value, bool) else None
    if kind is ControlType.ENUMERATED:
        return items.index(value) if isinstance(value, str) and value in items else None
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    return value if is_integer and isinstance(value, int) and abs(value) < 2**31 else None


def _refuse_twins(place: str, what: str, values: Sequence[str]) -> None:
    for value, count in Counter(values).items():
        if count > 1:
            raise VirtualCardsError(f"{place}: {count} entries have the {what} {value}")
