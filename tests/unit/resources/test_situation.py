"""The memory after writes that failed or went through."""

from liken_audio.resources.enforcement import Write
from liken_audio.resources.situation import Memory, control_field, write_failed, write_succeeded

WRITE = Write(wanted=(50,), before=None, at=0.0)


def test_a_failed_volume_is_as_if_never_written() -> None:
    memory = write_failed(Memory(volume=WRITE, mute=WRITE, has_rested=True), "volume", "busy")
    assert (memory.volume, memory.has_rested, memory.mute) == (None, False, WRITE)
    assert memory.failures == {"volume": "busy"}


def test_a_failed_mute_is_as_if_never_written() -> None:
    memory = write_failed(Memory(volume=WRITE, mute=WRITE, has_rested=True), "mute", "busy")
    assert (memory.volume, memory.mute, memory.has_rested) == (WRITE, None, True)


def test_a_failed_control_leaves_the_others() -> None:
    memory = write_failed(Memory(controls={"A": WRITE, "B": WRITE}), control_field("A"), "EIO")
    assert memory.controls == {"B": WRITE}


def test_a_write_that_went_through_ends_the_failure_of_its_field() -> None:
    memory = write_succeeded(Memory(failures={"volume": "x", "mute": "y"}), "volume")
    assert memory.failures == {"mute": "y"}
    assert write_succeeded(memory, "volume") is memory
