"""Who has a claim: its pods, whether others may come, and whether any ever came."""

from typing import Any

import pytest

from liken_audio.dra.consumers import Consumers, Pod, consumers, pod_claim_name, seen
from tests.builders import allocated

A, B = Pod("a", "uid-a"), Pod("b", "uid-b")
OWNER = {"apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "uid-a", "controller": True}


def reserved(*pods: Pod) -> list[dict[str, str]]:
    return [{"resource": "pods", "name": pod.name, "uid": pod.uid} for pod in pods]


def claim(*entries: Any, **metadata: Any) -> dict[str, Any]:
    made = allocated(**metadata)
    made["status"]["reservedFor"] = list(entries)
    return made


def test_a_named_claim_of_one_pod_may_get_others() -> None:
    found = consumers(claim(*reserved(A)))
    assert found == Consumers(pods=(A,))
    assert found.only_pod == A


def test_a_claim_from_a_template_is_its_pod_s_alone() -> None:
    found = consumers(claim(*reserved(A), ownerReferences=[OWNER]))
    assert (found.is_for_one, found.only_pod) == (True, A)


@pytest.mark.parametrize(
    "owner",
    [
        OWNER | {"uid": "uid-of-another"},
        OWNER | {"controller": False},
        OWNER | {"kind": "Deployment", "apiVersion": "apps/v1"},
        OWNER | {"apiVersion": "example.com/v1"},
    ],
    ids=["another-pod", "not-the-controller", "a-deployment", "another-kind-named-pod"],
)
def test_an_owner_that_isn_t_the_pod_makes_nothing_certain(owner: dict[str, Any]) -> None:
    assert not consumers(claim(*reserved(A), ownerReferences=[owner])).is_for_one


def test_two_pods_share_a_claim_in_any_order() -> None:
    found = consumers(claim(*reserved(B, A)))
    assert found == Consumers(pods=(A, B), is_shared=True)
    assert found.only_pod is None


@pytest.mark.parametrize(
    "entry",
    [
        {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "g", "uid": "u"},
        {"resource": "nodes", "name": "n", "uid": "u"},
        {"apiGroup": "example.com", "resource": "pods", "name": "p", "uid": "u"},
    ],
    ids=["pod-group", "node", "others-pods"],
)
def test_a_consumer_that_is_no_pod_may_stand_for_many(entry: dict[str, str]) -> None:
    found = consumers(claim(*reserved(A), entry, ownerReferences=[OWNER]))
    assert (found.only_pod, found.is_for_one) == (None, False)


@pytest.mark.parametrize("status", [None, {}, {"reservedFor": None}, {"reservedFor": []}])
def test_a_claim_that_nobody_has_is_nobody_s(status: Any) -> None:
    found = consumers({"metadata": {"uid": "u"}, "status": status})
    assert (found, found.only_pod) == (Consumers(), None)


def test_a_second_pod_is_remembered_after_its_end() -> None:
    both = seen(Consumers(pods=(A,)), Consumers(pods=(A, B), is_shared=True))
    assert seen(both, Consumers(pods=(A,))) == Consumers(pods=(A,), is_shared=True)


def test_a_pod_that_took_the_first_one_s_place_is_a_second_one() -> None:
    """Both at once were never seen, but the first one's clients may still be there."""
    assert seen(Consumers(pods=(A,)), Consumers(pods=(B,))).is_shared


def test_a_pod_made_anew_under_its_name_is_another_one() -> None:
    assert seen(Consumers(pods=(A,)), Consumers(pods=(Pod("a", "uid-new"),))).is_shared


def test_the_first_pod_that_is_seen_is_no_second_one() -> None:
    assert seen(Consumers(), Consumers(pods=(A,))).only_pod == A


def test_an_unchanged_claim_changes_nothing() -> None:
    known = Consumers(pods=(A,))
    assert seen(known, consumers(claim(*reserved(A)))) == known


def test_the_name_in_the_pod_s_spec_is_the_template_s_annotation() -> None:
    annotations = {"resource.kubernetes.io/pod-claim-name": "audio"}
    assert pod_claim_name(claim(annotations=annotations)) == "audio"
    assert pod_claim_name(claim(annotations=None)) == pod_claim_name(claim()) == ""
