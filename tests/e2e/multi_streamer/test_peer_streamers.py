# SPDX-License-Identifier: Apache-2.0
"""Several streamers on one network, each a process: exactly one forwards each unicast message, and one responds to
errors.

tests/core/peers/test_election.py tests the election; test_topic_advertisements.py and test_topologies.py test
publications.
"""

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pytest
import zenoh

from tests.e2e.multi_streamer.zenoh_networks import (
    FAR_AUTHORITIES,
    MESSAGES_EACH,
    SIDE_BY_SIDE,
    Gateway,
    ZenohNetworks,
    launch_side_by_side,
    receive_counts,
    send_notification,
    stop_and_drain,
    wait_forwarded,
)
from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import Metronome, ZenohEntity, ZenohSample, eventually
from tests.e2e.rigs.streamer import run_command
from tests.e2e.rigs.subscriber import SUBSCRIBED, Subscriber
from tests.e2e.rigs.two_streamers import FAR_AUTHORITY, NEAR_AUTHORITY, StreamerSide, link_port_pairs
from tests.e2e.rigs.wire import Id, Uri

Make = Callable[..., ZenohNetworks]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    with ExitStack() as exit_stack:
        yield lambda *networks: ZenohNetworks(tmp_path, exit_stack, *networks)


def has_id(id: Id) -> Callable[[ZenohSample], bool]:
    return lambda sample: sample.attributes is not None and sample.attributes.id == id


def contains_all(*parts: str) -> Callable[[str], bool]:
    return lambda line: all(each in line for each in parts)


# --------------------------------------------------------------------------------------------------- side by side


def exchange_all_types(nets: ZenohNetworks, gateways: Sequence[Gateway]) -> dict[str, list[int]]:
    """Send all four message types in both directions and end the streamers.

    Returns the receive count of each message.
    """
    near, far = nets.connect_entity("one", "a.vin1"), nets.connect_entity("two", FAR_AUTHORITIES[0])
    wait_forwarded(near, far, *FAR_AUTHORITIES)
    wait_forwarded(far, near, "a.vin1")
    topic = near.address.at(0x8001)
    far.call(Uri("g1", 0, 3).at(wire.SUBSCRIBE), wire.subscription_request(topic))

    def is_received() -> bool:
        near.publish(topic, b"?")
        return bool(far.events(topic))

    eventually(is_received, True)

    events = [near.publish(topic, b"%d" % number) for number in range(MESSAGES_EACH)]
    notifications = [
        send_notification(near, Uri(who, 0x99, 1)) for who in FAR_AUTHORITIES for _ in range(MESSAGES_EACH)
    ]
    notifications_back = [send_notification(far, near.address) for _ in range(MESSAGES_EACH)]
    calls = [
        near.send_request(Uri(who, 0x99, 1).at(1), b"question")
        for who in FAR_AUTHORITIES
        for _ in range(MESSAGES_EACH)
    ]
    for call in calls:
        request = far.inbox.wait_one(has_id(call))
        far.respond(request, b"answer")
    for call in calls:
        near.wait_response(call)
    unroutable = [near.send_request(Uri(f"mars{number}", 1, 1).at(1)) for number in range(MESSAGES_EACH)]
    for call in unroutable:
        near.wait_response(call)

    stop_and_drain(nets.connect_entity("two", "b0.vin1"), far, *gateways)
    stop_and_drain(nets.connect_entity("one", "a.vin1"), near)
    answers = {call: near.responses(call) for call in (*calls, *unroutable)}
    for call in calls:
        assert b"answer" in [each.payload for each in answers[call]]
    for call in unroutable:
        assert {each.head.commstatus for each in answers[call]} == {wire.UNAVAILABLE}
    return {
        "publications": receive_counts(far, events),
        "notifications": receive_counts(far, notifications),
        "notifications back": receive_counts(near, notifications_back),
        "requests": receive_counts(far, calls),
        "responses": [len(answers[call]) for call in calls],
        "no-route responses": [len(answers[call]) for call in unroutable],
    }


def test_through_two_redundant_streamers_each_message_of_each_type_arrives_once(make: Make) -> None:
    nets = make("one", "two")
    gateways = launch_side_by_side(nets)
    received = exchange_all_types(nets, gateways)
    assert {kind: set(times) for kind, times in received.items()} == {kind: {1} for kind in received}
    # Each streamer forwarded its share and deferred the rest.
    for each in gateways:
        assert each.process.ledger["delivered"] > 2 * MESSAGES_EACH
        assert each.process.ledger["denied"] == 0
        assert each.refused_counts("one")["deferred_to_peer"] > MESSAGES_EACH
    assert sum(each.process.ledger["dead_lettered"] for each in gateways) == MESSAGES_EACH


def test_two_streamers_without_peer_detection_both_forward_everything(make: Make) -> None:
    """The control of the test above.

    Each streamer also responds to the forwarded request of the other as a spoofed one.
    """
    nets = make("one", "two")
    off = dict.fromkeys(SIDE_BY_SIDE, "peers = false")
    received = exchange_all_types(nets, launch_side_by_side(nets, off))
    assert set(received["notifications"]) == set(received["requests"]) == {2}
    assert min(received["responses"]) > 1
    assert set(received["no-route responses"]) == {2}


# --------------------------------------------------------------------------------------------------- failover


class NotificationStream:
    """400 notifications per second to the far authorities in turn, with the time of each."""

    def __init__(self, near: ZenohEntity, far: ZenohEntity) -> None:
        self._near, self._far = near, far
        self.sent: list[tuple[float, Id]] = []

    def beat(self, number: int) -> None:
        self.sent.append(
            (
                time.monotonic(),
                send_notification(self._near, Uri(FAR_AUTHORITIES[number % len(FAR_AUTHORITIES)], 0x99, 1)),
            )
        )

    def wait_sent(self, count: int) -> None:
        """Wait until `count` more notifications are sent."""
        wanted = len(self.sent) + count
        eventually(lambda: len(self.sent) >= wanted, True)

    def result(self) -> tuple[list[float], int]:
        """Send times of the lost notifications, and the number of duplicates."""
        times = receive_counts(self._far, [id for _, id in self.sent])
        lost = [when for (when, _), count in zip(self.sent, times, strict=True) if not count]
        return lost, sum(count > 1 for count in times)


def run_fail_over(make: Make, end: Callable[[Gateway], None]) -> tuple[float, int, int, Gateway]:
    """End one of two streamers under load.

    Returns the length of the gap, the losses, the duplicates and the other streamer.
    """
    nets = make("one", "two")
    first, second = launch_side_by_side(nets)
    near, far = nets.connect_entity("one", "a.vin1"), nets.connect_entity("two", FAR_AUTHORITIES[0])
    wait_forwarded(near, far, *FAR_AUTHORITIES)
    stream = NotificationStream(near, far)
    with Metronome(400, stream.beat):
        stream.wait_sent(200)
        end(first)
        second.wait_known_peers("one")
        second.wait_known_peers("two")
        stream.wait_sent(400)
    stop_and_drain(nets.connect_entity("two", FAR_AUTHORITIES[0]), far, second)
    lost, twice = stream.result()
    gap_s = max(lost) - min(lost) if lost else 0.0
    print(f"\n{len(stream.sent)} sent, {len(lost)} lost within {1000 * gap_s:.1f} ms, {twice} twice")
    return gap_s, len(lost), twice, second


def test_when_one_of_two_streamers_is_killed_the_other_takes_over_its_share(make: Make) -> None:
    gap_s, _, twice, second = run_fail_over(make, lambda gateway: gateway.process.kill())
    assert gap_s < 1.0  # milliseconds, on a quiet machine
    assert twice <= 40  # 0.1 s of traffic: messages that the other streamer had not read yet are now its own
    assert second.process.ledger["dead_lettered"] == 0


def test_when_one_of_two_streamers_stops_the_other_takes_over_its_share(make: Make) -> None:
    gap_s, _, twice, _ = run_fail_over(make, lambda gateway: gateway.process.stop())
    assert gap_s < 1.0
    assert twice <= 40  # as above, and the other streamer begins while the first drains


def test_a_streamer_cut_off_from_the_destination_network_loses_its_share(make: Make) -> None:
    """It still announces itself on the near network, but the peer no longer finds it on the far network."""
    nets = make("one", "two")
    branch = nets.open_branch("branch", network="two")
    first = nets.launch_streamer(
        "g1", {"one": SIDE_BY_SIDE["one"], "branch:two": FAR_AUTHORITIES}
    ).wait_ready()
    second = nets.launch_streamer("g2", SIDE_BY_SIDE).wait_ready()
    for one, other in ((first, second), (second, first)):
        for endpoint in SIDE_BY_SIDE:
            one.wait_known_peers(endpoint, other.authority)
    near, far = nets.connect_entity("one", "a.vin1"), nets.connect_entity("two", FAR_AUTHORITIES[0])
    wait_forwarded(near, far, *FAR_AUTHORITIES)
    branch.close()  # type: ignore[no-untyped-call]
    second.wait_known_peers("two")
    assert second.known_peers("one") == ["g1"]
    notes = [
        send_notification(near, Uri(who, 0x99, 1)) for who in FAR_AUTHORITIES for _ in range(MESSAGES_EACH)
    ]
    stop_and_drain(nets.connect_entity("two", FAR_AUTHORITIES[0]), far, second)
    assert set(receive_counts(far, notes)) == {1}


def test_a_restarted_streamer_has_its_share_again(make: Make) -> None:
    nets = make("one", "two")
    first, second = launch_side_by_side(nets)
    near, far = nets.connect_entity("one", "a.vin1"), nets.connect_entity("two", FAR_AUTHORITIES[0])
    wait_forwarded(near, far, *FAR_AUTHORITIES)
    first.process.kill()
    second.wait_known_peers("one")
    first = nets.launch_streamer("g1", SIDE_BY_SIDE).wait_ready()
    for one, other in ((first, second), (second, first)):
        for network in SIDE_BY_SIDE:
            one.wait_known_peers(network, other.authority)
    wait_forwarded(near, far, *FAR_AUTHORITIES)
    notes = [
        send_notification(near, Uri(who, 0x99, 1)) for who in FAR_AUTHORITIES for _ in range(MESSAGES_EACH)
    ]
    stop_and_drain(nets.connect_entity("two", FAR_AUTHORITIES[0]), far, first, second)
    assert set(receive_counts(far, notes)) == {1}
    assert all(each.process.ledger["delivered"] >= MESSAGES_EACH for each in (first, second))


def test_peers_are_listed_and_a_reload_is_announced(make: Make) -> None:
    nets = make("one", "two")
    gateways = launch_side_by_side(nets)
    notified = run_command("routes", gateways[0].config).stdout
    assert re.search(r"^one +zenoh +up +a.vin1 g1 g2\n +peers g2$", notified, re.MULTILINE)
    more = {
        "one": SIDE_BY_SIDE["one"],
        "two": (*FAR_AUTHORITIES, *(f"c{number}.vin1" for number in range(8))),
    }
    for each in gateways:
        nets.reload_streamer(each, more)
    near, far = nets.connect_entity("one", "a.vin1"), nets.connect_entity("two", FAR_AUTHORITIES[0])
    wait_forwarded(near, far, *more["two"])
    notes = [send_notification(near, Uri(who, 0x99, 1)) for who in more["two"] for _ in range(MESSAGES_EACH)]
    stop_and_drain(nets.connect_entity("two", FAR_AUTHORITIES[0]), far, *gateways)
    assert set(receive_counts(far, notes)) == {1}
    assert all(each.refused_counts("one")["deferred_to_peer"] > MESSAGES_EACH for each in gateways)


# --------------------------------------------------------------------------------------------------- observed requests


def test_a_third_streamer_ignores_requests_that_a_peer_forwards_or_that_stay_on_the_network(
    make: Make,
) -> None:
    nets = make("one", "two", "three")
    carrier = nets.launch_streamer("g1", {"one": ("a.vin1", "a2.vin1"), "two": ("b.vin1",)}).wait_ready()
    third = nets.launch_streamer("g3", {"one": ("a.vin1",), "three": ("c.vin1",)}).wait_ready()
    third.wait_known_peers("one", "g1")
    near, resident, far = (
        nets.connect_entity("one", "a.vin1"),
        nets.connect_entity("one", "a2.vin1"),
        nets.connect_entity("two", "b.vin1"),
    )
    wait_forwarded(near, far, "b.vin1")
    answered = []
    for server in (far, resident):
        call = near.send_request(server.address.at(1), b"question")
        server.respond(server.inbox.wait_one(has_id(call)))
        answered.append(call)
    # Neither the source nor the sink is known to the third streamer.
    call = resident.send_request(far.address.at(1), b"question")
    far.respond(far.inbox.wait_one(has_id(call)))
    resident.wait_response(call)
    stop_and_drain(nets.connect_entity("one", "a.vin1"), near, carrier, third)
    assert [len(near.responses(each)) for each in answered] == [1, 1]
    assert len(resident.responses(call)) == 1
    assert third.refused_counts("one")["deferred_to_peer"] >= 2


# --------------------------------------------------------------------------------------------------- rings

RING: Final[Mapping[str, Mapping[str, Sequence[str]]]] = {
    "ab": {"a": ("a.vin1",), "b": ("b.vin1", "c.vin1")},
    "bc": {"b": ("b.vin1", "a.vin1"), "c": ("c.vin1",)},
    "ca": {"c": ("c.vin1", "b.vin1"), "a": ("a.vin1",)},
}
"""Two paths lead from a to c: through ca, and through ab and bc."""


@pytest.mark.parametrize(("named", "times"), [(True, {1}), (False, {2})])
def test_in_a_ring_of_three_that_name_each_other_each_message_arrives_once(
    make: Make, named: bool, times: set[int]
) -> None:
    """Announcements of streamers that are not named are not trusted, as those are not present on the other network."""
    nets = make("a", "b", "c")
    trust = 'peers = ["ab", "bc", "ca"]' if named else ""
    ring = [nets.launch_streamer(name, homes, dict.fromkeys(homes, trust)) for name, homes in RING.items()]
    for each in ring:
        each.wait_ready()
    for each in ring:
        for network in RING[each.authority]:
            each.wait_known_peers(
                network, *(n for n, homes in RING.items() if network in homes and n != each.authority)
            )
    near, far = nets.connect_entity("a", "a.vin1"), nets.connect_entity("c", "c.vin1")
    wait_forwarded(near, far, "c.vin1")
    wait_forwarded(far, near, "a.vin1")
    notes = [send_notification(near, far.address) for _ in range(MESSAGES_EACH)]
    calls = [near.send_request(far.address.at(1), b"question") for _ in range(MESSAGES_EACH)]
    for call in calls:
        far.respond(far.inbox.wait_one(has_id(call)))
        near.wait_response(call)
    stop_and_drain(nets.connect_entity("c", "c.vin1"), far, *ring)
    stop_and_drain(nets.connect_entity("a", "a.vin1"), near)
    assert set(receive_counts(far, notes)) == times
    assert set(receive_counts(far, calls)) == times
    if named:
        assert {len(near.responses(call)) for call in calls} == {1}


# --------------------------------------------------------------------------------------------------- starting

START_ORDERS: Final = (("near", "listener", "far"), ("listener", "near", "far"), ("far", "near", "listener"))
"""Two in which the first call precedes the far streamer, the case that failed; and one in which the far streamer is
first.
"""


@pytest.mark.parametrize("order", START_ORDERS, ids="-".join)
def test_a_remote_subscription_is_granted_soon_despite_a_node_subscribed_to_everything(
    tmp_path: Path, order: Sequence[str]
) -> None:
    """With such a node Zenoh accepts every call, so a call sent before the far streamer listens is lost.

    Without an announcement of the far streamer the near one would retry only after 5 minutes.
    """
    near_ports, far_ports = link_port_pairs()
    with ExitStack() as exit_stack:
        sides: dict[str, StreamerSide] = {}
        app: list[Subscriber] = []
        for name, authority, other, ports, link in (
            ("near", NEAR_AUTHORITY, FAR_AUTHORITY, near_ports, far_ports.link),
            ("far", FAR_AUTHORITY, NEAR_AUTHORITY, far_ports, near_ports.link),
        ):
            directory = tmp_path / name
            directory.mkdir()
            sides[name] = StreamerSide(authority, other, ports, link, directory, "")
            exit_stack.callback(sides[name].close)
        topic = Uri(FAR_AUTHORITY, 0x4321, 1).at(0x8001)
        for who in order:
            if who == "listener":
                exit_stack.enter_context(node_subscribed_to_all(near_ports.link))
                continue
            sides[who].start()
            if who == "near":
                app.append(sides[who].new_application())
                exit_stack.callback(app[0].close)
                app[0].request_subscription(topic)
        app[0].wait_notified(topic, SUBSCRIBED)
        for side in sides.values():
            side.stop()


@contextmanager
def node_subscribed_to_all(port: int) -> Iterator[None]:
    """A node that connects as soon as a listener exists at `port`."""
    config = zenoh.Config()
    config.insert_json5("mode", '"peer"')
    config.insert_json5("connect/endpoints", json.dumps([f"tcp/127.0.0.1:{port}"]))
    config.insert_json5(
        "connect/retry", "{period_init_ms: 100, period_max_ms: 100, period_increase_factor: 1}"
    )
    config.insert_json5("scouting/multicast/enabled", "false")
    session = zenoh.open(config)
    try:
        session.declare_subscriber("**", lambda _: None)
        yield
    finally:
        session.close()  # type: ignore[no-untyped-call]


# --------------------------------------------------------------------------------------------------- loops


def test_one_network_behind_two_endpoints_is_logged_once_and_no_message_loops(make: Make) -> None:
    """A publication of a enters its own network once more, through the other endpoint, and not endlessly."""
    nets = make("one")
    gateway = nets.launch_streamer("g1", {"one:first": ("a.vin1", "g1"), "one:second": ("*",)}).wait_ready()
    for endpoint in ("first", "second"):
        where = f'"endpoint": "{endpoint}"'
        gateway.process.stderr.wait_one(contains_all("streamer.duplicate_network", where))
    publisher, listener = nets.connect_entity("one", "a.vin1"), nets.connect_entity("one", "b.vin1")
    topic = publisher.address.at(0x8001)
    call = listener.send_request(Uri("g1", 0, 3).at(wire.SUBSCRIBE), wire.subscription_request(topic))
    assert listener.wait_response(call).head.commstatus in {None, wire.OK}
    events = [publisher.publish(topic, b"%d" % number) for number in range(MESSAGES_EACH)]
    eventually(
        lambda: set(receive_counts(listener, events)), {2}
    )  # from the publisher, and through the gateway
    stop_and_drain(nets.connect_entity("one", "b.vin1"), listener, gateway)
    assert set(receive_counts(listener, events)) == {2}
    assert gateway.refused_counts("first")["duplicate"] >= MESSAGES_EACH
    for endpoint in ("first", "second"):
        assert "spoofed" not in gateway.refused_counts(
            endpoint
        )  # although each endpoint received every message
    assert len(listener.responses(call)) == 1
    assert (
        len([each for each in gateway.process.log_records if each["event"] == "streamer.duplicate_network"])
        == 2
    )


OPEN_RING: Final[Mapping[str, Mapping[str, Sequence[str]]]] = {
    "ab": {"a": ("*",), "b": ("b.vin1", "ab")},
    "bc": {"b": ("*",), "c": ("c.vin1", "bc")},
    "ca": {"c": ("*",), "a": ("a.vin1", "ca")},
}
"""Each streamer forwards messages of unknown senders to its other network, so a message travels round the ring."""


def test_in_a_ring_that_accepts_unknown_senders_a_message_ends_where_it_began(make: Make) -> None:
    nets = make("a", "b", "c")
    ring = [nets.launch_streamer(name, homes) for name, homes in OPEN_RING.items()]
    for each in ring:
        each.wait_ready()
    for each in ring:
        for network in OPEN_RING[each.authority]:
            there = [n for n, homes in OPEN_RING.items() if network in homes and n != each.authority]
            each.wait_known_peers(network, *there)
    unknown = nets.connect_entity("a", "x.vin1")
    topic = unknown.address.at(0x8001)
    listeners = [nets.connect_entity(network, f"{network}.vin1") for network in "abc"]
    for listener, gateway in zip(listeners, ("ca", "ab", "bc"), strict=True):
        answer = listener.call(Uri(gateway, 0, 3).at(wire.SUBSCRIBE), wire.subscription_request(topic))
        assert answer.head.commstatus in {None, wire.OK}

    sent: list[Id] = []

    def has_looped() -> bool:
        sent.append(unknown.publish(topic, b"?"))
        return 2 in receive_counts(listeners[0], sent)

    eventually(has_looped, True)
    events = [unknown.publish(topic, b"%d" % number) for number in range(MESSAGES_EACH)]
    eventually(lambda: [set(receive_counts(each, events)) for each in listeners], [{2}, {1}, {1}])
    for each in ring:
        each.process.stop()
    assert [set(receive_counts(each, events)) for each in listeners] == [{2}, {1}, {1}]
