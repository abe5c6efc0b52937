"""The machine's cards are in the graph: plugged, unplugged, renumbered, slow, refused."""

import asyncio
import contextlib
import errno
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from liken_audio.alsa import follower, watcher
from liken_audio.alsa.reader import SoundDevice
from liken_audio.alsa.watcher import AlsaCards, Roots
from liken_audio.graph.device_graph import DeviceGraph
from liken_audio.graph.endpoints import endpoints
from liken_audio.graph.model import Card, Endpoint, Fault, NodeRecipe, Source
from tests.harness.sound_kernel import SoundMachine

RECORDINGS = Path(__file__).parents[2] / "recordings" / "alsa"
SERIAL = {"serial": "SN-1A7"}
NAME = "usb-46f4-0002-sn-1a7-usb-audio"


class Followed:
    """A machine, its cards' watcher, and a way to wait for what the graph knows."""

    def __init__(self, machine: SoundMachine) -> None:
        self.machine = machine
        self.refused: set[str] = set()
        self.is_elsewhere = False
        self.asked: list[str] = []
        self.graph = DeviceGraph([Source.ALSA])
        self.cards = AlsaCards(
            self.graph,
            Roots(machine.sys, machine.dev, machine.dev / "usb-cards.json"),
            self._is_elsewhere,
            self._open,
        )
        self._changed = asyncio.Event()
        self.graph.subscribe(self._changed.set)

    async def _is_elsewhere(self, card: Card) -> bool:
        self.asked.append(card.path)
        return self.is_elsewhere

    def _open(self, path: Path) -> SoundDevice:
        if path.name in self.refused:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return self.machine.open(path)

    @property
    def present(self) -> dict[int, Card]:
        return {card.number: card for card in self.graph.view().cards if card.is_present}

    def endpoint(self, name: str) -> Endpoint | None:
        found = {str(one.name): one for one in endpoints(self.graph.view(), "kitchen")}
        return found.get(name)

    def is_there(self, name: str) -> bool:
        one = self.endpoint(name)
        return one is not None and one.card.is_present

    def is_away(self, name: str) -> bool:
        one = self.endpoint(name)
        return one is not None and one.fault is Fault.UNPLUGGED

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not holds():
                self._changed.clear()
                await self._changed.wait()


@contextlib.asynccontextmanager
async def following(made: Followed) -> AsyncIterator[Followed]:
    """Follow the machine's cards; at the end no card has a file open."""
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(made.cards.run())
        yield made
        task.cancel()
    assert all(card.open_devices == [] for card in made.machine.cards.values())


@pytest.fixture
def machine(tmp_path: Path) -> SoundMachine:
    return SoundMachine(tmp_path)


def is_known(made: Followed) -> bool:
    return not made.graph.view().awaited


async def test_the_first_snapshot_has_every_card(machine: SoundMachine) -> None:
    for number, name in enumerate(("hda", "hdmi", "usb", "virtio", "aloop")):
        machine.plug(RECORDINGS / f"{name}.json", number)
    made = Followed(machine)
    snapshots = []
    made.graph.subscribe(lambda: snapshots.append(len(made.present)))
    async with following(made):
        await made.until(lambda: is_known(made))
        assert snapshots == [5]


async def test_a_machine_without_cards_says_so_at_once(machine: SoundMachine) -> None:
    async with following(Followed(machine)) as made:
        await made.until(lambda: is_known(made))
        assert made.graph.view().cards == ()


async def test_a_card_that_cannot_be_opened_costs_only_itself(machine: SoundMachine) -> None:
    machine.plug(RECORDINGS / "hda.json", 0)
    machine.plug(RECORDINGS / "usb.json", 1)
    made = Followed(machine)
    made.refused = {"controlC0"}
    async with following(made):
        await made.until(lambda: is_known(made))
        assert list(made.present) == [1]
        assert made.cards.failures == [f"{machine.dev}/snd/controlC0: Permission denied"]
        # As udev does a moment after the kernel: the file's rights change.
        made.refused = set()
        (machine.dev / "snd" / "controlC0").chmod(0o660)
        await made.until(lambda: list(made.present) == [0, 1])
        assert made.cards.failures == []


async def test_a_usb_card_comes_goes_and_comes_back_elsewhere_as_the_same_device(
    machine: SoundMachine,
) -> None:
    machine.plug(RECORDINGS / "hda.json", 0)
    made = Followed(machine)
    async with following(made):
        await made.until(lambda: is_known(made))
        hda = made.present[0]
        first = machine.plug(RECORDINGS / "usb.json", 1, **SERIAL)
        await made.until(lambda: made.endpoint(NAME) is not None)
        machine.unplug(1)
        await made.until(lambda: made.is_away(NAME))
        assert first.open_devices == []
        machine.plug(RECORDINGS / "virtio.json", 1)
        machine.plug(RECORDINGS / "usb.json", 3, at="pci0000:00/0000:00:04.0/usb2/2-3", **SERIAL)
        await made.until(lambda: made.is_there(NAME))
        await made.until(lambda: 1 in made.present)
        back = made.endpoint(NAME)
        assert back is not None
        assert (back.card.number, back.card.path) == (3, "2-3")
        assert dict(back.pcm.recipe.properties)["api.alsa.path"] == "hw:3,0"
        assert [card.path for card in made.graph.view().cards if not card.is_present] == []
        assert made.present[0] is hda
        assert (made.cards.plugs, made.cards.unplugs) == (4, 1)


async def test_a_pci_card_stays_while_its_device_is_there_and_goes_with_it(
    machine: SoundMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.plug(RECORDINGS / "hda.json", 0)
    name = "kitchen-pci-0000-00-1b-0-generic-analog"
    monkeypatch.setattr(watcher, "LOOK_GAP_SECONDS", 0.01)
    async with following(Followed(machine)) as made:
        await made.until(lambda: made.is_there(name))
        machine.unplug(0, is_device_gone=False)
        await made.until(lambda: made.is_away(name))
        folder = machine.sys / "devices/pci0000:00/0000:00:1b.0"
        folder.rename(folder.with_name("gone"))
        (machine.dev / "snd" / "timer").touch()  # any sign has it look
        await made.until(lambda: made.endpoint(name) is None)


async def test_a_card_is_found_though_nothing_tells_of_it(
    machine: SoundMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher.Hotplug, "open", lambda self: None)
    async with following(Followed(machine)) as made:
        await made.until(lambda: is_known(made))
        machine.plug(RECORDINGS / "usb.json", 0)
        await made.until(lambda: 0 in made.present)
        machine.unplug(0)
        await made.until(lambda: 0 not in made.present)


async def test_a_card_that_does_not_answer_holds_the_others_up_for_a_while_only(
    machine: SoundMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "START_SECONDS", 0.2)
    machine.plug(RECORDINGS / "hda.json", 0)
    machine.plug(RECORDINGS / "usb.json", 1)
    made = Followed(machine)
    answers = asyncio.Event()
    loop = asyncio.get_running_loop()
    plain_open = made._open

    def hang(path: Path) -> SoundDevice:
        if path.name == "controlC1":
            asyncio.run_coroutine_threadsafe(answers.wait(), loop).result(20)
        return plain_open(path)

    made.cards._open_device = hang
    async with following(made):
        await made.until(lambda: is_known(made))
        assert list(made.present) == [0]
        answers.set()
        await made.until(lambda: list(made.present) == [0, 1])


async def test_a_written_control_is_seen_and_only_on_its_card(machine: SoundMachine) -> None:
    machine.plug(RECORDINGS / "hda.json", 0)
    machine.plug(RECORDINGS / "hda.json", 1, at="pci0000:00/0000:00:1d.0")
    async with following(Followed(machine)) as made:
        await made.until(lambda: is_known(made))
        card = made.present[1]
        assert made.cards.has(card)
        await made.cards.write_control(card, card.controls[0], (50, 40))
        await made.until(lambda: made.present[1].controls[0].values == (50, 40))
        assert made.present[0].controls[0].values == (0, 0)


async def test_a_write_to_a_card_that_is_away_is_refused(machine: SoundMachine) -> None:
    machine.plug(RECORDINGS / "usb.json", 0, **SERIAL)
    async with following(Followed(machine)) as made:
        await made.until(lambda: is_known(made))
        card = made.present[0]
        machine.unplug(0)
        await made.until(lambda: not made.present)
        assert made.cards.has(card)
        with pytest.raises(OSError, match="the card at usb 1-1 is away"):
            await made.cards.write_control(card, card.controls[0], (1,))


async def test_a_usb_card_that_is_pulled_while_no_agent_runs_is_away_for_the_next(
    machine: SoundMachine,
) -> None:
    machine.plug(RECORDINGS / "usb.json", 0, **SERIAL)
    machine.plug(RECORDINGS / "hda.json", 1)
    async with following(Followed(machine)) as made:
        await made.until(lambda: made.is_there(NAME))
        async with asyncio.timeout(20):
            while not (machine.dev / "usb-cards.json").exists():
                await asyncio.sleep(0.01)
    machine.unplug(0)
    async with following(Followed(machine)) as made:
        await made.until(lambda: is_known(made))
        assert made.is_away(NAME)
        assert list(made.present) == [1]
        machine.plug(RECORDINGS / "usb.json", 2, at="pci0000:00/0000:00:04.0/usb2/2-3", **SERIAL)
        await made.until(lambda: made.is_there(NAME))


async def test_a_serial_that_another_node_has_live_is_no_identity_until_that_is_gone(
    machine: SoundMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "ELSEWHERE_SECONDS", 0.05)
    machine.plug(RECORDINGS / "hda.json", 0)
    made = Followed(machine)
    names = set()
    made.graph.subscribe(
        lambda: names.update(str(one.name) for one in endpoints(made.graph.view(), "kitchen"))
    )
    async with following(made):
        await made.until(lambda: is_known(made))
        made.is_elsewhere = True
        machine.plug(RECORDINGS / "usb.json", 1, **SERIAL)
        await made.until(lambda: made.is_there("kitchen-usb-1-1-usb-audio"))
        assert NAME not in names
        made.is_elsewhere = False
        await made.until(lambda: made.is_there(NAME))
        asked = len(made.asked)
        assert set(made.asked) == {"1-1"}
        machine.cards[1].set_values("Audio Output Volume Control Playback Switch", 0)
        await made.until(lambda: made.present[1].controls[0].values == (0,))
        assert len(made.asked) == asked


PLAYBACK = NodeRecipe(factory="api.alsa.pcm.sink", properties=(("api.alsa.path", "hw:0,0"),))


async def test_what_is_in_the_way_of_a_pcm_is_said_in_words(machine: SoundMachine) -> None:
    card = machine.plug(RECORDINGS / "hda.json", 0)
    cards = Followed(machine).cards
    assert await cards.obstacle(PLAYBACK) == ""
    card.busy = {"D0p"}
    assert (await cards.obstacle(PLAYBACK)).startswith("another program has it open")
    assert await cards.obstacle(NodeRecipe(factory="support.null-audio-sink")) == ""
    machine.unplug(0)
    assert (await cards.obstacle(PLAYBACK)).endswith("pcmC0D0p: No such file or directory")
    assert card.open_devices == []


async def test_twenty_plugs_leave_no_file_and_no_absent_card(machine: SoundMachine) -> None:
    async with following(Followed(machine)) as made:
        await made.until(lambda: is_known(made))
        before = set(Path("/proc/self/fd").iterdir())
        for _ in range(20):
            machine.plug(RECORDINGS / "usb.json", 0, **SERIAL)
            await made.until(lambda: made.is_there(NAME))
            machine.unplug(0)
            await made.until(lambda: made.is_away(NAME))
            gone = machine.sys / "devices/pci0000:00/0000:00:04.0/usb1/gone-0-1-1"
            gone.rename(gone.with_name(f"away-{made.cards.unplugs}"))
        assert len(made.graph.view().cards) == 1
        # Fewer is fine: what tests before this one left open may be collected at any time.
        assert set(Path("/proc/self/fd").iterdir()) <= before
