"""Connected and Ready of a Bluetooth endpoint: which of the ways to be silent it is.

A speaker that is connected can be silent all the same, and each reason has another next step. From
the outside in: BlueZ or the adapter is away; the speaker is; PipeWire has no device for it, because
WirePlumber's media endpoints are lost, or for another reason; the device's profile is off, or only
the headset's is left; its node is missing; its codec carries nothing.
"""

from collections.abc import Mapping

from liken_audio.graph.endpoints import HEADSET, MUSIC, is_switched_off
from liken_audio.graph.model import BluetoothCard, Direction, Endpoint, Fault, Link, Speaker
from liken_audio.resources.conditions import Condition, ConditionStatus, ConditionType, Reason

_LINKS: Mapping[Link, tuple[Reason, str]] = {
    Link.NO_SERVICE: (
        Reason.BLUETOOTH_LOST,
        "BlueZ doesn't answer on the media bus; look at bluetoothd on the node (liken-audio doctor)",
    ),
    Link.NO_ADAPTER: (
        Reason.NO_ADAPTER,
        "the Bluetooth adapter that it is paired with isn't there; plug it in again",
    ),
    Link.ADAPTER_OFF: (
        Reason.ADAPTER_OFF,
        "the Bluetooth adapter is off; switch it on (rfkill unblock bluetooth; bluetoothctl power on)",
    ),
    Link.UNPAIRED: (
        Reason.UNPAIRED,
        "its pairing was removed; pair it again, or its device leaves in a few seconds",
    ),
    Link.AWAY: (
        Reason.DISCONNECTED,
        "it isn't connected; switch it on nearby, or set spec.connect to true to have it called",
    ),
}

_BLOCKED = "BlueZ has blocked it, so it can't connect; bluetoothctl unblock {}"


def connected(endpoint: Endpoint, speaker: Speaker) -> Condition:
    """Whether the speaker is connected by radio."""
    if speaker.link is not Link.CONNECTED:
        reason, message = _link(speaker)
        return Condition(ConditionType.CONNECTED, ConditionStatus.FALSE, reason, message)
    codec = _codec(endpoint.bluetooth)
    message = f"connected through adapter {speaker.adapter}{f', codec {codec}' if codec else ''}"
    return Condition(ConditionType.CONNECTED, ConditionStatus.TRUE, Reason.CONNECTED, message)


def silence(endpoint: Endpoint, speaker: Speaker, fault: Fault | None) -> tuple[Reason, str] | None:
    """Return why nothing can be heard (or recorded) and what to do; None if it can be.

    `fault` is the one that counts; None too while a node is away too briefly to count.
    """
    if speaker.link is not Link.CONNECTED:
        return _link(speaker) if fault is not None else None
    if fault is Fault.GRAPH_LOST:
        return None
    if fault is not None:
        return _missing(endpoint, speaker)
    node = endpoint.node
    if endpoint.direction is Direction.PLAYBACK and node and node.state == "running":
        is_a2dp = node.properties.get("api.bluez5.profile", "").startswith(MUSIC)
        if is_a2dp and not speaker.transport:
            return _dead(endpoint, "no transport carries its sound")
    return None


def remark(endpoint: Endpoint) -> tuple[Reason, str] | None:
    """Return what a listener should know of an endpoint that can be heard; None: nothing."""
    card = endpoint.bluetooth
    if card is None:
        return None
    if is_switched_off(endpoint):
        return Reason.READY, (
            "a claim switches the microphone on when nobody plays to the speaker: it can't do both"
            " in full quality"
        )
    if endpoint.direction is Direction.PLAYBACK and card.profile.startswith(HEADSET):
        if _has_a2dp(card):
            return (
                Reason.READY,
                "a stream can be played, in telephone quality: its microphone is on",
            )
        return Reason.HEADSET_ONLY, (
            "a stream can be played in telephone quality only: it offers no music profile (A2DP)"
            " now; switch it off and on again"
        )
    return None


def _link(speaker: Speaker) -> tuple[Reason, str]:
    reason, message = _LINKS[speaker.link]
    if speaker.link is Link.AWAY and speaker.is_blocked:
        message = _BLOCKED.format(speaker.address)
    return reason, message


def _missing(endpoint: Endpoint, speaker: Speaker) -> tuple[Reason, str]:
    card = endpoint.bluetooth
    if card is None:
        return _without_device(speaker)
    if endpoint.node is not None:
        return _dead(endpoint, endpoint.node.error or "its node is in error")
    if endpoint.direction is Direction.CAPTURE:
        return Reason.NO_NODE, "it is connected without its headset profile: no microphone now"
    if not _has_a2dp(card):
        return Reason.HEADSET_ONLY, (
            "it offers its headset profile only, no music (A2DP); the agent has music connected,"
            " three times at most; else switch it off and on again"
        )
    if card.profile in {"", "off"}:
        return Reason.PROFILE_OFF, "its profile is off; the agent switches it on"
    return Reason.NO_NODE, (
        f"its profile {card.profile} is on, but PipeWire has no node for it; disconnect and connect"
        " it again (bluetoothctl)"
    )


def _without_device(speaker: Speaker) -> tuple[Reason, str]:
    if not speaker.has_endpoints:
        return Reason.ENDPOINTS_LOST, (
            "WirePlumber's media endpoints are lost, as after a restart of the bus; the agent has"
            " WirePlumber restarted, or restart the pod of the agent"
        )
    return Reason.NO_NODE, (
        "it is connected without sound: PipeWire has no device for it; the agent has sound connected,"
        " three times at most; else disconnect and connect it again (bluetoothctl)"
    )


def _dead(endpoint: Endpoint, why: str) -> tuple[Reason, str]:
    codec = _codec(endpoint.bluetooth) or "the codec"
    return Reason.CODEC_DEAD, (
        f"{codec} carries no sound: {why}; choose another codec (spec.codec), or disconnect and"
        " connect it again"
    )


def _codec(card: BluetoothCard | None) -> str:
    return card.codec if card else ""


def _has_a2dp(card: BluetoothCard) -> bool:
    return any(each.is_available and each.name.startswith(MUSIC) for each in card.profiles)
