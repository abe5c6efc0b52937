"""Mixer controls as a person writes them: keys, values as text, capabilities.

A key is the kernel's name, exactly; where several elements of one endpoint share a name, the
element's index, and if need be its rank among equals, follow: `Headphone Playback Switch`,
`Headphone Playback Switch,index=1`, `Master Playback Volume,index=0,rank=2`. So a key that is
copied from status names the same element in spec.

Values: `on`/`off`, a number, an item's name; one is for all channels. Channels that differ stand side
by side, `80 75`; a comma does as well, and items, whose names may hold spaces, need it. What can't be
right is a `ValueError` whose text names what can.
"""

import difflib
import heapq
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise

from liken_audio.api import Json
from liken_audio.graph.model import Control, ControlType

MAX_CONTROLS = 256
"""Controls in one object's status; the others work in spec all the same."""
MAX_BYTES = 64 * 1024
"""Rough size of the capabilities and values in one object's status: etcd and watches carry it."""

_ON = frozenset({"on", "true", "yes", "1"})
_OFF = frozenset({"off", "false", "no", "0"})
_SUGGESTIONS = 3
_PAIR_BITS = 509
_COMPARED = 16
"""Names that are compared letter by letter, those with the most in common."""
_NUMBER = re.compile(r"[+-]?[0-9]{1,20}")


def keyed(controls: Sequence[Control]) -> dict[str, Control]:
    """The controls by key, in the given order."""
    found: dict[str, Control] = {}
    for one in controls:
        found[_free_key(one, found)] = one
    return found


def parse(text: str, control: Control) -> tuple[int, ...]:
    """`text` as one value a channel. Raises ValueError that names what is possible."""
    whole = _item(text, control)
    if whole is not None:
        return (whole,) * control.channels
    parts = [part.strip() for part in text.split(",")]
    if control.type is not ControlType.ENUMERATED and "," not in text:
        parts = text.split() or [""]
    values = tuple(_one(part, control) for part in parts)
    if len(values) == 1:
        return values * control.channels
    if len(values) != control.channels:
        raise ValueError(
            f"{text!r} has {len(values)} values; give one for all channels or {control.channels}"
        )
    return values


def text(control: Control, values: tuple[int, ...]) -> str:
    """`values` in the form that `parse` takes; odd values are shown as they are."""
    shown = [_shown(value, control) for value in values]
    if len(set(shown)) == 1:
        return shown[0]
    return ("," if control.type is ControlType.ENUMERATED else " ").join(shown)


def capability(control: Control) -> Json:
    """What a person needs to know to set the control: type, range, gain, items, what forbids it."""
    facts: Json = {"type": str(control.type), "channels": control.channels}
    if control.type is ControlType.INTEGER:
        facts |= {"min": control.minimum, "max": control.maximum}
        facts |= {"step": control.step} if control.step > 1 else {}
        gains = {"minDecibels": control.min_decibels, "maxDecibels": control.max_decibels}
        facts |= {key: float(gain) for key, gain in gains.items() if gain is not None}
    if control.type is ControlType.ENUMERATED:
        facts["values"] = list(control.items)
    flags = {
        "readOnly": not control.is_writable,
        "locked": control.is_locked,
        "inactive": control.is_inactive,
        "volatile": control.is_volatile,
    }
    return facts | {key: True for key, is_set in flags.items() if is_set}


def subset(controls: Mapping[str, Control], declared: Mapping[str, str]) -> dict[str, Control]:
    """The controls that status lists: declared ones, then the most useful, within both bounds."""
    ranked = sorted(
        controls.items(), key=lambda entry: _rank(entry[1], is_declared=entry[0] in declared)
    )
    chosen: dict[str, Control] = {}
    size = 0
    for key, control in ranked[:MAX_CONTROLS]:
        its_size = _size(key, control)
        if size + its_size <= MAX_BYTES:  # one of a thousand items leaves room to the others
            size += its_size
            chosen[key] = control
    return {key: control for key, control in controls.items() if key in chosen}


def closest(key: str, controls: Mapping[str, Control]) -> list[str]:
    """Up to three keys that `key` may mean, the likeliest first; one if only spaces differ."""
    return list(_closest(key, tuple(controls)))


@lru_cache(maxsize=512)  # asked again at each change of the card
def _closest(key: str, known: tuple[str, ...]) -> tuple[str, ...]:
    trimmed = [each for each in known if each.strip() == key.strip()]
    if len(trimmed) == 1:
        return (trimmed[0],)
    wanted = key.casefold()
    folded = {each.casefold(): each for each in known}
    # To compare with each of a thousand names would hold up the event loop for a tenth of a second.
    likely = heapq.nlargest(_COMPARED, folded, key=lambda name: _likeness(name, wanted))
    near = difflib.get_close_matches(wanted, likely, n=_SUGGESTIONS, cutoff=0.0)
    return tuple(folded[match] for match in near)


def _likeness(one: str, other: str) -> float:
    """About how many of two texts' pairs of letters are the same, from 0 to 1."""
    ours, theirs = _pairs(one), _pairs(other)
    return 2 * (ours & theirs).bit_count() / (ours.bit_count() + theirs.bit_count() or 1)


@lru_cache(maxsize=4096)
def _pairs(text: str) -> int:
    """The pairs of letters that stand side by side, as bits: a set of them would be fifty times as large."""
    bits = 0
    for one, other in pairwise(text):
        bits |= 1 << (31 * ord(one) + ord(other)) % _PAIR_BITS
    return bits


def _free_key(one: Control, taken: Mapping[str, Control]) -> str:
    key = one.name or f"index={one.index}"
    if one.index:
        key = f"{one.name},index={one.index}"
    rank = 2
    while key in taken:
        key = f"{one.name},index={one.index},rank={rank}"
        rank += 1
    return key


def _item(text: str, control: Control) -> int | None:
    """Number of the item called `text`, which may hold commas or spaces."""
    if control.type is not ControlType.ENUMERATED:
        return None
    for wanted in (text, text.strip()):
        if wanted in control.items:
            return control.items.index(wanted)
    return None


def _one(part: str, control: Control) -> int:
    if control.type is ControlType.BOOLEAN:
        return _switch(part)
    if control.type is ControlType.ENUMERATED:
        number = _item(part, control)
        if number is None:
            known = ", ".join(repr(item) for item in control.items)
            raise ValueError(f"{part!r} is not one of {known}")
        return number
    return _level(part, control)


def _switch(part: str) -> int:
    word = part.casefold()
    if word in _ON:
        return 1
    if word in _OFF:
        return 0
    raise ValueError(f"{part!r} is neither 'on' nor 'off'")


def _level(part: str, control: Control) -> int:
    bounds = f"a whole number from {control.minimum} to {control.maximum}"
    if not _NUMBER.fullmatch(part):
        raise ValueError(f"{part!r} is not {bounds}")
    value = int(part)
    if not control.minimum <= value <= control.maximum:
        raise ValueError(f"{part!r} is out of range; give {bounds}")
    if control.step > 1 and (value - control.minimum) % control.step:
        raise ValueError(f"{part!r} is not in steps of {control.step} from {control.minimum}")
    return value


def _shown(value: int, control: Control) -> str:
    if control.type is ControlType.BOOLEAN:
        return "on" if value else "off"
    if control.type is ControlType.ENUMERATED and 0 <= value < len(control.items):
        return control.items[value]
    return str(value)


def _rank(control: Control, *, is_declared: bool) -> tuple[int, int]:
    """Declared first, then what sets loudness, then other settings, then what can't be set."""
    if is_declared:
        return (0, 0)
    if not control.is_writable or control.is_inactive:
        return (3, 0)
    is_loudness = control.name.endswith((" Volume", " Switch")) and (
        "Playback" in control.name or "Capture" in control.name
    )
    has_gain = control.min_decibels is not None
    return (1 if is_loudness or has_gain else 2, 0 if has_gain else 1)


def _size(key: str, control: Control) -> int:
    items = sum(len(item.encode()) + 3 for item in control.items)
    # The key stands in capabilities, in observed and twice in the managed fields.
    return 4 * len(key.encode()) + items + 160 + 12 * control.channels
