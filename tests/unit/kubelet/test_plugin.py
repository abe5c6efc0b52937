"""The plugin's services: one entry a UID whatever happens inside, in both versions."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from grpclib.testing import ChannelFor

from liken_audio.dra.claims import ClaimError, ClaimRef, PreparedDevice
from liken_audio.dra.health import DeviceHealth, HealthStatus
from liken_audio.kubelet import plugin
from liken_audio.kubelet.generated import pluginregistration
from liken_audio.kubelet.generated import v1 as health_v1
from liken_audio.kubelet.generated import v1alpha1 as health_v1alpha1
from liken_audio.kubelet.generated.k8s.io.kubelet.pkg.apis.dra import v1 as dra_v1
from liken_audio.kubelet.generated.k8s.io.kubelet.pkg.apis.dra import v1beta1 as dra_v1beta1

SPEAKER = PreparedDevice(
    request_names=("out",),
    pool="kitchen",
    device="kitchen-hdmi-0",
    cdi_ids=("audio.liken.sh/claim=b_out",),
)
SHARED = PreparedDevice(
    request_names=("out",), pool="kitchen", device="speaker", cdi_ids=(), share_id="s1"
)
FRAMES = Path(__file__).parents[2] / "recordings" / "kubelet-frames.txt"


class Handler:
    """Answers as told; an exception is raised, a dict is returned."""

    def __init__(self, answers: Mapping[str, Any] | Exception | None = None) -> None:
        self.answers = answers or {}
        self.asked: list[ClaimRef] = []
        self.calls = 0
        self.devices: list[DeviceHealth] = []
        self.callbacks: list[Callable[[], None]] = []

    async def prepare(self, refs: Sequence[ClaimRef]) -> Mapping[str, Any]:
        self.asked += refs
        self.calls += 1
        if isinstance(self.answers, Exception):
            raise self.answers
        return self.answers

    async def unprepare(self, refs: Sequence[ClaimRef]) -> Mapping[str, Any]:
        return await self.prepare(refs)

    def health(self) -> Sequence[DeviceHealth]:
        return tuple(self.devices)

    def subscribe(self, callback: Callable[[], None]) -> Callable[[], None]:
        self.callbacks.append(callback)
        return lambda: self.callbacks.remove(callback)

    def become(self, *devices: DeviceHealth) -> None:
        self.devices = list(devices)
        for callback in self.callbacks:
            callback()


def health_of(status: HealthStatus, message: str = "") -> DeviceHealth:
    return DeviceHealth(pool="kitchen", device="speaker", status=status, message=message)


def claims(api: Any, *uids: str) -> list[Any]:
    return [api.Claim(namespace="media", name=f"claim-{uid}", uid=uid) for uid in uids]


async def prepared(handler: Handler, *uids: str, api: Any = dra_v1) -> dict[str, Any]:
    async with ChannelFor(plugin.services(handler)) as channel:
        request = api.NodePrepareResourcesRequest(claims=claims(api, *uids))
        response = await api.DraPluginStub(channel).node_prepare_resources(request)
        return dict(response.claims)


async def unprepared(handler: Handler, *uids: str, api: Any = dra_v1) -> dict[str, Any]:
    async with ChannelFor(plugin.services(handler)) as channel:
        request = api.NodeUnprepareResourcesRequest(claims=claims(api, *uids))
        response = await api.DraPluginStub(channel).node_unprepare_resources(request)
        return dict(response.claims)


BOTH = pytest.mark.parametrize("api", [dra_v1, dra_v1beta1], ids=["v1", "v1beta1"])


@BOTH
async def test_a_prepared_claim_s_devices_reach_the_kubelet(api: Any) -> None:
    handler = Handler({"b": (SPEAKER,)})
    entry = (await prepared(handler, "b", api=api))["b"]
    assert entry.error == ""
    (device,) = entry.devices
    assert device.request_names == ["out"]
    assert (device.pool_name, device.device_name) == ("kitchen", "kitchen-hdmi-0")
    assert device.cdi_device_ids == ["audio.liken.sh/claim=b_out"]
    assert handler.asked == [ClaimRef("media", "claim-b", "b")]


@BOTH
async def test_each_uid_has_one_entry_and_an_error_is_its_own_claim_s(api: Any) -> None:
    entries = await prepared(Handler({"a": ClaimError("no"), "b": ()}), "a", "b", "b", api=api)
    assert {uid: entry.error for uid, entry in entries.items()} == {"a": "no", "b": ""}


@BOTH
async def test_an_exception_inside_is_the_error_of_its_claims_and_no_rpc_error(api: Any) -> None:
    for call in (prepared, unprepared):
        entries = await call(Handler(RuntimeError("boom")), "a", "b", api=api)
        assert set(entries) == {"a", "b"}
        assert all("RuntimeError: boom" in entry.error for entry in entries.values())


@BOTH
async def test_a_uid_that_the_handler_passes_over_is_an_error(api: Any) -> None:
    entries = await prepared(Handler({"b": ()}), "a", "b", api=api)
    assert "passed over" in entries["a"].error
    assert entries["b"].error == ""


@BOTH
async def test_uids_that_nobody_asked_for_are_left_out(api: Any) -> None:
    assert set(await prepared(Handler({"a": (), "x": ()}), "a", api=api)) == {"a"}


@BOTH
async def test_an_empty_request_has_an_empty_answer_and_no_effect(api: Any) -> None:
    handler = Handler(RuntimeError("must not be called"))
    assert await prepared(handler, api=api) == {}
    assert await unprepared(handler, api=api) == {}
    assert handler.calls == 0


@BOTH
async def test_unprepare_tells_success_and_failure_apart(api: Any) -> None:
    entries = await unprepared(Handler({"a": None, "b": ClaimError("busy")}), "a", "b", api=api)
    assert {uid: entry.error for uid, entry in entries.items()} == {"a": "", "b": "busy"}


async def test_an_error_without_text_is_still_an_error() -> None:
    assert (await unprepared(Handler({"a": ClaimError()}), "a"))["a"].error


async def test_a_share_id_is_sent_in_v1_only_and_only_for_shared_devices() -> None:
    handler = Handler({"a": (SHARED, SPEAKER)})
    shared, plain = (await prepared(handler, "a"))["a"].devices
    assert shared.share_id == "s1"
    assert plain.share_id is None
    old = (await prepared(handler, "a", api=dra_v1beta1))["a"].devices[0]
    assert not hasattr(old, "share_id")


def test_v1_is_offered_before_v1beta1() -> None:
    assert plugin.SUPPORTED_VERSIONS.index("v1.DRAPlugin") == 0
    assert "v1beta1.DRAPlugin" in plugin.SUPPORTED_VERSIONS


HEALTHS = pytest.mark.parametrize("api", [health_v1, health_v1alpha1], ids=["v1", "v1alpha1"])


@HEALTHS
async def test_a_health_stream_begins_with_all_devices(api: Any) -> None:
    handler = Handler()
    handler.become(health_of(HealthStatus.HEALTHY), health_of(HealthStatus.UNKNOWN))
    async with ChannelFor(plugin.services(handler)) as channel:
        stream = api.DraResourceHealthStub(channel).node_watch_resources(
            api.NodeWatchResourcesRequest()
        )
        first = await anext(stream)
        await stream.aclose()
    assert [device.health for device in first.devices] == [
        api.HealthStatus.HEALTHY,
        api.HealthStatus.UNKNOWN,
    ]
    assert {device.health_check_timeout_seconds for device in first.devices} == {30}


@HEALTHS
async def test_a_change_is_reported_at_once(api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "HEALTH_INTERVAL", 1000.0)
    monkeypatch.setattr(plugin, "HEALTH_SETTLE", 0.0)
    handler = Handler()
    handler.become(health_of(HealthStatus.HEALTHY))
    async with ChannelFor(plugin.services(handler)) as channel:
        stream = api.DraResourceHealthStub(channel).node_watch_resources(
            api.NodeWatchResourcesRequest()
        )
        await anext(stream)
        waiting = asyncio.get_running_loop().create_task(anext(stream))
        handler.become(health_of(HealthStatus.HEALTHY))  # no difference: nothing to say
        assert not (await asyncio.wait([waiting], timeout=0.05))[0]
        handler.become(health_of(HealthStatus.UNHEALTHY, "no monitor is connected"))
        second = await asyncio.wait_for(waiting, 5)
        await stream.aclose()
    (device,) = second.devices
    assert device.health == api.HealthStatus.UNHEALTHY
    assert device.message == "no monitor is connected"


async def test_an_unchanged_report_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "HEALTH_INTERVAL", 0.01)
    handler = Handler()
    handler.become(health_of(HealthStatus.HEALTHY))
    async with ChannelFor(plugin.services(handler)) as channel:
        stub = health_v1.DraResourceHealthStub(channel)
        stream = stub.node_watch_resources(health_v1.NodeWatchResourcesRequest())
        reports = [await asyncio.wait_for(anext(stream), 5) for _ in range(3)]
        await stream.aclose()
    assert len({len(report.devices) for report in reports}) == 1


def test_a_report_is_sent_again_well_before_the_kubelet_forgets() -> None:
    assert plugin.HEALTH_INTERVAL * 3 < plugin.HEALTH_TIMEOUT


async def test_two_subscribers_each_get_everything_and_a_gone_one_is_forgotten() -> None:
    handler = Handler()
    handler.become(health_of(HealthStatus.HEALTHY))
    async with ChannelFor(plugin.services(handler)) as channel:
        stub = health_v1.DraResourceHealthStub(channel)
        streams = [
            stub.node_watch_resources(health_v1.NodeWatchResourcesRequest()) for _ in range(2)
        ]
        assert [len((await anext(stream)).devices) for stream in streams] == [1, 1]
        assert len(handler.callbacks) == 2
        for stream in streams:
            await stream.aclose()
    async with asyncio.timeout(5):
        while handler.callbacks:
            await asyncio.sleep(0)


async def test_a_long_message_is_cut_at_a_letter() -> None:
    handler = Handler()
    handler.become(health_of(HealthStatus.UNHEALTHY, "ä" * 1000))
    async with ChannelFor(plugin.services(handler)) as channel:
        stub = health_v1.DraResourceHealthStub(channel)
        stream = stub.node_watch_resources(health_v1.NodeWatchResourcesRequest())
        message = (await anext(stream)).devices[0].message
        await stream.aclose()
    assert len(message.encode()) <= 1024
    assert message.endswith("ä...")


def frames() -> dict[str, bytes]:
    lines = [line for line in FRAMES.read_text().splitlines() if not line.startswith("#")]
    return {name: bytes.fromhex(text) for name, _, text in (line.partition(" ") for line in lines)}


MESSAGES: dict[str, Any] = {
    "v1.NodePrepareResourcesRequest": dra_v1.NodePrepareResourcesRequest(
        claims=[
            dra_v1.Claim("media", "7d1c6d1e-0000-4000-8000-000000000001", "speakers"),
            dra_v1.Claim("default", "a", "b"),
        ]
    ),
    "v1.NodePrepareResourcesRequest.empty": dra_v1.NodePrepareResourcesRequest(),
    "v1.NodePrepareResourcesResponse": dra_v1.NodePrepareResourcesResponse(
        claims={
            "a": dra_v1.NodePrepareResourceResponse(error="no"),
            "b": dra_v1.NodePrepareResourceResponse(
                devices=[
                    dra_v1.Device(
                        ["out"],
                        "kitchen",
                        "kitchen-hdmi-0",
                        ["audio.liken.sh/claim=b_out"],
                        "0e4bd8a6-5b3b-4f0e-9d6b-6a52a1c0a001",
                    )
                ]
            ),
            "c": dra_v1.NodePrepareResourceResponse(),
        }
    ),
    "v1.NodeUnprepareResourcesResponse": dra_v1.NodeUnprepareResourcesResponse(
        claims={
            "a": dra_v1.NodeUnprepareResourceResponse(),
            "b": dra_v1.NodeUnprepareResourceResponse(error="busy"),
        }
    ),
    "v1beta1.NodePrepareResourcesRequest": dra_v1beta1.NodePrepareResourcesRequest(
        claims=[dra_v1beta1.Claim("media", "7d1c6d1e-0000-4000-8000-000000000001", "speakers")]
    ),
    "v1beta1.NodePrepareResourcesResponse": dra_v1beta1.NodePrepareResourcesResponse(
        claims={
            "b": dra_v1beta1.NodePrepareResourceResponse(
                devices=[
                    dra_v1beta1.Device(
                        ["out"], "kitchen", "kitchen-hdmi-0", ["audio.liken.sh/claim=b_out"]
                    )
                ]
            )
        }
    ),
    "pluginregistration.PluginInfo": pluginregistration.PluginInfo(
        "DRAPlugin",
        "audio.liken.sh",
        "/var/lib/kubelet/plugins/audio.liken.sh/dra.sock",
        ["v1.DRAPlugin", "v1beta1.DRAPlugin"],
    ),
    "pluginregistration.RegistrationStatus.registered": pluginregistration.RegistrationStatus(
        plugin_registered=True
    ),
    "pluginregistration.RegistrationStatus.refused": pluginregistration.RegistrationStatus(
        error="endpoint already registered"
    ),
    "v1alpha1.NodeWatchResourcesResponse": health_v1alpha1.NodeWatchResourcesResponse(
        devices=[
            health_v1alpha1.DeviceHealth(
                health_v1alpha1.DeviceIdentifier("kitchen", "kitchen-hdmi-0"),
                health_v1alpha1.HealthStatus.UNHEALTHY,
                1790000000,
                30,
                "no monitor is connected",
            ),
            health_v1alpha1.DeviceHealth(
                health_v1alpha1.DeviceIdentifier("kitchen", "usb"),
                health_v1alpha1.HealthStatus.HEALTHY,
            ),
        ]
    ),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_messages_are_read_as_the_kubelet_s_go_code_writes_them(name: str) -> None:
    assert type(MESSAGES[name])().parse(frames()[name]) == MESSAGES[name]


@pytest.mark.parametrize(
    "name", [name for name in MESSAGES if "UnprepareResourcesResp" not in name]
)
def test_messages_are_written_so_that_they_say_the_same(name: str) -> None:
    assert type(MESSAGES[name])().parse(bytes(MESSAGES[name])) == MESSAGES[name]


def test_every_frame_of_the_recording_is_looked_at() -> None:
    assert set(frames()) == set(MESSAGES)


def test_an_entry_of_success_is_written_with_its_uid() -> None:
    empty = dra_v1.NodeUnprepareResourcesResponse(
        claims={"a": dra_v1.NodeUnprepareResourceResponse()}
    )
    assert bytes(empty) in {bytes.fromhex("0a050a01611200"), bytes.fromhex("0a030a0161")}
