"""`make bench`: start the real parts, measure, print the table; status 1 when a bound is broken.

`python -m tests.bench [startup|status|edits|storm|prepare|claims|idle|fleet|cards]…` measures only
what is named; `python -m tests.bench node` measures on a real node, which needs the image, and
`python -m tests.bench emulated` sound cards of a kernel, in a guest.
"""

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import yaml

from tests.bench import emulated, measures, on_node
from tests.bench.api import Api
from tests.bench.cards import cards
from tests.bench.figures import Figure, table
from tests.bench.fleet import fleet
from tests.harness.cluster import Cluster
from tests.harness.control_plane import ControlPlane
from tests.harness.node import Node
from tests.harness.processes import Workspace, wait_until
from tests.harness.sound_stack import SoundStack

TREE = Path(__file__).parents[2]
IDLE_SECONDS = 60
CARDS = 16
OUTPUTS = 4
SINK = "kitchen-pci-0000-00-01-0-output-0"


def main() -> int:
    """Measure what the command line names, or everything but what needs a real node or a guest."""
    if sys.argv[1:] == ["node"]:
        return _print(on_node.measure())
    if sys.argv[1:] == ["emulated"]:
        return _print(emulated.measure())
    with (
        Workspace("bench") as work,
        ControlPlane(work.folder("cluster")) as plane,
        SoundStack(work.folder("sound")) as stack,
    ):
        cluster = Cluster(plane.kubeconfig)
        cluster.make_node("kitchen")
        cluster.kubectl("apply", "-k", str(TREE / "manifests/crds"))
        cards = work.folder("cards") / "virtual.yaml"
        cards.write_text(yaml.safe_dump(virtual_cards()))
        with Node(
            work.folder("node"), "kitchen", cluster=cluster, stack=stack, virtual=cards
        ) as node:
            api = Api(cluster)
            wait_until(
                lambda: len(measures.api_devices(api)) == measures.ENDPOINTS, "64 devices", 30
            )
            return _measure(node, stack, api, sys.argv[1:])


def virtual_cards() -> dict[str, object]:
    """Return 16 cards with 4 outputs each."""
    return {
        "cards": [
            {
                "number": number,
                "id": f"card{number}",
                "bus": "pci",
                "path": f"0000:00:{number + 1:02x}.0",
                "pcms": [
                    {"device": device, "id": f"Output {device}", "direction": "playback"}
                    for device in range(OUTPUTS)
                ],
            }
            for number in range(CARDS)
        ]
    }


def _measure(node: Node, stack: SoundStack, api: Api, names: Sequence[str]) -> int:
    steps: dict[str, Callable[[], Sequence[Figure]]] = {
        "startup": lambda: measures.startup(node, api),
        "status": lambda: measures.status(stack, api, SINK),
        "edits": lambda: measures.edits(node, stack, api, SINK),
        "storm": lambda: measures.storm(node, stack, api, SINK),
        "prepare": lambda: measures.prepare(node, api),
        "claims": lambda: measures.claims(node, stack, api),
        "idle": lambda: measures.idle(node, IDLE_SECONDS),
        "fleet": lambda: fleet(api, node.cluster.kubeconfig),
        "cards": cards,
    }
    if unknown := set(names) - set(steps):
        print(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(steps)}")
        return 2
    figures: list[Figure] = []
    for name in names or steps:
        began = time.monotonic()
        figures += steps[name]()
        print(f"{name}: measured in {time.monotonic() - began:.0f} s", flush=True)
    return _print(figures)


def _print(figures: Sequence[Figure]) -> int:
    print(table(figures))
    return 0 if all(figure.holds for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
