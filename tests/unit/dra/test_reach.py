"""What each of a pod's sockets reaches, and that nobody reaches what isn't theirs."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from liken_audio.dra.claims import ClaimRecord, ClaimState
from liken_audio.dra.consumers import Consumers, Pod, seen
from liken_audio.dra.reach import joined, needs_watch, neighbours
from tests.builders import claim_record, claim_ref, claimed_device

A, B, C = (Pod(name, f"uid-{name}") for name in "abc")


def claim(name: str, *pods: Pod, own: bool = False, **changes: object) -> ClaimRecord:
    """Return a claim of one device that bears its name; `own`: from a template."""
    consumers = Consumers(pods=pods, is_for_one=own, is_shared=len(pods) > 1)
    fields = {"ref": claim_ref(f"uid-{name}", name), "consumers": consumers}
    return claim_record(claimed_device(device=name), **(fields | changes))


def reached(record: ClaimRecord, records: Sequence[ClaimRecord]) -> set[str]:
    """Return all that the claim's socket reaches, its own device included."""
    return {str(each.device) for each in (*record.devices, *joined(record, records))}


def test_a_pod_s_claims_reach_each_other_in_every_order() -> None:
    claims = [claim("speakers", A, own=True), claim("mic", A), claim("tv", A)]
    for order in itertools.permutations(claims):
        assert all(reached(each, order) == {"speakers", "mic", "tv"} for each in order)


def test_claims_of_different_pods_reach_nothing_of_each_other() -> None:
    one, other = claim("speakers", A, own=True), claim("mic", B, own=True)
    assert reached(one, [one, other]) == {"speakers"}
    assert reached(other, [one, other]) == {"mic"}


def test_a_claim_of_two_pods_reaches_its_own_devices_alone() -> None:
    shared, first, second = claim("tv", A, B), claim("speakers", A), claim("mic", B)
    claims = [shared, first, second]
    assert reached(shared, claims) == {"tv"}


def test_each_pod_s_own_claim_reaches_the_one_that_it_shares_and_not_the_other_pod_s() -> None:
    shared, first, second = claim("tv", A, B), claim("speakers", A), claim("mic", B)
    claims = [shared, first, second]
    assert reached(first, claims) == {"speakers", "tv"}
    assert reached(second, claims) == {"mic", "tv"}


def test_a_claim_that_was_shared_is_not_joined_again() -> None:
    """Its first pod's clients would be cut by each change back."""
    mine = claim("speakers", A)
    was = claim("tv", A, consumers=Consumers(pods=(A,), is_shared=True))
    assert reached(was, [was, mine]) == {"tv"}


def test_a_claim_whose_pods_are_not_known_is_joined_with_nothing() -> None:
    unknown, other = claim("speakers"), claim("mic")
    assert reached(unknown, [unknown, other]) == {"speakers"}


def test_a_claim_of_an_earlier_boot_is_not_prepared_yet() -> None:
    old, new = claim("speakers", A, boot_id="before"), claim("mic", A)
    assert reached(new, [old, new]) == {"mic"}


def test_a_claim_that_is_just_being_prepared_is_reached_already() -> None:
    started, done = claim("speakers", A, state=ClaimState.STARTED), claim("mic", A)
    assert reached(done, [started, done]) == {"speakers", "mic"}


def test_a_pod_made_anew_under_its_name_reaches_nothing_of_the_old_one() -> None:
    old, new = claim("speakers", A), claim("mic", Pod(A.name, "uid-new"))
    assert reached(new, [old, new]) == {"mic"}


def test_the_claims_to_bring_in_line_are_those_whose_reach_changes() -> None:
    mine, shared, theirs = claim("speakers", A, own=True), claim("tv", A, B), claim("mic", C)
    records = [mine, shared, theirs]
    assert [each.ref.name for each in neighbours(shared, records)] == ["speakers"]
    assert [each.ref.name for each in neighbours(mine, records)] == []


def test_only_a_joined_claim_that_others_may_get_is_watched() -> None:
    named, own, alone = claim("tv", A), claim("speakers", A, own=True), claim("mic", B)
    records = [named, own, alone]
    assert [each.ref.name for each in records if needs_watch(each, records)] == ["tv"]
    shared = replace(named, consumers=seen(named.consumers, Consumers(pods=(A, B))))
    assert not needs_watch(shared, [shared, own, alone])


@given(st.lists(st.sets(st.sampled_from([A, B, C])), min_size=1, max_size=5))
def test_no_pod_ever_reaches_a_device_of_a_claim_that_it_hasn_t(holders: list[set[Pod]]) -> None:
    records = [
        claim(f"c{place}", *sorted(pods, key=lambda pod: pod.name))
        for place, pods in enumerate(holders)
    ]
    for record in records:
        for pod in record.consumers.pods:
            held = {each.ref.name for each in records if pod in each.consumers.pods}
            assert reached(record, records) <= held


@given(st.lists(st.sets(st.sampled_from([A, B])), min_size=1, max_size=4), st.data())
def test_a_claim_s_coming_changes_the_reach_of_its_neighbours_alone(
    holders: list[set[Pod]], data: st.DataObject
) -> None:
    records = [
        claim(f"c{place}", *sorted(pods, key=lambda pod: pod.name))
        for place, pods in enumerate(holders)
    ]
    new = data.draw(st.sampled_from(records))
    before = [each for each in records if each is not new]
    changed = {each.ref.uid for each in before if reached(each, before) != reached(each, records)}
    assert changed == {each.ref.uid for each in neighbours(new, records)}
