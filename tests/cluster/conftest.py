"""The whole agent on a node of its own in the shared control plane."""

import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.cluster import Cluster
from tests.harness.node import TREE, Node
from tests.harness.sound_stack import SoundStack

VIRTUAL_CARDS = TREE / "manifests" / "examples" / "virtual-cards.yaml"


@pytest.fixture
def virtual_cards(workspace: Path) -> Path:
    """The example's cards, in a file that the test may change."""
    return Path(shutil.copy(VIRTUAL_CARDS, workspace / "cards.yaml"))


@pytest.fixture
def node(
    cluster: Cluster, sound_stack: SoundStack, workspace: Path, virtual_cards: Path
) -> Iterator[Node]:
    """A ready agent on a Node that no other test has; all of the Node's objects go at the end."""
    name = f"node-{uuid.uuid4().hex[:8]}"
    cluster.make_node(name)
    made = Node(workspace / "node", name, cluster=cluster, stack=sound_stack, virtual=virtual_cards)
    try:
        with made:
            made.wait_ready()
            yield made
    finally:
        cluster.kubectl("delete", "sinks,sources", f"-l=audio.liken.sh/node={name}")
        cluster.kubectl("delete", "node", name)
