# SPDX-License-Identifier: Apache-2.0
"""The messages of a recorded run in order of arrival, with the decision about each target. Events in, messages out.

A recording has a row for each message and target, in the order in which deliveries ended. The rows are kept as columns,
50 bytes a row, because a drive has millions.
"""

from array import array
from collections import defaultdict
from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from ustreamer.core.delivery.ledger import Verdict
from ustreamer.core.routing.router import SELF
from ustreamer.uprotocol.uattributes import UAttributes, UMessageType, UPriority
from ustreamer.uprotocol.ustatus import UCode
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri
from ustreamer_recorder.events import Anchor, Config, Damage, Event, Row, SubscriptionChange, Target

_IN_QUEUE: Final = (Verdict.DELIVERED, Verdict.EXPIRED, Verdict.DEAD_LETTERED)
_UNKNOWN_METHOD: Final = (UCode.NOT_FOUND, UCode.UNIMPLEMENTED)
_WINDOW_NS: Final = 1_000_000_000
"""The rows of a message that came in with others can differ by half of this in their time of arrival."""
_NS_PER_MS: Final = 1_000_000


class Destination(NamedTuple):
    """The target of a delivery; without an endpoint: the message had no target."""

    endpoint: str | None = None
    subscriber: UUri | None = None


NOWHERE: Final = Destination()


class Head(NamedTuple):
    """What messages of one sender have in common: the endpoint that they came in at, and their attributes."""

    ingress: str
    attributes: UAttributes


class RecordedMessage(msgspec.Struct):
    """One message and the recorded decision about each of its targets. `periods_ns` has the limit of each target.

    `arrived_ns` is the time that the filters were given. `size`: bytes of payload.
    """

    id: UUID
    head: Head
    arrived_ns: int
    size: int
    decisions: dict[Destination, Verdict]
    periods_ns: dict[Destination, int]


def decision(
    verdict: Verdict, endpoint: str | None, code: int | None, attempts: int, *, is_call: bool = False
) -> Verdict:
    """What router and filters decided: DELIVERED if the message was passed to the queue of the endpoint.

    Its fate in the queue depends on the receiver and not on the configuration. A filter that failed is a dead letter,
    and so is the call of a method that the endpoint does not know.
    """
    if is_call and verdict is Verdict.DEAD_LETTERED and code in _UNKNOWN_METHOD:
        return verdict
    if endpoint is None or verdict not in _IN_QUEUE or (code == UCode.INTERNAL and not attempts):
        return verdict
    return Verdict.DELIVERED


class RecordedTraffic:
    """The rows, subscription changes and clocks of one run. Add its events in order, then read `messages`."""

    def __init__(self) -> None:
        self.changes: list[SubscriptionChange] = []
        self.config_text = ""
        """JSON of the last configuration."""
        self.own_rows = 0
        """Rows of messages of the streamer itself. They follow from others, so they are not replayed."""
        self.end_ns = 0
        """The time of the last verdict."""
        self._releases: defaultdict[tuple[str, UUri, Destination], list[int]] = defaultdict(list)
        self._anchors: list[Anchor] = []
        self._heads: dict[tuple[str, int, str, str | None, int, int | None], int] = {}
        self._head_list: list[Head] = []
        self._targets: dict[int, int] = {}
        self._destinations: list[tuple[Destination, int]] = []
        self._uuris: dict[str, UUri] = {}
        self._requests: dict[int, UUID] = {}
        self._arrived = array("q")
        self._msb, self._lsb = array("Q"), array("Q")
        self._head, self._target, self._decision = array("I"), array("I"), array("B")
        self._size = array("I")

    @property
    def seconds(self) -> float:
        """From the first arrival to the last one."""
        return (max(self._arrived) - min(self._arrived)) / 1e9 if self._arrived else 0.0

    @property
    def rows(self) -> int:
        return len(self._arrived)

    def add_event(self, event: Event | Damage) -> None:
        """Take the next event of the run."""
        if type(event) is Row:
            if event.target.ingress == SELF:
                self.own_rows += 1
            else:
                self._add_row(event)
            return
        match event:
            case SubscriptionChange():
                self.changes.append(event)
            case Anchor():
                self._anchors.append(event)
            case Config():
                self.config_text = event.text

    def _add_row(self, row: Row) -> None:
        target = row.target
        number = self._targets.get(target.target)
        if number is None:
            number = self._targets[target.target] = self._add_target(target)
        key = target.ingress, row.type, row.source, row.sink, row.priority, row.ttl_ms
        head = self._heads.get(key)
        if head is None:
            head = self._heads[key] = self._add_head(row)
        if row.request is not None:
            self._requests[len(self._arrived)] = row.request
        if row.held and target.topic is not None:
            place = target.ingress, self._uuri(target.topic), self._destinations[number][0]
            self._releases[place].append(row.received_ns)
        self.end_ns = max(self.end_ns, row.settled_ns)
        self._arrived.append(row.arrived_ns)
        self._msb.append(row.id.msb)
        self._lsb.append(row.id.lsb)
        self._head.append(head)
        self._size.append(row.size)
        self._target.append(number)
        is_call = row.type is UMessageType.REQUEST
        self._decision.append(decision(row.verdict, target.egress, row.code, row.attempts, is_call=is_call))

    def _add_target(self, target: Target) -> int:
        subscriber = None if target.subscriber is None else self._uuri(target.subscriber)
        self._destinations.append((Destination(target.egress, subscriber), target.period_ns))
        return len(self._destinations) - 1

    def _add_head(self, row: Row) -> int:
        attributes = UAttributes(
            type=row.type,
            source=self._uuri(row.source),
            sink=None if row.sink is None else self._uuri(row.sink),
            priority=UPriority(row.priority + 1),
            ttl=row.ttl_ms,
        )
        self._head_list.append(Head(row.target.ingress, attributes))
        return len(self._head_list) - 1

    def _uuri(self, text: str) -> UUri:
        known = self._uuris.get(text)
        if known is None:
            known = self._uuris[text] = UUri.parse(text)
        return known

    # --- reading ------------------------------------------------------------------------------------------------------

    def releases(self) -> dict[tuple[str, UUri, Destination], list[int]]:
        """When held messages were released or replaced, by ingress, topic and target, in order of time.

        A message that a newer one replaced after it was due shows that the timer was late. Rows are in another order.
        """
        return {place: sorted(times_ns) for place, times_ns in self._releases.items()}

    def messages(self) -> Iterator[RecordedMessage]:
        """Each message once, in order of arrival."""
        arrived, msb, lsb = self._arrived, self._msb, self._lsb
        targets, decisions, destinations = self._target, self._decision, self._destinations
        verdicts = list(Verdict)
        whole_until_ns = 0
        collecting: dict[tuple[int, int], RecordedMessage] = {}  # oldest first
        for row in sorted(range(len(arrived)), key=arrived.__getitem__):
            arrived_ns, key = arrived[row], (msb[row], lsb[row])
            if arrived_ns > whole_until_ns:
                for each in list(collecting):
                    if collecting[each].arrived_ns > arrived_ns - _WINDOW_NS // 2:
                        break
                    yield collecting.pop(each)
                whole_until_ns = arrived_ns + _WINDOW_NS // 2
            message = collecting.get(key)
            if message is None:
                message = collecting[key] = RecordedMessage(
                    UUID(*key), self._head_of(row), arrived_ns, self._size[row], {}, {}
                )
            destination, period_ns = destinations[targets[row]]
            message.decisions[destination] = verdicts[decisions[row]]
            message.periods_ns[destination] = period_ns
            if period_ns:  # of messages that came in together, filters read the clock for each
                message.arrived_ns = arrived_ns
        yield from collecting.values()

    def _head_of(self, row: int) -> Head:
        head = self._head_list[self._head[row]]
        request = self._requests.get(row)
        if head.attributes.type is not UMessageType.RESPONSE or request is None:
            return head
        attributes = head.attributes
        return Head(
            head.ingress,
            UAttributes(
                type=attributes.type,
                source=attributes.source,
                sink=attributes.sink,
                priority=attributes.priority,
                ttl=attributes.ttl,
                reqid=request,
            ),
        )

    def wall_ms(self, time_ns: int) -> int:
        """The wall time of a moment."""
        if not self._anchors:
            return time_ns // _NS_PER_MS
        anchor = next((each for each in reversed(self._anchors) if each.mono_ns <= time_ns), self._anchors[0])
        return anchor.wall_us(time_ns) // 1000
