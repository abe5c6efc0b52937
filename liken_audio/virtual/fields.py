"""Values of a decoded YAML mapping, each with its place: of the right type, or an error that helps.

An error names the place (`cards[0].pcms[1].direction`), what is there and what would be right.
A key whose value is null counts as absent.
"""

import difflib
import re
from collections.abc import Iterable, Sequence


class VirtualCardsError(Exception):
    """The text is no description of cards; says where and what would be right."""


class Fields:
    """One mapping; refuses keys other than the given ones as soon as it is made."""

    def __init__(self, value: object, place: str, keys: Sequence[str]) -> None:
        self._place = place
        if not isinstance(value, dict):
            raise VirtualCardsError(
                f"{place or 'top level'}: must be a mapping with the keys "
                f"{', '.join(keys)}, not {_kind(value)}"
            )
        self._values: dict[object, object] = value
        for key in value:
            if key not in keys:
                raise self.error(str(key), f"unknown key; {_advice(key, keys)}")

    def at(self, key: str) -> str:
        """Return the place of a key."""
        return f"{self._place}.{key}" if self._place else key

    def error(self, key: str, message: str) -> VirtualCardsError:
        """Return the error to raise about a key."""
        return VirtualCardsError(f"{self.at(key)}: {message}")

    def has(self, key: str) -> bool:
        """Whether the key is there with a value."""
        return self._values.get(key) is not None

    def text(self, key: str, default: str | None = None) -> str:
        """Return text; a bare number or boolean is asked to be quoted."""
        value = self._get(key, default)
        if isinstance(value, str):
            return value
        hint = "" if isinstance(value, dict | list) else f', write it in quotes: "{value}"'
        raise self.error(key, f"must be text, not {_kind(value)}{hint}")

    def matching(self, key: str, pattern: re.Pattern[str], like: str) -> str:
        """Return text of a fixed form."""
        value = self.text(key)
        if not pattern.fullmatch(value):
            raise self.error(key, f"must be {like}, not {value!r}")
        return value

    def choice(self, key: str, choices: Iterable[str], default: str | None = None) -> str:
        """Return one of the given texts."""
        value, known = self._get(key, default), [str(choice) for choice in choices]
        if not isinstance(value, str) or value not in known:
            raise self.error(
                key, f"must be another word than {shown(value)}; {_advice(value, known)}"
            )
        return value

    def integer(
        self, key: str, default: int | None = None, *, low: int = -(2**31), high: int = 2**31 - 1
    ) -> int:
        """Return an integer from `low` to `high`, both included."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(key, f"must be an integer, not {_kind(value)}")
        if not low <= value <= high:
            raise self.error(key, f"must be from {low} to {high}, not {value}")
        return value

    def number(self, key: str) -> float | None:
        """Return a number, None when the key is absent."""
        value = self._values.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(key, f"must be a number, not {_kind(value)}")
        if not abs(value) <= 1_000_000:
            raise self.error(key, f"must be from -1000000 to 1000000, not {value}")
        return float(value)

    def boolean(self, key: str, *, default: bool) -> bool:
        """Return true or false."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self.error(key, f"must be true or false, not {_kind(value)}")
        return value

    def items(self, key: str) -> list[object]:
        """Return a list as it is; empty when the key is absent."""
        value = self._get(key, [])
        if not isinstance(value, list):
            raise self.error(key, f"must be a list, not {_kind(value)}")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a list of texts; empty when the key is absent."""
        values = []
        for position, value in enumerate(self.items(key)):
            if not isinstance(value, str):
                hint = f'must be text, not {_kind(value)}, write it in quotes: "{value}"'
                raise self.error(f"{key}[{position}]", hint)
            values.append(value)
        return tuple(values)

    def child(self, key: str, keys: Sequence[str]) -> "Fields":
        """Return the mapping under a key."""
        return Fields(self._get(key, None), self.at(key), keys)

    def children(self, key: str, keys: Sequence[str]) -> list["Fields"]:
        """Return the mappings of a list; empty when the key is absent."""
        return [
            Fields(value, f"{self.at(key)}[{position}]", keys)
            for position, value in enumerate(self.items(key))
        ]

    def require(self, key: str) -> None:
        """Raise unless the key is there."""
        self._get(key, None)

    def _get(self, key: str, default: object) -> object:
        value = self._values.get(key)
        value = default if value is None else value
        if value is None:
            raise self.error(key, "is missing")
        return value


def shown(value: object) -> str:
    """Return a value for an error message: a scalar as it is, else only what it is."""
    return repr(value) if isinstance(value, str | int | float) else _kind(value)


def _kind(value: object) -> str:
    names = {bool: "a boolean", int: "an integer", float: "a number", str: "text"}
    names |= {list: "a list", dict: "a mapping", type(None): "nothing"}
    return names.get(type(value), f"a {type(value).__name__}")


def _advice(value: object, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(str(value).lower(), known, n=1)
    start = f"did you mean {close[0]!r}? " if close else ""
    return f"{start}Known: {', '.join(known)}"
