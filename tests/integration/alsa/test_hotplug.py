"""The kernel's two ways to tell of a card, and what is done where neither is open."""

import asyncio
from pathlib import Path

import pytest

from liken_audio.alsa import hotplug
from liken_audio.alsa.hotplug import OFTEN_SECONDS, SELDOM_SECONDS, Hotplug


class Woken:
    """Counts wake-ups, and can be waited for."""

    def __init__(self) -> None:
        self.event = asyncio.Event()

    def __call__(self) -> None:
        self.event.set()

    async def wait(self) -> None:
        async with asyncio.timeout(20):
            await self.event.wait()
        self.event.clear()


@pytest.fixture
def woken() -> Woken:
    return Woken()


@pytest.fixture
def no_netlink(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sandbox in which no netlink socket may be made."""
    monkeypatch.setattr(hotplug, "_uevent_socket", lambda: None)


async def test_a_device_file_that_comes_or_goes_wakes(
    tmp_path: Path, woken: Woken, no_netlink: None
) -> None:
    watched = Hotplug(tmp_path, woken)
    watched.open()
    (tmp_path / "controlC0").touch()
    await woken.wait()
    (tmp_path / "controlC0").chmod(0o600)
    await woken.wait()
    (tmp_path / "controlC0").unlink()
    await woken.wait()
    assert watched.interval == SELDOM_SECONDS
    watched.close()


async def test_without_a_folder_it_is_looked_often_until_there_is_one(
    tmp_path: Path, woken: Woken, no_netlink: None
) -> None:
    folder = tmp_path / "snd"
    watched = Hotplug(folder, woken)
    watched.open()
    assert watched.interval == OFTEN_SECONDS
    folder.mkdir()
    watched.watch_folder()
    assert watched.interval == SELDOM_SECONDS
    folder.rmdir()
    await woken.wait()
    assert watched.interval == OFTEN_SECONDS
    watched.close()


async def test_a_change_that_nothing_told_of_makes_it_look_often(
    tmp_path: Path, woken: Woken
) -> None:
    watched = Hotplug(tmp_path, woken)
    watched.open()
    assert watched.interval == SELDOM_SECONDS
    watched.missed()
    assert watched.interval == OFTEN_SECONDS
    watched.close()


async def test_a_closed_one_has_given_everything_back_and_can_open_again(
    tmp_path: Path, woken: Woken
) -> None:
    watched = Hotplug(tmp_path, woken)
    for _ in range(2):
        watched.open()
        watched.close()
    assert watched.interval == OFTEN_SECONDS


class FakeSocket:
    """A netlink socket with messages in it."""

    def __init__(self, *received: tuple[bytes, int] | OSError) -> None:
        self._received = list(received)

    def recvfrom(self, _size: int) -> tuple[bytes, tuple[int, int]]:
        if not self._received:
            raise BlockingIOError
        one = self._received.pop(0)
        if isinstance(one, OSError):
            raise one
        return one[0], (one[1], 1)


SOUND = b"add@/devices/x/sound/card1\0ACTION=add\0SUBSYSTEM=sound\0"
NET = b"add@/devices/x/net/eth0\0ACTION=add\0SUBSYSTEM=net\0"
MESSAGES = {
    "of a sound device": (((SOUND, 0),), True),
    "of another device": (((NET, 0),), False),
    "from a program": (((SOUND, 4711),), False),
    "lost in a storm": ((OSError(105, "No buffer space available"),), True),
    "none": ((), False),
}


@pytest.mark.parametrize(("messages", "wakes"), MESSAGES.values(), ids=MESSAGES)
async def test_only_the_kernels_uevents_of_sound_devices_wake(
    tmp_path: Path, woken: Woken, messages: tuple[tuple[bytes, int] | OSError, ...], wakes: bool
) -> None:
    watched = Hotplug(tmp_path, woken)
    watched._uevents = FakeSocket(*messages)
    watched._read_uevents()
    assert woken.event.is_set() is wakes
