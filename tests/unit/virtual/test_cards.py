"""The file of virtual cards: what it can say, and that it can't be misunderstood."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from liken_audio.graph.eld import decode as decode_eld
from liken_audio.graph.endpoints import endpoints
from liken_audio.graph.model import (
    Card,
    Control,
    ControlType,
    Direction,
    Fault,
    GraphView,
    Jack,
    NodeRecipe,
    UsbIdentity,
)
from liken_audio.virtual.cards import POSITIONS, VirtualCardsError, decode

DOCS = Path(__file__).parents[3] / "docs" / "virtual-cards.md"

MINIMAL = """
cards:
- bus: pci
  path: "0000:00:1f.3"
  pcms:
  - {device: 0, id: Analog}
"""


def only(text: str) -> Card:
    (card,) = decode(text).cards
    return card


def card_with(**changes: object) -> str:
    """Return the text of a minimal card with changed keys; None leaves one out."""
    card: dict[str, object] = {
        "bus": "pci",
        "path": "0000:00:1f.3",
        "pcms": [{"device": 0, "id": "Analog"}],
    }
    merged = {key: value for key, value in (card | changes).items() if value is not None}
    return yaml.safe_dump({"cards": [merged]})


def pcm_with(**changes: object) -> str:
    return card_with(pcms=[{"device": 0, "id": "Analog"} | changes])


def control_with(**changes: object) -> str:
    return card_with(controls=[{"name": "X", "type": "boolean"} | changes])


def complaint(text: str) -> str:
    with pytest.raises(VirtualCardsError) as caught:
        decode(text)
    return str(caught.value)


def documented_example() -> str:
    return DOCS.read_text(encoding="utf-8").split("```yaml\n")[1].split("```")[0]


def test_the_documented_example_makes_the_devices_that_the_page_names() -> None:
    view = GraphView(cards=decode(documented_example()).cards)
    found = {each.name: each for each in endpoints(view, "kitchen")}
    page = DOCS.read_text(encoding="utf-8")
    assert len(found) == 5
    assert all(f"`{name}`" in page for name in found)
    screen = found["kitchen-pci-0000-00-1f-3-hdmi-0"]
    assert screen.monitor is not None
    assert screen.monitor.name == "LG ULTRAWIDE"
    assert screen.jack == Jack(name="HDMI/DP,pcm=3 Jack", is_plugged=True)
    empty = found["kitchen-pci-0000-00-1f-3-hdmi-1"]
    assert empty.fault is Fault.NO_MONITOR
    microphone = found["kitchen-pci-0000-00-1f-3-alc257-analog-capture"]
    assert [control.name for control in microphone.controls] == ["Input Source"]


def test_the_page_lists_every_key() -> None:
    """A key that decodes must be documented: the error for an unknown one lists them all."""
    page = DOCS.read_text(encoding="utf-8")
    texts = [card_with(x=1), pcm_with(x=1), control_with(x=1), card_with(jacks=[{"x": 1}])]
    for text in texts:
        for key in complaint(text).split("Known: ")[1].split(", "):
            assert f"`{key}`" in page, key


def test_a_card_needs_no_more_than_its_place_and_a_pcm() -> None:
    card = only(MINIMAL)
    assert (card.number, card.id, card.driver, card.name) == (
        *(0, "Virtual0", "virtual"),
        "Virtual card 0",
    )
    assert (card.bus, card.path, card.is_present) == ("pci", "0000:00:1f.3", True)
    (pcm,) = card.pcms
    assert (pcm.device, pcm.id, pcm.name, pcm.direction) == (
        0,
        "Analog",
        "Analog",
        Direction.PLAYBACK,
    )
    assert (pcm.channels, pcm.rate_hz, pcm.eld) == (2, 48_000, None)


def test_no_cards_are_cards_too() -> None:
    assert decode("cards: []").cards == ()
    assert only(card_with(pcms=[])).pcms == ()


def test_cards_are_numbered_by_their_place_unless_they_say_otherwise() -> None:
    other = {"bus": "platform", "path": "soc:sound", "pcms": []}
    text = yaml.safe_dump(
        {"cards": [other, other | {"path": "b", "number": 5}, other | {"path": "c"}]}
    )
    assert [card.number for card in decode(text).cards] == [0, 5, 2]


def test_a_usb_card_says_what_its_descriptors_say() -> None:
    usb = {"vendor": "20b1", "product": "000a", "serial": "A 1", "port": "1-1.2"}
    usb |= {"vendorName": "XMOS", "productName": "HIFI DSD"}
    card = only(card_with(bus="usb", path=None, usb=usb))
    assert card.path == "1-1.2"
    assert card.usb == UsbIdentity(
        vendor="20b1",
        product="000a",
        serial="A 1",
        port="1-1.2",
        vendor_name="XMOS",
        product_name="HIFI DSD",
    )


def test_an_unplugged_card_is_kept_as_away() -> None:
    assert not only(card_with(present=False)).is_present


def test_an_eld_may_be_written_with_spaces_and_line_breaks() -> None:
    text = "10000800 6c100001 00080000 00000000 1e6d095b\n4c4720554c5452415749444509 070700 00"
    (pcm,) = only(pcm_with(eld=text)).pcms
    assert pcm.eld is not None
    assert decode_eld(pcm.eld) is not None
    (pcm,) = only(pcm_with(eld="")).pcms
    assert pcm.eld == b""


@pytest.mark.parametrize("channels", POSITIONS)
def test_the_recipe_of_a_sink_names_every_channel(channels: int) -> None:
    (pcm,) = only(pcm_with(channels=channels, rate=96_000)).pcms
    assert len(POSITIONS[channels]) == channels
    assert pcm.recipe == NodeRecipe(
        factory="support.null-audio-sink",
        properties=(
            ("media.class", "Audio/Sink"),
            ("audio.channels", str(channels)),
            ("audio.position", f"[ {' '.join(POSITIONS[channels])} ]"),
            ("audio.rate", "96000"),
        ),
    )


def test_the_recipe_of_a_microphone_is_a_virtual_source() -> None:
    (pcm,) = only(pcm_with(direction="capture", channels=1)).pcms
    assert dict(pcm.recipe.properties)["media.class"] == "Audio/Source/Virtual"
    assert dict(pcm.recipe.properties)["audio.position"] == "[ MONO ]"


def test_jacks_and_controls_are_as_the_kernel_shows_them() -> None:
    card = only(documented_example().split("\n- bus: usb")[0])
    assert card.jacks[0] == Jack(name="Headphone Jack", index=0, is_plugged=True)
    volume, switch, source = card.controls
    assert (volume.minimum, volume.maximum, volume.min_decibels, volume.max_decibels) == (
        0,
        87,
        -65.25,
        0,
    )
    assert volume.values == (87,)
    assert (switch.type, switch.channels, switch.values) == (ControlType.BOOLEAN, 2, (1, 1))
    assert (source.items, source.maximum, source.values) == (
        ("Front Mic", "Rear Mic", "Line"),
        2,
        (0,),
    )


def test_names_keep_every_letter() -> None:
    """U40, U52: a trailing space, a comma and a hash sign are part of the name."""
    names = ["MISSION USB Audio 2.0 ", "HDMI/DP,pcm=3 Jack", "Call DTM #", "Mic Boost (+20dB)"]
    controls = [{"name": name, "type": "boolean"} for name in names]
    assert [each.name for each in only(card_with(controls=controls)).controls] == names


def test_a_control_may_be_unreadable_or_outside_its_range() -> None:
    """U43, U44."""
    (unreadable,) = only(control_with(channels=2)).controls
    assert (unreadable.values, unreadable.channels) == (None, 2)
    (odd,) = only(control_with(type="integer", max=50, values=[67])).controls
    assert odd.values == (67,)


def test_flags_are_the_kernels() -> None:
    """U51."""
    flags = {"writable": False, "locked": True, "inactive": True, "volatile": True}
    (control,) = only(control_with(**flags)).controls
    assert control == Control(
        name="X",
        type=ControlType.BOOLEAN,
        is_writable=False,
        is_locked=True,
        is_inactive=True,
        is_volatile=True,
    )


TWO_CARDS = [
    {"bus": "platform", "path": "a", "number": 1, "pcms": []},
    {"bus": "platform", "path": "b", "number": 1, "pcms": []},
]
SAME_PLACE = [
    {"bus": "platform", "path": "a", "pcms": []},
    {"bus": "platform", "path": "a", "pcms": []},
]
TWO_PCMS = [{"device": 0, "id": "A"}, {"device": 0, "id": "B"}]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("", "top level: must be a mapping with the keys cards", id="empty"),
        pytest.param("{}", "cards: is missing", id="no-cards"),
        pytest.param("cards: 3", "cards: must be a list", id="cards-no-list"),
        pytest.param("card: []", "did you mean 'cards'?", id="top-key"),
        pytest.param("cards: [", "line 1, column 9: no YAML", id="no-yaml"),
        pytest.param(
            "cards: []\ncards: []", "line 1: the key 'cards' is there 2 times", id="twice"
        ),
        pytest.param(card_with(bus="pcie"), "cards[0].bus: must be another word", id="bus"),
        pytest.param(card_with(bus=None), "cards[0].bus: is missing", id="no-bus"),
        pytest.param(card_with(pcms=None), "cards[0].pcms: is missing", id="no-pcms"),
        pytest.param(card_with(path="1f.3"), 'a PCI address like "0000:00:1f.3"', id="pci"),
        pytest.param(card_with(path=None), "cards[0].path: is missing", id="no-path"),
        pytest.param(card_with(bus="platform", path=" "), "device path", id="empty-path"),
        pytest.param(card_with(bus="usb", path=None), "cards[0].usb: is missing", id="no-usb"),
        pytest.param(card_with(bus="usb"), "a USB card has usb.port", id="usb-path"),
        pytest.param(card_with(usb={}), "this one's bus is pci", id="usb-on-pci"),
        pytest.param(
            card_with(bus="usb", path=None, usb={"vendor": 2011}),
            'cards[0].usb.vendor: must be text, not an integer, write it in quotes: "2011"',
            id="unquoted-vendor",
        ),
        pytest.param(card_with(number=32), "cards[0].number: must be from 0 to 31", id="number"),
        pytest.param(card_with(present="yes"), "true or false, not text", id="present"),
        pytest.param(pcm_with(channels=3), "must be one of 1, 2, 4, 6, 8, not 3", id="channels"),
        pytest.param(pcm_with(rate=44.1), "cards[0].pcms[0].rate: must be an integer", id="rate"),
        pytest.param(pcm_with(direction="out"), "Known: playback, capture", id="direction"),
        pytest.param(pcm_with(direktion="capture"), "did you mean 'direction'?", id="pcm-key"),
        pytest.param(pcm_with(eld="10zz"), "cards[0].pcms[0].eld: must be bytes in hex", id="eld"),
        pytest.param(pcm_with(eld="", direction="capture"), "for playback", id="eld-capture"),
        pytest.param(pcm_with(device=None), "cards[0].pcms[0].device: is missing", id="device"),
        pytest.param(card_with(pcms=TWO_PCMS), "2 entries have the device", id="same-pcm"),
        pytest.param(yaml.safe_dump({"cards": TWO_CARDS}), "have the number 1", id="same-number"),
        pytest.param(yaml.safe_dump({"cards": SAME_PLACE}), "platform a", id="same-place"),
        pytest.param(control_with(type="bool"), "did you mean 'boolean'?", id="type"),
        pytest.param(control_with(max=3), "for integer controls", id="max-of-boolean"),
        pytest.param(control_with(type="integer"), "max: is missing", id="no-max"),
        pytest.param(control_with(type="integer", min=3, max=1), "from 3 to", id="max-under-min"),
        pytest.param(control_with(type="enumerated"), "items: is missing", id="no-items"),
        pytest.param(control_with(items=["a"]), "for enumerated controls", id="items"),
        pytest.param(
            control_with(values=[1]), "values[0]: must be true or false, not 1", id="value"
        ),
        pytest.param(
            control_with(type="enumerated", items=["a", "b"], values=["c"]),
            "must be one of a, b, not 'c'",
            id="item",
        ),
        pytest.param(control_with(values=[True], channels=2), "must be 2", id="value-count"),
        pytest.param(control_with(minDecibels=-3), "go together", id="decibels"),
    ],
)
def test_a_mistake_is_refused_with_its_place_and_what_is_right(text: str, message: str) -> None:
    assert message in complaint(text)


def test_a_key_that_is_there_twice_deep_inside_is_refused() -> None:
    assert "line 6: the key 'id' is there 2 times" in complaint(
        MINIMAL.replace("id: Analog", "id: A, id: B")
    )


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("cards: !!python/object:os.system {}", id="python-object"),
        pytest.param("cards: !!int ''", id="empty-int"),
        pytest.param("cards: 2026-99-99", id="no-date"),
        pytest.param("cards: !!timestamp x", id="no-timestamp"),
        pytest.param("? [1]\n: 2", id="list-as-key"),
        pytest.param("cards: &a [*a]", id="endless"),
        pytest.param("[" * 1000, id="deep"),
        pytest.param("cards: \0", id="control-letter"),
        pytest.param("cards: []\n--- {}", id="two-documents"),
        pytest.param("&a " + "x: " * 200, id="nonsense"),
    ],
)
def test_broken_yaml_is_never_more_than_an_error(text: str) -> None:
    complaint(text)


LETTERS = "ab01 :-#'\"{}[],&*!|>%@?\n\t\0\x85äß\u2028\ud800平\U0001f50a"
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(LETTERS, max_size=8)
trees = st.recursive(
    scalars,
    lambda children: (
        st.lists(children, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["cards", "bus", "path", "pcms", "usb", "controls", "jacks", "id", "x"]
            ),
            children,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.text(LETTERS, max_size=60) | trees.map(lambda tree: yaml.safe_dump({"cards": tree})))
def test_any_text_decodes_or_is_refused(text: str) -> None:
    try:
        cards = decode(text).cards
    except VirtualCardsError:
        return
    assert all(isinstance(card, Card) for card in cards)
