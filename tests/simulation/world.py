# SPDX-License-Identifier: Apache-2.0
"""The applications on both networks: what they sent, and what they received."""

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from random import Random
from typing import Final, NamedTuple

from tests.simulation.host import INSIDE, OUTSIDE
from tests.simulation.scheduler import NS_PER_MS, NS_PER_S, Scheduler
from tests.simulation.zenoh_link import WireMessage, wire_message
from tests.simulation.zenoh_network import SimApp, SimNetwork
from ustreamer.core.routing.usubscription_codec import (
    Status,
    SubscribeRequest,
    status_in,
    subscribe_request,
)
from ustreamer.transports.zenoh.decoder import HEAD, VERSION_BYTE
from ustreamer.transports.zenoh.keys import filter_key, message_key
from ustreamer.transports.zenoh.receipts.receipt_keys import (
    EVERY_RECEIPT,
    ID_IN_ATTACHMENT,
    PREFIX,
    ReceiptGiverId,
    receipt_key,
    split_receipt,
    token_key,
)
from ustreamer.transports.zenoh.subscriber import ListenerFilters
from ustreamer.uprotocol.uattributes import UAttributes, UMessageType, UPayloadFormat, UPriority
from ustreamer.uprotocol.umessage import UMessage, notification, publish, request, response
from ustreamer.uprotocol.ustatus import UCode
from ustreamer.uprotocol.uuid import UUID, UuidSource
from ustreamer.uprotocol.uuri import ANY, UUri, any_at
from ustreamer.uprotocol.wire import decode, encode, encode_tail

APP: Final = UUri("hpc", 0x10A1, 1, 0)
READER: Final = UUri("cloud", 0x20, 1, 0)
METHOD: Final = UUri("cloud", 0x30, 1, 1)
TOPICS: Final = (UUri("hpc", 0x10A1, 1, 0x8001), UUri("hpc", 0x10A1, 1, 0x8002))
"""Subscribed before a story begins."""
LATE_TOPICS: Final = tuple(UUri("hpc", 0x10A1, 1, 0x8011 + number) for number in range(4))
"""Subscribed by a step."""
_NOTICE: Final = UUri("hpc", 0x10A1, 1, 0x8003)
NOTICES: Final = tuple(f"notice {number}" for number in range(60))
"""Flows of notifications, each with its own source: more routes than publishers."""
SHARED: Final = tuple(f"shared {number}" for number in range(12))
"""Flows of notifications, each with its own source. Where there is a backend, both applications outside receive them."""
_GROUP: Final = UUri("cloud", 0x21, 1, 0)
_BACK: Final = UUri("cloud", 0x30, 1, 0x8004)
_NO_ID: Final = UUID(0x7000, 0b10 << 62)
_GIVER: Final = ReceiptGiverId("cloud", "link", "1")
_BACKEND: Final = ReceiptGiverId("backend", "link", "2")
_CALL_TTL_MS: Final = 20_000


class Flow(NamedTuple):
    """A kind of traffic: where it starts, its attributes, its key, and the network that it goes to."""

    origin: str
    destination: str
    attributes: UAttributes
    key: str
    needs_subscription: bool = False


def _flow(origin: str, message: UMessage, *, needs_subscription: bool = False) -> Flow:
    attributes = message.attributes
    key = message_key(attributes.source, attributes.sink, attributes.source.authority_name)
    return Flow(origin, OUTSIDE if origin == INSIDE else INSIDE, attributes, key, needs_subscription)


FLOWS: Final[Mapping[str, Flow]] = {
    "event": _flow(INSIDE, publish(_NO_ID, TOPICS[0]), needs_subscription=True),
    "event5": _flow(INSIDE, publish(_NO_ID, TOPICS[1], priority=UPriority.CS5), needs_subscription=True),
    "notice": _flow(INSIDE, notification(_NO_ID, _NOTICE, READER)),
    **{
        name: _flow(INSIDE, notification(_NO_ID, UUri("hpc", 0x10A1, 1, 0x8101 + number), READER))
        for number, name in enumerate(NOTICES)
    },
    **{
        name: _flow(INSIDE, notification(_NO_ID, UUri("hpc", 0x10A1, 1, 0x8201 + number), _GROUP))
        for number, name in enumerate(SHARED)
    },
    "call": _flow(INSIDE, request(_NO_ID, APP, METHOD, ttl=_CALL_TTL_MS)),
    **{
        f"late{number}": _flow(INSIDE, publish(_NO_ID, topic), needs_subscription=True)
        for number, topic in enumerate(LATE_TOPICS)
    },
    "back": _flow(OUTSIDE, notification(_NO_ID, _BACK, APP)),
}


# The shared flows by key, each with its filters in a token.
_SHARED_FILTERS: Final = {
    FLOWS[name].key: ListenerFilters(FLOWS[name].attributes.source, _GROUP) for name in SHARED
}


class Sent(NamedTuple):
    """A message that an application sent: its flow, its number in the flow, its time, its ttl in ms or 0."""

    flow: str
    number: int
    at_ns: int
    ttl_ms: int


def wire_id(id: UUID) -> bytes:
    """The form in which a link identifies a message."""
    return HEAD.pack(VERSION_BYTE + b"\x0a\x12\x09", id.msb, b"\x11", id.lsb)


_cached_tail: Final = lru_cache(1_024)(encode_tail)
"""Encoding takes longer than all that the simulated network does with a message."""


class World:
    """The applications. Their clock is right, whatever the clock of the streamer shows."""

    def __init__(
        self,
        scheduler: Scheduler,
        networks: Mapping[str, SimNetwork],
        *,
        receipts: bool = False,
        gives_receipts: bool = False,
        has_backend: bool = False,
    ) -> None:
        """With `receipts` the application outside stands for a streamer: it gives receipts and drops copies.

        With `gives_receipts` it also expects receipts for what it sends to the application inside, and sends it again. With
        `has_backend` there is a second application outside. Both subscribe the shared flows, each flow with its own key.
        """
        self._scheduler = scheduler
        self._receipts = receipts
        self.unreceipted: dict[bytes, WireMessage] = {}
        """What the application outside sent and has no receipt for, by the id in a receipt."""
        self._gives_receipts = gives_receipts
        self._receipts_to_give: dict[ReceiptGiverId, list[bytes]] = {}
        self._outside = networks[OUTSIDE]
        self._ids = UuidSource(scheduler.wall_ms, scheduler.rng.getrandbits)
        self.apps = {
            INSIDE: SimApp(networks[INSIDE], "the application inside", self._on_inside),
            OUTSIDE: SimApp(networks[OUTSIDE], "the application outside", self._on_outside),
        }
        for key in (filter_key(ANY, APP, "hpc"),):
            self.apps[INSIDE].subscribe(key)
        for key in (
            *(filter_key(topic, None, "hpc") for topic in (*TOPICS, *LATE_TOPICS)),
            filter_key(ANY, READER, "cloud"),
            filter_key(ANY, METHOD, "cloud"),
        ):
            self.apps[OUTSIDE].subscribe(key)
        self.backend: SimApp | None = None
        """The second application outside. It receives the shared flows only."""
        self.received_by_backend: dict[bytes, list[int]] = {}
        if has_backend:
            self.backend = SimApp(networks[OUTSIDE], "the second application outside", self._on_backend)
            for app, giver in self._sharing():
                for key in _SHARED_FILTERS:
                    app.subscribe(key)
                    app.announce(key, self._token(giver, key))
            if receipts:  # no wildcard: it would match the shared flows, too
                others = ((topic, None) for topic in (*TOPICS, *LATE_TOPICS))
                for source, sink in (*others, (ANY, READER), (ANY, METHOD)):
                    self.apps[OUTSIDE].tokens.add(token_key(_GIVER, ListenerFilters(source, sink)))
        elif receipts:
            for sink in None, any_at("cloud"):
                self.apps[OUTSIDE].tokens.add(token_key(_GIVER, ListenerFilters(ANY, sink)))
        if gives_receipts:
            self.apps[OUTSIDE].subscribe(EVERY_RECEIPT)
            scheduler.call_after(NS_PER_S, self._send_owed)
        self.expiring: set[UUri] = set()
        """Topics with a subscription that ends at a date."""
        self.sent: dict[bytes, Sent] = {}
        self.received: dict[bytes, list[int]] = {}
        """The times at which the destination received a message; of a shared flow the first application."""
        self.responses: dict[bytes, int] = {}
        """How many responses a caller received, by the id of the request; error responses included."""
        self.refused_while_down: set[bytes] = set()
        """The calls that got UNAVAILABLE while the router of their provider was down."""
        self.answered: set[bytes] = set()
        """The calls that the provider answered."""
        self.made_ids: list[tuple[int, int]] = []
        """Of each message that a streamer made: when, and by how many ms its id is ahead of that time."""
        self.subscribed_at_ns: dict[UUri, int] = {}
        self._subscribing: dict[UUID, UUri] = {}
        self._numbers = dict.fromkeys((*FLOWS, "response"), 0)

    # --- the shared flows ---------------------------------------------------------------------------------------------

    def _sharing(self) -> list[tuple[SimApp, ReceiptGiverId]]:
        assert self.backend is not None
        return [(self.apps[OUTSIDE], _GIVER), (self.backend, _BACKEND)]

    def _token(self, giver: ReceiptGiverId, key: str) -> str | None:
        return token_key(giver, _SHARED_FILTERS[key]) if self._receipts else None

    def unsubscribe(self, who: str, number: int, keys_seed: int, for_ms: int) -> None:
        """End some subscriptions of shared flows, of the "first" application, the "backend" or "both"; begin them again."""
        rng = Random(keys_seed)
        keys = rng.sample(sorted(_SHARED_FILTERS), number)
        until_ns = self._scheduler.now_ns + for_ms * NS_PER_MS
        first, backend = self._sharing()
        for app, giver in {"first": (first,), "backend": (backend,), "both": (first, backend)}[who]:
            for key in keys:
                app.unsubscribe(key, token_key(giver, _SHARED_FILTERS[key]))
            self._scheduler.call_at(until_ns, partial(self._subscribe_again, app, giver, keys, rng))

    def _subscribe_again(self, app: SimApp, giver: ReceiptGiverId, keys: Sequence[str], rng: Random) -> None:
        for key in keys:
            app.subscribe_again(key)
            # Each token comes later than its subscription. A streamer announces them the other way round.
            announce = partial(app.announce, key, self._token(giver, key))
            self._scheduler.call_after(rng.randrange(40) * NS_PER_MS, announce)
        if self._receipts and rng.random() < 0.5:  # the empty receipt says that all are there
            ready = wire_message(receipt_key(giver), b"", b"", b"")
            self._scheduler.call_after(50 * NS_PER_MS, lambda: app.publish(ready))

    def _on_backend(self, received: WireMessage) -> None:
        if received.id not in self.sent:
            return
        if self._receipts:
            self._give_receipt(received.id, _BACKEND)
            if received.id in self.received_by_backend:
                return
        self.received_by_backend.setdefault(received.id, []).append(self._scheduler.now_ns)

    # --- sending ------------------------------------------------------------------------------------------------------

    def send(self, name: str, size: int, ttl_ms: int) -> None:
        """Send one message of a flow."""
        flow = FLOWS[name]
        attributes = flow.attributes
        if ttl_ms and name != "call":
            attributes = UAttributes(
                type=attributes.type,
                source=attributes.source,
                sink=attributes.sink,
                priority=attributes.priority,
                ttl=ttl_ms,
            )
        self._send(flow.origin, name, flow.key, UMessage(self._ids.next(), attributes, bytes(size)))

    def _send(self, origin: str, name: str, key: str, message: UMessage) -> None:
        id = wire_id(message.id)
        attachment = id + _cached_tail(message.attributes)
        number = self._numbers[name] = self._numbers[name] + 1
        self.sent[id] = Sent(name, number, self._scheduler.now_ns, message.attributes.ttl or 0)
        wire = wire_message(key, message.payload, attachment, id)
        if self._gives_receipts and name == "back":
            self.unreceipted[id[ID_IN_ATTACHMENT]] = wire
        self.apps[origin].publish(wire)

    def _send_owed(self) -> None:
        """Send again each second what has no receipt."""
        self._scheduler.call_after(NS_PER_S, self._send_owed)
        for each in list(self.unreceipted.values()):
            self.apps[OUTSIDE].publish(each)

    def subscribe(self, topic: UUri, expires_s: int = 0) -> None:
        """Subscribe the application outside; for `expires_s` seconds, or without end."""
        expire_ms = self._scheduler.wall_ms() + expires_s * 1_000 if expires_s else None
        if expires_s:
            self.expiring.add(topic)
        wanted = subscribe_request(SubscribeRequest(topic, expire_ms)).SerializeToString()
        sink = UUri("hpc", 0, 3, 1)
        message = request(self._ids.next(), READER, sink, wanted, UPayloadFormat.PROTOBUF, ttl=5_000)
        self._subscribing[message.id] = topic
        key = message_key(READER, message.attributes.sink, "cloud")
        attachment = VERSION_BYTE + encode(message.id, message.attributes)
        self.apps[OUTSIDE].publish(wire_message(key, message.payload, attachment, wire_id(message.id)))

    # --- receiving ----------------------------------------------------------------------------------------------------

    def _give_receipt(self, id: bytes, giver: ReceiptGiverId) -> None:
        """Give a receipt 10 ms later, together with those of other messages."""
        if giver not in self._receipts_to_give:
            self._scheduler.call_after(10 * NS_PER_MS, lambda: self._give_receipts(giver))
        self._receipts_to_give.setdefault(giver, []).append(id[ID_IN_ATTACHMENT])

    def _give_receipts(self, giver: ReceiptGiverId) -> None:
        ids = self._receipts_to_give.pop(giver)
        app = self.apps[OUTSIDE] if self.backend is None or giver == _GIVER else self.backend
        app.publish(wire_message(receipt_key(giver), b"".join(ids), b"", b""))

    def _on_outside(self, received: WireMessage) -> None:
        if received.key.startswith(PREFIX):
            for confirmed in split_receipt(received.payload):
                self.unreceipted.pop(confirmed, None)
            if not received.payload:  # the streamer is ready: it may lack what was sent before
                for each in list(self.unreceipted.values()):
                    self.apps[OUTSIDE].publish(each)
            return
        if self._receipts:
            self._give_receipt(received.id, _GIVER)
        sent = self.sent.get(received.id)
        if sent is None:
            self._on_subscribed(received)
            return
        if self._receipts and received.id in self.received:
            return
        times = self.received.setdefault(received.id, [])
        times.append(self._scheduler.now_ns)
        if sent.flow == "call" and len(times) == 1:
            self.answered.add(received.id)
            id, attributes = decode(received.attachment[1:])
            answer = response(self._ids.next(), UMessage(id, attributes))
            key = message_key(METHOD, APP, "cloud")
            self._scheduler.call_after(NS_PER_MS, lambda: self._send(OUTSIDE, "response", key, answer))

    def _on_subscribed(self, received: WireMessage) -> None:
        id, attributes = decode(received.attachment[1:])
        # It may have waited since then: a response is made when its request arrives, an Update with a response.
        made_ns = self._outside.put_ns.get(received.id, self._scheduler.now_ns)
        if attributes.reqid is not None:
            made_ns = self._outside.taken_ns.get(wire_id(attributes.reqid), made_ns)
        elif self.made_ids:
            made_ns = self.made_ids[-1][0]
        age_ms = (self._scheduler.now_ns - made_ns) // NS_PER_MS
        self.made_ids.append((made_ns, id.time_ms - self._scheduler.wall_ms() + age_ms))
        topic = None if attributes.reqid is None else self._subscribing.pop(attributes.reqid, None)
        if topic is None or attributes.commstatus is not None:
            return
        if status_in(3, received.payload, attributes.payload_format) is Status.SUBSCRIBED:
            self.subscribed_at_ns.setdefault(topic, self._scheduler.now_ns)

    def _on_inside(self, received: WireMessage) -> None:
        if received.id in self.sent:
            self.received.setdefault(received.id, []).append(self._scheduler.now_ns)
        _, attributes = decode(received.attachment[1:])
        if attributes.type is UMessageType.RESPONSE and attributes.reqid is not None:
            id = wire_id(attributes.reqid)
            self.responses[id] = self.responses.get(id, 0) + 1
            if attributes.commstatus is UCode.UNAVAILABLE and self._outside.is_down:
                self.refused_while_down.add(id)

    def has_arrived(self, id: bytes, before_ns: int | None = None) -> bool:
        """Whether the applications of its flow have received a message, before a time if there is one.

        An ended subscription counts as well.
        """
        is_shared = self.backend is not None and self.sent[id].flow in SHARED
        until_ns = self._scheduler.now_ns + 1 if before_ns is None else before_ns
        receivers = (self.received, self.received_by_backend) if is_shared else (self.received,)
        return all(id in each and each[id][0] < until_ns for each in receivers)

    def destination(self, id: bytes) -> str:
        name = self.sent[id].flow
        return INSIDE if name == "response" else FLOWS[name].destination
