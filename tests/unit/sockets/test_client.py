"""What the agent tells the container and the holder of a claim."""

from liken_audio.dra.parameters import Parameters
from liken_audio.graph.model import Direction
from liken_audio.sockets.client import claim_document
from tests.builders import CLAIM_UID, claim_record, claimed_device


def test_claim_json_names_each_request_s_devices_in_order() -> None:
    record = claim_record(
        claimed_device(device="left", request="pair", node_name="node-left"),
        claimed_device(device="right", request="pair/best", node_name="node-right"),
        claimed_device(
            device="mic", request="in", direction=Direction.CAPTURE, channels=1, rate_hz=16_000
        ),
    )
    assert claim_document(record) == {
        "version": 1,
        "claim": {"namespace": "media", "name": "speakers", "uid": CLAIM_UID},
        "pulse": True,
        "requests": {
            "pair": [
                {
                    "device": "left",
                    "kind": "sink",
                    "nodeName": "node-left",
                    "channels": 2,
                    "rate": 48_000,
                },
                {
                    "device": "right",
                    "kind": "sink",
                    "nodeName": "node-right",
                    "channels": 2,
                    "rate": 48_000,
                },
            ],
            "in": [
                {
                    "device": "mic",
                    "kind": "source",
                    "nodeName": "mic",
                    "channels": 1,
                    "rate": 16_000,
                }
            ],
        },
    }


def test_claim_json_says_what_the_class_allows_and_that_others_share_the_device() -> None:
    allowing = Parameters(monitor=True, set_volume=True, max_volume=60)
    record = claim_record(
        claimed_device(parameters=allowing, share_id="0c1f"), claimed_device(device="other")
    )
    allowed, plain = claim_document(record)["requests"]["out"]
    assert (allowed["monitor"], allowed["setVolume"], allowed["shared"]) == (True, True, True)
    assert allowed["maxVolume"] == 60
    assert not plain.keys() & {"monitor", "setVolume", "shared", "maxVolume"}


def test_one_device_without_pulse_leaves_the_claim_without_its_socket() -> None:
    record = claim_record(claimed_device(), claimed_device(parameters=Parameters(pulse=False)))
    assert claim_document(record)["pulse"] is False


def test_claim_json_names_what_the_pod_s_other_claims_let_it_reach() -> None:
    monitored = claimed_device(device="tv", parameters=Parameters(monitor=True))
    microphone = claimed_device(device="mic", direction=Direction.CAPTURE, share_id="0c1f")
    assert claim_document(claim_record(), (monitored, microphone))["joined"] == [
        {"device": "tv", "kind": "sink", "monitor": True},
        {"device": "mic", "kind": "source", "shared": True},
    ]
    assert "joined" not in claim_document(claim_record())
