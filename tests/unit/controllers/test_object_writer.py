"""Sinks on the API server: adopted, brought up to date, made anew, deleted."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest

from liken_audio.api import NODE_LABEL, SINKS, ApiError, Json, NotFound, Unreachable
from liken_audio.controllers.object_writer import (
    ELSEWHERE_SECONDS,
    NOT_SERVED_SECONDS,
    UNDECLARED_SECONDS,
    ObjectPartners,
    ObjectWriter,
)
from liken_audio.controllers.tracked import Key, Tracked
from liken_audio.graph.model import DeviceName, Endpoint, Fault
from liken_audio.resources.conditions import Transition
from liken_audio.resources.reconcile import reconcile
from liken_audio.resources.situation import Memory, Situation
from liken_audio.resources.v1alpha1 import Spec
from tests.builders import card, endpoint, node
from tests.fakes import FakeResourceClient

pytestmark = pytest.mark.looptime

NAME = "kitchen-pci-0000-00-1f-3-alc257-analog"
KEY: Key = (SINKS, DeviceName(NAME))
NODE = node(NAME, state="running", volumes=(1.0, 1.0))
NOW = datetime(2026, 11, 30, 20, 0, tzinfo=UTC)


@dataclass
class Recorder:
    reasons: list[str] = field(default_factory=list)

    def record(self, stored: Json, transition: Transition) -> None:
        assert stored["metadata"]["uid"]
        self.reasons.append(transition.reason)


@dataclass
class Desk:
    client: FakeResourceClient = field(default_factory=FakeResourceClient)
    recorder: Recorder = field(default_factory=Recorder)

    def __post_init__(self) -> None:
        self.cache = self.client.cache(SINKS)
        self.writer = ObjectWriter(
            "kitchen",
            ObjectPartners(
                client=self.client,
                caches={SINKS: self.cache},
                events=self.recorder,
                wall=lambda: NOW,
            ),
        )

    async def bring(self, one: Tracked) -> None:
        """Write as often as the object needs it; nothing is judged anew in between."""
        for _ in range(4):
            await self.writer.write(KEY, one)

    def stored(self) -> Json:
        return self.client.store["sinks", NAME]

    def reasons(self) -> list[str]:
        return [one["reason"] for one in self.stored()["status"]["conditions"]]


def tracked(one: Endpoint | None = None, spec: Spec | None = None) -> Tracked:
    one = one or endpoint(node=NODE)
    situation = Situation(endpoint=one, fault=one.fault, spec=spec or Spec())
    return Tracked(endpoint=one, outcome=reconcile(situation, Memory(), 0.0))


def theirs(**changes: object) -> Json:
    return {
        "apiVersion": "audio.liken.sh/v1alpha1",
        "kind": "Sink",
        "metadata": {"name": NAME},
        **changes,
    }


async def test_a_missing_object_is_made_with_its_status_and_written_no_more() -> None:
    desk, one = Desk(), tracked()
    await desk.bring(one)
    assert desk.stored()["metadata"]["labels"] == {NODE_LABEL: "kitchen"}
    assert desk.reasons() == ["NotDetectable", "Ready", "NothingDeclared"]
    assert desk.writer.writes == len(desk.client.writes()) == 2


async def test_an_object_that_a_user_made_first_is_adopted_and_judged_before_its_status() -> None:
    desk = Desk()
    desk.client.put(SINKS, theirs(spec={"volume": 30}))
    desk.cache.remove(NAME)  # our watch sees only what bears our label
    await desk.writer.write(KEY, tracked())
    assert desk.stored()["metadata"]["labels"] == {NODE_LABEL: "kitchen"}
    assert desk.cache.objects()[NAME]["spec"] == {"volume": 30}
    assert "status" not in desk.stored()


async def test_an_object_deleted_in_between_is_made_anew() -> None:
    desk, one = Desk(), tracked()
    await desk.bring(one)
    desk.cache.is_paused = True
    desk.client.remove(SINKS, NAME)
    one.outcome = tracked(spec=Spec(volume=100)).outcome
    await desk.bring(one)
    assert desk.reasons() == ["NotDetectable", "Ready", "Applied"]


async def test_a_kind_that_is_not_served_is_tried_again_after_a_time_and_not_by_each_object() -> (
    None
):
    """U79."""
    desk, one = Desk(), tracked()
    now = asyncio.get_running_loop().time()
    desk.client.failures = [NotFound("no such resource", status=404)]
    assert await desk.writer.write(KEY, one) == now + NOT_SERVED_SECONDS
    other: Key = (SINKS, DeviceName("another"))
    assert await desk.writer.write(other, tracked()) == now + NOT_SERVED_SECONDS
    assert len(desk.client.calls) == 1
    await asyncio.sleep(NOT_SERVED_SECONDS)
    assert await desk.writer.write(KEY, one) is None
    assert desk.stored()


async def test_an_error_of_the_server_is_the_queues_business() -> None:
    desk = Desk()
    desk.client.failures = [Unreachable("away", status=503)]
    with pytest.raises(Unreachable):
        await desk.writer.write(KEY, tracked())
    assert desk.writer.writes == 0


async def test_a_card_that_moved_to_another_node_leaves_its_object_there() -> None:
    desk = Desk()
    desk.client.put(SINKS, theirs(metadata={"name": NAME, "labels": {NODE_LABEL: "attic"}}))
    desk.cache.remove(NAME)
    now = asyncio.get_running_loop().time()
    absent = tracked(endpoint(card=card(is_present=False), node=None, fault=Fault.UNPLUGGED))
    assert await desk.writer.write(KEY, absent) == now + ELSEWHERE_SECONDS
    assert desk.client.writes() == []
    await desk.writer.write(KEY, tracked())  # and is fetched when it comes back
    assert desk.stored()["metadata"]["labels"] == {NODE_LABEL: "kitchen"}


async def test_a_gone_device_without_a_spec_is_deleted_under_preconditions() -> None:
    desk = Desk()
    await desk.bring(tracked())
    await desk.writer.write(KEY, Tracked(gone_since=-1_000.0))
    assert ("sinks", NAME) not in desk.client.store
    assert NAME not in desk.cache.objects()


async def test_a_gone_device_that_is_edited_at_the_last_moment_is_not_deleted() -> None:
    desk = Desk()
    await desk.bring(tracked())
    desk.cache.is_paused = True
    desk.client.put(SINKS, {**desk.stored(), "spec": {"volume": 5}})
    with pytest.raises(ApiError):
        await desk.writer.write(KEY, Tracked(gone_since=-1_000.0))
    assert desk.stored()["spec"] == {"volume": 5}


async def test_a_gone_device_with_a_spec_stays_and_says_so() -> None:
    desk = Desk()
    await desk.bring(tracked())
    desk.client.put(SINKS, {**desk.stored(), "spec": {"volume": 5}})
    await desk.writer.write(KEY, Tracked(gone_since=-1_000.0))
    assert desk.reasons() == ["DeviceGone"] * 3


async def test_changes_are_events_and_a_first_sight_is_none() -> None:
    desk, one = Desk(), tracked()
    await desk.bring(one)
    assert desk.recorder.reasons == []
    one.outcome = tracked(endpoint(node=None, fault=Fault.NO_NODE)).outcome
    await desk.writer.write(KEY, one)
    assert desk.recorder.reasons == ["NoNode"]


def refusing(*fields: str) -> Callable[[Json], None]:
    """Refuse as an API server does whose CRD doesn't declare these fields of status."""

    def admit(body: Json) -> None:
        for name in fields:
            if name in body.get("status", {}):
                raise ApiError(
                    "failed to create typed patch object (/a; audio.liken.sh/v1alpha1, Kind=Sink): "
                    f".status.{name}: field not declared in schema",
                    status=500,
                )

    return admit


async def test_an_older_crd_gets_all_but_the_fields_that_it_does_not_know() -> None:
    desk, one = Desk(), tracked()
    desk.client.admit = refusing("location")
    await desk.bring(one)
    assert "location" not in desk.stored()["status"]
    assert desk.reasons()[1] == "Ready"
    writes = len(desk.client.calls)
    await desk.writer.write(KEY, one)
    assert len(desk.client.calls) == writes
    desk.client.admit = refusing()
    one.outcome = tracked(spec=Spec(volume=100)).outcome
    await asyncio.sleep(UNDECLARED_SECONDS)
    await desk.writer.write(KEY, one)
    assert "location" in desk.stored()["status"]


async def test_any_other_refusal_is_not_retried_here() -> None:
    desk = Desk()
    desk.client.failures = [None, ApiError("internal error", status=500)]
    with pytest.raises(ApiError):
        await desk.bring(tracked())
    assert len(desk.client.calls) == 2
