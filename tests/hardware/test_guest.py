"""The guest itself, without our product: what the other tests stand on."""

from collections.abc import Iterator

import pytest

from tests.harness.guest import inside, screen
from tests.harness.guest.machine import Card, Guest, missing_for_guest
from tests.harness.processes import HarnessError, Workspace, wait_until
from tests.harness.tone import write_tone

pytestmark = pytest.mark.timeout(900)
SECONDS = 120
CARDS = (
    Card("hda", "analog", 0x1B),
    Card("hdmi", "tv", 0x1C),
    Card("virtio", "virt", 0x1D),
    Card("usb", "dac", properties={"serial": "SN4711"}),
)


@pytest.fixture(scope="module")
def guest() -> Iterator[Guest]:
    if missing := missing_for_guest():
        pytest.skip(missing)
    with (
        Workspace("guest") as work,
        # The last card gets the first number: nothing may hang on the usual order.
        Guest(work.path / "g", CARDS, modules=["virtio_snd"], sockets=["stick"]) as running,
    ):
        write_tone(running.folder / "tone.wav", 440, 3)
        yield running


def pcms(guest: Guest) -> dict[str, str]:
    lines = guest.call(inside.read, "/proc/asound/pcm").splitlines()
    return {line.split(": ")[1].strip(): line[:5] for line in lines}


@pytest.mark.parametrize(
    ("pcm", "card"),
    [("Generic Analog", "analog"), ("virtio-snd", "virt"), ("USB Audio", "dac"), ("HDMI 0", "tv")],
    ids=["hda", "virtio", "usb", "hdmi"],
)
def test_what_a_program_plays_to_an_emulated_card_is_heard_on_the_host(
    guest: Guest, pcm: str, card: str
) -> None:
    number, device = (int(each) for each in pcms(guest)[pcm].split("-"))
    played = guest.played(card)
    tone = str(guest.folder / "tone.wav")
    if pcm == "Generic Analog":
        guest.call(
            inside.run, ["amixer", "-q", "-c", str(number), "sset", "Master", "100%", "unmute"]
        )
    guest.call(inside.run, ["aplay", "-q", "-D", f"plughw:{number},{device}", tone])
    wait_until(lambda: played.seconds > 2, f"sound from {card}", SECONDS)
    assert played.sound().is_tone(440), f"heard: {played.sound()}"


def test_cards_are_numbered_in_the_order_in_which_their_drivers_are_loaded(guest: Guest) -> None:
    assert pcms(guest)["virtio-snd"].startswith("00-")


def test_a_usb_card_is_there_from_its_plug_to_its_pull(guest: Guest) -> None:
    def serials() -> str:
        return guest.call(inside.run, ["sh", "-c", "cat /sys/bus/usb/devices/*/serial"])

    assert "SN0815" not in serials()
    guest.plug("stick", serial="SN0815")
    wait_until(lambda: "SN0815" in serials(), "the card", SECONDS)
    guest.unplug("stick")
    wait_until(lambda: "SN0815" not in serials(), "no card", SECONDS)


def test_a_screen_and_a_plug_can_be_made_of_controls(guest: Guest) -> None:
    number = int(pcms(guest)["HDMI 0"][:2])
    guest.call(screen.add_eld, number, 3)
    guest.call(screen.set_eld, number, 3, screen.eld("Lab TV"))
    guest.call(screen.add_jack, number, "Headphone Jack")
    guest.call(screen.set_jack, number, "Headphone Jack", True)
    shown = guest.call(inside.run, ["amixer", "-c", str(number), "contents"])
    assert "0x4c,0x61,0x62,0x20,0x54,0x56" in shown
    assert "values=on" in shown.split("Headphone Jack")[1].split("numid")[0]


def test_what_fails_in_the_guest_fails_here_with_its_words(guest: Guest) -> None:
    with pytest.raises(HarnessError, match="no-such-file"):
        guest.call(inside.run, ["ls", "/no-such-file"])
    with pytest.raises(HarnessError, match="no-such-program"):
        guest.call(inside.start, "none", ["no-such-program"])
