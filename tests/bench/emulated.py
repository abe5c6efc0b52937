"""The figures of sound cards that a kernel has: read, plugged in and idle, in a guest.

The processor is emulated, so times are many times those of a machine; none has a bound.
"""

import time
from collections.abc import Sequence
from urllib.parse import urlparse

from tests.bench.api import Api
from tests.bench.figures import Figure
from tests.bench.measures import SLICES
from tests.harness.cluster import Cluster
from tests.harness.control_plane import ControlPlane
from tests.harness.guest import cards, node
from tests.harness.guest.machine import Guest
from tests.harness.node import TREE
from tests.harness.processes import Workspace, wait_until

NAME = "guest"
PLUGS = 5
IDLE_SECONDS = 120
SETTLE_SECONDS = 20
SECONDS = 900
MODULE = f"snd-dummy:enable={','.join('1' * cards.MOST)}"
ENDPOINTS = 2
"""Of each of these cards: an output and an input."""


def measure() -> Sequence[Figure]:
    """Boot a guest and measure in it."""
    with (
        Workspace("bench") as work,
        ControlPlane(work.folder("cluster")) as plane,
        Guest(work.path / "g", modules=[MODULE], sockets=["stick"]) as guest,
    ):
        figures = [_discovery(guest, count) for count in (cards.MOST, 8, 1)]
        cluster = Cluster(plane.kubeconfig)
        cluster.make_node(NAME)
        cluster.kubectl("apply", "-k", str(TREE / "manifests/crds"))
        kubeconfig = guest.folder / "kubeconfig"
        kubeconfig.write_bytes(plane.kubeconfig.read_bytes())
        guest.call(node.start_sound)
        port = urlparse(plane.url).port or 0
        flags = {"alsa": "on", "bluetooth-bus": "none"}
        guest.call(node.start_agent_node, NAME, str(kubeconfig), port, flags)
        api = Api(cluster)
        _wait_devices(api, ENDPOINTS)
        return [*figures, _wake_ups(guest), _plugs(guest, api), _memory(guest, api)]


def _discovery(guest: Guest, count: int) -> Figure:
    guest.call(cards.keep, count)
    took = guest.call(cards.discovery_seconds, count)
    return Figure(f"discovery of {count} cards of the kernel", took, None, "s")


def _wake_ups(guest: Guest) -> Figure:
    """How often the agent's threads wake up while nothing happens."""
    time.sleep(SETTLE_SECONDS)
    before, began = guest.call(node.agent_wakeups), time.perf_counter()
    time.sleep(IDLE_SECONDS)
    count, took = guest.call(node.agent_wakeups) - before, time.perf_counter() - began
    return Figure("wake-ups of an idle agent with one card", count / took * 60, None, "/min")


def _plugs(guest: Guest, api: Api) -> Figure:
    """From a USB card's plug to its device in the slice, without a taint."""
    longest = 0.0
    for number in range(PLUGS):
        began = time.perf_counter()
        guest.plug("stick", serial=f"SN081{number}X")
        _wait_devices(api, ENDPOINTS + 1)
        longest = max(longest, time.perf_counter() - began)
        guest.unplug("stick")
        _wait_devices(api, ENDPOINTS)
    return Figure(f"a USB card's plug to slice, worst of {PLUGS}", longest, None, "s")


def _memory(guest: Guest, api: Api) -> Figure:
    """What each card adds to the agent's resident memory."""
    before = guest.call(cards.agent_kilobytes)
    guest.call(cards.keep, cards.MOST)
    _wait_devices(api, cards.MOST * ENDPOINTS)
    time.sleep(SETTLE_SECONDS)
    grown = (guest.call(cards.agent_kilobytes) - before) / (cards.MOST - 1)
    return Figure("resident memory of a card in the agent", grown, None, "kB")


def _wait_devices(api: Api, count: int) -> None:
    def are_there() -> bool:
        slices = api.call("GET", SLICES)["items"]
        found = [device for each in slices for device in each["spec"].get("devices") or ()]
        return sum(not device.get("taints") for device in found) == count

    wait_until(are_there, f"{count} devices without a taint", SECONDS)
