"""The product on a real node, as a user installs it: the image, the manifests, and pods that play.

Everything goes through kubectl and the node's own runtime; only the faults and the measures reach
into the node.
"""

import json
import os
import shutil
import tarfile
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.harness.cluster import Cluster, Json
from tests.harness.node import DRIVER, TREE
from tests.harness.processes import HarnessError, Programs, wait_until
from tests.harness.real_node import RealNode
from tests.harness.tone import Recorder, Sound, play_command
from tests.harness.workloads import request

IMAGE_VARIABLE = "LIKEN_AUDIO_IMAGE"
IMAGE = "localhost/liken-audio"
NAMESPACE = "liken-audio"
TONE_HZ = 440
PATIENCE = 120.0
"""Longer than any back-off of the kubelet that a test runs into."""
_RUN = "/run/audio.liken.sh"
_PLUGINS = "/var/lib/kubelet/plugins"
_REGISTRY = "/var/lib/kubelet/plugins_registry"


def image_archive() -> Path:
    """The product's image as an archive, or a `HarnessError` that says how to get it."""
    named = os.environ.get(IMAGE_VARIABLE, "")
    if not named:
        raise HarnessError(
            f"{IMAGE_VARIABLE} isn't set: run through make, or "
            'eval "$(tests/harness/setup.sh dev sound cluster node image)" first'
        )
    if not Path(named).is_file():
        raise HarnessError(f"{IMAGE_VARIABLE}={named}: no such file")
    return Path(named)


def load_image(node: RealNode, archive: Path, *tags: str) -> None:
    """Load the image into the node's runtime, under these tags too."""
    with tarfile.open(archive) as tar:
        manifest = tar.extractfile("manifest.json")
        name = json.loads(manifest.read())[0]["RepoTags"][0] if manifest else ""
    node.load(archive)
    for tag in tags:
        if f"{IMAGE}:{tag}" != name:
            node.ctr("images", "tag", "--force", name, f"{IMAGE}:{tag}")


class NodeSound:
    """The node's PipeWire, as programs of this machine reach it."""

    def __init__(self, node: RealNode) -> None:
        self._node = node

    @property
    def environment(self) -> Mapping[str, str]:
        """All that a tool needs."""
        return {
            "PATH": "/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "HOME": "/nonexistent",
            "PIPEWIRE_REMOTE": str(self._node.path(f"{_RUN}/pipewire/pipewire-0")),
        }


class Deployment:
    """The DaemonSet on one node."""

    def __init__(self, node: RealNode, folder: Path) -> None:
        self.node = node
        self.cluster: Cluster = node.cluster
        self.sound = NodeSound(node)
        self._folder = folder
        self._programs = Programs(folder)
        shutil.copytree(TREE / "manifests", folder / "manifests")

    # --- what a user does ------------------------------------------------------------------------

    def apply(self, tag: str = "1", overlay: str = "virtual") -> None:
        """`kubectl apply -k` of an overlay that names an image; the virtual one's cards are a file."""
        self._overlay.mkdir(exist_ok=True)
        kustomization = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "resources": [f"../{overlay}"],
            "images": [{"name": IMAGE, "newTag": tag}],
        }
        (self._overlay / "kustomization.yaml").write_text(json.dumps(kustomization))
        self.cluster.kubectl("apply", "-k", str(self._overlay))
        examples = self._folder / "manifests" / "examples"
        self.cluster.kubectl("apply", "-f", str(examples / "classes.yaml"))
        if overlay != "virtual":
            return
        cards = ["--from-file", str(examples / "virtual-cards.yaml"), f"--namespace={NAMESPACE}"]
        made = self.cluster.kubectl(
            "create", "configmap", "virtual-cards", *cards, "--dry-run=client", "-o=json"
        )
        self.cluster.kubectl("apply", "-f", "-", body=made)

    def wait_ready(self) -> None:
        """Wait until the DaemonSet is rolled out and its pod is ready."""
        arguments = ("rollout", "status", "daemonset/liken-audio", f"--namespace={NAMESPACE}")
        self.cluster.wait_for(
            "the DaemonSet",
            lambda: {"said": self.cluster.kubectl(*arguments, "--timeout=50s")},
            PATIENCE,
        )

    def remove(self) -> None:
        """`kubectl delete -k`."""
        self.cluster.kubectl("delete", "-k", str(self._overlay), "--ignore-not-found")

    @property
    def _overlay(self) -> Path:
        return self._folder / "manifests" / "overlays" / "of-the-test"

    # --- what is there ----------------------------------------------------------------------------

    def pods(self) -> Sequence[Json]:
        """The DaemonSet's pods that aren't ending."""
        found = self.cluster.items("pods", f"--namespace={NAMESPACE}")
        return [each for each in found if "deletionTimestamp" not in each["metadata"]]

    def container(self, name: str) -> Json:
        """The status of a container of the pod."""
        (pod,) = self.pods()
        status = pod["status"]
        every = [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]
        return next(each for each in every if each["name"] == name)

    def pid(self, name: str) -> int:
        """Process id, in the node, of a container's first process; an error while there is none."""
        return self.node.container_pid(str(self.container(name).get("containerID", "")))

    def signal(self, name: str, signal: str) -> None:
        """Send a container's first process a signal, from outside of the container."""
        self.node.run("kill", f"-{signal}", str(self.pid(name)))

    def execute(self, name: str, *command: str) -> str:
        """Run a program in a container, as `kubectl exec` does, and return what it printed."""
        container = str(self.container(name).get("containerID", "")).removeprefix("containerd://")
        run = ("tasks", "exec", "--exec-id", f"test-{uuid.uuid4().hex[:8]}", container)
        return self.node.ctr(*run, *command)

    def restarts(self) -> Mapping[str, int]:
        """How often each container was restarted."""
        (pod,) = self.pods()
        status = pod["status"]
        every = [*status["initContainerStatuses"], *status["containerStatuses"]]
        return {each["name"]: each["restartCount"] for each in every}

    def slices(self) -> Sequence[Json]:
        """The node's ResourceSlices of our driver."""
        fields = f"spec.nodeName={self.node.name},spec.driver={DRIVER}"
        return self.cluster.items("resourceslices", f"--field-selector={fields}")

    def device(self, name: str) -> str:
        """Whole name of a device of the node."""
        return f"{self.node.name}-{name}"

    def prepared(self) -> set[str]:
        """UIDs of claims of which the node has anything: a CDI file, a folder, a record, a mount."""
        uids = {each.name for each in self._entries(f"{_RUN}/claims")}
        uids |= {each.name.split(".")[0] for each in self._entries(f"{_PLUGINS}/{DRIVER}/claims")}
        uids |= {each.name for each in self._entries(f"{_PLUGINS}/{DRIVER}/dra-device-metadata")}
        uids |= {each.name for each in self._entries("/var/run/cdi")}
        return uids | set(self.node.mounts(f"{_RUN}/claims/"))

    def sockets(self) -> Sequence[str]:
        """Sockets of the product on the node."""
        found = self.node.run("find", _RUN, _REGISTRY, _PLUGINS, "-type", "s")
        return sorted(found.split())

    def processes(self) -> Sequence[int]:
        """Processes of the product on the node."""
        names = ("/opt/liken-audio/", "node-sound", "wireplumber --profile", "pw-dump --monitor")
        return sorted({each for name in names for each in self.node.processes(name)})

    def _entries(self, inside: str) -> Sequence[Path]:
        folder = self.node.path(inside)
        return [each for each in folder.iterdir() if each.name[0] != "."] if folder.is_dir() else []

    # --- what is heard ----------------------------------------------------------------------------

    def record(self, device: str) -> Recorder:
        """Start to record what a device plays; the caller stops it."""
        recorder = Recorder(self.sound, self._programs, self.device(device))
        recorder.start()
        return recorder

    def wait_heard(self, device: str, timeout: float = PATIENCE) -> None:
        """Wait until the tone is heard at a device, whatever was restarted on the way."""
        last: list[str] = []

        def is_heard() -> bool:
            try:
                sound = self.listen(device)
            except HarnessError as error:
                last[:] = [str(error)]
                return False
            last[:] = [str(sound)]
            return sound.is_tone(TONE_HZ)

        try:
            wait_until(is_heard, f"the tone at {device}", timeout)
        except HarnessError as error:
            raise HarnessError(f"{error}; heard last: {''.join(last)}") from None

    def listen(self, device: str, seconds: float = 1.0) -> Sound:
        """Record so many seconds and measure."""
        recorder = self.record(device)
        try:
            wait_until(lambda: recorder.seconds() >= seconds, f"{seconds} s of {device}", 30)
        finally:
            sound = recorder.stop()
        return sound

    def end(self) -> None:
        """End the recorders that are left."""
        self._programs.end()


@dataclass(frozen=True, slots=True)
class Site:
    """The installed product and the player that came with it."""

    product: Deployment
    player: str
    """A Deployment in the namespace `default`, which plays to the HDMI output all the time."""
    first_sound_seconds: float
    """From `kubectl apply` to the first sound of that player."""


def claim_spec(device: str) -> Json:
    """The spec of a claim for one device by its whole name."""
    return {"devices": {"requests": [request(device)]}}


def template(name: str, device: str) -> Json:
    """A claim template."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": claim_spec(device)},
    }


def claim(name: str, device: str) -> Json:
    """A claim by name."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": claim_spec(device),
    }


def player(name: str, source: Mapping[str, str], tag: str = "1") -> Json:
    """A pod's metadata and spec: it plays the tone for ever, starting anew when its player ends.

    `source` is `{"resourceClaimName": …}` or `{"resourceClaimTemplateName": …}`.
    """
    shell, option, play = play_command(TONE_HZ, 3600)
    return {
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "resourceClaims": [{"name": "speakers", **source}],
            "containers": [
                {
                    "name": "player",
                    "image": f"{IMAGE}:{tag}",
                    "command": [shell, option, f"while :; do {play}; sleep 0.2; done"],
                    "securityContext": {
                        "runAsUser": 65534,
                        "runAsGroup": 65534,
                        "readOnlyRootFilesystem": True,
                        "allowPrivilegeEscalation": False,
                        "capabilities": {"drop": ["ALL"]},
                    },
                    "resources": {"claims": [{"name": "speakers"}]},
                }
            ],
        },
    }


def pod(name: str, source: Mapping[str, str]) -> Json:
    """A pod that plays."""
    return {"apiVersion": "v1", "kind": "Pod", **player(name, source)}


def deployment(name: str, source: Mapping[str, str]) -> Json:
    """A Deployment of such a pod."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "selector": {"matchLabels": {"app": name}},
            "strategy": {"type": "Recreate"},
            "template": player(name, source),
        },
    }
