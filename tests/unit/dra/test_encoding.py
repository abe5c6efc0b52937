"""Devices as JSON, and JSON by meaning."""

from typing import Any

import pytest

from liken_audio.dra.devices import Capacity, Device, Taint
from liken_audio.dra.encoding import adoption, dropped_fields, encode, meaning
from liken_audio.graph.model import DeviceName

STREAMS = Capacity(value=64, default=1, minimum=1, maximum=64, step=1)
SHARED = Device(
    name=DeviceName("kitchen-hdmi"),
    attributes={"sink": "kitchen-hdmi", "card": 0, "connected": True},
    taints=(Taint("audio.liken.sh/disconnected", "NoExecute"), Taint("k", "NoSchedule", "v")),
    allow_multiple=True,
    capacity={"streams": STREAMS},
)


def test_a_device_becomes_what_the_api_has() -> None:
    assert encode(SHARED) == {
        "name": "kitchen-hdmi",
        "attributes": {
            "sink": {"string": "kitchen-hdmi"},
            "card": {"int": 0},
            "connected": {"bool": True},
        },
        "allowMultipleAllocations": True,
        "capacity": {
            "streams": {
                "value": "64",
                "requestPolicy": {
                    "default": "1",
                    "validRange": {"min": "1", "max": "64", "step": "1"},
                },
            }
        },
        "taints": [
            {"key": "audio.liken.sh/disconnected", "effect": "NoExecute"},
            {"key": "k", "effect": "NoSchedule", "value": "v"},
        ],
    }


def test_a_bare_device_has_a_name_only() -> None:
    assert encode(Device(name=DeviceName("a"), attributes={})) == {"name": "a"}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param({"taints": []}, {}, id="no-taints"),
        pytest.param({"allowMultipleAllocations": False}, {}, id="not-shared"),
        pytest.param({"attributes": {}}, {"attributes": None}, id="no-attributes"),
        pytest.param(
            {"capacity": {"memory": {"value": "1024Mi"}}},
            {"capacity": {"memory": {"value": "1Gi"}}},
            id="quantity",
        ),
        pytest.param(
            {"taints": [{"key": "k", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"}]},
            {"taints": [{"key": "k", "effect": "NoExecute", "value": ""}]},
            id="taint-time",
        ),
    ],
)
def test_spellings_of_one_device_mean_the_same(one: Any, other: Any) -> None:
    assert meaning({"name": "a", **one}) == meaning({"name": "a", **other})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"attributes": {"card": {"int": 0}}}, {"attributes": {"card": {"int": 1}}}),
        ({"attributes": {"card": {"int": 1}}}, {"attributes": {"card": {"bool": True}}}),
        ({"attributes": {"connected": {"bool": False}}}, {}),
        ({"allowMultipleAllocations": True}, {}),
        ({"capacity": {"m": {"value": "1G"}}}, {"capacity": {"m": {"value": "1Gi"}}}),
    ],
)
def test_different_devices_mean_something_else(one: Any, other: Any) -> None:
    assert meaning({"name": "a", **one}) != meaning({"name": "a", **other})


def test_nothing_is_adopted_when_the_server_only_spells_differently() -> None:
    stored = encode(SHARED)
    stored["taints"][0]["timeAdded"] = "2026-01-01T00:00:00Z"
    assert adoption([encode(SHARED)], [stored]) is None
    assert dropped_fields([encode(SHARED)], [stored]) == ()


def test_dropped_fields_are_named_for_a_person() -> None:
    stored = encode(SHARED)
    del stored["taints"]
    del stored["allowMultipleAllocations"]
    del stored["capacity"]["streams"]["requestPolicy"]
    assert {"taints", "allowMultipleAllocations", "capacity.*.requestPolicy"} <= set(
        dropped_fields([encode(SHARED)], [stored])
    )
