"""A claim's folder: where it lies and what is in it, on the host and in the container.

Written by the agent, given its socket by claim-sockets, mounted by the container runtime: the
three agree here. Imports next to nothing, since claim-sockets must stay small.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from liken_audio.api import DRIVER, Json

CONTAINER_DIR = f"/run/{DRIVER}"
"""Parent of the claims' folders inside a container."""
SOCKET = "pipewire-0"
"""A claim's PipeWire socket."""
PULSE_SOCKET = "pulse"
"""Its socket for PulseAudio's clients, where the claim's parameters allow it."""
CLAIM_FILE = "claim.json"
"""What the claim holds; a folder without it is on its way out and has no socket."""

REACH_PROPERTY = f"pipewire.sec.{DRIVER}.reach"
"""Property of a claim's clients by which WirePlumber knows what they may see: `claim-access.lua`."""
SERVER_PROPERTY = f"pipewire.sec.{DRIVER}.server"
"""Property that tells the claim's pipewire-pulse, which may do more, from the container's clients."""

_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")


def is_claim_uid(text: str) -> bool:
    """Whether `text` can be a claim's UID, and so a folder's and a file's name."""
    return _UID.fullmatch(text) is not None


def client_properties(document: Json) -> Mapping[str, str]:
    """Return what `claim.json` says of the claim's clients, as properties that PipeWire stamps.

    A client can change no property whose name begins with `pipewire.sec.`, and any other one
    (measured with 1.4.2); `pipewire.access` stays as it is stamped. With one that PipeWire and
    WirePlumber don't know, a client waits until `claim-access.lua` lets it in. A change cuts the
    claim's clients: while its containers run there is only one, when a second pod comes to have a
    claim that was joined with others. Raises `KeyError` or `TypeError` when the document isn't one.
    """
    claim = document["claim"]
    return {
        "pipewire.access": "claim",
        "pipewire.sec.engine": DRIVER,
        "pipewire.sec.app-id": f"{claim['namespace']}/{claim['name']}",
        "pipewire.sec.instance-id": claim["uid"],
        REACH_PROPERTY: json.dumps(_reach(document), sort_keys=True),
        SERVER_PROPERTY: "pipewire",
    }


def _reach(document: Json) -> Mapping[str, Mapping[str, Any]]:
    """Return what each device may be used for: of any request, and of the pod's other claims."""
    reach: dict[str, dict[str, Any]] = {}
    for devices in (*document["requests"].values(), document.get("joined", ())):
        for device in devices:
            direction = {"sink": "playback", "source": "capture"}[device["kind"]]
            allowed = [key for key in ("monitor", "setVolume", "shared") if device.get(key)]
            known = reach.setdefault(device["device"], {"direction": direction})
            known.update(dict.fromkeys(allowed, True))
            if "maxVolume" in device:
                known["maxVolume"] = min(device["maxVolume"], known.get("maxVolume", 100))
    return reach
