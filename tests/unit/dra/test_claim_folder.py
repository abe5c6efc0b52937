"""A claim's folder: its name must not lead elsewhere, its file says what the claim's clients may do."""

import json
from typing import Any

import pytest

from liken_audio.dra.claim_folder import (
    REACH_PROPERTY,
    client_properties,
    is_claim_uid,
)
from tests.builders import CLAIM_UID


def test_the_api_server_s_uids_are_claim_uids() -> None:
    assert is_claim_uid(CLAIM_UID)


@pytest.mark.parametrize(
    "text", ["", ".", "..", "../x", "a/b", ".hidden", "-x", "a b", "a\n", "a\0", "ä", "a" * 129]
)
def test_what_could_lead_out_of_the_folder_is_none(text: str) -> None:
    assert not is_claim_uid(text)


def document(**requests: Any) -> dict[str, Any]:
    return {
        "version": 1,
        "claim": {"namespace": "media", "name": "speakers", "uid": CLAIM_UID},
        "requests": requests,
    }


def sink(device: str, **allowed: bool | int) -> dict[str, Any]:
    return {"device": device, "kind": "sink", "nodeName": f"node-{device}", **allowed}


def test_a_claim_s_clients_are_stamped_with_who_they_are_and_all_that_any_request_holds() -> None:
    microphone = {"device": "mic", "kind": "source", "nodeName": "mic"}
    found = dict(client_properties(document(out=[sink("left"), sink("right")], talk=[microphone])))
    reach = json.loads(found.pop(REACH_PROPERTY))
    assert reach == {
        "left": {"direction": "playback"},
        "right": {"direction": "playback"},
        "mic": {"direction": "capture"},
    }
    assert found == {
        "pipewire.access": "claim",
        "pipewire.sec.engine": "audio.liken.sh",
        "pipewire.sec.app-id": "media/speakers",
        "pipewire.sec.instance-id": CLAIM_UID,
        "pipewire.sec.audio.liken.sh.server": "pipewire",
    }


def test_what_a_class_allows_holds_for_its_device_alone() -> None:
    made = document(out=[sink("left", monitor=True, setVolume=True, shared=True), sink("right")])
    assert json.loads(client_properties(made)[REACH_PROPERTY]) == {
        "left": {"direction": "playback", "monitor": True, "setVolume": True, "shared": True},
        "right": {"direction": "playback"},
    }


def test_the_pod_s_other_claims_are_reached_too_each_as_its_own_class_allows() -> None:
    microphone = {"device": "mic", "kind": "source"}
    made = document(out=[sink("left")])
    made["joined"] = [sink("left", monitor=True), sink("right", setVolume=True), microphone]
    assert json.loads(client_properties(made)[REACH_PROPERTY]) == {
        "left": {"direction": "playback", "monitor": True},
        "right": {"direction": "playback", "setVolume": True},
        "mic": {"direction": "capture"},
    }


def test_the_lowest_limit_counts_where_a_pod_s_claims_have_one_device() -> None:
    made = document(out=[sink("left", maxVolume=60)]) | {"joined": [sink("left", maxVolume=80)]}
    reach = json.loads(client_properties(made)[REACH_PROPERTY])
    assert reach == {"left": {"direction": "playback", "maxVolume": 60}}


def test_every_stamp_is_one_that_a_client_cannot_change() -> None:
    found = client_properties(document(out=[sink("left")]))
    assert all(key.startswith("pipewire.sec.") or key == "pipewire.access" for key in found)


def test_a_node_with_another_name_changes_no_stamp_and_so_cuts_nobody() -> None:
    before = client_properties(document(out=[sink("left")]))
    renamed = sink("left") | {"nodeName": "another", "rate": 44_100}
    assert client_properties(document(out=[renamed])) == before


def test_the_order_of_requests_changes_no_stamp() -> None:
    one = client_properties(document(a=[sink("left")], b=[sink("right")]))
    assert client_properties(document(b=[sink("right")], a=[sink("left")])) == one


@pytest.mark.parametrize("broken", [{}, {"claim": {}}, {"claim": None, "requests": {}}])
def test_what_is_no_claim_document_is_told(broken: dict[str, Any]) -> None:
    with pytest.raises((KeyError, TypeError)):
        client_properties(broken)
