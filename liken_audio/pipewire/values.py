"""What pw-dump prints → values, text, numbers and volumes; none of these raises."""

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from liken_audio.graph.model import Linear

_NOT_FINITE = re.compile(r'("(?:[^"\\]|\\.)*")|-?\b(?:nan|inf(?:inity)?)\b', re.IGNORECASE)


def decoded(data: bytes) -> object:
    """Return the JSON value that was printed, None if it can't be understood."""
    printed = data.decode("utf-8", "replace")
    try:
        return json.loads(printed)
    except (ValueError, RecursionError):
        pass
    try:
        # C prints these three so; JSON has no word for them, Python's own are NaN and Infinity.
        return json.loads(_NOT_FINITE.sub(lambda found: found[1] or "null", printed))
    except (ValueError, RecursionError):
        return None


def text(value: object) -> str:
    """Return a value as the text that pw-dump may have taken it for; always valid UTF-8.

    Exact for text, booleans and small whole numbers; `0012` is 12 for ever, so no identity may
    come from here.
    """
    if value is None:
        return ""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    if isinstance(value, int | float):
        return f"{value}"
    return clean(json.dumps(value, ensure_ascii=False))


def clean(value: str) -> str:
    """Replace halves of surrogate pairs, which JSON can hold and UTF-8 can't."""
    if value.isascii():
        return value
    return value.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def object_of(parent: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return a member that is an object, an empty one for all else."""
    value = parent.get(key)
    return value if isinstance(value, dict) else {}


def first(params: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return the first object of a param, an empty one when there is none."""
    values = params.get(key)
    first = values[0] if isinstance(values, list) and values else None
    return first if isinstance(first, dict) else {}


def integer(parent: Mapping[str, Any], key: str) -> int:
    """Return a whole number that isn't negative, 0 for all else; pw-dump may print it as text."""
    value = text(parent.get(key))
    return int(value) if value.isascii() and value.isdecimal() and len(value) < 20 else 0


def linear_volumes(values: object) -> tuple[Linear, ...]:
    """Return linear volumes, none at all if one of them is no volume."""
    if not isinstance(values, list):
        return ()
    volumes = []
    for value in values:
        if not isinstance(value, int | float) or isinstance(value, bool):
            return ()
        volume = float(value)
        if not math.isfinite(volume) or volume < 0:
            return ()
        volumes.append(Linear(volume))
    return tuple(volumes)
