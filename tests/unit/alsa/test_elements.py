"""What an element is to us follows from its interface, type and name."""

from typing import Any

import pytest

from liken_audio.alsa import elements
from liken_audio.alsa.kernel import Access, ElementId, ElementInfo, ElementType, Interface
from liken_audio.graph.model import ControlType

READ_WRITE = Access.READ | Access.WRITE


def element(name: str, **changes: Any) -> ElementInfo:
    """Return a mixer's switch, with changes to it or to its id."""
    identity: dict[str, Any] = {"number": 4, "interface": Interface.MIXER, "device": 0, "index": 0}
    identity |= {key: changes.pop(key) for key in list(changes) if key in identity}
    facts: dict[str, Any] = {"type": ElementType.BOOLEAN, "access": READ_WRITE, "count": 1}
    facts |= {"maximum": 1}
    return ElementInfo(id=ElementId(name=name, **identity), **{**facts, **changes})


KINDS = {
    "a jack": ({"interface": Interface.CARD}, "Headphone Jack", "jack"),
    "a jack with a comma": ({"interface": Interface.CARD}, "HDMI/DP,pcm=3 Jack", "jack"),
    "a mixer's switch called a jack": ({}, "Surround Jack", "control"),
    "a jack's mode": (
        {"interface": Interface.CARD, "type": ElementType.ENUMERATED},
        *("Rear Mic Jack Mode", "control"),
    ),
    "an ELD": ({"interface": Interface.PCM, "type": ElementType.BYTES}, "ELD", "eld"),
    "an ELD with a prefix": (
        {"interface": Interface.PCM, "type": ElementType.BYTES},
        *("HDMI0 ELD", "eld"),
    ),
    "a mixer's blob": ({"type": ElementType.BYTES}, "ELD", ""),
    "a channel map": (
        {"interface": Interface.PCM, "type": ElementType.INTEGER},
        *("Playback Channel Map", "map"),
    ),
    "a volume": ({"type": ElementType.INTEGER}, "D10s ", "control"),
    "a wide integer": ({"type": ElementType.INTEGER64}, "Rate", "control"),
    "status bits": ({"type": ElementType.IEC958}, "IEC958 Playback Default", ""),
    "one of a PCM": ({"interface": Interface.PCM}, "PCM Notify", ""),
    "one without values": ({"count": 0}, "Empty", ""),
    "one of no type": ({"type": 99}, "New", ""),
}


@pytest.mark.parametrize(("changes", "name", "kind"), KINDS.values(), ids=KINDS)
def test_an_element_is_one_thing_or_nothing(changes: dict[str, Any], name: str, kind: str) -> None:
    info = element(name, **changes)
    asked = {
        "jack": elements.is_jack(info),
        "eld": elements.is_eld(info),
        "map": elements.is_channel_map(info),
        "control": elements.is_control(info),
    }
    assert [name for name, is_it in asked.items() if is_it] == ([kind] if kind else [])


def test_a_jack_that_cannot_be_read_counts_as_plugged() -> None:
    info = element("Mic Jack", interface=Interface.CARD, index=1)
    assert elements.jack(info, None).is_plugged
    assert not elements.jack(info, (0,)).is_plugged
    assert elements.jack(info, (1,)).index == 1


FLAGS = {
    "read and write": (READ_WRITE, ()),
    "read only": (Access.READ, ("not writable",)),
    "locked": (READ_WRITE | Access.LOCK, ("locked",)),
    "inactive": (READ_WRITE | Access.INACTIVE, ("inactive",)),
    "volatile": (READ_WRITE | Access.VOLATILE, ("volatile",)),
    "of a user, with TLV": (READ_WRITE | 1 << 29 | 1 << 4, ()),
}


@pytest.mark.parametrize(("access", "flags"), FLAGS.values(), ids=FLAGS)
def test_access_flags_are_shown_as_what_they_are(access: int, flags: tuple[str, ...]) -> None:
    control = elements.control(element("X", access=access), (1,), (), b"")
    shown = {
        "not writable": not control.is_writable,
        "locked": control.is_locked,
        "inactive": control.is_inactive,
        "volatile": control.is_volatile,
    }
    assert tuple(name for name, is_set in shown.items() if is_set) == flags


def test_a_value_outside_its_own_range_is_kept() -> None:
    info = element("A.Mstr Vol Volume", type=ElementType.INTEGER, maximum=50)
    tlv = bytes.fromhex("0400000008000000") + (-5000).to_bytes(4, "little", signed=True) + bytes(4)
    control = elements.control(info, (67,), (), tlv)
    assert (control.values, control.maximum, control.max_decibels) == ((67,), 50, 0.0)


def test_an_enumeration_that_cannot_be_read_still_has_its_items() -> None:
    info = element("TL I2S Reference", type=ElementType.ENUMERATED, maximum=2)
    items = ("None", "Left Channel", "Right Channel")
    control = elements.control(info, None, items, b"")
    assert (control.type, control.items, control.values) == (ControlType.ENUMERATED, items, None)


def test_a_control_knows_the_kernels_number_of_it() -> None:
    assert elements.control(element("X"), (1,), (), b"").number == 4
