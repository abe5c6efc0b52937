"""Names of devices: what they are made of, and that nothing else moves them."""

import itertools
import re
from collections.abc import Iterable
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liken_audio.graph.model import Card, CardNumber, DeviceName, Direction, UsbIdentity
from liken_audio.graph.naming import device_name, device_names, has_own_serial
from tests.builders import (
    card,
    hdmi_pcm,
    microphone_pcm,
    pcm,
    speaker,
    speaker_card,
    usb_card,
    usb_identity,
)

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
HASHED = re.compile(r".*-[0-9a-f]{8}")


def names(node: str, *cards: Card, held: Iterable[str] = ()) -> list[str]:
    return [entry.name for entry in device_names(node, cards, frozenset(map(DeviceName, held)))]


def serial_card(serial: str, **changes: str) -> Card:
    identity = usb_identity(vendor="1234", product="5678", serial=serial, **changes)
    return usb_card(usb=identity)


def test_a_pci_pcm_is_named_by_node_address_and_id() -> None:
    assert names("kitchen", card(pcm(), hdmi_pcm())) == [
        "kitchen-pci-0000-00-1f-3-alc257-analog",
        "kitchen-pci-0000-00-1f-3-hdmi-0",
    ]


def test_a_usb_pcm_with_a_serial_is_named_without_the_node() -> None:
    assert names("kitchen", usb_card()) == ["usb-20b1-000a-dac51090305-usb-audio"]
    assert names("kitchen", usb_card()) == names("bedroom", usb_card())


def test_a_usb_pcm_without_a_serial_is_named_by_its_port() -> None:
    assert names("kitchen", serial_card("")) == ["kitchen-usb-1-1-2-usb-audio"]


def test_another_bus_is_named_with_its_device_path() -> None:
    hdmi = card(pcm(id="MAI PCM i2s-hifi-0"), bus="platform", path="soc/fef00700.hdmi")
    assert names("kitchen", hdmi) == ["kitchen-platform-soc-fef00700-hdmi-mai-pcm-i2s-hifi-0"]


def test_a_capture_pcm_that_shares_its_id_says_so() -> None:
    assert names("kitchen", card(pcm(), microphone_pcm())) == [
        "kitchen-pci-0000-00-1f-3-alc257-analog",
        "kitchen-pci-0000-00-1f-3-alc257-analog-capture",
    ]


def test_a_capture_pcm_with_an_id_of_its_own_does_not() -> None:
    assert names("kitchen", card(pcm(), microphone_pcm(id="DMIC"))) == [
        "kitchen-pci-0000-00-1f-3-alc257-analog",
        "kitchen-pci-0000-00-1f-3-dmic",
    ]


def test_pcms_of_one_direction_with_one_id_show_their_device_numbers() -> None:
    """snd-aloop has two PCMs `Loopback PCM`, each for both directions."""
    loopback = [
        pcm(id="Loopback PCM", device=device, direction=direction)
        for device in (0, 1)
        for direction in Direction
    ]
    expected = [
        f"kitchen-platform-snd-aloop-0-loopback-pcm-{text}"
        for text in ("0", "1", "capture-0", "capture-1")
    ]
    assert names("kitchen", card(*loopback, bus="platform", path="snd_aloop.0")) == expected


def test_renumbered_cards_keep_their_names() -> None:
    """U03: two HDMI cards and a DAC that come up in another order."""
    hdmi_0 = card(pcm(id="vc4 hdmi"), bus="platform", path="fef00700.hdmi")
    hdmi_1 = card(pcm(id="vc4 hdmi"), bus="platform", path="fef05700.hdmi")
    hifiberry = card(pcm(id="HiFi pcm512x"), bus="platform", path="soc:sound")
    first = [hdmi_0, hifiberry, hdmi_1]
    second = [hdmi_0, hdmi_1, hifiberry]
    assert len(set(names("kitchen", *numbered(first)))) == 3
    assert names("kitchen", *numbered(first)) == names("kitchen", *numbered(second))


def numbered(cards: Iterable[Card]) -> list[Card]:
    return [replace(each, number=CardNumber(number)) for number, each in enumerate(cards)]


def test_identical_cards_behind_one_hub_are_told_apart_by_their_ports() -> None:
    cards = [serial_card("", port=f"1-1.{socket}") for socket in (1, 2, 3)]
    assert names("kitchen", *numbered(cards)) == [
        "kitchen-usb-1-1-1-usb-audio",
        "kitchen-usb-1-1-2-usb-audio",
        "kitchen-usb-1-1-3-usb-audio",
    ]


@pytest.mark.parametrize(
    ("serial", "product"),
    [
        pytest.param("0", "DAC", id="one-zero"),
        pytest.param("00000000", "DAC", id="all-zeros"),
        pytest.param("1111", "DAC", id="one-digit"),
        pytest.param("0123456789AB", "DAC", id="counter-in-hex"),
        pytest.param("0123456789", "DAC", id="counter"),
        pytest.param("123456789", "DAC", id="counter-from-one"),
        pytest.param("1234567890", "DAC", id="counter-that-wraps"),
        pytest.param("", "DAC", id="none"),
        pytest.param("  ", "DAC", id="spaces"),
        pytest.param("USB_Sound_Device", "USB Sound Device", id="the-products-text"),
        pytest.param("XMOS", "DAC", id="the-makers-text"),
        pytest.param("Serial Number", "DAC", id="what-the-field-is-called"),
        pytest.param("To Be Filled By O.E.M.", "DAC", id="a-field-that-nobody-filled"),
        pytest.param("N/A", "DAC", id="a-blank"),
        pytest.param("XMOS DAC", "DAC", id="both-texts"),
        pytest.param("20b1_DAC", "DAC", id="vendor-and-product"),
        pytest.param("Sound", "USB Sound Device", id="a-word-of-the-product"),
    ],
)
def test_a_serial_that_is_no_units_own_is_not_trusted(serial: str, product: str) -> None:
    assert not has_own_serial(usb_identity(serial=serial, product_name=product))


@pytest.mark.parametrize(
    ("serial", "product"),
    [
        pytest.param("DAC51090305", "DAC", id="letters-and-digits"),
        pytest.param("51090305", "ADI-2 DAC (51090305)", id="inside-the-products-text"),
        pytest.param("0001", "DAC", id="low-number"),
        pytest.param("012", "DAC", id="too-short-for-a-counter"),
        pytest.param("F" * 126, "DAC", id="very-long"),
    ],
)
def test_a_serial_of_its_own_is_trusted(serial: str, product: str) -> None:
    assert has_own_serial(usb_identity(serial=serial, product_name=product))


def test_a_serial_that_two_present_cards_show_is_not_trusted() -> None:
    one, two = numbered([serial_card("A1", port="1-1"), serial_card("A1", port="1-2")])
    assert names("kitchen", one, two) == ["kitchen-usb-1-1-usb-audio", "kitchen-usb-1-2-usb-audio"]


def test_a_claimed_device_keeps_its_name_when_its_twin_is_plugged_in() -> None:
    one, two = numbered([serial_card("A1", port="1-2"), serial_card("A1", port="1-1")])
    claimed = "usb-1234-5678-a1-usb-audio"
    assert names("kitchen", two, one, held=[claimed]) == ["kitchen-usb-1-1-usb-audio", claimed]


def test_a_card_that_was_plugged_into_another_port_keeps_its_name() -> None:
    """The old place still counts as away for its grace; the device is there once."""
    away = replace(serial_card("A1", port="1-1"), is_present=False)
    back = serial_card("A1", port="1-2")
    for cards in itertools.permutations([away, back]):
        (entry,) = device_names("kitchen", cards)
        assert entry.name == "usb-1234-5678-a1-usb-audio"
        assert entry.card is back


def test_one_device_with_two_cards_is_no_twin_of_itself() -> None:
    identity = usb_identity()
    cards = [usb_card(pcm(id="Main"), usb=identity), usb_card(pcm(id="Phones"), usb=identity)]
    assert names("kitchen", *numbered(cards)) == [
        "usb-20b1-000a-dac51090305-main",
        "usb-20b1-000a-dac51090305-phones",
    ]


@pytest.mark.parametrize("serial", ["A1/B2 C3:ÄÖ", "F" * 126, "aB1", "A 1", "a_1", "12-", "平5"])
def test_any_serial_gives_a_label_that_is_the_same_on_every_node(serial: str) -> None:
    """U60."""
    (name,) = names("kitchen", serial_card(serial))
    assert LABEL.fullmatch(name)
    assert HASHED.fullmatch(name)
    assert len(name) <= 63
    assert names("bedroom", serial_card(serial)) == [name]


def test_serials_that_look_alike_once_cleaned_make_different_names() -> None:
    """U60."""
    alike = ["A1/B2", "A1 B2", "A1-B2", "A1:B2", "a1-b2/", "A1_B2", "A1-b2", "A1-B2Ä", "A1-B2Ö"]
    made = [name for serial in alike for name in names("kitchen", serial_card(serial))]
    assert len(set(made)) == len(alike)


def test_two_present_cards_that_come_to_one_name_get_a_hash_each() -> None:
    cards = [
        card(bus="platform", path="soc/sound.1", number=CardNumber(0)),
        card(bus="platform", path="soc/sound-1", number=CardNumber(1)),
    ]
    made = names("kitchen", *cards)
    assert len(set(made)) == 2
    assert all(HASHED.fullmatch(name) for name in made)
    renumbered = [replace(each, number=CardNumber(7 - each.number)) for each in cards]
    assert names("kitchen", *renumbered) == made


def test_even_equal_whereabouts_lose_no_pcm() -> None:
    assert len(set(names("kitchen", *numbered([card(), card()])))) == 2


@pytest.mark.parametrize(
    "node",
    ["kitchen.example.org", "ip-10-0-0-1.eu-central-1.compute.internal", "n" * 63, "a.b" * 60],
)
def test_a_node_name_with_dots_or_great_length_gives_labels(node: str) -> None:
    made = names(node, card(pcm(), hdmi_pcm(0), hdmi_pcm(1)))
    assert len(set(made)) == 3
    assert all(LABEL.fullmatch(name) and len(name) <= 63 for name in made)
    assert any("hdmi-0" in name for name in made), "what is cut is the long part"


def test_nodes_that_look_alike_once_cleaned_have_different_devices() -> None:
    """Sinks are cluster-scoped: two nodes must never share one."""
    assert not set(names("kitchen.lan", card())) & set(names("kitchen-lan", card()))


def test_an_id_without_one_usable_letter_falls_back_to_the_device_number() -> None:
    assert names("kitchen", card(pcm(id="", device=4))) == ["kitchen-pci-0000-00-1f-3-pcm-4"]
    (name,) = names("kitchen", card(pcm(id="ÄÖ", device=4)))
    assert re.fullmatch(r"kitchen-pci-0000-00-1f-3-pcm-4-[0-9a-f]{8}", name)


texts = st.text(alphabet="aAb1 -_./:Ä平\0", max_size=12) | st.just("long " * 20)
ids = st.sampled_from(["HDMI 0", "HDMI-0", "hdmi 0", "USB Audio", "USB Audio #1", "", "ÄÖ"]) | texts
pcms = st.builds(
    pcm,
    id=ids,
    device=st.integers(min_value=0, max_value=3),
    direction=st.sampled_from(Direction),
)
identities = st.builds(
    UsbIdentity,
    vendor=st.sampled_from(["1234", "20b1"]),
    product=st.just("5678"),
    serial=st.sampled_from(["A1", "a1", "A1/", "", "000"]) | texts,
    port=st.sampled_from(["1-1", "1-1.1", "1-1-1", "2-1"]),
)
paths = st.sampled_from(["0000:00:1f.3", "a.b", "a-b", "/a/b"]) | texts


@st.composite
def card_lists(draw: st.DrawFn) -> list[Card]:
    cards = []
    for number in range(draw(st.integers(min_value=0, max_value=4))):
        its_pcms = draw(
            st.lists(pcms, max_size=4, unique_by=lambda each: (each.device, each.direction))
        )
        usb = draw(st.none() | identities)
        cards.append(
            Card(
                number=CardNumber(number),
                id="C",
                bus="usb" if usb else draw(st.sampled_from(["pci", "platform", "", "i²c"])),
                path=usb.port if usb else draw(paths),
                usb=usb,
                is_present=draw(st.booleans()),
                pcms=tuple(its_pcms),
            )
        )
    return cards


@given(texts | st.sampled_from(["kitchen", "a.b", "a-b"]), card_lists(), st.randoms())
def test_names_are_unique_labels_whatever_the_hardware_says_and_in_whatever_order(
    node: str, cards: list[Card], random: Random
) -> None:
    made = device_names(node, cards)
    assert all(LABEL.fullmatch(entry.name) and len(entry.name) <= 63 for entry in made)
    assert len({entry.name for entry in made}) == len(made)
    shuffled = list(cards)
    random.shuffle(shuffled)
    assert device_names(node, shuffled) == made


@given(texts, card_lists())
def test_every_pcm_of_a_present_card_has_a_name(node: str, cards: list[Card]) -> None:
    made = {
        (entry.card.number, entry.pcm.device, entry.pcm.direction)
        for entry in device_names(node, cards)
    }
    wanted = {
        (each.number, its.device, its.direction)
        for each in cards
        if each.is_present
        for its in each.pcms
    }
    assert wanted <= made


@given(texts, texts)
def test_different_serials_make_different_names(one: str, two: str) -> None:
    if one == two or one.upper() == two.upper():
        return
    cards = [serial_card(one), serial_card(two)]
    if not all(each.usb and has_own_serial(each.usb) for each in cards):
        return
    first, second = (device_name("kitchen", each, each.pcms[0]) for each in cards)
    assert first != second


def test_a_speaker_is_named_by_its_address_alone_and_its_microphone_after_it() -> None:
    names = {
        entry.name
        for node in ("kitchen", "bath")
        for entry in device_names(node, [speaker_card(has_microphone=True)])
    }
    assert names == {"7c-66-ef-01-23-45", "7c-66-ef-01-23-45-capture"}


def test_a_speakers_name_is_not_made_of_what_it_calls_itself() -> None:
    odd = speaker_card(speaker(name="7C-66-EF-01-23-45 / ../小米", address="0A:00:00:00:00:FF"))
    assert [entry.name for entry in device_names("kitchen", [odd])] == ["0a-00-00-00-00-ff"]
