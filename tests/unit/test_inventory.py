"""The inventory shows what the cards alone say."""

import pytest

from liken_audio import inventory
from liken_audio.inventory import VirtualCardsError
from tests.builders import KITCHEN_CARDS


def test_each_endpoint_is_an_entry_with_its_stable_name() -> None:
    names = [str(entry.device.name) for entry in inventory.devices(KITCHEN_CARDS, "kitchen")]
    assert names == [
        "kitchen-pci-0000-00-1f-3-alc257-analog",
        "kitchen-pci-0000-00-1f-3-alc257-analog-capture",
        "kitchen-pci-0000-00-1f-3-hdmi-0",
    ]


def test_only_what_the_card_says_is_a_taint() -> None:
    analog, _, hdmi = inventory.as_objects(inventory.devices(KITCHEN_CARDS, "kitchen"))
    assert analog["taints"] == []
    assert "audio.liken.sh/no-monitor:NoSchedule" in hdmi["taints"]


def test_the_table_has_a_head_and_a_line_for_each_device() -> None:
    lines = inventory.as_table(inventory.devices(KITCHEN_CARDS, "kitchen")).splitlines()
    assert lines[0].split() == ["NAME", "CONNECTION", "CARD", "PCM", "MONITOR", "TAINTS"]
    assert len(lines) == 4
    assert lines[3].endswith("disconnected,no-monitor")


def test_no_cards_is_a_head_alone() -> None:
    assert len(inventory.as_table(inventory.devices("cards: []", "kitchen")).splitlines()) == 1


def test_a_broken_file_is_an_error_and_not_an_empty_inventory() -> None:
    with pytest.raises(VirtualCardsError):
        inventory.devices("cards: 7", "kitchen")
