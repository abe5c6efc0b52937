"""What a claim's socket reaches: its own devices, and those of its pod's other claims.

A pod with several claims has one `PIPEWIRE_REMOTE`, that of whichever claim's edits came last. So
each of its sockets reaches the devices of all its claims. Whoever may use a socket must have what it
reaches: the socket of a claim that one pod alone has reaches that pod's other claims, those it shares
with other pods too; the socket of a claim that several pods have reaches its own devices only.

Pure; decided anew from the records of a node, whatever the order in which its claims came and went.
"""

from collections.abc import Iterable, Sequence

from liken_audio.dra.claims import ClaimedDevice, ClaimRecord


def joined(record: ClaimRecord, records: Iterable[ClaimRecord]) -> tuple[ClaimedDevice, ...]:
    """Return the devices of other claims that the claim's socket reaches, in the order of `records`."""
    pod = record.consumers.only_pod
    if pod is None:
        return ()
    others = [
        other
        for other in records
        if other.ref.uid != record.ref.uid
        and other.boot_id == record.boot_id
        and pod in other.consumers.pods
    ]
    return tuple(device for other in others for device in other.devices)


def neighbours(record: ClaimRecord, records: Iterable[ClaimRecord]) -> Sequence[ClaimRecord]:
    """Return the other claims whose sockets reach this one's devices while it is prepared."""
    pods = record.consumers.pods
    return [
        other
        for other in records
        if other.ref.uid != record.ref.uid
        and other.boot_id == record.boot_id
        and other.consumers.only_pod in pods
    ]


def needs_watch(record: ClaimRecord, records: Iterable[ClaimRecord]) -> bool:
    """Whether a second pod that comes to have the claim would reach what isn't its own."""
    return not record.consumers.is_for_one and bool(joined(record, records))
