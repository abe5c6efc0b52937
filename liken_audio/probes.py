"""The HTTP probes: /healthz, /readyz and /metrics, from callables handed in.

`/healthz` answers while the event loop turns. `/readyz` answers 503 with one line for each thing
that is missing, so that `kubectl describe pod` alone says why. `/metrics` is Prometheus' text
format, made from plain attributes: there is no registry.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from aiohttp import web

_UNSAFE = re.compile(r'[\\"\n]')
_ESCAPES = {"\\": r"\\", '"': r"\"", "\n": r"\n"}


@dataclass(frozen=True, slots=True)
class Metric:
    """One sample; its name carries the unit, as `_seconds` or `_bytes`."""

    name: str
    help: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def type(self) -> str:
        """Prometheus type: names ending in `_total` count, all others are gauges."""
        return "counter" if self.name.endswith("_total") else "gauge"


def metrics_text(metrics: Sequence[Metric]) -> str:
    """Render samples in Prometheus' text exposition format 0.0.4; each name's head comes once."""
    lines: list[str] = []
    for name in dict.fromkeys(metric.name for metric in metrics):
        samples = [metric for metric in metrics if metric.name == name]
        lines.append(f"# HELP {name} {samples[0].help}")
        lines.append(f"# TYPE {name} {samples[0].type}")
        lines.extend(f"{name}{_labels(sample.labels)} {sample.value:g}" for sample in samples)
    return "\n".join(lines) + "\n"


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    pairs = (
        f'{key}="{_UNSAFE.sub(lambda match: _ESCAPES[match[0]], value)}"'
        for key, value in labels.items()
    )
    return "{" + ",".join(pairs) + "}"


class Probes:
    """The HTTP server of the probes on one port."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        missing: Callable[[], Sequence[str]],
        metrics: Callable[[], Sequence[Metric]],
    ) -> None:
        self._host = host
        self._port = port
        self._missing = missing
        self._metrics = metrics
        self._runner: web.AppRunner | None = None

    def application(self) -> web.Application:
        """Return the three pages as an application."""
        app = web.Application()
        app.add_routes(
            [
                web.get("/healthz", self._healthz),
                web.get("/readyz", self._readyz),
                web.get("/metrics", self._metrics_page),
            ]
        )
        return app

    async def start(self) -> None:
        """Listen; raises `OSError` when the port is taken."""
        self._runner = web.AppRunner(self.application(), access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, self._host, self._port).start()

    async def close(self) -> None:
        """Stop listening; fine if it never did."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _healthz(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, _request: web.Request) -> web.Response:
        missing = self._missing()
        if missing:
            return web.Response(status=503, text="".join(f"{line}\n" for line in missing))
        return web.Response(text="ok\n")

    async def _metrics_page(self, _request: web.Request) -> web.Response:
        return web.Response(text=metrics_text(self._metrics()), content_type="text/plain")
