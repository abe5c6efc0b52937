"""A node with our agent: its folders as a kubelet lays them out, claim-sockets, and the agent.

The kubelet's folders lie under the given one, so that several nodes fit on one machine; its path
must be short, since a Unix socket's path has at most 107 bytes.
"""

import os
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.harness.cluster import Cluster
from tests.harness.control_plane import free_ports
from tests.harness.kubelet_role import KubeletRole
from tests.harness.processes import HarnessError, Program, Programs, wait_until
from tests.harness.sound_stack import SoundStack

READY_SECONDS = 30
TREE = Path(__file__).parents[2]


class Node:
    """The agent's processes on one node; they run as on a real one, but for their paths."""

    def __init__(
        self, folder: Path, name: str, *, cluster: Cluster, stack: SoundStack, virtual: Path
    ) -> None:
        self.name = name
        self.cluster = cluster
        self.registry = folder / "registry"
        self.plugin = folder / "plugin"
        self.cdi = folder / "cdi"
        self.claims = folder / "claims"
        self.http_port = free_ports(1)[0]
        self._folder = folder
        self._stack = stack
        self._virtual = virtual
        self._programs = Programs(folder)
        self._agent: Program | None = None
        self._claim_sockets: Program | None = None

    @property
    def agent(self) -> Program:
        """The agent's process."""
        if self._agent is None:
            raise HarnessError("the agent isn't started")
        return self._agent

    @property
    def claim_sockets(self) -> Program:
        """The process that holds the claims' sockets."""
        if self._claim_sockets is None:
            raise HarnessError("claim-sockets isn't started")
        return self._claim_sockets

    def start(self) -> Self:
        """Start both and wait until the agent says that it is alive."""
        control = self._folder / "control"
        for folder in (self.registry, self.plugin, self.cdi, self.claims, control):
            folder.mkdir(parents=True, exist_ok=True)
        try:
            self.start_claim_sockets()
            self.start_agent()
        except BaseException:
            self.end()
            raise
        return self

    def start_claim_sockets(self) -> None:
        """Start claim-sockets and wait until it answers; for after `claim_sockets.kill()`."""
        self._claim_sockets = self._run("claim-sockets", self._sockets_flags())
        control = Path(self._sockets_flags()["control"])
        wait_until(control.is_socket, "claim-sockets", READY_SECONDS, [self._claim_sockets])

    def start_agent(self) -> None:
        """Start the agent and wait until it is alive; for after `agent.kill()`."""
        self._agent = self._run("agent", self._agent_flags())
        wait_until(lambda: self.answers("/healthz"), "the agent", READY_SECONDS, [self._agent])

    def wait_ready(self, timeout: float = READY_SECONDS) -> None:
        """Wait until the agent has all its partners."""
        wait_until(lambda: self.answers("/readyz"), "the agent's readiness", timeout, [self.agent])

    def answers(self, path: str) -> bool:
        """Whether the agent's HTTP port answers 200 there."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}{path}", timeout=5):
                return True
        except (urllib.error.URLError, OSError):
            return False

    def metrics(self) -> Mapping[str, float]:
        """The agent's figures, by name with labels."""
        with urllib.request.urlopen(
            f"http://127.0.0.1:{self.http_port}/metrics", timeout=5
        ) as page:
            lines = page.read().decode().splitlines()
        pairs = [line.rsplit(" ", 1) for line in lines if line and not line.startswith("#")]
        return {name: float(value) for name, value in pairs}

    def kubelet(self) -> KubeletRole:
        """A kubelet's role for this node; the caller ends it."""
        work = self._folder / "kubelet"
        work.mkdir(exist_ok=True)
        return KubeletRole(
            self.cluster, self.name, registry=self.registry, cdi=[self.cdi], work=work
        )

    def end(self) -> None:
        """End both."""
        self._programs.end()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.end()

    def _run(self, command: str, flags: Mapping[str, str]) -> Program:
        arguments = [f"--{flag}={value}" for flag, value in flags.items()]
        environment = {
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "HOME": str(self._folder),
            "PYTHONPATH": str(TREE),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        line = [sys.executable, "-m", "liken_audio", command, *arguments]
        return self._programs.start(command, line, environment)

    def _sockets_flags(self) -> Mapping[str, str]:
        return {
            "claims-dir": str(self.claims),
            "pipewire-remote": str(self._stack.remote),
            "control": str(self._folder / "control" / "sockets"),
        }

    def _agent_flags(self) -> Mapping[str, str]:
        return {
            **self._sockets_flags(),
            "node": self.name,
            "kubeconfig": str(self.cluster.kubeconfig),
            "virtual": str(self._virtual),
            "registry-dir": str(self.registry),
            "plugin-dir": str(self.plugin),
            "cdi-dir": str(self.cdi),
            "http-host": "127.0.0.1",
            "http-port": str(self.http_port),
        }
