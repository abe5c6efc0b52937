"""`liken-audio tone` on a real PipeWire: heard where it was meant, and nowhere else."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.node import TREE
from tests.harness.processes import Programs, python_cache
from tests.harness.sound_stack import SoundStack
from tests.harness.tone import Recorder


@pytest.fixture
def stack(sound_stack: SoundStack) -> SoundStack:
    sound_stack.make_null_node("hall", device="kitchen-hall")
    sound_stack.make_null_node("bath")
    return sound_stack


@pytest.fixture
def programs(workspace: Path) -> Iterator[Programs]:
    with Programs(workspace) as made:
        yield made


def play(stack: SoundStack, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "liken_audio",
            "tone",
            *arguments,
            f"--pipewire-remote={stack.remote}",
        ],
        env={**stack.environment, "PYTHONPATH": str(TREE), **python_cache()},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_tone_is_heard_at_the_named_sink_alone(stack: SoundStack, programs: Programs) -> None:
    recorders = [Recorder(stack, programs, name) for name in ("hall", "bath")]
    for each in recorders:
        each.start()
    done = play(stack, "kitchen-hall", "--frequency=660", "--seconds=1.5")
    hall, bath = (each.stop() for each in recorders)
    assert (done.returncode, done.stdout) == (0, "played 660 Hz for 1.5 s on kitchen-hall\n")
    assert hall.is_tone(660), str(hall)
    assert bath.is_silent, str(bath)


def test_a_muted_sink_is_said_to_be(stack: SoundStack) -> None:
    nodes = [each for each in stack.objects() if str(each["type"]).endswith(":Node")]
    number = next(each["id"] for each in nodes if each["info"]["props"]["node.name"] == "bath")
    stack.run("pw-cli", "set-param", str(number), "Props", "{ mute: true }")
    done = play(stack, "bath", "--seconds=0.2")
    assert "the sink is muted" in done.stdout, done


def test_an_unknown_sink_is_refused_with_the_names_of_those_there_are(stack: SoundStack) -> None:
    done = play(stack, "bedroom")
    assert done.returncode == 1
    assert "there are: bath, kitchen-hall" in done.stderr


def test_without_wireplumber_the_tone_is_said_to_be_played_nowhere(stack: SoundStack) -> None:
    stack.wireplumber.kill()
    done = play(stack, "bath")
    assert done.returncode == 1
    assert "WirePlumber" in done.stderr
    assert "doctor" in done.stderr


def test_without_pipewire_it_says_so(stack: SoundStack) -> None:
    stack.wireplumber.kill()
    stack.pipewire.kill()
    done = play(stack, "bath")
    assert done.returncode == 1
    assert "PipeWire at" in done.stderr
