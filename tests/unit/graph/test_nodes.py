"""Which nodes are made and which are removed."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from liken_audio.graph.endpoints import DEVICE_PROPERTY, endpoints
from liken_audio.graph.model import (
    Card,
    CardNumber,
    Fault,
    Node,
    NodeId,
    NodeRecipe,
    NodeSerial,
    Source,
)
from liken_audio.graph.nodes import RECIPE_PROPERTY, CreateNode, DestroyNode, plan_nodes
from tests import builders
from tests.builders import (
    SPEAKER_NAME,
    card,
    endpoint,
    hdmi_pcm,
    jack,
    microphone_pcm,
    pcm,
    speaker_endpoint,
    view,
)

NAME = "kitchen-pci-0000-00-1f-3-alc257-analog"


def plan(*cards: Card, **changes: Any) -> Sequence[CreateNode | DestroyNode]:
    """The plan for a node `kitchen` with the given cards and view."""
    its_view = view(*cards, **changes)
    return plan_nodes(its_view, endpoints(its_view, "kitchen"))


def creation(*cards: Card) -> CreateNode:
    (change,) = plan(*cards)
    assert isinstance(change, CreateNode)
    return change


def made(created: CreateNode, serial: int = 40, **changes: Any) -> Node:
    """The node that PipeWire makes of a CreateNode."""
    properties = {**dict(created.recipe.properties), **created.properties}
    properties["node.name"] = created.name
    fields: dict[str, Any] = {
        "id": NodeId(serial),
        "serial": NodeSerial(serial),
        "media_class": properties["media.class"],
        "properties": properties,
    }
    return builders.node(created.name, **(fields | changes))


def test_an_endpoint_without_a_node_gets_one() -> None:
    created = creation(card())
    assert created.name == NAME
    assert created.recipe == builders.recipe()
    assert created.properties["object.linger"] == "true"
    assert created.properties[DEVICE_PROPERTY] == NAME
    assert created.properties["state.restore-props"] == "false"
    assert created.properties["priority.session"] == "1000"
    assert created.properties["node.description"] == "HDA Intel PCH, ALC257 Analog"


def test_a_source_comes_before_every_sink_s_monitor() -> None:
    sink, source = creation(card()), creation(card(microphone_pcm()))
    priorities = [each.properties["priority.session"] for each in (sink, source)]
    assert priorities == ["1000", "2000"]


def test_a_monitor_names_its_node() -> None:
    created = creation(card(hdmi_pcm()))
    assert created.properties["node.description"] == "HDA Intel PCH, LG ULTRAWIDE"


def test_a_node_that_is_right_is_left_alone() -> None:
    node = made(creation(card()))
    assert plan(card(), nodes=(node,)) == ()


def test_a_node_that_an_earlier_agent_left_is_adopted_whatever_its_state() -> None:
    for state in ("creating", "suspended", "idle", "running"):
        node = made(creation(card()), serial=7, state=state)
        assert plan(card(), nodes=(node,)) == ()


def test_what_the_recipe_says_is_not_said_again_and_what_it_lacks_is() -> None:
    recipe = NodeRecipe(factory="api.alsa.pcm.source", properties=(("api.alsa.path", "hw:0,0"),))
    created = creation(card(microphone_pcm(recipe=recipe, channels=1)))
    assert created.properties["media.class"] == "Audio/Source"
    assert created.properties["audio.channels"] == "1"
    assert created.properties["audio.position"] == "[ MONO ]"
    said = creation(card(microphone_pcm()))
    assert "media.class" not in said.properties
    assert said.recipe.properties[0] == ("media.class", "Audio/Source/Virtual")


@pytest.mark.parametrize(
    ("channels", "positions"),
    [
        (2, "[ FL FR ]"),
        (6, "[ FL FR RL RR FC LFE ]"),
        (8, "[ FL FR RL RR FC LFE SL SR ]"),
        (5, "[ AUX0 AUX1 AUX2 AUX3 AUX4 ]"),
    ],
)
def test_channels_have_the_kernels_positions(channels: int, positions: str) -> None:
    recipe = NodeRecipe(factory="api.alsa.pcm.sink")
    created = creation(card(pcm(recipe=recipe, channels=channels)))
    assert created.properties["audio.position"] == positions


def test_each_pcm_has_its_own_node() -> None:
    changes = plan(card(pcm(), microphone_pcm(), hdmi_pcm()))
    assert [type(change) for change in changes] == [CreateNode] * 3
    assert len({change.name for change in changes}) == 3


def test_an_output_without_a_monitor_gets_no_node() -> None:
    assert plan(card(hdmi_pcm(eld=builders.NO_ELD))) == ()
    assert plan(card(hdmi_pcm(), jacks=(jack("HDMI/DP,pcm=3 Jack", is_plugged=False),))) == ()


def test_a_node_stays_when_its_screen_goes_to_sleep() -> None:
    """U23: pods play on through the second for which a screen takes its monitor along."""
    node = made(creation(card(hdmi_pcm())))
    assert plan(card(hdmi_pcm(eld=builders.NO_ELD)), nodes=(node,)) == ()


def test_headphones_that_are_out_keep_their_node() -> None:
    out = card(jacks=(jack("Headphone Jack", is_plugged=False),))
    node = made(creation(card()))
    assert plan(out, nodes=(node,)) == ()
    assert plan_nodes(view(), [endpoint(node=None, fault=Fault.UNPLUGGED)])


def test_a_card_that_is_away_has_no_node() -> None:
    away = card(is_present=False)
    assert plan(away) == ()
    node = made(creation(card()))
    (change,) = plan(away, nodes=(node,))
    assert isinstance(change, DestroyNode)
    assert change.node == node
    assert change.reason == "its card is away"


def test_a_node_of_ours_goes_when_its_device_is_gone() -> None:
    node = made(creation(card()))
    (change,) = plan(nodes=(node,))
    assert change == DestroyNode(change.name, node, "its device is gone")
    assert change.name == NAME


def test_nothing_is_removed_for_want_of_a_device_while_cards_are_awaited() -> None:
    node = made(creation(card()))
    for source in (Source.VIRTUAL, Source.ALSA):
        awaited = frozenset({source})
        assert plan(nodes=(node,), awaited=awaited, lost=awaited) == ()
    lost = frozenset({Source.VIRTUAL})
    assert plan(nodes=(node,), lost=lost) != ()


def test_nodes_of_others_are_never_removed() -> None:
    stranger = builders.node("alsa_output.pci", properties={})
    assert plan(nodes=(stranger,)) == ()


def test_a_node_of_others_that_has_the_devices_name_serves() -> None:
    stranger = builders.node(NAME, properties={"node.name": NAME})
    assert plan(card(), nodes=(stranger,)) == ()


def test_another_recipe_removes_first_and_makes_once_it_is_gone() -> None:
    node = made(creation(card()))
    recipe = NodeRecipe(factory="support.null-audio-sink", properties=(("audio.rate", "96000"),))
    changed = card(pcm(recipe=recipe))
    (change,) = plan(changed, nodes=(node,))
    assert isinstance(change, DestroyNode)
    assert change.reason == "it was made by another recipe"
    assert creation(changed).recipe == recipe


def test_more_channels_are_another_recipe() -> None:
    recipe = NodeRecipe(factory="api.alsa.pcm.sink")
    node = made(creation(card(pcm(recipe=recipe))))
    (change,) = plan(card(pcm(recipe=recipe, channels=6)), nodes=(node,))
    assert isinstance(change, DestroyNode)


def test_the_order_of_a_recipes_properties_is_no_difference() -> None:
    recipe = builders.recipe()
    node = made(creation(card(pcm(recipe=recipe))))
    turned = replace(recipe, properties=recipe.properties[::-1])
    assert plan(card(pcm(recipe=turned)), nodes=(node,)) == ()


def test_the_word_for_a_recipe_is_never_taken_for_a_number() -> None:
    """pw-dump prints text like `12e5` as a number."""
    for rate in range(200):
        recipe = NodeRecipe(factory="f", properties=(("audio.rate", str(rate)),))
        word = creation(card(pcm(recipe=recipe))).properties[RECIPE_PROPERTY]
        with pytest.raises(ValueError, match="could not convert"):
            float(word)


def test_a_node_of_the_wrong_class_is_removed() -> None:
    node = made(creation(card()), media_class="Audio/Source")
    (change,) = plan(card(), nodes=(node,))
    assert isinstance(change, DestroyNode)
    assert change.reason == "it isn't what its device needs"


def test_a_node_in_error_is_replaced() -> None:
    node = made(creation(card()), state="error", error="Device or resource busy")
    (change,) = plan(card(), nodes=(node,))
    assert isinstance(change, DestroyNode)
    assert change.reason == "it is in error: Device or resource busy"


@pytest.mark.parametrize(
    ("first", "second", "kept"),
    [
        pytest.param("idle", "idle", 41, id="the younger of two"),
        pytest.param("running", "idle", 40, id="the one that runs"),
        pytest.param("running", "running", 41, id="the younger of two that run"),
        pytest.param("idle", "error", 40, id="the one that isn't in error"),
    ],
)
def test_of_two_nodes_the_one_that_the_endpoint_has_chosen_stays(
    first: str, second: str, kept: int
) -> None:
    created = creation(card())
    nodes = (made(created, 40, state=first), made(created, 41, state=second))
    its_view = view(card(), nodes=nodes)
    (chosen,) = endpoints(its_view, "kitchen")
    (change,) = plan_nodes(its_view, [chosen])
    assert chosen.node is not None
    assert chosen.node.serial == kept
    assert isinstance(change, DestroyNode)
    assert {change.node.serial, kept} == {40, 41}


def test_two_agents_that_see_the_same_remove_the_same() -> None:
    created = creation(card())
    nodes = tuple(made(created, serial) for serial in (40, 41, 42))
    assert plan(card(), nodes=nodes) == plan(card(), nodes=nodes[::-1])[::-1]


@pytest.mark.parametrize("source", ["lost", "awaited"])
def test_nothing_is_planned_while_pipewire_is_unknown(source: str) -> None:
    unknown = frozenset({Source.PIPEWIRE})
    assert plan(card(), **{source: unknown}) == ()


def test_a_renumbered_card_keeps_its_null_node() -> None:
    """U03."""
    node = made(creation(card()))
    assert plan(card(number=CardNumber(3)), nodes=(node,)) == ()


def test_removals_come_first() -> None:
    gone = made(creation(card(path="0000:00:1b.0")), 41)
    changes = plan(card(), nodes=(gone,))
    assert [type(change) for change in changes] == [DestroyNode, CreateNode]


def test_a_speakers_node_is_the_session_managers_to_make() -> None:
    missing = speaker_endpoint(node=None, fault=Fault.NO_NODE)
    assert plan_nodes(view(), [missing]) == ()


def test_a_node_of_ours_that_has_a_speakers_name_goes() -> None:
    ours = builders.node(SPEAKER_NAME)
    (change,) = plan_nodes(view(nodes=(ours,)), [speaker_endpoint()])
    assert isinstance(change, DestroyNode)
    assert "session manager" in change.reason


def alsa_card(number: int, *, is_form_known: bool, rate_hz: int = 48_000) -> Card:
    """A card whose PCM is played by its number of this boot."""
    path = ("api.alsa.path", f"hw:{number},0")
    properties = (path,) if rate_hz == 48_000 else (path, ("audio.rate", str(rate_hz)))
    return card(
        pcm(
            rate_hz=rate_hz,
            is_form_known=is_form_known,
            recipe=NodeRecipe(factory="api.alsa.pcm.sink", properties=properties),
        ),
        number=number,
    )


def test_a_node_stays_while_the_card_cannot_be_asked_for_its_form() -> None:
    node = made(creation(alsa_card(0, is_form_known=True, rate_hz=96_000)))
    assert plan(alsa_card(0, is_form_known=False), nodes=(node,)) == ()
    (change,) = plan(alsa_card(0, is_form_known=True), nodes=(node,))
    assert isinstance(change, DestroyNode)


def test_a_node_of_another_card_number_goes_whatever_is_known() -> None:
    node = made(creation(alsa_card(0, is_form_known=True)))
    (change,) = plan(alsa_card(2, is_form_known=False), nodes=(node,))
    assert isinstance(change, DestroyNode)
    assert change.reason == "it was made by another recipe"
