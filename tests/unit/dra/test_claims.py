"""Claims decided: what is allocated, known, free and ready."""

from typing import Any

import pytest

from liken_audio.dra.claims import (
    ClaimError,
    ClaimRecord,
    ClaimState,
    HeldError,
    NodeFacts,
    NotReadyError,
    holds,
    prepare,
    refreshed,
)
from liken_audio.dra.parameters import Parameters
from liken_audio.graph.model import Direction, Endpoint, Fault
from tests.builders import (
    allocated,
    claim_record,
    claim_ref,
    claimed_device,
    endpoint,
    microphone_pcm,
    node,
    opaque,
    pcm,
    result,
)

ANALOG = "kitchen-pci-0000-00-1f-3-alc257-analog"
HDMI = "kitchen-pci-0000-00-1f-3-hdmi-0"
MICROPHONE = "kitchen-pci-0000-00-1f-3-alc257-analog-capture"
ENDPOINTS = (endpoint(ANALOG), endpoint(HDMI), endpoint(MICROPHONE, pcm=microphone_pcm()))


def facts(*records: ClaimRecord, endpoints: tuple[Endpoint, ...] = ENDPOINTS) -> NodeFacts:
    by_name = {each.name: each for each in endpoints}
    return NodeFacts(pool="kitchen", boot_id="boot-1", endpoints=by_name, records=records)


def decided(*results: dict[str, Any], here: NodeFacts | None = None, **changes: Any) -> ClaimRecord:
    return prepare(allocated(*results, **changes), claim_ref(), here or facts())


def other(*devices: Any, **changes: Any) -> ClaimRecord:
    ref = claim_ref(uid="other-uid", name="other")
    return claim_record(*devices, **({"ref": ref} | changes))


def test_a_claim_gets_its_device_with_the_facts_of_its_node() -> None:
    here = facts(endpoints=(endpoint(ANALOG, node=node("renamed", channels=6, rate_hz=96_000)),))
    assert decided(here=here) == claim_record(
        claimed_device(node_name="renamed", channels=6, rate_hz=96_000), state=ClaimState.STARTED
    )


def test_an_adapter_that_has_announced_no_format_yet_gives_the_card_s() -> None:
    quiet = endpoint(ANALOG, pcm=pcm(channels=8, rate_hz=44_100))
    quiet = endpoint(ANALOG, pcm=quiet.pcm, node=node(ANALOG, channels=0, rate_hz=0))
    device = decided(here=facts(endpoints=(quiet,))).devices[0]
    assert (device.channels, device.rate_hz) == (8, 44_100)


def test_the_same_claim_gives_the_same_record() -> None:
    results = (result(ANALOG, "out"), result(MICROPHONE, "in"))
    assert decided(*results) == decided(*results)


def test_results_of_other_drivers_are_left_alone() -> None:
    foreign = result("gpu-0", "gpu", driver="gpu.example.com", pool="elsewhere")
    record = decided(foreign, result(ANALOG))
    assert [device.device for device in record.devices] == [ANALOG]


def test_a_claim_without_a_result_of_ours_has_no_devices() -> None:
    assert decided(result(driver="gpu.example.com")).devices == ()


def test_a_subrequest_keeps_its_name_and_answers_to_its_base() -> None:
    device = decided(result(request="main/sub")).devices[0]
    assert (device.request, device.request_name) == ("main/sub", "main")


def test_a_share_id_and_admin_access_are_kept() -> None:
    device = decided(result(shareID="s1", adminAccess=True)).devices[0]
    assert (device.share_id, device.is_admin) == ("s1", True)


def test_an_empty_share_id_is_none() -> None:
    assert decided(result(shareID="")).devices[0].share_id is None


def test_configs_reach_the_request_they_name_and_no_other() -> None:
    record = decided(
        result(ANALOG, "main/sub"),
        result(HDMI, "second"),
        config=[
            opaque({"maxVolume": 30}, "main", source="FromClass"),
            opaque({"pulse": False}, "main/sub"),
            opaque({"pulse": False}, "main/other"),
        ],
    )
    assert record.devices[0].parameters == Parameters(pulse=False, max_volume=30)
    assert record.devices[1].parameters == Parameters()


def test_a_bad_parameter_names_its_request() -> None:
    with pytest.raises(ClaimError, match=r"request 'out': .*'pluse' is not known"):
        decided(config=[opaque({"pluse": False})])


def test_a_claim_made_anew_under_its_name_is_refused() -> None:
    with pytest.raises(ClaimError, match=r"media/speakers was deleted and made anew: its UID is x"):
        decided(uid="x")


@pytest.mark.parametrize("status", [None, {}, {"allocation": None}])
def test_a_claim_without_allocation_is_refused(status: Any) -> None:
    claim = allocated() | {"status": status}
    with pytest.raises(ClaimError, match=r"media/speakers is not allocated"):
        prepare(claim, claim_ref(), facts())


def test_a_device_of_another_pool_is_refused_and_ours_is_named() -> None:
    with pytest.raises(ClaimError, match=r"from pool 'cellar'; this node's is 'kitchen'"):
        decided(result(pool="cellar"))


def test_an_unknown_device_is_refused_and_the_known_ones_are_named() -> None:
    with pytest.raises(ClaimError) as caught:
        decided(result(HDMI.replace("hdmi", "hdni")))
    text = str(caught.value)
    assert f"did you mean '{HDMI}'?" in text
    assert all(each.name in text for each in ENDPOINTS)


def test_an_error_lists_a_dozen_devices_at_most() -> None:
    many = tuple(endpoint(f"kitchen-{i:02}") for i in range(64))
    with pytest.raises(ClaimError, match=r"kitchen-11 and 52 more$"):
        decided(result("gone"), here=facts(endpoints=many))


def test_a_device_that_another_claim_holds_is_refused_and_the_holder_is_named() -> None:
    holder = other()
    with pytest.raises(HeldError, match=r"held by claim media/other \(UID other-uid\)") as caught:
        decided(here=facts(holder))
    assert caught.value.holder is holder


def test_a_reservation_counts_as_held() -> None:
    with pytest.raises(HeldError):
        decided(here=facts(other(state=ClaimState.STARTED)))


@pytest.mark.parametrize(
    ("mine", "theirs", "is_free"),
    [
        pytest.param({}, {}, False, id="exclusive"),
        pytest.param({"shareID": "a"}, {"share_id": "b"}, True, id="two-shares"),
        pytest.param({"shareID": "a"}, {"share_id": "a"}, False, id="one-share-twice"),
        pytest.param({"shareID": "a"}, {}, False, id="a-share-of-an-exclusive-device"),
        pytest.param({}, {"share_id": "b"}, False, id="exclusive-of-a-shared-device"),
        pytest.param({"adminAccess": True}, {}, True, id="admin-access"),
        pytest.param({}, {"is_admin": True}, True, id="an-admin-holds-nothing"),
    ],
)
def test_who_may_have_one_device_at_the_same_time(
    mine: dict[str, Any], theirs: dict[str, Any], is_free: bool
) -> None:
    here = facts(other(claimed_device(**theirs)))
    if is_free:
        assert decided(result(**mine), here=here).devices
    else:
        with pytest.raises(HeldError):
            decided(result(**mine), here=here)


def test_a_claim_s_own_record_is_not_in_its_way() -> None:
    assert decided(here=facts(claim_record())).devices


def test_a_device_of_the_same_name_in_another_pool_is_not_in_the_way() -> None:
    assert decided(here=facts(other(claimed_device(pool="cellar")))).devices


def test_one_device_twice_in_a_claim_is_refused_with_both_requests() -> None:
    with pytest.raises(ClaimError, match=r"twice to this claim: for request 'a' and for 'b'"):
        decided(result(ANALOG, "a"), result(ANALOG, "b"))


def test_admin_access_beside_a_plain_request_of_one_claim_is_fine() -> None:
    record = decided(result(ANALOG, "a"), result(ANALOG, "watch", adminAccess=True))
    assert len(record.devices) == 2


def test_a_tainted_device_works_while_its_node_is_there() -> None:
    tainted = endpoint(ANALOG, fault=Fault.UNPLUGGED)
    assert decided(here=facts(endpoints=(tainted,))).devices


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (Fault.NO_MONITOR, "no monitor is connected: connect one"),
        (Fault.UNPLUGGED, "nothing is plugged in"),
        (Fault.GRAPH_LOST, "PipeWire doesn't answer on this node"),
        (Fault.NO_NODE, "PipeWire has no node for it"),
        (None, "PipeWire has no node for it"),
    ],
)
def test_a_device_without_a_node_says_what_is_missing(fault: Fault | None, says: str) -> None:
    silent = endpoint(ANALOG, node=None, fault=fault)
    with pytest.raises(NotReadyError, match=says):
        decided(here=facts(endpoints=(silent,)))


def test_a_missing_node_is_said_only_when_nothing_else_is_wrong() -> None:
    silent = endpoint(ANALOG, node=None, fault=Fault.NO_NODE)
    with pytest.raises(HeldError):
        decided(here=facts(other(), endpoints=(silent,)))


def test_a_renamed_node_refreshes_the_record() -> None:
    renamed = endpoint(ANALOG, node=node("bluez_output.1", channels=1, rate_hz=16_000))
    record = refreshed(claim_record(), {renamed.name: renamed})
    device = record.devices[0]
    assert (device.node_name, device.channels, device.rate_hz) == ("bluez_output.1", 1, 16_000)


@pytest.mark.parametrize("endpoints", [(), (endpoint(ANALOG, node=None),)])
def test_a_device_that_is_away_keeps_its_last_facts(endpoints: tuple[Endpoint, ...]) -> None:
    record = claim_record(claimed_device(node_name="last"))
    assert refreshed(record, {each.name: each for each in endpoints}) is record


def test_an_unchanged_record_stays_the_same_object() -> None:
    record = claim_record()
    assert refreshed(record, {each.name: each for each in ENDPOINTS}) is record


def test_a_completed_claim_holds_its_devices_and_admin_access_apart() -> None:
    record = claim_record(
        claimed_device(),
        claimed_device(device=MICROPHONE, direction=Direction.CAPTURE, is_admin=True),
    )
    assert [(hold.devices, hold.is_admin) for hold in holds(record)] == [
        ((ANALOG,), False),
        ((MICROPHONE,), True),
    ]
    assert {hold.uid for hold in holds(record)} == {record.ref.uid}


def test_a_hold_knows_the_limits_of_its_devices_classes() -> None:
    limited = claimed_device(device="tv", parameters=Parameters(max_volume=60))
    (hold,) = holds(claim_record(limited, claimed_device(device="mic")))
    assert hold.max_volumes == (("tv", 60),)


def test_a_claim_that_is_only_started_holds_nothing_yet() -> None:
    assert holds(claim_record(state=ClaimState.STARTED)) == ()
