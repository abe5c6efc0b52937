"""The CDI file: right for the runtime, and the same container whatever the order of edits."""

import itertools
import json
import re
from dataclasses import replace
from typing import Any

import pytest

from liken_audio.dra.cdi import KIND, metadata_spec, prepared, spec
from liken_audio.dra.claims import ClaimedDevice, ClaimRecord, PreparedDevice
from liken_audio.dra.metadata import MetadataFile
from liken_audio.dra.parameters import Parameters
from liken_audio.graph.model import Direction
from tests.builders import CLAIM_UID, claim_record, claim_ref, claimed_device

SINK = claimed_device(device="speaker")
SECOND_SINK = claimed_device(device="tv", request="tv")
SOURCE = claimed_device(device="mic", request="in", direction=Direction.CAPTURE)


def document(*devices: ClaimedDevice, uid: str = CLAIM_UID) -> dict[str, Any]:
    made = spec(claim_record(*devices, ref=claim_ref(uid)), "/run/claims")
    assert made is not None
    return made.document


def environment(device: dict[str, Any]) -> dict[str, str]:
    return dict(entry.split("=", 1) for entry in device["containerEdits"]["env"])


def container(*devices: dict[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """Variables and mounts of a container: the last one wins, as in the runtimes."""
    variables: dict[str, str] = {}
    mounts: dict[str, str] = {}
    for device in devices:
        variables |= environment(device)
        for mount in device["containerEdits"]["mounts"]:
            mounts[mount["containerPath"]] = mount["hostPath"]
    return variables, mounts


def test_a_claim_of_one_sink_makes_this_file() -> None:
    folder = f"/run/audio.liken.sh/{CLAIM_UID}"
    assert document(SINK) == {
        "cdiVersion": "0.5.0",
        "kind": "audio.liken.sh/claim",
        "devices": [
            {
                "name": f"{CLAIM_UID}_out",
                "containerEdits": {
                    "env": [
                        f"PIPEWIRE_REMOTE={folder}/pipewire-0",
                        "PIPEWIRE_NODE=speaker",
                        "LIKEN_AUDIO_OUT=speaker",
                        "LIKEN_AUDIO_SPEAKERS__OUT=speaker",
                        f"PULSE_SERVER=unix:{folder}/pulse",
                        "PULSE_SINK=speaker",
                        f"LIKEN_AUDIO_OUT_REMOTE={folder}/pipewire-0",
                        f"LIKEN_AUDIO_SPEAKERS__OUT_REMOTE={folder}/pipewire-0",
                    ],
                    "mounts": [
                        {
                            "hostPath": f"/run/claims/{CLAIM_UID}",
                            "containerPath": folder,
                            "options": ["ro", "bind", "nosuid", "nodev", "noexec"],
                        }
                    ],
                },
            }
        ],
    }


def test_a_claim_needs_no_device_node_no_hook_and_no_group() -> None:
    for device in document(SINK, SOURCE)["devices"]:
        assert set(device["containerEdits"]) == {"env", "mounts"}


@pytest.mark.parametrize(
    ("uid", "version"), [("7d1c", "0.5.0"), ("ad1c", "0.3.0")], ids=["digit", "letter"]
)
def test_the_version_is_the_oldest_that_allows_the_names(uid: str, version: str) -> None:
    assert document(SINK, uid=uid)["cdiVersion"] == version


def test_a_claim_without_devices_of_ours_makes_no_file() -> None:
    empty = ClaimRecord(ref=claim_ref(), boot_id="b", state=claim_record().state)
    assert spec(empty, "/run/claims") is None
    assert prepared(empty) == ()


def test_the_kubelet_is_told_the_names_that_are_in_the_file() -> None:
    record = claim_record(SINK, SOURCE)
    told = [cdi_id for device in prepared(record) for cdi_id in device.cdi_ids]
    written = [f"{KIND}={device['name']}" for device in document(SINK, SOURCE)["devices"]]
    assert told == written


def test_the_kubelet_is_told_base_names_pool_device_and_share() -> None:
    record = claim_record(claimed_device(device="speaker", request="main/sub", share_id="s1"))
    assert prepared(record) == (
        PreparedDevice(
            request_names=("main",),
            pool="kitchen",
            device="speaker",
            cdi_ids=(f"audio.liken.sh/claim={CLAIM_UID}_main",),
            share_id="s1",
        ),
    )


def test_the_first_device_of_each_request_bears_the_id_of_its_metadata() -> None:
    record = claim_record(SINK, SECOND_SINK, claimed_device(device="third"), metadata=("out",))
    ids = [device.cdi_ids for device in prepared(record)]
    assert ids[0] == (f"{KIND}={CLAIM_UID}_out", f"audio.liken.sh/metadata={CLAIM_UID}_out")
    assert [len(each) for each in ids] == [2, 1, 1], "no metadata was written for the request tv"


def test_the_file_of_metadata_mounts_one_file_for_reading() -> None:
    record = claim_record(SINK)
    file = MetadataFile(request="out", text="{}", container_path="/var/run/x/metadata.json")
    assert metadata_spec(record, file, "/plugin/metadata.json").document == {
        "cdiVersion": "0.5.0",
        "kind": "audio.liken.sh/metadata",
        "devices": [
            {
                "name": f"{CLAIM_UID}_out",
                "containerEdits": {
                    "mounts": [
                        {
                            "hostPath": "/plugin/metadata.json",
                            "containerPath": "/var/run/x/metadata.json",
                            "options": ["ro", "bind", "nosuid", "nodev", "noexec"],
                        }
                    ]
                },
            }
        ],
    }


def test_several_claims_with_equal_request_names_are_all_named_in_every_order() -> None:
    """And what is said of the socket and of the node comes from one claim."""
    made = []
    for name, devices in {
        "speakers": (SINK,),
        "tv-sound": (SECOND_SINK,),
        "mic": (SOURCE,),
    }.items():
        renamed = [replace(each, request="audio") for each in devices]
        record = claim_record(*renamed, ref=claim_ref(f"uid-{name}", name), pod_claim_name=name)
        document = spec(record, "/run/claims")
        assert document is not None
        made.append(document.document["devices"][0])
    nodes = {"uid-speakers": "speaker", "uid-tv-sound": "tv", "uid-mic": "mic"}
    for order in itertools.permutations(made):
        variables, mounts = container(*order)
        for uid, node_name in nodes.items():
            variable = f"LIKEN_AUDIO_{uid[4:].upper().replace('-', '_')}__AUDIO"
            socket = f"/run/audio.liken.sh/{uid}/pipewire-0"
            assert variables[variable] == node_name
            assert variables[f"{variable}_REMOTE"] == socket
            assert socket.rpartition("/")[0] in mounts
        chosen = variables["PIPEWIRE_REMOTE"].split("/")[3]
        assert variables["PIPEWIRE_NODE"] == variables["LIKEN_AUDIO_AUDIO"] == nodes[chosen]
        assert variables["LIKEN_AUDIO_AUDIO_REMOTE"] == variables["PIPEWIRE_REMOTE"]


def test_device_names_are_unique_and_valid_for_cdi() -> None:
    twelve = [claimed_device(device=f"speaker-{i}") for i in range(12)]
    names = [device["name"] for device in document(*twelve, SOURCE)["devices"]]
    assert len(set(names)) == 13
    assert all(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.:-]*[A-Za-z0-9]", name) for name in names)


def test_a_request_named_like_a_numbered_one_stays_apart() -> None:
    devices = [claimed_device(device=f"s{i}", request=r) for i, r in enumerate(["a", "a", "a-1"])]
    names = [device["name"] for device in document(*devices)["devices"]]
    assert len(set(names)) == 3


def test_the_default_node_is_the_sink_s_even_when_the_source_comes_first() -> None:
    for devices in ((SOURCE, SINK), (SINK, SOURCE)):
        for device in document(*devices)["devices"]:
            assert environment(device)["PIPEWIRE_NODE"] == "speaker"


def test_the_default_node_of_a_claim_without_a_sink_is_its_source_s() -> None:
    assert environment(document(SOURCE)["devices"][0])["PIPEWIRE_NODE"] == "mic"


def test_pulse_clients_are_told_the_first_sink_and_the_first_source_that_there_is() -> None:
    for device in document(SOURCE, SINK, SECOND_SINK)["devices"]:
        found = environment(device)
        assert (found["PULSE_SINK"], found["PULSE_SOURCE"]) == ("speaker", "mic")
    assert "PULSE_SINK" not in environment(document(SOURCE)["devices"][0])
    assert "PULSE_SOURCE" not in environment(document(SINK)["devices"][0])


def test_a_claim_without_a_pulse_socket_tells_of_none() -> None:
    silent = claimed_device(device="tv", parameters=Parameters(pulse=False))
    for device in document(SINK, silent)["devices"]:
        assert not [key for key in environment(device) if key.startswith("PULSE_")]


def test_the_devices_of_a_claim_make_the_same_container_in_every_order() -> None:
    pair = claimed_device(device="speaker-2")  # a second device of the request `out`
    devices = document(SOURCE, SINK, pair, SECOND_SINK)["devices"]
    containers = [container(*order) for order in itertools.permutations(devices)]
    assert all(each == containers[0] for each in containers)
    variables, mounts = containers[0]
    assert variables["LIKEN_AUDIO_OUT"] == "speaker"
    assert variables["LIKEN_AUDIO_TV"] == "tv"
    assert variables["LIKEN_AUDIO_IN"] == "mic"
    assert len(mounts) == 1


def test_two_claims_in_a_container_keep_node_and_socket_together_in_every_order() -> None:
    claims = [
        document(SINK, uid="11")["devices"][0],
        document(claimed_device(device="speaker-b"), uid="22")["devices"][0],
    ]
    for order in itertools.permutations(claims):
        variables, mounts = container(*order)
        uid = {"speaker": "11", "speaker-b": "22"}[variables["LIKEN_AUDIO_OUT"]]
        assert variables["LIKEN_AUDIO_OUT_REMOTE"] == f"/run/audio.liken.sh/{uid}/pipewire-0"
        assert variables["PIPEWIRE_NODE"] == variables["LIKEN_AUDIO_OUT"]
        assert variables["PIPEWIRE_REMOTE"] == variables["LIKEN_AUDIO_OUT_REMOTE"]
        assert len(mounts) == 2


@pytest.mark.parametrize(
    ("request_name", "variable"),
    [
        ("left-speaker", "LIKEN_AUDIO_LEFT_SPEAKER"),
        ("0-req", "LIKEN_AUDIO_0_REQ"),
        ("container-0-request-1", "LIKEN_AUDIO_CONTAINER_0_REQUEST_1"),
        ("main/best", "LIKEN_AUDIO_MAIN"),
        ("x" * 63, "LIKEN_AUDIO_" + "X" * 63),
    ],
)
def test_each_request_has_a_variable_of_its_name(request_name: str, variable: str) -> None:
    device = document(claimed_device(device="speaker", request=request_name))["devices"][0]
    assert environment(device)[variable] == "speaker"
    assert all(re.fullmatch(r"[A-Z_][A-Z0-9_]*", name) for name in environment(device))


def test_a_request_whose_name_ends_in_remote_keeps_its_node_s_variable() -> None:
    odd = claimed_device(device="tv", request="out-remote")
    devices = document(SINK, odd)["devices"]
    for order in itertools.permutations(devices):
        variables, _ = container(*order)
        assert variables["LIKEN_AUDIO_OUT"] == "speaker"
        assert variables["LIKEN_AUDIO_OUT_REMOTE"] == "tv"
        assert variables["LIKEN_AUDIO_OUT_REMOTE_REMOTE"].endswith("/pipewire-0")


def test_a_name_in_any_script_is_json() -> None:
    made = document(claimed_device(node_name="スピーカー"))
    assert json.loads(json.dumps(made)) == made
