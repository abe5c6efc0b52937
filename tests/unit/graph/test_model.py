"""Records: a holder of one holds the truth of one moment."""

import dataclasses
import inspect

import pytest

from liken_audio.graph import model
from liken_audio.graph.model import Card, Connection, Direction, Fault, NodeRecipe, Pcm
from tests.builders import card, endpoint, node

RECORDS = [
    record
    for _, record in inspect.getmembers(model, inspect.isclass)
    if dataclasses.is_dataclass(record)
]


@pytest.mark.parametrize("record", RECORDS)
def test_no_record_can_be_changed_or_grow_a_field(record: type) -> None:
    assert record.__dataclass_params__.frozen
    assert "__slots__" in vars(record)


@pytest.mark.parametrize("made", [card(), node("a"), endpoint()])
def test_a_record_refuses_a_new_value(made: object) -> None:
    field = dataclasses.fields(made)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(made, field, None)


def test_a_pcm_plays_two_channels_at_48_khz_unless_it_says_otherwise() -> None:
    recipe = NodeRecipe(factory="support.null-audio-sink")
    pcm = Pcm(device=0, id="X", direction=Direction.PLAYBACK, recipe=recipe)
    assert (pcm.channels, pcm.rate_hz, pcm.eld) == (2, 48_000, None)


def test_a_card_is_present_unless_it_says_otherwise() -> None:
    assert Card(number=model.CardNumber(0), id="X", bus="pci", path="0000:00:1f.3").is_present


def test_the_connections_are_those_of_the_attribute() -> None:
    assert {connection.value for connection in Connection} == {
        *("analog", "hdmi", "displayport", "usb", "bluetooth", "spdif")
    }


def test_faults_go_from_the_outermost_reason_inward() -> None:
    assert list(Fault) == [Fault.UNPLUGGED, Fault.NO_MONITOR, Fault.GRAPH_LOST, Fault.NO_NODE]
