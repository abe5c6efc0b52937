"""The codec of a Bluetooth sink: what is wanted, offered and to be switched.

A switch makes the speaker's node anew and interrupts whatever plays, so it is made once for a
connection: asking for the codec in use writes nothing, one that isn't offered is refused before
anything is touched, and one that doesn't come up is given up until the speaker connects again or
another codec is declared. What a claim asks for goes before what the Sink declares.
"""

from dataclasses import replace

from liken_audio.graph.model import BluetoothCard
from liken_audio.resources.conditions import Reason
from liken_audio.resources.enforcement import Step, Verdict
from liken_audio.resources.situation import CodecTry, Judged, Memory, Situation, SwitchCodec
from liken_audio.resources.v1alpha1 import RejectedField

AGAIN_SECONDS = 30.0
"""After how long a switch that has neither failed nor shown is made again."""
_FIELD = "codec"


def judge(situation: Situation, memory: Memory, now: float) -> Judged:
    """Judge the codec that is wanted; without a connected speaker there is nothing to judge."""
    card = situation.endpoint.bluetooth
    wanted = situation.claim_codec or situation.spec.codec
    if wanted is None or card is None or situation.endpoint.node is None:
        return Judged(memory=memory)
    if wanted == card.codec:
        return Judged(steps={_FIELD: Step(verdict=Verdict.HOLDS, write=None)}, memory=memory)
    offered = [name for name, _ in card.codecs]
    if wanted not in offered:
        return Judged(problems=(_refused(wanted, card, offered),), memory=memory)
    tried = memory.codec
    if tried is not None and (tried.serial, tried.codec) == (card.serial, wanted):
        if tried.failure:
            message = f"codec: {wanted} did not come up ({tried.failure}); it plays {card.codec}"
            problem = RejectedField(_FIELD, Reason.NOT_CONFIRMED, message)
            return Judged(problems=(problem,), memory=memory)
        again_at = tried.at + AGAIN_SECONDS
        if now < again_at:
            step = Step(verdict=Verdict.PENDING, write=None, recheck_at=again_at)
            return Judged(steps={_FIELD: step}, memory=memory)
    asked = CodecTry(serial=card.serial, codec=wanted, at=now)
    return Judged(
        steps={_FIELD: Step(verdict=Verdict.PENDING, write=None, recheck_at=now + AGAIN_SECONDS)},
        changes=(SwitchCodec(_FIELD, card.address, wanted),),
        memory=replace(memory, codec=asked),
    )


def _refused(wanted: str, card: BluetoothCard, offered: list[str]) -> RejectedField:
    listed = ", ".join(dict.fromkeys(filter(None, (card.codec, *offered)))) or "none"
    message = f"codec: {wanted!r} is not offered now; offered are {listed}"
    return RejectedField(_FIELD, Reason.INVALID_VALUE, message)
