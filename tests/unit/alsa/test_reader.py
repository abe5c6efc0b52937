"""A card is read whole from what its kernel answers; what fails costs only itself."""

import errno
from pathlib import Path

import pytest

from liken_audio.alsa import kernel, reader
from liken_audio.alsa.elements import ChannelMaps, EldBlock
from liken_audio.alsa.kernel import HardwareRange
from liken_audio.alsa.reader import Reading
from liken_audio.graph.model import Control, Direction, Jack
from tests.harness.sound_kernel import RecordedCard, SoundMachine

RECORDINGS = Path(__file__).parents[2] / "recordings" / "alsa"


class Bench:
    """One recorded card and its control device."""

    def __init__(self, folder: Path, name: str) -> None:
        self.machine = SoundMachine(folder)
        self.card: RecordedCard = self.machine.plug(RECORDINGS / f"{name}.json", 2)

    def read(self, before: Reading | None = None) -> Reading:
        device = self.machine.open(Path("/dev/snd/controlC2"))
        try:
            return reader.read_card(device, Path("/dev/snd"), self.machine.open, before)
        finally:
            device.close()


def controls(reading: Reading) -> dict[str, Control]:
    return {one.name: one for one in reading.elements.values() if isinstance(one, Control)}


def test_a_usb_card_has_its_pcm_volume_switch_and_channels(tmp_path: Path) -> None:
    reading = Bench(tmp_path, "usb").read()
    assert (reading.info.number, reading.info.id, reading.info.driver) == (2, "Audio", "USB-Audio")
    assert [(one.info.device, one.info.id, one.info.direction) for one in reading.pcms] == [
        (0, "USB Audio", Direction.PLAYBACK)
    ]
    volume = controls(reading)["Audio Output Volume Control Playback Volume"]
    assert (volume.minimum, volume.maximum, volume.channels) == (0, 256, 2)
    assert (volume.min_decibels, volume.max_decibels) == (-127.99, 8.0)
    maps = [one for one in reading.elements.values() if isinstance(one, ChannelMaps)]
    assert maps == [ChannelMaps(0, Direction.PLAYBACK, (("FL", "FR"),))]


def test_an_hda_card_has_both_directions_of_one_pcm_and_its_jacks(tmp_path: Path) -> None:
    reading = Bench(tmp_path, "hda").read()
    assert [(one.info.device, one.info.direction) for one in reading.pcms] == [
        (0, Direction.PLAYBACK),
        (0, Direction.CAPTURE),
    ]
    jacks = [one for one in reading.elements.values() if isinstance(one, Jack)]
    assert {one.name for one in jacks} == {"Line Phantom Jack", "Line Out Phantom Jack"}
    assert list(controls(reading)) == [
        *("Master Playback Volume", "Master Playback Switch", "Capture Volume", "Capture Switch")
    ]


def test_an_hdmi_card_has_its_monitors_bytes(tmp_path: Path) -> None:
    reading = Bench(tmp_path, "hdmi").read()
    blocks = [one for one in reading.elements.values() if isinstance(one, EldBlock)]
    assert [one.device for one in blocks] == [3]
    assert b"Lab TV" in blocks[0].data


def test_a_pcm_without_a_channel_map_is_asked_for_its_range(tmp_path: Path) -> None:
    reading = Bench(tmp_path, "virtio").read()
    assert reading.pcms[0].hardware is not None
    assert reading.pcms[0].hardware.max_channels >= 2


def test_a_pcm_that_has_a_channel_map_or_a_monitor_is_never_opened(tmp_path: Path) -> None:
    for name in ("usb", "hda", "hdmi"):
        bench = Bench(tmp_path / name, name)
        opened = []
        machine_open = bench.machine.open

        def noting(path: Path, opened: list[str] = opened, do=machine_open):
            opened.append(path.name)
            return do(path)

        device = bench.machine.open(Path("/dev/snd/controlC2"))
        reader.read_card(device, Path("/dev/snd"), noting)
        device.close()
        assert opened == [], name


def test_a_busy_pcm_is_not_opened_and_keeps_what_it_told_before(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "virtio")
    before = bench.read()
    bench.card.busy = {"D0p", "D0c"}
    assert [one.hardware for one in bench.read(before).pcms] == [
        one.hardware for one in before.pcms
    ]
    assert all(one.hardware is None for one in bench.read().pcms)


def test_a_range_that_isnt_told_is_none(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "virtio")
    told = bench.read().pcms[0].hardware
    assert isinstance(told, HardwareRange)
    assert told.min_rate_hz <= 48_000 <= told.max_rate_hz


def test_a_control_whose_read_fails_is_listed_without_a_value(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "hda")
    number = bench.card.number_of("Capture Volume")
    bench.card.elements[number].read_error = errno.EINVAL
    found = controls(bench.read())
    assert found["Capture Volume"].values is None
    assert found["Capture Volume"].maximum == 74
    assert found["Master Playback Volume"].values is not None


def test_a_write_only_control_is_not_read(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "hda")
    bench.card.set_access("Capture Volume", kernel.Access.WRITE)
    assert controls(bench.read())["Capture Volume"].values is None
    assert bench.card.number_of("Capture Volume") not in bench.card.reads


def test_an_element_that_vanishes_while_it_is_read_is_left_out(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "hda")
    device = bench.machine.open(Path("/dev/snd/controlC2"))
    assert reader.read_elements(device, [1, 4711]).keys() == {1}
    device.close()


def test_a_card_that_is_taken_out_ends_the_reading(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "hda")
    device = bench.machine.open(Path("/dev/snd/controlC2"))
    bench.card.unplug()
    with pytest.raises(OSError, match="No such device"):
        reader.read_elements(device, [1])
    device.close()


def test_a_write_sets_each_channel(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "hda")
    device = bench.machine.open(Path("/dev/snd/controlC2"))
    number = bench.card.number_of("Master Playback Volume")
    reader.write_element(device, number, (60, 55))
    device.close()
    assert controls(bench.read())["Master Playback Volume"].values == (60, 55)


def test_a_write_to_a_locked_control_is_refused_as_the_kernel_does(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "hda")
    bench.card.set_access("Master Playback Volume", 3 | kernel.Access.LOCK)
    device = bench.machine.open(Path("/dev/snd/controlC2"))
    with pytest.raises(OSError, match="busy"):
        reader.write_element(device, bench.card.number_of("Master Playback Volume"), (1, 1))
    with pytest.raises(FileNotFoundError):
        reader.write_element(device, 4711, (1,))
    device.close()


def test_every_file_that_a_reading_opens_is_closed(tmp_path: Path) -> None:
    bench = Bench(tmp_path, "virtio")
    bench.read()
    assert bench.card.open_devices == []
