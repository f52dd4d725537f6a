# SPDX-License-Identifier: Apache-2.0
"""Sends a recorded run through the routing of another configuration. A run and a routing in, changed decisions out.

The router, the deliveries and their filters are the streamer's own; only the network and the clock are not. A decision
ends where a message enters the queue of an endpoint.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from ustreamer.core.delivery.delivery import Delivery
from ustreamer.core.delivery.ledger import Verdict
from ustreamer.core.routing.router import InvalidMessage
from ustreamer.core.routing.subscriptions import Subscription
from ustreamer.hooks import OfflineRouting
from ustreamer.uprotocol.uattributes import UAttributes, UMessageType
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UStatus
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri
from ustreamer_recorder.events import SubscriptionChange
from ustreamer_recorder.rehearsal.offline_ingress import OfflineDispatcher, OfflineIngress
from ustreamer_recorder.rehearsal.recorded_traffic import (
    NOWHERE,
    Destination,
    RecordedMessage,
    RecordedTraffic,
    decision,
)
from ustreamer_recorder.rehearsal.subscriptions import RecordedSubscriptions

MAX_CHANGES: Final = 10_000
"""Different changes with a count of their own; senders choose the number of topics."""


_MAX_KEPT_BYTES: Final = 4_096


class ChangedDecision(NamedTuple):
    """What changes for messages from `source` that came in at `ingress`; None: no such delivery."""

    ingress: str
    source: UUri
    sink: UUri | None
    destination: Destination
    before: Verdict | None
    after: Verdict | None


class ChangedDeliveries(NamedTuple):
    """How often a change occurs, and its first message."""

    total: int
    first: UUID
    first_ns: int


Decisions = dict[Destination, Verdict]
OnDecided = Callable[[RecordedMessage, Decisions], None]


class _Open(NamedTuple):
    """A message that a filter still holds for some of its targets."""

    message: RecordedMessage
    found: Decisions
    expected: int


class Rehearsal:
    """Call `run` once, then read the results. `on_decided` gets each message with its new decisions."""

    def __init__(
        self,
        recorded: RecordedTraffic,
        routing: OfflineRouting,
        subscriptions: RecordedSubscriptions,
        on_decided: OnDecided = lambda message, decisions: None,
    ) -> None:
        """`subscriptions` is the directory of `routing`."""
        self.messages = self.deliveries = self.resent = self.other_changes = 0
        self.changes: dict[ChangedDecision, ChangedDeliveries] = {}
        self.moved: dict[str, Counter[str]] = {}
        """By recorded endpoint that the configuration does not have: the endpoints where its messages come in now."""
        self._recorded = recorded
        self._routing = routing
        self._router = routing.router
        self._subscriptions = subscriptions
        self._on_decided = on_decided
        self._dispatcher = OfflineDispatcher("", routing)
        self._ingresses: dict[str, OfflineIngress] = {}
        self._last_ids: dict[UUri, UUID] = {}
        self._current: UUID | None = None
        self._found: Decisions = {}
        self._open: dict[UUID, _Open] = {}
        self._releases = recorded.releases()
        self._payloads: dict[int, bytes] = {}
        self._received_topics: dict[tuple[str, UUri], bool] = {}
        self._known_methods: dict[tuple[str, UUri], bool | None] = {}

    @property
    def changed(self) -> int:
        """The deliveries that change."""
        return sum(each.total for each in self.changes.values()) + self.other_changes

    def run(self) -> None:
        changes = sorted(self._recorded.changes, key=lambda each: each.time_ns)
        changes.reverse()
        for message in self._recorded.messages():
            while changes and changes[-1].time_ns <= message.arrived_ns:
                self._advance(changes[-1].time_ns)
                self._change(changes.pop())
            self._advance(message.arrived_ns)
            self._replay(message)
        while changes:
            self._advance(changes[-1].time_ns)
            self._change(changes.pop())
        self._advance(self._recorded.end_ns + 1)
        for opened in list(self._open.values()):  # the run ends with messages that a filter holds
            missing = [each for each in opened.message.decisions if each not in opened.found]
            self._compare(opened.message, opened.found | dict.fromkeys(missing, Verdict.DELIVERED))

    def _advance(self, time_ns: int) -> None:
        """Run the timers that are due before `time_ns`."""
        dispatcher, timers = self._dispatcher, self._dispatcher.timers
        while (due_ns := timers.next_due_ns) is not None and due_ns < time_ns:
            dispatcher.now_ns = max(dispatcher.now_ns, due_ns)
            for action in timers.pop_due(due_ns):
                action()
        dispatcher.now_ns = max(dispatcher.now_ns, time_ns)

    def _change(self, change: SubscriptionChange) -> None:
        """Subscriptions of receivers that cannot subscribe are in the file, so the recorded ones do not count."""
        subscription = Subscription(UUri.parse(change.topic), UUri.parse(change.subscriber), change.period_ns)
        if not self._is_fixed(subscription.subscriber):
            self._subscriptions.change(subscription, change.change)

    def _is_fixed(self, subscriber: UUri) -> bool:
        return self._router.authority_table.endpoint_of(subscriber) in self._routing.fixed_endpoints

    # --- one message --------------------------------------------------------------------------------------------------

    def _replay(self, message: RecordedMessage) -> None:
        attributes = message.head.attributes
        if attributes.type is UMessageType.PUBLISH:
            if self._last_ids.get(attributes.source) == message.id:
                self.resent += 1  # the last value of a field, for a new subscriber
                return
            self._last_ids[attributes.source] = message.id
            self._infer(message)
        self.messages += 1
        ingress = self._ingress_of(message)
        if not self._is_received(ingress.name, attributes):
            self._compare(message, {})
            return
        if self._is_expired(message):
            self._compare(message, {NOWHERE: self._decision_on_expired(ingress.name, message)})
            return
        before = ingress.ledger.received
        self._current, self._found = message.id, {}
        ingress.dispatch(UMessage(message.id, attributes, self._payload(message.size)))
        self._current = None
        expected = ingress.ledger.received - before
        if len(self._found) < expected:
            self._open[message.id] = _Open(message, self._found, expected)
        else:
            if attributes.type is UMessageType.REQUEST:
                self._judge_call(message, self._found)
            self._compare(message, self._found)

    def _is_received(self, ingress: str, attributes: UAttributes) -> bool:
        """Whether the transport of the endpoint takes events of this topic, or calls of this method."""
        if attributes.type is UMessageType.REQUEST and attributes.sink is not None:
            return self._knows_method(ingress, attributes.sink) is not False
        if attributes.type is not UMessageType.PUBLISH:
            return True
        key = ingress, attributes.source
        found = self._received_topics.get(key)
        if found is None:
            found = self._received_topics[key] = self._routing.receives_topic(*key)
        return found

    def _judge_call(self, message: RecordedMessage, found: Decisions) -> None:
        """A call of a method that its endpoint does not know is a dead letter.

        Some endpoints do not decide by the file.
        """
        sink = message.head.attributes.sink
        for destination, verdict in found.items():
            if sink is None or destination.endpoint is None or verdict is not Verdict.DELIVERED:
                continue
            known = self._knows_method(destination.endpoint, sink)
            recorded = message.decisions.get(destination)
            if known is False or (known is None and recorded is Verdict.DEAD_LETTERED):
                found[destination] = Verdict.DEAD_LETTERED

    def _knows_method(self, endpoint: str, method: UUri) -> bool | None:
        key = endpoint, method
        if key not in self._known_methods:
            self._known_methods[key] = self._routing.knows_method(endpoint, method)
        return self._known_methods[key]

    def _ingress_of(self, message: RecordedMessage) -> OfflineIngress:
        """Where the message comes in: at the endpoint of that name, or at that of its source if there is none."""
        recorded = message.head.ingress
        name = recorded
        if recorded not in self._dispatcher.egress:
            name = self._router.authority_table.endpoint_of(message.head.attributes.source) or recorded
            self.moved.setdefault(recorded, Counter())[name] += 1
        ingress = self._ingresses.get(name)
        if ingress is None:
            ingress = self._ingresses[name] = OfflineIngress(
                name, self._dispatcher, self._note, self._releases
            )
        return ingress

    def _payload(self, size: int) -> bytes:
        """Zeros of this size: filters may count bytes, and the content is not recorded."""
        found = self._payloads.get(size)
        if found is None:
            found = bytes(size)
            if size <= _MAX_KEPT_BYTES:
                self._payloads[size] = found
        return found

    def _infer(self, message: RecordedMessage) -> None:
        if message.decisions.get(NOWHERE, Verdict.NO_SUBSCRIBER) is not Verdict.NO_SUBSCRIBER:
            return  # refused or expired before its subscribers mattered
        found = {
            each.subscriber: period_ns
            for each, period_ns in message.periods_ns.items()
            if each.subscriber is not None and not self._is_fixed(each.subscriber)
        }
        self._subscriptions.infer(message.head.attributes.source, found)

    def _is_expired(self, message: RecordedMessage) -> bool:
        """Whether the message was too old on arrival. One that had targets was not."""
        recorded = message.decisions.get(NOWHERE)
        ttl = message.head.attributes.ttl
        if recorded is None or not ttl:
            return False
        return (
            recorded is Verdict.EXPIRED
            or self._recorded.wall_ms(message.arrived_ns) > message.id.time_ms + ttl
        )

    def _decision_on_expired(self, ingress: str, message: RecordedMessage) -> Verdict:
        """A message that has no target, or is denied, is not judged by its age."""
        try:
            decided = self._router.decide(ingress, message.head.attributes)
        except InvalidMessage:
            return Verdict.EXPIRED
        return Verdict.EXPIRED if decided.targets else decided.verdict

    def _note(
        self,
        message: UMessage,
        delivery: Delivery | None,
        verdict: Verdict,
        reason: UStatus | None,
        attempts: int,
        arrived_ns: int,
        received_ns: int,
        first_attempt_ns: int,
        settled_ns: int,
    ) -> None:
        """The tap of each ingress."""
        destination = NOWHERE if delivery is None else Destination(delivery.endpoint, delivery.subscriber)
        code = None if reason is None else reason.code
        decided = decision(verdict, destination.endpoint, code, attempts)
        if message.id == self._current:
            self._found[destination] = decided
            return
        opened = self._open.get(message.id)
        if opened is not None:
            opened.found[destination] = decided
            if len(opened.found) == opened.expected:
                del self._open[message.id]
                self._compare(opened.message, opened.found)

    # --- comparison ---------------------------------------------------------------------------------------------------

    def _compare(self, message: RecordedMessage, after: Decisions) -> None:
        self._on_decided(message, after)
        before = message.decisions
        self.deliveries += len(before)
        if after == before:
            return
        for destination in {**before, **after}:
            old, new = _both(before, after, destination)
            if old is not new:
                self._count(message, destination, old, new)

    def _count(
        self, message: RecordedMessage, destination: Destination, old: Verdict | None, new: Verdict | None
    ) -> None:
        head = message.head
        change = ChangedDecision(
            head.ingress, head.attributes.source, head.attributes.sink, destination, old, new
        )
        known = self.changes.get(change)
        if known is not None:
            self.changes[change] = known._replace(total=known.total + 1)
        elif len(self.changes) < MAX_CHANGES:
            self.changes[change] = ChangedDeliveries(1, message.id, message.arrived_ns)
        else:
            self.other_changes += 1


def _both(
    before: Mapping[Destination, Verdict], after: Mapping[Destination, Verdict], destination: Destination
) -> tuple[Verdict | None, Verdict | None]:
    """The decisions about one target. A message without a target has its verdict in place of that of each target."""
    old, new = before.get(destination), after.get(destination)
    if destination == NOWHERE and ((old is None and before) or (new is None and after)):
        return None, None  # it shows with each target of the other side
    return before.get(NOWHERE) if old is None else old, after.get(NOWHERE) if new is None else new
