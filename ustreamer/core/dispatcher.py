# SPDX-License-Identifier: Apache-2.0
"""Hops 4 to 6: a message comes in at an endpoint; its plan is looked up or made; every target's filters are asked.

The path of a message is `Ingress.dispatch` from top to bottom. An ingress is a monitor: one lock, whoever comes, so its
plans, filters and counters have one writer at a time. Lanes (hop 7) are the only thing that two ingresses share.

Order of locks: any ingress, then the ingress of the streamer itself, then a lane. Nobody goes the other way.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack
from itertools import chain
from threading import Lock, RLock

import msgspec

from ustreamer.core.chain import Delivery, Egress, Filter, Tap
from ustreamer.core.clock import Clock
from ustreamer.core.dead_letter import DeadLetter, DeadLetterBox, dead_letter_topic
from ustreamer.core.egress import Queued
from ustreamer.core.expiry import Expiry
from ustreamer.core.faults import Faults, described
from ustreamer.core.ledger import Ledger, LedgerSnapshot, Verdict, snapshot
from ustreamer.core.recent import RecentIds
from ustreamer.core.routes import SELF, Decision, Refused, Router, Target
from ustreamer.uprotocol.uattributes import UAttributes, UMessageType
from ustreamer.uprotocol.umessage import UMessage, error_response
from ustreamer.uprotocol.ustatus import UCode, UStatus
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import UUri

FilterFactory = Callable[[Delivery], Iterable[Filter]]
Schedule = Callable[[int, Callable[[], None]], None]
"""Have a call made at a monotonic time in ns."""

LOOP_WINDOW = 10_000
"""Ids to remember where a loop is: all that can be on its way round. A second's worth at full load; 2 MB."""
_NS_PER_MS = 1_000_000
_NS_PER_S = 1_000_000_000
_MS_PER_DAY = 86_400_000
_REASONS = ("invalid", "spoofed", "access", "duplicate", "neighbour")
"""Why a message is not accepted, or is denied."""
_LETTERS_AT_ONCE = 100  # 3 ms: other timers, such as those of a throttle, wait no longer


class Plan(msgspec.Struct, frozen=True, gc=False):
    """What to do with every message of the same attributes, as long as the directory has this version."""

    version: int
    deliveries: tuple[Delivery, ...]
    decision: Decision


class TargetStatistics(msgspec.Struct, frozen=True):
    """What one target of one topic got: counts since its first subscription; `period_ns` 0 is no limit."""

    topic: UUri
    ingress: str
    endpoint: str
    subscriber: UUri | None
    period_ns: int
    received: int
    delivered: int
    throttled: int


class Ingress:
    """Where the messages of one endpoint come in: `dispatch` is the listener that its transport calls."""

    def __init__(
        self, name: str, dispatcher: "Dispatcher", taps: tuple[Tap, ...] = (), plan_limit: int = 16_384
    ) -> None:
        self.name = name
        self.taps = taps
        self._changing_taps = Lock()  # a leaf: one that fails is switched off under the lock of a lane
        self.ledger = Ledger()
        self.faults = Faults(name)
        self.held = 0  # messages that filters hold back at present
        self.refused: dict[str, int] = dict.fromkeys(_REASONS, 0)
        self._dispatcher = dispatcher
        self._router = dispatcher.router
        self._directory = dispatcher.router.versioned
        self._monotonic_ns, self._wall_ms = dispatcher.clock
        self._is_expired = dispatcher.expiry.is_expired
        self._lock = RLock()
        self._plans: dict[UAttributes, Plan] = {}
        self._plan_limit = plan_limit
        # Where messages are taken once, `_plans` stays empty, so that each comes to `_plan`, and these are kept instead. So
        # everybody else pays nothing for it.
        self._recent: RecentIds | None = None
        self._plans_of_new: dict[UAttributes, Plan] = {}
        # State of filters and counters lives here and outlasts a plan; entries go with their last subscriber.
        self._by_topic: dict[UUri, tuple[Delivery, ...]] = {}
        self._unicast: dict[str, Delivery] = {}

    def dispatch(self, message: UMessage) -> None:
        """Decide about `message` and hand it on. Never waits for a network, and raises nothing, whatever a plugin does."""
        attributes = message.attributes
        id = message.id
        with self._lock:
            # Not before the lock: two threads may come here, and what filters are told must not go back.
            now_ns = self._monotonic_ns()
            plan = self._plans.get(attributes)
            if (
                plan is None
                or plan.version != self._directory.version
                or id.msb & 0xF000 != 0x7000
                or id.lsb >> 62 != 0b10  # UUID.is_valid, without two calls (0.1 us instead of 0.3)
            ):
                plan = self._plan(message, now_ns)
                if plan is None:
                    return
            deliveries = plan.deliveries
            if not deliveries:
                # Before its age: what is denied, or not for us to deliver, is neither our dead letter nor ours to answer.
                self._undelivered(message, plan.decision, now_ns)
                return
            if (
                attributes.ttl
                and self._wall_ms() > (id.msb >> 16) + attributes.ttl
                and self._is_expired(id.msb >> 16, attributes.ttl)  # so it seems; or has the clock leapt?
            ):
                self._expired(message, now_ns)
                return
            self.ledger.received += len(deliveries)
            for delivery in deliveries:
                delivery.offer(message, now_ns)

    # --- plans --------------------------------------------------------------------------------------------------------

    def _plan(self, message: UMessage, now_ns: int) -> Plan | None:
        """The plan for a message of which none is at hand; None if it is not accepted."""
        if self._recent is None:
            return self._made(message, self._plans, now_ns)
        if not self._recent.is_new(message.id):
            self.refused["duplicate"] += 1  # not accepted, so the ledger does not know it
            return None
        plan = self._plans_of_new.get(message.attributes)
        if plan is None or plan.version != self._directory.version or not message.id.is_valid:
            plan = self._made(message, self._plans_of_new, now_ns)
        return plan

    def _made(self, message: UMessage, plans: dict[UAttributes, Plan], now_ns: int) -> Plan | None:
        """Make a plan, and keep it among `plans` if these attributes are likely to come again; None if they are invalid."""
        attributes = message.attributes
        # Read before the question: a change in between then makes the plan stale, not wrong.
        version = self._directory.version
        try:
            if not message.id.is_valid:
                raise Refused(UCode.INVALID_ARGUMENT, f"id {message.id}: expected a version 7 UUID")
            decision = self._router.decide(self.name, attributes)
        except Refused as refused:
            self._refuse(message, refused.status)
            return None
        except Exception as error:  # noqa: BLE001  # foreign code: the directory is a plugin's
            self.faults.of_directory(self._directory, error)
            text = f"subscription directory {described(self._directory, error)}"
            return Plan(version, (), Decision((), Verdict.DEAD_LETTERED, UStatus(UCode.INTERNAL, text)))
        plan = Plan(version, self._deliveries(attributes, decision.targets, now_ns), decision)
        if attributes.repeats:
            if len(plans) >= self._plan_limit:
                plans.clear()
            plans[attributes] = plan
        return plan

    def _forget_plans(self) -> None:
        self._plans.clear()
        self._plans_of_new.clear()

    def _deliveries(
        self, attributes: UAttributes, targets: tuple[Target, ...], now_ns: int
    ) -> tuple[Delivery, ...]:
        if attributes.type is UMessageType.PUBLISH:
            return self._topic_deliveries(attributes.source, targets, now_ns)
        return tuple(self._unicast_delivery(target.endpoint, now_ns) for target in targets)

    def _topic_deliveries(
        self, topic: UUri, targets: tuple[Target, ...], now_ns: int
    ) -> tuple[Delivery, ...]:
        """The deliveries of a topic: kept where the target was there before, tuned to its present wish."""
        before = {(each.endpoint, each.subscriber): each for each in self._by_topic.get(topic, ())}
        deliveries = tuple(
            self._tuned(before.get((target.endpoint, target.subscriber)), topic, target, now_ns)
            for target in targets
        )
        if deliveries:
            self._keep(topic, deliveries)
        else:
            self._by_topic.pop(topic, None)
        return deliveries

    def _keep(self, topic: UUri, deliveries: tuple[Delivery, ...]) -> None:
        # Bounded, because under a wildcard subscription it is the sender who chooses how many topics there are. Plans go
        # too, or a topic could have two deliveries, each with a filter of its own.
        if topic not in self._by_topic and len(self._by_topic) >= self._plan_limit:
            self._by_topic.clear()
            self._forget_plans()
        self._by_topic[topic] = deliveries

    def _tuned(self, delivery: Delivery | None, topic: UUri, target: Target, now_ns: int) -> Delivery:
        if delivery is None:
            egress = self._dispatcher.egress[target.endpoint]
            delivery = Delivery(self, egress, topic, target.subscriber, target.period_ns)
        elif delivery.period_ns == target.period_ns:
            return delivery
        delivery.period_ns = target.period_ns
        self._put_filters_before(delivery, now_ns)
        return delivery

    def _unicast_delivery(self, endpoint: str, now_ns: int) -> Delivery:
        delivery = self._unicast.get(endpoint)
        if delivery is None:
            delivery = self._unicast[endpoint] = Delivery(self, self._dispatcher.egress[endpoint])
            self._put_filters_before(delivery, now_ns)
        return delivery

    def _put_filters_before(self, delivery: Delivery, now_ns: int) -> None:
        delivery.tuned_ns = now_ns
        make = self._dispatcher.filters
        try:
            delivery.use(tuple(make(delivery)))
        # Foreign code. Without its filters nothing passes: who asked for a limit or a ban must not get all.
        except Exception as error:  # noqa: BLE001
            self.faults.of_filter(make, error)
            delivery.use((Unmade(described(make, error)),))

    # --- another router -----------------------------------------------------------------------------------------------

    def replan(self) -> None:
        """Make every plan again; deliveries, and what filters know, stay."""
        with self._lock:
            self._forget_plans()

    def take_once(self, window: int) -> None:
        """Take each message once from now on, by its id, as far as the last `window` of them; 0: take all.

        For a network that hands over what it has handed over before. Ids that are remembered stay so.
        """
        with self._lock:
            if window != (self._recent.window if self._recent else 0):
                self._recent = RecentIds(window) if window else None
                self._forget_plans()

    def held_still(self) -> AbstractContextManager[object]:
        """Nothing is dispatched here within a `with` block of it."""
        return self._lock

    def use(self, router: Router) -> None:
        """Decide by `router`, and ask for the filters of every target. Called while held still."""
        self._router = router
        self._directory = router.versioned
        self._forget_plans()
        now_ns = self._monotonic_ns()
        for delivery in [*(d for each in self._by_topic.values() for d in each), *self._unicast.values()]:
            self._put_filters_before(delivery, now_ns)

    # --- what does not go on ------------------------------------------------------------------------------------------

    def _refuse(self, message: UMessage, status: UStatus) -> None:
        self.refused["invalid"] += 1
        self._dispatcher.answer(message, status, self.name)

    def _expired(self, message: UMessage, now_ns: int) -> None:
        text = f"ttl of {message.attributes.ttl} ms had run out on arrival at {self.name!r}"
        days = (self._wall_ms() - message.id.time_ms) // _MS_PER_DAY
        if days > 0:
            text += f"; by its id it was made {days} days ago: is the clock of its sender set?"
        expired = Decision((), Verdict.EXPIRED, UStatus(UCode.DEADLINE_EXCEEDED, text))
        self._undelivered(message, expired, now_ns)

    def _undelivered(self, message: UMessage, decision: Decision, now_ns: int) -> None:
        """A message without a target is one delivery, and this is the end of it; one of a neighbour's is none of ours."""
        if decision.left:
            self.refused["neighbour"] += 1
            return
        self.ledger.received += 1
        self.ledger.settle(decision.verdict)
        for tap in self.taps:
            try:
                tap(message, None, decision.verdict, decision.reason, 0, now_ns, now_ns, 0, now_ns)
            except Exception as error:  # noqa: BLE001  # foreign code, as in Delivery.settle
                self.tap_failed(tap, error)
        if decision.reason is None or decision.verdict is Verdict.NO_SUBSCRIBER:
            return
        if decision.verdict is Verdict.DENIED:
            self.refused[decision.denied_as] += 1
        else:
            self._dispatcher.bury(message, decision.reason, self.name, 0, now_ns, now_ns, self.name)
        if not decision.silent:
            self._dispatcher.answer(message, decision.reason, self.name)

    # --- what plugins do to messages, and get wrong ---------------------------------------------------------------------

    def stopped(self, message: UMessage, delivery: Delivery, verdict: Verdict, reason: UStatus) -> None:
        """A filter has ended a delivery: tell the requester, and bury what ended for no good reason."""
        if verdict is Verdict.DEAD_LETTERED:
            now_ns = self._monotonic_ns()
            self._dispatcher.bury(message, reason, delivery.endpoint, 0, now_ns, now_ns, self.name)
        self._dispatcher.answer(message, reason, self.name)

    def filter_failed(self, plugin: object, error: Exception) -> None:
        self.faults.of_filter(plugin, error)

    def tap_failed(self, tap: Tap, error: Exception) -> None:
        if self.faults.of_tap(tap, error):
            self._without(tap)

    def _without(self, tap: Tap) -> None:
        with self._changing_taps:
            self.taps = tuple(each for each in self.taps if each is not tap)

    def add_tap(self, tap: Tap) -> None:
        """Have `tap` see every verdict from now on."""
        with self._lock, self._changing_taps:
            self.taps = (*self.taps, tap)

    def remove_tap(self, tap: Tap) -> None:
        """Have `tap` see no more verdicts; one that is being told on another thread may still come."""
        with self._lock:
            self._without(tap)
            if not self.taps:
                for each in self._all_deliveries():
                    each.forget_arrivals()

    def _all_deliveries(self) -> list[Delivery]:
        return [*self._unicast.values(), *chain.from_iterable(self._by_topic.values())]

    # --- messages that a filter holds ---------------------------------------------------------------------------------

    def wake_at(self, when_ns: int, delivery: Delivery, holder: Filter) -> None:
        """Have `holder` release its message at `when_ns`."""
        self._dispatcher.schedule(when_ns, lambda: self._wake(delivery, holder))

    def _wake(self, delivery: Delivery, holder: Filter) -> None:
        with self._lock:
            now_ns = self._monotonic_ns()
            try:
                wanted = delivery.topic is None or self._is_wanted(delivery, delivery.topic, now_ns)
            except Exception as error:  # noqa: BLE001  # foreign code; it was wanted when it was accepted
                self.faults.of_directory(self._directory, error)
                wanted = True
            delivery.resume(holder, now_ns, wanted=wanted)

    def _is_wanted(self, delivery: Delivery, topic: UUri, now_ns: int) -> bool:
        """Whether somebody still subscribes what a filter has held back in the meantime."""
        targets = self._router.subscribed(self.name, topic)
        if topic in self._by_topic:
            # Who came back since has a delivery of its own.
            return delivery in self._topic_deliveries(topic, targets, now_ns)
        # Forgotten with all others when there were too many topics, which is no reason to lose a message.
        return any(
            (each.endpoint, each.subscriber) == (delivery.endpoint, delivery.subscriber) for each in targets
        )

    def give_up_held(self, reason: UStatus) -> list[UMessage]:
        """Make dead letters of all that filters hold, and answer who asked; what that was."""
        with self._lock:
            return [
                each
                for delivery in self._all_deliveries()
                for each in delivery.give_up(self._monotonic_ns(), reason)
            ]

    # --- reading ------------------------------------------------------------------------------------------------------

    def targets(self) -> list[TargetStatistics]:
        """A snapshot of every topic's targets."""
        with self._lock:
            return [
                TargetStatistics(
                    topic,
                    self.name,
                    d.endpoint,
                    d.subscriber,
                    d.period_ns,
                    d.received,
                    d.delivered,
                    d.throttled,
                )
                for topic, deliveries in self._by_topic.items()
                for d in deliveries
            ]


class Unmade(Filter):
    """Stands in for filters that could not be made."""

    def __init__(self, why: str) -> None:
        self._why = why

    def admit(self, message: UMessage, now_ns: int) -> Verdict | None:
        raise RuntimeError(f"no filters: {self._why}")


class OwnIngress(Ingress):
    """The ingress of the streamer itself: hosted services, error Responses, dead letters."""

    def __init__(self, dispatcher: "Dispatcher", taps: tuple[Tap, ...] = ()) -> None:
        super().__init__(SELF, dispatcher, taps)
        self._ids = UuidSource(self._wall_ms)
        self._topic = dead_letter_topic(dispatcher.authority)
        self._answers: dict[str, Delivery] = {}

    def answer(self, request: UMessage, status: UStatus, endpoint: str) -> None:
        """Send an error Response to the requester at `endpoint`, wherever its source claims to be."""
        with self._lock:
            delivery = self._answers.get(endpoint)
            if delivery is None:
                delivery = self._answers[endpoint] = Delivery(self, self._dispatcher.egress[endpoint])
            self.ledger.received += 1
            delivery.offer(error_response(self._ids.next(), request, status), self._monotonic_ns())

    def publish(self, letter: DeadLetter) -> None:
        """Tell the subscribers of the dead-letter topic."""
        with self._lock:
            self.dispatch(letter.to_message(self._ids.next(), self._topic))


class Dispatcher:
    """The routing core of a streamer: its ingresses, what they share, and the books."""

    def __init__(
        self,
        authority: str,
        clock: Clock,
        router: Router,
        egress: Mapping[str, Egress],
        *,
        filters: FilterFactory = lambda _: (),
        taps: Callable[[str], Iterable[Tap]] = lambda _: (),
        schedule: Schedule,
        keep: Callable[[DeadLetter], None] = lambda _: None,
        duplicate_windows: Mapping[str, int] | None = None,
    ) -> None:
        """`egress` has one lane per endpoint name, SELF included; it may be filled after construction.

        `keep` is given every dead letter, on the path and under locks: it takes a note and calls nobody.
        `duplicate_windows` are how many ids to remember at an endpoint, so that a message is taken there once; 0: none.
        """
        self.authority = authority
        self.clock = clock
        self.expiry = Expiry(clock)
        self.router = router
        self.egress = egress
        self.filters = filters
        self.schedule = schedule
        self.dead_letters = DeadLetterBox()
        self._dead_letter_topic = dead_letter_topic(authority)
        self._taps = taps
        self._keep = keep
        self._duplicate_windows = dict(duplicate_windows or {})
        self._loops: frozenset[str] = frozenset()
        self._tapping: list[Callable[[Ingress], None]] = []
        self._own = OwnIngress(self, tuple(taps(SELF)))
        self._ingresses: dict[str, Ingress] = {SELF: self._own}

    def ingress(self, name: str) -> Ingress:
        """The ingress of the endpoint `name`, made at the first asking."""
        known = self._ingresses.get(name)
        if known is None:
            known = self._ingresses[name] = Ingress(name, self, tuple(self._taps(name)))
            known.take_once(self._window(name))
            for add in self._tapping:
                add(known)
        return known

    def kept_delivery(
        self, ingress: str, endpoint: str, topic: UUri | None, subscriber: UUri | None
    ) -> Delivery:
        """A delivery for what an earlier process accepted and kept. It has no plan and no filters: those it has passed.

        What came in at an endpoint that is no more counts as the streamer's own.
        """
        owner = self.ingress(ingress) if ingress in self.egress else self._own
        return Delivery(owner, self.egress[endpoint], topic, subscriber)

    def _window(self, name: str) -> int:
        return self._duplicate_windows.get(name, 0) or (LOOP_WINDOW if name in self._loops else 0)

    # --- other plans --------------------------------------------------------------------------------------------------

    def replan(self) -> None:
        """Have every plan made again with the next message: what the router reads has changed."""
        for each in self._ingresses.values():
            each.replan()

    def expect_loops(self, endpoints: frozenset[str]) -> None:
        """Take each message once at these endpoints, whatever their windows: there, what was sent may come in again."""
        self._loops = endpoints
        for name, each in self._ingresses.items():
            each.take_once(self._window(name))

    def swap(self, router: Router, changes: Callable[[], None] = lambda: None) -> None:
        """Route by `router` from the next message on, and ask for all filters anew.

        One step for all ingresses: nothing is dispatched anywhere while it is taken, and what was dispatched before it
        ends on its old plan. `changes` is called in it, such as what makes other filters; it must be quick.
        """
        # The own one comes first in the dict, and is locked last.
        with ExitStack() as locks:
            for each in reversed(self._ingresses.values()):
                locks.enter_context(each.held_still())
            changes()
            self.router = router
            for each in self._ingresses.values():
                each.use(router)

    def tap(self, make: Callable[[str], Tap]) -> Callable[[], None]:
        """Have every verdict from now on seen by what `make` makes for each endpoint, SELF included.

        What is returned ends that.
        """
        taps: list[tuple[Ingress, Tap]] = []

        def add(ingress: Ingress) -> None:
            taps.append((ingress, make(ingress.name)))
            ingress.add_tap(taps[-1][1])

        def end() -> None:
            self._tapping.remove(add)
            for ingress, tap in taps:
                ingress.remove_tap(tap)

        self._tapping.append(add)
        for ingress in list(self._ingresses.values()):
            add(ingress)
        return end

    def watch_clock(self) -> None:
        """Look at the clocks now and every second from now on."""
        self.expiry.observe()
        self.schedule(self.clock.monotonic_ns() + _NS_PER_S, self.watch_clock)

    # --- what the streamer itself says --------------------------------------------------------------------------------

    def answer(self, message: UMessage, status: UStatus, endpoint: str) -> None:
        """Tell the requester at `endpoint` that its request failed; nothing for any other message (DSP-17).

        The answer goes back the way the request came, wherever its source claims to be.
        """
        if _answerable(message):
            self._own.answer(message, status, endpoint)

    def bury(
        self,
        message: UMessage,
        status: UStatus,
        endpoint: str,
        attempts: int,
        first_ns: int,
        last_ns: int,
        ingress: str,
    ) -> None:
        """Have a dead letter kept, and note it to be published soon. A dead letter never makes another."""
        if message.attributes.source == self._dead_letter_topic:
            self.dead_letters.unpublished += 1
            return
        now_ns, wall_ms = self.clock.monotonic_ns(), self.clock.wall_ms()
        letter = DeadLetter(
            message,
            status,
            endpoint,
            attempts,
            wall_ms - (now_ns - first_ns) // _NS_PER_MS,
            wall_ms - (now_ns - last_ns) // _NS_PER_MS,
            ingress,
        )
        self._keep(letter)
        first_in_box = self.dead_letters.add(letter)
        if first_in_box:
            self.schedule(now_ns, self.publish_dead_letters)

    def undelivered(self, item: Queued, status: UStatus) -> None:
        """What a lane could not deliver: bury it, and answer if it was a request. Called without the lane's lock.

        A Notification of the streamer's own whose ttl is over has had its time, and makes no dead letter.
        """
        first_ns = item.first_attempt_ns or item.received_ns
        last_ns = item.last_attempt_ns or item.received_ns
        ingress = item.delivery.ingress
        if ingress == SELF and _is_old_news(item.message, status):
            return
        self.bury(item.message, status, item.delivery.endpoint, item.attempts, first_ns, last_ns, ingress)
        self.answer(item.message, status, ingress)

    def give_up_held(self, reason: UStatus) -> list[UMessage]:
        """Make dead letters of what filters hold back, and answer who asked; what that was."""
        return [each for ingress in self._ingresses.values() for each in ingress.give_up_held(reason)]

    def publish_dead_letters(self) -> None:
        """Send what `bury` has noted on its way. On a thread of its own: a full lane may be what made the letters."""
        letters = self.dead_letters.collect(_LETTERS_AT_ONCE)
        if self.dead_letters:  # before the first is published, in case that raises
            self.schedule(self.clock.monotonic_ns(), self.publish_dead_letters)
        for letter in letters:
            self._own.publish(letter)

    # --- the books ----------------------------------------------------------------------------------------------------

    def ledger(self, lanes: Iterable[Ledger], queued: int) -> LedgerSnapshot:
        """The ledger of this moment; `lanes` and `queued` are what the host's lanes know."""
        held = sum(ingress.held for ingress in self._ingresses.values())
        return snapshot([*(ingress.ledger for ingress in self._ingresses.values()), *lanes], queued + held)

    def targets(self) -> list[TargetStatistics]:
        return [target for ingress in self._ingresses.values() for target in ingress.targets()]

    def refused(self) -> dict[str, dict[str, int]]:
        """What each ingress did not accept, by reason."""
        return {name: dict(ingress.refused) for name, ingress in self._ingresses.items()}

    def faults(self) -> dict[str, dict[str, int]]:
        """What plugins got wrong with what came in at each endpoint, by the names of `Faults.counts`."""
        return {name: ingress.faults.counts() for name, ingress in self._ingresses.items()}


def _is_old_news(message: UMessage, status: UStatus) -> bool:
    """Whether it is a Notification whose ttl is over: of our own services, which tell many who do not listen (DSP-4)."""
    attributes = message.attributes
    expired = bool(attributes.ttl) and status.code is UCode.DEADLINE_EXCEEDED
    return expired and attributes.type is UMessageType.NOTIFICATION


def _answerable(message: UMessage) -> bool:
    """Whether an error Response to `message` would have a requester to go to and a method to come from."""
    attributes = message.attributes
    sink = attributes.sink
    return (
        attributes.type is UMessageType.REQUEST
        and message.id.is_valid
        and attributes.source.resource_id == 0
        and attributes.source.wildcard() is None
        and sink is not None
        and sink.is_method
        and sink.wildcard() is None
    )
