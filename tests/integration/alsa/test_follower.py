"""One card is followed by its events, and nothing is read without one."""

import asyncio
import contextlib
import errno
import os
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from liken_audio.alsa import follower, kernel, sysfs
from liken_audio.alsa.follower import CardFollower, Kernel
from liken_audio.alsa.reader import SoundDevice
from liken_audio.graph.model import Card, Control
from tests.harness.sound_kernel import RecordedCard, SoundMachine

RECORDINGS = Path(__file__).parents[2] / "recordings" / "alsa"
VOLUME = "Master Playback Volume"


class Followed:
    """A card, its follower, and a way to wait for what it becomes."""

    def __init__(self, machine: SoundMachine, threads: ThreadPoolExecutor) -> None:
        self.machine = machine
        self.fail_to_open: list[int] = []
        self.changes = 0
        self._changed = asyncio.Event()
        (place,) = sysfs.places(machine.sys)
        access = Kernel(machine.dev / "snd", self._open, threads, self._is_elsewhere)
        self.follower = CardFollower(place, access, self._on_change)

    @property
    def card(self) -> RecordedCard:
        return self.machine.cards[0]

    async def _is_elsewhere(self, _card: Card) -> bool:
        return False

    def _open(self, path: Path) -> SoundDevice:
        if self.fail_to_open:
            raise OSError(number := self.fail_to_open.pop(0), os.strerror(number))
        return self.machine.open(path)

    def _on_change(self) -> None:
        self.changes += 1
        self._changed.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not holds():
                self._changed.clear()
                await self._changed.wait()

    def control(self, name: str) -> Control:
        assert self.follower.card is not None
        return next(one for one in self.follower.card.controls if one.name == name)


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


@contextlib.asynccontextmanager
async def following(
    tmp_path: Path, threads: ThreadPoolExecutor, name: str = "hda", *, fails: tuple[int, ...] = ()
) -> AsyncIterator[Followed]:
    """Follow a recorded card; at the end it has no file open."""
    machine = SoundMachine(tmp_path)
    card = machine.plug(RECORDINGS / f"{name}.json", 0)
    made = Followed(machine, threads)
    made.fail_to_open = list(fails)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(made.follower.run())
        await made.until(lambda: made.follower.card is not None)
        yield made
        task.cancel()
    assert card.open_devices == []


async def test_a_value_that_changes_is_seen_and_nothing_else_is_read(
    tmp_path: Path, threads: ThreadPoolExecutor
) -> None:
    async with following(tmp_path, threads) as made:
        made.card.reads.clear()
        made.card.set_values(VOLUME, 60, 55)
        await made.until(lambda: made.control(VOLUME).values == (60, 55))
        assert made.card.reads == [made.card.number_of(VOLUME)]
        assert made.follower.readings == 1


async def test_many_changes_at_once_are_read_in_one_go(
    tmp_path: Path, threads: ThreadPoolExecutor
) -> None:
    async with following(tmp_path, threads) as made:
        made.card.reads.clear()
        for level in range(40):
            made.card.set_values(VOLUME, level, level)
        await made.until(lambda: made.control(VOLUME).values == (39, 39))
        assert len(made.card.reads) <= 3


async def test_a_jack_and_a_monitor_are_seen(tmp_path: Path, threads: ThreadPoolExecutor) -> None:
    async with following(tmp_path, threads, "hdmi") as made:
        made.card.set_values("HDMI/DP,pcm=3 Jack", 1)

        def is_plugged() -> bool:
            return made.follower.card is not None and made.follower.card.jacks[0].is_plugged

        await made.until(is_plugged)
        assert made.follower.card
        channels = made.follower.card.pcms[0].channels
        made.card.set_data("ELD", b"")
        await made.until(lambda: bool(made.follower.card) and made.follower.card.pcms[0].eld == b"")
        assert made.follower.card.pcms[0].channels == channels


async def test_elements_that_come_and_go_are_seen(
    tmp_path: Path, threads: ThreadPoolExecutor
) -> None:
    async with following(tmp_path, threads) as made:
        made.card.add("Softvol Playback Volume", like=VOLUME)
        await made.until(lambda: len(made.follower.card.controls) == 5)
        made.card.remove("Softvol Playback Volume")
        await made.until(lambda: len(made.follower.card.controls) == 4)


async def test_an_event_that_changes_nothing_wakes_nobody(
    tmp_path: Path, threads: ThreadPoolExecutor
) -> None:
    async with following(tmp_path, threads) as made:
        before = made.changes
        made.card.tell(made.card.number_of(VOLUME), 1)
        made.card.set_values("Capture Volume", 3, 3)
        await made.until(lambda: made.control("Capture Volume").values == (3, 3))
        assert made.changes == before + 1


async def test_a_locked_control_is_looked_at_until_it_is_free(
    tmp_path: Path, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "LOCKED_SECONDS", 0.05)
    async with following(tmp_path, threads) as made:
        made.card.set_access(VOLUME, 3 | kernel.Access.LOCK)
        await made.until(lambda: made.control(VOLUME).is_locked)
        made.card.set_access(VOLUME, 3, is_told=False)
        await made.until(lambda: not made.control(VOLUME).is_locked)


async def test_a_write_reaches_the_hardware_and_is_seen(
    tmp_path: Path, threads: ThreadPoolExecutor
) -> None:
    async with following(tmp_path, threads) as made:
        await made.follower.write(made.control(VOLUME), (80, 75))
        await made.until(lambda: made.control(VOLUME).values == (80, 75))
        assert [number for number, _ in made.card.writes] == [made.card.number_of(VOLUME)]


async def test_a_write_that_the_hardware_ignores_is_read_back(
    tmp_path: Path, threads: ThreadPoolExecutor
) -> None:
    async with following(tmp_path, threads) as made:
        made.card.reads.clear()
        same = made.control(VOLUME).values
        assert same is not None
        await made.follower.write(made.control(VOLUME), same)
        made.card.set_values("Capture Volume", 3, 3)
        await made.until(lambda: made.control("Capture Volume").values == (3, 3))
        assert made.card.number_of(VOLUME) in made.card.reads


async def test_a_write_to_what_isnt_there_is_refused(
    tmp_path: Path, threads: ThreadPoolExecutor
) -> None:
    async with following(tmp_path, threads) as made:
        gone = made.control(VOLUME)
        made.card.remove(VOLUME)
        await made.until(lambda: len(made.follower.card.controls) == 3)
        with pytest.raises(FileNotFoundError, match="no control 'Master Playback Volume',0"):
            await made.follower.write(gone, (1, 1))


async def test_a_card_that_is_taken_out_ends_its_follower_with_no_file_open(
    tmp_path: Path, threads: ThreadPoolExecutor
) -> None:
    machine = SoundMachine(tmp_path)
    card = machine.plug(RECORDINGS / "usb.json", 0)
    made = Followed(machine, threads)
    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        task = tasks.create_task(made.follower.run())
        await made.until(lambda: made.follower.card is not None)
        card.unplug()
        await task
    assert card.open_devices == []


async def test_a_card_whose_device_file_comes_late_is_opened_then(
    tmp_path: Path, threads: ThreadPoolExecutor
) -> None:
    async with following(tmp_path, threads, fails=(errno.ENOENT, errno.ENODEV)) as made:
        assert made.follower.failure == ""
        assert made.fail_to_open == []


async def test_a_card_that_may_not_be_opened_says_so_once_and_is_tried_again(
    tmp_path: Path, threads: ThreadPoolExecutor
) -> None:
    with capture_logs() as logs:
        async with following(tmp_path, threads, fails=(errno.EACCES,) * 3):
            pass
    warnings = [line for line in logs if line["log_level"] == "warning"]
    assert [line["reason"] for line in warnings] == [
        f"{tmp_path}/dev/snd/controlC0: Permission denied"
    ]


async def test_a_new_pcm_of_the_card_has_it_read_again(
    tmp_path: Path, threads: ThreadPoolExecutor
) -> None:
    async with following(tmp_path, threads) as made:
        pcms = made.card.facts["pcms"]
        pcms["D7p"] = "07" + pcms["D0p"][2:]
        (made.machine.sys / "class/sound/pcmC0D7p").touch()
        (place,) = sysfs.places(made.machine.sys)
        made.follower.nudge(place)
        await made.until(lambda: bool(made.follower.card) and len(made.follower.card.pcms) == 3)
