# SPDX-License-Identifier: Apache-2.0
"""A sender with a real session and a visitor, for the tests of what sends."""

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from threading import Event

import msgspec
import pytest
import zenoh

from tests.transports.zenoh.sessions import CLOCK, free_locator, plain_session
from tests.waiting import wait_until
from ustreamer.core.base.clock import Clock
from ustreamer.testing.messages import ALPHA, REMOTE_CLIENT, TOPIC, new_id
from ustreamer.transport_port import EndpointContext, RouteUnavailable
from ustreamer.transports.zenoh.decoder import VERSION_BYTE, AttachmentColumns, SampleDecoder
from ustreamer.transports.zenoh.keys import message_key
from ustreamer.transports.zenoh.link_monitor import LinkMonitor
from ustreamer.transports.zenoh.publisher import ZenohSender
from ustreamer.transports.zenoh.retransmit import AnsweredRequests, RetransmitConfig
from ustreamer.transports.zenoh.route_publishers import RoutePublisher
from ustreamer.uprotocol.batch import IdColumns, MessageBatch
from ustreamer.uprotocol.uattributes import UAttributes
from ustreamer.uprotocol.umessage import UMessage, publish
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import any_at
from ustreamer.uprotocol.wire import encode

LONG_AGO = 0
NS_PER_MS = 1_000_000

AsIterable = Callable[[list[UMessage]], Iterable[UMessage]]


def as_id_columns(messages: list[UMessage]) -> MessageBatch:
    """A batch with id columns, like one of messages created here."""
    batch = MessageBatch.from_messages(messages)
    assert batch is not None
    assert type(batch.ids) is IdColumns
    return batch


def as_received(messages: list[UMessage], **changes: object) -> MessageBatch:
    """A batch received over Zenoh; `changes` are attributes on the wire that our puts must not contain."""
    attributes = messages[0].attributes
    stated = msgspec.structs.replace(attributes, **changes)
    attachments = [VERSION_BYTE + encode(each.id, stated) for each in messages]
    key, decoder = message_key(attributes.source, attributes.sink, ALPHA), SampleDecoder()
    decoder.decode(key, attachments[0], b"")
    batch = decoder.decode_batch(key, attachments, [each.payload for each in messages])
    assert batch is not None
    assert batch.attributes == attributes
    assert type(batch.ids) is AttachmentColumns
    return batch


def as_received_with_sink(messages: list[UMessage]) -> MessageBatch:
    """A batch of publications with the sink that some streamers add."""
    return as_received(messages, sink=any_at(REMOTE_CLIENT.authority_name))


BATCHES: dict[str, Callable[[list[UMessage]], MessageBatch]] = {
    "id columns": as_id_columns,
    "equal attachments": as_received,
    "attachments with another tail": as_received_with_sink,
}
ITERABLES: dict[str, AsIterable] = {"list": list, "iterator": iter, **BATCHES}
every_iterable = pytest.mark.parametrize("together", ITERABLES.values(), ids=ITERABLES)
every_batch = pytest.mark.parametrize("batch_of", BATCHES.values(), ids=BATCHES)


class KeptMessages:
    """A `SentStore` in memory."""

    def __init__(self) -> None:
        self.is_busy = False
        self._routes: dict[Hashable, dict[UUID, UMessage]] = {}

    def keep(self, route: Hashable, messages: Sequence[UMessage]) -> Collection[UUID] | None:
        if self.is_busy:
            return None
        self._routes.setdefault(route, {}).update((each.id, each) for each in messages)
        return [each.id for each in messages]

    def ids(self) -> list[UUID]:
        return [id for kept in self._routes.values() for id in kept]

    def read(self, route: Hashable, id: UUID) -> UMessage | None:
        return self._routes.get(route, {}).get(id)

    def release(self, route: Hashable, ids: Collection[UUID] | None = None) -> bool:
        if not self.is_busy:
            del self._routes[route]
        return not self.is_busy

    def sent_from_disk(self, ids: Collection[UUID]) -> list[UMessage]:
        return []

    def receivers(self) -> list[str]:
        return []

    def keep_receivers(self, receivers: Sequence[str]) -> bool:
        return True

    @property
    def numbers(self) -> list[int]:
        return [int(each.payload) for kept in self._routes.values() for each in kept.values()]


class Bench:
    """A sender on a real session with one connected client, `visitor`; tests set the clock and the start of a loss."""

    def __init__(self, stack: ExitStack, replay: RetransmitConfig, *, durable: bool = True) -> None:
        self._stack = stack
        self.clock_step_ms = 0
        self.frozen_ns: int | None = None
        clock = Clock(self._monotonic_ns, lambda: CLOCK.wall_ms() + self.clock_step_ms)
        context = EndpointContext("backbone", ALPHA, clock)
        self.here = free_locator()
        self.session = session = stack.enter_context(plain_session(listen=[self.here]))
        self.links = LinkMonitor(EndpointContext("backbone", ALPHA, CLOCK))
        self.opened: list[Hashable] = []
        self.answered = AnsweredRequests(10)
        self.kept = KeptMessages()
        self.sender = ZenohSender(
            session,
            self.links,
            context,
            replay,
            self.answered,
            self.opened.append,
            sent_store=self.kept if durable else None,
        )
        stack.callback(self.links.close)
        self.links.start(session)
        self.lost_since_ns = LONG_AGO
        self.links._confirmed_ns = lambda now_ns: LONG_AGO  # type: ignore[method-assign]
        self.links.lost_since_ns = lambda noticed_ns: self.lost_since_ns  # type: ignore[method-assign]
        self.visitor = stack.enter_context(plain_session("client", connect=[self.here]))
        wait_until(lambda: self.links.up, "the link")
        # A monitor that a busy machine stalls for 0.3 s can find the visitor suspect, and then puts outlive their bounds.
        for node in self.links._nodes.values():
            node.is_suspect = lambda now_ns: False  # type: ignore[method-assign]
        self._marks_seen = 0
        self._mark_subscriber = self.visitor.declare_subscriber("seen", self._on_mark)
        self._marks = session.declare_publisher("seen", priority=zenoh.Priority.BACKGROUND)
        wait_until(lambda: bool(self._marks.matching_status.matching), "a subscriber of marks")  # type: ignore[attr-defined]

    def _monotonic_ns(self) -> int:
        return CLOCK.monotonic_ns() if self.frozen_ns is None else self.frozen_ns

    def freeze(self) -> None:
        """Stop the sender's clock, and let only the test change `links.up`.

        A batch with a ttl ends after BATCH_SEND_MS, which a busy machine exceeds. The monitor sets `up` every 50 ms.
        """
        self.frozen_ns = CLOCK.monotonic_ns()
        self.links._update_state = lambda: False  # type: ignore[method-assign]

    def _on_mark(self, sample: zenoh.Sample) -> None:
        self._marks_seen += 1

    def wait_arrived(self) -> None:
        """Wait until the visitor has received all puts: a mark of the lowest priority arrives last."""
        seen = self._marks_seen
        self._marks.put(b"")
        wait_until(lambda: self._marks_seen > seen, "the mark")

    @contextmanager
    def held_monitor(self) -> Iterator[Callable[[], None]]:
        """Within a `with` block the monitor thread runs no task. Yields a function that makes one tick."""
        started, go_on = Event(), Event()

        def hold() -> None:
            started.set()
            go_on.wait(30)

        self.links.run_on_monitor(hold)
        try:
            assert started.wait(30)
            yield self.sender._on_monitor_tick
        finally:
            go_on.set()

    def wait_monitor(self) -> None:
        """Wait until the monitor thread has run its tasks."""
        done = Event()
        self.links.run_on_monitor(done.set)
        assert done.wait(30)

    def listen(self, key: str = "up/**") -> "zenoh.Subscriber[zenoh.Handler[zenoh.Sample]]":
        return self.visitor.declare_subscriber(key)

    def put(self, *messages: UMessage) -> None:
        for message in messages:
            wait_until(lambda: self.is_accepted(message), "a listener")  # noqa: B023  called at once

    def is_accepted(self, message: UMessage) -> bool:
        try:
            self.sender.put_message(message)
        except RouteUnavailable:
            return False
        return True

    def unsubscribe(self, subscriber: "zenoh.Subscriber[zenoh.Handler[zenoh.Sample]]") -> None:
        """Undeclare a subscriber that has received all puts, and wait until the sender detects the loss."""
        self.wait_arrived()
        subscriber.undeclare()  # type: ignore[no-untyped-call]
        wait_until(lambda: any(each.lost_ns for each in self._publishers_after_tick()), "the loss")

    # The only access to the routes and the retransmit buffer of the sender.

    @property
    def publishers(self) -> list[RoutePublisher]:
        return list(self.sender._publishers)

    @property
    def remembered_count(self) -> int:
        return self.sender._possible_losses.remembered_count

    @property
    def remembered(self) -> list[tuple[int, UMessage]]:
        """The time of the put and the message, for each remembered message of the only route."""
        [only] = self.publishers
        return self.sender._possible_losses._buffer.messages_of({only}).get(only, [])

    def wait_all_lost(self) -> None:
        wait_until(lambda: all(each.lost_ns for each in self._publishers_after_tick()), "the losses")

    def _publishers_after_tick(self) -> list[RoutePublisher]:
        if self.frozen_ns is not None:  # the ticks of the monitor follow this clock
            self.sender._on_monitor_tick()
        return self.publishers

    def replace_put(self, attributes: UAttributes, put: Callable[..., None]) -> RoutePublisher:
        """Let the open route of `attributes` call `put` instead of Zenoh. Returns the route."""
        header = self.sender._headers.plain[attributes]
        self.sender._headers.plain[attributes] = msgspec.structs.replace(header, put=put)
        return header.publisher


MakeBench = Callable[..., Bench]


@pytest.fixture
def make_bench() -> Iterator[MakeBench]:
    with ExitStack() as stack:
        yield lambda durable=True, **bounds: Bench(stack, RetransmitConfig(**bounds), durable=durable)


def numbered(n: int, topic: int = 0, **keywords: object) -> UMessage:
    return publish(new_id(), TOPIC.with_resource(0x8000 + topic), b"%d" % n, **keywords)  # type: ignore[arg-type]


def received(subscriber: "zenoh.Subscriber[zenoh.Handler[zenoh.Sample]]", count: int) -> list[int]:
    return [int(subscriber.recv().payload.to_bytes()) for _ in range(count)]
