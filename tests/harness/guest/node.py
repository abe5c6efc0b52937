"""Runs in the guest: its PipeWire and WirePlumber, the agent, and a kubelet's role.

Functions for `Guest.call`; what they make ends with the guest.
"""

import asyncio
import re
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.harness import sound_stack
from tests.harness.cluster import Cluster
from tests.harness.guest import inside
from tests.harness.kubelet_role import Claim, KubeletRole, Prepared
from tests.harness.node import DRIVER, Node
from tests.harness.processes import HarnessError, wait_until
from tests.harness.sound_stack import SoundStack

FOLDER = inside.RUN_FOLDER
_NODE_NAME = re.compile(r'node\.name = "([^"]*)"')
_SERIAL = re.compile(r'object.serial = "([^"]*)"')
_REGISTER_SECONDS = 120
_START_SECONDS = 400
"""Python's imports alone take minutes in an emulated guest on a busy machine."""
# The emulated processor needs long periods: 85 ms each.
_PIPEWIRE = """\
context.properties = {
  default.clock.quantum = 4096
  default.clock.min-quantum = 4096
  default.clock.max-quantum = 8192
}
"""


class _State:
    """What runs here; the guest has one of each."""

    def __init__(self) -> None:
        self.stack: SoundStack | None = None
        self.node: Node | None = None
        self.runner = asyncio.Runner()
        self.kubelet: KubeletRole | None = None
        self.prepared: dict[str, Sequence[Prepared]] = {}


_state = _State()


def start_sound(media_bus: str = "") -> Mapping[str, str]:
    """Start D-Bus, PipeWire and WirePlumber with the product's profile; return their environment.

    `media_bus` is the address of a bus with BlueZ, where there is one.
    """
    sound_stack.READY_SECONDS = sound_stack.TOOL_SECONDS = _START_SECONDS
    stack = SoundStack(FOLDER / "sound")
    stack.media_bus = media_bus
    fragments = stack.folder / "home" / ".config" / "pipewire" / "pipewire.conf.d"
    fragments.mkdir(parents=True)
    (fragments / "guest.conf").write_text(_PIPEWIRE)
    _state.stack = stack.start()
    return stack.environment


def sound() -> SoundStack:
    """The stack that `start_sound` started."""
    if _state.stack is None:
        raise HarnessError("the guest's sound isn't started")
    return _state.stack


def node_names() -> list[str]:
    """Names of all PipeWire nodes; asked for often, so without all else that pw-dump tells."""
    return sorted(_NODE_NAME.findall(sound().run("pw-cli", "ls", "Node")))


def node_properties(name: str) -> Mapping[str, Any]:
    """A PipeWire node's properties."""
    properties: Mapping[str, Any] = sound().nodes()[name]["props"]
    return properties


def speaker_node(address: str) -> int:
    """Serial of the node of a Bluetooth device that can be played to; 0: there is none."""
    for info in sound().nodes().values():
        properties = info["props"]
        is_its = properties.get("api.bluez5.address") == address
        if is_its and properties.get("media.class") == "Audio/Sink":
            return int(properties["object.serial"])
    return 0


def linked_to_speaker(address: str) -> list[str]:
    """Names of the nodes that play to a Bluetooth device."""
    objects = sound().objects()
    properties = {each["id"]: (each.get("info") or {}).get("props") or {} for each in objects}
    links = [each["info"] for each in objects if str(each["type"]).endswith(":Link")]
    names = [
        str(properties[link["output-node-id"]].get("node.name"))
        for link in links
        if properties[link["input-node-id"]].get("api.bluez5.address") == address
    ]
    return sorted(set(names))


def start_agent_node(name: str, kubeconfig: str, port: int, flags: Mapping[str, str]) -> None:
    """Start the relay to the host's API server, claim-sockets and the agent."""
    if "relay" not in inside.started():
        inside.start("relay", [inside.python(), "-m", "tests.harness.guest.relay", str(port)])
    nothing = FOLDER / "virtual.yaml"
    nothing.write_text("cards: []\n")
    node = Node(
        FOLDER / "node",
        name,
        cluster=Cluster(Path(kubeconfig), cache=FOLDER / "kubectl"),
        stack=sound(),
        virtual=nothing,
    )
    node.flags.update(flags)
    node.start_seconds = _START_SECONDS
    _state.node = node.start()


def agent() -> Node:
    """The node that `start_agent_node` started."""
    if _state.node is None:
        raise HarnessError("the guest's agent isn't started")
    return _state.node


def kill_agent() -> None:
    """End the agent at once, as a crash would."""
    agent().agent.kill()


def start_agent() -> None:
    """Start the agent anew."""
    agent().start_agent()


def agent_log() -> str:
    """All that the agents wrote."""
    return agent().agent.log.read_text(errors="replace")


def links() -> list[str]:
    """Serials of PipeWire's links: one that was cut and made anew has another."""
    return sorted(_SERIAL.findall(sound().run("pw-cli", "ls", "Link")))


def drive(bus: str, driver: str, device: str, has_driver: bool) -> None:
    """Take a device from its driver, or give it back: its card goes, or comes."""
    name = "bind" if has_driver else "unbind"
    Path(f"/sys/bus/{bus}/drivers/{driver}/{name}").write_text(device)


def agent_files() -> list[str]:
    """What the agent's open files are: names of devices, sockets, pipes."""
    found = []
    for link in Path(f"/proc/{agent().agent.pid}/fd").iterdir():
        try:
            found.append(str(link.readlink()))
        except FileNotFoundError:
            continue
    return sorted(found)


def agent_wakeups() -> int:
    """How often the agent's threads gave up the processor of their own accord since they started."""
    total = 0
    for status in Path(f"/proc/{agent().agent.pid}/task").glob("*/status"):
        lines = status.read_text().splitlines()
        total += sum(int(x.split()[1]) for x in lines if x.startswith("voluntary_ctxt_switches"))
    return total


def metrics() -> Mapping[str, float]:
    """The agent's figures."""
    return agent().metrics()


def health() -> str:
    """What /readyz says."""
    address = f"http://127.0.0.1:{agent().http_port}/readyz"
    with urllib.request.urlopen(address, timeout=30) as page:
        return str(page.read().decode())


def register() -> None:
    """Play the kubelet: register the agent, as it is now."""
    if _state.kubelet is None:
        _state.kubelet = agent().kubelet()
    _state.runner.run(_state.kubelet.register(DRIVER, _REGISTER_SECONDS))


def prepare(namespace: str, pod: str) -> list[str]:
    """Prepare the claims of a pod; return the devices."""
    kubelet = _kubelet()
    claims = kubelet.claims(namespace, pod)
    prepared = _state.runner.run(kubelet.prepare(claims))
    _state.prepared[pod] = prepared
    return [each.device for each in prepared]


def unprepare(namespace: str, pod: str) -> None:
    """Unprepare the claims of a pod."""
    kubelet = _kubelet()
    claims: Sequence[Claim] = kubelet.claims(namespace, pod)
    _state.runner.run(kubelet.unprepare(claims))


def start_container(namespace: str, pod: str) -> None:
    """Start the pod's container with its claims' edits."""
    _kubelet().start_container(namespace, pod, _state.prepared[pod])


def wait_nodes(names: Sequence[str], timeout: float = 300) -> None:
    """Wait until all these PipeWire nodes are there."""
    wait_until(lambda: set(names) <= set(sound().nodes()), f"the nodes {', '.join(names)}", timeout)


def _kubelet() -> KubeletRole:
    if _state.kubelet is None:
        raise HarnessError("no kubelet: call register first")
    return _state.kubelet
