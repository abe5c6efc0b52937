"""A node with our agent: its folders as a kubelet lays them out, claim-sockets, and the agent.

The kubelet's folders lie under the given one, so that several nodes fit on one machine; its path
must be short, since a Unix socket's path has at most 107 bytes.
"""

import contextlib
import json
import os
import sys
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.harness.cluster import Cluster, Json
from tests.harness.control_plane import free_ports
from tests.harness.kubelet_role import KubeletRole
from tests.harness.processes import HarnessError, Program, Programs, python_cache, wait_until
from tests.harness.sound_stack import SoundStack

DRIVER = "audio.liken.sh"
METADATA_PREFIX = f"{DRIVER}_metadata_"
READY_SECONDS = 45
TREE = Path(__file__).parents[2]
_FAULTS = Path(__file__).parent / "faults"
# In a mount namespace of the agent's own, which ends with it.
_OTHER_BOOT = 'mount --bind "$0" /proc/sys/kernel/random/boot_id && exec "$@"'


class Node:
    """The agent's processes on one node; they run as on a real one, but for their paths."""

    def __init__(
        self, folder: Path, name: str, *, cluster: Cluster, stack: SoundStack, virtual: Path
    ) -> None:
        self.name = name
        self.cluster = cluster
        self.stack = stack
        self.virtual = virtual
        self.flags: dict[str, str] = {}
        """What agents started from now on are told besides, or instead."""
        self.boot_id = ""
        """The boot that they see, if it isn't the machine's own."""
        self.media_bus = ""
        """D-Bus address of the bus with BlueZ; "": there is none."""
        self.die_at: tuple[str, int] | None = None
        """Before which change of files they die: a part of the path, and which of its changes."""
        self.start_seconds: float = READY_SECONDS
        """How long a process may take to answer after its start."""
        self.registry = folder / "registry"
        self.plugin = folder / "plugin"
        self.cdi = folder / "cdi"
        self.claims = folder / "claims"
        self.http_port = free_ports(1)[0]
        self._folder = folder
        self._programs = Programs(folder)
        self._agent: Program | None = None
        self._claim_sockets: Program | None = None

    @property
    def agent(self) -> Program:
        """The agent's process."""
        if self._agent is None:
            raise HarnessError("the agent isn't started")
        return self._agent

    def programs(self) -> Sequence[Program]:
        """The newest of both, as far as started."""
        return [each for each in (self._agent, self._claim_sockets) if each is not None]

    @property
    def claim_sockets(self) -> Program:
        """The process that holds the claims' sockets."""
        if self._claim_sockets is None:
            raise HarnessError("claim-sockets isn't started")
        return self._claim_sockets

    def start(self) -> Self:
        """Start both and wait until the agent says that it is alive."""
        for folder in (self.registry, self.plugin, self.cdi, self.claims, self._control.parent):
            folder.mkdir(parents=True, exist_ok=True)
        try:
            self.launch_claim_sockets()
            self.launch_agent()
            self._wait_claim_sockets()
            self._wait_agent()
        except BaseException:
            self.end()
            raise
        return self

    def start_claim_sockets(self) -> None:
        """Start claim-sockets and wait until it answers; for after `claim_sockets.kill()`."""
        self.launch_claim_sockets()
        self._wait_claim_sockets()

    def launch_claim_sockets(self) -> Program:
        """Start claim-sockets and don't wait."""
        self._control.unlink(missing_ok=True)
        self._claim_sockets = self._run("claim-sockets", self._sockets_flags())
        return self._claim_sockets

    def start_agent(self) -> None:
        """Start the agent and wait until it is alive; for after `agent.kill()`."""
        self.launch_agent()
        self._wait_agent()

    def launch_agent(self) -> Program:
        """Start the agent and don't wait."""
        self._agent = self._run("agent", self._agent_flags())
        return self._agent

    def rival(self) -> "Node":
        """This node for a second agent, as in a rolling update; `start_agent` starts it, `end` ends it."""
        return Node(
            self._folder, self.name, cluster=self.cluster, stack=self.stack, virtual=self.virtual
        )

    def wait_ready(self, timeout: float = READY_SECONDS) -> None:
        """Wait until the agent has all its partners, the kubelet's registration included."""
        wait_until(lambda: self.answers("/readyz"), "the agent's readiness", timeout, [self.agent])

    def wait_published(self, devices: int, playable: int) -> Sequence[Json]:
        """Wait until so many devices are published, and so many of them without a taint.

        The agent publishes as soon as it knows the cards; taints go when PipeWire has the nodes.
        """
        found: list[Json] = []

        def is_complete() -> bool:
            found[:] = self.devices()
            free = [each for each in found if not each.get("taints")]
            return (len(found), len(free)) == (devices, playable)

        wait_until(is_complete, f"{devices} devices published", READY_SECONDS, [self.agent])
        return found

    def devices(self) -> Sequence[Json]:
        """The devices in the node's ResourceSlices."""
        return [device for each in self.slices() for device in each["spec"].get("devices", ())]

    def slices(self) -> Sequence[Json]:
        """The node's ResourceSlices of our driver, by name."""
        fields = f"spec.nodeName={self.name},spec.driver={DRIVER}"
        found = self.cluster.items("resourceslices", f"--field-selector={fields}")
        return sorted(found, key=lambda each: str(each["metadata"]["name"]))

    def answers(self, path: str) -> bool:
        """Whether the agent's HTTP port answers 200 there."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}{path}", timeout=5):
                return True
        except (urllib.error.URLError, OSError):
            return False

    def not_ready(self) -> Sequence[str]:
        """What the agent says is missing; nothing when it is ready."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}/readyz", timeout=5):
                return []
        except urllib.error.HTTPError as refusal:
            return refusal.read().decode().splitlines()

    def metrics(self) -> Mapping[str, float]:
        """The agent's figures, by name with labels."""
        with urllib.request.urlopen(
            f"http://127.0.0.1:{self.http_port}/metrics", timeout=30
        ) as page:
            lines = page.read().decode().splitlines()
        pairs = [line.rsplit(" ", 1) for line in lines if line and not line.startswith("#")]
        return {name: float(value) for name, value in pairs}

    def cdi_files(self) -> Sequence[str]:
        """Names of all files in the CDI folder but those of metadata, which `claim_uids` counts."""
        names = (each.name for each in self.cdi.iterdir())
        return sorted(name for name in names if not name.startswith(METADATA_PREFIX))

    def claim_uids(self) -> set[str]:
        """UIDs of which a folder is there, a checkpoint, or a file of metadata."""
        folders = {each.name for each in self.claims.iterdir() if each.is_dir()}
        metadata = self.plugin / "dra-device-metadata"
        folders |= {each.name for each in metadata.iterdir()} if metadata.is_dir() else set()
        for each in self.cdi.glob(f"*{METADATA_PREFIX}*"):
            folders.add(each.name.partition(METADATA_PREFIX)[2].rpartition("_")[0])
        checkpoints = {each.name.split(".")[0] for each in (self.plugin / "claims").iterdir()}
        return folders | checkpoints

    def checkpoint(self, uid: str) -> Json:
        """The agent's record of a claim; empty when there is none."""
        try:
            found: Json = json.loads((self.plugin / "claims" / f"{uid}.json").read_text())
        except FileNotFoundError:
            return {}
        return found

    def kubelet(self) -> KubeletRole:
        """A kubelet's role for this node; the caller ends it."""
        work = self._folder / "kubelet"
        work.mkdir(exist_ok=True)
        return KubeletRole(
            self.cluster, self.name, registry=self.registry, cdi=[self.cdi], work=work
        )

    def end(self) -> None:
        """End both."""
        self._programs.end()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.end()

    def _run(self, command: str, flags: Mapping[str, str]) -> Program:
        arguments = [f"--{flag}={value}" for flag, value in flags.items()]
        environment = {
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "HOME": str(self._folder),
            # The client library writes the kubeconfig's authority to a file, which a kill leaves.
            "TMPDIR": str(self._folder),
            "PYTHONPATH": str(TREE),
            "DBUS_SYSTEM_BUS_ADDRESS": self.media_bus or f"unix:path={self._folder}/no-bus",
            **python_cache(),
        }
        line = [sys.executable, "-m", "liken_audio", command, *arguments]
        if command == "agent" and self.die_at is not None:
            text, count = self.die_at
            environment["PYTHONPATH"] = f"{_FAULTS}{os.pathsep}{TREE}"
            environment |= {"LIKEN_AUDIO_TEST_DIE_IN": text, "LIKEN_AUDIO_TEST_DIE_AT": str(count)}
        if command == "agent" and self.boot_id:
            file = self._folder / "boot_id"
            file.write_text(f"{self.boot_id}\n")
            line = ["unshare", "--mount", "--", "sh", "-c", _OTHER_BOOT, str(file), *line]
        return self._programs.start(command, line, environment)

    @property
    def _control(self) -> Path:
        return self._folder / "control" / "sockets"

    def _wait_claim_sockets(self) -> None:
        wait_until(
            self._control.is_socket, "claim-sockets", self.start_seconds, [self.claim_sockets]
        )

    def _wait_agent(self) -> None:
        wait_until(lambda: self.answers("/healthz"), "the agent", self.start_seconds, [self.agent])

    def _sockets_flags(self) -> Mapping[str, str]:
        return {
            "claims-dir": str(self.claims),
            "pipewire-remote": str(self.stack.remote),
            "control": str(self._control),
        }

    def _agent_flags(self) -> Mapping[str, str]:
        return {
            **self._sockets_flags(),
            "node": self.name,
            "kubeconfig": str(self.cluster.kubeconfig),
            "virtual": str(self.virtual),
            "registry-dir": str(self.registry),
            "plugin-dir": str(self.plugin),
            "cdi-dir": str(self.cdi),
            "http-host": "127.0.0.1",
            "http-port": str(self.http_port),
            **self.flags,
        }


@contextlib.contextmanager
def fresh_node(cluster: Cluster, stack: SoundStack, folder: Path, virtual: Path) -> Iterator[Node]:
    """An agent, not registered yet, on a Node of a new name; all of it goes at the end."""
    name = f"node-{uuid.uuid4().hex[:8]}"
    cluster.make_node(name)
    try:
        with Node(folder, name, cluster=cluster, stack=stack, virtual=virtual) as made:
            yield made
    finally:
        cluster.kubectl("delete", "node", name)
        cluster.kubectl("delete", "sinks,sources", f"-l={DRIVER}/node={name}", "--wait=false")
