"""Each thing that can be missing is named, with a fix; what is there is said too."""

from dataclasses import replace

import pytest

from liken_audio.doctor.checks import Finding, State, diagnose, exit_code, is_at_least
from liken_audio.doctor.facts import (
    Cluster,
    Facts,
    Folder,
    Holder,
    Pcm,
    PipeWire,
    Reach,
    Right,
    Sound,
)

PCM = Pcm("/dev/snd/pcmC0D0p", is_usable=True)
WELL = Facts(
    sound=Sound(pcms=(PCM,)),
    programs={"pw-dump": "1.4.2", "pw-cli": "1.4.2", "setpriv": "2.41", "wireplumber": "0.5.8"},
    pipewire=PipeWire(
        remote="/run/pipewire-0",
        reach=Reach.ANSWERS,
        version="1.4.2",
        has_session_manager=True,
        links_streams=True,
    ),
    bus_address="unix:path=/run/dbus/system_bus_socket",
    folders=(
        Folder("--registry-dir", "/var/lib/kubelet/plugins_registry"),
        Folder("--cdi-dir", "/var/run/cdi"),
    ),
    cluster=Cluster(node="kitchen", kubelet_version="v1.36.3", runtime="containerd://2.1.4"),
    agent=Reach.ANSWERS,
)


def failures(facts: Facts) -> list[Finding]:
    return [each for each in diagnose(facts) if each.state is State.FAILURE]


def test_a_node_that_lacks_nothing_is_well() -> None:
    findings = diagnose(WELL)
    assert {each.state for each in findings} == {State.OK}
    assert exit_code(findings) == 0


def test_a_node_without_bluetooth_is_well_and_says_so() -> None:
    (found,) = [each for each in diagnose(WELL) if each.check == "bluetooth"]
    assert found.state is State.OK
    assert "no fault" in found.what


def pipewire(**changes: object) -> Facts:
    return replace(WELL, pipewire=replace(WELL.pipewire, **changes))  # type: ignore[arg-type]


def cluster(**changes: object) -> Facts:
    return replace(WELL, cluster=replace(WELL.cluster, **changes))  # type: ignore[arg-type]


def sound(**changes: object) -> Facts:
    return replace(WELL, sound=replace(WELL.sound, **changes))  # type: ignore[arg-type]


def folder(flag: str, path: str, **changes: bool) -> Facts:
    return replace(WELL, folders=(Folder(flag, path, **changes),))


@pytest.mark.parametrize(
    ("facts", "check", "what", "fix"),
    [
        pytest.param(
            sound(pcms=(), is_there=False), "sound devices", "/dev/snd", "nodeSelector", id="no-snd"
        ),
        pytest.param(sound(pcms=()), "sound devices", "no PCM", "dmesg", id="no-card"),
        pytest.param(
            sound(pcms=(replace(PCM, is_usable=False, group=29),)),
            "sound permissions",
            "pcmC0D0p",
            "(29, usually `audio`)",
            id="sound-group",
        ),
        pytest.param(
            sound(holders=(Holder(PCM.path, 812, "pulseaudio"),)),
            "host sound server",
            "pulseaudio (process 812)",
            "systemctl --user mask",
            id="host-sound-server",
        ),
        pytest.param(
            sound(holders=(Holder(PCM.path, 0),)),
            "host sound server",
            "a program of the node",
            "systemctl",
            id="holder-outside-of-the-container",
        ),
        pytest.param(
            replace(WELL, programs=WELL.programs | {"pw-dump": "1.2.7"}),  # type: ignore[operator]
            "programs",
            "pw-dump is of 1.2.7",
            "PipeWire 1.4 or newer",
            id="old-pipewire-tools",
        ),
        pytest.param(
            replace(WELL, programs=WELL.programs | {"wireplumber": "0.5.7"}),  # type: ignore[operator]
            "programs",
            "0.5.7",
            "WirePlumber 0.5.8 or newer",
            id="old-wireplumber",
        ),
        pytest.param(
            replace(WELL, programs={"pw-dump": "1.4.2", "pw-cli": "1.4.2"}),
            "programs",
            "setpriv",
            "util-linux",
            id="no-setpriv",
        ),
        pytest.param(
            pipewire(version="1.2.7"), "pipewire", "1.2.7", "1.4 or newer", id="old-server"
        ),
        pytest.param(
            pipewire(reach=Reach.ABSENT),
            "pipewire",
            "no socket",
            "--pipewire-remote",
            id="no-server",
        ),
        pytest.param(
            pipewire(reach=Reach.REFUSES, detail="Host is down"),
            "pipewire",
            "Host is down",
            "log",
            id="dead",
        ),
        pytest.param(
            pipewire(reach=Reach.SILENT), "pipewire", "hangs", "restart", id="hung-server"
        ),
        pytest.param(
            pipewire(has_session_manager=False),
            "wireplumber",
            "isn't connected",
            "start",
            id="no-manager",
        ),
        pytest.param(
            pipewire(links_streams=False), "wireplumber", "hangs", "restart", id="hung-manager"
        ),
        pytest.param(
            folder("--registry-dir", "/x/plugins_registry", is_there=False),
            "kubelet folder",
            "isn't there",
            "--root-dir",
            id="other-kubelet-root",
        ),
        pytest.param(
            folder("--registry-dir", "/x", is_writable=False),
            "kubelet folder",
            "can't be written",
            "readOnly",
            id="read-only-kubelet-folder",
        ),
        pytest.param(
            folder("--cdi-dir", "/var/run/cdi", is_there=False, is_writable=False),
            "cdi folder",
            "isn't there",
            "cdi_spec_dirs",
            id="no-cdi-folder",
        ),
        pytest.param(
            cluster(runtime="containerd://1.6.20"),
            "container runtime",
            "1.6.20",
            "2.0",
            id="old-runtime",
        ),
        pytest.param(
            cluster(runtime="docker://27.1"),
            "container runtime",
            "docker",
            "cri-dockerd",
            id="docker",
        ),
        pytest.param(
            cluster(error="refused"), "kubernetes", "refused", "--kubeconfig", id="no-api"
        ),
        pytest.param(
            cluster(not_served=("sinks.audio.liken.sh",)),
            "kubernetes",
            "sinks.audio.liken.sh",
            "manifests/crds",
            id="no-crds",
        ),
        pytest.param(
            cluster(not_served=("resourceslices.resource.k8s.io",)),
            "kubernetes",
            "resourceslices",
            "1.34",
            id="no-dra",
        ),
        pytest.param(
            cluster(kubelet_version="v1.33.1"), "kubernetes", "v1.33.1", "1.34", id="old-kubelet"
        ),
        pytest.param(
            cluster(node_error="not found"), "kubernetes", "kitchen", "--node", id="no-node"
        ),
        pytest.param(
            cluster(denied=(Right("patch", "sinks", "audio.liken.sh"),)),
            "rights",
            "patch sinks.audio.liken.sh",
            "manifests/rights",
            id="no-right",
        ),
        pytest.param(
            replace(WELL, agent_lacks=("kubelet: not registered",)),
            "agent",
            "not registered",
            "by itself",
            id="agent-not-ready",
        ),
    ],
)
def test_a_fault_is_the_only_failure_and_has_its_fix(
    facts: Facts, check: str, what: str, fix: str
) -> None:
    (found,) = failures(facts)
    assert found.check == check
    assert what in found.what
    assert fix in found.fix
    assert exit_code(diagnose(facts)) == 1


@pytest.mark.parametrize(
    ("facts", "check"),
    [
        pytest.param(cluster(runtime="containerd://1.7.28"), "container runtime", id="cdi-unasked"),
        pytest.param(replace(WELL, bus=Reach.REFUSES), "bluetooth", id="bus-refuses"),
        pytest.param(replace(WELL, agent=Reach.ABSENT), "agent", id="no-agent"),
        pytest.param(pipewire(version=""), "pipewire", id="greets-alone"),
    ],
)
def test_what_may_be_meant_so_is_a_warning(facts: Facts, check: str) -> None:
    (found,) = [each for each in diagnose(facts) if each.state is not State.OK]
    assert (found.check, found.state) == (check, State.WARNING)
    assert found.fix
    assert exit_code(diagnose(facts)) == 0


def test_virtual_cards_need_no_hardware() -> None:
    assert not failures(sound(pcms=(), is_there=False, virtual="/cards.yaml"))


def test_what_can_t_be_looked_at_is_said_once_as_a_failure() -> None:
    assert [each.check for each in failures(pipewire(reach=Reach.ABSENT))] == ["pipewire"]
    assert [each.check for each in failures(cluster(error="away", runtime=""))] == ["kubernetes"]


@pytest.mark.parametrize(
    ("version", "minimum", "expected"),
    [
        ("1.4", "1.4", True),
        ("1.4.2-1~bpo12+1", "1.4", True),
        ("v1.36.3+k3s1", "1.34", True),
        ("0.5.10", "0.5.8", True),
        ("1.33.9", "1.34", False),
        ("?", "1.4", False),
        ("", "1.4", False),
    ],
)
def test_versions_are_compared_by_their_numbers(version: str, minimum: str, expected: bool) -> None:
    assert is_at_least(version, minimum) is expected
