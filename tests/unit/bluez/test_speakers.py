"""Which Bluetooth devices are published, for how long, and what is said of them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liken_audio.bluez.objects import ObjectTree
from liken_audio.bluez.speakers import UNPAIRED_SECONDS, Speakers, best_path
from liken_audio.graph.model import Card, Direction, Link, Speaker

A2DP = "0000110b-0000-1000-8000-00805f9b34fb"
HANDSFREE = "0000111e-0000-1000-8000-00805f9b34fb"
GATEWAY = "0000111f-0000-1000-8000-00805f9b34fb"
ADDRESS = "02:00:00:00:00:01"


def adapter(number: int = 0, **changes: Any) -> dict[str, Any]:
    properties = {"Address": f"02:00:00:00:10:0{number}", "Powered": True, "UUIDs": []}
    return {f"/org/bluez/hci{number}": {"org.bluez.Adapter1": properties | changes}}


def device(number: int = 0, address: str = ADDRESS, **changes: Any) -> dict[str, Any]:
    path = f"/org/bluez/hci{number}/dev_{address.replace(':', '_')}"
    properties = {
        "Address": address,
        "Alias": "Kitchen Radio",
        "Paired": True,
        "Connected": True,
        "UUIDs": [A2DP],
        "Adapter": f"/org/bluez/hci{number}",
    }
    return {path: {"org.bluez.Device1": properties | changes}}


def look(speakers: Speakers, *objects: dict[str, Any], now: float = 0.0) -> tuple[Card, ...]:
    tree = ObjectTree({path: it for each in objects for path, it in each.items()})
    return speakers.look(tree, now).snapshot.cards


def link(cards: tuple[Card, ...]) -> Link:
    return only(cards).link


def only(cards: tuple[Card, ...]) -> Speaker:
    (card,) = cards
    assert card.speaker is not None
    assert card.is_present is (card.speaker.link is Link.CONNECTED)
    return card.speaker


def test_a_paired_speaker_is_a_card_with_one_output() -> None:
    (card,) = look(Speakers(), adapter(), device())
    assert (card.bus, card.path, card.name) == ("bluetooth", ADDRESS, "Kitchen Radio")
    assert [pcm.direction for pcm in card.pcms] == [Direction.PLAYBACK]
    assert card.pcms[0].recipe is None


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"Paired": False}, id="not-paired"),
        pytest.param({"UUIDs": []}, id="a-lock"),
        pytest.param({"UUIDs": ["0000110a-0000-1000-8000-00805f9b34fb"]}, id="a-phone"),
    ],
)
def test_what_is_no_paired_speaker_is_not_published(changes: dict[str, Any]) -> None:
    assert look(Speakers(), adapter(), device(**changes)) == ()


def test_one_that_is_paired_before_its_services_are_known_comes_with_them() -> None:
    speakers = Speakers()
    assert look(speakers, adapter(), device(UUIDs=[])) == ()
    assert link(look(speakers, adapter(), device())) is Link.CONNECTED


@pytest.mark.parametrize(
    ("on_adapter", "on_device", "expected"),
    [
        pytest.param({}, {}, Link.CONNECTED, id="connected"),
        pytest.param({}, {"Connected": False}, Link.AWAY, id="off"),
        pytest.param({"Powered": False}, {}, Link.ADAPTER_OFF, id="adapter-off"),
    ],
)
def test_where_the_way_to_it_ends(
    on_adapter: dict[str, Any], on_device: dict[str, Any], expected: Link
) -> None:
    assert link(look(Speakers(), adapter(**on_adapter), device(**on_device))) is expected


def test_an_adapter_that_gets_another_number_changes_nothing_but_the_path() -> None:
    speakers = Speakers()
    before = look(speakers, adapter(0), device(0))
    moved = {"/org/bluez/hci2": adapter(0)["/org/bluez/hci0"]}
    after = look(speakers, moved, device(2))
    assert after == before
    assert best_path(ObjectTree(moved | device(2)), ADDRESS) == next(iter(device(2)))


@pytest.mark.parametrize(
    "objects",
    [
        pytest.param((), id="with-its-children"),
        pytest.param((device(),), id="alone"),
        pytest.param((adapter(5),), id="another-stays"),
    ],
)
def test_speakers_of_an_adapter_that_goes_stay_out_of_reach_and_recover(
    objects: tuple[dict[str, Any], ...],
) -> None:
    speakers = Speakers()
    look(speakers, adapter(), device())
    assert link(look(speakers, *objects)) is Link.NO_ADAPTER
    assert link(look(speakers, *objects, now=9_999.0)) is Link.NO_ADAPTER
    assert link(look(speakers, adapter(), device())) is Link.CONNECTED


def test_without_a_service_they_stay_as_long_as_it_takes() -> None:
    speakers = Speakers()
    look(speakers, adapter(), device())
    seen = speakers.look(None, 9_999.0)
    assert link(seen.snapshot.cards) is Link.NO_SERVICE
    assert seen.look_again_at is None
    assert speakers.look(None, 0.0).snapshot == seen.snapshot


def test_an_unpaired_one_is_seen_out_of_reach_before_it_leaves() -> None:
    speakers = Speakers()
    look(speakers, adapter(), device())
    seen = speakers.look(ObjectTree(adapter()), 100.0)
    assert link(seen.snapshot.cards) is Link.UNPAIRED
    assert seen.look_again_at == 100.0 + UNPAIRED_SECONDS
    assert look(speakers, adapter(), now=100.0 + UNPAIRED_SECONDS) == ()


def test_pairing_again_in_time_keeps_it_and_later_brings_back_the_same() -> None:
    speakers = Speakers()
    before = look(speakers, adapter(), device())
    look(speakers, adapter(), now=100.0)
    assert look(speakers, adapter(), device(), now=105.0) == before
    look(speakers, adapter(), now=110.0)
    assert link(look(speakers, adapter(), now=119.0)) is Link.UNPAIRED
    look(speakers, adapter(), now=121.0)
    assert look(speakers, adapter(), device(), now=170.0) == before


def test_on_two_adapters_it_is_one_seen_through_the_better_way() -> None:
    speakers = Speakers()
    both = (adapter(0), adapter(1), device(0, Connected=False), device(1))
    assert only(look(speakers, *both)).adapter == "02:00:00:00:10:01"
    assert best_path(ObjectTree({k: v for e in both for k, v in e.items()}), ADDRESS) == next(
        iter(device(1))
    )


def test_a_pairing_with_an_adapter_that_is_away_is_enough_to_stay() -> None:
    speakers = Speakers()
    look(speakers, adapter(0), adapter(1), device(0), device(1))
    assert link(look(speakers, adapter(0))) is Link.NO_ADAPTER
    assert link(look(speakers, adapter(0), now=99.0)) is Link.NO_ADAPTER
    assert link(look(speakers, adapter(0), adapter(1), now=100.0)) is Link.UNPAIRED
    assert look(speakers, adapter(0), adapter(1), now=110.0) == ()


def test_a_pairing_that_was_removed_long_ago_keeps_nothing() -> None:
    speakers = Speakers()
    look(speakers, adapter(0), adapter(1), device(0), device(1))
    for now in (0.0, 20.0):
        assert link(look(speakers, adapter(0), adapter(1), device(1), now=now)) is Link.CONNECTED
    look(speakers, adapter(1), now=30.0)
    assert look(speakers, adapter(1), now=40.0) == ()


def test_an_adapter_that_takes_its_devices_along_before_itself_unpairs_none() -> None:
    """So does BlueZ: the devices' objects go first."""
    speakers = Speakers()
    look(speakers, adapter(), device())
    assert link(look(speakers, adapter(), now=5.0)) is Link.UNPAIRED
    for now in (5.1, 99.0):
        assert link(look(speakers, now=now)) is Link.NO_ADAPTER
    assert link(look(speakers, adapter(), device(), now=100.0)) is Link.CONNECTED


def test_a_daemon_that_takes_them_along_before_itself_unpairs_none() -> None:
    speakers = Speakers()
    look(speakers, adapter(), device())
    assert link(look(speakers, adapter(), now=5.0)) is Link.UNPAIRED
    assert link(speakers.look(None, 5.1).snapshot.cards) is Link.NO_SERVICE
    assert link(look(speakers, now=99.0)) is Link.NO_ADAPTER
    assert link(look(speakers, adapter(), now=99.5)) is Link.UNPAIRED
    assert link(look(speakers, adapter(), device(), now=100.0)) is Link.CONNECTED


def test_it_has_a_microphone_once_both_sides_offer_a_headset_profile() -> None:
    headset = device(UUIDs=[A2DP, HANDSFREE])
    speakers = Speakers()
    (card,) = look(speakers, adapter(), headset)
    assert len(card.pcms) == 1
    (card,) = look(speakers, adapter(UUIDs=[GATEWAY]), headset)
    assert [pcm.direction for pcm in card.pcms] == [Direction.PLAYBACK, Direction.CAPTURE]
    (card,) = look(speakers, adapter(), headset)
    assert len(card.pcms) == 2, "a sound server that restarts takes no microphone away"


def test_a_blocked_one_is_said_to_be() -> None:
    blocked = look(Speakers(), adapter(), device(Connected=False, Blocked=True))
    assert only(blocked).is_blocked
    assert not only(look(Speakers(), adapter(), device(Connected=False))).is_blocked


def test_a_name_once_told_is_kept() -> None:
    speakers = Speakers()
    look(speakers, adapter(), device())
    assert (
        only(look(speakers, adapter(), device(Alias="02-00-00-00-00-01"))).name == "Kitchen Radio"
    )


def test_of_what_is_out_of_reach_no_battery_and_no_transport_is_told() -> None:
    speakers = Speakers()
    path, interfaces = next(iter(device().items()))
    whole = {path: interfaces | {"org.bluez.Battery1": {"Percentage": 70}}}
    assert only(look(speakers, adapter(), whole)).battery == 70
    away = device(Connected=False)[path] | {"org.bluez.Battery1": {"Percentage": 70}}
    assert only(look(speakers, adapter(), {path: away})).battery is None


def test_what_is_not_paired_has_no_path() -> None:
    assert best_path(ObjectTree(adapter() | device(Paired=False)), ADDRESS) is None
    assert best_path(ObjectTree({}), ADDRESS) is None


_PATHS = st.sampled_from(
    [
        *("/org/bluez/hci0", "/org/bluez/hci1", "/org/bluez/hci0/dev_02_00_00_00_00_01"),
        *(
            "/org/bluez/hci0/dev_02_00_00_00_00_01/sep1/fd0",
            "/org/bluez/hci1/dev_02_00_00_00_00_01",
        ),
        "/org/bluez/hci0/dev_02_00_00_00_00_02",
    ]
)
_PROPERTIES: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "org.bluez.Adapter1": st.fixed_dictionaries(
        {"Address": st.sampled_from(["02:00:00:00:10:00", "02:00:00:00:10:01"])},
        optional={"Powered": st.booleans(), "UUIDs": st.lists(st.sampled_from([A2DP, GATEWAY]))},
    ),
    "org.bluez.Device1": st.fixed_dictionaries(
        {"Address": st.sampled_from([ADDRESS, "02:00:00:00:00:02"])},
        optional={
            "Paired": st.booleans(),
            "Blocked": st.booleans(),
            "Connected": st.booleans(),
            "Alias": st.sampled_from(["", "Bath"]),
            "RSSI": st.integers(-90, -30),
            "UUIDs": st.lists(st.sampled_from([A2DP, HANDSFREE])),
        },
    ),
    "org.bluez.Battery1": st.fixed_dictionaries({"Percentage": st.integers(0, 100)}),
    "org.bluez.MediaTransport1": st.fixed_dictionaries(
        {"State": st.sampled_from(["idle", "active"])}, optional={"Volume": st.integers(0, 127)}
    ),
    "org.bluez.MediaControl1": st.fixed_dictionaries({"Connected": st.booleans()}),
}
_INTERFACES = st.sampled_from(list(_PROPERTIES))


@given(st.data())
def test_what_is_no_news_changes_nothing_that_is_published(data: st.DataObject) -> None:
    tree, speakers = ObjectTree({**adapter(), **device()}), Speakers()
    shown = speakers.look(tree, 0.0)
    for _ in range(data.draw(st.integers(1, 12))):
        path, interface = data.draw(_PATHS), data.draw(_INTERFACES)
        properties = data.draw(_PROPERTIES[interface])
        match data.draw(st.sampled_from(["add", "remove", "change"])):
            case "add":
                is_news = tree.add(path, {interface: properties})
            case "remove":
                is_news = tree.remove(path, [interface])
            case _:
                is_news = tree.change(
                    path,
                    interface,
                    properties,
                    data.draw(st.lists(st.sampled_from(["Paired", "Volume"]))),
                )
        after = speakers.look(tree, 0.0)
        assert is_news or after == shown
        shown = after
