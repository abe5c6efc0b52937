"""The tree's own rules: where a module's tests lie."""

from pathlib import Path

import pytest

TREE = Path(__file__).parents[2]
PACKAGE = TREE / "liken_audio"
# Data without decisions: tested by whoever uses them.
KINDS = ("unit", "integration", "cluster")
EXEMPT = {"__init__", "__main__", "api", "model", "ports"}


def modules() -> list[Path]:
    """All our modules, as paths under the package; generated code has none of its own."""
    found = [path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py")]
    return sorted(
        path for path in found if "generated" not in path.parts and path.stem not in EXEMPT
    )


@pytest.mark.parametrize("module", modules(), ids=str)
def test_each_module_has_its_test_file_in_the_same_place(module: Path) -> None:
    name = f"test_{module.name}"
    places = [TREE / "tests" / kind / module.parent / name for kind in KINDS]
    assert any(place.is_file() for place in places), f"none of {[str(place) for place in places]}"


def test_each_unit_test_file_names_a_module() -> None:
    unit = TREE / "tests" / "unit"
    files = [path.relative_to(unit) for path in unit.rglob("test_*.py")]
    lost = [
        str(path)
        for path in files
        if path.parts[0] != "harness"
        and path.name != "test_tree.py"
        and not (PACKAGE / path.parent / path.name.removeprefix("test_")).is_file()
    ]
    assert not lost, f"tests of modules that aren't there: {lost}"
