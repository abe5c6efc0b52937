"""The watcher against a real message bus with a stand-in for bluetoothd: storms, races, restarts."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from liken_audio.bluez import speakers as speakers_module
from liken_audio.bluez import watcher as module
from liken_audio.bluez.watcher import BlueZWatcher
from liken_audio.graph.device_graph import DeviceGraph
from liken_audio.graph.model import Link, Source, Speaker
from tests.harness.bluez import ADAPTER, DEVICE, FakeBlueZ, PrivateBus

SECONDS = 20
"""Deadline of everything that is awaited here."""
ADDRESS = "02:00:00:00:00:01"


@pytest.fixture
def media_bus(workspace: Path) -> Iterator[PrivateBus]:
    with PrivateBus(workspace) as running:
        yield running


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_DELAY", 0.05)
    monkeypatch.setattr(module, "MAX_DELAY", 0.2)


class Watched:
    """A running watcher and what its graph shows."""

    def __init__(self, address: str) -> None:
        self.graph = DeviceGraph([Source.BLUEZ])
        self.watcher = BlueZWatcher(self.graph, address)
        self._changed = asyncio.Event()
        self.graph.subscribe(self._changed.set)

    def speakers(self) -> dict[str, Speaker]:
        return {c.speaker.address: c.speaker for c in self.graph.view().cards if c.speaker}

    def link(self, address: str = ADDRESS) -> Link | None:
        found = self.speakers().get(address)
        return found.link if found else None

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(SECONDS):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def until_link(self, link: Link | None) -> None:
        await self.until(lambda: self.link() is link)


@asynccontextmanager
async def watching(address: str) -> AsyncIterator[Watched]:
    watched = Watched(address)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(watched.watcher.run())
        yield watched
        task.cancel()


@asynccontextmanager
async def kitchen(media_bus: PrivateBus) -> AsyncIterator[tuple[FakeBlueZ, Watched, str]]:
    """A BlueZ with one paired speaker that isn't connected, seen by a watcher."""
    async with FakeBlueZ(media_bus.address) as bluez:
        bluez.add_adapter()
        path = bluez.add_speaker(ADDRESS)
        async with watching(media_bus.address) as watched:
            await watched.until_link(Link.AWAY)
            yield bluez, watched, path


async def test_where_there_is_no_bus_the_graph_says_at_once_that_there_are_no_speakers(
    workspace: Path,
) -> None:
    async with watching(f"unix:path={workspace}/none") as watched:
        await watched.until(lambda: Source.BLUEZ not in watched.graph.view().awaited)
        assert watched.speakers() == {}
        assert watched.watcher.errors == 0


async def test_without_a_bus_no_library_is_loaded(workspace: Path) -> None:
    script = (
        "import asyncio, sys\n"
        "from liken_audio.bluez.watcher import BlueZWatcher\n"
        "from liken_audio.graph.device_graph import DeviceGraph\n"
        f"watcher = BlueZWatcher(DeviceGraph([]), 'unix:path={workspace}/none')\n"
        "asyncio.run(watcher._run_once())\n"
        "sys.exit('dbus_fast' in sys.modules)\n"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", script)
    async with asyncio.timeout(SECONDS * 3):
        assert await process.wait() == 0


async def test_a_bus_without_bluez_has_no_speakers_and_makes_no_error(
    media_bus: PrivateBus,
) -> None:
    async with watching(media_bus.address) as watched:
        await watched.until(lambda: Source.BLUEZ not in watched.graph.view().awaited)
        assert watched.speakers() == {}
        assert watched.watcher.errors == 0


async def test_a_bus_and_a_daemon_that_come_late_are_found(workspace: Path) -> None:
    bus = PrivateBus(workspace)
    async with watching(bus.address) as watched:
        await watched.until(lambda: Source.BLUEZ not in watched.graph.view().awaited)
        with bus:
            async with FakeBlueZ(bus.address) as bluez:
                bluez.add_adapter()
                bluez.add_speaker(ADDRESS)
                await watched.until_link(Link.AWAY)


async def test_a_speaker_is_followed_from_pairing_to_unpairing(
    media_bus: PrivateBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speakers_module, "UNPAIRED_SECONDS", 0.3)
    async with kitchen(media_bus) as (bluez, watched, path):
        bluez.change(path, DEVICE, Connected=True)
        await watched.until_link(Link.CONNECTED)
        bluez.add(path, {"org.bluez.Battery1": {"Percentage": 80}})
        await watched.until(lambda: watched.speakers()[ADDRESS].battery == 80)
        bluez.change(path, DEVICE, Connected=False)
        await watched.until_link(Link.AWAY)
        bluez.remove(path)
        await watched.until_link(Link.UNPAIRED)
        await watched.until_link(None)
        bluez.add_speaker(ADDRESS)
        await watched.until_link(Link.AWAY)


async def test_an_adapter_that_moves_keeps_the_speaker_and_the_next_call_finds_it(
    media_bus: PrivateBus,
) -> None:
    async with kitchen(media_bus) as (bluez, watched, _):
        address = bluez.objects["/org/bluez/hci0"][ADAPTER]["Address"]
        bluez.remove("/org/bluez/hci0")
        await watched.until_link(Link.NO_ADAPTER)
        bluez.add_adapter(2, Address=address)
        moved = bluez.add_speaker(ADDRESS, 2)
        await watched.until_link(Link.AWAY)
        await watched.watcher.connect(ADDRESS)
        assert bluez.connects == [moved]
        await watched.until_link(Link.CONNECTED)


async def test_the_daemon_restarts_and_all_is_read_again(media_bus: PrivateBus) -> None:
    async with kitchen(media_bus) as (bluez, watched, path):
        await bluez.stop()
        await watched.until_link(Link.NO_SERVICE)
        bluez.objects[path][DEVICE]["Connected"] = True
        await bluez.start()
        await watched.until_link(Link.CONNECTED)
        assert watched.watcher.connections == 1


async def test_the_bus_restarts_and_is_connected_to_again(media_bus: PrivateBus) -> None:
    async with kitchen(media_bus) as (bluez, watched, _):
        media_bus.kill()
        await watched.until_link(Link.NO_SERVICE)
        await bluez.stop()
        media_bus.start()
        await bluez.start()
        await watched.until_link(Link.AWAY)
        assert watched.watcher.connections == 2


async def test_five_hundred_signals_in_a_burst_end_in_the_last_state_with_few_changes(
    media_bus: PrivateBus,
) -> None:
    async with kitchen(media_bus) as (bluez, watched, path):
        before = watched.graph.revision
        changes = [{"Alias": f"Speaker {n}", "Connected": bool(n % 2)} for n in range(499)]
        await bluez.burst(path, DEVICE, [*changes, {"Alias": "Last", "Connected": True}])
        await watched.until(lambda: watched.speakers()[ADDRESS].name == "Last")
        assert watched.link() is Link.CONNECTED
        assert watched.graph.revision - before < 50
        assert bluez.trees == 1


async def test_a_device_removed_while_it_connects_ends_the_call(media_bus: PrivateBus) -> None:
    async with kitchen(media_bus) as (bluez, watched, path):
        bluez.answers.clear()
        async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as tasks:
            call = tasks.create_task(_refused(watched.watcher))
            await watched.until(lambda: True)
            while not bluez.connects:
                await asyncio.sleep(0.01)
            bluez.remove(path)
            bluez.answers.set()
            await call
        await watched.until_link(Link.UNPAIRED)


async def _refused(watcher: BlueZWatcher) -> None:
    with pytest.raises(FileNotFoundError):
        await watcher.connect(ADDRESS)


async def test_what_is_not_there_can_not_be_connected(media_bus: PrivateBus) -> None:
    async with kitchen(media_bus) as (bluez, watched, _):
        with pytest.raises(FileNotFoundError):
            await watched.watcher.connect("02:00:00:00:00:99")
        await bluez.stop()
        await watched.until_link(Link.NO_SERVICE)
        with pytest.raises(FileNotFoundError):
            await watched.watcher.connect(ADDRESS)


async def test_objects_of_an_odd_form_end_nothing(media_bus: PrivateBus) -> None:
    async with kitchen(media_bus) as (bluez, watched, path):
        bluez.add("/org/bluez/hci1", {})
        bluez.add(f"{path}/odd", {"org.bluez.MediaTransport1": {}})
        bluez.change(path, "org.bluez.Device1", Address="nonsense")
        await watched.until_link(Link.UNPAIRED)
        bluez.change(path, "org.bluez.Device1", Address=ADDRESS)
        await watched.until_link(Link.AWAY)
