"""Sinks and Sources against a real API server, edited by a real kubectl.

The reconciler, its informers, client and Events are the real ones; the sound is a fake. Each test
is a node of its own, so that tests share the cluster and nothing else.
"""

import asyncio
import re
from pathlib import Path

import pytest

from liken_audio.api import NODE_LABEL, Json
from liken_audio.graph.model import (
    CardNumber,
    CardsSnapshot,
    ClaimHold,
    ClaimsSnapshot,
    ControlType,
    DeviceName,
    NodeId,
    NodeSerial,
    Source,
)
from tests.builders import card, control, hdmi_pcm, pcm
from tests.harness.cluster import Cluster
from tests.harness.processes import HarnessError
from tests.harness.resource_lab import DEADLINE, QUIET, Lab, condition, is_applied, lab

CRDS = Path(__file__).parents[2] / "manifests" / "crds"


def owned(sink: Json, manager: str = "audio.liken.sh") -> set[str]:
    """Top-level fields that a manager owns."""
    entries = sink["metadata"]["managedFields"]
    return {
        key.removeprefix("f:")
        for entry in entries
        if entry["manager"] == manager
        for key in entry["fieldsV1"]
    }


async def test_the_table_shows_what_a_person_looks_for(cluster: Cluster) -> None:
    async with lab(cluster, "table", card(pcm(), hdmi_pcm())) as here:
        here.sounds(here.playing(), here.playing(here.hdmi, id=NodeId(41), serial=NodeSerial(41)))
        hold = ClaimHold(namespace="media", name="tv", uid="u1", devices=(DeviceName(here.hdmi),))
        here.graph.replace(Source.CLAIMS, ClaimsSnapshot((hold,)))
        await here.eventually(lambda sink: "claimedBy" in sink["status"], here.hdmi)
        await here.settled()
        selector = f"--selector={NODE_LABEL}=table"
        plain = (await here.kubectl("get", "sinks", selector)).splitlines()
        wide = (await here.kubectl("get", "sinks", selector, "-o", "wide")).splitlines()
    columns = ["NAME", "NODE", "CONNECTION", "VOLUME", "MUTE", "CLAIM", "CONNECTED", "READY", "AGE"]
    assert plain[0].split() == columns
    assert wide[0].split() == [*columns, "MONITOR/NAME", "CODEC", "REASON"]
    assert re.split(r" {2,}", plain[2])[:8] == [
        here.hdmi,
        "table",
        "hdmi",
        "100",
        "false",
        "media/tv",
        "True",
        "True",
    ]
    assert re.split(r" {2,}", wide[2])[9:] == ["LG ULTRAWIDE", "Ready"]
    assert plain[1].split()[:4] == [here.analog, "table", "analog", "100"]


async def test_the_table_of_forty_outputs_has_every_column_filled_and_in_line(
    cluster: Cluster,
) -> None:
    cards = [
        card(
            *(pcm(device=device, id=f"Output {device}") for device in range(4)),
            number=CardNumber(number),
            path=f"0000:00:{number + 1:02x}.0",
        )
        for number in range(10)
    ]
    async with lab(cluster, "forty", *cards) as here:
        names = [
            f"forty-pci-0000-00-{number + 1:02x}-0-output-{device}"
            for number in range(10)
            for device in range(4)
        ]
        nodes = [
            here.playing(name, id=NodeId(50 + place), serial=NodeSerial(50 + place))
            for place, name in enumerate(names)
        ]
        here.sounds(*nodes)
        for name in names:
            await here.eventually(lambda sink: condition(sink, "Ready")[0] == "True", name)
        table = await here.kubectl("get", "sinks", f"--selector={NODE_LABEL}=forty")
    head, *lines = table.splitlines()
    assert [line.split()[0] for line in lines] == sorted(names)
    for line in lines:
        assert line.split()[1:7] == ["forty", "analog", "100", "false", "True", "True"]
        assert line[head.index("READY") :].startswith("True")


async def test_the_agent_owns_status_and_its_label_and_nothing_of_spec(cluster: Cluster) -> None:
    async with lab(cluster, "owner") as here:
        sink = await here.settled()
    assert owned(sink) == {"metadata", "status"}
    assert "spec" not in sink


async def test_apply_patch_and_edit_never_conflict_and_are_heard(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBE_EDITOR", "sed -i 's/volume: 30/volume: 40/'")
    async with lab(cluster, "edits") as here:
        await here.settled()
        await here.kubectl("apply", "-f", "-", body=here.manifest(volume=50))
        await here.eventually(is_applied(volume=50))
        patch = '{"spec":{"volume":30}}'
        await here.kubectl("patch", "sink", here.analog, "--type=merge", "-p", patch)
        await here.eventually(is_applied(volume=30))
        await here.kubectl("edit", "sink", here.analog)
        await here.eventually(is_applied(volume=40))
        await here.kubectl(
            "apply",
            "--server-side",
            "--force-conflicts",
            "-f",
            "-",
            body=here.manifest(volume=60, mute=True),
        )
        sink = await here.eventually(is_applied(volume=60, mute=True))
        await here.kubectl(
            "apply", "--server-side", "-f", "-", body=here.manifest(volume=70, mute=True)
        )
        await here.eventually(is_applied(volume=70))
    heard = [round(value, 3) for what, value in here.hardware.calls if what == "volume"]
    assert heard == [0.125, 0.027, 0.064, 0.216, 0.343]
    assert owned(sink) == {"metadata", "status"}


async def test_a_field_that_gitops_no_longer_applies_is_no_longer_enforced(
    cluster: Cluster,
) -> None:
    async with lab(cluster, "gitops") as here:
        apply = ("apply", "--server-side", "--field-manager=argocd", "-f", "-")
        await here.kubectl(*apply, body=here.manifest(volume=50, mute=True))
        await here.eventually(is_applied(volume=50, mute=True))
        await here.kubectl(*apply, body=here.manifest(volume=50))
        await here.eventually(lambda sink: "mute" not in sink["spec"])
        here.sounds(here.playing(volumes=(0.125, 0.125), is_muted=False))
        sink = await here.eventually(is_applied(volume=50, mute=False))
    assert sink["spec"] == {"volume": 50}
    assert here.hardware.calls == [("mute", True), ("volume", 0.125)]


async def test_an_object_made_before_the_device_is_adopted_with_its_spec(cluster: Cluster) -> None:
    name = "early-pci-0000-00-1f-3-alc257-analog"
    body = {**SINK, "metadata": {"name": name}, "spec": {"volume": 25}}
    await asyncio.to_thread(cluster.apply, body)
    async with lab(cluster, "early") as here:
        sink = await here.eventually(is_applied(volume=25))
        await asyncio.to_thread(cluster.apply, {**body, "spec": {"volume": 35}})
        await here.eventually(is_applied(volume=35))
    assert sink["metadata"]["labels"] == {NODE_LABEL: "early"}


async def test_an_object_for_nothing_says_so_and_is_adopted_when_its_device_comes(
    cluster: Cluster,
) -> None:
    async with lab(cluster, "orphan") as here:
        await here.settled()
        await here.kubectl("apply", "-f", "-", body=here.manifest(here.hdmi, volume=25))
        sink = await here.eventually(
            lambda sink: condition(sink, "Ready") == ("False", "NoDevice"), here.hdmi
        )
        assert f"did you mean sink {here.analog}" in sink["status"]["conditions"][0]["message"]
        assert sink["spec"] == {"volume": 25}
        assert NODE_LABEL not in sink["metadata"].get("labels", {})
        here.graph.replace(Source.VIRTUAL, CardsSnapshot((card(pcm(), hdmi_pcm()),)))
        here.sounds(here.playing(), here.playing(here.hdmi, id=NodeId(41), serial=NodeSerial(41)))
        await here.eventually(is_applied(volume=25), here.hdmi)


async def test_a_deleted_sink_comes_back_empty(cluster: Cluster) -> None:
    async with lab(cluster, "deleted") as here:
        await here.kubectl("apply", "-f", "-", body=here.manifest(volume=50))
        before = await here.eventually(is_applied(volume=50))
        await here.kubectl("delete", "sink", here.analog)
        after = await here.eventually(
            lambda sink: (
                sink["metadata"]["uid"] != before["metadata"]["uid"]
                and condition(sink, "Ready")[0] == "True"
            )
        )
    assert "spec" not in after
    assert after["status"]["observed"]["volume"] == 50


async def test_foreign_status_is_put_back_and_foreign_conditions_stay(cluster: Cluster) -> None:
    theirs = {
        "type": "Calibrated",
        "status": "True",
        "reason": "Measured",
        "message": "by somebody else",
        "lastTransitionTime": "2026-11-30T20:00:00Z",
    }
    async with lab(cluster, "foreign") as here:
        await here.settled()
        body = here.manifest() | {"status": {"conditions": [theirs]}}
        await here.kubectl(
            "apply",
            "--server-side",
            "--field-manager=calibrator",
            "--subresource=status",
            "-f",
            "-",
            body=body,
        )
        before = here.reconciler.writes
        status = {"node": "elsewhere", "observed": {"volume": 1}}
        await asyncio.to_thread(cluster.patch_status, "sink", here.analog, status)
        await here.eventually(lambda sink: sink["status"]["node"] == "foreign")
        sink = await here.settled()
        assert here.reconciler.writes == before + 1
        here.sounds(here.playing(is_muted=True))
        sink = await here.eventually(lambda sink: condition(sink, "Ready")[1] == "Muted")
    assert sink["status"]["observed"] == {"volume": 100, "mute": True}
    assert condition(sink, "Calibrated") == ("True", "Measured")


async def test_a_fact_that_is_gone_leaves_the_status(cluster: Cluster) -> None:
    async with lab(cluster, "facts") as here:
        hold = ClaimHold(
            namespace="media", name="tv", uid="u1", devices=(DeviceName(here.analog),), pods=("a",)
        )
        here.graph.replace(Source.CLAIMS, ClaimsSnapshot((hold,)))
        sink = await here.eventually(lambda sink: "claims" in sink["status"])
        assert sink["status"]["claims"][0]["pods"] == ["a"]
        here.graph.replace(Source.CLAIMS, ClaimsSnapshot())
        sink = await here.eventually(lambda sink: "claims" not in sink["status"])
    assert "claimedBy" not in sink["status"]


async def test_an_edit_is_one_write_to_hardware_and_one_to_status(cluster: Cluster) -> None:
    async with lab(cluster, "counted") as here:
        await here.settled()
        before = here.reconciler.writes
        for volume in (20, 30, 40):
            await here.kubectl("apply", "-f", "-", body=here.manifest(volume=volume))
            await here.eventually(is_applied(volume=volume))
            await asyncio.sleep(QUIET)
        assert here.reconciler.writes - before == 3
        assert len(here.hardware.calls) == 3


async def test_nothing_changed_writes_nothing_also_after_a_restart(cluster: Cluster) -> None:
    async with lab(cluster, "quiet") as here:
        await here.kubectl("apply", "-f", "-", body=here.manifest(volume=50))
        await here.eventually(is_applied(volume=50))
        before = await here.settled()
        nodes = here.graph.view().nodes
    async with lab(cluster, "quiet") as again:
        again.sounds(*nodes)
        after = await again.settled()
        assert again.reconciler.writes == 0
    assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]


async def test_two_agents_in_a_rolling_update_do_not_flap(cluster: Cluster) -> None:
    async with lab(cluster, "rolling") as old, lab(cluster, "rolling") as new:
        await old.settled()
        for one in (old, new):
            one.sounds(one.playing(is_muted=True))
        await old.eventually(lambda sink: condition(sink, "Ready")[1] == "Muted")
        before = await old.settled()
        await asyncio.sleep(QUIET)
        after = await new.sink()
    assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]


async def test_odd_control_names_make_the_way_through_kubectl(cluster: Cluster) -> None:
    """U40, U52: spaces at the end, commas, hash signs; a rejected one names the right spelling."""
    names = ["E30 ", "Call DTM #", "HDMI/DP,pcm=3 Jack", "Mic Boost (+20dB)"]
    controls = [control(name, type=ControlType.INTEGER, maximum=50, values=(67,)) for name in names]
    async with lab(cluster, "odd", card(pcm(), controls=tuple(controls))) as here:
        sink = await here.settled()
        keys = list(sink["status"]["capabilities"])
        body = here.manifest(controls=dict.fromkeys([*keys, "E30"], "40"))
        await here.kubectl("apply", "-f", "-", body=body)
        sink = await here.eventually(lambda sink: condition(sink, "Applied")[0] == "False")
    written = {what: value for what, value in here.hardware.calls if what in names}
    assert written == dict.fromkeys(keys, (40,))
    assert condition(sink, "Applied")[1] == "UnknownControl"
    (message,) = (
        one["message"] for one in sink["status"]["conditions"] if one["type"] == "Applied"
    )
    assert "did you mean 'E30 '?" in message


async def test_describe_tells_what_happened(cluster: Cluster) -> None:
    async with lab(cluster, "told") as here:
        await here.settled()
        here.sounds(here.playing(state="error", error="Device or resource busy"))
        await here.eventually(lambda sink: condition(sink, "Ready")[1] == "NodeError")
        async with asyncio.timeout(DEADLINE):
            while "NodeError" not in (text := await events_of(here)):
                await asyncio.sleep(0.1)
    assert "Device or resource busy" in text


async def test_a_fault_that_comes_and_goes_is_few_events(cluster: Cluster) -> None:
    """Not one a second: the same again within ten minutes raises a count."""
    async with lab(cluster, "flapping") as here:
        await here.settled()
        for number in range(12):
            here.sounds(here.playing(is_muted=number % 2 == 0))
            await asyncio.sleep(0.6)
        async with asyncio.timeout(DEADLINE):
            while " Muted " not in await events_of(here):
                await asyncio.sleep(0.2)
        await here.settled()
        text = await events_of(here)
    lines = [line for line in text.splitlines() if " Muted " in line or " Ready " in line]
    assert len(lines) <= 2


async def events_of(here: Lab) -> str:
    """The part of `kubectl describe` that lists Events."""
    text = await here.kubectl("describe", "sink", here.analog)
    return text.split("Events:")[1]


async def test_a_kind_that_vanishes_and_comes_back_fills_again(cluster: Cluster) -> None:
    """U79."""
    async with lab(cluster, "vanished") as here:
        await here.settled()
        await here.kubectl("delete", "crd", "sinks.audio.liken.sh")
        await asyncio.sleep(QUIET)
        await here.kubectl("apply", "-k", str(CRDS))
        await here.kubectl("wait", "--for=condition=Established", "--timeout=30s", "crd", "--all")
        await here.eventually(lambda sink: condition(sink, "Ready")[0] == "True")


async def test_an_older_crd_gets_what_it_can_take(cluster: Cluster) -> None:
    remove = '[{"op":"remove","path":"%s"}]'
    path = "/spec/versions/0/schema/openAPIV3Schema/properties/status/properties/location"
    patch = ("patch", "crd", "sinks.audio.liken.sh", "--type=json", "-p")
    await asyncio.to_thread(cluster.kubectl, *patch, remove % path)
    try:
        async with lab(cluster, "older") as here:
            sink = await here.eventually(lambda sink: condition(sink, "Ready")[0] == "True")
            assert "location" not in sink["status"]
            await asyncio.sleep(QUIET)
            before = here.reconciler.writes
            await asyncio.sleep(QUIET)
            assert here.reconciler.writes == before
    finally:
        await asyncio.to_thread(cluster.kubectl, "apply", "-k", str(CRDS))


SINK: Json = {
    "apiVersion": "audio.liken.sh/v1alpha1",
    "kind": "Sink",
    "metadata": {"name": "schema-test"},
}


CONDITION: Json = {
    "type": "Ready",
    "status": "True",
    "reason": "Ready",
    "message": "",
    "lastTransitionTime": "2026-11-30T20:00:00Z",
}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"volume": 101}, "should be less than or equal to 100"),
        ({"volume": -1}, "should be greater than or equal to 0"),
        ({"volume": "loud"}, "must be of type integer"),
        ({"volume": 49.5}, "must be of type integer"),
        ({"mute": "yes"}, "must be of type boolean"),
        ({"volume": 60, "maxVolume": 50}, "volume must not be above maxVolume"),
        ({"sharing": "shared"}, 'supported values: "Exclusive", "Shared"'),
        ({"codec": "AAC!"}, "should match"),
        ({"controls": {"Master": 5}}, "must be of type string"),
        ({"controls": {"": "on"}}, "a control's name has 1 to 128 characters"),
        ({"controls": {"Master": ""}}, "should be at least 1 chars long"),
        ({"volum": 50}, 'unknown field "spec.volum"'),
    ],
)
def test_what_can_not_be_right_is_refused_and_told(
    cluster: Cluster, spec: Json, message: str
) -> None:
    with pytest.raises(HarnessError) as refused:
        cluster.apply({**SINK, "spec": spec})
    assert message in str(refused.value)


def test_a_source_has_no_codec_of_its_own(cluster: Cluster) -> None:
    with pytest.raises(HarnessError, match=r'unknown field "spec.codec"'):
        cluster.apply({**SINK, "kind": "Source", "spec": {"codec": "aac"}})


@pytest.mark.parametrize(
    ("status", "key"),
    [
        ({"conditions": [CONDITION, CONDITION]}, '{"type":"Ready"}'),
        ({"claims": [{"uid": "u1"}, {"uid": "u1", "name": "tv"}]}, '{"uid":"u1"}'),
    ],
    ids=["conditions", "claims"],
)
def test_a_list_has_one_entry_for_each_key(cluster: Cluster, status: Json, key: str) -> None:
    body = {**SINK, "metadata": {"name": "list-keys"}}
    cluster.apply(body)
    with pytest.raises(HarnessError) as refused:
        cluster.patch_status("sink", "list-keys", status)
    assert f"Duplicate value: {key}" in str(refused.value)
    cluster.kubectl("delete", "sink", "list-keys")


def test_explain_reads_as_documentation(cluster: Cluster) -> None:
    def explained(field: str) -> str:
        return " ".join(cluster.kubectl("explain", field).split())

    cluster.wait_for("discovery", lambda: {"text": explained("sink")})
    assert "a name copied from there always works, spaces included" in explained(
        "sink.spec.controls"
    )
    assert "as wpctl and pavucontrol show it" in explained("source.spec.volume")
