"""The checkpoint survives a restart, a downgrade and an upgrade."""

import json
from typing import Any

import pytest

from liken_audio.dra.checkpoint import VERSION, CheckpointError, decode, encode
from liken_audio.dra.claims import ClaimState
from liken_audio.dra.consumers import Consumers, Pod
from liken_audio.dra.parameters import Parameters
from liken_audio.graph.model import Direction
from tests.builders import claim_record, claimed_device

FULL = claim_record(
    claimed_device(
        request="main/sub",
        share_id="s1",
        parameters=Parameters(
            codec="aac", pulse=False, monitor=True, set_volume=True, max_volume=0
        ),
    ),
    claimed_device(direction=Direction.CAPTURE, is_admin=True, node_name="日本語"),
    state=ClaimState.STARTED,
    consumers=Consumers(pods=(Pod("a", "uid-a"), Pod("b", "uid-b")), is_shared=True),
    pod_claim_name="audio",
    metadata=("main",),
)
OWN = claim_record(consumers=Consumers(pods=(Pod("a", "uid-a"),), is_for_one=True))


@pytest.mark.parametrize("record", [FULL, OWN, claim_record()], ids=["full", "own", "plain"])
def test_what_is_written_is_read_back_whole(record: Any) -> None:
    assert decode(json.loads(json.dumps(encode(record)))) == record


def test_fields_of_a_newer_version_are_kept_through_an_older_one() -> None:
    document = encode(claim_record())
    document |= {"version": VERSION + 1, "later": {"a": [1]}}
    document["devices"][0]["latency"] = 20
    assert encode(decode(document)) == document


def test_a_file_of_before_pods_were_known_is_read_as_of_nobody_known() -> None:
    document = encode(claim_record())
    assert not {"consumers", "podClaimName", "metadata"} & document.keys()
    assert decode(document).consumers == Consumers()


def test_the_file_says_its_version() -> None:
    assert encode(claim_record())["version"] == VERSION == 1


@pytest.mark.parametrize(
    "spoil",
    [
        lambda d: d.pop("claim"),
        lambda d: d.pop("version"),
        lambda d: d.update(state="half"),
        lambda d: d.update(devices=None),
        lambda d: d.update(bootId=7),
        lambda d: d.update(consumers=None),
        lambda d: d.update(consumers={"pods": [{"name": "a"}]}),
        lambda d: d.update(podClaimName=7),
        lambda d: d.update(metadata=[1]),
        lambda d: d["devices"][0].pop("pool"),
        lambda d: d["devices"][0].update(direction="up"),
        lambda d: d["devices"][0].update(parameters=[]),
        lambda d: d.update(version=float("inf")),
        lambda d: d["devices"][0].update(rateHz=float("inf")),
        lambda d: d["devices"][0].update(shareId=7),
        lambda d: d["devices"][0]["parameters"].update(maxVolume="50"),
        lambda d: d["devices"][0]["parameters"].update(maxVolume=101),
        lambda d: d["devices"][0]["parameters"].update(codec=["aac"]),
    ],
)
def test_a_file_that_lacks_something_is_an_error_and_not_a_half_record(spoil: Any) -> None:
    document = encode(claim_record())
    spoil(document)
    with pytest.raises(CheckpointError):
        decode(document)


@pytest.mark.parametrize("document", [None, [], "text", 3, {}])
def test_a_file_that_holds_something_else_is_an_error(document: Any) -> None:
    with pytest.raises(CheckpointError):
        decode(document)
