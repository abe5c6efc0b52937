"""Sink and Source as the API server stores them: spec in, status out.

`decode_spec` takes whatever the server let through, also what an older or newer CRD allowed: a
field that can't be used becomes a `RejectedField`, never an exception, and the others count.
`encode_status` gives the whole status that the agent owns; an absent fact is an absent field, so
that a server-side apply removes it. Schema: manifests/crds.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

from liken_audio.api import SINKS, SOURCES, Json, Resource
from liken_audio.graph.eld import monitor_id
from liken_audio.graph.model import ClaimHold, Direction, Eld, Endpoint, Percent
from liken_audio.resources.conditions import Reason

_T = TypeVar("_T")

KINDS = {Direction.PLAYBACK: SINKS, Direction.CAPTURE: SOURCES}
"""The kind of an endpoint, by its direction."""

_MAX_CLAIMS_NAMED = 2
_MAX_LABEL = 63
_HASH_DIGITS = 10


class Sharing(StrEnum):
    """How many claims a device takes at once."""

    EXCLUSIVE = "Exclusive"
    SHARED = "Shared"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """What is declared; None (or no entry) means that it isn't enforced."""

    volume: Percent | None = None
    max_volume: Percent | None = None
    is_muted: bool | None = None
    controls: Mapping[str, str] = field(default_factory=dict)
    codec: str | None = None
    sharing: Sharing = Sharing.EXCLUSIVE
    is_connect_wanted: bool | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing is declared at all."""
        return self == Spec()


@dataclass(frozen=True, slots=True)
class RejectedField:
    """A declared field that can't hold, and what would."""

    field: str
    reason: Reason
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What the hardware has, as status reports it."""

    volume: Percent | None = None
    is_muted: bool | None = None
    controls: Mapping[str, str] = field(default_factory=dict)
    capabilities: Mapping[str, Json] = field(default_factory=dict)
    omitted_controls: int = 0


def kind_of(endpoint: Endpoint) -> Resource:
    """The resource that shows this endpoint."""
    return KINDS[endpoint.direction]


def decode_spec(body: Json) -> tuple[Spec, tuple[RejectedField, ...]]:
    """The spec of a stored object and the fields of it that can't be used."""
    raw = body.get("spec") or {}
    if not isinstance(raw, Mapping):
        return Spec(), (_rejected("spec", "it must be an object"),)
    reader = _Reader(raw)
    spec = Spec(
        volume=reader.read("volume", _percent),
        max_volume=reader.read("maxVolume", _percent),
        is_muted=reader.read("mute", _boolean),
        controls=_controls(reader),
        codec=reader.read("codec", _text),
        sharing=reader.read("sharing", _sharing) or Sharing.EXCLUSIVE,
        is_connect_wanted=reader.read("connect", _boolean),
    )
    return spec, tuple(reader.rejected) + _unknown(raw)


def has_spec(body: Json) -> bool:
    """Whether somebody declared anything, also what we can't use."""
    return bool(body.get("spec"))


def reported_volume(body: Json) -> Percent | None:
    """The volume that a stored status shows, None when it shows none that makes sense."""
    status = body.get("status")
    observed = status.get("observed") if isinstance(status, Mapping) else None
    volume = observed.get("volume") if isinstance(observed, Mapping) else None
    return Percent(volume) if isinstance(volume, int) and volume >= 0 else None


def node_label(node_name: str) -> str:
    """Value of the node label: the node's name, cut and told apart by a hash when over 63."""
    if len(node_name) <= _MAX_LABEL:
        return node_name
    digest = hashlib.sha256(node_name.encode()).hexdigest()[:_HASH_DIGITS]
    return f"{node_name[: _MAX_LABEL - _HASH_DIGITS - 1]}-{digest}"


def encode_status(
    endpoint: Endpoint,
    node_name: str,
    observed: Observed,
    holds: Sequence[ClaimHold],
    conditions: Sequence[Json],
) -> Json:
    """The status of an endpoint's object; `conditions` are stamped already."""
    status = _place(endpoint, node_name) | _monitor(endpoint.monitor) | _bluetooth(endpoint)
    status |= _stream(endpoint)
    status |= {"capabilities": dict(observed.capabilities)} if observed.capabilities else {}
    status |= {"omittedControls": observed.omitted_controls} if observed.omitted_controls else {}
    shown = _observed(observed)
    if endpoint.bluetooth is not None and endpoint.bluetooth.codec:
        shown["codec"] = endpoint.bluetooth.codec
    status |= {"observed": shown} if shown else {}
    status |= _claims(holds)
    return status | {"conditions": list(conditions)}


def encode_gone_status(stored: Json, conditions: Sequence[Json]) -> Json:
    """The status of an object whose device is gone for good: where it was, and that it is gone."""
    kept = {"node", "location", "connectionType"}
    status = {key: value for key, value in stored.items() if key in kept}
    return status | {"conditions": list(conditions)}


class _Reader:
    """Reads fields one by one and remembers those that can't be used."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self._raw = raw
        self.rejected: list[RejectedField] = []

    def read(self, name: str, check: Callable[[Any], _T]) -> _T | None:
        """The checked field; None when it is absent or refused. `check` raises ValueError."""
        value = self._raw.get(name)
        if value is None:
            return None
        try:
            return check(value)
        except ValueError as error:
            self.rejected.append(_rejected(name, str(error)))
            return None


def _rejected(name: str, message: str) -> RejectedField:
    return RejectedField(name, Reason.INVALID_VALUE, f"{name}: {message}")


def _percent(value: Any) -> Percent:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= 100:
        raise ValueError(f"{value!r} is not a whole number from 0 to 100")
    return Percent(value)


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is neither true nor false")  # noqa: TRY004 - one error type for all checks
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{value!r} is not text")
    return value


def _sharing(value: Any) -> Sharing:
    if value not in tuple(Sharing):
        raise ValueError(f"{value!r} is neither Exclusive nor Shared")
    return Sharing(value)


def _controls(reader: _Reader) -> dict[str, str]:
    raw = reader.read("controls", _mapping) or {}
    controls = {}
    for key, value in raw.items():
        if isinstance(value, str) and value:
            controls[str(key)] = value
        else:
            reader.rejected.append(
                _rejected(f'controls["{key}"]', f'{value!r} must be text in quotes, like "{value}"')
            )
    return controls


def _mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError("it must be an object of control names and values")  # noqa: TRY004 - one error type for all checks
    return value


_FIELDS = ("volume", "maxVolume", "mute", "controls", "codec", "sharing", "connect")


def _unknown(raw: Mapping[str, Any]) -> tuple[RejectedField, ...]:
    known = ", ".join(_FIELDS)
    return tuple(
        RejectedField(
            name,
            Reason.UNKNOWN_FIELD,
            f"{name}: this agent doesn't know the field; it knows {known}",
        )
        for name in raw
        if name not in _FIELDS
    )


def _place(endpoint: Endpoint, node_name: str) -> Json:
    card = endpoint.card
    facts = {"id": card.id, "driver": card.driver, "name": card.name}
    place = {
        "node": node_name,
        "location": f"{card.bus} {card.path}".strip(),
        "connectionType": str(endpoint.connection),
    }
    if card.speaker is not None:
        return place
    return place | {
        "card": {"number": int(card.number)} | {key: text for key, text in facts.items() if text},
        "pcm": {"device": endpoint.pcm.device}
        | ({"id": endpoint.pcm.id} if endpoint.pcm.id else {}),
    }


def _monitor(monitor: Eld | None) -> Json:
    if monitor is None:
        return {}
    facts = {
        "display": monitor_id(monitor),
        "manufacturer": monitor.manufacturer,
        "product": monitor.product,
        "name": monitor.name,
    }
    return {"monitor": {key: text for key, text in facts.items() if text}}


def _bluetooth(endpoint: Endpoint) -> Json:
    speaker, card = endpoint.card.speaker, endpoint.bluetooth
    if speaker is None:
        return {}
    facts: Json = {"address": speaker.address, "name": speaker.name}
    facts |= {"battery": speaker.battery} if speaker.battery is not None else {}
    facts |= {"codec": card.codec} if card and card.codec else {}
    facts |= {"codecs": [name for name, _ in card.codecs]} if card and card.codecs else {}
    return {"bluetooth": facts}


def _stream(endpoint: Endpoint) -> Json:
    node = endpoint.node
    if node is None:
        return {}
    form: Json = {
        "rate": node.rate_hz or endpoint.pcm.rate_hz,
        "channels": node.channels or endpoint.pcm.channels,
    }
    if node.positions:
        form["positions"] = list(node.positions)
    return {"nodeName": node.name, "format": form}


def _observed(observed: Observed) -> Json:
    facts: Json = {"volume": observed.volume, "mute": observed.is_muted}
    facts = {key: value for key, value in facts.items() if value is not None}
    return facts | ({"controls": dict(observed.controls)} if observed.controls else {})


def _claims(holds: Sequence[ClaimHold]) -> Json:
    if not holds:
        return {}
    claims = []
    for hold in holds:
        claim: Json = {"namespace": hold.namespace, "name": hold.name, "uid": hold.uid}
        claims.append(claim | ({"pods": list(hold.pods)} if hold.pods else {}))
    names = [f"{hold.namespace}/{hold.name}" for hold in holds]
    shown = ", ".join(names[:_MAX_CLAIMS_NAMED])
    more = len(names) - _MAX_CLAIMS_NAMED
    return {"claims": claims, "claimedBy": f"{shown} and {more} more" if more > 0 else shown}
