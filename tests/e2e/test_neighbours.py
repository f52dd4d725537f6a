# SPDX-License-Identifier: Apache-2.0
"""Several streamers on one network, each a process: what names its sink goes through one of them, and one answers.

tests/core/test_neighbours.py has who is chosen; publications are in test_puts.py and test_topologies.py.
"""

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import permutations
from pathlib import Path
from typing import Final

import pytest
import zenoh

from tests.e2e import wire
from tests.e2e.neighbourhood import (
    EACH,
    FAR,
    SIDE_BY_SIDE,
    Gateway,
    Neighbourhood,
    all_has_come,
    await_way,
    notify,
    side_by_side,
    times_come,
)
from tests.e2e.peers import Metronome, Sample, ZenohPeer, eventually
from tests.e2e.streamer import run_command
from tests.e2e.subscriber import SUBSCRIBED, Subscriber
from tests.e2e.two_streamers import A, B, Side, _ports
from tests.e2e.wire import Id, Uri

Make = Callable[..., Neighbourhood]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    with ExitStack() as last_first:
        yield lambda *networks: Neighbourhood(tmp_path, last_first, *networks)


def being(id: Id) -> Callable[[Sample], bool]:
    return lambda sample: sample.attributes is not None and sample.attributes.id == id


def says(*words: str) -> Callable[[str], bool]:
    return lambda line: all(each in line for each in words)


# --------------------------------------------------------------------------------------------------- side by side


def exchange(street: Neighbourhood, gateways: Sequence[Gateway]) -> dict[str, list[int]]:
    """Have all four types of message go each way, and end the streamers; how often each message has come."""
    near, far = street.peer("one", "a.vin1"), street.peer("two", FAR[0])
    await_way(near, far, *FAR)
    await_way(far, near, "a.vin1")
    topic = near.address.at(0x8001)
    far.call(Uri("g1", 0, 3).at(wire.SUBSCRIBE), wire.subscription_request(topic))

    def is_heard() -> bool:
        near.publish(topic, b"?")
        return bool(far.events(topic))

    eventually(is_heard, True)

    events = [near.publish(topic, b"%d" % number) for number in range(EACH)]
    notes = [notify(near, Uri(who, 0x99, 1)) for who in FAR for _ in range(EACH)]
    notes_back = [notify(far, near.address) for _ in range(EACH)]
    calls = [near.request(Uri(who, 0x99, 1).at(1), b"question") for who in FAR for _ in range(EACH)]
    for call in calls:
        asked = far.inbox.one(being(call))
        far.respond(asked, b"answer")
    for call in calls:
        near.answer(call)
    nowhere = [near.request(Uri(f"mars{number}", 1, 1).at(1)) for number in range(EACH)]
    for call in nowhere:
        near.answer(call)

    all_has_come(street.peer("two", "b0.vin1"), far, *gateways)
    all_has_come(street.peer("one", "a.vin1"), near)
    answers = {call: near.answers(call) for call in (*calls, *nowhere)}
    for call in calls:
        assert b"answer" in [each.payload for each in answers[call]]
    for call in nowhere:
        assert {each.head.commstatus for each in answers[call]} == {wire.UNAVAILABLE}
    return {
        "publications": times_come(far, events),
        "notifications": times_come(far, notes),
        "notifications back": times_come(near, notes_back),
        "requests": times_come(far, calls),
        "responses": [len(answers[call]) for call in calls],
        "answers that there is no way": [len(answers[call]) for call in nowhere],
    }


def test_through_two_side_by_side_each_message_of_each_type_comes_once(make: Make) -> None:
    street = make("one", "two")
    gateways = side_by_side(street)
    came = exchange(street, gateways)
    assert {what: set(times) for what, times in came.items()} == {what: {1} for what in came}
    # Each has carried some of it, and left alone what was the other's.
    for each in gateways:
        assert each.process.ledger["delivered"] > 2 * EACH
        assert each.process.ledger["denied"] == 0
        assert each.refused("one")["neighbour"] > EACH
    assert sum(each.process.ledger["dead_lettered"] for each in gateways) == EACH


def test_of_two_that_do_not_look_for_each_other_each_carries_everything(make: Make) -> None:
    """What the above is for: also, who hears the other's copy of a request says that it is a spoof."""
    street = make("one", "two")
    off = dict.fromkeys(SIDE_BY_SIDE, "neighbours = false")
    came = exchange(street, side_by_side(street, off))
    assert set(came["notifications"]) == set(came["requests"]) == {2}
    assert min(came["responses"]) > 1
    assert set(came["answers that there is no way"]) == {2}


# --------------------------------------------------------------------------------------------------- failover


class Stream:
    """Notifications to all of FAR in turn, 400 a second, and when each was sent."""

    def __init__(self, near: ZenohPeer, far: ZenohPeer) -> None:
        self._near, self._far = near, far
        self.sent: list[tuple[float, Id]] = []

    def beat(self, number: int) -> None:
        self.sent.append((time.monotonic(), notify(self._near, Uri(FAR[number % len(FAR)], 0x99, 1))))

    def await_more(self, count: int) -> None:
        """Wait until so many more have been sent."""
        wanted = len(self.sent) + count
        eventually(lambda: len(self.sent) >= wanted, True)

    def result(self) -> tuple[list[float], int]:
        """When those were sent that have not come, and how many have come twice."""
        times = times_come(self._far, [id for _, id in self.sent])
        lost = [when for (when, _), count in zip(self.sent, times, strict=True) if not count]
        return lost, sum(count > 1 for count in times)


def fail_over(make: Make, end: Callable[[Gateway], None]) -> tuple[float, int, int, Gateway]:
    """End one of two under load: for how long something was lost, how much that was, how much came twice; the other one."""
    street = make("one", "two")
    first, second = side_by_side(street)
    near, far = street.peer("one", "a.vin1"), street.peer("two", FAR[0])
    await_way(near, far, *FAR)
    stream = Stream(near, far)
    with Metronome(400, stream.beat):
        stream.await_more(200)
        end(first)
        second.wait_there("one")
        second.wait_there("two")
        stream.await_more(400)
    all_has_come(street.peer("two", FAR[0]), far, second)
    lost, twice = stream.result()
    gap_s = max(lost) - min(lost) if lost else 0.0
    print(f"\n{len(stream.sent)} sent, {len(lost)} lost within {1000 * gap_s:.1f} ms, {twice} twice")
    return gap_s, len(lost), twice, second


def test_when_one_of_two_is_killed_the_other_takes_over_its_share(make: Make) -> None:
    gap_s, _, twice, second = fail_over(make, lambda gateway: gateway.process.kill())
    assert gap_s < 1.0  # milliseconds, on a quiet machine
    assert twice <= 40  # 0.1 s: what the other one had not read yet has become its own
    assert second.process.ledger["dead_lettered"] == 0


def test_when_one_of_two_is_stopped_the_other_takes_over_its_share(make: Make) -> None:
    gap_s, _, twice, _ = fail_over(make, lambda gateway: gateway.process.stop())
    assert gap_s < 1.0
    assert twice <= 40  # as above, and while one stops to listen, the other begins


def test_one_that_is_cut_off_from_the_other_side_is_not_relied_on(make: Make) -> None:
    """It is there on this side still, and says that it carries; but who has to rely on it looks for it on the other side."""
    street = make("one", "two")
    branch = street.branch("branch", of="two")
    first = street.launch("g1", {"one": SIDE_BY_SIDE["one"], "branch:two": FAR}).ready()
    second = street.launch("g2", SIDE_BY_SIDE).ready()
    for one, other in ((first, second), (second, first)):
        for endpoint in SIDE_BY_SIDE:
            one.wait_there(endpoint, other.authority)
    near, far = street.peer("one", "a.vin1"), street.peer("two", FAR[0])
    await_way(near, far, *FAR)
    branch.close()  # type: ignore[no-untyped-call]
    second.wait_there("two")
    assert second.there("one") == ["g1"]
    notes = [notify(near, Uri(who, 0x99, 1)) for who in FAR for _ in range(EACH)]
    all_has_come(street.peer("two", FAR[0]), far, second)
    assert set(times_come(far, notes)) == {1}


def test_one_that_comes_back_has_its_share_again(make: Make) -> None:
    street = make("one", "two")
    first, second = side_by_side(street)
    near, far = street.peer("one", "a.vin1"), street.peer("two", FAR[0])
    await_way(near, far, *FAR)
    first.process.kill()
    second.wait_there("one")
    first = street.launch("g1", SIDE_BY_SIDE).ready()
    for one, other in ((first, second), (second, first)):
        for network in SIDE_BY_SIDE:
            one.wait_there(network, other.authority)
    await_way(near, far, *FAR)
    notes = [notify(near, Uri(who, 0x99, 1)) for who in FAR for _ in range(EACH)]
    all_has_come(street.peer("two", FAR[0]), far, first, second)
    assert set(times_come(far, notes)) == {1}
    assert all(each.process.ledger["delivered"] >= EACH for each in (first, second))


def test_neighbours_are_told_and_a_reload_is_announced(make: Make) -> None:
    street = make("one", "two")
    gateways = side_by_side(street)
    told = run_command("routes", gateways[0].config).stdout
    assert re.search(r"^one +zenoh +up +a.vin1 g1 g2\n +beside g2$", told, re.MULTILINE)
    more = {"one": SIDE_BY_SIDE["one"], "two": (*FAR, *(f"c{number}.vin1" for number in range(8)))}
    for each in gateways:
        street.reload(each, more)
    near, far = street.peer("one", "a.vin1"), street.peer("two", FAR[0])
    await_way(near, far, *more["two"])
    notes = [notify(near, Uri(who, 0x99, 1)) for who in more["two"] for _ in range(EACH)]
    all_has_come(street.peer("two", FAR[0]), far, *gateways)
    assert set(times_come(far, notes)) == {1}
    assert all(each.refused("one")["neighbour"] > EACH for each in gateways)


# --------------------------------------------------------------------------------------------------- overhearing


def test_a_third_streamer_says_nothing_about_a_request_that_another_carries_or_that_lives_there(
    make: Make,
) -> None:
    street = make("one", "two", "three")
    carrier = street.launch("g1", {"one": ("a.vin1", "a2.vin1"), "two": ("b.vin1",)}).ready()
    third = street.launch("g3", {"one": ("a.vin1",), "three": ("c.vin1",)}).ready()
    third.wait_there("one", "g1")
    near, resident, far = (
        street.peer("one", "a.vin1"),
        street.peer("one", "a2.vin1"),
        street.peer("two", "b.vin1"),
    )
    await_way(near, far, "b.vin1")
    answered = []
    for server in (far, resident):
        call = near.request(server.address.at(1), b"question")
        server.respond(server.inbox.one(being(call)))
        answered.append(call)
    # From somebody whom the third does not know, to somebody whom it does not know either.
    call = resident.request(far.address.at(1), b"question")
    far.respond(far.inbox.one(being(call)))
    resident.answer(call)
    all_has_come(street.peer("one", "a.vin1"), near, carrier, third)
    assert [len(near.answers(each)) for each in answered] == [1, 1]
    assert len(resident.answers(call)) == 1
    assert third.refused("one")["neighbour"] >= 2


# --------------------------------------------------------------------------------------------------- rings

RING: Final[Mapping[str, Mapping[str, Sequence[str]]]] = {
    "ab": {"a": ("a.vin1",), "b": ("b.vin1", "c.vin1")},
    "bc": {"b": ("b.vin1", "a.vin1"), "c": ("c.vin1",)},
    "ca": {"c": ("c.vin1", "b.vin1"), "a": ("a.vin1",)},
}
"""From a to c there are two ways: through ca, and through ab and bc."""


@pytest.mark.parametrize(("named", "times"), [(True, {1}), (False, {2})])
def test_in_a_ring_of_three_that_name_each_other_each_message_comes_once(
    make: Make, named: bool, times: set[int]
) -> None:
    """Those who are not named are not believed: they are not seen on the other side."""
    street = make("a", "b", "c")
    trust = 'neighbours = ["ab", "bc", "ca"]' if named else ""
    ring = [street.launch(name, homes, dict.fromkeys(homes, trust)) for name, homes in RING.items()]
    for each in ring:
        each.ready()
    for each in ring:
        for network in RING[each.authority]:
            each.wait_there(
                network, *(n for n, homes in RING.items() if network in homes and n != each.authority)
            )
    near, far = street.peer("a", "a.vin1"), street.peer("c", "c.vin1")
    await_way(near, far, "c.vin1")
    await_way(far, near, "a.vin1")
    notes = [notify(near, far.address) for _ in range(EACH)]
    calls = [near.request(far.address.at(1), b"question") for _ in range(EACH)]
    for call in calls:
        far.respond(far.inbox.one(being(call)))
        near.answer(call)
    all_has_come(street.peer("c", "c.vin1"), far, *ring)
    all_has_come(street.peer("a", "a.vin1"), near)
    assert set(times_come(far, notes)) == times
    assert set(times_come(far, calls)) == times
    if named:
        assert {len(near.answers(call)) for call in calls} == {1}


# --------------------------------------------------------------------------------------------------- starting


@pytest.mark.parametrize("order", list(permutations(("near", "far", "listener"))), ids="-".join)
def test_with_a_node_on_the_link_that_hears_everything_a_remote_subscription_is_granted_soon(
    tmp_path: Path, order: Sequence[str]
) -> None:
    """To Zenoh somebody listens to every call then, so one that comes before the far streamer listens is lost.

    It was asked again when 5 minutes had gone. Now the far streamer says when it listens.
    """
    near_ports, far_ports = _ports()
    with ExitStack() as last_first:
        sides: dict[str, Side] = {}
        app: list[Subscriber] = []
        for name, authority, other, ports, link in (
            ("near", A, B, near_ports, far_ports.link),
            ("far", B, A, far_ports, near_ports.link),
        ):
            directory = tmp_path / name
            directory.mkdir()
            sides[name] = Side(authority, other, ports, link, directory, "")
            last_first.callback(sides[name].close)
        topic = Uri(B, 0x4321, 1).at(0x8001)
        for who in order:
            if who == "listener":
                last_first.enter_context(listening_to_everything(near_ports.link))
                continue
            sides[who].start()
            if who == "near":
                app.append(sides[who].application())
                last_first.callback(app[0].close)
                app[0].request_subscription(topic)
        app[0].wait_told(topic, SUBSCRIBED)
        for side in sides.values():
            side.stop()


@contextmanager
def listening_to_everything(port: int) -> Iterator[None]:
    """A node that is there as soon as what listens at `port` is."""
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


def test_of_one_network_behind_two_endpoints_it_is_said_once_and_nothing_goes_round(make: Make) -> None:
    """A publication of a is put into its own network once, through the other endpoint, and not for ever."""
    street = make("one")
    gateway = street.launch("g1", {"one:first": ("a.vin1", "g1"), "one:second": ("*",)}).ready()
    for endpoint in ("first", "second"):
        where = f'"endpoint": "{endpoint}"'
        gateway.process.stderr.one(says("one_network_twice", where))
    speaker, listener = street.peer("one", "a.vin1"), street.peer("one", "b.vin1")
    topic = speaker.address.at(0x8001)
    call = listener.request(Uri("g1", 0, 3).at(wire.SUBSCRIBE), wire.subscription_request(topic))
    assert listener.answer(call).head.commstatus in {None, wire.OK}
    events = [speaker.publish(topic, b"%d" % number) for number in range(EACH)]
    eventually(lambda: set(times_come(listener, events)), {2})  # from the speaker, and through the gateway
    all_has_come(street.peer("one", "b.vin1"), listener, gateway)
    assert set(times_come(listener, events)) == {2}
    assert gateway.refused("first")["duplicate"] >= EACH
    for endpoint in ("first", "second"):
        assert "spoofed" not in gateway.refused(endpoint)  # each of which has heard everything
    assert len(listener.answers(call)) == 1
    assert len([each for each in gateway.process.log if each["event"] == "one_network_twice"]) == 2


STRANGERS: Final[Mapping[str, Mapping[str, Sequence[str]]]] = {
    "ab": {"a": ("*",), "b": ("b.vin1", "ab")},
    "bc": {"b": ("*",), "c": ("c.vin1", "bc")},
    "ca": {"c": ("*",), "a": ("a.vin1", "ca")},
}
"""Each takes what a stranger says on the one side to the other side, so round it goes."""


def test_in_a_ring_that_takes_strangers_round_it_ends_where_it_began(make: Make) -> None:
    street = make("a", "b", "c")
    ring = [street.launch(name, homes) for name, homes in STRANGERS.items()]
    for each in ring:
        each.ready()
    for each in ring:
        for network in STRANGERS[each.authority]:
            there = [n for n, homes in STRANGERS.items() if network in homes and n != each.authority]
            each.wait_there(network, *there)
    stranger = street.peer("a", "x.vin1")
    topic = stranger.address.at(0x8001)
    listeners = [street.peer(network, f"{network}.vin1") for network in "abc"]
    for listener, gateway in zip(listeners, ("ca", "ab", "bc"), strict=True):
        answer = listener.call(Uri(gateway, 0, 3).at(wire.SUBSCRIBE), wire.subscription_request(topic))
        assert answer.head.commstatus in {None, wire.OK}

    asked: list[Id] = []

    def goes_round() -> bool:
        asked.append(stranger.publish(topic, b"?"))
        return 2 in times_come(listeners[0], asked)

    eventually(goes_round, True)
    events = [stranger.publish(topic, b"%d" % number) for number in range(EACH)]
    eventually(lambda: [set(times_come(each, events)) for each in listeners], [{2}, {1}, {1}])
    for each in ring:
        each.process.stop()
    assert [set(times_come(each, events)) for each in listeners] == [{2}, {1}, {1}]
