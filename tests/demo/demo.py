"""The demo's five steps, from an empty machine to a tone that was heard.

All parts are real but the kubelet, whose role is played (there is no container runtime here). The
steps use what users use: manifests, kubectl, pw-play.
"""

import asyncio
import contextlib
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.demo.screen import Screen
from tests.harness.cluster import Cluster, Json
from tests.harness.control_plane import ControlPlane
from tests.harness.kubelet_role import Claim, KubeletRole, Prepared
from tests.harness.node import DRIVER, TREE, Node
from tests.harness.processes import HarnessError, Program, Programs, Workspace, wait_until
from tests.harness.sound_stack import SoundStack
from tests.harness.tone import Recorder, Sound

NODE = "kitchen"
DEMO_TAINT = f"{DRIVER}/demo"
APP = "monitor-speakers"
SINK = f"{NODE}-pci-0000-00-1f-3-hdmi-0"
ANALOG = f"{NODE}-pci-0000-00-1f-3-alc257-analog"
MICROPHONE = f"{ANALOG}-capture"
DEVICES, PLAYABLE = 4, 3
TONE_HZ = 440
TONE_SECONDS = 2.0
VOLUME = 50
VOLUME_LINEAR = 0.125
"""What PipeWire stores for that volume: its scale is cubic."""
MANIFESTS = Path("manifests")


class Demo:
    """Runs the steps; what a step starts is ended by `ends`, whatever way the demo ends."""

    def __init__(
        self, screen: Screen, ends: contextlib.ExitStack, *, kubeconfig: Path | None
    ) -> None:
        self._screen = screen
        self._ends = ends
        self._own_cluster = kubeconfig
        self._runner = ends.enter_context(asyncio.Runner())
        self._work = ends.enter_context(Workspace("demo"))
        self._stack = SoundStack(self._work.path / "sound")
        self._recorders: Mapping[str, Recorder] = {}
        self.namespace = "default"
        self.virtual = self._work.path / "virtual-cards.yaml"
        self.cluster: Cluster
        self.node: Node
        self._kubelet: KubeletRole
        self._pod = ""
        self._claims: Sequence[Claim] = ()
        self._prepared: Sequence[Prepared] = ()
        self._player: Program

    def run(self) -> None:
        """All five steps; `HarnessError` says what went wrong."""
        self.set_up()
        self.start_node()
        self.apply()
        self.play()
        self.listen()
        self.change_volume()

    def set_up(self) -> None:
        """Step 1: a cluster with a node."""
        screen = self._screen
        screen.step("1. A cluster")
        if self._own_cluster is None:
            parts = "etcd, API server, scheduler, controllers"
            with screen.doing(f"Kubernetes on loopback: {parts}") as line:
                plane = ControlPlane(self._work.folder("control-plane"))
                self.cluster = self._ends.enter_context(plane).cluster
                line.text = f"Kubernetes {self._version()} on loopback: {parts}"
        else:
            with screen.doing("your cluster") as line:
                self.cluster = Cluster(self._own_cluster)
                line.text = f"your cluster, Kubernetes {self._version()}"
                self._borrow()
        with screen.doing(f"node {NODE}"):
            self._delete_at_the_end("lease", NODE, "--namespace=kube-node-lease")
            self._delete_at_the_end("node", NODE)
            self.cluster.make_node(NODE, taints=self._taints())

    def start_node(self) -> None:
        """Step 2: sound and the agent."""
        screen = self._screen
        screen.step("2. Sound, and the agent")
        self.heartbeat()
        with screen.doing("PipeWire and WirePlumber of the demo's own"):
            self._ends.enter_context(self._stack)
        self._delete_at_the_end("sinks,sources", f"-l={DRIVER}/node={NODE}")
        shutil.copy(TREE / MANIFESTS / "examples" / "virtual-cards.yaml", self.virtual)
        self.node = Node(
            self._work.path / "node",
            NODE,
            cluster=self.cluster,
            stack=self._stack,
            virtual=self.virtual,
        )
        with screen.doing("liken-audio agent") as line:
            self._ends.enter_context(self.node)
            devices = self.node.wait_published(DEVICES, PLAYABLE)
            tainted = [each["name"] for each in devices if each.get("taints")]
            line.text = (
                f"liken-audio agent publishes {len(devices)} devices, {len(tainted)} tainted"
            )

    def apply(self) -> None:
        """Step 3: what an administrator and a user apply; the scheduler allocates."""
        screen = self._screen
        screen.step("3. What is applied")
        self.heartbeat()
        self._apply("-k", MANIFESTS / "crds")
        self._apply("-f", MANIFESTS / "examples" / "classes.yaml")
        self._apply("-f", MANIFESTS / "examples" / "monitor-speakers.yaml")
        if self._is_borrowed:
            self._tolerate()
        with screen.doing("the scheduler allocates") as line:
            pod = self.cluster.wait_for("a pod on the node", self._bound_pod)
            self._pod = pod["metadata"]["name"]
            line.text = f"the scheduler gave pod {self._pod} the sink {self._allocated()}"

    def play(self) -> None:
        """Step 4: what a kubelet does, up to the pod's container."""
        screen = self._screen
        screen.step("4. A kubelet's work")
        self.heartbeat()
        self._kubelet = self.node.kubelet()
        self._ends.callback(self._kubelet.close)
        with screen.doing("registration") as line:
            info = self._runner.run(self._kubelet.register(DRIVER))
            line.text = (
                f"GetInfo: {info.name} with {', '.join(info.supported_versions)}; registered"
            )
        with screen.doing("NodePrepareResources") as line:
            self._claims = self._kubelet.claims(self.namespace, self._pod)
            self._prepared = self._runner.run(self._kubelet.prepare(self._claims))
            ids = [each for device in self._prepared for each in device.cdi_ids]
            line.text = f"NodePrepareResources: {', '.join(ids)}"
        with screen.doing("recording all sinks"):
            self._record()
        with screen.doing("container") as line:
            self._player = self._kubelet.start_container(self.namespace, self._pod, self._prepared)
            self._kubelet.set_running(self.namespace, self._pod)
            line.text = (
                "container started: user 65534, no capability, no network, no path but its claim's"
            )

    def listen(self) -> None:
        """Step 5: what is heard, where."""
        screen = self._screen
        screen.step("5. What is heard")
        self.heartbeat()
        with screen.doing(f"listening for {TONE_SECONDS:.0f} s") as line:
            self._wait_played()
            sounds = {name: recorder.stop() for name, recorder in self._recorders.items()}
            heard = sounds.pop(SINK)
            if not heard.is_tone(TONE_HZ):
                raise HarnessError(f"{TONE_HZ} Hz was due on {SINK}, heard: {heard}")
            line.text = f"heard {TONE_HZ} Hz on {SINK}"
        for name, sound in sounds.items():
            self._must_be_silent(name, sound)
        screen.say(f"    measured: {heard}")
        self._try_to_record()
        self._show("kubectl get sinks")
        self._show("kubectl get resourceslices")

    def _try_to_record(self) -> None:
        """The pod tries the microphone, which its claim doesn't hold."""
        command = ["pw-record", "--target", MICROPHONE, "/dev/null"]
        with self._screen.doing(f"pod: {' '.join(command)}") as line:
            thief = self._kubelet.start_container(
                self.namespace, self._pod, self._prepared, command=command
            )
            if thief.wait(60) == 0 or "holds no source" not in thief.log_end():
                raise HarnessError(f"a refusal was due\n{thief.log_end()}")
            line.text = f"the pod's {' '.join(command)} is refused:"
        self._screen.say(f"    {thief.log_end().splitlines()[-1]}")

    def change_volume(self) -> None:
        """A field of the Sink, set by a user, arrives in PipeWire and in the table."""
        screen = self._screen
        patch = json.dumps({"spec": {"volume": VOLUME}})
        screen.say()
        line = f"kubectl patch sink {SINK} --type=merge -p '{patch}'"
        with screen.doing(line) as shown:
            self.cluster.kubectl("patch", "sink", SINK, "--type=merge", f"-p={patch}")
            wait_until(self._has_volume, f"volume {VOLUME} in PipeWire", 45)
            shown.text = f"{line}: PipeWire has {VOLUME_LINEAR} (cubic {VOLUME} %)"
        self.cluster.wait_for("the volume in the table", self._observed_volume)
        self._show(f"kubectl get sink {SINK}")

    def check(self) -> None:
        """Raise when the agent or the sound ended by itself."""
        for program in (self.node.agent, self.node.claim_sockets, self._stack.pipewire):
            program.check()

    def unprepare(self) -> None:
        """What a kubelet does when the pod is deleted."""
        self._screen.say()
        with self._screen.doing("the pod is deleted: NodeUnprepareResources") as line:
            self._player.kill()
            self._runner.run(self._kubelet.unprepare(self._claims))
            left = [str(each.name) for each in self.node.cdi.glob("*.json")]
            if left:
                raise HarnessError(f"CDI files left after Unprepare: {left}")
            line.text += "; its CDI file and socket are gone"

    def heartbeat(self) -> None:
        """Tell a cluster that watches its nodes that ours lives; due every 40 s."""
        if self._is_borrowed:
            self.cluster.renew_lease(NODE)

    # --- the reader's own cluster ---------------------------------------------------------------------

    @property
    def _is_borrowed(self) -> bool:
        return self._own_cluster is not None

    def _borrow(self) -> None:
        """Refuse a cluster that has what we would make, and play in a namespace of our own."""
        if self.cluster.kubectl("get", "node", NODE, "--ignore-not-found", "-o", "name"):
            raise HarnessError(f"your cluster has a node {NODE}: the demo would overwrite it")
        self.namespace = "liken-audio-demo"
        self._delete_at_the_end("namespace", self.namespace)
        self.cluster.apply(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}}
        )

    def _taints(self) -> Sequence[Json]:
        """Pods of a borrowed cluster shall not come to a node that has no kubelet."""
        return [{"key": DEMO_TAINT, "effect": "NoSchedule"}] if self._is_borrowed else []

    def _tolerate(self) -> None:
        toleration = {"key": DEMO_TAINT, "operator": "Exists"}
        patch = {"spec": {"template": {"spec": {"tolerations": [toleration]}}}}
        with self._screen.doing(f"the Deployment tolerates {DEMO_TAINT}"):
            arguments = ("patch", "deployment", APP, *self._in_namespace())
            self.cluster.kubectl(*arguments, f"-p={json.dumps(patch)}")
        # Nobody but the kubelet takes a bound pod away, and the namespace waits for that.
        self._delete_at_the_end(
            "pods", "--all", *self._in_namespace(), "--grace-period=0", "--force"
        )
        self._delete_at_the_end("deployment", APP, *self._in_namespace())

    def _delete_at_the_end(self, *what: str) -> None:
        """Have something of a borrowed cluster deleted; our own cluster ends as a whole."""
        if self._is_borrowed:
            self._ends.callback(self._delete, *what)

    def _delete(self, *what: str) -> None:
        try:
            self.cluster.kubectl("delete", *what, "--ignore-not-found", "--wait=false")
        except HarnessError as error:
            self._screen.say(f"  left in your cluster: {' '.join(what)} ({error})")

    # --- steps in small -------------------------------------------------------------------------------

    def _version(self) -> str:
        version: Mapping[str, Any] = json.loads(self.cluster.kubectl("version", "-o", "json"))
        return str(version["serverVersion"]["gitVersion"]).removeprefix("v")

    def _apply(self, flag: str, path: Path) -> None:
        target = (flag, str(TREE / path), *self._in_namespace())
        with self._screen.doing(f"kubectl apply {flag} {path}"):
            # What the reader had before stays when the demo ends.
            if self._is_borrowed and not self._exists(*target):
                self._delete_at_the_end(*target)
            self.cluster.kubectl("apply", *target)

    def _exists(self, *target: str) -> bool:
        return bool(self.cluster.kubectl("get", *target, "--ignore-not-found", "-o", "name"))

    def _in_namespace(self) -> Sequence[str]:
        return [f"--namespace={self.namespace}"]

    def _bound_pod(self) -> Json | None:
        pods = self.cluster.items("pods", *self._in_namespace(), f"-l=app={APP}")
        bound = [each for each in pods if each["spec"].get("nodeName") == NODE]
        return bound[0] if bound else None

    def _allocated(self) -> str:
        claims = self.cluster.items("resourceclaims", *self._in_namespace())
        for claim in claims:
            users = [each["name"] for each in claim.get("status", {}).get("reservedFor", ())]
            if self._pod in users:
                results = claim["status"]["allocation"]["devices"]["results"]
                return ", ".join(each["device"] for each in results)
        raise HarnessError(f"no claim is reserved for {self._pod}")

    def _record(self) -> None:
        programs = self._ends.enter_context(Programs(self._work.folder("recordings")))
        self._recorders = {name: Recorder(self._stack, programs, name) for name in (SINK, ANALOG)}
        for recorder in self._recorders.values():
            recorder.start()

    def _wait_played(self) -> None:
        recorder = self._recorders[SINK]
        wait_until(
            lambda: recorder.loud_seconds() >= TONE_SECONDS - 0.2,
            f"{TONE_SECONDS:.0f} s of sound on {SINK}",
            60,
            [self._player],
        )

    def _must_be_silent(self, name: str, sound: Sound) -> None:
        with self._screen.doing(f"silence on {name}"):
            if not sound.is_silent:
                raise HarnessError(f"silence was due on {name}, heard: {sound}")

    def _show(self, line: str) -> None:
        self._screen.command(line, self.cluster.kubectl(*line.split()[1:]))

    def _has_volume(self) -> bool:
        parameters = self._stack.nodes()[SINK]["params"].get("Props", ())
        volumes = [each["channelVolumes"] for each in parameters if "channelVolumes" in each]
        return any(abs(volume - VOLUME_LINEAR) < 0.001 for each in volumes for volume in each)

    def _observed_volume(self) -> Json | None:
        sink = self.cluster.get("sink", SINK)
        observed: Json = sink.get("status", {}).get("observed", {})
        return observed if observed.get("volume") == VOLUME else None
