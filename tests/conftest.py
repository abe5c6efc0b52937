"""What every test shares: the event loop's start, the rule for skips, and the real partners."""

import asyncio
import gc
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import structlog

from tests.harness.cluster import Cluster
from tests.harness.control_plane import ControlPlane, control_plane_program
from tests.harness.processes import HarnessError, Workspace
from tests.harness.sound_stack import SoundStack

REQUIRE_VARIABLE = "LIKEN_AUDIO_REQUIRE"
"""Set by make and CI: what a test needs must be there, so a skip is a failure."""


def pytest_configure() -> None:
    """Keep pytest's plug-ins from making an event loop that nobody closes.

    They ask for the current loop before a test has one, and Python up to 3.13 then makes it.
    Once a loop, even None, has been set, it raises instead, which they handle.
    """
    asyncio.set_event_loop(None)
    _log_plainly()
    # The quick run is for every edit, and must stay quick; CI looks longer.
    hypothesis.settings.register_profile("quick", max_examples=20, deadline=None)
    hypothesis.settings.register_profile("thorough", max_examples=150, deadline=None)
    is_quick = not os.environ.get(REQUIRE_VARIABLE)
    hypothesis.settings.load_profile("quick" if is_quick else "thorough")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Let virtual time jump to the next timer at once.

    The plug-in turns the loop 42 times first, in case that something is ready after all. asyncio
    asks for the next timer only when nothing is, and threads are waited for in any case.
    """
    if item.get_closest_marker("looptime"):
        item.add_marker(pytest.mark.looptime(noop_cycles=0))


def pytest_collection() -> None:
    """Collect no garbage while thousands of tests are read, which all stay."""
    gc.disable()


def pytest_collection_finish() -> None:
    """From here on look for garbage only among what the tests make: a fifth of the time."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Iterator[None]:
    """Turn a skip into a failure where everything must be there."""
    report = yield
    _fail_if_skipped(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """Do the same for a module that skips itself."""
    report = yield
    _fail_if_skipped(report)
    return report


def _log_plainly() -> None:
    """Log as short lines; by default tracebacks get frames with all local values in colour."""
    structlog.configure(
        processors=[structlog.processors.format_exc_info, structlog.processors.LogfmtRenderer()],
        logger_factory=structlog.PrintLoggerFactory(),
    )


def _fail_if_skipped(report: pytest.TestReport | pytest.CollectReport) -> None:
    is_expected = hasattr(report, "wasxfail")
    if report.outcome == "skipped" and not is_expected and os.environ.get(REQUIRE_VARIABLE):
        report.outcome = "failed"
        report.longrepr = f"skipped, though {REQUIRE_VARIABLE} is set: {report.longrepr}"


@pytest.fixture(autouse=True)
def _logging_as_found() -> Iterator[None]:
    """Undo what a test sets up for the whole process; pytest closes the file that it wrote to."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    _log_plainly()
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def workspace() -> Iterator[Path]:
    """A folder with a path short enough for sockets (pytest's own is too long for them)."""
    with Workspace("test") as made:
        yield made.path


@pytest.fixture(scope="session")
def control_plane() -> Iterator[ControlPlane]:
    """A real control plane, one for the whole run: tests use names of their own in it."""
    try:
        control_plane_program()
    except HarnessError as error:
        pytest.skip(str(error))
    with Workspace("cluster") as made, ControlPlane(made.folder("control-plane")) as running:
        yield running


@pytest.fixture(scope="session")
def cluster(control_plane: ControlPlane) -> Cluster:
    """kubectl on that control plane, with our CRDs and example classes in it."""
    manifests = Path(__file__).parents[1] / "manifests"
    cluster = control_plane.cluster
    cluster.kubectl("apply", "-k", str(manifests / "crds"))
    cluster.kubectl("apply", "-f", str(manifests / "examples" / "classes.yaml"))
    cluster.kubectl("wait", "--for=condition=Established", "--timeout=30s", "crd", "--all")
    return cluster


@pytest.fixture
def sound_stack(workspace: Path) -> Iterator[SoundStack]:
    """A PipeWire and a WirePlumber of the test's own."""
    missing = [each for each in SoundStack.PROGRAMS if shutil.which(each) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed: run through make")
    with SoundStack(workspace / "sound") as running:
        yield running
