"""What is written, in which order, with which generation; and that nothing is written twice."""

import copy
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from liken_audio.api import Json
from liken_audio.dra.devices import Capacity, Device, Taint
from liken_audio.dra.slices import (
    Create,
    Delete,
    Memory,
    Pool,
    Update,
    Write,
    plan,
    slice_name,
)
from liken_audio.graph.model import DeviceName

DISCONNECTED = Taint("audio.liken.sh/disconnected", "NoExecute")
NO_MONITOR = Taint("audio.liken.sh/no-monitor", "NoSchedule")
NAME = "kitchen-audio.liken.sh"


class Server:
    """Carries writes out as the API server does: versions, times of taints, canonical quantities."""

    def __init__(self) -> None:
        self.slices: dict[str, Json] = {}
        self.drops: tuple[str, ...] = ()
        self.version = 0
        self.memory = Memory()

    def apply(self, writes: Sequence[Write]) -> None:
        for write in writes:
            if isinstance(write, Delete):
                stored = self.slices.pop(write.name)["metadata"]
                assert (stored["uid"], stored["resourceVersion"]) == (
                    write.uid,
                    write.resource_version,
                )
                self.memory = self.memory.deleted(write.name)
                continue
            name = write.body["metadata"]["name"]
            assert (name in self.slices) == isinstance(write, Update)
            if isinstance(write, Update):
                before = self.slices[name]["metadata"]
                assert write.body["metadata"]["resourceVersion"] == before["resourceVersion"]
            self.memory = self.memory.wrote(write.body, self.store(write.body))

    def store(self, body: Json) -> Json:
        self.version += 1
        stored = copy.deepcopy(body)
        stored["metadata"]["resourceVersion"] = str(self.version)
        stored["metadata"].setdefault("uid", f"uid-{self.version}")
        for device in stored["spec"].get("devices", ()):
            for field in self.drops:
                device.pop(field, None)
            for taint in device.get("taints", ()):
                taint.setdefault("timeAdded", f"time-{self.version}")
        self.slices[stored["metadata"]["name"]] = stored
        return stored

    def sync(self, devices: Sequence[Device]) -> tuple[Write, ...]:
        """Plan and carry out once; return what was written."""
        observed = list(self.slices.values())
        self.memory = self.memory.saw(observed)
        writes = plan(pool(*devices), observed, self.memory)
        self.apply(writes)
        return writes

    def generations(self) -> list[int]:
        return [body["spec"]["pool"]["generation"] for body in self.slices.values()]


def device(name: str, *taints: Taint, **attributes: Any) -> Device:
    return Device(name=DeviceName(name), attributes={"sink": name, **attributes}, taints=taints)


def devices(count: int, *taints: Taint) -> list[Device]:
    return [device(f"d{number:03}", *taints) for number in range(count)]


def pool(*wished: Device, node: str = "kitchen", uid: str = "node-uid") -> Pool:
    return Pool(node=node, node_uid=uid, devices=tuple(wished))


def kinds(writes: Sequence[Write]) -> list[str]:
    return [type(write).__name__ for write in writes]


def names_of(body: Json) -> list[str]:
    return [each["name"] for each in body["spec"].get("devices", ())]


def test_the_first_slice_is_owned_by_the_node_and_says_whose_it_is() -> None:
    (write,) = plan(pool(device("a")), [])
    assert write == Create(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {
                "name": NAME,
                "ownerReferences": [
                    {
                        "apiVersion": "v1",
                        "kind": "Node",
                        "name": "kitchen",
                        "uid": "node-uid",
                        "controller": True,
                    }
                ],
            },
            "spec": {
                "driver": "audio.liken.sh",
                "nodeName": "kitchen",
                "pool": {"name": "kitchen", "generation": 1, "resourceSliceCount": 1},
                "devices": [{"name": "a", "attributes": {"sink": {"string": "a"}}}],
            },
        }
    )


def test_no_devices_are_one_slice_without_devices() -> None:
    server = Server()
    assert kinds(server.sync([])) == ["Create"]
    assert "devices" not in server.slices[NAME]["spec"]
    assert server.sync([]) == ()


def test_an_unchanged_world_writes_nothing() -> None:
    server = Server()
    shared = Device(
        name=DeviceName("b"),
        attributes={},
        taints=(DISCONNECTED,),
        allow_multiple=True,
        capacity={"streams": Capacity(value=1024, default=1, minimum=1, maximum=64, step=1)},
    )
    server.sync([device("a"), shared])
    server.slices[NAME]["spec"]["devices"][1]["capacity"]["streams"]["value"] = "1Ki"
    server.slices[NAME]["metadata"]["managedFields"] = [{"manager": "x"}]
    server.slices[NAME]["metadata"]["labels"] = {"somebody": "else"}
    assert [server.sync([device("a"), shared]) for _ in range(100)] == [()] * 100


def test_one_changed_slice_is_one_update_of_the_same_generation() -> None:
    server = Server()
    server.sync([device("a", card=0)])
    assert kinds(server.sync([device("a", card=1)])) == ["Update"]
    assert server.generations() == [1]


def test_an_update_keeps_what_others_put_on_the_object() -> None:
    server = Server()
    server.sync([device("a")])
    other = {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "1"}
    server.slices[NAME]["metadata"]["labels"] = {"somebody": "else"}
    server.slices[NAME]["metadata"]["ownerReferences"].append(other)
    server.slices[NAME]["metadata"]["managedFields"] = [{"manager": "x"}]
    (write,) = server.sync([device("b")])
    assert isinstance(write, Update)
    metadata = write.body["metadata"]
    assert metadata["labels"] == {"somebody": "else"}
    assert metadata["ownerReferences"][1] == other
    assert "managedFields" not in metadata


def test_what_is_given_is_never_changed() -> None:
    server = Server()
    server.sync([device("a", DISCONNECTED)])
    observed = list(server.slices.values())
    before = copy.deepcopy(observed)
    plan(pool(device("a", DISCONNECTED, card=1)), observed)
    assert observed == before


def test_the_order_of_devices_is_a_difference() -> None:
    server = Server()
    server.sync([device("a"), device("b")])
    assert kinds(server.sync([device("b"), device("a")])) == ["Update"]


def test_a_taint_that_stays_keeps_its_time_and_a_new_one_gets_its_own() -> None:
    server = Server()
    server.sync([device("a", DISCONNECTED)])
    server.sync([device("a", DISCONNECTED, NO_MONITOR, card=1)])
    (stored,) = server.slices[NAME]["spec"]["devices"]
    assert [taint["timeAdded"] for taint in stored["taints"]] == ["time-1", "time-2"]


def test_a_taint_that_went_and_came_back_has_a_new_time() -> None:
    server = Server()
    server.sync([device("a", DISCONNECTED)])
    server.sync([device("a")])
    server.sync([device("a", DISCONNECTED)])
    assert server.slices[NAME]["spec"]["devices"][0]["taints"][0]["timeAdded"] == "time-3"


def test_a_wiped_slice_comes_back_with_a_higher_generation_and_the_times_of_its_taints() -> None:
    """U64: the kubelet deletes the driver's slices whenever it likes."""
    server = Server()
    server.sync([device("a", DISCONNECTED)])
    server.slices.clear()
    assert kinds(server.sync([device("a", DISCONNECTED)])) == ["Create"]
    assert server.generations() == [2]
    assert server.slices[NAME]["spec"]["devices"][0]["taints"][0]["timeAdded"] == "time-1"


@pytest.mark.parametrize(("count", "pages"), [(0, 1), (1, 1), (64, 1), (65, 2), (128, 2), (129, 3)])
@pytest.mark.parametrize("taints", [(), (DISCONNECTED,)], ids=["plain", "tainted"])
def test_pools_are_split_into_slices_that_the_server_takes(
    count: int, pages: int, taints: tuple[Taint, ...]
) -> None:
    server = Server()
    server.sync(devices(count, *taints))
    expected = [NAME, f"{NAME}-2", f"{NAME}-3"][:pages]
    assert sorted(server.slices) == expected
    assert [name for page in expected for name in names_of(server.slices[page])] == [
        each.name for each in devices(count)
    ]
    for body in server.slices.values():
        assert len(names_of(body)) <= 64
        assert body["spec"]["pool"]["resourceSliceCount"] == pages


def test_a_taint_never_moves_a_device_to_another_slice() -> None:
    server = Server()
    server.sync(devices(100))
    before = {name: names_of(body) for name, body in server.slices.items()}
    wished = devices(100)
    wished[3] = device("d003", DISCONNECTED)
    assert kinds(server.sync(wished)) == ["Update"]
    assert {name: names_of(body) for name, body in server.slices.items()} == before
    assert server.generations() == [1, 1]


def test_a_change_of_two_slices_rises_the_generation_of_all() -> None:
    server = Server()
    server.sync(devices(150))
    wished = devices(150)
    wished[0], wished[70] = device("d000", card=1), device("d070", card=1)
    assert kinds(server.sync(wished)) == ["Update"] * 3
    assert server.generations() == [2, 2, 2]


def test_growing_and_shrinking_rise_the_generation_and_agree_on_the_count() -> None:
    server = Server()
    server.sync(devices(10))
    assert kinds(server.sync(devices(150))) == ["Update", "Create", "Create"]
    assert server.generations() == [2, 2, 2]
    assert kinds(server.sync(devices(10))) == ["Delete", "Delete", "Update"]
    assert server.generations() == [3]
    assert server.slices[NAME]["spec"]["pool"]["resourceSliceCount"] == 1


def test_one_deleted_slice_of_three_is_made_again_and_all_rise() -> None:
    server = Server()
    server.sync(devices(150))
    del server.slices[f"{NAME}-2"]
    assert kinds(server.sync(devices(150))) == ["Update", "Update", "Create"]
    assert set(server.generations()) == {2}
    assert server.sync(devices(150)) == ()


def test_half_done_writes_are_finished_by_the_next_plan() -> None:
    server = Server()
    server.sync(devices(150))
    wished = devices(140)
    wished[0], wished[70] = device("d000", card=1), device("d070", card=1)
    writes = plan(pool(*wished), list(server.slices.values()), server.memory)
    server.apply(writes[:1])
    server.sync(wished)
    assert len(set(server.generations())) == 1
    assert server.sync(wished) == ()


@pytest.mark.parametrize(
    "name", ["00000-audio.liken.sh-kitchen-x7f2k", "kitchen-audio.liken.sh-9", "a"]
)
def test_slices_of_ours_under_another_name_are_obsolete_and_go_first(name: str) -> None:
    server = Server()
    (create,) = plan(pool(device("a")), [])
    assert isinstance(create, Create)
    old = copy.deepcopy(create.body)
    old["metadata"]["name"] = name
    old["spec"]["pool"]["generation"] = 7
    server.store(old)
    assert kinds(server.sync([device("a")])) == ["Delete", "Create"]
    assert server.generations() == [8]


def test_a_slice_of_ours_with_another_pool_is_replaced_since_pools_cannot_be_renamed() -> None:
    server = Server()
    server.sync([device("a")])
    server.slices[NAME]["spec"]["pool"]["name"] = "old"
    assert kinds(server.sync([device("a")])) == ["Delete", "Create"]
    assert server.sync([device("a")]) == ()


@pytest.mark.parametrize("field", ["driver", "nodeName"])
def test_a_foreign_slice_with_our_name_is_left_alone(field: str) -> None:
    server = Server()
    server.sync([device("a")])
    server.slices[NAME]["spec"][field] = "other"
    (write,) = server.sync([device("a")])
    assert isinstance(write, Create)
    assert write.body["metadata"]["name"] == f"{NAME}-2"
    assert server.sync([device("a")]) == ()


def test_a_name_known_to_be_taken_is_not_used() -> None:
    (write,) = plan(pool(device("a")), [], Memory(taken=frozenset({NAME})))
    assert isinstance(write, Create)
    assert write.body["metadata"]["name"] == f"{NAME}-2"


def test_a_node_that_was_made_anew_becomes_the_owner() -> None:
    server = Server()
    server.sync([device("a")])
    (write,) = plan(pool(device("a"), uid="new-uid"), list(server.slices.values()))
    assert isinstance(write, Update)
    assert [owner["uid"] for owner in write.body["metadata"]["ownerReferences"]] == ["new-uid"]


def test_fields_that_the_server_drops_are_adopted_and_offered_again_with_the_next_change() -> None:
    server = Server()
    server.drops = ("taints", "allowMultipleAllocations")
    assert kinds(server.sync([device("a", DISCONNECTED)])) == ["Create"]
    assert server.sync([device("a", DISCONNECTED)]) == ()
    server.drops = ()
    assert server.sync([device("a", DISCONNECTED)]) == ()
    (write,) = server.sync([device("a", DISCONNECTED, card=1)])
    assert isinstance(write, Update)
    assert "taints" in server.slices[NAME]["spec"]["devices"][0]
    assert not server.memory.adopted


def test_somebody_elses_change_of_an_adopted_slice_is_put_right() -> None:
    server = Server()
    server.drops = ("taints",)
    server.sync([device("a", DISCONNECTED, card=1)])
    changed = copy.deepcopy(server.slices[NAME])
    changed["spec"]["devices"][0]["attributes"]["card"] = {"int": 9}
    server.slices[NAME] = changed
    assert kinds(server.sync([device("a", DISCONNECTED, card=1)])) == ["Update"]


@pytest.mark.parametrize("length", [1, 63, 238, 239, 240, 253])
def test_names_of_slices_fit_and_differ_for_any_node_name(length: int) -> None:
    one, other = "a" * length, "a" * (length - 1) + "b"
    names = {slice_name(node, index) for node in (one, other) for index in (0, 1, 11)}
    assert len(names) == 6
    assert all(len(name) <= 253 for name in names)
    assert slice_name("kitchen", 0) == NAME
    assert slice_name("kitchen", 1) == f"{NAME}-2"


taints = st.sets(st.sampled_from([DISCONNECTED, NO_MONITOR])).map(tuple)
worlds = st.dictionaries(st.integers(0, 200), st.tuples(taints, st.integers(0, 1)), max_size=150)


@given(st.lists(st.tuples(worlds, st.integers(0, 3)), min_size=1, max_size=5))
def test_any_sequence_of_worlds_and_deletions_ends_complete_and_at_rest(
    steps: list[tuple[dict[int, tuple[tuple[Taint, ...], int]], int]],
) -> None:
    server = Server()
    highest = 0
    for world, deletions in steps:
        for name in sorted(server.slices)[:deletions]:
            del server.slices[name]
        wished = [device(f"d{n:03}", *t, card=card) for n, (t, card) in sorted(world.items())]
        server.sync(wished)
        assert server.sync(wished) == ()
        (generation,) = set(server.generations())
        assert generation >= highest
        highest = generation
        found = [name for key in _in_order(server.slices) for name in names_of(server.slices[key])]
        assert found == [each.name for each in wished]


def _in_order(names: dict[str, Json]) -> list[str]:
    return sorted(names, key=lambda name: (len(name), name))
