"""The measurements: each takes a running node and returns figures."""

import asyncio
import os
import subprocess
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc
from grpclib.client import Channel

from liken_audio.kubelet.generated.k8s.io.kubelet.pkg.apis.dra import v1
from liken_audio.pipewire.dump import DumpParser
from liken_audio.resources.loudness import to_percent
from tests.bench.api import Api, Json
from tests.bench.figures import Figure, percentile
from tests.harness.node import Node
from tests.harness.processes import POLL_SECONDS, HarnessError, wait_until
from tests.harness.sound_stack import SoundStack

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
SINKS = "/apis/audio.liken.sh/v1alpha1/sinks"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
_SERVICE = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
ENDPOINTS = 64
STARTS = 5
CHANGES = 200
CHANGE_SECONDS = 0.4
"""Between two changes, so that each is one that stands alone."""
CLAIM_COUNT = 200
CLAIMS_AT_ONCE = 50
UPDATES = 10_000


def startup(node: Node, api: Api) -> Sequence[Figure]:
    """Agent start → slice of all devices published, with API server and PipeWire up."""
    took = []
    for _ in range(STARTS):
        node.agent.end()
        for each in api.call("GET", SLICES)["items"]:
            api.call("DELETE", f"{SLICES}/{each['metadata']['name']}")
        began = time.perf_counter()
        node.start_agent()
        wait_until(lambda: _device_count(api) == ENDPOINTS, "the slice", 20, [node.agent])
        took.append(time.perf_counter() - began)
    return [Figure("start to slice published, worst of 5", max(took), 2, "s")]


def status(stack: SoundStack, api: Api, sink: str) -> Sequence[Figure]:
    """A node's volume changed in PipeWire → status written, seen by a watch."""
    watch = api.watch(SINKS)
    took = []
    with _playing(stack, sink), _PwCli(stack) as pw_cli:
        node_id = int(stack.nodes()[sink]["props"]["object.id"])
        for number in range(CHANGES):
            percent = 40 + number % 40
            seen = len(watch.events)
            began = time.perf_counter()
            pw_cli.set_volume(node_id, percent)
            came = watch.wait(_shows(sink, percent), seen)
            took.append((came - began) * 1000)
            time.sleep(max(0.0, CHANGE_SECONDS - (time.perf_counter() - began)))
    watch.close()
    return [
        Figure("node change to status, p50", percentile(took, 0.5), None, "ms"),
        Figure("node change to status, p99", percentile(took, 0.99), 150, "ms"),
    ]


def edits(node: Node, stack: SoundStack, api: Api, sink: str) -> Sequence[Figure]:
    """A Sink's `spec.volume` patched → PipeWire announces the volume, with what was written."""
    took = []
    writes = 'liken_audio_api_writes_total{loop="reconciler"}'
    with _playing(stack, sink), _Announcements(stack, sink) as announced:
        api.call("PATCH", f"{SINKS}/{sink}", {"spec": {"volume": 30}})
        time.sleep(1)
        before = node.metrics()
        for number in range(CHANGES):
            percent = 40 + number % 40
            began = time.perf_counter()
            api.call("PATCH", f"{SINKS}/{sink}", {"spec": {"volume": percent}})
            took.append((announced.wait(percent, began) - began) * 1000)
            time.sleep(max(0.0, CHANGE_SECONDS - (time.perf_counter() - began)))
        time.sleep(1)
        after = node.metrics()
        api.call("PATCH", f"{SINKS}/{sink}", {"spec": {"volume": None}})
    hardware = "liken_audio_hardware_writes_total"
    return [
        Figure("spec edit to sound changed, p50", percentile(took, 0.5), None, "ms"),
        Figure("spec edit to sound changed, p99", percentile(took, 0.99), 200, "ms"),
        Figure("an edit: hardware writes", (after[hardware] - before[hardware]) / CHANGES, 1, ""),
        Figure("an edit: status writes", (after[writes] - before[writes]) / CHANGES, 1, ""),
    ]


def storm(node: Node, stack: SoundStack, api: Api, sink: str) -> Sequence[Figure]:
    """10,000 changes of a node, as fast as PipeWire takes them, that end where they began."""
    with _playing(stack, sink), _PwCli(stack) as pw_cli:
        node_id = int(stack.nodes()[sink]["props"]["object.id"])
        pw_cli.set_volume(node_id, 55)
        wait_until(lambda: _volume(api, sink) == 55, "the first volume", 10)
        time.sleep(1)  # the last status of what came before is out
        sinks, slices = api.watch(SINKS), api.watch(SLICES)
        before = _rss(node.agent.pid)
        reads = node.metrics()["liken_audio_pipewire_read_bytes_total"]
        began = time.perf_counter()
        for number in range(UPDATES):
            pw_cli.set_volume(node_id, 55 if number == UPDATES - 1 else 30 + number % 20)
        pw_cli.finish()
        sent = time.perf_counter() - began
        _wait_quiet(node)
        settled = time.perf_counter() - began
        reads = node.metrics()["liken_audio_pipewire_read_bytes_total"] - reads
        grown = _rss(node.agent.pid) - before
        wait_until(lambda: _volume(api, sink) == 55, "the last volume", 10)
    per_sink: dict[str, int] = {}
    for _, event in sinks.events:
        name = event["object"]["metadata"]["name"]
        per_sink[name] = per_sink.get(name, 0) + 1
    figures = [
        Figure("storm: 10,000 changes sent in", sent, None, "s"),
        Figure("storm: quiet again after", settled, None, "s"),
        Figure("storm: read from pw-dump", reads / 1e6, None, "MB"),
        Figure("storm: slice writes", len(slices.events), 1, ""),
        Figure("storm: status writes of one Sink, most", max(per_sink.values(), default=0), 2, ""),
        Figure("storm: memory grown", grown, 5, "MB"),
    ]
    sinks.close()
    slices.close()
    return figures


def prepare(node: Node, api: Api) -> Sequence[Figure]:
    """NodePrepareResources and NodeUnprepareResources over the socket, one claim after another."""
    claims = [_allocated_claim(node, api, number) for number in range(CLAIM_COUNT)]
    prepared, unprepared = _prepare_all(node, claims)
    return [
        Figure("prepare, p50", percentile(prepared, 0.5), 10, "ms"),
        Figure("prepare, p99", percentile(prepared, 0.99), 30, "ms"),
        Figure("unprepare, p50", percentile(unprepared, 0.5), None, "ms"),
        Figure("unprepare, p99", percentile(unprepared, 0.99), None, "ms"),
    ]


def claims(node: Node, stack: SoundStack, api: Api) -> Sequence[Figure]:
    """50 claims prepared at once: what they cost, and how fast one is cut from its sound."""
    asked = [_allocated_claim(node, api, number) for number in range(CLAIMS_AT_ONCE)]
    holders = {"claim-sockets": node.claim_sockets.pid, "PipeWire": stack.pipewire.pid}
    before = {name: (_rss(pid), _descriptors(pid)) for name, pid in holders.items()}
    took, cut = asyncio.run(_prepare_at_once(node, stack, asked))
    figures = [
        Figure(f"{CLAIMS_AT_ONCE} claims prepared at once", took.prepared, None, "s"),
        Figure("unprepare called to connection cut", cut, 2, "s"),
    ]
    for name, (rss, descriptors) in before.items():
        grown = (took.rss[name] - rss) * 1024 / CLAIMS_AT_ONCE
        opened = (took.descriptors[name] - descriptors) / CLAIMS_AT_ONCE
        figures.append(Figure(f"a prepared claim: RSS of {name}", grown, None, "kB"))
        figures.append(Figure(f"a prepared claim: descriptors of {name}", opened, None, ""))
    return figures


def idle(node: Node, seconds: float) -> Sequence[Figure]:
    """Writes and CPU time of an agent that nothing happens to."""
    time.sleep(5)
    before, began = node.metrics(), time.perf_counter()
    time.sleep(seconds)
    after, took = node.metrics(), time.perf_counter() - began
    writes = sum(
        after[name] - before[name]
        for name in after
        if name.startswith("liken_audio_api_writes_total")
    )
    cpu = after["liken_audio_cpu_seconds_total"] - before["liken_audio_cpu_seconds_total"]
    return [
        Figure(f"idle {seconds:.0f} s, {ENDPOINTS} endpoints: API writes", writes, 0, ""),
        Figure(f"idle {seconds:.0f} s, {ENDPOINTS} endpoints: CPU", cpu / took * 100, 0.5, "%"),
        Figure(f"RSS of the agent, {ENDPOINTS} endpoints", _rss(node.agent.pid), 65, "MB"),
        Figure("RSS of claim-sockets", _rss(node.claim_sockets.pid), None, "MB"),
    ]


@dataclass(frozen=True, slots=True)
class _Cost:
    prepared: float
    rss: Mapping[str, float]
    descriptors: Mapping[str, int]


async def _prepare_at_once(
    node: Node, stack: SoundStack, asked: Sequence[v1.Claim]
) -> tuple[_Cost, float]:
    """Return the cost with all prepared, and the seconds from Unprepare to the end of a client."""
    channel = Channel(path=str(node.plugin / "dra.sock"))
    stub = v1.DraPluginStub(channel)
    pids = {"claim-sockets": node.claim_sockets.pid, "PipeWire": stack.pipewire.pid}
    try:
        began = time.perf_counter()
        answer = await stub.node_prepare_resources(
            v1.NodePrepareResourcesRequest(claims=list(asked)), timeout=45
        )
        took = time.perf_counter() - began
        if errors := [entry.error for entry in answer.claims.values() if entry.error]:
            raise HarnessError(errors[0])
        cost = _Cost(
            took,
            {name: _rss(pid) for name, pid in pids.items()},
            {name: _descriptors(pid) for name, pid in pids.items()},
        )
        cut = await _cut(node, stub, asked[0])
        await stub.node_unprepare_resources(
            v1.NodeUnprepareResourcesRequest(claims=list(asked)), timeout=45
        )
    finally:
        channel.close()
    return cost, cut


async def _cut(node: Node, stub: v1.DraPluginStub, claim: v1.Claim) -> float:
    # The bare connection: when a tool notices that it has lost its own is the tool's affair.
    reader, writer = await asyncio.open_unix_connection(node.claims / claim.uid / "pipewire-0")
    try:
        began = time.perf_counter()
        await stub.node_unprepare_resources(
            v1.NodeUnprepareResourcesRequest(claims=[claim]), timeout=45
        )
        async with asyncio.timeout(20):
            while await reader.read(65536):
                pass
        return time.perf_counter() - began
    finally:
        writer.close()


def _descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def _device_count(api: Api) -> int:
    items = api.call("GET", SLICES)["items"]
    return sum(len(each["spec"].get("devices") or ()) for each in items)


def _volume(api: Api, sink: str) -> int | None:
    observed = api.call("GET", f"{SINKS}/{sink}").get("status", {}).get("observed", {})
    volume: int | None = observed.get("volume")
    return volume


def _shows(sink: str, percent: int) -> "_Shows":
    return _Shows(sink, percent)


class _Shows:
    def __init__(self, sink: str, percent: int) -> None:
        self._sink = sink
        self._percent = percent

    def __call__(self, body: Json) -> bool:
        observed = body.get("status", {}).get("observed", {})
        return bool(
            body["metadata"]["name"] == self._sink and observed.get("volume") == self._percent
        )


def _wait_quiet(node: Node) -> None:
    """Wait until the agent has read nothing new from pw-dump for a second."""
    last, since = -1.0, time.monotonic()
    deadline = since + 60
    while time.monotonic() < deadline:
        now = node.metrics()["liken_audio_pipewire_read_bytes_total"]
        if now != last:
            last, since = now, time.monotonic()
        if time.monotonic() - since > 1:
            return
        time.sleep(POLL_SECONDS)
    raise HarnessError("the graph doesn't come to rest")


def _rss(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise HarnessError(f"process {pid} has no VmRSS")


def _playing(stack: SoundStack, sink: str) -> "_Child":
    """Play silence, since PipeWire announces changes of a node only while it runs."""
    command = ["pw-cat", "--playback", "--raw", "--target", sink, "--format=s16", "/dev/zero"]
    child = _Child(stack, command)
    wait_until(lambda: stack.nodes()[sink]["state"] == "running", f"sound on {sink}", 10)
    return child


class _Child:
    """A tool that runs beside the measurement."""

    def __init__(
        self, stack: SoundStack, command: Sequence[str], stdout: int = subprocess.DEVNULL
    ) -> None:
        self._process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "--", *command],
            env=dict(stack.environment),
            stdin=subprocess.PIPE,
            stdout=stdout,
            stderr=subprocess.DEVNULL,
        )

    def __enter__(self) -> "_Child":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


class _PwCli(_Child):
    """One pw-cli that takes command after command: no process for each."""

    def __init__(self, stack: SoundStack) -> None:
        super().__init__(stack, ["pw-cli"])

    def __enter__(self) -> "_PwCli":
        return self

    def set_volume(self, node_id: int, percent: int) -> None:
        """Set both channels to what tools show as `percent`."""
        linear = (percent / 100) ** 3
        assert self._process.stdin is not None
        self._process.stdin.write(
            f"set-param {node_id} Props {{ channelVolumes = [ {linear} {linear} ] }}\n".encode()
        )
        self._process.stdin.flush()

    def finish(self) -> None:
        """Wait until every command is taken."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"quit\n")
        self._process.stdin.flush()
        self._process.wait(timeout=60)


def _allocated_claim(node: Node, api: Api, number: int) -> v1.Claim:
    device = str(api_devices(api)[number % ENDPOINTS])
    body = api.call(
        "POST",
        CLAIMS,
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": f"bench-{uuid.uuid4().hex[:8]}", "namespace": "default"},
            "spec": {
                "devices": {
                    "requests": [{"name": "out", "exactly": {"deviceClassName": "audio-sink"}}]
                }
            },
        },
    )
    result = {"request": "out", "driver": "audio.liken.sh", "pool": node.name, "device": device}
    selector = {"key": "metadata.name", "operator": "In", "values": [node.name]}
    body["metadata"]["finalizers"] = ["resource.kubernetes.io/delete-protection"]
    body["status"] = {
        "allocation": {
            "devices": {"results": [result]},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [selector]}]},
        }
    }
    metadata = body["metadata"]
    api.call("PUT", f"{CLAIMS}/{metadata['name']}/status", body)
    return v1.Claim(namespace="default", name=metadata["name"], uid=metadata["uid"])


def api_devices(api: Api) -> Sequence[str]:
    """Return the names of all published devices."""
    items = api.call("GET", SLICES)["items"]
    return [device["name"] for each in items for device in each["spec"].get("devices") or ()]


def _prepare_all(node: Node, claims: Sequence[v1.Claim]) -> tuple[Sequence[float], Sequence[float]]:
    """By grpcio, and of bytes: the client's own part is as small as the kubelet's then."""
    prepared, unprepared = [], []
    with grpc.insecure_channel(f"unix:{node.plugin / 'dra.sock'}") as channel:
        prepare = channel.unary_unary(f"{_SERVICE}/NodePrepareResources")
        unprepare = channel.unary_unary(f"{_SERVICE}/NodeUnprepareResources")
        for claim in claims:
            request = bytes(v1.NodePrepareResourcesRequest(claims=[claim]))
            began = time.perf_counter()
            answer = prepare(request, timeout=45)
            prepared.append((time.perf_counter() - began) * 1000)
            result = v1.NodePrepareResourcesResponse.FromString(answer).claims[claim.uid]
            if result.error:
                raise HarnessError(result.error)
            request = bytes(v1.NodeUnprepareResourcesRequest(claims=[claim]))
            began = time.perf_counter()
            unprepare(request, timeout=45)
            unprepared.append((time.perf_counter() - began) * 1000)
    return prepared, unprepared


class _Announcements(_Child):
    """The volumes of one node as `pw-dump --monitor` announces them, each with its moment."""

    def __init__(self, stack: SoundStack, sink: str) -> None:
        super().__init__(stack, ["pw-dump", "--monitor"], stdout=subprocess.PIPE)
        self._sink = sink
        self._moments: dict[int, float] = {}
        self._last = -1
        self._came = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def __enter__(self) -> "_Announcements":
        return self

    def wait(self, percent: int, since: float, timeout: float = 10) -> float:
        """Return when the volume became that, after the moment `since`."""
        with self._came:
            if not self._came.wait_for(lambda: self._moments.get(percent, 0.0) > since, timeout):
                raise HarnessError(f"{self._sink} isn't at {percent} after {timeout} s")
            return self._moments[percent]

    def _read(self) -> None:
        parser = DumpParser()
        output = self._process.stdout
        assert output is not None
        while data := os.read(output.fileno(), 65536):
            snapshot = parser.feed(data)
            moment = time.perf_counter()
            for each in snapshot.nodes if snapshot else ():
                if each.name == self._sink and each.volumes:
                    self._note(int(to_percent(each.volumes[0])), moment)

    def _note(self, percent: int, moment: float) -> None:
        if percent != self._last:
            with self._came:
                self._last = percent
                self._moments[percent] = moment
                self._came.notify_all()
