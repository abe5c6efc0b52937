"""BlueZ's tree of objects as read from recordings, and what odd ones come to."""

import json
from pathlib import Path
from typing import Any

import pytest

from liken_audio.bluez.objects import BATTERY, DEVICE, TRANSPORT, Device, ObjectTree

RECORDINGS = Path(__file__).parents[2] / "recordings" / "bluez"
PATH = "/org/bluez/hci0/dev_00_1B_DC_00_00_02"


def recorded(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RECORDINGS / f"{name}.json").read_text())
    return found


def device(**properties: Any) -> Device:
    fields = {"Address": "00:1B:DC:00:00:02", "Paired": True, "Connected": True}
    (found,) = ObjectTree({PATH: {DEVICE: fields | properties}}).devices()
    return found


def test_a_speaker_that_plays() -> None:
    tree = ObjectTree(recorded("2-playing"))
    (adapter,) = tree.adapters()
    (found,) = tree.devices()
    assert (adapter.address, adapter.is_powered) == ("00:1B:DC:00:00:01", True)
    assert adapter.has_endpoints
    assert not adapter.has_gateway
    assert (found.address, found.name, found.path) == ("00:1B:DC:00:00:02", "Lab Speaker", PATH)
    assert (found.is_paired, found.is_connected) == (True, True)
    assert found.uuids == {"110b", "110c", "110e"}
    assert (found.transport, found.has_absolute_volume) == ("active", True)


def test_a_speaker_that_is_off_has_no_transport() -> None:
    (found,) = ObjectTree(recorded("4-disconnected")).devices()
    assert (found.is_paired, found.is_connected, found.transport) == (True, False, "")
    assert not found.has_absolute_volume


def test_objects_without_an_address_cause_no_error() -> None:
    tree = ObjectTree(recorded("odd-objects"))
    assert [each.path for each in tree.adapters()] == ["/org/bluez/hci0"]
    assert [each.name for each in tree.devices()] == ["a door lock"]


@pytest.mark.parametrize(
    ("supported", "listed", "has_endpoints"),
    [
        pytest.param(["110a", "110b"], ["110c", "110e", "1200", "1800"], False, id="lost"),
        pytest.param(["110a", "110b"], ["110a", "110c"], True, id="registered"),
        pytest.param([], ["110c"], True, id="an-old-bluez-says-nothing"),
    ],
)
def test_endpoints_are_registered_when_the_adapter_lists_one_that_is_supported(
    supported: list[str], listed: list[str], has_endpoints: bool
) -> None:
    whole = "0000{}-0000-1000-8000-00805f9b34fb"
    adapter = {"Address": "02:00:00:00:10:00", "UUIDs": [whole.format(each) for each in listed]}
    media = {"SupportedUUIDs": [whole.format(each).upper() for each in supported]}
    tree = ObjectTree({"/a": {"org.bluez.Adapter1": adapter, "org.bluez.Media1": media}})
    assert tree.adapters()[0].has_endpoints is has_endpoints


@pytest.mark.parametrize(
    ("properties", "name"),
    [
        pytest.param({"Alias": "Bath", "Name": "SP-AD70-B"}, "Bath", id="the-alias-is-a-persons"),
        pytest.param({"Alias": "00-1B-DC-00-00-02"}, "00:1B:DC:00:00:02", id="stand-in"),
        pytest.param({"Alias": "00-1b-dc-00-00-02", "Name": "JBL"}, "JBL", id="stand-in-alias"),
        pytest.param({"Alias": " [TV]\x07 UE32 ", "Name": "x"}, "[TV]  UE32", id="control-letters"),
        pytest.param({"Alias": "小米蓝牙音箱"}, "小米蓝牙音箱", id="any-script"),
        pytest.param({}, "00:1B:DC:00:00:02", id="none"),
    ],
)
def test_the_name_is_what_a_person_would_call_it(properties: dict[str, str], name: str) -> None:
    assert device(**properties).name == name


def test_the_address_is_the_same_in_any_case() -> None:
    assert device(Address="00:1b:dc:00:00:02").address == "00:1B:DC:00:00:02"


@pytest.mark.parametrize("address", ["", "00:00:00:00:00:00", "nonsense", None, 7])
def test_a_device_without_an_address_is_none(address: object) -> None:
    assert ObjectTree({PATH: {DEVICE: {"Address": address}}}).devices() == ()


def test_signals_change_the_tree() -> None:
    tree = ObjectTree(recorded("4-disconnected"))
    tree.change(PATH, DEVICE, {"Connected": True}, [])
    tree.add(PATH, {BATTERY: {"Percentage": 80}})
    tree.add(f"{PATH}/sep1/fd0", {TRANSPORT: {"State": "idle"}})
    tree.change(f"{PATH}/sep1/fd0", TRANSPORT, {"Volume": 64}, [])
    (found,) = tree.devices()
    assert (found.is_connected, found.battery, found.transport) == (True, 80, "idle")
    assert found.has_absolute_volume
    tree.change(f"{PATH}/sep1/fd0", TRANSPORT, {}, ["Volume"])
    assert not tree.devices()[0].has_absolute_volume
    tree.remove(PATH, [BATTERY])
    assert tree.devices()[0].battery is None
    tree.remove(PATH, [DEVICE, "org.bluez.MediaControl1", "org.freedesktop.DBus.Properties"])
    assert tree.devices() == ()


def test_a_signal_of_an_object_that_is_not_there_changes_nothing() -> None:
    tree = ObjectTree({})
    tree.change(PATH, DEVICE, {"Address": "00:1B:DC:00:00:02"}, [])
    tree.remove(PATH, [DEVICE])
    assert tree.devices() == ()


@pytest.mark.parametrize("percentage", [101, -1, "full", True, None])
def test_a_battery_that_is_no_percentage_is_not_told(percentage: object) -> None:
    tree = ObjectTree({PATH: {DEVICE: {"Address": "00:1B:DC:00:00:02"}}})
    tree.add(PATH, {BATTERY: {"Percentage": percentage}})
    assert tree.devices()[0].battery is None


def test_of_two_transports_the_one_that_plays_is_shown() -> None:
    tree = ObjectTree({PATH: {DEVICE: {"Address": "00:1B:DC:00:00:02"}}})
    tree.add(f"{PATH}/sep1/fd0", {TRANSPORT: {"State": "idle"}})
    tree.add(f"{PATH}/sep2/fd1", {TRANSPORT: {"State": "active"}})
    assert tree.devices()[0].transport == "active"


def test_what_a_search_tells_of_strangers_is_no_news() -> None:
    stranger = "/org/bluez/hci0/dev_02_00_00_00_00_09"
    tree = ObjectTree(recorded("2-playing"))
    seen = {"Address": "02:00:00:00:00:09", "AddressType": "random", "Paired": False, "RSSI": -60}
    assert not tree.add(stranger, {DEVICE: seen, "org.freedesktop.DBus.Properties": {}})
    assert not tree.change(stranger, DEVICE, {"RSSI": -71, "ManufacturerData": {6: b"x"}}, [])
    assert not tree.change(stranger, DEVICE, {"Name": "TV", "Alias": "TV"}, ["TxPower"])
    assert not tree.change("/org/bluez/hci0", "org.bluez.Adapter1", {"Discovering": True}, [])
    assert not tree.change(PATH, DEVICE, {"RSSI": -50, "ServicesResolved": True}, [])
    assert not tree.remove("/org/bluez/hci0/dev_02_00_00_00_00_08", [DEVICE])
    assert tree.change(stranger, DEVICE, {"Paired": True}, [])
    assert tree.remove(stranger, [DEVICE])


def test_what_is_told_of_a_paired_device_is_news_once() -> None:
    tree = ObjectTree(recorded("2-playing"))
    for _ in range(2):
        tree.change(PATH, DEVICE, {"Alias": "Bath"}, [])
    assert not tree.change(PATH, DEVICE, {"Alias": "Bath"}, [])
    assert tree.change(PATH, DEVICE, {"Paired": False}, [])
    assert tree.change(PATH, DEVICE, {"Paired": True}, [])
    assert tree.add(PATH, {BATTERY: {"Percentage": 80}})
    assert not tree.add(PATH, {BATTERY: {"Percentage": 80, "Source": "HFP"}})
    assert tree.remove(PATH, [BATTERY])
    assert tree.change("/org/bluez/hci0", "org.bluez.Adapter1", {"Powered": False}, [])


def test_each_device_has_the_transports_below_it_alone() -> None:
    tree = ObjectTree({})
    for number, state in ((1, "idle"), (10, "active")):
        path = f"/org/bluez/hci0/dev_{number}"
        tree.add(path, {DEVICE: {"Address": f"02:00:00:00:00:{number:02}", "Paired": True}})
        tree.add(f"{path}/sep1/fd0", {TRANSPORT: {"State": state}})
    assert [each.transport for each in tree.devices()] == ["idle", "active"]
