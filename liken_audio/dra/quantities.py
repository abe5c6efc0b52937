"""Kubernetes quantities by value: `1024Mi` is `1Gi` is `1073741824`.

The server hands back its own spelling of what it was sent, so text can't be compared.
"""

import re
from fractions import Fraction

_QUANTITY = re.compile(
    r"(?P<number>[+-]?(\d+\.?\d*|\.\d+))(?P<suffix>[KMGTPE]i|[numkMGTPE]?|[eE][+-]?\d{1,3})"
)
_BINARY: dict[str, int] = {
    f"{letter}i": 1024**power for power, letter in enumerate("KMGTPE", start=1)
}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}


def parse(text: object) -> Fraction | None:
    """Return a quantity's value, None when it is none (the API also takes plain numbers)."""
    match = _QUANTITY.fullmatch(str(text))
    if match is None:
        return None
    number, suffix = Fraction(match["number"]), match["suffix"]
    if suffix in _BINARY:
        return number * _BINARY[suffix]
    power = _DECIMAL[suffix] if suffix in _DECIMAL else int(suffix[1:])
    scale: int = 10 ** abs(power)
    return number * scale if power >= 0 else number / scale
