"""A PipeWire and a WirePlumber of our own, with a D-Bus session and folders of their own.

Nothing of the machine's sound is used or seen. WirePlumber runs with the product's profile, so that
what links a stream here is what links it on a node.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.harness.processes import HarnessError, Program, Programs, wait_until

WIREPLUMBER = Path(__file__).parents[2] / "manifests" / "wireplumber"
READY_SECONDS = 45
TOOL_SECONDS = 45
# WirePlumber names this service of its client once its policy is loaded.
_READY_SERVICE = "policy.linking.standard"


class SoundStack:
    """The three daemons; `remote` is what the agent and the tools connect to."""

    PROGRAMS = ("dbus-daemon", "pipewire", "wireplumber", "pw-dump")

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        """Holds everything; only our user may enter it."""
        self.runtime = folder / "run"
        self.remote = self.runtime / "pipewire-0"
        self.media_bus = ""
        """D-Bus address of a bus with BlueZ; "": there is none."""
        self._programs = Programs(folder)
        self._dbus: Program | None = None
        self._pipewire: Program | None = None
        self._wireplumber: Program | None = None

    @property
    def environment(self) -> Mapping[str, str]:
        """All that a tool needs to reach this PipeWire and nothing else."""
        home = str(self.folder / "home")
        return {
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "HOME": home,
            "XDG_CONFIG_HOME": f"{home}/.config",
            "XDG_STATE_HOME": f"{home}/.state",
            "XDG_RUNTIME_DIR": str(self.runtime),
            "PIPEWIRE_REMOTE": str(self.remote),
            "DBUS_SESSION_BUS_ADDRESS": f"unix:path={self.runtime}/bus",
            # Where the machine has Bluetooth, its devices are none of ours.
            "DBUS_SYSTEM_BUS_ADDRESS": self.media_bus or f"unix:path={self.runtime}/no-system-bus",
        }

    @property
    def pipewire(self) -> Program:
        """The PipeWire daemon."""
        return _running("pipewire", self._pipewire)

    @property
    def wireplumber(self) -> Program:
        """The WirePlumber daemon."""
        return _running("wireplumber", self._wireplumber)

    def start(self) -> Self:
        """Start all three and wait until streams would be linked."""
        try:
            self._make_folders()
            self._start_dbus()
            self.start_pipewire()
            self.start_wireplumber()
        except BaseException:
            self.end()
            raise
        return self

    def end(self) -> None:
        """End all three."""
        self._programs.end()

    def start_pipewire(self) -> None:
        """Start PipeWire and wait until it answers; for after `pipewire.kill()`."""
        self._pipewire = self._programs.start("pipewire", ["pipewire"], self.environment)
        wait_until(self._answers, "PipeWire", READY_SECONDS, [self._pipewire])

    def start_wireplumber(self) -> None:
        """Start WirePlumber and wait until its policy is loaded; for after `wireplumber.kill()`."""
        command = ["wireplumber", "--profile", "liken-audio"]
        self._wireplumber = self._programs.start("wireplumber", command, self.environment)
        wait_until(self._has_policy, "WirePlumber", READY_SECONDS, [self._wireplumber])

    def restart_pipewire(self) -> None:
        """Kill PipeWire and start it anew; WirePlumber ends with it and is started too."""
        self.pipewire.kill()
        self.wireplumber.end()
        self.start_pipewire()
        self.start_wireplumber()

    def restart_wireplumber(self) -> None:
        """Kill WirePlumber and start it anew; PipeWire and its nodes stay."""
        self.wireplumber.kill()
        self.start_wireplumber()

    def run(self, *command: str) -> str:
        """Run a tool against this PipeWire and return what it printed."""
        try:
            done = subprocess.run(
                command,
                env=dict(self.environment),
                capture_output=True,
                text=True,
                errors="replace",
                timeout=TOOL_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise HarnessError(f"{' '.join(command)}: no end in {TOOL_SECONDS} s") from None
        if done.returncode != 0:
            raise HarnessError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
        return done.stdout

    def objects(self) -> Sequence[Mapping[str, Any]]:
        """All objects of the graph, as pw-dump gives them."""
        found: Sequence[Mapping[str, Any]] = json.loads(self.run("pw-dump", "--no-colors"))
        return found

    def nodes(self) -> Mapping[str, Mapping[str, Any]]:
        """The `info` of all nodes that have a name, by name."""
        nodes = [each for each in self.objects() if str(each["type"]).endswith(":Node")]
        infos = [each["info"] for each in nodes if each.get("info")]
        return {str(info["props"].get("node.name")): info for info in infos}

    def make_null_node(
        self, name: str, media_class: str = "Audio/Sink", *, device: str = ""
    ) -> None:
        """Make a stand-in for a card's node; it lives until PipeWire ends.

        With `device` it is the node of that device, as the agent makes one.
        """
        properties = (
            f"factory.name=support.null-audio-sink node.name={name} media.class={media_class} "
            "object.linger=true audio.position=[FL FR]"
        )
        if device:
            priority = 2000 if "Source" in media_class else 1000
            properties += f" audio.liken.sh.device={device} priority.session={priority}"
        self.run("pw-cli", "create-node", "adapter", f"{{ {properties} }}")
        wait_until(lambda: name in self.nodes(), f"the node {name}", READY_SECONDS)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.end()

    def _make_folders(self) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.runtime.mkdir(mode=0o700)
        fragments = self.folder / "home" / ".config" / "wireplumber" / "wireplumber.conf.d"
        fragments.mkdir(parents=True)
        shutil.copy(WIREPLUMBER / "50-liken-audio.conf", fragments)
        scripts = self.folder / "home" / ".local" / "share" / "wireplumber" / "scripts"
        scripts.mkdir(parents=True)
        shutil.copy(WIREPLUMBER / "claim-access.lua", scripts)

    def _start_dbus(self) -> None:
        address = self.environment["DBUS_SESSION_BUS_ADDRESS"]
        command = ["dbus-daemon", "--session", "--nofork", "--nopidfile", f"--address={address}"]
        self._dbus = self._programs.start("dbus", command, self.environment)
        wait_until((self.runtime / "bus").is_socket, "D-Bus", READY_SECONDS, [self._dbus])

    def _answers(self) -> bool:
        try:
            return bool(self.objects())
        except (HarnessError, ValueError):
            return False

    def _has_policy(self) -> bool:
        try:
            objects = self.objects()
        except (HarnessError, ValueError):
            return False
        properties = [(each.get("info") or {}).get("props") or {} for each in objects]
        return any(_READY_SERVICE in str(each.get("session.services")) for each in properties)


def _running(name: str, program: Program | None) -> Program:
    if program is None:
        raise HarnessError(f"{name} isn't started")
    return program
