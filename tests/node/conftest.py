"""The product on a real node, installed once for the whole run, and what to know of a failure."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import deployment
from tests.harness.control_plane import ControlPlane, control_plane_program
from tests.harness.deployment import Deployment, Site
from tests.harness.processes import HarnessError, Workspace
from tests.harness.real_node import RealNode, node_programs
from tests.harness.workloads import HDMI

NODE = "kitchen"
LOG_LINES = 40


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Add what the cluster and the node say to the report of a failed test."""
    report = yield
    if report.failed:
        for product in list(_products(item))[:1]:
            report.sections += list(_state(product))
    return report


def _products(item: pytest.Item) -> Iterator[Deployment]:
    for each in getattr(item, "funcargs", {}).values():
        if isinstance(each, Site):
            yield each.product
        elif isinstance(each, Deployment):
            yield each


def _state(product: Deployment) -> Iterator[tuple[str, str]]:
    questions = {
        "objects": ("get", "pods,resourceclaims,resourceslices,sinks", "-A", "-o", "wide"),
        "pods": ("describe", "pods", "-A"),
    }
    for title, question in questions.items():
        yield title, _said(lambda question=question: product.cluster.kubectl(*question))  # type: ignore[misc]
    logs = f"tail -n {LOG_LINES} /var/log/pods/*/*/*.log"
    yield "logs", _said(lambda: product.node.run("sh", "-c", logs))
    yield "processes", _said(lambda: product.node.run("ps", "fax"))
    for program in product.node.programs():
        yield program.name, program.log_end(LOG_LINES)


def _said(ask: object) -> str:
    try:
        return str(ask())  # type: ignore[operator]
    except HarnessError as error:
        return str(error)


@pytest.fixture(scope="session")
def has_node_programs() -> None:
    """Skip what needs a control plane and a node where their programs aren't set up."""
    try:
        control_plane_program()
        node_programs()
    except HarnessError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def real_control_plane(has_node_programs: None) -> Iterator[ControlPlane]:
    """A control plane that watches its nodes, as a kubelet does its part."""
    with (
        Workspace("cluster") as made,
        ControlPlane(made.folder("control-plane"), controllers="*") as running,
    ):
        yield running


@pytest.fixture(scope="session")
def archive() -> Path:
    """The product's image."""
    try:
        return deployment.image_archive()
    except HarnessError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def site(real_control_plane: ControlPlane, archive: Path) -> Iterator[Site]:
    """A node with the product on it and one pod that plays."""
    with (
        Workspace("node") as made,
        RealNode(made.folder("node"), NODE, real_control_plane) as node,
    ):
        deployment.load_image(node, archive, "1", "2")
        product = Deployment(node, made.folder("product"))
        began = time.monotonic()
        product.apply()
        speakers = deployment.template("speakers", product.device(HDMI))
        source = {"resourceClaimTemplateName": "speakers"}
        node.cluster.apply(speakers, deployment.deployment("music", source))
        try:
            product.wait_heard(HDMI)
            yield Site(product, "music", time.monotonic() - began)
        except HarnessError as error:
            report = "\n".join(f"--- {title}\n{text}" for title, text in _state(product))
            raise HarnessError(f"{error}\n{report}") from None
        finally:
            product.end()
