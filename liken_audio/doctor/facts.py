"""What the doctor was able to see, as plain data; what it means is decided by `checks`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Reach(StrEnum):
    """How a partner took our knock."""

    ANSWERS = "answers"
    ABSENT = "absent"
    """There is no socket."""
    REFUSES = "refuses"
    SILENT = "silent"
    """It took the connection and said nothing until the deadline."""


@dataclass(frozen=True, slots=True)
class Pcm:
    """A device file of a playback or capture PCM."""

    path: str
    is_usable: bool
    """Whether we may read and write it."""
    group: int = 0
    """Number of the group that owns it."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A program that has a PCM open."""

    path: str
    pid: int
    """0: a process that can't be seen from here, as the host's from a container."""
    program: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sound:
    """The kernel's side."""

    folder: str = "/dev/snd"
    is_there: bool = True
    pcms: tuple[Pcm, ...] = ()
    holders: tuple[Holder, ...] = ()
    """Those that aren't our PipeWire."""
    virtual: str = ""
    """File of virtual cards, if there is one: then no hardware is needed."""


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder that is shared with the node."""

    flag: str
    path: str
    is_there: bool = True
    is_writable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PipeWire:
    """The sound server at the agent's socket."""

    remote: str
    reach: Reach
    detail: str = ""
    version: str = ""
    has_session_manager: bool = False
    links_streams: bool | None = None
    """Whether a stream of ours was linked to a sink of ours; None: not tried."""


@dataclass(frozen=True, slots=True)
class Right:
    """Something that the agent asks of the API server."""

    verb: str
    resource: str
    group: str = ""
    subresource: str = ""
    name: str = ""
    namespace: str = ""
    """Empty: in the whole cluster."""

    def __str__(self) -> str:
        """As `kubectl auth can-i` is asked."""
        group = f".{self.group}" if self.group else ""
        part = f"/{self.subresource}" if self.subresource else ""
        name = f" {self.name}" if self.name else ""
        namespace = f" in {self.namespace}" if self.namespace else ""
        return f"{self.verb} {self.resource}{part}{group}{name}{namespace}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The API server, asked with the agent's own rights."""

    error: str = ""
    """Why it wasn't reached; then nothing else of it is known."""
    not_served: tuple[str, ...] = ()
    """Resources that it doesn't know."""
    denied: tuple[Right, ...] = ()
    node: str = ""
    node_error: str = ""
    """Why our Node couldn't be read."""
    kubelet_version: str = ""
    runtime: str = ""
    """`containerd://2.1.4`"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All of it."""

    sound: Sound
    programs: Mapping[str, str] = field(default_factory=dict)
    """Version by program; empty when it isn't installed."""
    pipewire: PipeWire
    bus_address: str = ""
    bus: Reach = Reach.ABSENT
    folders: tuple[Folder, ...] = ()
    cluster: Cluster
    agent: Reach = Reach.ABSENT
    agent_lacks: tuple[str, ...] = ()
    """What a running agent says is missing."""
