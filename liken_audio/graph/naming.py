"""Card and PCM → the name of the device: stable, a DNS label, the same wherever it is worked out.

| bus | name |
|---|---|
| PCI | `<node>-pci-<address>-<pcm id>` |
| USB with a serial that can be trusted | `usb-<vid>-<pid>-<serial>-<pcm id>` |
| other USB | `<node>-usb-<port path>-<pcm id>` |
| Bluetooth | `<address>`, the microphone `<address>-capture` |
| platform and the rest | `<node>-<bus>-<device path>-<pcm id>` |

No card number and no PipeWire id is in a name, so it lives through reboots and replugs. Capitals
become small and a space becomes a dash; the dots and colons of addresses become dashes. Wherever
more than that is lost (other letters, length), the name ends with a hash of the whole, so two
texts that look alike once cleaned still make two names. In a serial even a mix of capitals and
small letters counts as lost: it is all that tells two units apart.

A name depends on other PCMs in two cases only. Within a card, a capture PCM that shares its id
with a playback PCM gets `-capture`, and PCMs of one direction that share an id get their device
numbers. Between cards, a serial that two present cards show is no identity. The order in which
cards are listed never matters.
"""

import hashlib
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from liken_audio.graph.model import Card, DeviceName, Direction, Pcm, UsbIdentity

_LONGEST = 63
"""Of a DNS label, RFC 1123."""
_HASH_DIGITS = 8
_SHORTEST_CUT = 8
"""A part that is cut to make room keeps at least so many letters."""

_CLEAN_NODE = re.compile(r"[a-z0-9]+(?:-+[a-z0-9]+)*")
_CLEAN_WORDS = re.compile(r"[A-Za-z0-9]+(?:[ -][A-Za-z0-9]+)*")
_CLEAN_PATH = re.compile(r"/?[A-Za-z0-9]+(?:[_.:/-][A-Za-z0-9]+)*")
_CLEAN_SERIAL = re.compile(r"[A-Z0-9]+(?:-[A-Z0-9]+)*|[a-z0-9]+(?:-[a-z0-9]+)*")

_COUNTERS = ("01234567890123456789", "0123456789abcdef0123456789abcdef", "9876543210")
_SHORTEST_COUNTER = 4
_BLANKS = frozenset(
    {
        *("default", "defaultstring", "invalid", "na", "no", "none", "noserial", "notapplicable"),
        *(
            "notavailable",
            "notset",
            "notspecified",
            "null",
            "sn",
            "serial",
            "serialno",
            "serialnum",
        ),
        *("serialnumber", "string", "tobefilledbyoem", "undefined", "unknown", "unset"),
    }
)
"""What makers leave in a field that they don't fill."""


@dataclass(frozen=True, slots=True)
class NamedPcm:
    """A PCM of a card and the name of its device."""

    name: DeviceName
    card: Card
    pcm: Pcm


@dataclass(frozen=True, slots=True)
class _Part:
    """One part of a name: as it was, as it is shown, and whether that says all of it."""

    raw: str
    shown: str
    is_faithful: bool


def device_names(
    node: str, cards: Sequence[Card], held: Collection[DeviceName] = ()
) -> tuple[NamedPcm, ...]:
    """Return the PCMs of `cards` with their names, ordered by name; each name once.

    `held` are names that claims hold (see `device_name`). When a card that is away and a present
    one come to one name, they are one device that was plugged in elsewhere: the present one
    stands for both.
    """
    by_name: dict[DeviceName, list[NamedPcm]] = defaultdict(list)
    for card in cards:
        for pcm in card.pcms:
            name = device_name(node, card, pcm, others=cards, held=held)
            by_name[name].append(NamedPcm(name, card, pcm))
    unique: dict[DeviceName, NamedPcm] = {}
    for name in sorted(by_name):
        for entry in _told_apart(by_name[name]):
            unique.setdefault(entry.name, entry)
    return tuple(unique[name] for name in sorted(unique))


def device_name(
    node: str,
    card: Card,
    pcm: Pcm,
    *,
    others: Iterable[Card] = (),
    held: Collection[DeviceName] = (),
) -> DeviceName:
    """Return the name of the device that `pcm` of `card` is on node `node`.

    `others` are all cards of the node; `card` may be among them. When one more present card
    shows the serial of this one, a name in `held` stays with the card of the lowest number,
    which was there first.
    """
    if card.speaker is not None:
        name = DeviceName(card.speaker.address.lower().replace(":", "-"))
        is_microphone = pcm.direction is Direction.CAPTURE
        return DeviceName(f"{name}-capture") if is_microphone else name
    if card.usb is not None and has_own_serial(card.usb):
        name = _joined(_serial_parts(card.usb, card, pcm))
        twins = _present_twins(card, others)
        if len({twin.path for twin in twins}) < 2:
            return name
        if name in held and card.path == min(twins, key=_precedence).path:
            return name
    return _joined(_place_parts(node, card, pcm))


def place_name(node: str, card: Card, pcm: Pcm) -> DeviceName:
    """Return the name that the device has where nothing but its place identifies it."""
    return _joined(_place_parts(node, card, pcm))


def has_own_serial(usb: UsbIdentity) -> bool:
    """Whether the serial's text can be this unit's own.

    It can't when another node has a live device with it, when it is empty, one decimal digit repeated,
    a counter like `0123456789AB`, a blank like `None`, or the maker's or product's own words.
    """
    letters = _letters(usb.serial)
    if usb.is_elsewhere or not letters or (letters.isdecimal() and len(set(letters)) == 1):
        return False
    if letters in _BLANKS:
        return False
    if len(letters) >= _SHORTEST_COUNTER and any(letters in counter for counter in _COUNTERS):
        return False
    maker, product = _letters(usb.vendor_name), _letters(usb.product_name)
    vendor_id, product_id = usb.vendor.lower(), usb.product.lower()
    own_words = {maker, product, maker + product, vendor_id + product, vendor_id + product_id}
    if letters in own_words:
        return False
    is_a_word = not any(letter.isdigit() for letter in letters)
    return not (is_a_word and (letters in maker or letters in product))


def _letters(text: str) -> str:
    return "".join(letter for letter in text.casefold() if letter.isalnum())


def _present_twins(card: Card, others: Iterable[Card]) -> list[Card]:
    """Return the present cards that show the card's USB serial, itself included."""
    identity = _identity(card)
    cards = [card, *(other for other in others if other is not card)]
    return [twin for twin in cards if twin.is_present and _identity(twin) == identity]


def _identity(card: Card) -> tuple[str, str, str] | None:
    usb = card.usb
    return (usb.vendor, usb.product, usb.serial) if usb else None


def _precedence(card: Card) -> tuple[int, str]:
    return card.number, card.path


def _entry_precedence(entry: NamedPcm) -> tuple[int, str, int]:
    return *_precedence(entry.card), entry.pcm.device


def _told_apart(entries: Sequence[NamedPcm]) -> list[NamedPcm]:
    """Give PCMs that came to one name a hash of all that differs between them."""
    rivals = [entry for entry in entries if entry.card.is_present]
    if len(rivals) < 2:
        return rivals or [min(entries, key=_entry_precedence)]
    texts = [_whereabouts(entry) for entry in rivals]
    if len(set(texts)) < len(texts):
        texts = [f"{text} {entry.card.number}" for text, entry in zip(texts, rivals, strict=True)]
    return [
        NamedPcm(_hashed([entry.name], f"{entry.name} {text}"), entry.card, entry.pcm)
        for text, entry in zip(texts, rivals, strict=True)
    ]


def _whereabouts(entry: NamedPcm) -> str:
    card, pcm = entry.card, entry.pcm
    return repr((card.bus, card.path, _identity(card), pcm.id, pcm.device, pcm.direction.value))


def _serial_parts(usb: UsbIdentity, card: Card, pcm: Pcm) -> list[_Part]:
    return [
        _fixed("usb"),
        _part(usb.vendor, _CLEAN_WORDS),
        _part(usb.product, _CLEAN_WORDS),
        _part(usb.serial, _CLEAN_SERIAL),
        *_pcm_parts(card, pcm),
    ]


def _place_parts(node: str, card: Card, pcm: Pcm) -> list[_Part]:
    return [
        _part(node, _CLEAN_NODE),
        _part(card.bus or "other", _CLEAN_WORDS),
        _part(card.path, _CLEAN_PATH),
        *_pcm_parts(card, pcm),
    ]


def _pcm_parts(card: Card, pcm: Pcm) -> list[_Part]:
    part = _pcm_id(pcm)
    alike = [other for other in card.pcms if _pcm_id(other).shown == part.shown]
    parts = [part]
    if pcm.direction is Direction.CAPTURE and any(
        other.direction is Direction.PLAYBACK for other in alike
    ):
        parts.append(_fixed("capture"))
    same_way = {other.device for other in alike if other.direction is pcm.direction}
    if len(same_way | {pcm.device}) > 1:
        parts.append(_fixed(str(pcm.device)))
    return parts


def _pcm_id(pcm: Pcm) -> _Part:
    part = _part(pcm.id, _CLEAN_WORDS)
    if part.shown:
        return part
    return _Part(raw=pcm.id, shown=f"pcm-{pcm.device}", is_faithful=not pcm.id)


def _fixed(text: str) -> _Part:
    return _Part(raw=text, shown=text, is_faithful=True)


@lru_cache(maxsize=4096)  # each PCM is compared with all of its card's
def _part(text: str, clean: re.Pattern[str]) -> _Part:
    if clean.fullmatch(text):
        shown = re.sub(r"[ _.:/]", "-", text.lower()).lstrip("-")
        return _Part(raw=text, shown=shown, is_faithful=True)
    return _Part(
        raw=text, shown=re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-"), is_faithful=False
    )


def _joined(parts: Sequence[_Part]) -> DeviceName:
    shown = [part.shown for part in parts if part.shown]
    label = "-".join(shown)
    if len(label) <= _LONGEST and all(part.is_faithful for part in parts):
        return DeviceName(label)
    return _hashed(shown, "\0".join(part.raw for part in parts))


def _hashed(shown: Sequence[str], whole: str) -> DeviceName:
    """Return the parts, the longest of them cut to make room, and a hash of `whole`."""
    digest = hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_DIGITS]
    room = _LONGEST - 1 - _HASH_DIGITS
    parts = list(shown)
    longest = max(range(len(parts)), key=lambda position: len(parts[position]))
    excess = max(len("-".join(parts)) - room, 0)
    kept = max(len(parts[longest]) - excess, _SHORTEST_CUT)
    parts[longest] = parts[longest][:kept].rstrip("-")
    label = "-".join(parts)[:room].rstrip("-")
    return DeviceName(f"{label}-{digest}")
