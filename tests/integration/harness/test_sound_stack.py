"""The harness's own PipeWire: private, restartable, and what plays on it is measured."""

from pathlib import Path

from tests.harness.processes import Programs
from tests.harness.sound_stack import SoundStack
from tests.harness.tone import Recorder, write_tone


def test_a_tone_is_heard_on_its_sink_and_on_no_other(
    sound_stack: SoundStack, workspace: Path
) -> None:
    sound_stack.make_null_node("speakers")
    sound_stack.make_null_node("headphones")
    write_tone(workspace / "tone.wav", 440)
    with Programs(workspace) as programs:
        recorders = [Recorder(sound_stack, programs, name) for name in ("speakers", "headphones")]
        for recorder in recorders:
            recorder.start()
        sound_stack.run("pw-play", "--target=speakers", str(workspace / "tone.wav"))
        speakers, headphones = [recorder.stop() for recorder in recorders]
    assert speakers.is_tone(440), str(speakers)
    assert headphones.is_silent, str(headphones)


def test_nodes_outlive_wireplumber_and_not_pipewire(sound_stack: SoundStack) -> None:
    sound_stack.make_null_node("speakers")
    sound_stack.restart_wireplumber()
    assert "speakers" in sound_stack.nodes()
    sound_stack.restart_pipewire()
    assert "speakers" not in sound_stack.nodes()


def test_wireplumber_brings_no_hardware(sound_stack: SoundStack) -> None:
    assert set(sound_stack.nodes()) <= {"Dummy-Driver", "Freewheel-Driver"}
