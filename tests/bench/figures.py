"""What a figure is, and the table of them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number against its bound; the bound is the most that is fine."""

    name: str
    value: float
    bound: float | None
    unit: str

    @property
    def holds(self) -> bool:
        """Whether the bound is kept; a figure without one always holds."""
        return self.bound is None or self.value <= self.bound


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that `share` (0 to 1) of all values don't exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def table(figures: Sequence[Figure]) -> str:
    """Return the figures as lines, each with its bound and whether it holds."""
    width = max(len(figure.name) for figure in figures)
    return "\n".join(_line(figure, width) for figure in figures)


def _line(figure: Figure, width: int) -> str:
    bound = "" if figure.bound is None else f"≤ {figure.bound:g}"
    mark = "" if figure.bound is None else ("ok" if figure.holds else "BROKEN")
    return (
        f"{figure.name:{width}}  {figure.value:10.2f} {figure.unit:4} {bound:>9}  {mark}".rstrip()
    )
