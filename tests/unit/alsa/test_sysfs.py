"""The place of a card is its nearest PCI or USB device, or its own path."""

from pathlib import Path

import pytest

from liken_audio.alsa import sysfs
from tests.harness.sound_kernel import SoundMachine

RECORDINGS = Path(__file__).parents[2] / "recordings" / "alsa"


@pytest.fixture
def machine(tmp_path: Path) -> SoundMachine:
    return SoundMachine(tmp_path)


def place(machine: SoundMachine) -> sysfs.Place:
    (found,) = sysfs.places(machine.sys)
    return found


def test_a_pci_card_is_at_its_address(machine: SoundMachine) -> None:
    machine.plug(RECORDINGS / "hda.json", 0)
    found = place(machine)
    assert (found.number, found.bus, found.path, found.usb) == (0, "pci", "0000:00:1b.0", None)
    assert found.folder.endswith("/devices/pci0000:00/0000:00:1b.0")
    assert found.pcms == ("pcmC0D0c", "pcmC0D0p")


def test_a_usb_card_is_at_its_port_with_what_the_device_says(machine: SoundMachine) -> None:
    at = "pci0000:00/0000:00:14.0/usb1/1-1/1-1.2"
    machine.plug(RECORDINGS / "usb.json", 3, at=at, serial="A1/B2 C3:ÄÖ ")
    found = place(machine)
    assert (found.bus, found.path) == ("usb", "1-1.2")
    assert found.usb is not None
    assert (found.usb.vendor, found.usb.product, found.usb.port) == ("46f4", "0002", "1-1.2")
    assert found.usb.serial == "A1/B2 C3:ÄÖ "
    assert (found.usb.vendor_name, found.usb.product_name) == ("QEMU", "QEMU USB Audio")


def test_a_usb_device_without_texts_has_empty_ones(machine: SoundMachine) -> None:
    machine.plug(RECORDINGS / "usb.json", 0)
    for name in ("serial", "manufacturer", "product"):
        next(machine.sys.rglob(name)).unlink()
    usb = place(machine).usb
    assert usb is not None
    assert (usb.serial, usb.vendor_name, usb.product_name) == ("", "", "")


def test_a_card_that_hangs_below_a_pci_device_has_its_address(machine: SoundMachine) -> None:
    machine.plug(RECORDINGS / "hda.json", 0)
    # As SOF does: the card's device is a platform device below the PCI one.
    below = machine.sys / "devices/pci0000:00/0000:00:1b.0/skl_hda_dsp_generic"
    below.mkdir()
    (below / "subsystem").symlink_to(machine.sys / "bus" / "platform")
    device = (machine.sys / "class/sound/card0").resolve() / "device"
    device.unlink()
    device.symlink_to(below)
    assert (place(machine).bus, place(machine).path) == ("pci", "0000:00:1b.0")


def test_a_platform_card_is_at_its_own_path(machine: SoundMachine) -> None:
    machine.plug(RECORDINGS / "aloop.json", 0)
    assert (place(machine).bus, place(machine).path) == ("platform", "snd_aloop.0")


def test_a_card_of_a_board_is_at_its_path_below_the_soc(machine: SoundMachine) -> None:
    machine.plug(RECORDINGS / "aloop.json", 0, at="platform/soc/fef00700.hdmi")
    assert (place(machine).bus, place(machine).path) == ("platform", "soc/fef00700.hdmi")


def test_a_card_of_no_device_is_known_by_its_id(machine: SoundMachine) -> None:
    machine.plug(RECORDINGS / "aloop.json", 0)
    own = (machine.sys / "class/sound/card0").resolve()
    (own / "device").unlink()
    (own / "id").write_text("Loopback\n")
    assert (place(machine).bus, place(machine).path) == ("other", "Loopback")


def test_cards_are_ordered_by_number_and_nothing_else_is_a_card(machine: SoundMachine) -> None:
    for number, name in ((10, "hda"), (2, "usb"), (0, "aloop")):
        machine.plug(RECORDINGS / f"{name}.json", number)
    (machine.sys / "class/sound/seq").touch()
    (machine.sys / "class/sound/cards").touch()
    assert [one.number for one in sysfs.places(machine.sys)] == [0, 2, 10]


def test_pcms_of_card_1_are_not_those_of_card_10(machine: SoundMachine) -> None:
    machine.plug(RECORDINGS / "hda.json", 1)
    machine.plug(RECORDINGS / "usb.json", 10)
    assert [one.pcms for one in sysfs.places(machine.sys)] == [
        ("pcmC1D0c", "pcmC1D0p"),
        ("pcmC10D0p",),
    ]


def test_a_machine_without_sound_has_no_cards(tmp_path: Path) -> None:
    assert sysfs.places(tmp_path) == ()


def test_a_device_that_is_still_in_the_machine_exists(machine: SoundMachine) -> None:
    machine.plug(RECORDINGS / "hda.json", 0)
    folder = place(machine).folder
    assert sysfs.existing({folder, "/no/such"}) == {folder}
    machine.unplug(0)
    assert sysfs.existing({folder}) == set()
