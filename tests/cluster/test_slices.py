"""ResourceSlices by the whole agent: wiped, unchanged, grown and shrunk, and with odd texts."""

import asyncio
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.harness.cluster import Json
from tests.harness.kubelet_role import KubeletRole
from tests.harness.node import Node
from tests.harness.processes import Programs, wait_until
from tests.harness.workloads import DARK, HDMI, Namespace

SECONDS = 45
WRITES = 'liken_audio_api_writes_total{loop="publisher"}'
LOOKS = "liken_audio_graph_replacements_total"


def versions(node: Node) -> list[str]:
    return [each["metadata"]["resourceVersion"] for each in node.slices()]


async def test_slices_that_a_kubelet_wipes_come_back_as_they_were_and_once(
    node: Node, kubelet: KubeletRole
) -> None:
    """Scenario 3, U64: as a kubelet does at each of its starts, three times."""
    for _ in range(3):
        (before,) = node.slices()
        writes = node.metrics()[WRITES]
        await asyncio.to_thread(kubelet.wipe_slices)
        wait_until(lambda: bool(node.slices()), "the slice", SECONDS)
        (after,) = node.slices()
        assert after["metadata"]["uid"] != before["metadata"]["uid"]
        assert after["spec"]["devices"] == before["spec"]["devices"]
        assert after["spec"]["pool"]["name"] == node.name
        assert after["spec"]["pool"]["generation"] > before["spec"]["pool"]["generation"]
        (owner,) = after["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["controller"]) == ("Node", node.name, True)
        await asyncio.sleep(1.0)  # for what must not come
        assert node.metrics()[WRITES] - writes == 1
        assert node.slices() == [after]


async def test_cards_read_again_and_again_without_a_change_write_nothing(
    node: Node, kubelet: KubeletRole, namespace: Namespace, virtual_cards: Path
) -> None:
    """Scenario 18: with a taint that has a time, a capacity, and over a restart of the agent."""
    sink = namespace.device(HDMI)
    patch = json.dumps({"spec": {"sharing": "Shared"}})
    node.cluster.kubectl("patch", "sink", sink, "--type=merge", f"-p={patch}")
    wait_until(lambda: "capacity" in device(node, sink), "a capacity", SECONDS)
    assert device(node, namespace.device(DARK))["taints"][0]["timeAdded"]
    before = versions(node)
    text = virtual_cards.read_text()
    for number in range(4):
        looks = node.metrics()[LOOKS]
        virtual_cards.write_text(f"{text}\n# {number}\n")
        wait_until(lambda seen=looks: node.metrics()[LOOKS] > seen, "a new reading", SECONDS)
    assert versions(node) == before
    node.agent.kill()
    await asyncio.to_thread(node.start_agent)
    await kubelet.register("audio.liken.sh")
    await asyncio.to_thread(node.wait_ready)
    await asyncio.sleep(1.0)  # for what must not come
    assert versions(node) == before
    assert node.metrics()[WRITES] == 0


def device(node: Node, name: str) -> Json:
    (found,) = [each for each in node.devices() if each["name"] == name]
    return found


def dark_card(pcms: int) -> str:
    """A card of so many outputs without a monitor: devices with taints, and no nodes to make."""
    lines = [f'      - {{device: {number}, id: HDMI {number}, eld: ""}}' for number in range(pcms)]
    head = ["  - bus: pci", '    path: "0000:07:00.0"', "    id: Dark", "    pcms:"]
    return "\n".join([*head, *lines, ""])


async def test_a_pool_grows_to_three_slices_and_shrinks_and_is_never_in_two_minds(
    node: Node, virtual_cards: Path, workspace: Path
) -> None:
    """Scenarios 19 and 20: 129 and more devices with taints, seen event by event."""
    text = virtual_cards.read_text()
    command = ["kubectl", f"--kubeconfig={node.cluster.kubeconfig}", "get", "resourceslices"]
    flags = [f"--field-selector=spec.nodeName={node.name}", "--watch", "--output-watch-events"]
    with Programs(workspace) as programs:
        events = programs.start("events", [*command, *flags, "-o=json"])
        wait_until(lambda: bool(list(watched(events.log))), "the first event", SECONDS)
        for generation, (pcms, slices) in enumerate([(70, 2), (129, 3), (0, 1)], start=2):
            virtual_cards.write_text(text + (dark_card(pcms) if pcms else ""))
            wait_until(lambda count=pcms + 4: len(node.devices()) == count, f"{pcms} more", SECONDS)
            headers = [each["spec"]["pool"] for each in node.slices()]
            assert {each["resourceSliceCount"] for each in headers} == {slices}
            assert {each["generation"] for each in headers} == {generation}
            assert max(len(each["spec"]["devices"]) for each in node.slices()) <= 64
        last = node.slices()[0]["metadata"]["resourceVersion"]
        wait_until(lambda: last in events.log.read_text(), "the last event", SECONDS)
        states = list(watched(events.log))
    assert len(states) >= 7
    for state in states:
        newest = max(each["spec"]["pool"]["generation"] for each in state.values())
        names = [
            device["name"]
            for each in state.values()
            if each["spec"]["pool"]["generation"] == newest
            for device in each["spec"]["devices"]
        ]
        assert len(set(names)) == len(names)


def watched(log: Path) -> Iterator[Mapping[str, Json]]:
    """The slices by name after each event of kubectl's watch."""
    text, decoder, state = log.read_text(), json.JSONDecoder(), dict[str, Json]()
    position = 0
    while position < len(text):
        try:
            event, position = decoder.raw_decode(text, position)
        except ValueError:
            return  # still being written
        while text[position : position + 1].isspace():
            position += 1
        name = event["object"]["metadata"]["name"]
        if event["type"] == "DELETED":
            state.pop(name, None)
        else:
            state[name] = event["object"]
        if state:
            yield dict(state)


ODD_CARD = """
  - bus: usb
    name: "Lautsprecher für die Küche, den Flur, die Diele und das Bad im Dachgeschoß"
    usb:
      vendor: "1234"
      product: "5678"
      serial: "A1/B2 C3:ÄÖ %s"
      vendorName: "%s"
      port: 1-1
    pcms:
      - {device: 0, id: "%s"}
"""


async def test_a_card_of_long_and_foreign_texts_costs_no_slice(
    node: Node, virtual_cards: Path
) -> None:
    """U60 and U71."""
    odd = ODD_CARD % ("F" * 126, "ä" * 200, "Ünï " * 20)
    virtual_cards.write_text(virtual_cards.read_text() + odd)
    (device,) = node.wait_published(5, 4)[-1:]
    assert device["name"].startswith("usb-1234-5678-")
    texts = [value["string"] for value in device["attributes"].values() if "string" in value]
    assert max(len(text.encode()) for text in texts) <= 64
