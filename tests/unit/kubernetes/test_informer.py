"""The reflector's rules one by one; then the informer against a scripted server in virtual time."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from structlog.testing import capture_logs

from liken_audio.api import (
    SINKS,
    ApiError,
    Gone,
    Json,
    NotFound,
    Rejected,
    Resource,
    Unreachable,
)
from liken_audio.kubernetes.informer import Informer, Reflector, Trouble, delay_after, key_of


def sink(name: str, version: int | str, **fields: Any) -> Json:
    metadata = {"name": name, "uid": f"uid-{name}", "resourceVersion": str(version)}
    return {"kind": "Sink", "metadata": metadata, **fields}


def listing(version: int | str, *items: Json) -> Json:
    return {"kind": "SinkList", "metadata": {"resourceVersion": str(version)}, "items": list(items)}


def event(kind: str, body: Json) -> Json:
    return {"type": kind, "object": body}


def bookmark(version: int) -> Json:
    return event("BOOKMARK", {"kind": "Sink", "metadata": {"resourceVersion": str(version)}})


def following(*items: Json, version: int = 10) -> Reflector:
    """A reflector that has listed and whose watch is open."""
    reflector = Reflector()
    reflector.listing()
    reflector.listed(listing(version, *items))
    reflector.opened()
    return reflector


def versions(reflector: Reflector) -> dict[str, str]:
    return {key: body["metadata"]["resourceVersion"] for key, body in reflector.objects.items()}


def test_it_begins_with_a_list_and_watches_from_the_lists_own_version() -> None:
    reflector = Reflector()
    assert reflector.needs_list
    assert reflector.listed(listing(10, sink("a", 99), sink("b", 3))) == {"a", "b"}
    assert not reflector.needs_list
    assert reflector.resource_version == "10"


@pytest.mark.parametrize("answer", [{}, {"items": []}, {"metadata": {}, "items": None}, {"a": 1}])
def test_a_list_without_a_version_is_a_failure_and_no_reason_to_watch_from_none(
    answer: Json,
) -> None:
    reflector = Reflector()
    with pytest.raises(Unreachable):
        reflector.listed(answer)
    assert reflector.needs_list


def test_an_empty_list_may_say_null() -> None:
    assert Reflector().listed({"metadata": {"resourceVersion": "1"}, "items": None}) == set()


def test_events_change_the_objects_and_move_the_version() -> None:
    reflector = following(sink("a", 5))
    assert reflector.event(event("ADDED", sink("b", 11))) == {"b"}
    assert reflector.event(event("MODIFIED", sink("a", 12))) == {"a"}
    assert reflector.event(event("DELETED", sink("b", 13))) == {"b"}
    assert reflector.event(bookmark(40)) == set()
    assert versions(reflector) == {"a": "12"}
    assert reflector.resource_version == "40"


def test_a_namespaced_object_is_known_by_both_names() -> None:
    body = sink("a", 1)
    body["metadata"]["namespace"] = "default"
    assert key_of(body) == "default/a"


def test_what_nobody_reads_is_not_kept() -> None:
    body = sink("a", 1)
    body["metadata"]["managedFields"] = [{"manager": "x"}]
    reflector = following(body)
    assert "managedFields" not in reflector.objects["a"]["metadata"]
    assert "managedFields" in body["metadata"], "what was given is never changed"


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param({"type": "SYNCED", "object": sink("a", 11)}, id="unknown-type"),
        pytest.param({"object": sink("a", 11)}, id="no-type"),
        pytest.param({"type": ["ADDED"], "object": sink("a", 11)}, id="type-of-no-text"),
        pytest.param({"type": "ADDED"}, id="no-object"),
        pytest.param({"type": "ADDED", "object": {"kind": "Sink"}}, id="no-metadata"),
        pytest.param({"type": "ADDED", "object": {"metadata": {"name": "a"}}}, id="no-version"),
        pytest.param({"type": "BOOKMARK", "object": None}, id="bookmark-of-nothing"),
        pytest.param([], id="a-list"),
        pytest.param(None, id="null"),
    ],
)
def test_an_event_that_makes_no_sense_is_counted_and_left_out(broken: Any) -> None:
    """U74: an unknown event type is no crash, and no version None."""
    reflector = following(sink("a", 5))
    assert reflector.event(broken) == set()
    assert reflector.unknown_events == 1
    assert reflector.resource_version == "10"
    assert not reflector.needs_list


@pytest.mark.parametrize(
    "status",
    [
        pytest.param({"kind": "Status", "code": 410, "reason": "Expired"}, id="410"),
        pytest.param({"kind": "Status", "code": 500}, id="500"),
        pytest.param({"kind": "Status", "message": "no code"}, id="without-code"),
        pytest.param({}, id="empty"),
        pytest.param(None, id="null"),
    ],
)
def test_an_error_event_of_any_form_means_one_new_list(status: Json | None) -> None:
    """U74."""
    reflector = following(sink("a", 5))
    assert reflector.event({"type": "ERROR", "object": status}) == set()
    assert reflector.needs_list
    assert reflector.must_wait
    assert versions(reflector) == {"a": "5"}, "the cache stays until the list is there"
    assert reflector.listed(listing(20, sink("a", 5))) == set(), "nothing changed, nobody is woken"


def test_http_410_means_a_new_list() -> None:
    reflector = following()
    reflector.ended(lasted=5.0)
    reflector.broke(Gone("too old", status=410))
    assert reflector.needs_list


def test_a_watch_that_ends_or_breaks_is_taken_up_where_it_stopped() -> None:
    reflector = following()
    reflector.event(event("ADDED", sink("a", 11)))
    reflector.ended(lasted=300.0)
    assert (reflector.resource_version, reflector.must_wait) == ("11", False)
    reflector.opened()
    reflector.broke(Unreachable("cut"), lasted=20.0)
    assert (reflector.resource_version, reflector.must_wait) == ("11", True)
    assert reflector.trouble is None


def test_a_server_that_was_away_is_listed_once_when_it_is_back() -> None:
    reflector = following()
    reflector.broke(Unreachable("cut"), lasted=20.0)
    reflector.broke(Unreachable("refused"))
    assert reflector.needs_list
    assert reflector.trouble is Trouble.FAILING


def test_a_busy_server_is_not_asked_for_a_list_on_top() -> None:
    reflector = following()
    reflector.ended(lasted=300.0)
    reflector.broke(Unreachable("busy", status=429))
    assert reflector.resource_version == "10"


def test_a_resource_that_is_not_served_has_no_objects() -> None:
    reflector = following(sink("a", 5), sink("b", 6))
    reflector.ended(lasted=5.0)
    assert reflector.broke(NotFound("no CRD", status=404)) == {"a", "b"}
    assert reflector.objects == {}
    assert reflector.trouble is Trouble.NOT_SERVED


def test_a_new_list_tells_what_changed_meanwhile() -> None:
    reflector = following(sink("same", 1), sink("changed", 2), sink("gone", 3))
    again = listing(20, sink("same", 1), sink("changed", 15), sink("new", 16))
    assert reflector.listed(again) == {"changed", "gone", "new"}


def test_an_object_that_was_made_anew_with_an_old_version_is_a_change() -> None:
    reflector = following(sink("a", 5))
    other = sink("a", 5)
    other["metadata"]["uid"] = "another"
    assert reflector.listed(listing(20, other)) == {"a"}


def test_a_restored_backup_with_lower_versions_is_believed() -> None:
    reflector = following(sink("a", 500), version=600)
    reflector.listed(listing(100, sink("a", 90)))
    reflector.opened()
    reflector.event(event("MODIFIED", sink("a", 101)))
    assert versions(reflector) == {"a": "101"}
    assert reflector.resource_version == "101"


def test_our_own_write_is_seen_at_once_and_older_events_do_not_undo_it() -> None:
    reflector = following(sink("a", 5))
    reflector.observe(sink("a", 12))
    assert reflector.event(event("MODIFIED", sink("a", 11))) == set()
    assert reflector.event(event("MODIFIED", sink("a", 12))) == set()
    assert versions(reflector) == {"a": "12"}
    assert reflector.event(event("MODIFIED", sink("a", 13))) == {"a"}


def test_a_late_deletion_of_a_former_object_does_not_hide_our_new_one() -> None:
    reflector = following(sink("a", 5))
    reflector.forget("uid-a")
    reflector.observe(sink("a", 12))
    assert reflector.event(event("DELETED", sink("a", 11))) == set()
    assert versions(reflector) == {"a": "12"}
    assert reflector.event(event("DELETED", sink("a", 13))) == {"a"}


def test_a_list_that_began_before_our_write_does_not_hide_it() -> None:
    reflector = following(sink("a", 5))
    reflector.listing()
    reflector.observe(sink("b", 21))
    reflector.listed(listing(20, sink("a", 5)))
    assert versions(reflector) == {"a": "5", "b": "21"}
    reflector.listing()
    reflector.listed(listing(30, sink("a", 5)))
    assert versions(reflector) == {"a": "5"}, "a later list knows better"


def test_what_we_deleted_is_gone_at_once() -> None:
    reflector = following(sink("a", 5))
    reflector.forget("uid-a")
    assert reflector.objects == {}
    assert reflector.event(event("DELETED", sink("a", 11))) == set()


def test_versions_that_are_no_numbers_are_taken_as_they_come() -> None:
    reflector = following(sink("a", "x"))
    assert reflector.event(event("MODIFIED", sink("a", "y"))) == {"a"}
    assert reflector.event(event("DELETED", sink("a", "z"))) == {"a"}


def test_failures_in_a_row_wait_longer_up_to_about_a_minute() -> None:
    reflector = Reflector()
    delays = []
    for _ in range(12):
        reflector.broke(Unreachable("refused"))
        delays.append(delay_after(reflector, None))
    for delay, lowest in zip(delays, [0.5, 1, 2, 4, 8, 16, 32, 60, 60, 60, 60, 60], strict=True):
        assert lowest <= delay <= 1.2 * lowest


def test_the_server_may_ask_for_a_longer_wait() -> None:
    reflector = Reflector()
    error = Unreachable("busy", status=503, retry_after=90.0)
    reflector.broke(error)
    assert 90.0 <= delay_after(reflector, error) <= 108.0


def test_a_success_needs_no_wait() -> None:
    assert delay_after(following(), None) == 0.0


def test_lists_that_work_do_not_hide_watches_that_never_do() -> None:
    reflector = Reflector()
    for _ in range(10):
        reflector.listing()
        reflector.listed(listing(10))
        reflector.opened()
        reflector.event({"type": "ERROR", "object": {}})
    assert delay_after(reflector, None) >= 60.0


def test_watches_that_end_at_once_are_failures() -> None:
    reflector = following()
    for _ in range(10):
        reflector.opened()
        reflector.ended(lasted=0.01)
    assert delay_after(reflector, None) >= 60.0
    assert not reflector.needs_list


@dataclass
class Server:
    """Answers as scripted: an error, a list, or the events of a watch; then it hangs."""

    answers: list[Any] = field(default_factory=list)
    calls: list[tuple[str, float, dict[str, Any]]] = field(default_factory=list)
    default: ApiError | None = None

    def verbs(self) -> list[str]:
        return [verb for verb, _, _ in self.calls]

    async def list(self, resource: Resource, **options: Any) -> Json:
        answer = self._next("list", options)
        if isinstance(answer, ApiError):
            raise answer
        return answer if isinstance(answer, dict) else listing(10)

    @asynccontextmanager
    async def watch(self, resource: Resource, **options: Any) -> AsyncIterator[AsyncIterator[Json]]:
        answer = self._next("watch", options)
        if isinstance(answer, ApiError):
            raise answer
        yield self._events(answer)

    async def _events(self, script: Any) -> AsyncIterator[Json]:
        for step in script if isinstance(script, list) else [600.0]:
            if isinstance(step, ApiError):
                raise step
            if isinstance(step, float):
                await asyncio.sleep(step)
            else:
                yield step

    def _next(self, verb: str, options: dict[str, Any]) -> Any:
        self.calls.append((verb, asyncio.get_running_loop().time(), options))
        return self.answers.pop(0) if self.answers else self.default


@asynccontextmanager
async def running(informer: Informer) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(informer.run())
        yield
        task.cancel()


async def until(condition: Callable[[], bool], seconds: float) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.05)


@pytest.mark.looptime
async def test_it_lists_then_watches_with_its_selectors_bookmarks_and_a_spread_timeout() -> None:
    server = Server([listing(10, sink("a", 5)), [event("ADDED", sink("b", 11)), 600.0]])
    informer = Informer(server, SINKS, label_selector="x=y", field_selector="spec.nodeName=kitchen")
    woken: list[str] = []
    informer.subscribe(woken.append)
    assert not informer.is_synced
    async with running(informer):
        await informer.synced()
        await until(lambda: "b" in informer.objects(), 5)
    (_, _, listed), (_, _, watched) = server.calls[:2]
    assert listed == {"label_selector": "x=y", "field_selector": "spec.nodeName=kitchen"}
    assert watched["resource_version"] == "10"
    assert 300 <= watched["timeout_seconds"] <= 600
    assert woken == ["a", "b"]
    assert informer.events == 1


@pytest.mark.looptime
async def test_timeouts_of_watches_are_not_all_the_same() -> None:
    server = Server([None, *[[301.0]] * 20])
    async with running(Informer(server, SINKS)):
        await asyncio.sleep(20 * 302)
    seen = {options["timeout_seconds"] for verb, _, options in server.calls if verb == "watch"}
    assert len(seen) > 5


@pytest.mark.looptime
async def test_empty_watch_ends_cost_one_new_watch_each() -> None:
    server = Server([listing(10), [300.0], [bookmark(20), 300.0], [300.0]])
    async with running(Informer(server, SINKS)):
        await asyncio.sleep(901)
    assert server.verbs() == ["list", "watch", "watch", "watch", "watch"]
    assert [options["resource_version"] for _, _, options in server.calls[1:]] == [
        "10",
        "10",
        "20",
        "20",
    ]


@pytest.mark.looptime
@pytest.mark.parametrize(
    "failure",
    [
        pytest.param(Gone("too old", status=410), id="http-410"),
        pytest.param([{"type": "ERROR", "object": {"code": 410}}], id="event-410"),
        pytest.param([{"type": "ERROR", "object": {"message": "x"}}], id="event-without-code"),
        pytest.param(Unreachable("refused"), id="refused"),
    ],
)
async def test_each_failure_of_a_watch_costs_one_new_list(failure: Any) -> None:
    """U74, and a server that was away for a moment."""
    server = Server([listing(10, sink("a", 5)), failure, listing(20, sink("a", 5))])
    informer = Informer(server, SINKS)
    woken: list[str] = []
    informer.subscribe(woken.append)
    async with running(informer):
        await asyncio.sleep(60)
    assert server.verbs() == ["list", "watch", "list", "watch"]
    assert woken == ["a"], "no side effect twice"


@pytest.mark.looptime
async def test_two_hours_without_a_server_are_at_most_150_attempts_and_one_list_after() -> None:
    """U81: refused for two hours, three times 503, then fine."""
    server = Server([listing(10, sink("a", 5)), [5.0, Unreachable("cut")]])
    server.default = Unreachable("refused")
    informer = Informer(server, SINKS)
    with capture_logs() as logs:
        async with running(informer):
            await asyncio.sleep(7200)
            assert 50 < len(server.calls) <= 150
            assert informer.objects().keys() == {"a"}, "what was known stays known"
            assert informer.trouble is Trouble.FAILING
            before = len(server.calls)
            server.answers = [Unreachable("busy", status=503)] * 3
            server.default = None
            await asyncio.sleep(600)
    assert server.verbs()[before:] == ["list"] * 4 + ["watch"]
    assert informer.trouble is None
    assert [line["event"] for line in logs] == [
        "watching",
        "can't be listed or watched; trying on",
        "watching",
    ]


@pytest.mark.looptime
async def test_a_crd_that_comes_after_three_minutes_is_seen_within_ten_seconds() -> None:
    """U79."""
    server = Server(default=NotFound("404 page not found", status=404))
    informer = Informer(server, SINKS)
    with capture_logs() as logs:
        async with running(informer):
            await asyncio.sleep(180)
            assert len(server.calls) < 40
            assert not informer.is_synced
            server.answers, server.default = [listing(10, sink("a", 5))], None
            await until(lambda: "a" in informer.objects(), 10.0)
    assert [line["event"] for line in logs] == [
        "not served by the API server; waiting for it",
        "watching",
    ]


@pytest.mark.looptime
async def test_a_crd_deleted_while_running_empties_the_cache_until_it_is_back() -> None:
    """U79."""
    server = Server([listing(10, sink("a", 5)), [20.0], *[NotFound("gone", status=404)] * 5])
    informer = Informer(server, SINKS)
    woken: list[str] = []
    informer.subscribe(woken.append)
    async with running(informer):
        await asyncio.sleep(21)
        assert informer.objects() == {}
        assert informer.is_synced
        server.answers.append(listing(90, sink("a", 80)))
        await until(lambda: "a" in informer.objects(), 60.0)
    assert woken == ["a", "a", "a"]


@pytest.mark.looptime
async def test_a_refusal_is_logged_even_after_the_server_was_unreachable() -> None:
    server = Server(
        [Unreachable("refused"), Unreachable("refused"), *[Rejected("forbidden", status=403)] * 9]
    )
    with capture_logs() as logs:
        async with running(Informer(server, SINKS)):
            await asyncio.sleep(60)
    assert [line["error"] for line in logs if line["log_level"] == "warning"] == [
        "refused",
        "forbidden",
    ]


@pytest.mark.looptime
async def test_a_silent_watch_that_the_client_gives_up_is_taken_up_again() -> None:
    """U76: the client's deadline is its `watch_silence`."""
    server = Server([listing(10), [150.0, Unreachable("no answer in time")]])
    async with running(Informer(server, SINKS)):
        await asyncio.sleep(152)
    assert server.verbs() == ["list", "watch", "watch"]


@pytest.mark.looptime
async def test_the_cache_does_not_grow_with_the_events() -> None:
    changes = [event("MODIFIED", sink("a", 11 + number)) for number in range(5000)]
    server = Server([listing(10, sink("a", 5)), [*changes, 600.0]])
    informer = Informer(server, SINKS)
    async with running(informer):
        await until(lambda: informer.events == 5000, 5)
    assert len(informer.objects()) == 1
    assert len(informer._reflector._observed) == 0


@pytest.mark.looptime
async def test_own_writes_are_read_back_and_wake_nobody() -> None:
    server = Server([listing(10), [5.0, event("ADDED", sink("a", 12)), 600.0]])
    informer = Informer(server, SINKS)
    woken: list[str] = []
    informer.subscribe(woken.append)
    async with running(informer):
        await informer.synced()
        informer.observe(sink("a", 12))
        assert informer.objects()["a"]["metadata"]["resourceVersion"] == "12"
        await asyncio.sleep(10)
        informer.forget("uid-a")
        assert not informer.objects()
    assert woken == []
