"""A guest with emulated cards, with the whole agent in it, on the shared control plane.

One guest serves the tests of all cards, since a boot takes most of a minute where the processor is
emulated. Tests leave it as they found it.
"""

import json
import shutil
import uuid
import wave
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlparse

import pytest

from tests.harness.cluster import Cluster, Json
from tests.harness.control_plane import ControlPlane
from tests.harness.guest import inside, node
from tests.harness.guest.machine import Card, Guest, missing_for_guest
from tests.harness.node import DRIVER
from tests.harness.processes import HarnessError, Workspace, wait_until
from tests.harness.tone import write_tone

SECONDS = 300
"""Deadline of what a machine with cards of its own does in a second or two."""
CARDS = (
    Card("hda", "analog", 0x1B),
    Card("hdmi", "tv", 0x1C),
    Card("virtio", "virt", 0x1D),
    Card("usb", "dac", properties={"serial": "SN4711"}),
)
ANALOG = "pci-0000-00-1b-0-generic-analog"
TV = "pci-0000-00-1c-0-hdmi-0"
VIRTIO = "pci-0000-00-1d-0-virtio-snd"
DUMMIES = ("platform-snd-dummy-0-dummy-pcm", "platform-snd-dummy-1-dummy-pcm")
"""Two equal cards that only the kernel has, for what the emulated ones can't do."""
DAC = "usb-46f4-0002-sn4711-usb-audio"
"""The USB card that is there from the start; the others' names begin with the node's."""
STICK = "usb-46f4-0002-sn0815-usb-audio"
"""The USB card to plug in, by the serial `STICK_SERIAL`."""
STICK_SERIAL = "SN0815"
LOUD = {"Master Playback Switch": "on", "Master Playback Volume": "74"}
"""The HDA card's controls; a card that was never set is silent."""
TONE_HZ = 440
TONE_SECONDS = 1800


class Machine:
    """A guest with the agent in it, and what the cluster says of it."""

    def __init__(self, guest: Guest, cluster: Cluster, name: str) -> None:
        self.guest = guest
        self.cluster = cluster
        self.name = name
        self.environment: Mapping[str, str] = {}

    def start(self, kubeconfig: Path, port: int) -> None:
        """Start sound and agent in it."""
        write_long_tone(self.guest.folder / "tone.wav")
        shutil.copy(kubeconfig, self.guest.folder / "kubeconfig")
        self.environment = self.guest.call(node.start_sound)
        self.guest.call(
            node.start_agent_node,
            self.name,
            str(self.guest.folder / "kubeconfig"),
            port,
            {"alsa": "on", "bluetooth-bus": "none"},
        )

    def device_name(self, name: str) -> str:
        """A device's whole name."""
        return name if name.startswith("usb-") else f"{self.name}-{name}"

    def devices(self) -> Mapping[str, Json]:
        """What is published, by name."""
        fields = f"spec.nodeName={self.name},spec.driver={DRIVER}"
        slices = self.cluster.items("resourceslices", f"--field-selector={fields}")
        found = [device for each in slices for device in each["spec"].get("devices", ())]
        return {str(each["name"]): each for each in found}

    def device_attribute(self, name: str, attribute: str) -> str | None:
        """A published device's attribute of text; None when it has none."""
        device = self.devices().get(self.device_name(name), {})
        value: str | None = device.get("attributes", {}).get(attribute, {}).get("string")
        return value

    def card_number(self, name: str) -> int:
        """The number of a device's card, as it is published; -1 when there is none."""
        device = self.devices().get(self.device_name(name), {})
        return int(device.get("attributes", {}).get("card", {}).get("int", -1))

    def taints(self, name: str) -> Sequence[str]:
        """A published device's taints; `HarnessError` when it isn't there."""
        devices = self.devices()
        whole = self.device_name(name)
        if whole not in devices:
            raise HarnessError(f"no device {whole}; there are {', '.join(sorted(devices))}")
        return sorted(str(each["key"]) for each in devices[whole].get("taints", ()))

    def wait_devices(self, *names: str) -> None:
        """Wait until all these are published without a taint."""
        due = {self.device_name(name) for name in names}

        def are_there() -> bool:
            found = self.devices()
            return due <= {name for name, device in found.items() if not device.get("taints")}

        try:
            wait_until(are_there, f"{', '.join(sorted(due))} published", SECONDS)
        except HarnessError as error:
            raise HarnessError(f"{error}\n{self.state()}") from error

    def sink(self, name: str) -> Json:
        """A Sink of ours."""
        return self.cluster.get("sink", self.device_name(name))

    def condition(self, name: str, kind: str) -> tuple[str, str]:
        """A Sink's condition: its status and message; empty when it, or the Sink, isn't there yet."""
        sinks = self.cluster.items(
            "sinks", f"--field-selector=metadata.name={self.device_name(name)}"
        )
        conditions = [c for sink in sinks for c in sink.get("status", {}).get("conditions", ())]
        found = [each for each in conditions if each["type"] == kind]
        return (found[0]["status"], found[0]["message"]) if found else ("", "")

    def declare(self, name: str, controls: Mapping[str, str] | None) -> None:
        """Set a Sink's `spec.controls`; None takes the declaration away and leaves the card as it is."""
        patch = json.dumps({"spec": {"controls": controls}})
        sink = self.device_name(name)
        self.cluster.kubectl("patch", "sink", sink, "--type=merge", f"-p={patch}")

    def play(self, name: str, properties: str = "") -> str:
        """Start playing the tone, for long, to a device's node; return the player's name."""
        player = f"play-{uuid.uuid4().hex[:6]}"
        whole = self.device_name(name)
        self.guest.call(node.wait_nodes, [whole])
        command = ["pw-play", f"--target={whole}", f"--properties={{ {properties} }}"]
        command.append(str(self.guest.folder / "tone.wav"))
        self.guest.call(inside.start, player, command, dict(self.environment))
        return player

    def stop(self, player: str) -> None:
        """End a player."""
        self.guest.call(inside.stop, player)

    def state(self) -> str:
        """What a reader of a failure needs."""
        devices = {name: each.get("taints", ()) for name, each in self.devices().items()}
        cards = self.guest.call(inside.read, "/proc/asound/cards")
        log = self.guest.call(node.agent_log)[-4000:]
        return f"{devices}\n{cards}\n{log}"


def write_long_tone(file: Path) -> None:
    """Write a tone that outlasts a test; a second of it holds whole periods."""
    write_tone(file, TONE_HZ, 1)
    with wave.open(str(file), "rb") as reader:
        form, second = reader.getparams(), reader.readframes(reader.getnframes())
    with wave.open(str(file), "wb") as writer:
        writer.setparams(form)
        for _ in range(TONE_SECONDS):
            writer.writeframesraw(second)


@contextmanager
def running(plane: ControlPlane, cluster: Cluster) -> Iterator[Machine]:
    """The guest with the agent in it; its objects go with it."""
    name = f"guest-{uuid.uuid4().hex[:6]}"
    cluster.make_node(name)
    with (
        Workspace("guest") as work,
        Guest(work.path / "g", CARDS, modules=["snd-dummy:enable=1,1"], sockets=["stick"]) as guest,
    ):
        made = Machine(guest, cluster, name)
        made.start(plane.kubeconfig, urlparse(plane.url).port or 0)
        yield made
    cluster.kubectl("delete", "node", name)
    cluster.kubectl("delete", "sinks,sources", f"-l={DRIVER}/node={name}", "--wait=false")


@pytest.fixture(scope="session")
def machine(control_plane: ControlPlane, cluster: Cluster) -> Iterator[Machine]:
    """The guest that all tests share."""
    if missing := missing_for_guest():
        pytest.skip(missing)
    with running(control_plane, cluster) as made:
        yield made
