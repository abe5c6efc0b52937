"""Keys, texts and capabilities of mixer controls."""

import difflib
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liken_audio.graph.model import Control, ControlType, Decibel
from liken_audio.resources.controls import (
    MAX_CONTROLS,
    capability,
    closest,
    keyed,
    parse,
    subset,
    text,
)
from tests.builders import control

ODD_NAMES = [
    "MISSION USB Audio 2.0 ",
    "D10s ",
    "E30 ",
    "Mic Boost (+20dB)",
    "Mic1-Boost (30dB)",
    "AMic1/DMic Auto Detect",
    "Call DTM #",
    "HDMI/DP,pcm=3 Jack",
    "Loudness",
]
"""Names of real cards that broke text parsers (U40, U52)."""


def level(
    name: str = "Master Playback Volume", low: int = 0, high: int = 87, **more: object
) -> Control:
    fields: dict[str, object] = {"values": (20, 20), "channels": 2, **more}
    return control(name, type=ControlType.INTEGER, minimum=low, maximum=high, **fields)


def choice(*items: str, **more: object) -> Control:
    fields: dict[str, object] = {"values": (0,), **more}
    return control("Input Source", type=ControlType.ENUMERATED, items=items, **fields)


def test_a_key_is_the_kernels_name_exactly() -> None:
    assert list(keyed([control(name) for name in ODD_NAMES])) == ODD_NAMES


def test_equal_names_get_keys_of_their_own() -> None:
    """Raw duplicates with one index exist: `Master Playback Volume` twice with index 0."""
    controls = [
        control("Headphone"),
        control("Headphone", index=1),
        control("Master"),
        control("Master"),
        control("Master"),
    ]
    assert list(keyed(controls)) == [
        "Headphone",
        "Headphone,index=1",
        "Master",
        "Master,index=0,rank=2",
        "Master,index=0,rank=3",
    ]


def test_a_name_that_looks_like_anothers_key_loses_neither() -> None:
    controls = [control("A", index=1), control("A,index=1")]
    assert [one.name for one in keyed(controls).values()] == ["A", "A,index=1"]


@given(st.lists(st.tuples(st.text("aA 0,=xé\0", max_size=4), st.integers(0, 2)), max_size=12))
def test_no_control_is_lost_whatever_the_names(names: list[tuple[str, int]]) -> None:
    controls = [control(name, index=index) for name, index in names]
    assert list(keyed(controls).values()) == controls


@pytest.mark.parametrize(
    ("word", "value"), [("on", 1), ("off", 0), ("True", 1), ("no", 0), ("1", 1)]
)
def test_a_switch_is_on_or_off(word: str, value: int) -> None:
    assert parse(word, control("A", channels=2)) == (value, value)


def test_a_level_is_for_all_channels_or_one_for_each() -> None:
    assert parse("40", level()) == (40, 40)
    assert parse("40, 42", level()) == (40, 42)
    assert parse(" 40  42 ", level()) == (40, 42)


def test_channels_that_differ_are_shown_side_by_side() -> None:
    assert text(level(), (80, 75)) == "80 75"
    assert text(level(), (80, 80)) == "80"
    assert text(control("A", channels=2), (1, 0)) == "on off"
    assert parse("on off", control("A", channels=2)) == (1, 0)
    assert text(choice("Mic", "Rear Mic", channels=2, values=(0, 1)), (0, 1)) == "Mic,Rear Mic"


def test_an_item_may_have_commas_and_spaces_in_its_name() -> None:
    assert parse("Line, rear", choice("Mic", "Line, rear")) == (1,)


def test_items_may_differ_by_channel() -> None:
    assert parse("Mic,Line", choice("Mic", "Line", channels=2, values=(0, 0))) == (0, 1)


@pytest.mark.parametrize(
    ("wrong", "one", "right"),
    [
        pytest.param("88", level(), "from 0 to 87", id="above-the-range"),
        pytest.param("-1", level(), "from 0 to 87", id="below-the-range"),
        pytest.param("loud", level(), "from 0 to 87", id="no-number"),
        pytest.param("1_0", level(), "from 0 to 87", id="no-number-to-people"),
        pytest.param("٣", level(), "from 0 to 87", id="digits-of-another-script"),
        pytest.param("50%", level(), "from 0 to 87", id="percent"),
        pytest.param("9" * 5_000, level(), "from 0 to 87", id="very-long"),
        pytest.param("1 2 3", level(), "all channels or 2", id="too-many-side-by-side"),
        pytest.param("", level(), "from 0 to 87", id="nothing"),
        pytest.param("1,2,3", level(), "all channels or 2", id="too-many-channels"),
        pytest.param("5", level(step=2), "steps of 2", id="between-steps"),
        pytest.param("maybe", control("A"), "'on' nor 'off'", id="no-switch"),
        pytest.param("mic", choice("Mic", "Line"), "'Mic', 'Line'", id="no-item"),
        pytest.param(",", level(), "from 0 to 87", id="only-a-comma"),
    ],
)
def test_what_can_not_be_names_what_can(wrong: str, one: Control, right: str) -> None:
    with pytest.raises(ValueError, match=right):
        parse(wrong, one)


@pytest.mark.parametrize("name", ODD_NAMES)
def test_odd_names_survive_the_way_from_spec_to_status(name: str) -> None:
    """U52: key and value copied from status name the same element and the same value."""
    one = level(name)
    (key,) = keyed([one])
    assert parse(text(one, (3, 5)), keyed([one])[key]) == (3, 5)


def test_a_value_outside_its_own_range_is_shown_as_it_is() -> None:
    """U43: range 0-50, value 67, maximum 0.00 dB."""
    one = level(high=50, values=(67,), channels=1, max_decibels=Decibel(0.0))
    assert text(one, (67,)) == "67"
    assert capability(one)["maxDecibels"] == 0.0


def test_an_item_number_beyond_the_items_is_shown_as_a_number() -> None:
    assert text(choice("Mic", "Line"), (7,)) == "7"


def test_a_capability_tells_type_range_gain_and_what_forbids_setting() -> None:
    one = level(
        step=3,
        min_decibels=Decibel(-65.25),
        max_decibels=Decibel(0.0),
        is_locked=True,
        is_inactive=True,
    )
    assert capability(one) == {
        "type": "integer",
        "channels": 2,
        "min": 0,
        "max": 87,
        "step": 3,
        "minDecibels": -65.25,
        "maxDecibels": 0.0,
        "locked": True,
        "inactive": True,
    }
    assert capability(choice("Mic", "Line", is_writable=False, is_volatile=True)) == {
        "type": "enumerated",
        "channels": 1,
        "values": ["Mic", "Line"],
        "readOnly": True,
        "volatile": True,
    }


def test_a_name_that_differs_only_in_spaces_is_the_one_suggestion() -> None:
    """U40: YAML editors and people trim."""
    known = keyed([control(name) for name in ODD_NAMES])
    assert closest("MISSION USB Audio 2.0", known) == ["MISSION USB Audio 2.0 "]


def test_a_wrong_name_gets_the_three_closest() -> None:
    names = [
        "Master Playback Volume",
        "Master Playback Switch",
        "Headphone Playback Volume",
        "Loopback",
    ]
    near = closest("master playback volumes", keyed([control(name) for name in names]))
    assert len(near) == 3
    assert near[0] == "Master Playback Volume"


def test_a_wrong_name_is_compared_letter_by_letter_with_few_of_a_thousand(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """U50: on a card of 1,235 controls a wrong name must not hold up all else."""
    compared: list[int] = []
    usual = difflib.get_close_matches

    def counted(word: str, names: Sequence[str], **more: Any) -> list[str]:
        compared.append(len(names))
        return usual(word, names, **more)

    monkeypatch.setattr(difflib, "get_close_matches", counted)
    names = [f"WSA_CODEC_DMA_RX_{n} Voice Mixer Switch" for n in range(1_234)]
    known = keyed([control(name) for name in [*names, "Speaker Playback Volume"]])
    for _ in range(2):
        assert closest("speaker playbak volume", known)[0] == "Speaker Playback Volume"
    assert len(compared) == 1
    assert compared[0] <= 32


def test_a_thousand_controls_are_listed_within_bounds() -> None:
    """U50: 1,235 controls on one card; what sets loudness comes first."""
    routes = [
        choice(*(f"Route {n} of a long list" for n in range(20)), index=n) for n in range(1_200)
    ]
    levels = [level(f"Speaker {n} Playback Volume") for n in range(35)]
    known = keyed([*routes, *levels])
    listed = subset(known, {})
    assert len(listed) <= MAX_CONTROLS
    assert {f"Speaker {n} Playback Volume" for n in range(35)} <= set(listed)
    body = {key: capability(one) for key, one in listed.items()}
    assert len(json.dumps(body)) < 128 * 1024


def test_a_declared_control_is_listed_whatever_its_rank() -> None:
    known = keyed([control(f"Route {n}") for n in range(MAX_CONTROLS + 50)])
    last = list(known)[-1]
    assert last not in subset(known, {})
    assert last in subset(known, {last: "on"})


def test_a_choice_of_a_thousand_items_hides_no_other_control() -> None:
    huge = choice(*(f"{n:04} {'x' * 58}" for n in range(1_024)))
    known = keyed([huge, level(), control("Loudness")])
    listed = subset(known, {"Input Source": "0000"})
    assert list(listed) == ["Master Playback Volume", "Loudness"]


def test_the_listed_controls_keep_the_cards_order() -> None:
    known = keyed([control("Zoom"), level(), control("Alpha")])
    assert list(subset(known, {"Alpha": "on"})) == list(known)
