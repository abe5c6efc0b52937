"""All cards are read once, and those that can't be are named with the reason."""

import errno
import os
from pathlib import Path

from liken_audio.alsa import census
from liken_audio.alsa.reader import SoundDevice
from tests.harness.sound_kernel import SoundMachine

RECORDINGS = Path(__file__).parents[2] / "recordings" / "alsa"


def test_all_cards_are_read(tmp_path: Path) -> None:
    machine = SoundMachine(tmp_path)
    for number, name in enumerate(("hda", "hdmi", "usb", "virtio", "aloop")):
        machine.plug(RECORDINGS / f"{name}.json", number)
    found = census.take(machine.sys, machine.dev, machine.open)
    assert [(card.number, card.bus) for card in found.cards] == [
        *((0, "pci"), (1, "pci"), (2, "usb"), (3, "pci"), (4, "platform"))
    ]
    assert found.failures == ()
    assert all(not card.open_devices for card in machine.cards.values())


def test_a_card_that_may_not_be_opened_costs_only_itself(tmp_path: Path) -> None:
    machine = SoundMachine(tmp_path)
    machine.plug(RECORDINGS / "hda.json", 0)
    machine.plug(RECORDINGS / "usb.json", 1)

    def open_device(path: Path) -> SoundDevice:
        if path.name == "controlC0":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return machine.open(path)

    found = census.take(machine.sys, machine.dev, open_device)
    assert [card.number for card in found.cards] == [1]
    assert found.failures == (f"{machine.dev}/snd/controlC0: Permission denied",)


def test_a_machine_without_sound_has_no_cards_and_no_failures(tmp_path: Path) -> None:
    assert census.take(tmp_path, tmp_path) == census.Census((), ())
