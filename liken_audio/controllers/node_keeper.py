"""Keeps a PipeWire node for every endpoint that should have one.

Each change of the graph is answered by the whole plan of `graph.nodes`. What was asked for isn't
asked for again until it shows, or hasn't within 5 s. Between two writes of one sort for one device
lies 1 s, twice as long each time, 60 s at most, forgotten after 60 s of peace: so neither a node
that can't be made nor two agents that replace each other's node keep PipeWire busy. After a loss of
PipeWire everything is new, and nothing is remembered.

Before PipeWire is asked for a node, the card is asked whether it can be opened: PipeWire itself says
why not in its log only. What is in the way is in the graph, for people to read.

When the last claim leaves a device, its node is made anew at once: what a workload left on it (a
volume, a parameter) goes with the node.
"""

import asyncio
import errno
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import structlog

from liken_audio.controllers.ports import AudioWriter, PcmProbe
from liken_audio.graph.device_graph import DeviceGraph
from liken_audio.graph.endpoints import DEVICE_PROPERTY, endpoints
from liken_audio.graph.model import (
    ClaimHold,
    DeviceName,
    GraphView,
    NodeSerial,
    ObstaclesSnapshot,
    Source,
)
from liken_audio.graph.nodes import CreateNode, DestroyNode, plan_nodes

log = structlog.get_logger()

APPEAR_SECONDS = 5.0
"""How long a node may take to show, or to go, after the write."""
RENEW_SECONDS = 3.0
"""How long `renewed` waits."""
FIRST_DELAY = 1.0
MAX_DELAY = 60.0
_SLACK = 0.001
"""Seconds by which a timer may fire early; what is due within them is due."""

_Key = tuple[DeviceName, type[CreateNode] | type[DestroyNode]]
_Changes = Sequence[CreateNode | DestroyNode]


@dataclass(slots=True)
class _Attempts:
    """Writes of one sort for one device."""

    count: int = 0
    last: float = 0.0
    is_awaited: bool = False
    """Whether what was written last doesn't show yet."""
    failure: str = ""

    @property
    def next(self) -> float:
        """When the next write may be made."""
        if self.count == 0:
            return 0.0
        delay = min(MAX_DELAY, FIRST_DELAY * 2.0 ** min(self.count - 1, 30))
        return self.last + (max(delay, APPEAR_SECONDS) if self.is_awaited else delay)


class NodeKeeper:
    """Makes and removes nodes; the endpoints of `node_name` decide which."""

    def __init__(
        self,
        graph: DeviceGraph,
        node_name: str,
        writer: AudioWriter,
        probe: PcmProbe | None = None,
    ) -> None:
        self._graph = graph
        self._node_name = node_name
        self._writer = writer
        self._probe = probe
        self._holds: tuple[ClaimHold, ...] = ()
        self._holders: Mapping[DeviceName, frozenset[str]] = {}
        self._stale: set[NodeSerial] = set()
        self._wake = asyncio.Event()
        self._changed = asyncio.Event()
        self._attempts: dict[_Key, _Attempts] = {}
        self.writes = 0
        """Nodes that were asked for, and nodes that were removed."""
        self.errors = 0
        """Writes that failed, and those whose effect didn't show."""
        graph.subscribe(self._on_change)

    @property
    def failures(self) -> Mapping[DeviceName, str]:
        """Why a device has no right node, in words for a person; only of devices tried in vain."""
        return {name: each.failure for (name, _), each in self._attempts.items() if each.failure}

    async def run(self) -> None:
        """Follow the graph for ever; ends only by being cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            self._wake.clear()
            due, next_look = self._look(loop.time() + _SLACK)
            if due:
                async with asyncio.TaskGroup() as tasks:
                    for key, changes in due.items():
                        tasks.create_task(self._carry_out(key, changes))
                continue
            try:
                async with asyncio.timeout_at(next_look):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def renewed(self, names: Collection[DeviceName]) -> None:
        """Return when no node of the devices is left whose last claim the graph saw go."""
        async with asyncio.timeout(RENEW_SECONDS):
            while self._is_any_stale(names):
                await self._changed.wait()

    def _is_any_stale(self, names: Collection[DeviceName]) -> bool:
        return any(
            node.serial in self._stale and node.properties.get(DEVICE_PROPERTY) in names
            for node in self._graph.view().nodes
        )

    def _on_change(self) -> None:
        view = self._graph.view()
        if Source.PIPEWIRE in view.lost:
            self._attempts.clear()
            self._stale.clear()
        if view.holds is not self._holds:
            self._take_holds(view)
        self._wake.set()
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _take_holds(self, view: GraphView) -> None:
        """Take note of who holds what; the node of a device that nobody holds any more is stale."""
        before, self._holds, self._holders = self._holders, view.holds, _holders(view.holds)
        left = {
            name for name, uids in before.items() if not uids & self._holders.get(name, frozenset())
        }
        for node in view.nodes:
            name = DeviceName(node.properties.get(DEVICE_PROPERTY, ""))
            if name in left:
                self._stale.add(node.serial)
                # Not one more try, but a change that was asked for: nothing of before counts.
                self._attempts.pop((name, DestroyNode), None)
                self._attempts.pop((name, CreateNode), None)

    def _look(self, now: float) -> tuple[Mapping[_Key, _Changes], float | None]:
        """Return what is to be written now, and when to look again at the latest."""
        view = self._graph.view()
        self._stale &= {node.serial for node in view.nodes}
        plan = _by_key(plan_nodes(view, endpoints(view, self._node_name), self._stale))
        for key, attempts in list(self._attempts.items()):
            if key not in plan:
                attempts.is_awaited, attempts.failure = False, ""
                if now - attempts.last > MAX_DELAY:
                    del self._attempts[key]
            elif attempts.is_awaited and now >= attempts.last + APPEAR_SECONDS:
                attempts.is_awaited = False
                self._fail(key, attempts, _unanswered(key))
        due = {}
        looks = []
        for key, changes in plan.items():
            attempts = self._attempts.setdefault(key, _Attempts())
            if attempts.next <= now:
                due[key] = changes
            else:
                looks.append(attempts.next)
                if attempts.is_awaited:
                    looks.append(attempts.last + APPEAR_SECONDS)
        self._graph.replace(Source.NODES, ObstaclesSnapshot(tuple(sorted(self.failures.items()))))
        return due, min(looks, default=None)

    async def _carry_out(self, key: _Key, changes: _Changes) -> None:
        attempts = self._attempts.setdefault(key, _Attempts())
        attempts.count += 1
        attempts.is_awaited = True
        try:
            for change in changes:
                await self._write(change)
                self.writes += 1
        except OSError as error:
            attempts.is_awaited = False
            self._fail(key, attempts, error.strerror or str(error))
        finally:
            attempts.last = asyncio.get_running_loop().time()

    async def _write(self, change: CreateNode | DestroyNode) -> None:
        if isinstance(change, CreateNode):
            obstacle = await self._probe.obstacle(change.recipe) if self._probe else ""
            if obstacle:
                raise OSError(errno.EBUSY, obstacle)
            await self._writer.create_node(change.name, change.recipe, change.properties)
            log.info("node asked for", device=change.name)
        else:
            await self._writer.destroy_node(change.node)
            log.info("node removed", device=change.name, node=change.node.id, reason=change.reason)

    def _fail(self, key: _Key, attempts: _Attempts, failure: str) -> None:
        self.errors += 1
        if attempts.failure != failure:
            attempts.failure = failure
            log.warning("a device has no right node", device=key[0], reason=failure)


def _by_key(plan: _Changes) -> Mapping[_Key, _Changes]:
    changes: dict[_Key, list[CreateNode | DestroyNode]] = {}
    for change in plan:
        changes.setdefault((change.name, type(change)), []).append(change)
    return changes


def _holders(holds: Sequence[ClaimHold]) -> Mapping[DeviceName, frozenset[str]]:
    """UIDs of the claims by device; admin access counts for nothing."""
    found: dict[DeviceName, set[str]] = {}
    for hold in holds:
        for name in () if hold.is_admin else hold.devices:
            found.setdefault(name, set()).add(hold.uid)
    return {name: frozenset(uids) for name, uids in found.items()}


def _unanswered(key: _Key) -> str:
    verb = "made no node" if key[1] is CreateNode else "kept the node"
    return f"PipeWire {verb} for {APPEAR_SECONDS:.0f} s after it was asked; its log may say why"
