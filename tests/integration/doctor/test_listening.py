"""PipeWire and WirePlumber well, away, dead, hung, old: each made for real."""

import os
from pathlib import Path

import pytest

from liken_audio.doctor import listening
from liken_audio.doctor.facts import Reach
from tests.harness.sound_stack import SoundStack


async def test_a_sound_server_that_is_well_links_a_stream_and_keeps_nothing_of_it(
    sound_stack: SoundStack,
) -> None:
    before = set(sound_stack.nodes())
    found = await listening.server(str(sound_stack.remote))
    assert found.reach is Reach.ANSWERS
    assert found.version.startswith("1.")
    assert (found.has_session_manager, found.links_streams) == (True, True)
    assert set(sound_stack.nodes()) == before


async def test_a_server_that_is_away_dead_or_hung_is_told_apart(sound_stack: SoundStack) -> None:
    away = await listening.server(str(sound_stack.folder / "none"))
    assert away.reach is Reach.ABSENT
    with sound_stack.pipewire.frozen():
        assert (await listening.server(str(sound_stack.remote))).reach is Reach.SILENT
    sound_stack.wireplumber.kill()
    sound_stack.pipewire.kill()  # which leaves its socket
    assert (await listening.server(str(sound_stack.remote))).reach is Reach.REFUSES


async def test_a_wireplumber_that_is_missing_is_told_from_one_that_hangs(
    sound_stack: SoundStack,
) -> None:
    with sound_stack.wireplumber.frozen():
        hung = await listening.server(str(sound_stack.remote))
    assert hung.reach is Reach.ANSWERS
    assert (hung.has_session_manager, hung.links_streams) == (True, False)
    sound_stack.wireplumber.kill()
    missing = await listening.server(str(sound_stack.remote))
    assert (missing.reach, missing.has_session_manager) == (Reach.ANSWERS, False)
    assert missing.links_streams is None


async def test_versions_are_read_from_the_programs_themselves(
    sound_stack: SoundStack, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = ["pw-dump", "wireplumber", "setpriv", "no-such-program"]
    found = await listening.versions(programs)
    assert found.keys() == set(programs[:3])
    assert all(version[0].isdigit() for version in found.values()), found
    old = workspace / "pw-dump"
    old.write_text("#!/bin/sh\necho pw-dump\necho 'Linked with libpipewire 0.3.65'\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", f"{workspace}{os.pathsep}{os.environ['PATH']}")
    assert (await listening.versions(["pw-dump"])) == {"pw-dump": "0.3.65"}
