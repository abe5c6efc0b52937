"""A connection to a real message bus: what is told, in which order, and what calls raise."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from liken_audio.bluez.bus import Bus
from liken_audio.bluez.facts import Added, Changed, Fact, Owner, Removed, Tree
from tests.harness.bluez import DEVICE, FakeBlueZ, PrivateBus

SECONDS = 20
ADDRESS = "02:00:00:00:00:01"


@pytest.fixture
def media_bus(workspace: Path) -> Iterator[PrivateBus]:
    with PrivateBus(workspace) as running:
        yield running


@pytest.fixture
async def bluez(media_bus: PrivateBus) -> AsyncIterator[FakeBlueZ]:
    async with FakeBlueZ(media_bus.address) as running:
        running.add_adapter()
        yield running


class Heard:
    """All facts in their order."""

    def __init__(self) -> None:
        self.facts: list[Fact] = []
        self._came = asyncio.Event()

    def __call__(self, fact: Fact) -> None:
        self.facts.append(fact)
        self._came.set()

    async def until(self, kind: type[Fact], count: int = 1) -> None:
        async with asyncio.timeout(SECONDS):
            while sum(isinstance(each, kind) for each in self.facts) < count:
                self._came.clear()
                await self._came.wait()


async def test_a_tree_comes_between_the_signals_before_and_after_it(
    media_bus: PrivateBus, bluez: FakeBlueZ
) -> None:
    heard = Heard()
    bus = await Bus.open(media_bus.address, heard)
    path = bluez.add_speaker(ADDRESS)
    await heard.until(Added)
    await bus.ask_for_tree()
    assert isinstance(heard.facts[-1], Tree)
    bluez.change(path, DEVICE, Connected=True)
    bluez.remove(path)
    await heard.until(Removed)
    bus.close()
    kinds = [type(each) for each in heard.facts]
    assert kinds == [Owner, Added, Tree, Changed, Removed]
    tree = heard.facts[2]
    assert isinstance(tree, Tree)
    assert tree.objects[path][DEVICE]["Alias"] == "Speaker 01"
    assert heard.facts[3] == Changed(path, DEVICE, {"Connected": True}, [])


async def test_the_daemons_coming_and_going_is_told(media_bus: PrivateBus) -> None:
    heard = Heard()
    bus = await Bus.open(media_bus.address, heard)
    assert heard.facts == [Owner("")]
    async with FakeBlueZ(media_bus.address):
        await heard.until(Owner, 2)
    await heard.until(Owner, 3)
    names = [each.name for each in heard.facts if isinstance(each, Owner)]
    assert [bool(name) for name in names] == [False, True, False]
    bus.close()


async def test_signals_of_anybody_else_are_not_told(
    media_bus: PrivateBus, bluez: FakeBlueZ
) -> None:
    heard = Heard()
    bus = await Bus.open(media_bus.address, heard)
    stranger = FakeBlueZ(media_bus.address)
    await stranger.start(name="org.example")
    stranger.add_speaker(ADDRESS)
    bluez.add_adapter(1)
    await heard.until(Added)
    assert [each.path for each in heard.facts if isinstance(each, Added)] == ["/org/bluez/hci1"]
    await stranger.stop()
    bus.close()


async def test_a_refused_call_raises_bluezs_words(media_bus: PrivateBus, bluez: FakeBlueZ) -> None:
    bus = await Bus.open(media_bus.address, Heard())
    path = bluez.add_speaker(ADDRESS)
    bluez.refusal = "br-connection-page-timeout"
    with pytest.raises(OSError, match="Failed: br-connection-page-timeout"):
        await bus.call(path, DEVICE, "Connect")
    with pytest.raises(FileNotFoundError):
        await bus.call("/org/bluez/hci9", DEVICE, "Connect")
    bus.close()


async def test_a_call_is_cut_by_the_end_of_the_bus(media_bus: PrivateBus, bluez: FakeBlueZ) -> None:
    bus = await Bus.open(media_bus.address, Heard())
    path = bluez.add_speaker(ADDRESS)
    bluez.answers.clear()
    async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as tasks:
        call = tasks.create_task(_fails(bus, path))
        await asyncio.sleep(0)
        media_bus.kill()
        await call
        await bus.closed()
    bus.close()


async def _fails(bus: Bus, path: str) -> None:
    with pytest.raises(OSError, match="bus is gone"):
        await bus.call(path, DEVICE, "Connect")


async def test_without_a_service_a_tree_is_not_there(media_bus: PrivateBus) -> None:
    bus = await Bus.open(media_bus.address, Heard())
    with pytest.raises(OSError, match=r"org\.bluez"):
        await bus.ask_for_tree()
    bus.close()


@pytest.mark.parametrize("address", ["unix:path=/nonexistent/bus", "nonsense", "weird:x=y", ""])
async def test_an_address_where_no_bus_is_raises_oserror(address: str) -> None:
    with pytest.raises(OSError, match=r".+"):
        await Bus.open(address or "unix:", Heard())


async def test_a_bus_that_does_not_answer_is_given_up(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("liken_audio.bluez.bus.CONNECT_SECONDS", 0.2)
    path = str(workspace / "dead")
    with closing(socket.socket(socket.AF_UNIX)) as deaf:
        deaf.bind(path)
        deaf.listen()
        with pytest.raises(TimeoutError):
            await Bus.open(f"unix:path={path}", Heard())
