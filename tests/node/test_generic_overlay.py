"""The overlay for any node with a /dev/snd: two privileged containers, on a real kubelet and runtime.

The node gets none of the machine's cards, which are somebody's, so what is seen is the way to the
cards: who may open them, and that the files of a card that comes later come too.
"""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.harness import deployment
from tests.harness.control_plane import ControlPlane
from tests.harness.deployment import PATIENCE, Deployment
from tests.harness.processes import Workspace, wait_until
from tests.harness.real_node import RealNode

pytestmark = pytest.mark.timeout(600)

PRIVILEGED = {"pipewire", "agent"}
OTHERS = {"wireplumber", "claim-sockets"}
CARDS = Path("/dev/snd")


@contextlib.contextmanager
def folder_to_mount_on() -> Iterator[None]:
    """See that the machine has the folder, whose place in the node is another one's."""
    is_bare = not CARDS.exists()
    CARDS.mkdir(exist_ok=True)
    try:
        yield
    finally:
        if is_bare:
            CARDS.rmdir()


@pytest.fixture(scope="module")
def generic(has_node_programs: None, archive: Path) -> Iterator[Deployment]:
    """The overlay on a node of its own, applied."""
    with (
        folder_to_mount_on(),
        Workspace("generic") as made,
        ControlPlane(made.folder("control-plane"), controllers="*") as control_plane,
        RealNode(made.folder("node"), "cellar", control_plane) as node,
    ):
        # In the node alone: its /dev is the machine's.
        node.run("mount", "-t", "tmpfs", "cards", str(CARDS))
        deployment.load_image(node, archive, "1")
        product = Deployment(node, made.folder("product"))
        product.apply(overlay="generic")
        yield product
        product.remove()
        wait_until(lambda: not product.processes(), "the end of the pod", PATIENCE)


def status(product: Deployment, container: str) -> Mapping[str, str]:
    """What the kernel says of a container's first process."""
    pid = product.node.host_pid(product.pid(container))
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def cards_of(product: Deployment, container: str) -> Path:
    """A container's own /dev/snd, as this machine reaches it."""
    pid = product.node.host_pid(product.pid(container))
    return Path(f"/proc/{pid}/root/dev/snd")


def test_pipewire_and_the_agent_alone_are_privileged_and_all_get_ready(generic: Deployment) -> None:
    generic.wait_ready()
    for container in PRIVILEGED:
        said = status(generic, container)
        assert int(said["CapEff"], 16), container
        assert said["Seccomp"] == "0", container
    for container in OTHERS:
        said = status(generic, container)
        assert not int(said["CapEff"], 16), container
        assert said["Seccomp"] == "2", container
        assert said["Uid"].split()[0] == "42800", container
    assert sum(generic.restarts().values()) == 0
    assert len(generic.slices()) == 1


def test_a_card_that_comes_later_has_its_files_in_these_two_alone(generic: Deployment) -> None:
    generic.wait_ready()
    (generic.node.path(str(CARDS)) / "of-the-test").touch()
    for container in PRIVILEGED:
        assert (cards_of(generic, container) / "of-the-test").exists(), container
    for container in OTHERS:
        assert not cards_of(generic, container).exists(), container
