"""The daemons of the pod in containers of the image, one each, as the manifests start them."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.image import ROOT_USER, Image, first_process
from tests.harness.processes import HarnessError, Program, Programs, wait_until

SECONDS = 30
DAEMONS = ("pipewire", "wireplumber", "claim-sockets")
COMMANDS = {
    "pipewire": ("node-sound", "pipewire"),
    "wireplumber": ("node-sound", "wireplumber"),
    "claim-sockets": ("liken-audio", "claim-sockets"),
}


class Pod:
    """The three daemons on a shared folder, in containers that share nothing else."""

    def __init__(self, image: Image, shared: Path, folder: Path) -> None:
        folder.mkdir()
        self._image, self._shared = image, shared
        self.programs = Programs(folder)
        self.running: dict[str, Program] = {}

    def start(self, *daemons: str) -> None:
        """Start them in this order, each when the one before it answers."""
        for each in daemons:
            self.launch(each)
            wait_until(lambda name=each: self.answers(name), each, SECONDS, [self.running[each]])

    def launch(self, daemon: str) -> Program:
        """Start one and don't wait."""
        command = COMMANDS[daemon]
        program = self._image.start(
            self.programs, daemon, self._shared, *command, pod=self.programs.folder.name
        )
        self.running[daemon] = program
        return program

    def answers(self, daemon: str) -> bool:
        """What its probe says."""
        try:
            self._image.run(self._shared, "node-sound", "probe", daemon)
        except HarnessError:
            return False
        return True

    def terminate(self, daemon: str) -> None:
        """End a container as a kubelet does: SIGTERM to its first process."""
        program = self.running.pop(daemon)
        os.kill(first_process(program), signal.SIGTERM)
        program.wait(SECONDS)

    def end(self) -> None:
        """End all in the opposite order."""
        for each in reversed(list(self.running.values())):
            each.kill()
        self.programs.end()


@pytest.fixture
def pod(image: Image, shared: Path, workspace: Path) -> Iterator[Pod]:
    """A pod with nothing started."""
    made = Pod(image, shared, workspace / "pod")
    yield made
    made.end()


@pytest.fixture
def next_pod(image: Image, shared: Path, workspace: Path) -> Iterator[Pod]:
    """The pod that an update brings, on the same node."""
    made = Pod(image, shared, workspace / "next")
    yield made
    made.end()


def test_the_agent_as_root_without_a_capability_reaches_the_daemons_of_another_user(
    image: Image, shared: Path, pod: Pod
) -> None:
    pod.start(*DAEMONS)
    node = "{ factory.name=support.null-audio-sink node.name=heard media.class=Audio/Sink object.linger=true }"
    image.run(shared, "pw-cli", "create-node", "adapter", node, user=ROOT_USER)

    def is_there() -> bool:
        return '"heard"' in image.run(shared, "pw-dump", "--no-colors", user=ROOT_USER)

    wait_until(is_there, "the agent's node", SECONDS)
    image.run(shared, "node-sound", "probe", "claim-sockets", user=ROOT_USER)
    for each in pod.running.values():
        text = each.log.read_text()
        assert "flatpak" not in text, text
        assert "rror" not in text, text


def test_nobody_else_of_the_node_gets_in(image: Image, shared: Path, pod: Pod) -> None:
    pod.start("pipewire")
    for folder in ("pipewire", "control"):
        assert (shared / folder).stat().st_mode & 0o7777 == 0o2770
    with pytest.raises(HarnessError, match="ermission denied"):
        image.run(shared, "ls", "/run/audio.liken.sh/pipewire", user=65534, group=65534)


def test_a_wireplumber_that_hangs_fails_its_probe_and_no_other(pod: Pod) -> None:
    pod.start(*DAEMONS)
    hanging = first_process(pod.running["wireplumber"])
    os.kill(hanging, signal.SIGSTOP)
    assert not pod.answers("wireplumber")
    assert pod.answers("pipewire")
    assert pod.answers("claim-sockets")
    os.kill(hanging, signal.SIGCONT)
    wait_until(lambda: pod.answers("wireplumber"), "WirePlumber", SECONDS)
    os.kill(hanging, signal.SIGKILL)
    assert not pod.answers("wireplumber")
    pod.start("wireplumber")


def test_a_pipewire_that_hangs_fails_its_probe(pod: Pod) -> None:
    pod.start("pipewire")
    os.kill(first_process(pod.running["pipewire"]), signal.SIGSTOP)
    assert not pod.answers("pipewire")
    os.kill(first_process(pod.running["pipewire"]), signal.SIGCONT)


def test_the_next_pods_daemons_wait_ready_and_take_over_when_the_first_ones_end(
    shared: Path, pod: Pod, next_pod: Pod
) -> None:
    pod.start(*DAEMONS)
    socket = shared / "pipewire" / "pipewire-0"
    first = socket.stat()
    for each in DAEMONS:
        waiting = next_pod.launch(each)
        wait_until(
            lambda program=waiting: "waiting for it" in program.log.read_text(),
            f"{each} waits",
            SECONDS,
            [waiting],
        )
        assert next_pod.answers(each)
    assert socket.stat().st_ino == first.st_ino
    for each in reversed(DAEMONS):
        pod.terminate(each)
    for each in DAEMONS:
        wait_until(
            lambda name=each: next_pod.answers(name), each, SECONDS, [next_pod.running[each]]
        )
    assert socket.stat().st_ctime_ns > first.st_ctime_ns


def test_the_next_pods_wireplumber_leaves_the_first_ones_pipewire_alone(
    pod: Pod, next_pod: Pod
) -> None:
    pod.start("pipewire", "wireplumber")
    next_pod.launch("pipewire")
    waiting = next_pod.launch("wireplumber")
    wait_until(lambda: "waiting for it" in waiting.log.read_text(), "it waits", SECONDS, [waiting])
    # A kubelet ends the containers one after another; this one's end isn't the next one's start.
    pod.terminate("wireplumber")
    assert not next_pod.answers("wireplumber")
    pod.terminate("pipewire")
    wait_until(lambda: next_pod.answers("wireplumber"), "WirePlumber", SECONDS, [waiting])


def test_a_wireplumber_that_comes_back_to_a_pod_that_lost_its_place_is_in_nobodys_way(
    pod: Pod, next_pod: Pod
) -> None:
    pod.start("pipewire", "wireplumber")
    for each in ("pipewire", "wireplumber"):
        next_pod.launch(each)
    pod.terminate("pipewire")
    pod.running.pop("wireplumber").wait(
        SECONDS
    )  # it ends with its PipeWire; a kubelet starts it again
    pod.launch("wireplumber")
    wait_until(
        lambda: next_pod.answers("wireplumber"),
        "WirePlumber",
        SECONDS,
        [next_pod.running["wireplumber"]],
    )


@pytest.mark.parametrize("daemon", ["pipewire", "wireplumber"])
def test_a_daemon_that_waits_ends_when_it_is_told_to(pod: Pod, next_pod: Pod, daemon: str) -> None:
    pod.start("pipewire")
    waiting = next_pod.launch(daemon)
    wait_until(lambda: "waiting for it" in waiting.log.read_text(), "it waits", SECONDS, [waiting])
    next_pod.terminate(daemon)
    assert pod.answers("pipewire")


def test_pipewire_may_open_as_many_descriptors_as_the_runtime_allows_at_all(pod: Pod) -> None:
    pod.start("pipewire")
    limits = Path(f"/proc/{first_process(pod.running['pipewire'])}/limits").read_text()
    (line,) = [each for each in limits.splitlines() if each.startswith("Max open files")]
    soft, hard = line.split()[3:5]
    assert soft == hard


def test_what_node_sound_doesnt_know_it_says(image: Image, shared: Path) -> None:
    with pytest.raises(HarnessError, match="there are pipewire, wireplumber and claim-sockets"):
        image.run(shared, "node-sound", "probe", "jackd")
    with pytest.raises(HarnessError, match="usage: node-sound"):
        image.run(shared, "node-sound")


def test_a_container_ends_with_who_started_it(pod: Pod) -> None:
    pod.start("pipewire")
    program = pod.running["pipewire"]
    daemon = Path(f"/proc/{first_process(program)}")
    program.kill()
    wait_until(lambda: not daemon.exists(), "the daemon's end", SECONDS)
