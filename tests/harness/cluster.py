"""A Kubernetes cluster as kubectl reaches it: our own control plane, or the reader's cluster."""

import datetime
import json
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.harness.processes import POLL_SECONDS, HarnessError

Json = dict[str, Any]

CALL_SECONDS = 60


class Cluster:
    """Calls of kubectl with one kubeconfig; each has a deadline and raises what kubectl said."""

    def __init__(self, kubeconfig: Path, *, cache: Path | None = None) -> None:
        self.kubeconfig = kubeconfig
        self._flags = [f"--kubeconfig={kubeconfig}"]
        if cache is not None:
            self._flags.append(f"--cache-dir={cache}")

    def kubectl(self, *arguments: str, body: str | None = None) -> str:
        """Run kubectl, with `body` as its input, and return what it printed."""
        command = ["kubectl", *self._flags, *arguments]
        try:
            done = subprocess.run(
                command,
                input=body,
                capture_output=True,
                text=True,
                timeout=CALL_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise HarnessError(f"{' '.join(command)}: no answer in {CALL_SECONDS} s") from None
        except FileNotFoundError:
            raise HarnessError("kubectl isn't installed: run tests/harness/setup.sh") from None
        if done.returncode != 0:
            raise HarnessError(f"{' '.join(command)}: {done.stderr.strip()}")
        return done.stdout

    def get(self, *arguments: str) -> Json:
        """Return `kubectl get … -o json`."""
        result: Json = json.loads(self.kubectl("get", *arguments, "-o", "json"))
        return result

    def items(self, *arguments: str) -> Sequence[Json]:
        """Return the objects of `kubectl get …` of a whole kind."""
        items: Sequence[Json] = self.get(*arguments)["items"]
        return items

    def apply(self, *documents: Json) -> None:
        """Apply objects as a user would."""
        self.kubectl("apply", "-f", "-", body="\n---\n".join(map(json.dumps, documents)))

    def patch_status(self, kind: str, name: str, status: Json, namespace: str = "") -> None:
        """Merge into the status of an object."""
        where = ["--namespace", namespace] if namespace else []
        patch = json.dumps({"status": status})
        self.kubectl(
            "patch", kind, name, *where, "--subresource=status", "--type=merge", f"-p={patch}"
        )

    def make_node(self, name: str, taints: Sequence[Json] = ()) -> None:
        """Make a Node that pods are scheduled to, as if a kubelet had registered it."""
        self.apply(
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
            }
        )
        size = {"cpu": "4", "memory": "8Gi", "pods": "110"}
        ready = {
            "type": "Ready",
            "status": "True",
            "reason": "KubeletReady",
            "message": "a test in the kubelet's role",
        }
        self.patch_status(
            "node", name, {"capacity": size, "allocatable": size, "conditions": [ready]}
        )
        # Admission marks every new Node not-ready; a controller that we don't run takes it off.
        patch = json.dumps({"spec": {"taints": list(taints)}})
        self.kubectl("patch", "node", name, "--type=merge", f"-p={patch}")

    def renew_lease(self, node: str) -> None:
        """Do a kubelet's heartbeat, for clusters that watch their nodes."""
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds")
        self.apply(
            {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": node, "namespace": "kube-node-lease"},
                "spec": {
                    "holderIdentity": node,
                    "leaseDurationSeconds": 40,
                    "renewTime": now.replace("+00:00", "Z"),
                },
            }
        )

    def wait_for(self, what: str, ask: Callable[[], Json | None], timeout: float = 30) -> Json:
        """Ask until there is an answer; `HarnessError` after `timeout` s, with the last refusal."""
        deadline = time.monotonic() + timeout
        refusal = ""
        while True:
            try:
                answer = ask()
            except HarnessError as error:
                answer, refusal = None, f": {error}"
            if answer is not None:
                return answer
            if time.monotonic() > deadline:
                raise HarnessError(f"{what}: not within {timeout:.0f} s{refusal}")
            time.sleep(POLL_SECONDS)
