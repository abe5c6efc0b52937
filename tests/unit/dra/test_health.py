"""Health follows faults at once."""

import pytest

from liken_audio.dra.health import DeviceHealth, HealthStatus, health
from liken_audio.graph.model import Fault
from tests.builders import endpoint


def test_a_device_without_a_fault_is_healthy() -> None:
    assert health([endpoint("speaker")], "kitchen", is_known=True) == (
        DeviceHealth(pool="kitchen", device="speaker", status=HealthStatus.HEALTHY),
    )


@pytest.mark.parametrize("fault", list(Fault))
def test_each_fault_makes_it_unhealthy_and_says_why(fault: Fault) -> None:
    (device,) = health([endpoint(fault=fault)], "kitchen", is_known=True)
    assert device.status is HealthStatus.UNHEALTHY
    assert device.message


def test_before_pipewire_has_spoken_nothing_is_known() -> None:
    (device,) = health([endpoint(fault=Fault.GRAPH_LOST)], "kitchen", is_known=False)
    assert device.status is HealthStatus.UNKNOWN
