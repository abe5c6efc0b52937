"""Whether a stored status is what we want, seen with the eyes of a server-side apply.

Fields that other managers added don't count; a field of ours that we no longer want does. Lists
of objects are compared by their map keys (`type` of a condition, `uid` of a claim), as the
schema declares them; other lists are equal or not.
"""

from collections.abc import Mapping
from typing import Any

_MAP_KEYS = {"conditions": "type", "claims": "uid"}
_TIME = "lastTransitionTime"


def covers(stored: Any, wanted: Any, name: str = "") -> bool:
    """Whether all that is wanted is stored as wanted."""
    if isinstance(wanted, Mapping):
        return isinstance(stored, Mapping) and all(
            key in stored and covers(stored[key], value, key) for key, value in wanted.items()
        )
    if isinstance(wanted, list) and name in _MAP_KEYS:
        have = _by_key(stored, name)
        return all(covers(have.get(key), entry) for key, entry in _by_key(wanted, name).items())
    return bool(stored == wanted)


def has_more(one: Any, other: Any, name: str = "") -> bool:
    """Whether `one` has a field, or an entry of a keyed list, that `other` has not."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return any(
            key not in other or has_more(value, other[key], key) for key, value in one.items()
        )
    if isinstance(one, list) and name in _MAP_KEYS:
        have = _by_key(other, name)
        return any(
            key not in have or has_more(entry, have[key])
            for key, entry in _by_key(one, name).items()
        )
    return False


def without_times(status: Mapping[str, Any]) -> dict[str, Any]:
    """The status without the times of its conditions: what really changes."""
    conditions = [
        {key: value for key, value in one.items() if key != _TIME}
        for one in status.get("conditions") or ()
    ]
    return {**status, "conditions": conditions}


def _by_key(entries: Any, name: str) -> dict[Any, Any]:
    if not isinstance(entries, list):
        return {}
    field = _MAP_KEYS[name]
    return {entry.get(field): entry for entry in entries if isinstance(entry, Mapping)}
