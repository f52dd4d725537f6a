# SPDX-License-Identifier: Apache-2.0
"""Hops 4 to 6: a message comes in at an endpoint; its plan is looked up or made; every target's filters are asked.

The path of a message is `Ingress.dispatch` from top to bottom, and that of many is `Ingress.dispatch_all`. An ingress is a
monitor: one lock, whoever comes, so its plans, filters and counters have one writer at a time. Lanes (hop 7) are the only
thing that two ingresses share.

Order of locks: any ingress, then the ingress of the streamer itself, then a lane. Nobody goes the other way.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager
from threading import Lock, RLock

from ustreamer.core.delivery.delivery import Delivery, Filter, Tap
from ustreamer.core.delivery.ledger import Ledger, Verdict
from ustreamer.core.delivery.plugin_errors import Faults, described
from ustreamer.core.dispatch.dedup_window import RecentIds
from ustreamer.core.dispatch.delivery_registry import Deliveries, TargetStatistics
from ustreamer.core.dispatch.dispatcher_port import Shared
from ustreamer.core.egress.dead_letter import DeadLetter, dead_letter_topic
from ustreamer.core.peers.topic_advertisements import Share
from ustreamer.core.routing.route_cache import Plan, PlanKey, plan_key, plan_key_of
from ustreamer.core.routing.router import LEFT, SELF, Decision, Refused, Router, Target
from ustreamer.uprotocol.batch import Run
from ustreamer.uprotocol.uattributes import UAttributes, UMessageType
from ustreamer.uprotocol.umessage import UMessage, error_response
from ustreamer.uprotocol.ustatus import UCode, UStatus
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import UUri

_MS_PER_DAY = 86_400_000
_REASONS = ("invalid", "spoofed", "access", "duplicate", "neighbour")
"""Why a message is not accepted, or is denied."""


class Ingress:
    """Where the messages of one endpoint come in: `dispatch` is the listener that its transport calls."""

    def __init__(
        self, name: str, dispatcher: Shared, taps: tuple[Tap, ...] = (), plan_limit: int = 16_384
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
        self._plans: dict[PlanKey, Plan] = {}
        self._plan_limit = plan_limit
        # Where messages are taken once, `_plans` stays empty, so that each comes to `_plan`, and these are kept instead. So
        # everybody else pays nothing for it.
        self._recent: RecentIds | None = None
        self._plans_of_new: dict[PlanKey, Plan] = {}
        self._deliveries = Deliveries(self, dispatcher, plan_limit, self._topics_forgotten)

    def dispatch(self, message: UMessage) -> None:
        """Decide about `message` and hand it on. Never waits for a network, and raises nothing, whatever a plugin does."""
        attributes = message.attributes
        id = message.id
        with self._lock:
            # Not before the lock: two threads may come here, and what filters are told must not go back.
            now_ns = self._monotonic_ns()
            plan = self._plans.get(attributes if attributes.reqid is None else plan_key(attributes))
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

    __call__ = dispatch

    def take_all(self, messages: Sequence[UMessage]) -> None:
        """As `dispatch` of each, in their order, and cheaper; what is for one target leaves together.

        Locks, clocks and counters are for all of them: 0.5 us a message instead of 0.85, and a lane and a transport save more.
        They came before this is called, so one version of the directory and one time are right for all. Only filters, which
        count by time, are told that of each message. And what is alike and all goes on is decided about once (`_take_run`).
        """
        plans, leaving = self._plans, []
        received, ageing = 0, False
        with self._lock:
            if type(messages) is Run and self._take_run(messages):
                return
            now_ns, wall_ms = self._monotonic_ns(), self._wall_ms()
            version = self._directory.version
            try:
                for message in messages:
                    attributes = message.attributes
                    id = message.id
                    plan = plans.get(attributes if attributes.reqid is None else plan_key(attributes))
                    if (
                        plan is None
                        or plan.version != version
                        or id.msb & 0xF000 != 0x7000
                        or id.lsb >> 62 != 0b10  # UUID.is_valid
                    ):
                        plan = self._plan(message, now_ns)
                        if plan is None:
                            continue
                    deliveries = plan.deliveries
                    if not deliveries:
                        self._undelivered(message, plan.decision, now_ns)
                        continue
                    if attributes.ttl:
                        ageing = True
                        if wall_ms > (id.msb >> 16) + attributes.ttl and self._is_expired(
                            id.msb >> 16, attributes.ttl
                        ):
                            self._expired(message, now_ns)
                            continue
                    received += len(deliveries)
                    for delivery in deliveries:
                        delivery.received += 1
                        if delivery.admits:
                            now_ns = self._monotonic_ns()
                            if not delivery.passes(message, now_ns):
                                continue
                        if not delivery.leaving:
                            leaving.append(delivery)
                        delivery.leaving.append(message)
                        delivery.leaving_ns.append(now_ns)
            finally:  # a mistake in the middle must not keep here what was decided before it
                self.ledger.received += received
                for delivery in leaving:
                    delivery.leave(ageing=ageing)

    def _take_run(self, run: Run) -> bool:
        """Take messages all of which go on; False, and nothing has changed, if each has to be looked at.

        That is where no plan is at hand, a filter counts them, or one may be too old: 0.35 us a message, and 0.05 so.
        """
        attributes = run.attributes
        plan = self._plans.get(plan_key_of(run))
        if plan is None or plan.version != self._directory.version or not plan.deliveries:
            return False
        if any(delivery.admits for delivery in plan.deliveries):
            return False
        if attributes.ttl and self._wall_ms() > (min(run.ids.halves()[0]) >> 16) + attributes.ttl:
            return False
        now_ns = self._monotonic_ns()
        self.ledger.received += len(run) * len(plan.deliveries)
        for delivery in plan.deliveries:
            delivery.take(run, now_ns)
        return True

    # --- plans --------------------------------------------------------------------------------------------------------

    def _plan(self, message: UMessage, now_ns: int) -> Plan | None:
        """The plan for a message of which none is at hand; None if it is not accepted."""
        if self._recent is None:
            return self._made(message, self._plans, now_ns)
        if not self._recent.is_new(message.id):
            self.refused["duplicate"] += 1  # not accepted, so the ledger does not know it
            return None
        plan = self._plans_of_new.get(plan_key(message.attributes))
        if plan is None or plan.version != self._directory.version or not message.id.is_valid:
            plan = self._made(message, self._plans_of_new, now_ns)
        return plan

    def _made(self, message: UMessage, plans: dict[PlanKey, Plan], now_ns: int) -> Plan | None:
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
            self._dispatcher.puts.drop({attributes.source})  # nobody must rely on us for it
            text = f"subscription directory {described(self._directory, error)}"
            return Plan(version, (), Decision((), Verdict.DEAD_LETTERED, UStatus(UCode.INTERNAL, text)))
        plan = Plan(version, *self._deliveries_of(attributes, decision, now_ns))
        key = plan_key(attributes)
        if attributes.repeats or key is not attributes:
            if len(plans) >= self._plan_limit:
                plans.clear()
            plans[key] = plan
        return plan

    def _forget_plans(self) -> None:
        self._plans.clear()
        self._plans_of_new.clear()

    def _topics_forgotten(self, topics: AbstractSet[UUri]) -> None:
        self._dispatcher.puts.drop(topics)
        self._forget_plans()

    def _deliveries_of(
        self, attributes: UAttributes, decision: Decision, now_ns: int
    ) -> tuple[tuple[Delivery, ...], Decision]:
        """What a plan does, and why. What another streamer puts is no part of it, but its filters go on knowing what they know."""
        if attributes.type is not UMessageType.PUBLISH:
            return tuple(
                self._deliveries.unicast(each.endpoint, now_ns) for each in decision.targets
            ), decision
        # What is denied here, or left as a whole, says nothing about what comes in where its source lives.
        heard = decision.reason is None and not decision.left
        share = self._share(attributes.source, decision.targets, now_ns) if heard else Share(())
        deliveries = self._deliveries.of_topic(attributes.source, share.targets, now_ns)
        if not share.left:
            return deliveries, decision
        ours = tuple(each for each in deliveries if each.endpoint not in share.left)
        return ours, decision if ours else LEFT

    def _share(self, topic: UUri, targets: tuple[Target, ...], now_ns: int) -> Share:
        """Whose the targets of a publication are; of what comes from us there is no other."""
        if self.name == SELF:
            return Share(targets)
        share = self._dispatcher.puts.share(topic, targets, now_ns)
        if share.until_ns:
            self._dispatcher.schedule(share.until_ns, lambda: self._release(topic))
        return share

    def leaves(self, attributes: UAttributes, endpoint: str) -> bool:
        """Whether another streamer brings to `endpoint`, or wherever it goes, what comes in here with these attributes."""
        with self._lock:
            try:
                decision = self._router.decide(self.name, attributes)
            except Exception:  # noqa: BLE001  # foreign code, or an invalid message: whoever dispatches it will see
                return False
            if attributes.type is not UMessageType.PUBLISH or not decision.targets:
                return decision.left
            left = self._share(attributes.source, decision.targets, self._monotonic_ns()).left
            return endpoint in left or all(each.endpoint in left for each in decision.targets)

    def _release(self, topic: UUri) -> None:
        self._dispatcher.puts.release(topic, self._monotonic_ns())
        self.replan_topics(frozenset([topic]))

    # --- another router -----------------------------------------------------------------------------------------------

    def replan(self) -> None:
        """Make every plan again; deliveries, and what filters know, stay."""
        with self._lock:
            self._forget_plans()

    def replan_topics(self, topics: frozenset[UUri]) -> None:
        """Make the plans of these topics again."""
        with self._lock:
            concerned = topics & self._deliveries.topics
            if not concerned:
                return
            for plans in (self._plans, self._plans_of_new):
                for each in [each for each in plans if isinstance(each, UAttributes)]:
                    if each.source in concerned:
                        del plans[each]

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
        self._deliveries.put_filters_before_all(self._monotonic_ns())

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
                for each in self._deliveries:
                    each.forget_arrivals()

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
        targets = self._share(topic, self._router.subscribed(self.name, topic), now_ns).targets
        if topic in self._deliveries.topics:
            # Who came back since has a delivery of its own.
            return delivery in self._deliveries.of_topic(topic, targets, now_ns)
        # Forgotten with all others when there were too many topics, which is no reason to lose a message.
        return any(
            (each.endpoint, each.subscriber) == (delivery.endpoint, delivery.subscriber) for each in targets
        )

    def give_up_held(self, reason: UStatus) -> list[UMessage]:
        """Make dead letters of all that filters hold, and answer who asked; what that was."""
        with self._lock:
            return [
                each
                for delivery in self._deliveries
                for each in delivery.give_up(self._monotonic_ns(), reason)
            ]

    # --- reading ------------------------------------------------------------------------------------------------------

    def targets(self) -> list[TargetStatistics]:
        """A snapshot of every topic's targets."""
        with self._lock:
            return self._deliveries.statistics()


class OwnIngress(Ingress):
    """The ingress of the streamer itself: hosted services, error Responses, dead letters."""

    def __init__(self, dispatcher: Shared, taps: tuple[Tap, ...] = ()) -> None:
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
