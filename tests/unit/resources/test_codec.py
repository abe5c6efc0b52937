"""A codec that is wanted: switched once, refused before anything is touched, given up when it fails."""

from typing import Any

import pytest

from liken_audio.graph.model import BluetoothCard, NodeSerial
from liken_audio.resources.codec import AGAIN_SECONDS, judge
from liken_audio.resources.conditions import Reason
from liken_audio.resources.enforcement import Verdict
from liken_audio.resources.reconcile import reconcile
from liken_audio.resources.situation import (
    Memory,
    Situation,
    SwitchCodec,
    write_failed,
)
from liken_audio.resources.v1alpha1 import Spec
from tests.builders import SPEAKER_ADDRESS, bluetooth_card, speaker_endpoint


def wanting(
    codec: str | None,
    card: BluetoothCard | None = None,
    *,
    by_claim: str | None = None,
    **more: Any,
) -> Situation:
    its = speaker_endpoint(bluetooth=card or bluetooth_card(), **more)
    return Situation(endpoint=its, fault=None, spec=Spec(codec=codec), claim_codec=by_claim)


def test_another_codec_is_switched_to_once() -> None:
    first = judge(wanting("aac"), Memory(), 5.0)
    assert first.changes == (SwitchCodec("codec", SPEAKER_ADDRESS, "aac"),)
    again = judge(wanting("aac"), first.memory, 6.0)
    assert again.changes == ()
    assert again.steps["codec"].verdict is Verdict.PENDING
    there = judge(wanting("aac", bluetooth_card(codec="aac")), again.memory, 7.0)
    assert (there.changes, there.steps["codec"].verdict) == ((), Verdict.HOLDS)


@pytest.mark.parametrize("wanted", ["sbc", None])
def test_the_codec_in_use_or_none_writes_nothing(wanted: str | None) -> None:
    judged = judge(wanting(wanted), Memory(), 0.0)
    assert (judged.changes, judged.problems) == ((), ())


def test_one_that_is_not_offered_is_refused_with_what_is() -> None:
    card = bluetooth_card(codec="aac", codecs=(("sbc", 1), ("sbc_xq", 2)))
    judged = judge(wanting("ldac", card), Memory(), 0.0)
    assert judged.changes == ()
    (problem,) = judged.problems
    assert problem.reason is Reason.INVALID_VALUE
    assert "offered are aac, sbc, sbc_xq" in problem.message


def test_what_a_claim_asks_for_goes_before_what_is_declared() -> None:
    judged = judge(wanting("sbc_xq", by_claim="aac"), Memory(), 0.0)
    assert judged.changes == (SwitchCodec("codec", SPEAKER_ADDRESS, "aac"),)
    held = judge(wanting("sbc_xq", bluetooth_card(codec="aac"), by_claim="aac"), Memory(), 0.0)
    assert held.changes == ()


def test_one_that_does_not_come_up_is_given_up_until_the_speaker_connects_again() -> None:
    first = judge(wanting("aac"), Memory(), 0.0)
    failed = write_failed(first.memory, "codec", "no node after 10 s; back to sbc")
    for now in (1.0, 9_999.0):
        judged = judge(wanting("aac"), failed, now)
        assert judged.changes == ()
        assert judged.problems[0].reason is Reason.NOT_CONFIRMED
        assert "back to sbc" in judged.problems[0].message
    anew = judge(wanting("aac", bluetooth_card(serial=NodeSerial(99))), failed, 2.0)
    assert len(anew.changes) == 1
    other = judge(wanting("sbc_xq"), failed, 2.0)
    assert len(other.changes) == 1


def test_a_switch_of_which_nothing_is_heard_is_made_again() -> None:
    first = judge(wanting("aac"), Memory(), 0.0)
    assert first.steps["codec"].recheck_at == AGAIN_SECONDS
    assert len(judge(wanting("aac"), first.memory, AGAIN_SECONDS).changes) == 1


def test_without_a_node_it_waits() -> None:
    assert judge(wanting("aac", node=None), Memory(), 0.0).changes == ()


def test_it_is_part_of_the_whole() -> None:
    outcome = reconcile(wanting("aac"), Memory(), 0.0)
    assert SwitchCodec("codec", SPEAKER_ADDRESS, "aac") in outcome.changes
    applied = outcome.conditions[2]
    assert (applied.status, applied.reason) == ("Unknown", Reason.UNCONFIRMED)
    assert "codec" in applied.message
    failed = write_failed(outcome.memory, "codec", "no node")
    applied = reconcile(wanting("aac"), failed, 1.0).conditions[2]
    assert (applied.status, applied.reason) == ("False", Reason.NOT_CONFIRMED)
