"""One look at a real PipeWire, and at one that is away or hangs."""

from pathlib import Path

import pytest

from liken_audio.pipewire.census import Census
from liken_audio.pipewire.look import HangsError, NoAnswerError, look, look_until
from tests.harness.sound_stack import SoundStack


async def test_a_look_sees_who_is_there(sound_stack: SoundStack) -> None:
    sound_stack.make_null_node("hall", device="kitchen-hall")
    seen = await look(str(sound_stack.remote))
    assert seen.version.startswith("1.")
    assert seen.has_session_manager
    assert [(each.name, each.device) for each in seen.sinks] == [("hall", "kitchen-hall")]


async def test_a_server_that_is_away_is_told_from_one_that_hangs(sound_stack: SoundStack) -> None:
    with pytest.raises(NoAnswerError, match="can't connect"):
        await look(str(sound_stack.folder / "none"))
    with sound_stack.pipewire.frozen(), pytest.raises(HangsError, match="no answer within 1 s"):
        await look(str(sound_stack.remote), 1.0)


async def test_looking_ends_when_it_is_so_or_the_time_is_up(workspace: Path) -> None:
    versions = iter(["1", "2", "3"])

    async def see() -> Census:
        return Census(version=next(versions, "9"))

    assert await look_until(lambda seen: seen.version == "2", see, 30)
    assert next(versions) == "3"
    assert not await look_until(lambda seen: seen.version == "none", see, 0.3)
