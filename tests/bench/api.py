"""The API server as the bench sees it: calls without kubectl's start-up time, and a watch."""

import http.client
import json
import socket
import ssl
import threading
import time
import urllib.request
from collections.abc import Callable
from typing import Any

import yaml

from tests.harness.cluster import Cluster
from tests.harness.processes import HarnessError

Json = dict[str, Any]


class Api:
    """Plain HTTP calls with the kubeconfig's token."""

    def __init__(self, cluster: Cluster) -> None:
        config = yaml.safe_load(cluster.kubeconfig.read_text())
        self._server = str(config["clusters"][0]["cluster"]["server"])
        self._token = str(config["users"][0]["user"]["token"])
        self._context = ssl.create_default_context()
        self._context.check_hostname = False
        self._context.verify_mode = ssl.CERT_NONE

    def call(self, method: str, path: str, body: Json | None = None) -> Json:
        """Return the answer to one request; raises `urllib.error.HTTPError`."""
        headers = self._headers()
        if method == "PATCH":
            headers["Content-Type"] = "application/merge-patch+json"
        request = urllib.request.Request(
            self._server + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers=headers,
        )
        with urllib.request.urlopen(request, context=self._context, timeout=30) as answer:
            result: Json = json.load(answer)
        return result

    def watch(self, path: str) -> "Watch":
        """Watch a list from now on."""
        host = self._server.removeprefix("https://")
        connection = http.client.HTTPSConnection(host, context=self._context)
        version = self.call("GET", path)["metadata"]["resourceVersion"]
        connection.request(
            "GET", f"{path}?watch=1&resourceVersion={version}", headers=self._headers()
        )
        return Watch(connection)

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}


class Watch:
    """Events of one watch with the moment at which each came (`time.perf_counter`)."""

    def __init__(self, connection: http.client.HTTPSConnection) -> None:
        self.events: list[tuple[float, Json]] = []
        self._connection = connection
        self._response = connection.getresponse()
        self._came = threading.Condition()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def wait(self, is_it: Callable[[Json], bool], since: int, timeout: float = 10) -> float:
        """Return when the first object after event number `since` came that `is_it` accepts."""
        deadline = time.monotonic() + timeout
        with self._came:
            while True:
                for moment, event in self.events[since:]:
                    if is_it(event["object"]):
                        return moment
                left = deadline - time.monotonic()
                if left <= 0:
                    raise HarnessError(f"no such event within {timeout} s")
                self._came.wait(left)

    def close(self) -> None:
        """End the watch; closing while the thread reads would wait for the next event."""
        if self._connection.sock is not None:
            self._connection.sock.shutdown(socket.SHUT_RDWR)
        self._thread.join(timeout=5)

    def _read(self) -> None:
        try:
            for line in self._response:
                with self._came:
                    self.events.append((time.perf_counter(), json.loads(line)))
                    self._came.notify_all()
        except (OSError, ValueError, AttributeError, http.client.HTTPException):
            return  # closed: the bench has what it wanted
