"""Facts → Findings: what is well, what is missing, and how it is mended.

Pure, and complete: each check always says something, so that a list without a check's line can't be
taken for a good one. A failure means that pods have no sound; a warning, that they may not have all.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from liken_audio.doctor.facts import Facts, Folder, Reach

MINIMUM = {"pipewire": "1.4", "wireplumber": "0.5.8", "kubelet": "1.34"}
PROGRAMS = {"pw-dump": "pipewire-bin", "pw-cli": "pipewire-bin", "setpriv": "util-linux"}
"""What the agent runs, and the Debian package that it comes with."""
_CDI_SINCE = {"containerd": "1.7", "cri-o": "1.28"}
_CDI_UNASKED_SINCE = {"containerd": "2.0", "cri-o": "1.28"}
_KUBELET_FOLDERS = ("--registry-dir", "--plugin-dir")


class State(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the diagnosis."""

    check: str
    state: State
    what: str
    fix: str = ""


def diagnose(facts: Facts) -> tuple[Finding, ...]:
    """Return all findings, in the order in which one builds on the other."""
    return tuple(finding for check in _CHECKS for finding in check(facts))


def exit_code(findings: Sequence[Finding]) -> int:
    """1 when something is missing that pods need, else 0."""
    return int(any(finding.state is State.FAILURE for finding in findings))


def is_at_least(version: str, minimum: str) -> bool:
    """Compare versions by their numbers; what has none is older than all."""
    return _numbers(version) >= _numbers(minimum)


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"v?(\d+(?:\.\d+)*)", version)
    return tuple(map(int, found[1].split("."))) if found else ()


def _sound_devices(facts: Facts) -> Iterator[Finding]:
    name, sound = "sound devices", facts.sound
    if sound.pcms:
        yield Finding(name, State.OK, f"{len(sound.pcms)} PCMs in {sound.folder}")
    elif sound.virtual:
        yield Finding(name, State.OK, f"virtual cards of {sound.virtual}")
    elif not sound.is_there:
        yield Finding(
            name,
            State.FAILURE,
            f"{sound.folder} isn't there",
            "on a node without a sound card: keep the DaemonSet off it by a nodeSelector; else load the"
            f" card's kernel module (lsmod | grep snd), and mount {sound.folder} into the container",
        )
    else:
        yield Finding(
            name,
            State.FAILURE,
            f"{sound.folder} holds no PCM",
            "the kernel knows no sound card: look at `cat /proc/asound/cards` and `dmesg` on the node",
        )


def _sound_permissions(facts: Facts) -> Iterator[Finding]:
    name = "sound permissions"
    closed = [pcm for pcm in facts.sound.pcms if not pcm.is_usable]
    if not closed:
        yield Finding(name, State.OK, "all PCMs can be opened")
        return
    groups = ", ".join(sorted({str(pcm.group) for pcm in closed}))
    yield Finding(
        name,
        State.FAILURE,
        f"no right to open {', '.join(pcm.path for pcm in closed)}",
        f"add the owning group ({groups}, usually `audio`) to the pod's securityContext."
        "supplementalGroups; where that isn't enough, the container's device rules forbid it: have the"
        " devices by a claim (overlay `liken`) or run the container privileged (overlay `generic`)",
    )


def _host_sound_server(facts: Facts) -> Iterator[Finding]:
    name = "host sound server"
    if not facts.sound.holders:
        yield Finding(name, State.OK, "nobody else holds a card")
    for holder in facts.sound.holders:
        who = f"{holder.program} (process {holder.pid})" if holder.pid else "a program of the node"
        yield Finding(
            name,
            State.FAILURE,
            f"{holder.path} is held by {who}",
            "end the sound server of the node's user and keep it off: `systemctl --user mask --now"
            " pipewire.socket pipewire.service pulseaudio.socket pulseaudio.service`",
        )


def _programs(facts: Facts) -> Iterator[Finding]:
    name = "programs"
    missing = [program for program in PROGRAMS if not facts.programs.get(program)]
    for program in missing:
        fix = f"install Debian's package {PROGRAMS[program]}, or use the product's image"
        yield Finding(name, State.FAILURE, f"{program} isn't installed", fix)
    for program, minimum in (("pw-dump", "pipewire"), ("wireplumber", "wireplumber")):
        version = facts.programs.get(program, "")
        if version and not is_at_least(version, MINIMUM[minimum]):
            missing.append(program)
            yield Finding(name, State.FAILURE, f"{program} is of {version}", _newer(minimum))
    if not missing:
        yield Finding(name, State.OK, f"PipeWire's tools are of {facts.programs['pw-dump']}")


def _newer(part: str) -> str:
    title = {"pipewire": "PipeWire", "wireplumber": "WirePlumber"}[part]
    return (
        f"{title} {MINIMUM[part]} or newer is needed: on Debian 12 from bookworm-backports, or use the"
        " product's image"
    )


def _pipewire(facts: Facts) -> Iterator[Finding]:
    name, server = "pipewire", facts.pipewire
    if server.reach is Reach.ANSWERS:
        if not server.version:
            yield Finding(
                name, State.WARNING, f"{server.remote} answers, and no more", "see wireplumber"
            )
        elif is_at_least(server.version, MINIMUM["pipewire"]):
            yield Finding(name, State.OK, f"PipeWire {server.version} answers at {server.remote}")
        else:
            what = f"the server at {server.remote} is PipeWire {server.version}"
            yield Finding(name, State.FAILURE, what, _newer("pipewire"))
        return
    said = {
        Reach.ABSENT: f"no socket {server.remote}",
        Reach.REFUSES: f"{server.remote}: {server.detail}",
        Reach.SILENT: f"PipeWire at {server.remote} hangs: {server.detail}",
        Reach.ANSWERS: "",
    }[server.reach]
    fix = {
        Reach.ABSENT: "start the container `pipewire` of the agent's pod and share its runtime folder"
        " with this one, or name the socket with --pipewire-remote",
        Reach.REFUSES: "look at the log of the container `pipewire`: kubectl logs -c pipewire",
        Reach.SILENT: "restart the container `pipewire`; its log says what it waits for",
        Reach.ANSWERS: "",
    }[server.reach]
    yield Finding(name, State.FAILURE, said, fix)


def _wireplumber(facts: Facts) -> Iterator[Finding]:
    name, server = "wireplumber", facts.pipewire
    log = "look at its log: kubectl logs -c wireplumber"
    if server.reach is not Reach.ANSWERS:
        yield Finding(name, State.WARNING, "not looked at: PipeWire isn't reached", "see pipewire")
    elif not server.has_session_manager:
        fix = f"start the container `wireplumber` (`wireplumber --profile liken-audio`); {log}"
        yield Finding(name, State.FAILURE, "WirePlumber isn't connected to PipeWire", fix)
    elif server.links_streams is False:
        fix = f"restart the container `wireplumber`; {log}"
        what = "WirePlumber hangs, or its policy isn't loaded: no stream is linked"
        yield Finding(name, State.FAILURE, what, fix)
    else:
        tried = "links a stream" if server.links_streams else "is there; linking wasn't tried"
        yield Finding(name, State.OK, f"WirePlumber {tried}")


def _bluetooth(facts: Facts) -> Iterator[Finding]:
    name = "bluetooth"
    if facts.bus is Reach.ANSWERS:
        yield Finding(name, State.OK, f"the D-Bus system bus is at {facts.bus_address}")
    elif facts.bus is Reach.ABSENT:
        what = f"no system bus at {facts.bus_address}: no Bluetooth devices, which is no fault"
        yield Finding(name, State.OK, what)
    else:
        fix = "share the bus with the agent, or let DBUS_SYSTEM_BUS_ADDRESS name the right one"
        what = f"the system bus at {facts.bus_address} {facts.bus.value}"
        yield Finding(name, State.WARNING, what, fix)


def _folders(facts: Facts) -> Iterator[Finding]:
    for folder in facts.folders:
        is_kubelets = folder.flag in _KUBELET_FOLDERS
        name = "kubelet folder" if is_kubelets else "cdi folder"
        if folder.is_there and folder.is_writable:
            yield Finding(name, State.OK, f"{folder.path} can be written")
            continue
        what = f"{folder.path} {'can`t be written' if folder.is_there else 'isn`t there'}".replace(
            "`", "'"
        )
        yield Finding(name, State.FAILURE, what, _folder_fix(folder, is_kubelets=is_kubelets))


def _folder_fix(folder: Folder, *, is_kubelets: bool) -> str:
    if folder.is_there:
        return f"mount the node's {folder.path} without readOnly, and run the agent as root"
    if is_kubelets:
        return (
            "mount the kubelet's own folder there; where its --root-dir isn't /var/lib/kubelet (k0s:"
            f" /var/lib/k0s/kubelet, microk8s: under /var/snap), name it with {folder.flag}"
        )
    return (
        "mount the node's folder of the container runtime's CDI files there (hostPath, type"
        f" DirectoryOrCreate); where the runtime's cdi_spec_dirs are others, name one with {folder.flag}"
    )


def _runtime(facts: Facts) -> Iterator[Finding]:
    name, cluster = "container runtime", facts.cluster
    if not cluster.runtime:
        why = cluster.error or cluster.node_error or "the Node names none"
        yield Finding(name, State.WARNING, f"not looked at: {why}", "see kubernetes")
        return
    kind, _, version = cluster.runtime.partition("://")
    if kind not in _CDI_SINCE:
        yield Finding(
            name,
            State.FAILURE,
            f"{cluster.runtime} isn't known to give containers CDI devices",
            "use containerd 2.0 or newer, or CRI-O 1.28 or newer; cri-dockerd drops CDI devices",
        )
    elif not is_at_least(version, _CDI_SINCE[kind]):
        fix = f"update it to {_CDI_UNASKED_SINCE[kind]} or newer"
        yield Finding(name, State.FAILURE, f"{kind} {version} knows no CDI devices of the CRI", fix)
    elif not is_at_least(version, _CDI_UNASKED_SINCE[kind]):
        yield Finding(
            name,
            State.WARNING,
            f"{kind} {version} has CDI turned off unless it is asked for",
            'set enable_cdi = true and cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"] under'
            ' [plugins."io.containerd.grpc.v1.cri"] in /etc/containerd/config.toml and restart it',
        )
    else:
        yield Finding(name, State.OK, f"{kind} {version} gives containers CDI devices")


def _kubernetes(facts: Facts) -> Iterator[Finding]:
    name, cluster = "kubernetes", facts.cluster
    if cluster.error:
        fix = "run it in the agent's pod (kubectl exec -c agent), or name a file with --kubeconfig"
        yield Finding(name, State.FAILURE, f"the API server isn't reached: {cluster.error}", fix)
        return
    for resource in cluster.not_served:
        fix = (
            "install the custom resource definitions: kubectl apply -k manifests/crds"
            if resource.endswith("audio.liken.sh")
            else "Kubernetes 1.34 or newer is needed, with resource.k8s.io/v1 served"
        )
        yield Finding(name, State.FAILURE, f"{resource} isn't served", fix)
    if cluster.node_error:
        fix = "name the node as the cluster does: --node, or LIKEN_AUDIO_NODE from spec.nodeName"
        yield Finding(name, State.FAILURE, f"node {cluster.node}: {cluster.node_error}", fix)
    elif not is_at_least(cluster.kubelet_version, MINIMUM["kubelet"]):
        what = f"the kubelet of {cluster.node} is {cluster.kubelet_version or 'unknown'}"
        yield Finding(name, State.FAILURE, what, "Kubernetes 1.34 or newer is needed")
    elif not cluster.not_served:
        yield Finding(name, State.OK, f"node {cluster.node}, kubelet {cluster.kubelet_version}")


def _rights(facts: Facts) -> Iterator[Finding]:
    name, cluster = "rights", facts.cluster
    if cluster.error:
        yield Finding(name, State.WARNING, "not looked at: no API server", "see kubernetes")
        return
    if not cluster.denied:
        yield Finding(name, State.OK, "all that the agent asks for is allowed")
    for right in cluster.denied:
        fix = "bind the ClusterRole to the agent's account: kubectl apply -k manifests/rights"
        yield Finding(name, State.FAILURE, f"not allowed: {right}", fix)


def _agent(facts: Facts) -> Iterator[Finding]:
    name = "agent"
    if facts.agent is not Reach.ANSWERS:
        what = f"the agent's HTTP port {facts.agent.value}"
        yield Finding(name, State.WARNING, what, "it is the container `agent`: look at its log")
        return
    if not facts.agent_lacks:
        yield Finding(name, State.OK, "the agent is ready and registered with the kubelet")
    for line in facts.agent_lacks:
        yield Finding(name, State.FAILURE, line, "the agent goes on by itself once this is there")


_CHECKS: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    _sound_devices,
    _sound_permissions,
    _host_sound_server,
    _programs,
    _pipewire,
    _wireplumber,
    _bluetooth,
    _folders,
    _runtime,
    _kubernetes,
    _rights,
    _agent,
)
