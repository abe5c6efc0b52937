"""A claim's CDI file: the edits that its containers get.

One CDI device for each allocated device, so that a container that names one request of a claim
gets that request's variables. The runtime appends the edits of several devices in no fixed order
and the last value of a variable wins, so all devices of a claim say the same wherever they say the
same variable. The claim's directory is mounted, never a device node.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from liken_audio.api import DRIVER, Json
from liken_audio.dra import metadata
from liken_audio.dra.claim_folder import CONTAINER_DIR, PULSE_SOCKET, SOCKET
from liken_audio.dra.claims import ClaimedDevice, ClaimRecord, PreparedDevice
from liken_audio.dra.metadata import MetadataFile
from liken_audio.graph.model import Direction

KIND = f"{DRIVER}/claim"

_NOT_IN_VARIABLES = re.compile(r"[^A-Z0-9_]")


@dataclass(frozen=True, slots=True)
class CdiSpec:
    """A CDI file, as JSON."""

    document: Json


def spec(record: ClaimRecord, claims_dir: str) -> CdiSpec | None:
    """Return the claim's CDI file; None when the claim has no device of ours.

    `claims_dir` is the host's folder of claim directories.
    """
    if not record.devices:
        return None
    uid = record.ref.uid
    devices = [
        {
            "name": name,
            "containerEdits": {
                "env": [f"{key}={value}" for key, value in _environment(record, device).items()],
                "mounts": [
                    {
                        "hostPath": f"{claims_dir}/{uid}",
                        "containerPath": f"{CONTAINER_DIR}/{uid}",
                        "options": ["ro", "bind", "nosuid", "nodev", "noexec"],
                    }
                ],
            },
        }
        for device, name in zip(record.devices, _device_names(record), strict=True)
    ]
    return CdiSpec({"cdiVersion": _version(uid), "kind": KIND, "devices": devices})


def metadata_spec(record: ClaimRecord, file: MetadataFile, host_path: str) -> CdiSpec:
    """Return the CDI file that brings a request's metadata, at `host_path`, into its containers."""
    return CdiSpec(metadata.cdi_document(record, file, host_path, _version(record.ref.uid)))


def prepared(record: ClaimRecord) -> tuple[PreparedDevice, ...]:
    """Return what the kubelet is told of the claim; the same for the same allocation."""
    return tuple(
        PreparedDevice(
            request_names=(device.request_name,),
            pool=device.pool,
            device=device.device,
            cdi_ids=(f"{KIND}={name}", *_metadata_ids(record, place)),
            share_id=device.share_id,
        )
        for place, (device, name) in enumerate(
            zip(record.devices, _device_names(record), strict=True)
        )
    )


def _metadata_ids(record: ClaimRecord, place: int) -> Sequence[str]:
    """The id of the request's metadata, for its first device: each id is given once."""
    name = record.devices[place].request_name
    is_first = all(each.request_name != name for each in record.devices[:place])
    return [metadata.cdi_id(record, name)] if is_first and name in record.metadata else []


def _version(uid: str) -> str:
    """The oldest CDI version that allows all of it: a runtime refuses a file of one it doesn't know.

    0.3.0 refuses device names that start with a digit, as most UIDs do.
    """
    return "0.5.0" if uid[:1].isdigit() else "0.3.0"


def _device_names(record: ClaimRecord) -> Sequence[str]:
    """`<uid>_<request>`, further devices of a request `…_1`, `…_2`; requests hold no underscore."""
    names: list[str] = []
    for device in record.devices:
        name = f"{record.ref.uid}_{device.request_name}"
        count = sum(1 for n in names if n == name or n.startswith(f"{name}_"))
        names.append(f"{name}_{count}" if count else name)
    return names


def _environment(record: ClaimRecord, device: ClaimedDevice) -> dict[str, str]:
    socket = f"{CONTAINER_DIR}/{record.ref.uid}/{SOCKET}"
    node_variables = {_variable(d.request_name) for d in record.devices}
    variable = _variable(device.request_name)
    node = next(d.node_name for d in record.devices if d.request_name == device.request_name)
    # Requests of a pod's several claims may have one name: with the claim's it is the pod's alone.
    whole = f"{_variable(record.pod_claim_name or record.ref.name)}__{_upper(device.request_name)}"
    environment = {
        "PIPEWIRE_REMOTE": socket,
        "PIPEWIRE_NODE": _default_node(record),
        variable: node,
        whole: node,
    }
    if record.has_pulse:
        environment |= _pulse_environment(record)
    # A request named `x-remote` beside `x` owns LIKEN_AUDIO_X_REMOTE: a node's name is the promise,
    # the socket is also in PIPEWIRE_REMOTE.
    if f"{variable}_REMOTE" not in node_variables:
        environment |= {f"{variable}_REMOTE": socket, f"{whole}_REMOTE": socket}
    return environment


def _default_node(record: ClaimRecord) -> str:
    """The node of the claim's first sink; of its first source when it has no sink."""
    sinks = [d for d in record.devices if d.direction is Direction.PLAYBACK]
    return (sinks or list(record.devices))[0].node_name


def _pulse_environment(record: ClaimRecord) -> dict[str, str]:
    found = {"PULSE_SERVER": f"unix:{CONTAINER_DIR}/{record.ref.uid}/{PULSE_SOCKET}"}
    for variable, direction in (
        ("PULSE_SINK", Direction.PLAYBACK),
        ("PULSE_SOURCE", Direction.CAPTURE),
    ):
        nodes = [d.node_name for d in record.devices if d.direction is direction]
        if nodes:
            found[variable] = nodes[0]
    return found


def _variable(request: str) -> str:
    return f"LIKEN_AUDIO_{_upper(request)}"


def _upper(name: str) -> str:
    return _NOT_IN_VARIABLES.sub("_", name.upper())
