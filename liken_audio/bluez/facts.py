"""What the bus says of BlueZ, one record for each message that counts.

Values are plain: D-Bus variants are unpacked. Signals: the D-Bus specification, "Standard
Interfaces".
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Owner:
    """BlueZ came, went, or was replaced; `name` is "" when there is none."""

    name: str


@dataclass(frozen=True, slots=True)
class Tree:
    """All objects, as `GetManagedObjects` gave them."""

    objects: Mapping[str, Mapping[str, Mapping[str, Any]]]


@dataclass(frozen=True, slots=True)
class Added:
    """`InterfacesAdded`."""

    path: str
    interfaces: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Removed:
    """`InterfacesRemoved`."""

    path: str
    interfaces: Sequence[str]


@dataclass(frozen=True, slots=True)
class Changed:
    """`PropertiesChanged`."""

    path: str
    interface: str
    changed: Mapping[str, Any]
    invalidated: Sequence[str]


Fact = Owner | Tree | Added | Removed | Changed
