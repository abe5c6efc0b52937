"""A real node of a control plane: a real kubelet, containerd and runc, apart from the machine.

They run in mount, process, network and cgroup namespaces of their own (real_node.sh), so all paths
are those of a node (`/var/lib/kubelet`, `/var/run/cdi`), several nodes fit side by side, and the end
of the namespaces' first process is the end of all of it, mounts included. Nothing pulls from a
registry: images come as archives.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.harness.cluster import Cluster, Json
from tests.harness.control_plane import ControlPlane, control_plane_program
from tests.harness.image_archive import write_archive
from tests.harness.node import TREE
from tests.harness.processes import HarnessError, Program, Programs, wait_until

PROGRAMS_VARIABLE = "LIKEN_AUDIO_NODE_PROGRAMS"
READY_SECONDS = 120
RUN_SECONDS = 120
PAUSE_IMAGE = "docker.io/local/pause:1"
_SCRIPT = Path(__file__).with_name("real_node.sh")
_CGROUPS = Path("/sys/fs/cgroup")
_CGROUP_PREFIX = "liken-audio-node-"
_BUSYBOX = Path("/bin/busybox")
_NAMESPACES = ("--mount", "--pid", "--net", "--cgroup", "--ipc", "--uts")
_ADDRESS = "10.88.76.1"
"""Of the node, in its own network alone."""
_SOCKET = "/run/containerd/containerd.sock"

_CONTAINERD = """version = 3
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "{snapshotter}"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{pause}"
[plugins."io.containerd.cri.v1.runtime"]
  # Where CAP_SYS_RESOURCE is missing, no process can be made less likely to be killed.
  restrict_oom_score_adj = true
[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = ["/usr/lib/cni", "/opt/cni/bin"]
  conf_dir = "{folder}/cni"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
    BinaryName = "{runc}"
"""
_NETWORK = {
    "cniVersion": "1.0.0",
    "name": "pods",
    "plugins": [
        {
            "type": "bridge",
            "bridge": "pods0",
            "isGateway": True,
            "ipam": {
                "type": "host-local",
                "subnet": "10.88.77.0/24",
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        }
    ],
}


class RealNode:
    """One node; a context manager."""

    def __init__(self, folder: Path, name: str, control_plane: ControlPlane) -> None:
        self.folder = folder
        self.name = name
        self.cluster: Cluster = control_plane.cluster
        self._control_plane = control_plane
        self._programs = Programs(folder)
        self._bin = node_programs()
        self._cgroup = f"{_CGROUP_PREFIX}{os.getpid()}-{name}"
        self._namespaces: Program | None = None
        self._containerd: Program | None = None
        self._kubelet: Program | None = None

    # --- its life ------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start it and wait until the cluster has it as ready."""
        _remove_abandoned_cgroups()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._write_configuration()
        try:
            self.boot()
        except BaseException:
            self.end()
            raise
        return self

    def boot(self) -> None:
        """Start all of it; what is on its disk is as it was left."""
        self._start_namespaces()
        self._start_door()
        self.start_containerd()
        self._import_pause()
        self.start_kubelet()

    def power_off(self) -> None:
        """End all of it at once, pods included: what was in /run is gone, and so are the cgroups.

        A cgroup of a pod before a boot would cost the kubelet three seconds of looking for its container.
        """
        for program in (self._kubelet, self._containerd, self._namespaces):
            if program is not None:
                program.kill()
        wait_until(self._is_empty, f"the end of the node {self.name}", READY_SECONDS)
        self._programs.end()
        for folder in _cgroup_folders(self._cgroup):
            _remove_cgroup(folder)

    def end(self) -> None:
        """End all of it; fine if it never started."""
        self.power_off()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.end()

    @property
    def kubelet(self) -> Program:
        """The kubelet."""
        if self._kubelet is None:
            raise HarnessError("the kubelet isn't started")
        return self._kubelet

    def programs(self) -> Sequence[Program]:
        """What has a log, as far as started."""
        return [each for each in (self._containerd, self._kubelet) if each is not None]

    def start_containerd(self) -> None:
        """Start containerd and wait until it answers."""
        self._containerd = self._start(
            "containerd", f"{self._bin}/containerd", f"--config={self.folder}/containerd.toml"
        )
        wait_until(self._has_containerd, "containerd", READY_SECONDS, [self._containerd])

    def start_kubelet(self) -> None:
        """Start the kubelet and wait until the Node is ready by its word; for after `kubelet.kill()`."""
        with contextlib.suppress(HarnessError):
            self._forget_readiness()
        self._kubelet = self._start(
            "kubelet",
            str(control_plane_program()),
            "kubelet",
            f"--config={self.folder}/kubelet.json",
            f"--kubeconfig={self.folder}/kubeconfig",
            f"--hostname-override={self.name}",
            f"--node-ip={_ADDRESS}",
        )
        wait_until(self._is_ready, f"the node {self.name}", READY_SECONDS, [self._kubelet])

    def start_plugin(self, program: str) -> Program:
        """Start another DRA driver on the node, with the administrator's rights."""
        return self._start(
            "plugin",
            program,
            f"--node-name={self.name}",
            f"--kubeconfig={self.cluster.kubeconfig}",
            "--cdi-root=/var/run/cdi",
        )

    # --- what is in it --------------------------------------------------------------------------

    def path(self, inside: str) -> Path:
        """A path of the node, as this machine reaches it."""
        return Path(f"/proc/{self.init}/root") / inside.lstrip("/")

    @property
    def init(self) -> int:
        """Process id of the node's first process, as this machine sees it."""
        return int((self.folder / "init.pid").read_text())

    def enter(self, *command: str) -> Sequence[str]:
        """A command line that runs a program of this machine in the node; it ends with its starter."""
        limits = (str(_SCRIPT), "enter", self._cgroup)
        namespaces = ("nsenter", f"--target={self.init}", *_NAMESPACES, "--")
        return [*limits, *namespaces, "setpriv", "--pdeathsig", "KILL", "--", *command]

    def run(self, *command: str, timeout: float = RUN_SECONDS) -> str:
        """Run a program of this machine in the node and return what it printed."""
        try:
            done = subprocess.run(
                self.enter(*command),
                env=self._environment,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise HarnessError(f"{' '.join(command)}: no end in {timeout:.0f} s") from None
        if done.returncode != 0:
            raise HarnessError(f"{' '.join(command)}: {done.stderr[-1000:]}{done.stdout[-2000:]}")
        return done.stdout

    def ctr(self, *arguments: str, timeout: float = RUN_SECONDS) -> str:
        """Run containerd's own tool on the images and containers of Kubernetes."""
        return self.run(f"{self._bin}/ctr", "--namespace=k8s.io", *arguments, timeout=timeout)

    def load(self, archive: Path) -> None:
        """Load an image from an archive, as a pull would have."""
        self.ctr("images", "import", f"--snapshotter={self._snapshotter}", str(archive))

    def container_pid(self, container_id: str) -> int:
        """Process id, in the node, of a running container by the id that its status shows."""
        name = container_id.removeprefix("containerd://")
        for line in self.ctr("tasks", "ls").splitlines()[1:]:
            fields = line.split()
            if fields[0] == name and fields[2] == "RUNNING":
                return int(fields[1])
        raise HarnessError(f"container {name or '?'} isn't running")

    def host_pid(self, pid: int) -> int:
        """What this machine calls a process that the node calls by `pid`."""
        for process in self._members():
            with contextlib.suppress(OSError):
                status = Path(f"/proc/{process}/status").read_text()
                numbers = next(line for line in status.splitlines() if line.startswith("NSpid:"))
                # The machine's number first, then the node's, then the container's.
                if str(pid) in numbers.split()[2:3]:
                    return process
        raise HarnessError(f"no process {pid} in the node {self.name}")

    def processes(self, text: str) -> Sequence[int]:
        """Processes of the node whose command line holds a text, as this machine numbers them."""
        found = []
        for process in self._members():
            with contextlib.suppress(OSError):
                line = Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ")
                if text in line.decode(errors="replace"):
                    found.append(process)
        return found

    def mounts(self, text: str) -> Sequence[str]:
        """Mounts of the node, outside of its containers, whose line holds a text."""
        return [
            line
            for line in Path(f"/proc/{self.init}/mountinfo").read_text().splitlines()
            if text in line
        ]

    # --- parts ------------------------------------------------------------------------------------

    def _start(self, name: str, *command: str) -> Program:
        return self._programs.start(name, self.enter(*command), self._environment)

    @property
    def _environment(self) -> Mapping[str, str]:
        return {"PATH": f"{self._bin}:{os.environ['PATH']}", "LANG": "C.UTF-8", "HOME": "/root"}

    def _start_namespaces(self) -> None:
        (self.folder / "init.pid").unlink(missing_ok=True)
        command = [str(_SCRIPT), "outside", self._cgroup, self.name, str(self.folder)]
        self._namespaces = self._programs.start("namespaces", command, self._environment)
        is_there = (self.folder / "init.pid").is_file
        wait_until(is_there, "the node's namespaces", READY_SECONDS, [self._namespaces])

    def _start_door(self) -> None:
        target = self._control_plane.url.removeprefix("https://")
        arguments = [str(self.init), target, target, "10.96.0.1:443"]
        door = self._programs.start(
            "door",
            [sys.executable, "-m", "tests.harness.real_node_door", *arguments],
            {**os.environ, "PYTHONPATH": str(TREE)},
        )
        wait_until(lambda: "listening" in door.log_end(), "the API server's door", 30, [door])

    def _import_pause(self) -> None:
        archive = self.folder / "pause.tar"
        if not archive.exists():
            command = ("/bin/busybox", "sleep", "1000000")
            write_archive(archive, PAUSE_IMAGE, {"bin/busybox": _BUSYBOX}, entrypoint=command)
            self.load(archive)

    def _write_configuration(self) -> None:
        (self.folder / "cni").mkdir(exist_ok=True)
        (self.folder / "cni" / "10-pods.conflist").write_text(json.dumps(_NETWORK))
        runc = shutil.which("runc", path=f"{os.environ['PATH']}:/usr/sbin")
        (self.folder / "containerd.toml").write_text(
            _CONTAINERD.format(
                folder=self.folder, pause=PAUSE_IMAGE, runc=runc, snapshotter=self._snapshotter
            )
        )
        (self.folder / "kubelet.json").write_text(json.dumps(_kubelet_configuration()))
        (self.folder / "kubeconfig").write_text(json.dumps(self._node_kubeconfig()))
        (self.folder / "kubeconfig").chmod(0o600)

    @property
    def _snapshotter(self) -> str:
        """An overlay can't lie on an overlay, which a container's file system may be."""
        kind = subprocess.run(
            ["stat", "--file-system", "--format=%T", str(self.folder)],
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        ).stdout
        return "native" if "overlay" in kind else "overlayfs"

    def _node_kubeconfig(self) -> Json:
        """The administrator's, acting with the rights of the node alone."""
        made: Json = json.loads(self.cluster.kubeconfig.read_text())
        node = {"as": f"system:node:{self.name}", "as-groups": ["system:nodes"]}
        for user in made["users"]:
            user["user"] |= node
        return made

    def _has_containerd(self) -> bool:
        try:
            self.ctr("version", timeout=10)
        except HarnessError:
            return False
        return True

    def _forget_readiness(self) -> None:
        node = self.cluster.get("node", self.name)
        conditions = [
            {**each, "status": "Unknown"} if each["type"] == "Ready" else each
            for each in node["status"].get("conditions", ())
        ]
        self.cluster.patch_status("node", self.name, {"conditions": conditions})

    def _is_ready(self) -> bool:
        try:
            node = self.cluster.get("node", self.name)
        except HarnessError:
            return False
        conditions = node["status"].get("conditions", ())
        ready = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
        return ready and not node["spec"].get("taints")

    def _members(self) -> Sequence[int]:
        found: set[int] = set()
        for folder in _cgroup_folders(self._cgroup):
            for file in folder.rglob("cgroup.procs"):
                with contextlib.suppress(OSError):
                    found |= {int(line) for line in file.read_text().split()}
            with contextlib.suppress(OSError):
                found |= {int(line) for line in (folder / "cgroup.procs").read_text().split()}
        return sorted(found)

    def _is_empty(self) -> bool:
        for process in self._members():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        return not self._members()


def node_programs() -> Path:
    """The folder of containerd and its tools, or a `HarnessError` that says how to get it."""
    named = os.environ.get(PROGRAMS_VARIABLE, "")
    if not named:
        raise HarnessError(
            f"{PROGRAMS_VARIABLE} isn't set: run through make, or "
            'eval "$(tests/harness/setup.sh dev sound cluster node)" first'
        )
    if not os.access(f"{named}/containerd", os.X_OK):
        raise HarnessError(f"{PROGRAMS_VARIABLE}={named}: no containerd there")
    return Path(named)


def _kubelet_configuration() -> Mapping[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "failCgroupV1": False,
        "failSwapOn": False,
        "cgroupDriver": "cgroupfs",
        "cgroupsPerQOS": True,
        "enforceNodeAllocatable": ["pods"],
        # Reachable only from inside the node.
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "containerRuntimeEndpoint": f"unix://{_SOCKET}",
        "localStorageCapacityIsolation": False,
        "evictionHard": {"memory.available": "1Mi"},
        "imageGCHighThresholdPercent": 100,
        "address": "127.0.0.1",
        "nodeStatusUpdateFrequency": "2s",
        "nodeLeaseDurationSeconds": 40,
        "syncFrequency": "10s",
        "resolvConf": "/etc/resolv.conf",
    }


def _cgroup_folders(name: str) -> Sequence[Path]:
    """The cgroup of that name in each hierarchy; it lies in ours."""
    places = Path("/proc/self/cgroup").read_text().splitlines()
    ours = {place.split(":", 2)[2] for place in places}
    roots = [_CGROUPS, *_CGROUPS.iterdir()]
    folders = {root / place.lstrip("/") / name for root in roots for place in ours}
    return sorted(folder for folder in folders if (folder / "cgroup.procs").is_file())


def _remove_abandoned_cgroups() -> None:
    """Take away those whose test run was killed: they are empty."""
    places = Path("/proc/self/cgroup").read_text().splitlines()
    ours = {place.split(":", 2)[2] for place in places}
    for root in (_CGROUPS, *_CGROUPS.iterdir()):
        for place in ours:
            for folder in (root / place.lstrip("/")).glob(f"{_CGROUP_PREFIX}*"):
                owner = folder.name.removeprefix(_CGROUP_PREFIX).partition("-")[0]
                if not Path(f"/proc/{owner}").exists():
                    _remove_cgroup(folder)


def _remove_cgroup(folder: Path) -> None:
    below = sorted(folder.rglob("*/"), key=lambda each: len(each.parts), reverse=True)
    for each in (*below, folder):
        with contextlib.suppress(OSError):
            each.rmdir()
