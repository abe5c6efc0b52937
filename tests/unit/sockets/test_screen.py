"""What clients say to PipeWire: a stream's words pass as they are, harmful ones don't."""

import struct

import pytest

from liken_audio.sockets.screen import (
    LARGEST_MESSAGE,
    MESSAGES_AT_ONCE,
    MESSAGES_EACH_SECOND,
    MESSAGES_OF_A_CONNECTION,
    MESSAGES_OF_AN_OBJECT,
    MOST_OBJECTS,
    Quota,
    Refused,
    Screen,
)

HELLO, GET_REGISTRY, CREATE_OBJECT, DESTROY = 1, 5, 6, 7
REGISTRY, NODE = 2, 3


def pod(kind: int, body: bytes) -> bytes:
    return struct.pack("=II", len(body), kind) + body + bytes(-len(body) % 8)


def number(value: int) -> bytes:
    return pod(4, struct.pack("=i", value))


def text(value: str) -> bytes:
    return pod(8, value.encode() + b"\0")


def structure(*members: bytes) -> bytes:
    return pod(14, b"".join(members))


def message(object_id: int, opcode: int, *members: bytes, descriptors: int = 0) -> bytes:
    body = structure(*members)
    return struct.pack("=IIII", object_id, opcode << 24 | len(body), 7, descriptors) + body


def create(new_id: int, **properties: str) -> bytes:
    pairs = [text(part) for pair in properties.items() for part in pair]
    dictionary = structure(number(len(properties)), *pairs)
    kind = text("PipeWire:Interface:ClientNode")
    return message(
        0, CREATE_OBJECT, text("client-node"), kind, number(6), dictionary, number(new_id)
    )


def passed(data: bytes) -> bytes:
    return b"".join(Screen(Quota(), "uid-1").feed(data))


STREAM = (
    message(0, HELLO, number(4))
    + message(0, GET_REGISTRY, number(3), number(REGISTRY))
    + create(NODE, **{"node.name": "player", "media.class": "Stream/Output/Audio"})
    + message(NODE, 4, pod(2, struct.pack("=i", 1)))
)


def test_a_stream_s_words_pass_unchanged_in_any_portions() -> None:
    assert passed(STREAM) == STREAM
    screen = Screen(Quota(), "uid-1")
    portions = [STREAM[place : place + 5] for place in range(0, len(STREAM), 5)]
    assert b"".join(b"".join(screen.feed(portion)) for portion in portions) == STREAM


def test_half_a_message_waits_for_the_rest() -> None:
    screen = Screen(Quota(), "uid-1")
    assert screen.feed(STREAM[:-1]) != []
    assert b"".join(screen.feed(STREAM[-1:])) == message(NODE, 4, pod(2, struct.pack("=i", 1)))


@pytest.mark.parametrize(
    "key",
    [
        "node.sync", "node.sync-group", "node.driver",
        "node.always-process", "node.trigger", "node.transport", "node.force-quantum",
        "node.force-rate", "node.lock-quantum", "node.lock-rate", "priority.driver",
        "node.supports-lazy", "node.supports-request",
    ],
)  # fmt: skip
def test_a_key_that_would_change_how_others_are_scheduled_does_not_reach_pipewire(key: str) -> None:
    sent = create(NODE, **{key: "true", "node.name": key, "node.latency": "256/48000"})
    got = passed(sent)
    assert len(got) == len(sent)
    assert text(key) + text("true") not in got
    assert text(key.capitalize()) + text("true") in got
    assert text("node.latency") + text("256/48000") in got


def test_such_a_key_does_not_pass_wrapped_or_with_more_behind_its_end() -> None:
    wrapped = pod(19, struct.pack("=II", 0, 0) + struct.pack("=II", 10, 8) + b"node.sync\0")
    longer = pod(8, b"node.sync\0more\0")
    for sent in (wrapped, longer):
        got = passed(message(NODE, 2, number(1), structure(sent, text("true"))))
        assert b"node.sync\0" not in got
        assert b"Node.sync\0" in got


def test_a_key_in_an_update_of_a_node_does_not_pass_either() -> None:
    info = structure(number(0), text("node.driver"), text("true"))
    assert text("node.driver") not in passed(message(NODE, 2, number(2), number(0), info))


@pytest.mark.parametrize("key", ["node.group", "node.link-group"])
def test_a_group_joins_a_claim_s_own_streams_and_no_others(key: str) -> None:
    def group_of(uid: str, data: bytes) -> str:
        (got,) = Screen(Quota(), uid).feed(data)
        assert len(got) - 16 == struct.unpack_from("=I", got, 4)[0] & 0xFFFFFF
        assert text("node.name") + text("player") in got
        place = got.index(text(key)) + len(text(key))
        size = struct.unpack_from("=I", got, place)[0]
        return got[place + 8 : place + 7 + size].decode()

    made = create(NODE, **{"node.name": "player", key: "x", "media.name": "song"})
    info = structure(number(2), text("node.name"), text("player"), text(key), text("x"))
    changed = message(NODE, 2, number(2), number(0), info)
    own = {group_of("uid-1", made), group_of("uid-1", made), group_of("uid-1", changed)}
    assert len(own) == 1
    assert own != {group_of("uid-2", made)}
    assert own.isdisjoint({"x", "pipewire.freewheel"})
    other = create(NODE, **{"node.name": "player", key: "y", "media.name": "song"})
    assert own != {group_of("uid-1", other)}


def test_a_group_may_be_taken_away() -> None:
    sent = message(NODE, 2, number(1), structure(text("node.group"), pod(1, b"")))
    assert passed(sent) == sent


@pytest.mark.parametrize(
    "members",
    [
        (pod(19, struct.pack("=IIII", 0, 0, 11, 8) + b"node.group\0"), text("x")),
        (text("node.group"), pod(19, struct.pack("=IIII", 0, 0, 2, 8) + b"x\0")),
        (text("node.group"),),
        (text("x"), b"\0" * 4, text("node.group")),
    ],
    ids=["wrapped key", "wrapped value", "no value", "out of step"],
)
def test_a_group_that_is_no_plain_property_ends_the_connection(members: tuple[bytes, ...]) -> None:
    with pytest.raises(Refused, match=r"group|whole"):
        passed(message(NODE, 2, number(1), structure(*members)))


@pytest.mark.parametrize("key", ["node.groups", "my.node.group", "Node.group", "node.name"])
def test_other_keys_pass(key: str) -> None:
    sent = create(NODE, **{key: "x"})
    assert passed(sent) == sent


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (message(NODE, 6, number(1), descriptors=1), "with descriptors"),
        (message(0, HELLO, number(4), descriptors=4), "protocol 0"),
        (struct.pack("=IIII", NODE, 2 << 24 | LARGEST_MESSAGE + 1, 0, 0), "bytes"),
        (struct.pack("=IIII", 0, GET_REGISTRY << 24, 0, 0), "isn't whole"),
        (message(0, GET_REGISTRY, number(3), text("2")), "wrong kind"),
        (message(0, GET_REGISTRY, number(3)), "wrong kind"),
        (message(0, DESTROY, pod(14, b"\xff" * 8)), "wrong kind"),
        (message(0, CREATE_OBJECT, pod(4, b"")), "isn't whole"),
    ],
)
def test_what_no_client_has_reason_to_say_ends_its_connection(data: bytes, reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        Screen(Quota(), "uid-1").feed(data)


def test_objects_of_all_of_a_claim_s_clients_are_counted_together() -> None:
    quota = Quota()
    first, second = Screen(quota, "uid-1"), Screen(quota, "uid-1")
    half = MOST_OBJECTS // 2
    for screen in (first, second):
        screen.feed(b"".join(create(2 + each) for each in range(half)))
    with pytest.raises(Refused, match="objects"):
        second.feed(create(2 + half))
    first.close()
    Screen(quota, "uid-1").feed(create(2))


def test_each_way_to_an_object_counts_and_a_destroyed_one_does_not() -> None:
    quota = Quota()
    screen = Screen(quota, "uid-1")
    screen.feed(b"".join(create(10 + each) for each in range(MOST_OBJECTS - 3)))
    screen.feed(message(0, GET_REGISTRY, number(3), number(REGISTRY)))
    screen.feed(message(REGISTRY, 1, number(40), text("Node"), number(3), number(5)))
    screen.feed(message(10, 1, number(3), number(6)))
    for _ in range(3):
        screen.feed(message(0, DESTROY, number(5)))
        screen.feed(create(5))
        screen.feed(create(5))  # PipeWire refuses an id twice; it counts once
    screen.feed(message(NODE, 1, structure(number(1), number(2))))  # SubscribeParams
    with pytest.raises(Refused, match="objects"):
        screen.feed(message(REGISTRY, 1, number(40), text("Node"), number(3), number(7)))


def test_an_object_is_counted_by_the_id_that_pipewire_reads() -> None:
    quota = Quota()
    screen = Screen(quota, "uid-1")
    kind = text("PipeWire:Interface:ClientNode")
    members = [text("client-node"), kind, number(6), structure(number(0))]
    made = [
        message(0, CREATE_OBJECT, *members, number(2 + each), number(2))
        for each in range(MOST_OBJECTS + 1)
    ]
    with pytest.raises(Refused, match="objects"):
        screen.feed(b"".join(made))


def test_a_claim_may_say_much_at_once_and_a_little_all_the_time() -> None:
    quota = Quota()
    assert quota.pause(int(MESSAGES_AT_ONCE), 0, 100.0) == 0
    assert quota.pause(int(MESSAGES_EACH_SECOND), 0, 100.0) == 1.0
    assert quota.pause(0, 0, 100.5) == 0.5
    assert quota.pause(0, 0, 101.0) == 0
    assert quota.pause(int(MESSAGES_EACH_SECOND), 0, 102.0) == 0
    assert quota.pause(0, 2 * 1024 * int(MESSAGES_EACH_SECOND), 102.0) == 2.0


def test_time_gone_by_is_worth_no_more_than_the_most_at_once() -> None:
    quota = Quota()
    quota.pause(0, 0, 0.0)
    assert quota.pause(int(MESSAGES_AT_ONCE) + 1000, 0, 10_000.0) == 1.0


def test_connections_and_objects_count_for_more_than_the_messages_that_make_them() -> None:
    quota = Quota()
    quota.pause(int(MESSAGES_AT_ONCE), 0, 0.0)
    quota.take_connection()
    quota.take_object()
    extra = MESSAGES_OF_A_CONNECTION + MESSAGES_OF_AN_OBJECT
    assert quota.pause(0, 0, 0.0) == extra / MESSAGES_EACH_SECOND
