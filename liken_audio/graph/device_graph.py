"""DeviceGraph: the one mutable object, where sources put snapshots and loops read views.

A source replaces its whole snapshot or says that it is lost; subscribers are woken without a
payload and read everything. One event loop runs all of it, so a view is never half-replaced and
no lock is needed. A snapshot equal to the last one wakes nobody.
"""

from collections.abc import Callable, Iterable

from liken_audio.graph.model import (
    Card,
    CardsSnapshot,
    ClaimsSnapshot,
    GraphView,
    ObstaclesSnapshot,
    PipeWireSnapshot,
    Snapshot,
    Source,
    SwitchesSnapshot,
)

_CARD_SOURCES = (Source.ALSA, Source.VIRTUAL, Source.BLUEZ)


class DeviceGraph:
    """The current state of the node's sound, by source.

    `sources` are those that will speak; until each has, it counts as lost and awaited.
    """

    def __init__(self, sources: Iterable[Source]) -> None:
        self._snapshots: dict[Source, Snapshot] = {}
        self._lost: set[Source] = set(sources)
        self._awaited: set[Source] = set(self._lost)
        self._revision = 0
        self._view: GraphView | None = None
        self._subscribers: list[Callable[[], None]] = []
        self.replacements = 0
        """How many snapshots were put in, changed or not."""

    @property
    def revision(self) -> int:
        """Rises with each change that a view shows."""
        return self._revision

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Have `callback` called after each change; it must not block and should only wake."""
        self._subscribers.append(callback)

    def replace(self, source: Source, snapshot: Snapshot) -> None:
        """Put in all that `source` knows now; ends its being lost."""
        self.replacements += 1
        is_same = self._snapshots.get(source) == snapshot
        if is_same and source not in self._lost:
            return
        self._snapshots[source] = snapshot
        self._lost.discard(source)
        self._awaited.discard(source)
        self._changed()

    def lose(self, source: Source) -> None:
        """Say that `source` isn't connected: cards stay as last seen, nodes are gone."""
        had_nodes = source is Source.PIPEWIRE and source in self._snapshots
        if source in self._lost and not had_nodes:
            return
        self._lost.add(source)
        if source is Source.PIPEWIRE:
            self._snapshots.pop(source, None)
        self._changed()

    def view(self) -> GraphView:
        """Everything known now; the same object until the next change."""
        if self._view is None:
            self._view = self._build_view()
        return self._view

    def _changed(self) -> None:
        self._revision += 1
        self._view = None
        for callback in self._subscribers:
            callback()

    def _build_view(self) -> GraphView:
        cards: list[Card] = []
        for source in _CARD_SOURCES:
            snapshot = self._snapshots.get(source)
            if isinstance(snapshot, CardsSnapshot):
                cards.extend(snapshot.cards)
        pipewire = self._snapshots.get(Source.PIPEWIRE)
        claims = self._snapshots.get(Source.CLAIMS)
        nodes = self._snapshots.get(Source.NODES)
        speakers = self._snapshots.get(Source.SPEAKERS)
        return GraphView(
            revision=self._revision,
            cards=tuple(cards),
            nodes=pipewire.nodes if isinstance(pipewire, PipeWireSnapshot) else (),
            bluetooth=pipewire.bluetooth if isinstance(pipewire, PipeWireSnapshot) else (),
            holds=claims.holds if isinstance(claims, ClaimsSnapshot) else (),
            obstacles=nodes.reasons if isinstance(nodes, ObstaclesSnapshot) else (),
            switching=speakers.addresses if isinstance(speakers, SwitchesSnapshot) else (),
            lost=frozenset(self._lost),
            awaited=frozenset(self._awaited),
        )
