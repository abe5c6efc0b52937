"""The inventory shows what the cards alone say."""

from pathlib import Path

import pytest

from liken_audio import inventory
from liken_audio.alsa.census import Census
from liken_audio.inventory import Entry, VirtualCardsError
from liken_audio.settings import Settings
from tests.builders import KITCHEN_CARDS


def settings(tmp_path: Path, text: str = KITCHEN_CARDS, **options: str) -> Settings:
    """Return the settings of a machine without sound and with a file of virtual cards."""
    file = tmp_path / "cards.yaml"
    file.write_text(text)
    return Settings(node="kitchen", sys=str(tmp_path), virtual=str(file), **options)


def devices(tmp_path: Path, text: str = KITCHEN_CARDS) -> tuple[Entry, ...]:
    return inventory.devices(inventory.cards(settings(tmp_path, text)).cards, "kitchen")


def test_each_endpoint_is_an_entry_with_its_stable_name(tmp_path: Path) -> None:
    names = [str(entry.device.name) for entry in devices(tmp_path)]
    assert names == [
        "kitchen-pci-0000-00-1f-3-alc257-analog",
        "kitchen-pci-0000-00-1f-3-alc257-analog-capture",
        "kitchen-pci-0000-00-1f-3-hdmi-0",
    ]


def test_only_what_the_card_says_is_a_taint(tmp_path: Path) -> None:
    analog, _, hdmi = inventory.as_objects(devices(tmp_path))
    assert analog["taints"] == []
    assert "audio.liken.sh/no-monitor:NoSchedule" in hdmi["taints"]


def test_the_table_has_a_head_and_a_line_for_each_device(tmp_path: Path) -> None:
    lines = inventory.as_table(devices(tmp_path)).splitlines()
    assert lines[0].split() == ["NAME", "CONNECTION", "CARD", "PCM", "MONITOR", "TAINTS"]
    assert len(lines) == 4
    assert lines[3].endswith("disconnected,no-monitor")


def test_no_cards_is_a_head_alone(tmp_path: Path) -> None:
    assert len(inventory.as_table(devices(tmp_path, "cards: []")).splitlines()) == 1


def test_a_broken_file_is_an_error_and_not_an_empty_inventory(tmp_path: Path) -> None:
    with pytest.raises(VirtualCardsError):
        devices(tmp_path, "cards: 7")


def test_the_machines_own_cards_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def take(sys: Path, dev: Path) -> Census:
        asked.append((str(sys), str(dev)))
        return Census((), ("/dev/snd/controlC0: Permission denied",))

    monkeypatch.setattr(inventory.census, "take", take)
    found = inventory.cards(settings(tmp_path, alsa="on"))
    assert asked == [(str(tmp_path), "/dev")]
    assert found.failures == ("/dev/snd/controlC0: Permission denied",)
    assert len(inventory.devices(found.cards, "kitchen")) == 3


def test_with_virtual_cards_the_machines_own_are_only_read_when_asked_for(tmp_path: Path) -> None:
    assert "the file of virtual cards has none" in inventory.nothing(settings(tmp_path))
    own = Settings(node="kitchen", sys="/elsewhere")
    assert inventory.nothing(own).startswith("no sound cards in /elsewhere/class/sound;")
