"""Facts are data; a right reads as a person would ask for it."""

import pytest

from liken_audio.doctor.facts import Right


@pytest.mark.parametrize(
    ("right", "text"),
    [
        (Right("get", "nodes"), "get nodes"),
        (Right("patch", "sinks", "audio.liken.sh", "status"), "patch sinks/status.audio.liken.sh"),
        (Right("get", "a", "b", name="c"), "get a.b c"),
        (Right("get", "a", namespace="d"), "get a in d"),
    ],
    ids=["core", "subresource", "name", "namespace"],
)
def test_a_right_is_named_as_kubectl_is_asked_for_it(right: Right, text: str) -> None:
    assert str(right) == text
