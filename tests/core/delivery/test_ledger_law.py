# SPDX-License-Identifier: Apache-2.0
"""received = delivered + throttled + expired + dead_lettered + denied + no_subscriber + queued, always.

Random networks, subscriptions, filters and failures; the law is asserted after every step.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from ustreamer.core.delivery.delivery import Delivery
from ustreamer.core.delivery.ledger import Verdict
from ustreamer.core.delivery.ports import Filter
from ustreamer.core.egress.limits import EgressLimits
from ustreamer.core.routing.access import AccessPolicy, AccessRule
from ustreamer.core.routing.router import SELF
from ustreamer.uprotocol.uattributes import UMessageType, UPriority
from ustreamer.uprotocol.umessage import UMessage, notification, publish, request, response
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri, any_at

if TYPE_CHECKING:
    from tests.core.conftest import HoldingFilter, VerdictFilter, World

NAMES = ("north", "east", "south", "west")  # endpoints; behind each lives the authority of the same name
DEAD_LETTERS = UUri("hpc", 4, 1, 0x8000)
FAILURES = (
    None,
    UStatusError(UCode.UNAVAILABLE, "link down"),
    UStatusError(UCode.INTERNAL, "broken"),
)

endpoints = st.sampled_from([*NAMES, SELF])
ingresses = st.sampled_from([None] * 15 + [*NAMES, SELF])  # None: the endpoint of the source
authorities = st.sampled_from([*NAMES] * 4 + ["hpc", "hpc", "mars"])
topics = st.one_of(
    st.builds(UUri, authorities, st.just(1), st.just(1), st.just(0x8000)),
    st.just(DEAD_LETTERS),
)
entities = st.builds(UUri, authorities, st.sampled_from([0, 1, 2]), st.just(3), st.just(0))
topic_patterns = topics | authorities.map(any_at)
ages_ms = st.sampled_from([0, 0, 0, 60])
ttls = st.sampled_from([None, 0, 50])
priorities = st.sampled_from([UPriority.CS4] * 4 + [*UPriority])


access_rules = st.builds(
    AccessRule,
    allow=st.booleans(),
    source=st.sampled_from([None, "//*/1/1/FFFF", "//*/FFFFFFFF/FF/FFFF"]),
    type=st.sampled_from([None, "publish", "request"]),
)


class Moody(Filter):
    """Raises at every third message, or every `times`-th."""

    def __init__(self, times: int = 3) -> None:
        self._times = times
        self._asked = 0

    def admit(self, message: UMessage, now_ns: int) -> Verdict | None:
        self._asked += 1
        if self._asked % self._times == 0:
            raise KeyError("out of sorts")
        return None


class MoodyHolder(Filter):
    """Holds the newest message, raises at every fourth call, and then still releases a message it no longer holds."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery
        self._held: UMessage | None = None
        self._asked = 0

    def _sulk(self) -> None:
        self._asked += 1
        if self._asked % 4 == 0:
            raise KeyError("out of sorts")

    def admit(self, message: UMessage, now_ns: int) -> Verdict | None:
        if self._held is not None:
            self._delivery.dropped_held(self._held, now_ns)
        self._sulk()
        self._held = message
        self._delivery.wake_at(now_ns + 20_000_000, self)
        return Verdict.QUEUED

    def release_due(self, now_ns: int) -> UMessage | None:
        self._sulk()
        return self._held


class MoodyTap:
    """Raises at every fourth verdict, so that it is switched off in the end."""

    def __init__(self) -> None:
        self._notified = 0

    def __call__(self, *_: object, **__: object) -> None:
        self._notified += 1
        if self._notified % 4 == 0:
            raise KeyError("out of sorts")


class Chains:
    """A filter factory that returns the next of several filter chains for each new delivery."""

    def __init__(
        self, kinds: list[str], holding: "type[HoldingFilter]", answering: "type[VerdictFilter]"
    ) -> None:
        self._kinds = kinds
        self._holding = holding
        self._answering = answering
        self._made: dict[Delivery, list[Filter]] = {}
        self._given = 0

    def __call__(self, delivery: Delivery) -> Iterable[Filter]:
        if delivery in self._made:
            return self._made[delivery]
        kind = self._kinds[self._given % len(self._kinds)]
        self._given += 1
        chain = self._chain(kind, delivery)
        if kind != "not registered":
            self._made[delivery] = chain
        return chain

    def _chain(self, kind: str, delivery: Delivery) -> list[Filter]:
        sometimes = self._answering([None, Verdict.THROTTLED, Verdict.DENIED, None, Verdict.THROTTLED] * 20)
        match kind:
            case "drops":
                return [sometimes]
            case "holds" | "not registered":
                return [self._holding(delivery, 20_000_000)]
            case "holds and drops":
                return [self._holding(delivery, 20_000_000), sometimes]
            case "raises":
                return [Moody(), sometimes]
            case "holds and raises":
                return [Moody(), MoodyHolder(delivery), Moody(times=5)]
            case "invalid verdicts":
                return [self._answering([None, Verdict.DELIVERED, "yes"] * 50)]  # type: ignore[list-item]
            case "holds twice":
                return [self._holding(delivery, 5_000_000), self._holding(delivery, 20_000_000)]
        return []


KINDS = ["none", "drops", "holds", "not registered", "holds and drops", "holds twice"]
kinds = st.sampled_from([*KINDS, "raises", "holds and raises", "invalid verdicts"])


class LedgerLaw(RuleBasedStateMachine):
    def __init__(
        self, world: "type[World]", holding: "type[HoldingFilter]", answering: "type[VerdictFilter]"
    ) -> None:
        super().__init__()
        self._make = world
        self._filters = holding, answering
        self._count = 0

    @initialize(
        unicast=st.lists(st.booleans(), min_size=4, max_size=4),
        chains=st.lists(kinds, min_size=1, max_size=4),
        queue_messages=st.integers(1, 4),
        everyone=st.sampled_from([None, *NAMES]),
        plan_limit=st.sampled_from([1, 2, 1000]),
        access=st.dictionaries(
            st.sampled_from(NAMES), st.lists(access_rules, min_size=1, max_size=3), max_size=2
        ),
    )
    def build(
        self,
        unicast: list[bool],
        chains: list[str],
        queue_messages: int,
        everyone: str | None,
        plan_limit: int,
        access: dict[str, list[AccessRule]],
    ) -> None:
        living = {name: name for name in NAMES} | {"hpc": "north"}
        self.world = self._make(
            filters=Chains(chains, *self._filters),
            limits=EgressLimits(queue_messages=queue_messages, max_age_ms=500),
            authorities=living | ({"*": everyone} if everyone else {}),
            unicast=dict(zip(NAMES, unicast, strict=True)) | {SELF: False},
            route_limit=plan_limit,
            taps=[MoodyTap()],
            access={name: AccessPolicy(name, rules) for name, rules in access.items()},
        )

    def _receive(self, ingress: str | None, message: UMessage) -> None:
        home = self.world.dispatcher.router.authority_table.endpoint_of(message.attributes.source)
        self.world.receive(ingress or home or SELF, message)

    def _id(self, age_ms: int) -> UUID:
        self._count += 1
        return UUID((self.world.clock.wall_ms() - age_ms) << 16 | 0x7000, 1 << 63 | self._count)

    # --- subscriptions ------------------------------------------------------------------------------------------------

    @rule(topic=topic_patterns, subscriber=entities, period_ns=st.sampled_from([0, 5, 7]))
    def subscribe(self, topic: UUri, subscriber: UUri, period_ns: int) -> None:
        self.world.directory.subscribe(topic, subscriber, period_ns)

    @rule(topic=topic_patterns, subscriber=entities)
    def unsubscribe(self, topic: UUri, subscriber: UUri) -> None:
        self.world.directory.unsubscribe(topic, subscriber)

    # --- messages; many of them spoofed, expired, invalid or without a subscriber ---------------------------

    @rule(
        ingress=ingresses,
        topic=topics,
        copies=st.integers(1, 5),
        age_ms=ages_ms,
        ttl=ttls,
        priority=priorities,
    )
    def publish(
        self, ingress: str | None, topic: UUri, copies: int, age_ms: int, ttl: int | None, priority: UPriority
    ) -> None:
        for _ in range(copies):
            self._receive(ingress, publish(self._id(age_ms), topic, priority=priority, ttl=ttl))

    @rule(ingress=ingresses, source=topics, sink=entities, age_ms=ages_ms, ttl=ttls)
    def notify(self, ingress: str | None, source: UUri, sink: UUri, age_ms: int, ttl: int | None) -> None:
        self._receive(ingress, notification(self._id(age_ms), source, sink, ttl=ttl))

    @rule(ingress=ingresses, source=entities, sink=entities, age_ms=ages_ms, priority=priorities)
    def call(self, ingress: str | None, source: UUri, sink: UUri, age_ms: int, priority: UPriority) -> None:
        method = sink.with_resource(1)
        self._receive(ingress, request(self._id(age_ms), source, method, ttl=50, priority=priority))

    @rule(ingress=ingresses, source=entities, sink=entities, age_ms=ages_ms)
    def answer(self, ingress: str | None, source: UUri, sink: UUri, age_ms: int) -> None:
        sent_request = request(self._id(0), sink, source.with_resource(1), ttl=50)
        self._receive(ingress, response(self._id(age_ms), sent_request))

    @rule(
        ingress=ingresses,
        source=topics | entities,
        sink=st.none() | topics,
        type=st.sampled_from(UMessageType),
    )
    def receive_nonsense(
        self, ingress: str | None, source: UUri, sink: UUri | None, type: UMessageType
    ) -> None:
        valid = publish(self._id(0), source).attributes
        nonsense = msgspec.structs.replace(valid, type=type, sink=sink, token="x")
        self._receive(ingress, UMessage(self._id(0), nonsense))

    # --- queues and time ------------------------------------------------------------------------------------

    @rule(endpoint=endpoints, failure=st.sampled_from(FAILURES))
    def change_the_link(self, endpoint: str, failure: UStatusError | None) -> None:
        self.world.egress[endpoint].failure = failure

    @rule(endpoint=endpoints)
    def send(self, endpoint: str) -> None:
        self.world.send(endpoint)

    @rule(ms=st.sampled_from([1, 10, 60, 600]))
    def wait(self, ms: int) -> None:
        self.world.time.advance(ms=ms)
        self.world.fire()

    # --- the law ------------------------------------------------------------------------------------------------------

    @invariant()
    def the_ledger_balances(self) -> None:
        self.world.check()

    @invariant()
    def queues_keep_their_bounds(self) -> None:
        for queue in self.world.egress.values():
            assert len(queue) <= queue._limits.queue_messages

    def teardown(self) -> None:
        """At the end every message has a verdict, and none was sent to its own ingress."""
        if self._count == 0:
            return
        for queue in self.world.egress.values():
            queue.failure = None
        for _ in range(
            10
        ):  # a released message may be held by another filter; an expired one becomes a dead letter
            self.world.time.advance(ms=100)
            self.world.run()
        self.world.check()
        assert self.world.ledger().queued == 0
        for seen in self.world.tap_calls:
            if seen.delivery is not None and seen.delivery.ingress == seen.delivery.endpoint:
                assert (
                    seen.delivery.ingress == SELF
                )  # a hosted service receives the error response to its own request
                assert seen.message.attributes.type is UMessageType.RESPONSE


def test_the_ledger_law_holds_after_every_step_of_any_sequence(
    unchecked: "type[World]", holding: "type[HoldingFilter]", answering: "type[VerdictFilter]"
) -> None:
    run_state_machine_as_test(
        lambda: LedgerLaw(unchecked, holding, answering),  # type: ignore[arg-type]  # it may be any maker of one
        settings=settings(max_examples=70, stateful_step_count=40, deadline=None),
    )
