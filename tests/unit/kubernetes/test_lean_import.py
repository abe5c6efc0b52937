"""The lazy packages are the same library."""

import importlib
import sys

import pytest

from liken_audio.kubernetes import lean_import


def test_names_of_a_lazy_package_are_found_when_they_are_used() -> None:
    client = importlib.import_module("kubernetes_asyncio.client")
    models = importlib.import_module("kubernetes_asyncio.client.models")
    assert client.V1Pod is models.V1Pod
    assert client.V1Pod(kind="Pod").kind == "Pod"
    assert "V1Pod" in vars(client), "the second use needs no import"


def test_a_name_that_the_package_does_not_have_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'V1Nothing'"):
        _ = importlib.import_module("kubernetes_asyncio.client").V1Nothing


def test_installing_twice_changes_nothing() -> None:
    before = list(sys.meta_path)
    lean_import.install()
    assert sys.meta_path == before


@pytest.mark.parametrize("name", ["json", "kubernetes_asyncio.config", "liken_audio"])
def test_other_packages_are_left_to_python(name: str) -> None:
    assert lean_import.LazyPackageFinder().find_spec(name, None) is None


def test_a_library_that_is_not_installed_is_left_to_python() -> None:
    finder = lean_import.LazyPackageFinder()
    assert finder.find_spec("kubernetes_asyncio.client.models", []) is None
