"""What the agent tells the container and the holder of a claim."""

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
