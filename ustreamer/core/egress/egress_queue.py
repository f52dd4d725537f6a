# SPDX-License-Identifier: Apache-2.0
"""Hop 7: what waits to be sent to an endpoint, in a lane of its own for each subscriber that is sent to by itself.

Every lane has its classes, its order, its retry clock and its bounds (`sender`), and all of them share those of the endpoint.
A lane of the host owns one queue, holds its lock, and sends what `take` gives.
"""

from collections.abc import Hashable, Iterator

from ustreamer.core.delivery.delivery import Delivery
from ustreamer.core.egress.limits import CLASSES, NEVER_NS, OVERHEAD_BYTES, EgressLimits, Queued
from ustreamer.core.egress.scheduler import Turns
from ustreamer.core.egress.subscriber_queue import Sender
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.uuri import UUri


class EgressQueue:
    """A bounded queue of lanes, each in seven priority classes; within a class order of arrival is kept. Not locked.

    The classes of a lane share what it sends by WEIGHTS, the more important first; lanes take turns. What is parked counts
    into the bounds, and so bounds the number of routes; a lane is there as long as something waits in it, so the bounds are
    those of the number of lanes as well.
    """

    def __init__(self, limits: EgressLimits) -> None:
        self.messages = 0
        self.bytes = 0
        self.waiting = 0
        """Messages that are not parked."""
        self.crowded_out = 0
        """Messages that had to go because of the bounds of their subscriber."""
        self._class_messages = [0] * CLASSES
        self._class_bytes = [0] * CLASSES
        # Of these, what cannot be sent at present: what is parked, or for a subscriber whose lane is paused.
        self._held_messages = [0] * CLASSES
        self._held_bytes = [0] * CLASSES
        self._closed: dict[Hashable, dict[Sender, None]] = {}
        self._turns = Turns()
        self.common = Sender(None, self)
        """The lane of all that is not for one subscriber alone. It is always there."""
        self._senders: dict[UUri, Sender] = {}
        self.serving: Sender | None = None
        """The lane of what was taken out last, until `rest`."""
        self.use(limits)

    def use(self, limits: EgressLimits) -> None:
        """Go by other limits; what is in the queue stays until it is taken, or has to make room."""
        self._limits = limits
        self.own_messages, self.own_bytes = limits.of_a_subscriber

    # --- taking in ------------------------------------------------------------------------------------------------------

    def push(
        self,
        delivery: Delivery,
        message: UMessage,
        now_ns: int,
        attempts: int = 0,
        deadline_ns: int = NEVER_NS,
    ) -> list[Queued]:
        """Take `message` in, which was tried `attempts` times just now; what had to go for it is returned.

        When the bounds of its subscriber are exceeded, or those of the endpoint, the youngest of the lowest classes below
        the newcomer's make room, of that subscriber or of all; first what cannot be sent at present, and also that of the
        newcomer's own class, unless it could not be sent either. If that is not enough, the newcomer itself is returned.
        """
        tried_ns = now_ns if attempts else 0
        size = len(message.payload) + OVERHEAD_BYTES
        item = Queued(delivery, message, now_ns, size, attempts, tried_ns, tried_ns, deadline_ns)
        limits = self._limits
        sender = self._lane_for(delivery.subscriber)
        if (
            self.messages < limits.queue_messages and self.bytes + size <= limits.queue_bytes
        ) and (  # `_fits` and `_fits_own`, 0.2 us less
            sender is self.common
            or (
                sender.waiting.messages + sender.parked.messages < self.own_messages
                and sender.waiting.bytes + sender.parked.bytes + size <= self.own_bytes
            )
        ):
            self._place(sender, item)
            return []
        return self._make_room(sender, item)

    def restore(self, item: Queued) -> None:
        """Take in, behind all others of its class, what an earlier process has accepted: whatever the limits are now."""
        self._append(self._lane_for(item.delivery.subscriber), item)

    def _lane_for(self, subscriber: UUri | None) -> Sender:
        if subscriber is None:
            return self.common
        sender = self._senders.get(subscriber)
        if sender is None:
            sender = self._senders[subscriber] = Sender(subscriber, self)
        return sender

    def _place(self, sender: Sender, item: Queued) -> None:
        """Have `item` wait behind all others of its class."""
        if sender.parked.messages and self._joins_at_once(sender, item):
            return
        self._append(sender, item)

    def _joins_at_once(self, sender: Sender, item: Queued) -> bool:
        """Have `item` wait with its stream, so that nobody is woken for it; False if that is not parked as a whole."""
        if sender is self.serving or sender.waiting.number(item.message.attributes.priority_class):
            return False
        return sender.parked.join(item)

    def _append(self, sender: Sender, item: Queued) -> None:
        rank = item.message.attributes.priority_class
        sender.waiting.append(rank, item)
        if sender.resume_ns:
            self._hold(sender, rank, 1, item.size)
        elif sender.waiting.messages == 1:
            self._turns.join(sender)

    # --- making room ----------------------------------------------------------------------------------------------------

    def _fits(self, size: int, going: int = 0) -> bool:
        """Whether a message adding `size` bytes has room when `going` others leave."""
        limits = self._limits
        return self.messages - going < limits.queue_messages and self.bytes + size <= limits.queue_bytes

    def _fits_own(self, sender: Sender, size: int, going: int = 0) -> bool:
        """The same of the bounds of its subscriber."""
        return sender is self.common or (
            sender.messages - going < self.own_messages and sender.bytes + size <= self.own_bytes
        )

    def _make_room(self, sender: Sender, item: Queued) -> list[Queued]:
        rank, size = item.message.attributes.priority_class, item.size
        is_held = self._is_held(sender) or sender.would_park(item.delivery, item.message)
        held_below = rank if is_held else rank + 1
        going, freed = sender.below(rank, held_below)
        item.crowded_out = not self._fits_own(sender, size - freed, going)
        going, freed = self._below(rank, held_below)
        if item.crowded_out or not self._fits(size - freed, going):
            self.crowded_out += item.crowded_out
            self._forget_if_empty(sender)
            return [item]
        gone: list[tuple[Sender, Queued]] = []
        while not self._fits_own(sender, size):
            gone.append((sender, self._pop_youngest(sender, self._lowest_of(sender, held_below))))
            gone[-1][1].crowded_out = True
            self.crowded_out += 1
        while not self._fits(size):
            victim, lowest = self._lowest(rank, held_below)
            gone.append((victim, self._pop_youngest(victim, lowest)))
        self._place(sender, item)
        for victim, _ in gone:
            self._forget_if_empty(victim)
        return [each for _, each in gone]

    def _below(self, rank: int, held_below: int) -> tuple[int, int]:
        """Messages and bytes of all lanes that may have to go for one of class `rank`."""
        messages, size = sum(self._class_messages[:rank]), sum(self._class_bytes[:rank])
        if held_below > rank:
            messages, size = messages + self._held_messages[rank], size + self._held_bytes[rank]
        return messages, size

    @staticmethod
    def _lowest_of(sender: Sender, below: int) -> int:
        """The lowest class of which a lane has something."""
        return next(
            rank for rank in range(below) if sender.parked.number(rank) or sender.waiting.number(rank)
        )

    def _lowest(self, rank: int, held_below: int) -> tuple[Sender, int]:
        """Who makes room, and in which class: the lane that has waited for longest of those that have what is to go first."""
        for lowest in range(held_below):
            if self._held_messages[lowest]:
                for sender in self._all():
                    held = sender.parked.number(lowest) or (
                        self._is_held(sender) and sender.waiting.number(lowest)
                    )
                    if held:
                        return sender, lowest
            if lowest < rank and self._class_messages[lowest]:
                return next((each, lowest) for each in self._all() if each.waiting.number(lowest))
        raise AssertionError("push has counted what may go")

    def _pop_youngest(self, sender: Sender, rank: int) -> Queued:
        if sender.parked.number(rank):
            return sender.parked.pop_youngest(rank)
        item = sender.waiting.pop_youngest(rank)
        self._hold(sender, rank, -1, -item.size)
        return item

    def _all(self) -> Iterator[Sender]:
        yield from self._senders.values()
        yield self.common

    # --- taking out -----------------------------------------------------------------------------------------------------

    def take(self, limit: int = 1) -> list[Queued]:
        """Take out up to `limit` messages of the lane whose turn it is: the most important of those classes that have not
        had their share. Fewer, where other lanes have something to send.
        """
        turn = self._turns.next(limit)
        if turn is None:
            return []
        sender, share = turn
        self._serve(sender)
        return sender.waiting.take(share)

    def take_all(self) -> list[Queued]:
        """Take out everything, lane by lane; first what is parked."""
        taken = []
        for sender in list(self._all()):
            taken += sender.parked.take_over(lambda _: True)
            self.resume(sender)
            taken += sender.waiting.take(sender.waiting.messages)
            self._forget_if_empty(sender)
        return taken

    def put_back(self, items: list[Queued]) -> None:
        """Return what `take` gave, in its order, to where it was. May exceed the limits by what was in the air."""
        if items:
            sender = self._lane_for(items[0].delivery.subscriber)
            sender.waiting.put_back(items)
            self._turns.join(sender)

    def rest(self) -> None:
        """Nothing that was taken out will be put back or parked any more."""
        if self.serving is not None:
            before, self.serving = self.serving, None
            self._forget_if_empty(before)

    def _serve(self, sender: Sender) -> None:
        if sender is not self.serving:
            self.rest()
            self.serving = sender

    def _forget_if_empty(self, sender: Sender) -> None:
        subscriber = sender.subscriber
        if subscriber is not None and not sender.messages and sender is not self.serving:
            self._turns.forget(sender)
            self._senders.pop(subscriber, None)

    def __len__(self) -> int:
        return self.messages

    # --- who must not be overtaken ----------------------------------------------------------------------------------------

    def lets_pass(self, delivery: Delivery, message: UMessage) -> bool:
        """Whether nothing waits that `message` must not overtake: the lanes of others do not concern it."""
        subscriber = delivery.subscriber
        sender = self.common if subscriber is None else self._senders.get(subscriber)
        return sender is None or sender.lets_pass(delivery, message)

    def is_clear(self, subscriber: UUri | None) -> bool:
        """Whether nothing waits for this subscriber."""
        sender = self.common if subscriber is None else self._senders.get(subscriber)
        return sender is None or not (sender.messages or sender.resume_ns)

    # --- pausing, parking -------------------------------------------------------------------------------------------------

    def pause(self, sender: Sender, until_ns: int) -> None:
        """Have a lane send nothing before this time: it was READY, and is PAUSED."""
        sender.resume_ns = until_ns
        self._turns.leave(sender)
        self._hold_all(sender, 1)
        self._turns.schedule(sender)

    def resume(self, sender: Sender) -> None:
        """Have a lane that is PAUSED be READY."""
        if not sender.resume_ns:
            return
        self._hold_all(sender, -1)
        sender.resume_ns = 0
        if sender.waiting.messages:
            self._turns.join(sender)

    def resume_all(self) -> None:
        for sender in self._all():
            self.resume(sender)

    def link_up(self, now_ns: int) -> None:
        """All that waits for a time may be tried now, and failures count anew."""
        for sender in self._all():
            sender.failures = 0
            self.resume(sender)
            sender.parked.open_all(now_ns)
            self._turns.schedule(sender)

    @property
    def is_failing(self) -> bool:
        """Whether the last send to somebody was UNAVAILABLE."""
        return any(sender.failures for sender in self._all())

    @property
    def can_be_sent(self) -> bool:
        """Whether something waits for somebody to whom the last send was not UNAVAILABLE."""
        return any(sender.waiting.messages and not sender.failures for sender in self._all())

    def park(self, sender: Sender, item: Queued, route: Hashable, try_ns: int) -> None:
        """Have `item`, which was taken out of this lane, wait for `route`; see `Parked.park`."""
        sender.parked.park(item, route, try_ns)
        sender.sweep_ns = min(sender.sweep_ns, item.deadline_ns + 1)
        self._turns.schedule(sender)

    def release(self, sender: Sender, route: Hashable) -> None:
        """The route is open: what waits for it is in front of its lane again."""
        for rank, items in reversed(sender.parked.release(route)):
            sender.waiting.put_in_front(rank, items)
        if sender.waiting.messages and not sender.resume_ns:
            self._turns.join(sender)

    def open(self, route: Hashable, now_ns: int = 0) -> bool:
        """Have a closed route tried at once, its failures counted anew; whether it was closed."""
        waiting = self._closed.get(route, ())
        for sender in waiting:
            sender.parked.open(route, now_ns)
            self._turns.schedule(sender)
        return bool(waiting)

    # --- times ------------------------------------------------------------------------------------------------------------

    @property
    def next_due_ns(self) -> int:
        """No lane is to be looked after before this time."""
        return self._turns.next_due_ns

    def due(self, now_ns: int) -> Sender | None:
        """A lane that is to be looked after now; then tell `looked_after`."""
        sender = self._turns.due(now_ns)
        if sender is not None:
            self._serve(sender)
        return sender

    def looked_after(self, sender: Sender) -> None:
        self._turns.schedule(sender)

    # --- counting ---------------------------------------------------------------------------------------------------------

    @property
    def parked(self) -> int:
        """Messages that wait for a route of theirs."""
        return self.messages - self.waiting

    @property
    def closed_routes(self) -> int:
        return len(self._closed)

    def has_turns(self) -> bool:
        """Whether a lane may have something to send."""
        return self._turns.any

    def lanes(self) -> list[Sender]:
        """Those of subscribers for whom something waits."""
        return [sender for sender in self._senders.values() if sender.messages]

    def count_waiting(self, rank: int, messages: int, size: int) -> None:
        self.waiting += messages
        self.messages += messages
        self.bytes += size
        self._class_messages[rank] += messages
        self._class_bytes[rank] += size

    def count_parked(self, rank: int, messages: int, size: int) -> None:
        self.count_waiting(rank, messages, size)
        self.waiting -= messages
        self._held_messages[rank] += messages
        self._held_bytes[rank] += size

    def route_closed(self, route: Hashable, sender: Sender) -> None:
        self._closed.setdefault(route, {})[sender] = None

    def route_gone(self, route: Hashable, sender: Sender) -> None:
        waiting = self._closed[route]
        del waiting[sender]
        if not waiting:
            del self._closed[route]

    def _is_held(self, sender: Sender) -> bool:
        """Whether nothing of this lane can be sent at present. With that of the endpoint, nobody's could: no reason to go."""
        return bool(sender.resume_ns) and sender is not self.common

    def _hold(self, sender: Sender, rank: int, messages: int, size: int) -> None:
        if self._is_held(sender):
            self._held_messages[rank] += messages
            self._held_bytes[rank] += size

    def _hold_all(self, sender: Sender, sign: int) -> None:
        for rank in range(CLASSES):
            self._hold(sender, rank, sign * sender.waiting.number(rank), sign * sender.waiting.bytes_of(rank))
