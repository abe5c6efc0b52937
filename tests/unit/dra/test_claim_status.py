"""What a claim's status says of our devices, and that an unchanged one is never written."""

from datetime import UTC, datetime
from typing import Any

import pytest

from liken_audio.dra.claim_status import DeviceStatus, body, statuses
from liken_audio.dra.claims import ClaimRecord
from liken_audio.dra.parameters import Parameters
from liken_audio.graph.model import Fault
from tests.builders import (
    CLAIM_UID,
    allocated,
    claim_record,
    claim_ref,
    claimed_device,
    endpoint,
    node,
)

ANALOG = "kitchen-pci-0000-00-1f-3-alc257-analog"
FOLDER = f"/run/audio.liken.sh/{CLAIM_UID}"
NOON = datetime(2026, 1, 2, 12, 0, tzinfo=UTC)
LATER = datetime(2026, 1, 2, 13, 0, tzinfo=UTC)
FOREIGN = {"driver": "gpu.example.com", "pool": "kitchen", "device": ANALOG, "data": {"a": 1}}


def shown(record: ClaimRecord | None = None, fault: Fault | None = None) -> Any:
    record = record or claim_record()
    known = {each.device: endpoint(each.device) for each in record.devices}
    return statuses(record, known, dict.fromkeys(known, fault))


def claim(*entries: dict[str, Any], **changes: Any) -> dict[str, Any]:
    made = allocated(**changes)
    made["status"]["devices"] = list(entries)
    return made


def applied(wanted: tuple[DeviceStatus, ...], *stored: Any, now: datetime = NOON) -> Any:
    made = body(claim_ref(), wanted, claim(*stored), now)
    return made and made["status"]["devices"]


def test_a_device_that_can_be_heard_is_ready_and_says_where() -> None:
    assert body(claim_ref(), shown(), claim(), NOON) == {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"namespace": "media", "name": "speakers", "uid": CLAIM_UID},
        "status": {
            "devices": [
                {
                    "driver": "audio.liken.sh",
                    "pool": "kitchen",
                    "device": ANALOG,
                    "conditions": [
                        {
                            "type": "Ready",
                            "status": "True",
                            "reason": "Ready",
                            "message": "",
                            "lastTransitionTime": "2026-01-02T12:00:00Z",
                        }
                    ],
                    "data": {
                        "request": "out",
                        "nodeName": ANALOG,
                        "pipewireSocket": f"{FOLDER}/pipewire-0",
                        "pulseSocket": f"{FOLDER}/pulse",
                    },
                }
            ]
        },
    }


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (Fault.UNPLUGGED, "Unplugged"),
        (Fault.NO_MONITOR, "NoMonitor"),
        (Fault.GRAPH_LOST, "GraphLost"),
        (Fault.NO_NODE, "NoNode"),
    ],
)
def test_a_fault_is_the_reason_with_a_message(fault: Fault, reason: str) -> None:
    (entry,) = applied(shown(fault=fault))
    (condition,) = entry["conditions"]
    assert (condition["status"], condition["reason"]) == ("False", reason)
    assert condition["message"]


def test_every_fault_has_a_reason() -> None:
    assert all(shown(fault=fault)[0].reason for fault in Fault)


def test_a_device_that_is_gone_is_not_ready() -> None:
    (status,) = statuses(claim_record(), {}, {})
    assert (status.is_ready, status.reason) == (False, "DeviceGone")


def test_the_node_of_now_is_named_and_the_last_one_while_it_is_away() -> None:
    record = claim_record(claimed_device(node_name="last"))
    here = endpoint(ANALOG, node=node("renamed"))
    away = endpoint(ANALOG, node=None)
    assert statuses(record, {here.name: here}, {})[0].data["nodeName"] == "renamed"
    assert statuses(record, {away.name: away}, {})[0].data["nodeName"] == "last"


def test_a_claim_without_pulse_names_no_pulse_socket() -> None:
    record = claim_record(claimed_device(parameters=Parameters(pulse=False)))
    assert "pulseSocket" not in shown(record)[0].data


def test_what_is_stored_is_not_written_again() -> None:
    stored = applied(shown())
    assert applied(shown(), *stored, now=LATER) is None


def test_an_empty_message_that_the_server_left_out_is_no_change() -> None:
    (stored,) = applied(shown())
    del stored["conditions"][0]["message"]
    assert applied(shown(), stored, now=LATER) is None


def test_the_time_stays_while_the_status_does() -> None:
    (stored,) = applied(shown(fault=Fault.NO_NODE))
    (entry,) = applied(shown(fault=Fault.UNPLUGGED), stored, now=LATER)
    assert entry["conditions"][0]["lastTransitionTime"] == "2026-01-02T12:00:00Z"
    (entry,) = applied(shown(), stored, now=LATER)
    assert entry["conditions"][0]["lastTransitionTime"] == "2026-01-02T13:00:00Z"


def test_what_others_say_is_no_part_of_what_is_applied() -> None:
    (stored,) = applied(shown())
    theirs = {"type": "Calibrated", "status": "True"}
    stored["conditions"].insert(0, theirs)
    assert applied(shown(), FOREIGN, stored, now=LATER) is None
    (entry,) = applied(shown(fault=Fault.NO_NODE), FOREIGN, stored, now=LATER)
    assert [each["type"] for each in entry["conditions"]] == ["Ready"]


def test_an_entry_that_somebody_changed_is_put_right() -> None:
    (stored,) = applied(shown())
    stored["data"] = {"nodeName": "elsewhere"}
    assert applied(shown(), stored, now=LATER)


@pytest.mark.parametrize("conditions", [None, [], [{"type": "Other"}]])
def test_an_entry_without_our_condition_gets_it(conditions: Any) -> None:
    (stored,) = applied(shown())
    assert applied(shown(), stored | {"conditions": conditions}, now=LATER)


def test_a_share_is_an_entry_of_its_own() -> None:
    (plain,) = applied(shown())
    record = claim_record(claimed_device(share_id="0c1f"))
    (entry,) = applied(shown(record), plain)
    assert entry["shareID"] == "0c1f"
    assert applied(shown(record), plain, entry, now=LATER) is None


def test_two_requests_that_have_one_device_with_admin_access_share_its_entry() -> None:
    """Two entries of one key would be refused."""
    record = claim_record(
        claimed_device(request="watch", is_admin=True),
        claimed_device(request="out"),
        claimed_device(device="other"),
    )
    entries = applied(shown(record))
    assert [(each["device"], each["data"]["request"]) for each in entries] == [
        (ANALOG, "watch,out"),
        ("other", "out"),
    ]


def test_a_claim_made_anew_under_its_name_gets_nothing() -> None:
    assert body(claim_ref(), shown(), claim(uid="another"), NOON) is None


@pytest.mark.parametrize("status", [None, {}, {"allocation": None}])
def test_a_claim_that_is_not_allocated_any_more_gets_nothing(status: Any) -> None:
    assert body(claim_ref(), shown(), claim() | {"status": status}, NOON) is None


def test_a_claim_without_devices_of_ours_gets_nothing() -> None:
    assert body(claim_ref(), (), claim(), NOON) is None
