"""The metadata file: one a request, in the form and the place that all drivers share."""

import json
from typing import Any

import pytest

from liken_audio.dra.claims import ClaimRecord
from liken_audio.dra.metadata import MetadataFile, cdi_id, files
from tests.builders import CLAIM_UID, claim_record, claimed_device, endpoint, node

ANALOG = "kitchen-pci-0000-00-1f-3-alc257-analog"
PLACE = "/var/run/kubernetes.io/dra-device-attributes"


def made(record: ClaimRecord, *names: str) -> tuple[MetadataFile, ...]:
    return files(record, {each.name: each for each in map(endpoint, names or (ANALOG,))})


def objects(file: MetadataFile) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.text.splitlines()]


def test_a_file_is_a_stream_of_objects_that_say_the_same_the_newest_version_first() -> None:
    (file,) = made(claim_record())
    newest, older = objects(file)
    assert newest.pop("apiVersion") == "metadata.resource.k8s.io/v1beta1"
    assert older.pop("apiVersion") == "metadata.resource.k8s.io/v1alpha1"
    assert newest == older
    (request,) = newest.pop("requests")
    assert newest == {
        "kind": "DeviceMetadata",
        "metadata": {"name": "speakers", "namespace": "media", "uid": CLAIM_UID},
    }
    (device,) = request.pop("devices")
    assert request == {"name": "out"}
    attributes = device.pop("attributes")
    assert device == {"driver": "audio.liken.sh", "pool": "kitchen", "name": ANALOG}
    assert attributes["sink"] == {"string": ANALOG}
    assert attributes["channels"] == {"int": 2}


def test_a_named_claim_s_file_lies_under_the_claim_s_name() -> None:
    (file,) = made(claim_record())
    assert file.container_path == (
        f"{PLACE}/resourceclaims/speakers/out/audio.liken.sh-metadata.json"
    )


def test_a_template_s_claim_lies_under_its_name_in_the_pod_and_says_it() -> None:
    (file,) = made(claim_record(pod_claim_name="audio"))
    assert file.container_path == (
        f"{PLACE}/resourceclaimtemplates/audio/out/audio.liken.sh-metadata.json"
    )
    assert [each["podClaimName"] for each in objects(file)] == ["audio", "audio"]


def test_a_subrequest_lies_under_its_base_and_is_named_whole() -> None:
    (file,) = made(claim_record(claimed_device(request="main/best")))
    assert file.request == "main"
    assert "/main/" in file.container_path
    assert [each["name"] for each in objects(file)[0]["requests"]] == ["main/best"]


def test_each_request_has_its_own_file_with_all_its_devices() -> None:
    record = claim_record(
        claimed_device(device="left"),
        claimed_device(device="other", request="second"),
        claimed_device(device="right"),
    )
    out, second = made(record, "left", "right", "other")
    names = [each["name"] for each in objects(out)[0]["requests"][0]["devices"]]
    assert (out.request, names) == ("out", ["left", "right"])
    assert second.request == "second"


def test_the_attributes_are_those_of_now() -> None:
    renamed = endpoint(ANALOG, node=node("renamed"))
    (file,) = files(claim_record(), {renamed.name: renamed})
    (request,) = objects(file)[0]["requests"]
    assert request["devices"][0]["attributes"]["nodeName"] == {"string": "renamed"}


def test_a_device_that_is_gone_leaves_its_file_as_it_was() -> None:
    record = claim_record(claimed_device(), claimed_device(device="gone", request="second"))
    assert [file.request for file in made(record)] == ["out"]


@pytest.mark.parametrize("request_name", ["..", ".", "", "A", "a_b", "-a", "a" * 64])
def test_a_request_that_is_no_label_has_no_file(request_name: str) -> None:
    assert made(claim_record(claimed_device(request=request_name))) == ()


def test_a_claim_without_devices_of_ours_has_no_file() -> None:
    record = claim_record()
    empty = ClaimRecord(ref=record.ref, boot_id="b", state=record.state)
    assert made(empty) == ()


def test_the_id_names_claim_and_request() -> None:
    assert cdi_id(claim_record(), "out") == f"audio.liken.sh/metadata={CLAIM_UID}_out"
