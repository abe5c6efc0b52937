"""The file is followed: edits, swapped links, half-written and missing files."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from liken_audio.graph.device_graph import DeviceGraph
from liken_audio.graph.model import Source
from liken_audio.virtual import watcher
from liken_audio.virtual.cards import VirtualCardsError
from liken_audio.virtual.watcher import VirtualCards


def text(pcm_id: str, *, volume: int = 87) -> str:
    return f"""
cards:
- bus: pci
  path: "0000:00:1f.3"
  pcms:
  - {{device: 0, id: {pcm_id}}}
  controls:
  - {{name: Master Playback Volume, type: integer, max: 87, values: [{volume}]}}
"""


class Followed:
    """A file of virtual cards and what the graph knows of it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.path.write_text(text("A"))
        self.graph = DeviceGraph([Source.VIRTUAL])
        self.cards = VirtualCards(self.graph, path)
        self.wakes = 0
        self.logs: list[Any] = []
        self.graph.subscribe(self._woken)

    def _woken(self) -> None:
        self.wakes += 1

    @property
    def ids(self) -> list[str]:
        return [pcm.id for card in self.graph.view().cards for pcm in card.pcms]

    async def settle(self) -> None:
        """Look twice, as a second of standing still would."""
        await self.cards.look()
        await self.cards.look()


@pytest.fixture
def followed(tmp_path: Path) -> Iterator[Followed]:
    """Return a file that was read once."""
    made = Followed(tmp_path / "cards.yaml")
    made.cards.load()
    with capture_logs() as logs:
        made.logs = logs
        yield made


def test_the_cards_are_in_the_graph_after_the_first_reading(followed: Followed) -> None:
    assert followed.ids == ["A"]
    assert not followed.graph.view().lost


def test_an_error_at_the_start_names_file_and_place(tmp_path: Path) -> None:
    path = tmp_path / "cards.yaml"
    path.write_text("card: []")
    with pytest.raises(VirtualCardsError, match=r"cards\.yaml: card: unknown key; did you mean"):
        VirtualCards(DeviceGraph([]), path).load()


@pytest.mark.parametrize("kind", ["missing", "folder", "binary"])
def test_a_file_that_cannot_be_read_at_the_start_says_why(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "cards.yaml"
    if kind == "folder":
        path.mkdir()
    if kind == "binary":
        path.write_bytes(b"cards: \xff")
    reasons = {"missing": "No such file", "folder": "directory", "binary": "no UTF-8 at byte 7"}
    with pytest.raises(VirtualCardsError, match=reasons[kind]):
        VirtualCards(DeviceGraph([]), path).load()


async def test_a_file_that_stays_is_read_once_and_wakes_nobody(followed: Followed) -> None:
    for _ in range(5):
        await followed.cards.look()
    assert (followed.cards.reads, followed.wakes) == (1, 1)


async def test_an_edit_counts_once_the_file_stands_still(followed: Followed) -> None:
    followed.path.write_text(text("B "))
    await followed.cards.look()
    assert followed.ids == ["A"]
    await followed.cards.look()
    assert followed.ids == ["B"]


async def test_a_file_that_is_still_being_written_is_not_taken_half(followed: Followed) -> None:
    whole = text("B") + text("C").removeprefix("\ncards:\n").replace("1f.3", "1f.4")
    for end in range(20, len(whole) + 1, 20):
        followed.path.write_text(whole[:end])
        await followed.cards.look()
        assert followed.ids == ["A"], "a cut text may be valid and lack a card"
    followed.path.write_text(whole)
    await followed.settle()
    assert followed.ids == ["B", "C"]
    assert followed.cards.errors == 0


async def test_an_edit_of_equal_length_in_a_new_file_is_seen(followed: Followed) -> None:
    """What editors and kubectl do: write beside it, then rename."""
    status = followed.path.stat()
    beside = followed.path.with_suffix(".new")
    beside.write_text(text("B"))
    os.utime(beside, ns=(status.st_atime_ns, status.st_mtime_ns))
    beside.rename(followed.path)
    await followed.settle()
    assert followed.ids == ["B"]


async def test_a_config_maps_swapped_link_is_seen(tmp_path: Path) -> None:
    """The kubelet swaps `..data`, a link to a folder; the file's own path never changes."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    (tmp_path / "..data").symlink_to("one")
    link = tmp_path / "cards.yaml"
    link.symlink_to("..data/cards.yaml")
    followed = Followed(link)
    followed.cards.load()
    (tmp_path / "two" / "cards.yaml").write_text(text("B"))
    (tmp_path / "..data_tmp").symlink_to("two")
    (tmp_path / "..data_tmp").rename(tmp_path / "..data")
    await followed.settle()
    assert followed.ids == ["B"]


async def test_a_broken_edit_keeps_the_cards_and_is_told_once(followed: Followed) -> None:
    followed.path.write_text("cards: [")
    for _ in range(6):
        await followed.cards.look()
    assert followed.ids == ["A"]
    assert (followed.cards.errors, followed.cards.reads) == (1, 1)
    (line,) = followed.logs
    assert "no YAML" in line["error"]
    followed.path.write_text(text("B"))
    await followed.settle()
    assert followed.ids == ["B"]


async def test_a_file_that_is_gone_keeps_the_cards_and_comes_back(followed: Followed) -> None:
    followed.path.unlink()
    for _ in range(3):
        await followed.cards.look()
    assert (followed.ids, followed.cards.errors) == (["A"], 1)
    followed.path.write_text(text("B"))
    await followed.settle()
    assert followed.ids == ["B"]


async def test_an_edit_that_says_the_same_wakes_nobody(followed: Followed) -> None:
    followed.path.write_text(text("A") + "# a remark\n")
    await followed.settle()
    assert (followed.cards.reads, followed.wakes) == (2, 1)


async def test_a_written_control_shows_in_the_graph_and_outlives_other_edits(
    followed: Followed,
) -> None:
    (card,) = followed.graph.view().cards
    await followed.cards.write_control(card, card.controls[0], [40])
    assert followed.graph.view().cards[0].controls[0].values == (40,)
    await followed.cards.write_control(card, card.controls[0], [40])
    assert followed.wakes == 2, "writing what is there changes nothing"
    followed.path.write_text(text("B"))
    await followed.settle()
    assert (followed.ids, followed.graph.view().cards[0].controls[0].values) == (["B"], (40,))


async def test_a_refused_write_changes_nothing(followed: Followed) -> None:
    (card,) = followed.graph.view().cards
    with pytest.raises(OSError, match="takes 0 to 87"):
        await followed.cards.write_control(card, card.controls[0], [88])
    assert followed.wakes == 1


async def test_run_reads_the_file_and_follows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "POLL_SECONDS", 0.001)
    followed = Followed(tmp_path / "cards.yaml")
    changed = asyncio.Event()
    followed.graph.subscribe(changed.set)
    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(followed.cards.run())
        await changed.wait()
        assert followed.ids == ["A"]
        changed.clear()
        followed.path.write_text(text("B"))
        await changed.wait()
        assert followed.ids == ["B"]
        running.cancel()


async def test_run_ends_with_the_error_of_the_first_reading(tmp_path: Path) -> None:
    with pytest.raises(VirtualCardsError, match="No such file"):
        await VirtualCards(DeviceGraph([]), tmp_path / "cards.yaml").run()
