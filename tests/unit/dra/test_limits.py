"""What the API server wouldn't take never leaves, and never takes the slice with it."""

from typing import Any

import pytest

from liken_audio.dra.devices import Capacity, Device, Taint
from liken_audio.dra.limits import cut, fit
from liken_audio.graph.model import DeviceName


def device(name: str = "kitchen-hdmi", **changes: Any) -> Device:
    fields: dict[str, Any] = {"attributes": {"sink": name, "card": 0, "connected": True}}
    return Device(name=DeviceName(name), **(fields | changes))


def test_devices_that_fit_stay_as_they_are() -> None:
    devices = (device("a"), device("b", taints=(Taint("audio.liken.sh/no-sink", "NoSchedule"),)))
    fitted = fit(devices)
    assert fitted.devices == devices
    assert fitted.problems == ()


def test_devices_are_ordered_by_name_however_they_come() -> None:
    assert [each.name for each in fit([device("b"), device("c"), device("a")]).devices] == [
        "a",
        "b",
        "c",
    ]


def test_a_text_of_70_bytes_with_a_letter_over_byte_64_is_cut_at_a_letter() -> None:
    """U71: one long product name once blocked a whole node."""
    text = "x" * 63 + "é" + "y" * 5
    assert len(text.encode()) == 70
    fitted = fit([device(attributes={"monitorName": text, "sink": "s"})])
    assert fitted.devices[0].attributes == {"monitorName": "x" * 63, "sink": "s"}
    assert "monitorName cut to 64 bytes" in fitted.problems[0]


@pytest.mark.parametrize("text", ["é" * 33, "日本語" * 12, "a" * 65, "\U0001f50a" * 17])
def test_cut_text_is_valid_utf8_of_at_most_64_bytes(text: str) -> None:
    assert 60 < len(cut(text).encode()) <= 64
    assert text.startswith(cut(text))


def test_text_that_is_no_utf8_is_sent_as_something_that_is() -> None:
    fitted = fit([device(attributes={"name": "a\udcff"})])
    assert fitted.devices[0].attributes == {"name": "a?"}


@pytest.mark.parametrize(
    "key", ["numa-1", "1st", "", "a" * 33, "UPPER.example/x", "a b", "x/y/z", "-a.example/b"]
)
def test_an_attribute_whose_name_is_not_allowed_is_left_out(key: str) -> None:
    fitted = fit([device(attributes={key: 1, "card": 0})])
    assert fitted.devices[0].attributes == {"card": 0}
    assert repr(key) in fitted.problems[0]


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 1.5, None, ["a"]])
def test_a_value_that_cannot_be_sent_is_left_out(value: Any) -> None:
    fitted = fit([device(attributes={"card": value, "pcm": 2**63 - 1})])
    assert fitted.devices[0].attributes == {"pcm": 2**63 - 1}
    assert "card" in fitted.problems[0]


def test_empty_text_is_left_out_without_a_word() -> None:
    fitted = fit([device(attributes={"monitorName": "", "card": 0})])
    assert fitted.devices[0].attributes == {"card": 0}
    assert fitted.problems == ()


def test_more_than_32_attributes_and_capacities_keep_the_first_ones() -> None:
    streams = Capacity(value=2, default=1, minimum=1, maximum=2, step=1)
    attributes = {f"a{number}": number for number in range(40)}
    fitted = fit([device(attributes=attributes, capacity={"streams": streams})])
    assert list(fitted.devices[0].attributes) == [f"a{number}" for number in range(31)]
    assert len(fitted.problems) == 9


@pytest.mark.parametrize("name", ["", "Upper", "a" * 64, "-a", "a_b", "a.b"])
def test_a_device_whose_name_is_no_dns_label_is_left_out_and_the_others_stay(name: str) -> None:
    fitted = fit([device(name), device("good")])
    assert [each.name for each in fitted.devices] == ["good"]
    assert repr(name) in fitted.problems[0]


def test_of_two_devices_with_one_name_the_first_is_published() -> None:
    fitted = fit([device("a", attributes={"card": 1}), device("a", attributes={"card": 2})])
    assert [each.attributes for each in fitted.devices] == [{"card": 1}]
    assert "a: a second device" in fitted.problems[0]


@pytest.mark.parametrize(
    "taint",
    [
        Taint("no good", "NoExecute"),
        Taint("audio.liken.sh/x", "Always"),
        Taint("a/b/c", "NoSchedule"),
        Taint("key", "NoSchedule", "no good"),
    ],
)
def test_a_taint_that_is_not_allowed_is_left_out(taint: Taint) -> None:
    good = Taint("audio.liken.sh/disconnected", "NoExecute")
    fitted = fit([device(taints=(taint, good))])
    assert fitted.devices[0].taints == (good,)
    assert "taints left out" in fitted.problems[0]
