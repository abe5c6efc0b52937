"""A real Kubernetes control plane on loopback ports: etcd, API server, scheduler, controllers.

There is no kubelet: a Node is made by hand (`Cluster.make_node`) and a test plays its kubelet
(`kubelet_role`). The program is compiled by tests/harness/setup.sh.
"""

import base64
import json
import os
import random
import secrets
import socket
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.harness.cluster import Cluster
from tests.harness.processes import HarnessError, Program, Programs, wait_until

PROGRAM_VARIABLE = "LIKEN_AUDIO_CONTROL_PLANE"
READY_SECONDS = 120
ATTEMPTS = 3
# Below the range from which Linux takes ports for outgoing connections.
_PORTS = range(20_000, 32_000)
# With the node life cycle, a Node without a kubelet's heartbeat would be tainted after 40 s.
_CONTROLLERS = "*,-node-lifecycle-controller"


class PortTaken(HarnessError):
    """Another program took one of the ports between our look and our use."""


class ControlPlane:
    """The four programs, their ports, and a kubeconfig of an administrator."""

    def __init__(self, folder: Path, *, controllers: str = _CONTROLLERS) -> None:
        self.feature_gates = ""
        """Of the API server, from its next start on: `Gate=false,…`."""
        self.folder = folder
        self.kubeconfig = folder / "kubeconfig"
        self.cluster = Cluster(self.kubeconfig, cache=folder / "kubectl")
        self._controllers = controllers
        self._program = control_plane_program()
        self._programs = Programs(folder)
        self._token = secrets.token_urlsafe(24)
        self._running: dict[str, Program] = {}
        self._ports: dict[str, int] = {}

    @property
    def url(self) -> str:
        """Address of the API server."""
        return f"https://127.0.0.1:{self._ports['apiserver']}"

    def start(self) -> Self:
        """Start all four and wait until the API server is ready; ports that are lost are changed."""
        for attempt in range(ATTEMPTS):
            try:
                self._start_all()
            except PortTaken:
                self.end()
                if attempt + 1 == ATTEMPTS:
                    raise
            except BaseException:
                self.end()
                raise
            else:
                break
        return self

    def end(self) -> None:
        """End all four; fine if they never started."""
        self._programs.end()
        self._running.clear()

    def restart_apiserver(self) -> None:
        """End the API server and start it anew, on the same address and storage."""
        self._running["apiserver"].end()
        self._start("apiserver", "kube-apiserver", self._apiserver_flags())
        self._wait("the API server", self._is_ready)

    def programs(self) -> Mapping[str, Program]:
        """The running programs: etcd, apiserver, scheduler, controllers."""
        return dict(self._running)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.end()

    def _start_all(self) -> None:
        names = ("etcd", "peer", "apiserver", "scheduler", "controllers")
        self._ports = dict(zip(names, free_ports(len(names)), strict=True))
        self._write_key()
        self._start("etcd", "etcd", self._etcd_flags())
        self._start("apiserver", "kube-apiserver", self._apiserver_flags())
        self._wait("the certificate", self._certificate.is_file)
        self._write_kubeconfig()
        self._wait("the API server", self._is_ready)
        self._start("scheduler", "kube-scheduler", self._scheduler_flags())
        self._start("controllers", "kube-controller-manager", self._controllers_flags())
        self._wait("the default service account", self._has_default_account)

    def _start(self, name: str, component: str, flags: Mapping[str, str]) -> None:
        arguments = [f"--{flag}={value}" for flag, value in flags.items()]
        command = [str(self._program), component, *arguments]
        self._running[name] = self._programs.start(name, command)

    def _wait(self, what: str, is_so: Callable[[], bool]) -> None:
        try:
            wait_until(is_so, what, READY_SECONDS, tuple(self._running.values()))
        except HarnessError as error:
            if "address already in use" in str(error):
                raise PortTaken(str(error)) from error
            raise

    @property
    def _certificate(self) -> Path:
        return self.folder / "certificates" / "apiserver.crt"

    def _etcd_flags(self) -> Mapping[str, str]:
        client = f"http://127.0.0.1:{self._ports['etcd']}"
        peer = f"http://127.0.0.1:{self._ports['peer']}"
        return {
            "data-dir": str(self.folder / "etcd"),
            "unsafe-no-fsync": "true",
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"default={peer}",
        }

    def _apiserver_flags(self) -> Mapping[str, str]:
        return {
            "etcd-servers": f"http://127.0.0.1:{self._ports['etcd']}",
            "cert-dir": str(self._certificate.parent),
            "bind-address": "127.0.0.1",
            # A machine without a default route has no other address to advertise; an Endpoints
            # object can't hold a loopback address, so none is kept.
            "advertise-address": "127.0.0.1",
            "endpoint-reconciler-type": "none",
            "secure-port": str(self._ports["apiserver"]),
            "token-auth-file": str(self.folder / "tokens.csv"),
            "authorization-mode": "Node,RBAC",
            "service-cluster-ip-range": "10.96.0.0/16",
            "service-account-key-file": str(self._key),
            "service-account-signing-key-file": str(self._key),
            "service-account-issuer": "https://kubernetes.default.svc",
            "allow-privileged": "true",
            **({"feature-gates": self.feature_gates} if self.feature_gates else {}),
        }

    def _scheduler_flags(self) -> Mapping[str, str]:
        return {
            "kubeconfig": str(self.kubeconfig),
            "authentication-kubeconfig": str(self.kubeconfig),
            "authorization-kubeconfig": str(self.kubeconfig),
            "leader-elect": "false",
            "bind-address": "127.0.0.1",
            "secure-port": str(self._ports["scheduler"]),
        }

    def _controllers_flags(self) -> Mapping[str, str]:
        return {
            "kubeconfig": str(self.kubeconfig),
            "leader-elect": "false",
            "bind-address": "127.0.0.1",
            "secure-port": str(self._ports["controllers"]),
            "service-account-private-key-file": str(self._key),
            "root-ca-file": str(self._certificate),
            "use-service-account-credentials": "true",
            "controllers": self._controllers,
        }

    @property
    def _key(self) -> Path:
        return self.folder / "service-account.key"

    def _write_key(self) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        tokens = self.folder / "tokens.csv"
        tokens.write_text(f'{self._token},administrator,administrator,"system:masters"\n')
        command = ["openssl", "genrsa", "-out", str(self._key), "2048"]
        subprocess.run(command, check=True, capture_output=True, timeout=60)

    def _write_kubeconfig(self) -> None:
        authority = base64.b64encode(self._certificate.read_bytes()).decode()
        cluster = {"server": self.url, "certificate-authority-data": authority}
        # JSON is YAML, and needs no library here.
        self.kubeconfig.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [{"name": "harness", "cluster": cluster}],
                    "users": [{"name": "administrator", "user": {"token": self._token}}],
                    "contexts": [
                        {
                            "name": "harness",
                            "context": {"cluster": "harness", "user": "administrator"},
                        }
                    ],
                    "current-context": "harness",
                },
                indent=1,
            )
        )
        self.kubeconfig.chmod(0o600)

    def _is_ready(self) -> bool:
        return self._answers("/readyz")

    def _has_default_account(self) -> bool:
        return self._answers("/api/v1/namespaces/default/serviceaccounts/default")

    def _answers(self, path: str) -> bool:
        request = urllib.request.Request(
            self.url + path, headers={"Authorization": f"Bearer {self._token}"}
        )
        trust = ssl.create_default_context(cafile=str(self._certificate))
        try:
            with urllib.request.urlopen(request, timeout=5, context=trust) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False


def control_plane_program() -> Path:
    """The compiled program, or a `HarnessError` that says how to get it."""
    named = os.environ.get(PROGRAM_VARIABLE, "")
    if not named:
        raise HarnessError(
            f"{PROGRAM_VARIABLE} isn't set: run through make, or "
            'eval "$(tests/harness/setup.sh dev sound cluster)" first'
        )
    if not os.access(named, os.X_OK):
        raise HarnessError(f"{PROGRAM_VARIABLE}={named}: no such program")
    return Path(named)


def free_ports(count: int) -> list[int]:
    """Different loopback ports that nobody listens on now."""
    found: list[int] = []
    for port in random.sample(_PORTS, len(_PORTS)):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise HarnessError(f"no {count} free ports from {_PORTS.start} to {_PORTS.stop}")
