"""The kubelet's two sockets, as a kubelet meets them."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from grpclib import GRPCError, Status
from grpclib.client import Channel
from grpclib.exceptions import StreamTerminatedError

from liken_audio.dra.claims import ClaimError, ClaimRef, PreparedDevice
from liken_audio.dra.health import DeviceHealth, HealthStatus
from liken_audio.kubelet import plugin, server
from liken_audio.kubelet.generated import pluginregistration as registration
from liken_audio.kubelet.generated import v1alpha1 as health
from liken_audio.kubelet.generated.k8s.io.kubelet.pkg.apis.dra import v1 as dra
from liken_audio.kubelet.server import KubeletServer, SocketLostError
from liken_audio.kubelet.socket_paths import SocketPaths, socket_paths

DRIVER = "audio.liken.sh"
DEADLINE = 45.0


class Handler:
    """Prepares with no devices; may be held up."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.go.set()
        self.started = asyncio.Event()

    async def prepare(
        self, refs: Sequence[ClaimRef]
    ) -> Mapping[str, tuple[PreparedDevice, ...] | ClaimError]:
        self.started.set()
        await self.go.wait()
        return {ref.uid: () for ref in refs}

    async def unprepare(self, refs: Sequence[ClaimRef]) -> Mapping[str, ClaimError | None]:
        return {ref.uid: None for ref in refs}

    def health(self) -> Sequence[DeviceHealth]:
        return (DeviceHealth(pool="kitchen", device="speaker", status=HealthStatus.HEALTHY),)

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        return lambda: None


def paths_in(folder: Path, pod_uid: str = "") -> SocketPaths:
    return socket_paths(DRIVER, folder / "registry", folder / "plugin", pod_uid)


def server_at(paths: SocketPaths, handler: Handler | None = None) -> KubeletServer:
    services = plugin.services(handler or Handler())
    return KubeletServer(DRIVER, paths, services, plugin.SUPPORTED_VERSIONS)


@asynccontextmanager
async def serving(made: KubeletServer, paths: SocketPaths) -> AsyncIterator["asyncio.Task[None]"]:
    task = asyncio.get_running_loop().create_task(made.run())
    try:
        await until(lambda: task.done() or accepts(paths.registration))
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@asynccontextmanager
async def connected(path: Path) -> AsyncIterator[Channel]:
    channel = Channel(path=str(path))
    try:
        yield channel
    finally:
        channel.close()


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE):
        while not is_so():
            await asyncio.sleep(0.01)


def accepts(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


def leave_stale(path: Path, *, age: float = 0.0) -> int:
    """Leave a socket's file behind that nobody listens on, as SIGKILL does; return its inode."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    status = path.stat()
    os.utime(path, (status.st_atime - age, status.st_mtime - age))
    return status.st_ino


async def info(path: Path) -> registration.PluginInfo:
    async with connected(path) as channel:
        stub = registration.RegistrationStub(channel)
        return await stub.get_info(registration.InfoRequest(), timeout=1.0)


async def notify(path: Path, *, error: str = "") -> None:
    async with connected(path) as channel:
        stub = registration.RegistrationStub(channel)
        status = registration.RegistrationStatus(plugin_registered=not error, error=error)
        await stub.notify_registration_status(status, timeout=5.0)


async def prepare(path: Path, uid: str = "u", timeout: float = 45.0) -> dict[str, Any]:
    async with connected(path) as channel:
        request = dra.NodePrepareResourcesRequest(claims=[dra.Claim("media", uid, "speakers")])
        stub = dra.DraPluginStub(channel)
        response = await stub.node_prepare_resources(request, timeout=timeout)
        return dict(response.claims)


async def test_the_kubelet_learns_type_name_endpoint_and_versions(workspace: Path) -> None:
    paths = paths_in(workspace)
    async with serving(server_at(paths), paths):
        answer = await info(paths.registration)
    assert (answer.type, answer.name, answer.endpoint) == ("DRAPlugin", DRIVER, str(paths.plugin))
    assert answer.supported_versions[:2] == ["v1.DRAPlugin", "v1beta1.DRAPlugin"]


async def test_registration_can_be_repeated_and_is_counted(workspace: Path) -> None:
    paths = paths_in(workspace)
    made = server_at(paths)
    async with serving(made, paths):
        for _ in range(2):  # a kubelet that was restarted asks again
            await info(paths.registration)
            await notify(paths.registration)
    assert made.status.is_registered
    assert made.registrations == 2


async def test_the_plugin_answers_before_the_registration_socket_exists(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = paths_in(workspace)
    seen: list[bool] = []
    enter = server._Listener.__aenter__

    async def watched(listener: Any) -> Any:
        if listener.path == paths.registration:
            seen.append(accepts(paths.plugin) and not paths.registration.exists())
        return await enter(listener)

    monkeypatch.setattr(server._Listener, "__aenter__", watched)
    async with serving(server_at(paths), paths):
        pass
    assert seen == [True]


async def test_get_info_answers_while_a_prepare_is_held_up(workspace: Path) -> None:
    paths = paths_in(workspace)
    handler = Handler()
    handler.go.clear()
    async with serving(server_at(paths, handler), paths), asyncio.TaskGroup() as tasks:
        held = tasks.create_task(prepare(paths.plugin))
        await handler.started.wait()
        assert (await info(paths.registration)).name == DRIVER  # within kubelet's 1 s
        handler.go.set()
        assert (await held)["u"].error == ""


async def test_a_stop_unlinks_both_sockets(workspace: Path) -> None:
    paths = paths_in(workspace)
    async with serving(server_at(paths), paths):
        assert paths.plugin.is_socket()
        assert paths.registration.is_socket()
    assert not paths.plugin.exists()
    assert not paths.registration.exists()


async def test_a_call_under_way_is_answered_before_the_end(workspace: Path) -> None:
    paths = paths_in(workspace)
    handler = Handler()
    handler.go.clear()
    async with serving(server_at(paths, handler), paths) as task, asyncio.TaskGroup() as tasks:
        held = tasks.create_task(prepare(paths.plugin))
        await handler.started.wait()
        task.cancel()
        await until(lambda: not paths.registration.exists() and not paths.plugin.exists())
        handler.go.set()
        assert set(await held) == {"u"}


async def test_a_health_stream_does_not_hold_up_the_end_and_ends_with_it(workspace: Path) -> None:
    paths = paths_in(workspace)
    async with connected(paths.plugin) as channel, serving(server_at(paths), paths) as task:
        stub = health.DraResourceHealthStub(channel)
        stream = stub.node_watch_resources(health.NodeWatchResourcesRequest())
        assert (await anext(stream)).devices[0].device.device_name == "speaker"
        task.cancel()
        async with asyncio.timeout(server.DRAIN_SECONDS / 2):
            await asyncio.wait([task])
            with pytest.raises((StreamTerminatedError, GRPCError)):
                await anext(stream)


async def test_after_the_end_an_open_connection_serves_no_more(workspace: Path) -> None:
    paths = paths_in(workspace)
    async with connected(paths.plugin) as channel:
        stub = dra.DraPluginStub(channel)
        async with serving(server_at(paths), paths):
            await stub.node_prepare_resources(dra.NodePrepareResourcesRequest())
        with pytest.raises((OSError, GRPCError, StreamTerminatedError)):
            await stub.node_prepare_resources(dra.NodePrepareResourcesRequest(), timeout=2.0)


async def test_sockets_left_by_sigkill_are_bound_anew(workspace: Path) -> None:
    paths = paths_in(workspace)
    for path in (paths.plugin, paths.registration):
        leave_stale(path)
    async with serving(server_at(paths), paths):
        assert (await info(paths.registration)).name == DRIVER
        assert "u" in await prepare(paths.plugin)


async def test_sockets_of_a_dead_pod_are_removed_and_those_of_a_live_one_stay(
    workspace: Path,
) -> None:
    old, dead, fresh = (paths_in(workspace, f"pod-{name}") for name in ("old", "dead", "fresh"))
    for path in (dead.plugin, dead.registration):
        leave_stale(path, age=server.STALE_SECONDS + 1)
    just_made = paths_in(workspace, "pod-starting")
    leave_stale(just_made.registration)
    foreign = workspace / "registry" / "gpu.example.com-reg.sock"
    leave_stale(foreign, age=server.STALE_SECONDS + 1)
    async with serving(server_at(old), old):
        os.utime(old.registration, (0, 0))
        async with serving(server_at(fresh), fresh):
            assert accepts(old.registration)
            assert accepts(old.plugin)
            assert not dead.plugin.exists()
            assert not dead.registration.exists()
            assert just_made.registration.exists()
            assert foreign.exists()


async def test_a_refused_registration_is_kept_and_tried_again_on_a_new_socket(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "CHECK_INTERVAL", 0.01)
    monkeypatch.setattr(server, "FIRST_RETRY", 0.1)
    paths = paths_in(workspace)
    made = server_at(paths)
    async with serving(made, paths):
        first = paths.registration.stat().st_ctime_ns
        await notify(paths.registration, error="endpoint already registered")
        assert not made.status.is_registered
        assert made.status.error == "endpoint already registered"
        await until(
            lambda: (
                paths.registration.exists()
                and paths.registration.stat().st_ctime_ns != first
                and accepts(paths.registration)
            )
        )
        await notify(paths.registration)
        assert made.status.is_registered
        second = paths.registration.stat().st_ctime_ns
        await asyncio.sleep(0.3)  # three times the back-off: nothing is made anew any more
        assert paths.registration.stat().st_ctime_ns == second


def test_refusals_back_off_with_a_cap() -> None:
    waits = [server._retry_after(refusals) for refusals in (1, 2, 3, 10, 1000)]
    assert waits == [5.0, 10.0, 20.0, 120.0, 120.0]


async def test_a_removed_registration_socket_comes_back(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "CHECK_INTERVAL", 0.01)
    paths = paths_in(workspace)
    async with serving(server_at(paths), paths):
        paths.registration.unlink()
        await until(lambda: accepts(paths.registration))
        assert (await info(paths.registration)).name == DRIVER


@pytest.mark.parametrize("which", ["plugin", "registration"])
async def test_a_socket_taken_over_by_another_instance_ends_this_one_and_stays(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    monkeypatch.setattr(server, "CHECK_INTERVAL", 0.01)
    paths = paths_in(workspace)
    taken: Path = getattr(paths, which)
    async with serving(server_at(paths), paths) as task:
        # Made beside it and moved over it: a new file that surely has another inode.
        leave_stale(taken.with_name("new.sock"))
        taken.with_name("new.sock").replace(taken)
        with pytest.raises(SocketLostError, match="was replaced"):
            await asyncio.wait_for(asyncio.shield(task), DEADLINE)
    assert taken.exists()


async def test_a_removed_plugin_socket_ends_the_run(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "CHECK_INTERVAL", 0.01)
    paths = paths_in(workspace)
    async with serving(server_at(paths), paths) as task:
        paths.plugin.unlink()
        with pytest.raises(SocketLostError, match="was removed"):
            await asyncio.wait_for(asyncio.shield(task), DEADLINE)


async def test_a_method_that_is_not_served_is_unimplemented(workspace: Path) -> None:
    paths = paths_in(workspace)
    async with serving(server_at(paths), paths), connected(paths.plugin) as channel:
        stub = registration.RegistrationStub(channel)  # on the other socket only
        with pytest.raises(GRPCError) as caught:
            await stub.get_info(registration.InfoRequest())
    assert caught.value.status is Status.UNIMPLEMENTED


async def test_many_calls_share_one_connection(workspace: Path) -> None:
    paths = paths_in(workspace)
    async with serving(server_at(paths), paths), connected(paths.plugin) as channel:
        stub = dra.DraPluginStub(channel)
        requests = [
            dra.NodePrepareResourcesRequest(claims=[dra.Claim("media", f"u{i}", "c")])
            for i in range(50)
        ]
        calls = (stub.node_prepare_resources(request) for request in requests)
        answers = await asyncio.gather(*calls)
    assert [list(answer.claims) for answer in answers] == [[f"u{i}"] for i in range(50)]
