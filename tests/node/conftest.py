"""A real node for the whole run, and what to know of a failure."""

from collections.abc import Iterator

import pytest

from tests.harness.control_plane import ControlPlane, control_plane_program
from tests.harness.processes import HarnessError, Workspace
from tests.harness.real_node import node_programs


@pytest.fixture(scope="session")
def real_control_plane() -> Iterator[ControlPlane]:
    """A control plane that watches its nodes, as a kubelet does its part."""
    try:
        control_plane_program()
        node_programs()
    except HarnessError as error:
        pytest.skip(str(error))
    with (
        Workspace("cluster") as made,
        ControlPlane(made.folder("control-plane"), controllers="*") as running,
    ):
        yield running
