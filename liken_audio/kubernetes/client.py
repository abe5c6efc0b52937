"""Calls to the API server on plain dicts: get, list, watch, create, update, delete, apply.

kubernetes_asyncio makes the requests (its `ApiClient.call_api`), this module adds what it leaves
open: a deadline on each call, one family of errors (`liken_audio.api`), connections that stay
open between calls and are noticed when they die, credentials that may be rotated at any time,
and watch lines of any length. Nothing is retried here; who calls decides.

A connection is made on first use and made anew when the files behind the credentials change or
the server answers 401; calls and watches that run on the old one end in peace.
"""

import asyncio
import json
import re
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote, urlsplit

import aiohttp
from kubernetes_asyncio.client.api_client import ApiClient
from kubernetes_asyncio.client.configuration import Configuration

from liken_audio.api import (
    FIELD_MANAGER,
    ApiError,
    Conflict,
    Gone,
    Json,
    NotFound,
    Rejected,
    Resource,
    Unreachable,
)
from liken_audio.kubernetes.credentials import (
    Credentials,
    CredentialsError,
    Fingerprint,
    KubeconfigFile,
    fingerprint,
    in_pod,
)

MAX_RETRY_AFTER = 300.0
"""Longest wait, in seconds, that a Retry-After can ask of us: a wrong proxy must not mute us."""

MAX_WATCH_LINE = 16 * 1024 * 1024
"""etcd stores objects of up to 1.5 MB; a line beyond this is no event."""

_JSON = "application/json"
_APPLY = "application/apply-patch+yaml; charset=utf-8"
"""With its charset, so that the library sends our bytes: JSON as Python writes it is no YAML."""
_STRICT = ("fieldValidation", "Strict")
_NOT_IN_YAML = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Bounds in seconds."""

    connect: float = 5.0
    """Until a connection stands, TLS included."""
    read: float = 15.0
    """Between two reads of an answer."""
    total: float = 20.0
    """For a whole call, whatever it waits for."""
    watch_silence: float = 150.0
    """Without a byte on a watch: the server sends a bookmark each minute, so two were missed."""
    recheck: float = 10.0
    """Until the credentials' files are looked at again, and until a 401 has them read anew."""


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    path: str
    query: Sequence[tuple[str, str]] = ()
    body: Json | bytes | None = None
    content_type: str = _JSON


@dataclass(slots=True)
class _Connection:
    """One pool of connections made from one reading of the credentials."""

    api: ApiClient
    files: tuple[Path, ...]
    fingerprint: Fingerprint
    next_check: float
    calls: int = 0
    is_stale: bool = False
    """The server refused our credentials, or we its certificate: read them anew."""


class KubernetesClient:
    """The API server. Satisfies `ResourceClient`, and `ListWatcher` of the informer."""

    def __init__(self, credentials: Credentials, deadlines: Deadlines | None = None) -> None:
        self._credentials = credentials
        self._deadlines = deadlines or Deadlines()
        self._connection: _Connection | None = None
        self._opening = asyncio.Lock()
        self.requests = 0
        """Requests sent, watches included."""
        self.failures = 0
        """Requests that ended in an `ApiError`."""

    @classmethod
    def from_kubeconfig(cls, path: str | Path, context: str | None = None) -> Self:
        """Return a client for one context of a kubeconfig, None for the current one."""
        return cls(KubeconfigFile(Path(path), context))

    @classmethod
    def in_cluster(cls) -> Self:
        """Return a client with the service account of this pod."""
        return cls(in_pod())

    async def __aenter__(self) -> Self:
        """Read the credentials, so that a wrong file is known at once: `CredentialsError`."""
        await self._open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections; a later call would open new ones."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.api.close()

    async def get(self, resource: Resource, name: str, namespace: str | None = None) -> Json:
        """Read one object."""
        return await self._call(_Request("GET", _path(resource, namespace, name)))

    async def list(
        self,
        resource: Resource,
        *,
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
    ) -> Json:
        """Read a whole list, as new as the server's storage; `namespace` None means all."""
        query = _selectors(label_selector, field_selector)
        return await self._call(_Request("GET", _path(resource, namespace), query))

    async def create(self, resource: Resource, body: Json) -> Json:
        """Create; namespace and name (or generateName) are the body's. `Conflict` if it exists."""
        path = _path(resource, _namespace(resource, body))
        return await self._call(_Request("POST", path, [_STRICT], body))

    async def update(self, resource: Resource, body: Json) -> Json:
        """Replace; with `metadata.resourceVersion` in the body, `Conflict` if it moved on."""
        path = _path(resource, _namespace(resource, body), body["metadata"]["name"])
        return await self._call(_Request("PUT", path, [_STRICT], body))

    async def delete(
        self,
        resource: Resource,
        name: str,
        *,
        namespace: str | None = None,
        uid: str | None = None,
        resource_version: str | None = None,
    ) -> None:
        """Delete under the given preconditions; `NotFound` if it is gone already."""
        wanted = {"uid": uid, "resourceVersion": resource_version}
        preconditions = {key: value for key, value in wanted.items() if value is not None}
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions}
        await self._call(_Request("DELETE", _path(resource, namespace, name), (), body))

    async def apply(self, resource: Resource, body: Json, *, subresource: str = "") -> Json:
        """Server-side apply with our field manager, forced; an upsert, so safe to repeat."""
        path = _path(resource, _namespace(resource, body), body["metadata"]["name"], subresource)
        query = [("fieldManager", FIELD_MANAGER), ("force", "true"), _STRICT]
        return await self._call(_Request("PATCH", path, query, yaml_of(body), _APPLY))

    @asynccontextmanager
    async def watch(
        self,
        resource: Resource,
        *,
        label_selector: str = "",
        field_selector: str = "",
        resource_version: str,
        timeout_seconds: int,
    ) -> AsyncIterator[AsyncIterator[Json]]:
        """Open a watch and lend its events after `resource_version`, until the server ends it.

        Bookmarks are asked for. Raises an `ApiError` when the answer isn't a watch, breaks off, or
        stays silent for `Deadlines.watch_silence`.
        """
        query = [
            *_selectors(label_selector, field_selector),
            ("watch", "true"),
            ("allowWatchBookmarks", "true"),
            ("resourceVersion", resource_version),
            ("timeoutSeconds", str(timeout_seconds)),
        ]
        deadlines = self._deadlines
        bounds = aiohttp.ClientTimeout(
            sock_connect=deadlines.connect, sock_read=deadlines.watch_silence
        )
        request = _Request("GET", _path(resource, None), query)
        async with AsyncExitStack() as stack:
            with self._failing_as(f"watch {request.path}"):
                response = await stack.enter_async_context(self._answer(request, bounds))
            yield self._events(response, request.path)

    async def _events(
        self, response: aiohttp.ClientResponse, path: str
    ) -> AsyncGenerator[Json, None]:
        with self._failing_as(f"watch {path}"):
            async for line in _lines(response.content.iter_any()):
                yield json.loads(line)

    async def _call(self, request: _Request) -> Json:
        """Make one request and return the object of its answer; raises an `ApiError`."""
        deadlines = self._deadlines
        bounds = aiohttp.ClientTimeout(
            total=deadlines.total, sock_connect=deadlines.connect, sock_read=deadlines.read
        )
        action = f"{request.method} {request.path}"
        with self._failing_as(action):
            async with self._answer(request, bounds) as response:
                answer = json.loads(await response.read())
            if not isinstance(answer, dict):
                raise Unreachable(f"{action}: the answer is no JSON object")
            return answer

    @asynccontextmanager
    async def _answer(
        self, request: _Request, bounds: aiohttp.ClientTimeout
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request and lend its answer, whose body isn't read yet; a refusal raises."""
        async with self._connected() as connection:
            self.requests += 1
            try:
                response: aiohttp.ClientResponse = await connection.api.call_api(
                    request.path,
                    request.method,
                    query_params=list(request.query),
                    header_params={"Accept": _JSON, "Content-Type": request.content_type},
                    body=request.body,
                    auth_settings=["BearerToken"],
                    _preload_content=False,  # it would decode the text a second time
                    _request_timeout=bounds,
                )
            except aiohttp.ClientSSLError:
                connection.is_stale = True
                raise
            async with response:
                if response.status >= HTTPStatus.MULTIPLE_CHOICES:
                    connection.is_stale |= response.status == HTTPStatus.UNAUTHORIZED
                    data = await response.read()
                    asked = response.headers.get("Retry-After")
                    raise error_of(response.status, data, path=request.path, retry_after=asked)
                try:
                    yield response
                finally:
                    _cut(response)

    @contextmanager
    def _failing_as(self, action: str) -> Iterator[None]:
        """Turn whatever the libraries below raise into our family of errors."""
        try:
            yield
        except ApiError:
            self.failures += 1
            raise
        except TimeoutError as error:
            self.failures += 1
            raise Unreachable(f"{action}: no answer in time") from error
        except (aiohttp.ClientError, OSError, ValueError, CredentialsError) as error:
            # ValueError: an answer that isn't JSON, from a proxy or cut in the middle.
            self.failures += 1
            raise Unreachable(f"{action}: {error or type(error).__name__}") from error

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[_Connection]:
        """Lend the current connection; one that was replaced meanwhile is closed by its last user."""
        connection = await self._open()
        connection.calls += 1
        try:
            yield connection
        finally:
            connection.calls -= 1
            if connection is not self._connection and connection.calls == 0:
                await connection.api.close()

    async def _open(self) -> _Connection:
        now = asyncio.get_running_loop().time()
        current = self._connection
        if current is not None and not self._is_outdated(current, now):
            return current
        async with self._opening:
            if self._connection is not current and self._connection is not None:
                return self._connection
            try:
                fresh = await self._connect(now)
            except CredentialsError:
                # Half-written files: what we have may still be good for a while.
                if current is None:
                    raise
                return current
            self._connection = fresh
            if current is not None and current.calls == 0:
                await current.api.close()
            return fresh

    def _is_outdated(self, connection: _Connection, now: float) -> bool:
        if now < connection.next_check:
            return False
        connection.next_check = now + self._deadlines.recheck
        return connection.is_stale or fingerprint(connection.files) != connection.fingerprint

    async def _connect(self, now: float) -> _Connection:
        access = await self._credentials.load()
        try:
            context = _ssl_context(access.configuration)
            api = ApiClient(access.configuration)
        except (OSError, ValueError) as error:
            named = ", ".join(str(file) for file in access.files)
            raise CredentialsError(f"a certificate or key of {named}: {error}") from error
        api.user_agent = "liken-audio"
        # The library's own session forgets idle connections after 15 s and never probes them.
        await api.rest_client.pool_manager.close()
        api.rest_client.pool_manager = _session(str(access.configuration.host), context)
        next_check = now + self._deadlines.recheck
        return _Connection(api, access.files, fingerprint(access.files), next_check)


def error_of(
    status: int, data: bytes, *, path: str = "", retry_after: str | None = None
) -> ApiError:
    """Turn an HTTP status and the body of the answer into the matching `ApiError`."""
    try:
        answer = json.loads(data)
    except ValueError:
        answer = None
    body: Json = answer if isinstance(answer, dict) else {}
    details = body.get("details")
    asked = details.get("retryAfterSeconds") if isinstance(details, dict) else None
    text = str(body.get("message") or data[:200].decode("utf-8", "replace").strip())
    return _kind_of(status)(
        f"{path}: {status} {text}".strip(": "),
        status=status,
        reason=str(body.get("reason") or ""),
        retry_after=_seconds(retry_after if retry_after is not None else asked),
    )


def yaml_of(body: Json) -> bytes:
    """Return a body as JSON that is YAML too, whatever letters its texts hold.

    YAML takes no escapes of surrogates, by which Python writes letters beyond U+FFFF, and no
    unescaped control characters. Halves of surrogate pairs are no text at all.
    """
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    return _NOT_IN_YAML.sub(_escaped, text).encode()


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\u{0xFFFD if 0xD800 <= code <= 0xDFFF else code:04x}"


def _kind_of(status: int) -> type[ApiError]:
    if status == HTTPStatus.NOT_FOUND:
        return NotFound
    if status == HTTPStatus.CONFLICT:
        return Conflict
    if status == HTTPStatus.GONE:
        return Gone
    # 401 passes when a rotated token is read again; 408 and 429 pass by themselves.
    passing = (HTTPStatus.UNAUTHORIZED, HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)
    if status in passing or not 400 <= status < 500:
        return Unreachable
    return Rejected


def _seconds(text: object) -> float | None:
    try:
        seconds = float(str(text))
    except ValueError:
        return None
    return min(seconds, MAX_RETRY_AFTER) if seconds > 0 else None


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Cut a byte stream at line feeds; a stream that ends inside a line raises ValueError."""
    parts: list[bytes] = []
    size = 0
    async for chunk in chunks:
        head, *lines = chunk.split(b"\n")
        parts.append(head)
        size += len(head)
        for line in lines:
            whole = b"".join(parts)
            parts, size = [line], len(line)
            if whole.strip():
                yield whole
        if size > MAX_WATCH_LINE:
            raise ValueError(f"an event of more than {MAX_WATCH_LINE} bytes")
    if b"".join(parts).strip():
        raise ValueError("the watch ended inside an event")


def _cut(response: aiohttp.ClientResponse) -> None:
    """End a connection whose answer wasn't read to its end: a watch that nobody needs any more.

    Closing it in good order would wait for the server's TLS goodbye, longer than our loop lives.
    """
    if response.connection is not None and response.connection.transport is not None:
        response.connection.transport.abort()


def _path(
    resource: Resource, namespace: str | None, name: str | None = None, subresource: str = ""
) -> str:
    parts = ["apis", resource.group, resource.version] if resource.group else ["api", "v1"]
    if namespace is not None:
        parts += ["namespaces", namespace]
    parts.append(resource.plural)
    parts += [part for part in (name, subresource) if part]
    return "/" + "/".join(quote(part, safe="") for part in parts)


def _namespace(resource: Resource, body: Json) -> str | None:
    return str(body["metadata"]["namespace"]) if resource.is_namespaced else None


def _selectors(label_selector: str, field_selector: str) -> list[tuple[str, str]]:
    selectors = (("labelSelector", label_selector), ("fieldSelector", field_selector))
    return [(key, value) for key, value in selectors if value]


def _session(address: str, context: ssl.SSLContext | None) -> aiohttp.ClientSession:
    """Return a session that keeps connections open and lets the kernel notice dead ones."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            ssl=context or True,
            keepalive_timeout=75,  # below the 90 s after which the API server hangs up
            socket_factory=_socket,
        ),
        trust_env=not _is_loopback(urlsplit(address).hostname),
        cookie_jar=aiohttp.DummyCookieJar(),
        read_bufsize=2**18,
    )


def _ssl_context(configuration: Configuration) -> ssl.SSLContext | None:
    if not str(configuration.host).startswith("https:"):
        return None
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
    # Python 3.13 refuses authorities without key identifiers, which many clusters have.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, keyfile=configuration.key_file)
    return context


def _socket(address: tuple[Any, ...]) -> socket.socket:
    """Make a socket whose peer's silent death shows within a minute (aiohttp's factory)."""
    family, kind, protocol = address[:3]
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 60_000)
    return made


def _is_loopback(host: str | None) -> bool:
    try:
        return ip_address(host or "").is_loopback
    except ValueError:
        return host == "localhost"
