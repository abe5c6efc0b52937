"""The product on a real kubelet and container runtime, while what it stands on breaks.

One pod plays all the time. After each fault: what should play plays, what shouldn't can't, and of
what was deleted nothing is left. The tests build on one installation, which the last one removes.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.harness import deployment
from tests.harness.cluster import Json
from tests.harness.deployment import PATIENCE, Deployment, Site
from tests.harness.processes import wait_until
from tests.harness.workloads import ANALOG, HDMI

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def product(site: Site) -> Iterator[Deployment]:
    """The installed product, with all of it well and its player heard."""
    site.product.wait_ready()
    site.product.wait_heard(HDMI)
    yield site.product
    site.product.end()


@pytest.fixture
def space(site: Site) -> Iterator[str]:
    """A namespace that goes with the test."""
    cluster = site.product.cluster
    cluster.kubectl("create", "namespace", "guests")
    yield "guests"
    cluster.kubectl("delete", "namespace", "guests", "--ignore-not-found", "--timeout=60s")


def claims_of(product: Deployment, space: str) -> set[str]:
    return {
        each["metadata"]["uid"] for each in product.cluster.items("resourceclaims", f"-n={space}")
    }


def make(product: Deployment, space: str, *objects: Json) -> None:
    text = "\n---\n".join(map(json.dumps, objects))
    # The namespace's account, which each pod needs, comes a moment after it.
    product.cluster.wait_for(
        f"the objects in {space}",
        lambda: {"said": product.cluster.kubectl("apply", f"-n={space}", "-f", "-", body=text)},
    )


def play_in(product: Deployment, space: str, name: str = "guest", device: str = ANALOG) -> None:
    """Make a claim by name and a pod that plays with it, and wait until it is heard."""
    source = {"resourceClaimName": name}
    whole = product.device(device)
    make(product, space, deployment.claim(name, whole), deployment.pod(name, source))
    product.wait_heard(device)


def wait_released(product: Deployment, uids: set[str]) -> None:
    """Wait until the node has nothing of these claims."""
    wait_until(lambda: not product.prepared() & uids, f"nothing left of {uids}", PATIENCE)


def is_silent(product: Deployment, device: str) -> bool:
    return product.listen(device).is_silent


def players(product: Deployment) -> Sequence[int]:
    """The processes that play; one whose connection is cut ends, and another one follows it."""
    return product.node.processes("pw-play --raw")


def test_a_deployment_with_a_claim_template_plays_at_its_sink_alone(product: Deployment) -> None:
    assert is_silent(product, ANALOG)
    assert len(claims_of(product, "default")) == 1
    assert claims_of(product, "default") <= product.prepared()


def test_no_container_of_the_player_has_a_device_or_a_group(product: Deployment) -> None:
    (pid,) = product.node.processes("pw-play --raw")[:1]
    status = dict(
        line.split(":\t", 1)
        for line in (Path(f"/proc/{pid}") / "status").read_text().splitlines()
        if ":\t" in line
    )
    assert status["Uid"].split()[0] == "65534"
    assert status["Groups"].strip() in {"", "65534"}
    assert int(status["CapEff"], 16) == 0
    devices = Path(f"/proc/{pid}") / "root" / "dev" / "snd"
    assert not devices.exists()


def test_the_agent_s_death_is_not_heard_and_the_next_one_goes_on(
    product: Deployment, space: str
) -> None:
    before = product.slices()
    playing = players(product)
    product.signal("agent", "KILL")
    wait_until(lambda: product.restarts()["agent"] > 0, "the agent's restart", PATIENCE)
    product.wait_ready()
    product.wait_heard(HDMI)
    assert players(product) == playing
    assert [each["spec"]["devices"] for each in product.slices()] == [
        each["spec"]["devices"] for each in before
    ]
    play_in(product, space)


def test_pipewire_s_death_is_over_in_a_moment(product: Deployment) -> None:
    product.signal("pipewire", "KILL")
    wait_until(lambda: product.restarts()["pipewire"] > 0, "PipeWire's restart", PATIENCE)
    product.wait_heard(HDMI)
    assert is_silent(product, ANALOG)


def test_a_wireplumber_that_hangs_is_restarted_and_no_other_container(product: Deployment) -> None:
    before = dict(product.restarts())
    product.signal("wireplumber", "STOP")

    def is_restarted() -> bool:
        return product.restarts()["wireplumber"] > before["wireplumber"]

    wait_until(is_restarted, "WirePlumber's restart", PATIENCE)
    product.wait_heard(HDMI)
    product.wait_ready()
    after = dict(product.restarts())
    before["wireplumber"] = after["wireplumber"]
    assert after == before


def test_a_kubelet_s_restart_is_not_heard_and_the_slices_come_back(
    product: Deployment, space: str
) -> None:
    devices = [each["spec"]["devices"] for each in product.slices()]
    playing = players(product)
    product.node.kubelet.kill()
    product.cluster.kubectl("delete", "resourceslices", "--all")
    product.node.start_kubelet()
    wait_until(
        lambda: [each["spec"]["devices"] for each in product.slices()] == devices,
        "the slices",
        PATIENCE,
    )
    product.wait_heard(HDMI)
    assert players(product) == playing
    play_in(product, space)


def test_an_update_to_another_image_leaves_one_stack_that_plays(
    product: Deployment, space: str
) -> None:
    play_in(product, space)
    (old,) = product.pods()
    product.apply(tag="2")
    product.wait_ready()

    def is_alone() -> bool:
        names = [each["metadata"]["name"] for each in product.pods()]
        ending = product.cluster.items("pods", f"-n={deployment.NAMESPACE}")
        return len(ending) == 1 and old["metadata"]["name"] not in names

    wait_until(is_alone, "the end of the old pod", PATIENCE)
    (new,) = product.pods()
    assert new["spec"]["containers"][0]["image"].endswith(":2")
    for device in (HDMI, ANALOG):
        product.wait_heard(device)
    product.wait_ready()
    of_the_kubelet = [each for each in product.sockets() if "/kubelet/" in each]
    assert all(new["metadata"]["uid"] in each for each in of_the_kubelet), of_the_kubelet
    assert len(of_the_kubelet) == 2
    assert len(product.node.processes("wireplumber --profile")) == 1


def test_after_a_reboot_the_same_pods_play(product: Deployment, space: str) -> None:
    play_in(product, space)
    prepared = claims_of(product, "default") | claims_of(product, space)
    product.node.power_off()
    product.node.boot()
    for device in (HDMI, ANALOG):
        product.wait_heard(device)
    assert claims_of(product, "default") | claims_of(product, space) == prepared
    assert prepared <= product.prepared()


def test_a_claim_made_anew_under_the_same_name_is_another_claim(
    product: Deployment, space: str
) -> None:
    play_in(product, space)
    first = claims_of(product, space)
    product.cluster.kubectl("delete", "pod/guest", "resourceclaim/guest", f"-n={space}")
    play_in(product, space)
    second = claims_of(product, space)
    assert not first & second
    assert second <= product.prepared()
    wait_released(product, first)


def test_of_a_deleted_namespace_nothing_is_left(product: Deployment, space: str) -> None:
    play_in(product, space)
    uids = claims_of(product, space)
    product.cluster.kubectl("delete", "namespace", space, "--timeout=60s")
    wait_released(product, uids)
    assert is_silent(product, ANALOG)


def test_of_a_pod_that_is_deleted_by_force_nothing_is_left(product: Deployment, space: str) -> None:
    play_in(product, space)
    uids = claims_of(product, space)
    force = ("--force", "--grace-period=0")
    product.cluster.kubectl("delete", "pod", "guest", f"-n={space}", *force)
    wait_released(product, uids)
    assert is_silent(product, ANALOG)
    play_in(product, space)


def test_the_doctor_finds_this_node_well(product: Deployment) -> None:
    said = json.loads(product.execute("agent", "liken-audio", "doctor", "-o", "json"))
    ill = [each for each in said["findings"] if each["state"] == "failure"]
    assert not ill
    assert said["healthy"]


def test_a_tone_is_played_at_a_sink_by_its_name(product: Deployment) -> None:
    recorder = product.record(ANALOG)
    said = product.execute("agent", "liken-audio", "tone", product.device(ANALOG), "--seconds=1.5")
    assert "played 440 Hz" in said
    assert recorder.stop().is_tone(440)


def test_an_uninstalled_product_leaves_nothing_on_the_node_or_in_the_cluster(site: Site) -> None:
    product = site.product
    product.wait_ready()
    uids = claims_of(product, "default")
    product.cluster.kubectl("delete", "deployment", site.player, "--cascade=foreground")
    wait_released(product, uids)
    product.remove()
    wait_until(lambda: not product.processes(), "the end of the pod", PATIENCE)
    # The kubelet keeps them for 30 s, in which an update's next pod could come.
    wait_until(lambda: not product.slices(), "the end of the slices", PATIENCE)
    assert not product.sockets()
    assert not product.prepared()
    assert not product.node.mounts("audio.liken.sh")
