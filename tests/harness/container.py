"""A stand-in for the container runtime: CDI files read as a runtime does, and a child that gets
their edits and nothing else of the machine's.

The child runs in namespaces of its own, with a read-only root, no network, no capability, as a user
without rights; see container.sh. What a CDI file may not hold fails loudly here: a test should
notice device nodes or hooks, which this driver never needs.
"""

import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.harness.processes import HarnessError, Program, Programs

USER = 65534
"""Nobody: neither root nor a member of any group."""
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SCRIPT = Path(__file__).with_name("container.sh")
_KIND = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*[A-Za-z0-9]/[A-Za-z][A-Za-z0-9_-]*[A-Za-z0-9]")
_DEVICE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True)
class Mount:
    """One bind mount of a CDI file."""

    host_path: str
    container_path: str
    options: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Edits:
    """What CDI files add to a container."""

    environment: Mapping[str, str]
    mounts: tuple[Mount, ...]


class CdiError(HarnessError):
    """A runtime would refuse this CDI file, or doesn't find the device."""


def read_edits(folders: Sequence[Path], ids: Sequence[str]) -> Edits:
    """Return the edits of CDI devices by qualified name, in that order.

    As in a runtime: each id once, the last value of a variable and of a mount's place wins.
    """
    devices: dict[str, Mapping[str, Any]] = {}
    for folder in folders:
        devices.update(_devices_of_folder(folder))
    missing = [each for each in ids if each not in devices]
    if missing:
        raise CdiError(f"unresolvable CDI devices {missing}; there are {sorted(devices)}")
    environment: dict[str, str] = {}
    mounts: dict[str, Mount] = {}
    for each in dict.fromkeys(ids):
        edits = devices[each]
        environment.update(entry.split("=", 1) for entry in edits.get("env", ()))
        for mount in edits.get("mounts", ()):
            mounts[mount["containerPath"]] = Mount(
                mount["hostPath"], mount["containerPath"], tuple(mount.get("options", ()))
            )
    return Edits(environment, tuple(mounts.values()))


def start_container(
    programs: Programs,
    name: str,
    command: Sequence[str],
    environment: Mapping[str, str],
    edits: Edits,
) -> Program:
    """Start a child with the edits; only `kill` ends it early, since it is PID 1 of its own."""
    root = tempfile.mkdtemp(prefix="root-", dir=programs.folder)
    mounts: list[str] = []
    for mount in edits.mounts:
        # container.sh binds anyway; told twice, mount 2.41 makes a loop device of a file over 1 KiB.
        options = ",".join(each for each in mount.options if each != "bind")
        mounts += [mount.host_path, mount.container_path, options or "rw"]
    namespaces = ["--mount", "--pid", "--net", "--ipc", "--uts", "--fork", "--kill-child=KILL"]
    inside = [str(_SCRIPT), root, str(USER), *mounts, "--", *command]
    everything = {"PATH": PATH} | dict(environment) | dict(edits.environment)
    return programs.start(name, ["unshare", *namespaces, "--", *inside], everything)


def _devices_of_folder(folder: Path) -> dict[str, Mapping[str, Any]]:
    found: dict[str, Mapping[str, Any]] = {}
    dropped: set[str] = set()
    for file in sorted(folder.glob("*.json")):
        for name, edits in _devices_of_file(file).items():
            # Of two files with one device name, a runtime takes neither.
            if name in found:
                dropped.add(name)
            found[name] = edits
    return {name: edits for name, edits in found.items() if name not in dropped}


def _devices_of_file(file: Path) -> dict[str, Mapping[str, Any]]:
    try:
        document = json.loads(file.read_bytes())
    except ValueError as error:
        raise CdiError(f"{file}: {error}") from None
    _only(file, document, {"cdiVersion", "kind", "devices"})
    if not _KIND.fullmatch(document["kind"]):
        raise CdiError(f"{file}: no valid kind: {document['kind']}")
    devices: dict[str, Mapping[str, Any]] = {}
    for device in document["devices"]:
        _only(file, device, {"name", "containerEdits"})
        if not _DEVICE.fullmatch(device["name"]):
            raise CdiError(f"{file}: no valid device name: {device['name']}")
        devices[f"{document['kind']}={device['name']}"] = _checked(file, device["containerEdits"])
    return devices


def _checked(file: Path, edits: Mapping[str, Any]) -> Mapping[str, Any]:
    _only(file, edits, {"env", "mounts"})
    if not edits:
        raise CdiError(f"{file}: a device without edits makes the whole file invalid")
    for entry in edits.get("env", ()):
        if "=" not in entry:
            raise CdiError(f"{file}: no variable: {entry}")
    for mount in edits.get("mounts", ()):
        _only(file, mount, {"hostPath", "containerPath", "options"})
    return edits


def _only(file: Path, part: Mapping[str, Any], allowed: set[str]) -> None:
    extra = sorted(set(part) - allowed)
    if extra:
        raise CdiError(f"{file}: fields that a claim's CDI file shouldn't hold: {extra}")
