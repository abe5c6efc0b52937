"""What is kept of USB cards comes back as cards that are away."""

import json
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from liken_audio.alsa.absence import absent
from liken_audio.alsa.usb_memory import Remembered, UsbMemory
from liken_audio.graph.naming import device_names
from tests.builders import card, control, microphone_pcm, pcm, usb_card, usb_identity

DAC = usb_card(
    pcm(id="USB Audio"),
    microphone_pcm(id="USB Audio"),
    usb=usb_identity(serial="A1/B2 C3:ÄÖ", port="1-1.2"),
    controls=(control("PCM Playback Volume"),),
)
OFFSET = 1_000_000.0
"""Time of day minus the loop's clock."""


def kept(tmp_path: Path, known: Remembered) -> Remembered:
    UsbMemory(tmp_path / "usb-cards.json").save(known)
    return UsbMemory(tmp_path / "usb-cards.json").load()


def test_a_card_that_was_there_is_away_from_the_start_of_the_next_agent(tmp_path: Path) -> None:
    (back,) = kept(tmp_path, Remembered.of([(DAC, "/sys/x")], (), OFFSET)).absent(7.0, OFFSET + 7)
    assert (back.since, back.folder, back.card.is_present) == (7.0, "/sys/x", False)
    assert back.card.controls == ()


def test_its_devices_have_the_names_that_they_had(tmp_path: Path) -> None:
    (back,) = kept(tmp_path, Remembered.of([(DAC, "/sys/x")], (), OFFSET)).absent(0.0, OFFSET)
    names = [one.name for one in device_names("kitchen", [DAC])]
    assert [one.name for one in device_names("kitchen", [back.card])] == names


def test_a_card_that_was_away_has_been_since_it_went(tmp_path: Path) -> None:
    gone = absent(DAC, "/sys/x", 50.0)
    (back,) = kept(tmp_path, Remembered.of((), [gone], OFFSET)).absent(10.0, OFFSET + 3650)
    assert back.since == 10.0 - 3600


def test_a_clock_that_was_set_back_makes_no_card_go_in_the_future(tmp_path: Path) -> None:
    gone = absent(DAC, "/sys/x", 50.0)
    (back,) = kept(tmp_path, Remembered.of((), [gone], OFFSET)).absent(10.0, 0.0)
    assert back.since == 10.0


def test_only_usb_cards_are_kept(tmp_path: Path) -> None:
    pci = card(pcm())
    known = Remembered.of([(pci, "/sys/y")], [absent(pci, "/sys/y", 0.0)], OFFSET)
    assert kept(tmp_path, known) == Remembered()


def test_what_is_kept_already_is_not_written_again(tmp_path: Path) -> None:
    path = tmp_path / "usb-cards.json"
    UsbMemory(path).save(Remembered.of([(DAC, "/sys/x")], (), OFFSET))
    memory = UsbMemory(path)
    known = memory.load()
    path.unlink()
    memory.save(known)
    assert not path.exists()
    memory.save(Remembered())
    assert path.exists()


def test_without_a_file_nothing_is_remembered_and_nothing_is_wrong(tmp_path: Path) -> None:
    with capture_logs() as logs:
        assert UsbMemory(tmp_path / "none.json").load() == Remembered()
    assert logs == []


GOOD = {"version": 1, "cards": []}


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"version": 2, "cards": []}', '{"version": 1, "cards": [{}]}', "\xff"],
)
def test_a_file_that_cannot_be_understood_is_said_once_and_forgotten(
    tmp_path: Path, text: str
) -> None:
    path = tmp_path / "usb-cards.json"
    path.write_text(text, encoding="latin-1")
    memory = UsbMemory(path)
    with capture_logs() as logs:
        assert memory.load() == Remembered()
    assert [line["log_level"] for line in logs] == ["warning"]
    memory.save(Remembered())
    assert json.loads(path.read_text()) == GOOD


def test_a_folder_that_cannot_be_written_costs_a_line_of_the_log(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    memory = UsbMemory(tmp_path / "file" / "usb-cards.json")
    with capture_logs() as logs:
        memory.save(Remembered.of([(DAC, "/sys/x")], (), OFFSET))
        memory.save(Remembered.of([(DAC, "/sys/x")], (), OFFSET))
    assert [line["event"] for line in logs] == ["USB cards can't be kept"]
