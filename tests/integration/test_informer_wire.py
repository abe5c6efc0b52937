"""Client and informer on a wire that misbehaves, as no real API server can be made to."""

import asyncio
import json
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from liken_audio.api import (
    NODES,
    SINKS,
    Conflict,
    Gone,
    Json,
    NotFound,
    Rejected,
    Resource,
    Unreachable,
)
from liken_audio.kubernetes.client import Deadlines, KubernetesClient
from liken_audio.kubernetes.credentials import Access, KubeconfigFile, ServiceAccount
from liken_audio.kubernetes.informer import Informer

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
QUICK = Deadlines(connect=2.0, read=2.0, total=4.0, watch_silence=0.5, recheck=0.0)
PATIENCE = 20.0


class ApiServer:
    """Lists what it holds and plays one script for each watch; the last one is repeated."""

    def __init__(self) -> None:
        self.objects: list[Json] = []
        self.version = 10
        self.list_failures: list[web.Response] = []
        self.watches: list[Handler] = [silence]
        self.requests: list[web.Request] = []
        self.bodies: list[bytes] = []
        self.connections: set[Any] = set()
        self.port = 0

    def verbs(self) -> list[str]:
        return ["watch" if "watch" in each.query else "list" for each in self.requests]

    @asynccontextmanager
    async def running(self, context: ssl.SSLContext | None = None) -> AsyncIterator[str]:
        """Serve on a port that stays the same over several runs; yields the address."""
        application = web.Application(client_max_size=2**24)
        application.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        try:
            listener = socket.create_server(("127.0.0.1", self.port))
            self.port = listener.getsockname()[1]
            await web.SockSite(runner, listener, ssl_context=context).start()
            yield f"http{'s' if context else ''}://127.0.0.1:{self.port}"
        finally:
            await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        self.bodies.append(await request.read())
        self.connections.add(request.transport)
        if "watch" in request.query:
            script = self.watches.pop(0) if len(self.watches) > 1 else self.watches[0]
            return await script(request)
        if self.list_failures:
            return self.list_failures.pop(0)
        return web.json_response(
            {"metadata": {"resourceVersion": str(self.version)}, "items": self.objects}
        )


class Fixed:
    """Credentials for one address."""

    def __init__(self, address: str) -> None:
        self.address = address

    async def load(self) -> Access:
        from kubernetes_asyncio.client.configuration import Configuration

        return Access(Configuration(host=self.address), ())


def sink(name: str, version: int, **fields: Any) -> Json:
    metadata = {"name": name, "uid": f"uid-{name}", "resourceVersion": str(version)}
    return {"kind": "Sink", "metadata": metadata, **fields}


def line(kind: str, body: Json) -> bytes:
    return json.dumps({"type": kind, "object": body}).encode() + b"\n"


async def opened(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    response.enable_chunked_encoding()
    await response.prepare(request)
    return response


async def silence(request: web.Request) -> web.StreamResponse:
    """Headers, then nothing: a half-open connection as a client sees it."""
    response = await opened(request)
    await asyncio.sleep(3600)
    return response


def sending(*parts: bytes, ends: bool = False) -> Handler:
    """Send parts of a body, then end in good order or stay silent."""

    async def script(request: web.Request) -> web.StreamResponse:
        response = await opened(request)
        for part in parts:
            await response.write(part)
        if not ends:
            await asyncio.sleep(3600)
        return response

    return script


def cutting(*parts: bytes) -> Handler:
    """Send parts of a body, then cut the connection."""

    async def script(request: web.Request) -> web.StreamResponse:
        response = await opened(request)
        for part in parts:
            await response.write(part)
        await asyncio.sleep(0.05)
        assert request.transport is not None
        request.transport.close()
        return response

    return script


def refusing(status: int, **options: Any) -> Handler:
    async def script(_: web.Request) -> web.StreamResponse:
        return web.json_response({"kind": "Status", "code": status}, status=status, **options)

    return script


@asynccontextmanager
async def informing(
    server: ApiServer, deadlines: Deadlines = QUICK
) -> AsyncIterator[tuple[Informer, list[str]]]:
    """A client and an informer on that server, with the keys that it woke us for."""
    woken: list[str] = []
    async with server.running() as address:
        client = KubernetesClient(Fixed(address), deadlines)
        async with client, asyncio.TaskGroup() as group:
            informer = Informer(client, SINKS)
            informer.subscribe(woken.append)
            task = group.create_task(informer.run())
            yield informer, woken
            task.cancel()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    "failure",
    [
        pytest.param(refusing(410), id="http-410"),
        pytest.param(sending(line("ERROR", {"code": 410}), ends=True), id="event-410"),
        pytest.param(
            sending(line("ERROR", {"kind": "Status"}), ends=True), id="event-without-code"
        ),
        pytest.param(refusing(500), id="http-500"),
    ],
)
async def test_each_form_of_too_old_costs_one_new_list(failure: Handler) -> None:
    """U74."""
    server = ApiServer()
    server.objects = [sink("a", 5)]
    server.watches = [failure, silence]
    async with informing(server, Deadlines()) as (_, woken):
        await until(lambda: server.verbs().count("watch") == 2)
        assert server.verbs() == ["list", "watch", "list", "watch"]
        assert woken == ["a"]


async def test_a_half_open_watch_is_left_after_its_deadline_and_caught_up() -> None:
    """U76: here after half a second, in the product after `watch_silence`."""
    server = ApiServer()
    server.watches = [silence, sending(line("ADDED", sink("a", 11)))]
    async with informing(server) as (informer, _):
        await until(lambda: "a" in informer.objects())
        assert server.verbs() == ["list", "watch", "watch"]
        assert server.requests[2].query["resourceVersion"] == "10"


async def test_a_watch_that_gets_bookmarks_is_not_left() -> None:
    async def bookmarks(request: web.Request) -> web.StreamResponse:
        response = await opened(request)
        for number in range(8):
            body = {"kind": "Sink", "metadata": {"resourceVersion": str(20 + number)}}
            await response.write(line("BOOKMARK", body))
            await asyncio.sleep(0.2)
        return response

    server = ApiServer()
    server.watches = [bookmarks, silence]
    async with informing(server, Deadlines(watch_silence=1.0)):
        await until(lambda: server.verbs().count("watch") == 2)
        assert server.verbs() == ["list", "watch", "watch"]
        assert server.requests[2].query["resourceVersion"] == "27"


@pytest.mark.parametrize("size", [130_000, 600_000, 1_500_000])
async def test_an_event_of_any_size_is_read(size: int) -> None:
    """U78."""
    server = ApiServer()
    body = sink("a", 11, text="x" * size)
    server.watches = [sending(line("ADDED", body), line("ADDED", sink("b", 12)))]
    async with informing(server) as (informer, _):
        await until(lambda: "b" in informer.objects())
        assert informer.objects()["a"]["text"] == "x" * size


async def test_an_event_cut_in_the_middle_is_read_whole_from_the_next_watch() -> None:
    server = ApiServer()
    whole = line("MODIFIED", sink("a", 12))
    server.objects = [sink("a", 5)]
    server.watches = [
        cutting(line("MODIFIED", sink("a", 11)), whole[:30]),
        sending(whole),
    ]
    async with informing(server) as (informer, woken):
        await until(lambda: len(woken) == 3)
        assert informer.objects()["a"]["metadata"]["resourceVersion"] == "12"
        assert server.verbs()[:3] == ["list", "watch", "watch"]
        assert server.requests[2].query["resourceVersion"] == "11"
        assert woken == ["a", "a", "a"]


@pytest.mark.parametrize(
    "garbage", [b"<html>proxy</html>\n", b"\xff\xfe\xfd\n", b'{"type": "ADDED", "obj\n', b"[]\n"]
)
async def test_garbage_on_the_wire_stops_nothing(garbage: bytes) -> None:
    server = ApiServer()
    server.watches = [sending(garbage, ends=True), sending(line("ADDED", sink("a", 11)))]
    async with informing(server) as (informer, _):
        await until(lambda: "a" in informer.objects())


async def test_a_server_that_was_away_costs_one_list_when_it_is_back() -> None:
    """U81, in small."""
    server = ApiServer()
    server.objects = [sink("a", 5)]
    async with server.running() as address:
        pass
    client = KubernetesClient(Fixed(address), QUICK)
    async with client, asyncio.TaskGroup() as group:
        informer = Informer(client, SINKS)
        async with server.running():
            task = group.create_task(informer.run())
            await until(lambda: "watch" in server.verbs())
        before = len(server.requests)
        attempts = informer.attempts
        await until(lambda: informer.attempts >= attempts + 2)
        server.watches = [sending(line("ADDED", sink("b", 11)))]
        async with server.running():
            await until(lambda: "b" in informer.objects())
            assert server.verbs()[before : before + 2] == ["list", "watch"]
        task.cancel()


async def test_a_busy_server_decides_when_we_come_back() -> None:
    server = ApiServer()
    server.list_failures = [web.json_response({}, status=429, headers={"Retry-After": "2"})]
    began = asyncio.get_running_loop().time()
    async with informing(server) as (informer, _):
        await until(lambda: informer.is_synced)
    assert asyncio.get_running_loop().time() - began >= 2.0
    assert server.verbs()[:2] == ["list", "list"]


async def test_a_crd_that_is_missing_at_the_start_is_waited_for() -> None:
    """U79."""
    server = ApiServer()
    server.list_failures = [web.Response(status=404, text="404 page not found\n")] * 2
    server.objects = [sink("a", 5)]
    async with informing(server) as (informer, _):
        await until(lambda: "a" in informer.objects())


@asynccontextmanager
async def calling(server: ApiServer, script: Handler) -> AsyncIterator[KubernetesClient]:
    """A client whose calls are all answered by the script."""

    async def answer(request: web.Request) -> web.StreamResponse:
        server.requests.append(request)
        server.connections.add(request.transport)
        server.bodies.append(await request.read())
        return await script(request)

    server._answer = answer  # type: ignore[method-assign]  # one answer for all paths
    async with server.running() as address, KubernetesClient(Fixed(address), QUICK) as client:
        yield client


async def echo(_: web.Request) -> web.StreamResponse:
    return web.json_response({"kind": "Sink", "metadata": {"name": "a", "resourceVersion": "1"}})


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (404, NotFound),
        (409, Conflict),
        (410, Gone),
        (403, Rejected),
        (422, Rejected),
        (429, Unreachable),
        (401, Unreachable),
        (500, Unreachable),
        (503, Unreachable),
    ],
)
async def test_a_refused_call_raises_its_kind_of_error(status: int, kind: type[Exception]) -> None:
    async with calling(ApiServer(), refusing(status)) as client:
        with pytest.raises(kind):
            await client.get(NODES, "kitchen")
        assert client.failures == 1


async def test_a_call_that_is_never_answered_ends_at_its_deadline() -> None:
    async with calling(ApiServer(), silence) as client:
        with pytest.raises(Unreachable, match="no answer in time"):
            await client.get(NODES, "kitchen")


async def drip(request: web.Request) -> web.StreamResponse:
    response = await opened(request)
    while True:
        await response.write(b" ")
        await asyncio.sleep(0.5)


async def test_an_answer_that_only_drips_ends_at_the_deadline_of_the_whole_call() -> None:
    async with calling(ApiServer(), drip) as client:
        with pytest.raises(Unreachable, match="no answer in time"):
            await client.get(NODES, "kitchen")


@pytest.mark.parametrize("body", [b"<html>", b"", b"[]", b'{"a":', b"\xff"])
async def test_an_answer_that_is_no_object_is_unreachable_and_not_a_crash(body: bytes) -> None:
    async def script(_: web.Request) -> web.StreamResponse:
        return web.Response(body=body, content_type="text/html")

    async with calling(ApiServer(), script) as client:
        with pytest.raises(Unreachable):
            await client.get(NODES, "kitchen")


async def test_calls_share_one_connection() -> None:
    server = ApiServer()
    async with calling(server, echo) as client:
        for _ in range(20):
            await client.get(NODES, "kitchen")
            await client.apply(SINKS, sink("a", 1))
    assert len(server.requests) == 40
    assert len(server.connections) == 1


CLAIMS = Resource("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim", is_namespaced=True)


async def test_what_is_asked_of_the_server_is_what_the_api_says() -> None:
    server = ApiServer()
    claim = {"metadata": {"name": "c/d", "namespace": "default", "resourceVersion": "7"}}
    async with calling(server, echo) as client:
        await client.get(CLAIMS, "c", "default")
        await client.create(CLAIMS, claim)
        await client.update(CLAIMS, claim)
        await client.delete(CLAIMS, "c", namespace="default", uid="u", resource_version="7")
        await client.apply(CLAIMS, claim, subresource="status")
        await client.list(NODES, label_selector="a=b", field_selector="metadata.name=kitchen")
    folder = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
    asked = [
        (each.method, each.raw_path.split("?")[0], dict(each.query)) for each in server.requests
    ]
    apply = {"fieldManager": "audio.liken.sh", "force": "true", "fieldValidation": "Strict"}
    assert asked == [
        ("GET", f"{folder}/c", {}),
        ("POST", folder, {"fieldValidation": "Strict"}),
        ("PUT", f"{folder}/c%2Fd", {"fieldValidation": "Strict"}),
        ("DELETE", f"{folder}/c", {}),
        ("PATCH", f"{folder}/c%2Fd/status", apply),
        (
            "GET",
            "/api/v1/nodes",
            {"labelSelector": "a=b", "fieldSelector": "metadata.name=kitchen"},
        ),
    ]
    assert json.loads(server.bodies[3])["preconditions"] == {"uid": "u", "resourceVersion": "7"}
    assert server.requests[4].content_type == "application/apply-patch+yaml"
    assert json.loads(server.bodies[4]) == claim


async def test_a_proxy_of_the_environment_is_not_used_for_loopback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    async with calling(ApiServer(), echo) as client:
        assert (await client.get(NODES, "kitchen"))["kind"] == "Sink"


def kubeconfig(folder: Path, address: str, user: str, cluster: str) -> Path:
    file = folder / "kubeconfig"
    file.write_text(
        json.dumps(
            {
                "clusters": [{"name": "c", "cluster": {"server": address, **json.loads(cluster)}}],
                "users": [{"name": "u", "user": json.loads(user)}],
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                "current-context": "x",
            }
        )
    )
    return file


async def test_a_rotated_token_is_used_without_a_restart(tmp_path: Path) -> None:
    accepted = "one"

    async def script(request: web.Request) -> web.StreamResponse:
        if request.headers.get("Authorization") != f"Bearer {accepted}":
            return web.json_response({"kind": "Status"}, status=401)
        return await echo(request)

    server = ApiServer()
    token = tmp_path / "token"
    token.write_text("one\n")
    async with calling(server, script):
        address = f"http://127.0.0.1:{server.port}"
        user = json.dumps({"tokenFile": str(token)})
        credentials = KubeconfigFile(kubeconfig(tmp_path, address, user, "{}"))
        async with KubernetesClient(credentials, QUICK) as client:
            await client.get(NODES, "kitchen")
            accepted = "two"
            with pytest.raises(Unreachable):
                await client.get(NODES, "kitchen")
            token.write_text("two\n")
            await client.get(NODES, "kitchen")


async def test_half_written_credentials_leave_the_connection_as_it_was(tmp_path: Path) -> None:
    server = ApiServer()
    async with calling(server, echo):
        address = f"http://127.0.0.1:{server.port}"
        file = kubeconfig(tmp_path, address, '{"token": "a"}', "{}")
        async with KubernetesClient(KubeconfigFile(file), QUICK) as client:
            await client.get(NODES, "kitchen")
            file.write_text("{")
            await client.get(NODES, "kitchen")


def certificate(folder: Path, name: str) -> Path:
    """Make a self-signed certificate for 127.0.0.1 and its key: `name`.crt and `name`.key."""
    options = (
        f"req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN={name}"
    )
    subprocess.run(
        [
            "openssl",
            *options.split(),
            *("-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", str(folder / f"{name}.key")),
            *("-out", str(folder / f"{name}.crt")),
        ],
        check=True,
        capture_output=True,
        timeout=60,
    )
    return folder / f"{name}.crt"


def serving(certificate: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, certificate.with_suffix(".key"))
    return context


async def test_a_rotated_authority_is_used_without_a_restart(tmp_path: Path) -> None:
    server = ApiServer()
    old, new = certificate(tmp_path, "old"), certificate(tmp_path, "new")
    account = tmp_path / "account"
    account.mkdir()
    (account / "token").write_text("abc")
    (account / "ca.crt").write_bytes(old.read_bytes())
    async with server.running(serving(old)):
        environment = {
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(server.port),
        }
        client = KubernetesClient(ServiceAccount(account, environment), QUICK)
        await client.list(NODES)
    async with client, server.running(serving(new)):
        with pytest.raises(Unreachable, match="certificate"):
            await client.list(NODES)
        (account / "ca.crt").write_bytes(new.read_bytes())
        await client.list(NODES)


async def test_a_watch_goes_on_while_the_connection_is_replaced(tmp_path: Path) -> None:
    server = ApiServer()
    go_on = asyncio.Event()

    async def script(request: web.Request) -> web.StreamResponse:
        response = await opened(request)
        await go_on.wait()
        await response.write(line("ADDED", sink("a", 11)))
        return response

    server.watches = [script]
    async with server.running() as address:
        file = kubeconfig(tmp_path, address, '{"token": "a"}', "{}")
        async with KubernetesClient(KubeconfigFile(file), Deadlines(recheck=0.0)) as client:
            watch = client.watch(SINKS, resource_version="1", timeout_seconds=60)
            async with watch as events:
                kubeconfig(tmp_path, address, '{"token": "longer"}', "{}")
                await client.list(NODES)
                assert server.requests[-1].headers["Authorization"] == "Bearer longer"
                go_on.set()
                assert [each["type"] async for each in events] == ["ADDED"]
