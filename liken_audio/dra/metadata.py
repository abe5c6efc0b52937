"""Device metadata for a claim's containers (KEP-5304): one file a request, in a place all drivers share.

A program finds it at `/var/run/kubernetes.io/dra-device-attributes/…/<request>/<driver>-metadata.json`
whatever driver made it: a stream of JSON objects that say the same, the newest version first, of
which it takes the first that it knows. The attributes are those that the slices publish, as they
were when the claim was prepared. The file comes into the container by a CDI device of its own.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from liken_audio.api import DRIVER, Json
from liken_audio.dra.claims import ClaimedDevice, ClaimRecord
from liken_audio.dra.devices import device
from liken_audio.dra.encoding import encode
from liken_audio.graph.model import DeviceName, Endpoint

CONTAINER_DIR = "/var/run/kubernetes.io/dra-device-attributes"
KIND = f"{DRIVER}/metadata"

_VERSIONS = ("v1beta1", "v1alpha1")
"""Of `metadata.resource.k8s.io`: Kubernetes 1.37's, then 1.36's."""
_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataFile:
    """What the containers that name one request get."""

    request: str
    """Base name; a DNS label, so fit for a path."""
    text: str
    container_path: str


def files(
    record: ClaimRecord, endpoints: Mapping[DeviceName, Endpoint]
) -> tuple[MetadataFile, ...]:
    """Return the file of each request whose devices are known here now."""
    return tuple(
        _file(record, name, endpoints)
        for name in dict.fromkeys(each.request_name for each in record.devices)
        if _LABEL.fullmatch(name)
        and all(each.device in endpoints for each in record.devices if each.request_name == name)
    )


def cdi_document(record: ClaimRecord, file: MetadataFile, host_path: str, version: str) -> Json:
    """Return the CDI file that mounts a metadata file; `version` is the CDI version to claim."""
    mount = {
        "hostPath": host_path,
        "containerPath": file.container_path,
        "options": ["ro", "bind", "nosuid", "nodev", "noexec"],
    }
    return {
        "cdiVersion": version,
        "kind": KIND,
        "devices": [
            {"name": f"{record.ref.uid}_{file.request}", "containerEdits": {"mounts": [mount]}}
        ],
    }


def cdi_id(record: ClaimRecord, request: str) -> str:
    """Return the id by which a container gets the file of a request."""
    return f"{KIND}={record.ref.uid}_{request}"


def _file(record: ClaimRecord, name: str, endpoints: Mapping[DeviceName, Endpoint]) -> MetadataFile:
    devices = [each for each in record.devices if each.request_name == name]
    objects = [_object(record, version, _requests(devices, endpoints)) for version in _VERSIONS]
    lines = [json.dumps(each, ensure_ascii=False, separators=(",", ":")) for each in objects]
    if record.pod_claim_name:
        folder = f"{CONTAINER_DIR}/resourceclaimtemplates/{record.pod_claim_name}"
    else:
        folder = f"{CONTAINER_DIR}/resourceclaims/{record.ref.name}"
    return MetadataFile(
        request=name,
        text="".join(f"{line}\n" for line in lines),
        container_path=f"{folder}/{name}/{DRIVER}-metadata.json",
    )


def _object(record: ClaimRecord, version: str, requests: list[Json]) -> Json:
    ref = record.ref
    return {
        "apiVersion": f"metadata.resource.k8s.io/{version}",
        "kind": "DeviceMetadata",
        "metadata": {"name": ref.name, "namespace": ref.namespace, "uid": ref.uid},
        **({"podClaimName": record.pod_claim_name} if record.pod_claim_name else {}),
        "requests": requests,
    }


def _requests(
    devices: Sequence[ClaimedDevice], endpoints: Mapping[DeviceName, Endpoint]
) -> list[Json]:
    """Return the entries by request as allocated: `main`, or `main/sub`."""
    found: dict[str, list[Json]] = {}
    for each in devices:
        attributes = encode(device(endpoints[each.device], None)).get("attributes", {})
        found.setdefault(each.request, []).append(
            {
                "driver": DRIVER,
                "pool": each.pool,
                "name": str(each.device),
                "attributes": attributes,
            }
        )
    return [{"name": name, "devices": listed} for name, listed in found.items()]
