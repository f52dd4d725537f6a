# SPDX-License-Identifier: Apache-2.0
"""A client that does not read: its queued messages, the dropped messages, and the order of the others."""

import socket
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ustreamer_wamp.connections.outbox import OutboxLimits, SessionOutbox
from ustreamer_wamp.connections.websocket import WIRE_FORMATS
from ustreamer_wamp.events import Publication, WampEvent

if TYPE_CHECKING:
    from tests.conftest import Client, RealmRig
    from ustreamer_wamp.connections.outbox import OverflowPolicy


def member(rig: "RealmRig", policy: "OverflowPolicy" = "conflate", **limits: Any) -> "Client":
    return rig.joined_client(limits=OutboxLimits(policy=policy, **limits))


def publish(rig: "RealmRig", *values: tuple[str, int]) -> None:
    publisher = rig.joined_client("msgpack")
    for topic, value in values:
        publisher.send(16, 1, {}, topic, [value])


def received(client: "Client") -> list[tuple[str | int, ...]]:
    """The output: (topic, value) of events, (code, request) of replies."""
    return [
        (each[3]["topic"], each[4][0]) if each[0] == 36 else (each[0], each[1]) for each in client.received()
    ]


def test_frames_read_at_once_form_one_piece(rig: "RealmRig") -> None:
    client = member(rig)
    client.subscribe("", {"match": "prefix"})
    client.received()
    publish(rig, *[("com.a", n) for n in range(100)])
    assert received(client) == [("com.a", n) for n in range(100)]
    assert client.counts == {}


def test_a_turn_of_the_loop_that_brings_very_many_does_not_collect_them_all(rig: "RealmRig") -> None:
    client = member(rig)
    client.subscribe("com.a")
    publish(rig, *[("com.a", n) for n in range(10_000)])
    assert len(client.outbox._ready) <= 128
    assert [each[4][0] for each in client.received()] == list(range(10_000))


def test_conflate_keeps_the_latest_of_each_topic_in_order(rig: "RealmRig") -> None:
    client = member(rig)
    client.subscribe("com.", {"match": "prefix"})
    client.outbox.pause()
    publish(rig, ("com.a", 1), ("com.b", 1), ("com.a", 2), ("com.c", 1), ("com.b", 2))
    assert received(client) == []
    client.outbox.resume()
    assert received(client) == [("com.a", 2), ("com.c", 1), ("com.b", 2)]
    assert client.counts == {"events_conflated": 2}


@pytest.mark.parametrize(
    ("policy", "kept"), [("drop_oldest", [7, 8, 9]), ("drop_newest", [0, 1, 2]), ("conflate", [9])]
)
def test_the_bound_holds_by_each_policy(rig: "RealmRig", policy: "OverflowPolicy", kept: list[int]) -> None:
    client = member(rig, policy, events=3)
    client.subscribe("com.a")
    client.outbox.pause()
    publish(rig, *[("com.a", n) for n in range(10)])
    client.outbox.resume()
    events = client.received()
    assert [each[4][0] for each in events] == kept
    lost = 10 - len(kept)
    assert client.counts == {"events_conflated" if policy == "conflate" else "events_dropped": lost}
    assert [each[3].get("_dropped", 0) for each in events] == [lost] + [0] * (len(kept) - 1)


def test_events_dropped_before_the_outbox_are_reported_with_the_next_event(rig: "RealmRig") -> None:
    clients = [member(rig), member(rig)]
    for client in clients:
        client.subscribe("com.a")
        client.outbox.report_dropped(3)
    publish(rig, ("com.a", 1), ("com.a", 2))
    for client in clients:
        assert [each[3] for each in client.received()] == [{"_dropped": 3}, {}]
        assert client.counts == {"events_dropped": 3}


def test_events_dropped_to_the_last_are_reported_with_the_next_event(rig: "RealmRig") -> None:
    client = member(rig, "drop_newest", bytes=1024)
    client.subscribe("com.a")
    client.outbox.pause()
    client.outbox.enqueue_event(WampEvent(Publication(1, "com.a", ["x" * 2000], {}), 1, "exact"))
    client.outbox.resume()
    assert client.received() == []
    publish(rig, ("com.a", 1), ("com.a", 2))
    assert [each[3] for each in client.received()] == [{"_dropped": 1}, {}]


def test_a_client_paused_without_loss_receives_the_shared_frame(rig: "RealmRig") -> None:
    client = member(rig)
    client.subscribe("com.a")
    client.outbox.pause()
    client.outbox.resume()
    publish(rig, ("com.a", 1))
    publish(rig, ("com.a", 2))
    assert [each[3] for each in client.received()] == [{}, {}]


def test_close_ends_the_session_of_a_client_that_does_not_read(rig: "RealmRig") -> None:
    client = member(rig, "close", events=2)
    client.subscribe("com.a")
    client.outbox.pause()
    publish(rig, *[("com.a", n) for n in range(2)])
    before = client.outbox.is_overrun
    publish(rig, ("com.a", 3))
    assert (before, client.outbox.is_overrun) == (False, True)
    client.session.kill("wamp.close.killed", "too slow")
    client.outbox.resume()
    assert client.received()[-1][2] == "wamp.close.killed"


def test_bytes_are_bounded_whatever_the_number(rig: "RealmRig") -> None:
    client = member(rig, "drop_oldest", bytes=5000)
    client.subscribe("com.a")
    client.outbox.pause()
    publisher = rig.joined_client()
    for n in range(100):
        publisher.send(16, 1, {}, "com.a", [n, "x" * 1000])
    assert client.outbox._bytes <= 5000
    client.outbox.resume()
    assert [each[4][0] for each in client.received()] == [96, 97, 98, 99]


def test_replies_are_never_dropped_and_keep_their_place(rig: "RealmRig") -> None:
    client = member(rig, events=2)
    client.subscribe("com.", {"match": "prefix"})
    client.outbox.pause()
    publish(rig, ("com.a", 1))
    client.send(32, 10, {}, "com.x")
    publish(rig, ("com.b", 1))
    for request in range(20, 40):
        client.send(34, request, 4711)
    publish(rig, ("com.c", 1))
    client.outbox.resume()
    found = received(client)
    replies = [each for each in found if isinstance(each[0], int)]
    assert replies == [(33, 10)] + [(8, 34)] * 20
    assert found[:2] == [(33, 10), ("com.b", 1)]
    assert found[-1] == ("com.c", 1)


def test_a_reply_waits_behind_what_waits_although_the_client_reads_again(rig: "RealmRig") -> None:
    written: list[bytes] = []
    client = member(rig)
    wire = client.outbox._wire
    outbox = SessionOutbox(wire, OutboxLimits(), written.append, lambda: None, client.counts)
    event = WampEvent(Publication(1, "com.a", [1], {}), 1, "exact")
    outbox.pause()
    outbox.enqueue_event(event)
    outbox.resume()  # and `flush` is due
    outbox.enqueue_reply([35, 10])
    outbox.flush()
    assert b"".join(written) == event.frame_for(wire) + wire.encode_message([35, 10])


def test_the_router_reads_no_request_from_a_client_that_does_not_read(rig: "RealmRig") -> None:
    client = member(rig)
    client.outbox.pause()
    for request in range(63):
        client.send(34, request + 1, 4711)
    seen = [client.outbox.has_reply_backlog]
    client.send(34, 99, 4711)
    seen.append(client.outbox.has_reply_backlog)
    client.outbox.resume()
    client.received()
    assert [*seen, client.outbox.has_reply_backlog] == [False, True, False]


@given(
    policy=st.sampled_from(["conflate", "drop_oldest", "drop_newest"]),
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("publish"), st.sampled_from(["com.a", "com.b"])),
            st.tuples(st.sampled_from(["pause", "resume", "toggle"]), st.just("")),
        ),
        max_size=60,
    ),
)
def test_no_event_precedes_subscribed_or_follows_unsubscribed_at_any_read_order(
    make_rig: Callable[[], "RealmRig"],
    policy: "OverflowPolicy",
    steps: list[tuple[Literal["publish", "pause", "resume", "toggle"], str]],
) -> None:
    rig = make_rig()
    client, publisher = member(rig, policy, events=3), rig.joined_client()
    held, number = 0, 0
    transcript: list[Any] = []
    for request, (what, topic) in enumerate(steps, 1):
        if what == "publish":
            number += 1
            publisher.send(16, request, {}, topic, [number])
        elif what == "pause":
            client.outbox.pause()
        elif what == "resume":
            client.outbox.resume()
            transcript += client.received()
        elif held:
            client.send(34, request, held)
            held = 0
        else:
            client.send(32, request, {"match": "prefix"}, "com.")
            held = next(iter(rig.realm.broker.subscriptions_of(client.session)))
    client.outbox.resume()
    transcript += client.received()
    open_id, last = 0, 0
    for message in transcript:
        if message[0] == 33:
            open_id = message[2]
        elif message[0] == 35:
            open_id = 0
        else:
            assert message[1] == open_id
            assert message[4][0] > last, "in the order of publication"
            last = message[4][0]
    assert client.outbox.is_empty
    assert client.outbox._bytes == 0
    assert not client.outbox._sizes


def test_an_outbox_that_is_cleared_holds_nothing(rig: "RealmRig") -> None:
    client = member(rig)
    client.subscribe("com.a")
    client.outbox.pause()
    publish(rig, ("com.a", 1))
    client.outbox.clear()
    client.outbox.resume()
    assert client.received() == []
    assert isinstance(client.outbox, SessionOutbox)


def test_an_event_that_comes_alone_is_sent_at_once_and_never_overtakes() -> None:
    """A socket takes the first ones and a part of one; its rest and all later ones go through `write`."""
    wire, counts, written = WIRE_FORMATS["wamp.2.json"], Counter[str](), bytearray()
    ours, theirs = socket.socketpair()
    ours.setblocking(False)

    def write(data: bytes) -> None:
        outbox.send = None  # as a connection does while its transport has bytes
        written.extend(data)

    with ours, theirs:
        outbox = SessionOutbox(wire, OutboxLimits(), write, lambda: None, counts)
        outbox.send = ours.send
        events = [WampEvent(Publication(n, "com.a", ["x" * 50_000], {}), 1, "exact") for n in range(20)]
        for each in events:
            outbox.write_event(each)
        outbox.flush()
        ours.shutdown(socket.SHUT_WR)
        sent = b"".join(iter(lambda: theirs.recv(65_536), b""))
    assert 0 < len(sent) < len(sent + written), "the socket took all or nothing, which shows nothing"
    assert sent + written == b"".join(each.frame_for(wire) for each in events)


def test_an_event_that_comes_alone_waits_for_the_frames_before_it() -> None:
    wire, written = WIRE_FORMATS["wamp.2.json"], list[bytes]()
    sent: list[bytes] = []
    outbox = SessionOutbox(wire, OutboxLimits(), written.append, lambda: None, Counter[str]())
    outbox.send = sent.append  # type: ignore[assignment]  # nothing may be sent
    event = WampEvent(Publication(1, "com.a", [], {}), 1, "exact")
    outbox.enqueue_reply([33, 1, 1])
    outbox.write_event(event)
    outbox.flush()
    outbox.pause()
    outbox.write_event(event)
    outbox.resume()
    outbox.write_event(event)
    outbox.flush()
    first = wire.encode_message([33, 1, 1]) + event.frame_for(wire)
    assert (sent, written) == ([], [first, event.frame_after_drops(wire, 1)])
    assert outbox._counts == {"events_conflated": 1}
