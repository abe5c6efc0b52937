"""Import kubernetes_asyncio without its 840 generated modules.

Four package initialisers (the library itself, client, client.api, client.models) import every
generated class: 859 modules, about 32 MB of memory, 0.3 s of CPU. The finder below keeps those
packages but resolves their names on first use (PEP 562), so only modules that are really touched
get loaded; nothing in the library is changed or lost. It must be installed before the first
import of the library; later it does nothing.
"""

import importlib
import importlib.abc
import importlib.machinery
import pathlib
import re
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

LAZY_PACKAGES = frozenset(
    {
        "kubernetes_asyncio",
        "kubernetes_asyncio.client",
        "kubernetes_asyncio.client.api",
        "kubernetes_asyncio.client.models",
    }
)
_FROM_IMPORT = re.compile(r"^from ([\w.]+) import (\w+)$", re.MULTILINE)
_IMPORT_AS = re.compile(r"^import ([\w.]+) as (\w+)$", re.MULTILINE)


def install() -> None:
    """Make the four packages lazy; does nothing if one of them is imported already."""
    is_installed = any(isinstance(finder, LazyPackageFinder) for finder in sys.meta_path)
    if not is_installed and not LAZY_PACKAGES & sys.modules.keys():
        sys.meta_path.insert(0, LazyPackageFinder())


class LazyPackageFinder(importlib.abc.MetaPathFinder):
    """Finds the four packages where they are and gives them a lazy loader."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of one of the four packages, None for everything else."""
        if fullname not in LAZY_PACKAGES:
            return None
        found = importlib.machinery.PathFinder.find_spec(fullname, path)
        if found is None or found.origin is None or found.submodule_search_locations is None:
            return None
        spec = importlib.machinery.ModuleSpec(
            fullname, _LazyPackageLoader(), origin=found.origin, is_package=True
        )
        spec.submodule_search_locations = list(found.submodule_search_locations)
        return spec


class _LazyPackageLoader(importlib.abc.Loader):
    """Gives a package a `__getattr__` that performs its initialiser's import of one name."""

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        assert module.__spec__.origin is not None
        source = pathlib.Path(module.__spec__.origin)
        index: dict[str, tuple[str, str | None]] = {}

        def resolve(name: str) -> Any:
            if not index:
                index.update(_imports_of(source.read_text(encoding="utf-8")))
            if name not in index:
                raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
            target, attribute = index[name]
            value: Any = importlib.import_module(target)
            if attribute is not None:
                value = getattr(value, attribute)
            setattr(module, name, value)
            return value

        module.__dict__["__getattr__"] = resolve


def _imports_of(initialiser: str) -> dict[str, tuple[str, str | None]]:
    """Map each name that an initialiser imports to its module and its name there."""
    names: dict[str, tuple[str, str | None]] = {
        name: (module, name) for module, name in _FROM_IMPORT.findall(initialiser)
    }
    names.update({alias: (module, None) for module, alias in _IMPORT_AS.findall(initialiser)})
    return names
