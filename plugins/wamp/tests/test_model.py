# SPDX-License-Identifier: Apache-2.0
"""Anything that clients may do, in any order, against a model that is a set."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from ustreamer_wamp.broker import Broker, matches

if TYPE_CHECKING:
    from tests.conftest import Client, RealmRig

COMPONENTS = ["a", "b", "ab"]
TOPICS = ["a", "b", "ab", "a.b", "a.ab", "b.a", "a.b.a", "ab.b.a"]
PATTERNS = {
    "exact": TOPICS,
    # No pattern matches wamp.subscription.on_create: its subscribers receive their own meta event, which
    # test_conformance covers.
    "prefix": ["a", "a.", "a.a", "ab.b.", "b"],
    "wildcard": ["", ".", "a.", ".b", ".b.", "a..", "a..a", "a.b"],
}
SUBSCRIPTIONS = st.sampled_from([(match, topic) for match, topics in PATTERNS.items() for topic in topics])
NUMBERS = st.integers(0, 3)


class Sessions(RuleBasedStateMachine):
    """Four clients; the subscriptions of each are a dict from (policy, topic) to the assigned id."""

    def __init__(self, make_rig: Callable[[], "RealmRig"]) -> None:
        super().__init__()
        self.rig = make_rig()
        self.clients: list[Client] = [
            self.rig.joined_client(name) for name in ("json", "msgpack", "cbor", "json")
        ]
        self.held: list[dict[tuple[str, str], int]] = [{}, {}, {}, {}]
        self.given: dict[int, tuple[str, str]] = {}
        self.requests = 0

    def request(self) -> int:
        self.requests += 1
        return self.requests

    @rule(number=NUMBERS, desired=SUBSCRIPTIONS)
    def subscribe(self, number: int, desired: tuple[str, str]) -> None:
        match, topic = desired
        request = self.request()
        answer = self.clients[number].request(32, request, {"match": match}, topic)
        assert answer[:2] == [33, request]
        id = answer[2]
        assert self.given.setdefault(id, desired) == desired, (
            "an id belongs to one topic and policy, for ever"
        )
        others = {each[desired] for each in self.held if desired in each}
        assert others <= {id}, "all holders have the same id, and it stays the same while held"
        self.held[number][desired] = id

    @rule(number=NUMBERS, data=st.data())
    def unsubscribe(self, number: int, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from([*self.given, 2**53]))
        request = self.request()
        answer = self.clients[number].request(34, request, id)
        desired = next((desired for desired, held in self.held[number].items() if held == id), None)
        if desired is None:
            assert answer[:3] == [8, 34, request]
            assert answer[4] == "wamp.error.no_such_subscription"
        else:
            assert answer == [35, request]
            del self.held[number][desired]

    @rule(number=NUMBERS, topic=st.sampled_from(TOPICS), exclude_me=st.booleans(), value=st.integers())
    def publish(self, number: int, topic: str, exclude_me: bool, value: int) -> None:
        value %= 2**63
        request = self.request()
        options = {"acknowledge": True, "exclude_me": exclude_me}
        self.clients[number].send(16, request, options, topic, [value])
        for each, held in zip(self.clients, self.held, strict=True):
            received_messages = each.received()
            if each is self.clients[number]:
                assert received_messages.pop()[:2] == [17, request]
            wanted = {id for (match, pattern), id in held.items() if matches(pattern, match, topic)}  # type: ignore[arg-type]
            if each is self.clients[number] and exclude_me:
                wanted = set()
            assert sorted(event[1] for event in received_messages) == sorted(wanted)
            assert all(event[4] == [value] for event in received_messages)
            assert len({event[2] for event in received_messages}) <= 1

    @rule(number=NUMBERS, how=st.sampled_from(["lost", "goodbye", "nonsense"]))
    def drop(self, number: int, how: str) -> None:
        client = self.clients[number]
        if how == "lost":
            client.session.on_connection_lost()
        elif how == "goodbye":
            client.send(6, {}, "wamp.close.normal")
        else:
            client.send("nonsense")
        self.held[number] = {}
        self.clients[number] = self.rig.joined_client(client.serializer.name)

    @invariant()
    def the_broker_holds_what_the_model_holds(self) -> None:
        broker: Broker[Any] = self.rig.realm.broker
        wanted = {desired for held in self.held for desired in held}
        assert {(each.match, each.topic) for each in broker} == wanted
        assert len(self.rig.realm.sessions) == len(self.clients)
        for client, held in zip(self.clients, self.held, strict=True):
            assert set(broker.subscriptions_of(client.session)) == set(held.values())
            assert client.received() == []


def test_sessions_in_any_order_match_the_model(make_rig: Callable[[], "RealmRig"]) -> None:
    run_state_machine_as_test(
        lambda: Sessions(make_rig),  # type: ignore[arg-type]  # it takes whatever makes one
        settings=settings(max_examples=80, stateful_step_count=40),
    )
