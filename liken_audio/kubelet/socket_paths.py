"""Where the two sockets lie: names that fit the kernel's limit, and the leftovers of the dead.

The kubelet's root may be long (snap packages), and in a rolling update each pod's sockets carry
its UID; so the names come from a list of candidates, the first that fits. They are those of the
kubelet's own Go library, so that a change of driver or of version finds the same files.
"""

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

LONGEST = 107
"""Bytes in a socket's path: `sun_path` holds 108, one of them the terminating zero."""


class SocketPathError(ValueError):
    """No name fits; the message says by how much."""


@dataclass(frozen=True, slots=True)
class SocketPaths:
    """The paths of one instance of the driver."""

    registration: Path
    plugin: Path
    """The DRA socket: the endpoint that GetInfo names."""


def socket_paths(driver: str, registry_dir: Path, plugin_dir: Path, pod_uid: str) -> SocketPaths:
    """Choose the names; an empty `pod_uid` means one instance at a time. Raises SocketPathError."""
    if pod_uid:
        registration = [
            f"{driver}-{pod_uid}-reg.sock",
            f"{driver}-{_short(pod_uid, 8)}-reg.sock",
            f"dra-{_short(chr(0).join((driver, pod_uid)), 16)}-reg.sock",
        ]
        plugin = [f"dra-{pod_uid}.sock", f"dra-{_short(pod_uid, 8)}.sock"]
    else:
        registration, plugin = [f"{driver}-reg.sock"], ["dra.sock"]
    return SocketPaths(_fitting(registry_dir, registration), _fitting(plugin_dir, plugin))


def relatives(driver: str, paths: SocketPaths) -> list[Path]:
    """Return the sockets beside ours that another instance of this driver made, dead or alive."""
    found = [
        *paths.registration.parent.glob(f"{driver}-*reg.sock"),
        *paths.plugin.parent.glob("dra*.sock"),
    ]
    return sorted(path for path in found if path not in {paths.registration, paths.plugin})


def _short(text: str, length: int) -> str:
    digest = hashlib.sha256(text.encode()).digest()[:length]
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def _fitting(folder: Path, names: Sequence[str]) -> Path:
    for name in names:
        path = folder / name
        if len(bytes(path)) <= LONGEST:
            return path
    shortest = min((folder / name for name in names), key=lambda path: len(bytes(path)))
    raise SocketPathError(
        f"the path {shortest} has {len(bytes(shortest))} bytes, a socket's can have {LONGEST}:"
        f" {folder} must be {len(bytes(shortest)) - LONGEST} bytes shorter"
    )
