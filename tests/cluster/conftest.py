"""The whole agent on a node of its own in the shared control plane, and what to know of a failure."""

import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.harness.cluster import Cluster
from tests.harness.kubelet_role import KubeletRole
from tests.harness.node import DRIVER, TREE, Node, fresh_node
from tests.harness.processes import HarnessError
from tests.harness.sound_stack import SoundStack
from tests.harness.workloads import Namespace

VIRTUAL_CARDS = TREE / "manifests" / "examples" / "virtual-cards.yaml"
LOG_LINES = 60
DEVICES, PLAYABLE = 4, 3
"""Of the example's cards."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Add what the cluster and the agents say to the report of a failed test."""
    report = yield
    if report.failed:
        nodes = [each for each in getattr(item, "funcargs", {}).values() if isinstance(each, Node)]
        for node in nodes:
            report.sections += [(title, text) for title, text in _state(node)]
    return report


def _state(node: Node) -> Iterator[tuple[str, str]]:
    for kinds in ("resourceslices", "resourceclaims", "pods", "sinks,sources"):
        try:
            text = node.cluster.kubectl("get", kinds, "--all-namespaces", "-o", "yaml")
        except HarnessError as error:
            text = str(error)
        yield kinds, text
    for program in node.programs():
        lines = program.log.read_text(errors="replace").splitlines()
        yield program.name, "\n".join(lines[-LOG_LINES:])


@pytest.fixture
def virtual_cards(workspace: Path) -> Path:
    """The example's cards, in a file that the test may change."""
    return Path(shutil.copy(VIRTUAL_CARDS, workspace / "cards.yaml"))


@pytest.fixture
def node(
    cluster: Cluster, sound_stack: SoundStack, workspace: Path, virtual_cards: Path
) -> Iterator[Node]:
    """A node of the test's own, with the example's devices published; no kubelet knows it yet."""
    with fresh_node(cluster, sound_stack, workspace / "node", virtual_cards) as made:
        made.wait_published(DEVICES, PLAYABLE)
        yield made


@pytest.fixture
async def kubelet(node: Node) -> AsyncIterator[KubeletRole]:
    """A kubelet's role with which the agent is registered."""
    async with node.kubelet() as role:
        await role.register(DRIVER)
        yield role


@pytest.fixture
def namespace(node: Node) -> Iterator[Namespace]:
    """A namespace for claims on the node."""
    with Namespace(node.cluster, node.name) as made:
        yield made
