"""Settings: what the agent and its sidecar are told, from flags and `LIKEN_AUDIO_*` variables.

A flag beats its variable, a variable beats the default. Each option is one field here: its help
text, its flag (`pipewire_remote` → `--pipewire-remote`) and its variable
(`LIKEN_AUDIO_PIPEWIRE_REMOTE`) follow from it, so `--help` can't leave one out.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

_NODE_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_ALSA = ("auto", "on", "off")
_LOG_LEVELS = ("debug", "info", "warning", "error")
_RUN = "/run/audio.liken.sh"


class SettingsError(Exception):
    """A setting can't be used; the message names the flag and the right values."""


def _option(help_text: str, default: str = "") -> Any:  # a field of any type, as field() itself is
    return field(default=default, metadata={"help": help_text})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All options; paths are absolute and the same inside and outside of the agent's container."""

    node: str = _option("name of this node in the cluster (default: the host name)")
    kubeconfig: str = _option("kubeconfig file; empty: the pod's own service account")
    pod_uid: str = _option("UID of the agent's pod: turns on socket names for rolling updates")
    alsa: str = _option(
        "publish the machine's sound cards: on, off, or auto (unless virtual cards are given)",
        "auto",
    )
    sys: str = _option("where sysfs is mounted", "/sys")
    dev: str = _option("folder of the device files, with the sound cards' in snd", "/dev")
    virtual: str = _option("YAML file of virtual cards to publish (docs/virtual-cards.md)")
    pipewire_remote: str = _option("PipeWire's socket", f"{_RUN}/pipewire/pipewire-0")
    bluetooth_bus: str = _option(
        "D-Bus address of the bus that BlueZ is on; none: no Bluetooth"
        " (default: DBUS_SYSTEM_BUS_ADDRESS, else the system bus)"
    )
    wireplumber_restart: str = _option(
        "file that the agent makes to have WirePlumber restarted; empty: none",
        f"{_RUN}/pipewire/restart-wireplumber",
    )
    registry_dir: str = _option(
        "where the kubelet looks for plugins", "/var/lib/kubelet/plugins_registry"
    )
    plugin_dir: str = _option(
        "folder of the DRA socket and of the prepared claims' records",
        "/var/lib/kubelet/plugins/audio.liken.sh",
    )
    cdi_dir: str = _option("where the container runtime reads CDI files", "/var/run/cdi")
    claims_dir: str = _option("folder of the claims' own folders", f"{_RUN}/claims")
    control: str = _option(
        "socket on which the agent asks claim-sockets", f"{_RUN}/control/claim-sockets"
    )
    http_port: str = _option("port of /healthz, /readyz and /metrics; 0: none", "8080")
    http_host: str = _option("address that this port is bound to", "0.0.0.0")  # noqa: S104 the kubelet's probes come from outside the pod
    log_level: str = _option(f"one of: {', '.join(_LOG_LEVELS)}", "info")

    def __post_init__(self) -> None:
        """Refuse what can't work, at once and by name."""
        if len(self.node) > 253 or not _NODE_NAME.fullmatch(self.node):
            raise SettingsError(
                f"--node: {self.node!r} is no node name: lower-case letters, digits, '-' and '.'"
            )
        if not self.http_port.isdecimal() or int(self.http_port) > 65535:
            raise SettingsError(f"--http-port: {self.http_port!r} is no port: 0 to 65535")
        if self.alsa not in _ALSA:
            raise SettingsError(f"--alsa: {self.alsa!r} is none of {_ALSA}")
        if self.log_level not in _LOG_LEVELS:
            raise SettingsError(f"--log-level: {self.log_level!r} is none of {_LOG_LEVELS}")
        for name in (
            "sys",
            "dev",
            "registry_dir",
            "plugin_dir",
            "cdi_dir",
            "claims_dir",
            "control",
        ):
            if not getattr(self, name).startswith("/"):
                raise SettingsError(f"{flag(name)}: {getattr(self, name)!r} is no absolute path")

    @property
    def has_alsa(self) -> bool:
        """Whether the machine's own sound cards are published."""
        return self.alsa == "on" or (self.alsa == "auto" and not self.virtual)


def flag(name: str) -> str:
    """Return the command-line flag of a field."""
    return "--" + name.replace("_", "-")


def variable(name: str) -> str:
    """Return the environment variable of a field."""
    return "LIKEN_AUDIO_" + name.upper()


def options() -> tuple[tuple[str, str, str], ...]:
    """Return (name, default, help) of each option, in the order of `--help`."""
    return tuple((f.name, str(f.default), f.metadata["help"]) for f in fields(Settings))


def from_sources(
    flags: Mapping[str, str | None], environ: Mapping[str, str], host_name: str
) -> Settings:
    """Join flags (None: not given), variables and defaults; raises `SettingsError`."""
    values = {"node": host_name.lower()}
    for name, _, _ in options():
        given = flags.get(name)
        if given is None:
            given = environ.get(variable(name))
        if given is None and name == "bluetooth_bus":
            given = environ.get("DBUS_SYSTEM_BUS_ADDRESS")
        if given is not None:
            values[name] = given
    return Settings(**values)
