"""The graph: whole snapshots in, views out, and a wake only for what a view shows."""

import pytest

from liken_audio.graph.device_graph import DeviceGraph
from liken_audio.graph.model import (
    CardNumber,
    CardsSnapshot,
    ClaimHold,
    ClaimsSnapshot,
    DeviceName,
    PipeWireSnapshot,
    Source,
)
from tests.builders import card, node, usb_card

CARDS = CardsSnapshot((card(),))
NODES = PipeWireSnapshot((node("a"),))
HOLDS = ClaimsSnapshot(
    (ClaimHold(namespace="media", name="speaker", uid="1", devices=(DeviceName("a"),)),)
)


class Wakes:
    """Counts wakes and checks that each brings a new revision."""

    def __init__(self, graph: DeviceGraph) -> None:
        self.graph = graph
        self.revisions: list[int] = []
        graph.subscribe(self)

    def __call__(self) -> None:
        self.revisions.append(self.graph.revision)
        assert self.graph.view().revision == self.graph.revision


@pytest.fixture
def graph() -> DeviceGraph:
    return DeviceGraph([Source.VIRTUAL, Source.PIPEWIRE, Source.CLAIMS])


def test_until_a_source_speaks_it_is_lost_and_awaited(graph: DeviceGraph) -> None:
    everything = {Source.VIRTUAL, Source.PIPEWIRE, Source.CLAIMS}
    assert (graph.view().lost, graph.view().awaited) == (everything, everything)
    graph.replace(Source.PIPEWIRE, PipeWireSnapshot())
    assert Source.PIPEWIRE not in graph.view().lost | graph.view().awaited


def test_a_view_joins_what_all_sources_said_last(graph: DeviceGraph) -> None:
    graph.replace(Source.ALSA, CardsSnapshot((usb_card(),)))
    graph.replace(Source.VIRTUAL, CARDS)
    graph.replace(Source.PIPEWIRE, NODES)
    graph.replace(Source.CLAIMS, HOLDS)
    view = graph.view()
    assert view.cards == (usb_card(), card())
    assert (view.nodes, view.holds) == (NODES.nodes, HOLDS.holds)
    assert not view.lost


def test_each_change_wakes_once_with_a_higher_revision(graph: DeviceGraph) -> None:
    wakes = Wakes(graph)
    graph.replace(Source.VIRTUAL, CARDS)
    graph.replace(Source.PIPEWIRE, NODES)
    graph.lose(Source.PIPEWIRE)
    assert wakes.revisions == [1, 2, 3]


def test_an_equal_snapshot_wakes_nobody(graph: DeviceGraph) -> None:
    graph.replace(Source.VIRTUAL, CARDS)
    before, wakes = graph.view(), Wakes(graph)
    graph.replace(Source.VIRTUAL, CardsSnapshot((card(),)))
    assert wakes.revisions == []
    assert graph.view() is before
    assert graph.replacements == 2


def test_the_same_snapshot_after_a_loss_ends_the_loss(graph: DeviceGraph) -> None:
    graph.replace(Source.PIPEWIRE, NODES)
    graph.lose(Source.PIPEWIRE)
    wakes = Wakes(graph)
    graph.replace(Source.PIPEWIRE, NODES)
    assert len(wakes.revisions) == 1
    assert Source.PIPEWIRE not in graph.view().lost


def test_a_lost_pipewire_has_no_nodes(graph: DeviceGraph) -> None:
    """U16: end of the stream means that the graph is lost."""
    graph.replace(Source.PIPEWIRE, NODES)
    graph.lose(Source.PIPEWIRE)
    assert (graph.view().nodes, graph.view().lost) == ((), {*graph.view().awaited, Source.PIPEWIRE})


def test_lost_cards_stay_as_they_were_last(graph: DeviceGraph) -> None:
    graph.replace(Source.VIRTUAL, CARDS)
    graph.lose(Source.VIRTUAL)
    assert graph.view().cards == CARDS.cards
    assert Source.VIRTUAL in graph.view().lost
    assert Source.VIRTUAL not in graph.view().awaited


def test_losing_twice_wakes_once(graph: DeviceGraph) -> None:
    graph.replace(Source.PIPEWIRE, NODES)
    wakes = Wakes(graph)
    graph.lose(Source.PIPEWIRE)
    graph.lose(Source.PIPEWIRE)
    assert len(wakes.revisions) == 1


def test_losing_what_never_spoke_wakes_nobody(graph: DeviceGraph) -> None:
    wakes = Wakes(graph)
    graph.lose(Source.PIPEWIRE)
    assert wakes.revisions == []


def test_a_view_that_is_held_never_changes(graph: DeviceGraph) -> None:
    graph.replace(Source.VIRTUAL, CARDS)
    held = graph.view()
    graph.replace(Source.VIRTUAL, CardsSnapshot((card(number=CardNumber(3)),)))
    assert held.cards == CARDS.cards
    assert graph.view() is not held
    assert graph.view() is graph.view()
