# SPDX-License-Identifier: Apache-2.0
"""The applications of a SOME/IP story: two on Zenoh, two ECUs. What they sent, and what they received.

Each payload names its message by flow and number, so one table has the way of a message through both networks:

    sent -> taken by a streamer (read from a socket, or from Zenoh) -> on the wire to an ECU -> received
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from tests.simulation.host import INSIDE, OUTSIDE
from tests.simulation.scheduler import NS_PER_MS, Process, Scheduler
from tests.simulation.someip.ecu import Ecu
from tests.simulation.someip.ip_files import SimKernel
from tests.simulation.someip.ip_network import IpAddress, SimIpNetwork
from tests.simulation.someip.network import ECUS, FLOW_NUMBERS, FLOWS, SomeipFlow
from tests.simulation.someip.wire import (
    ACK,
    ERROR,
    RESPONSE,
    SD_SERVICE,
    SUBSCRIBE,
    WireHeader,
    decode_message,
    decode_sd,
    identify,
    identity_in,
)
from tests.simulation.world import wire_id
from tests.simulation.zenoh_link import WireMessage, wire_message
from tests.simulation.zenoh_network import SimApp, SimNetwork
from ustreamer.core.routing.usubscription_codec import Status, SubscribeRequest, status_in, subscribe_request
from ustreamer.transports.zenoh.decoder import VERSION_BYTE
from ustreamer.transports.zenoh.keys import filter_key, message_key
from ustreamer.uprotocol.uattributes import UMessageType, UPayloadFormat
from ustreamer.uprotocol.umessage import UMessage, publish, request, response
from ustreamer.uprotocol.uuid import UUID, UuidSource
from ustreamer.uprotocol.uuri import ANY, UUri
from ustreamer.uprotocol.wire import decode, encode

APP: Final = UUri("hpc", 0x10B0, 1, 0)
READER: Final = UUri("cloud", 0x20, 1, 0)
CALL_TTL_MS: Final = 10_000
_ACCEPTED: Final = (Status.SUBSCRIBED, Status.SUBSCRIBE_PENDING)
_CALLED: Final = FLOWS[FLOW_NUMBERS["ecu call"]].uuri
_SUBSCRIBED: Final = tuple(each.uuri for each in FLOWS if each.kind == "in")

Key = tuple[int, int]
"""The index of a flow, and the number of a message in it."""


class SentMessage(NamedTuple):
    """A message that an application sent: when, with its ttl in ms or 0, and the id on Zenoh."""

    at_ns: int
    ttl_ms: int
    id: bytes


class Taken(NamedTuple):
    """A message that a streamer took from a network."""

    at_ns: int
    process: Process


class Subscription(NamedTuple):
    """A Subscribe that the streamer read, or an Ack that it sent: the ECU, the event group, the time, the ttl."""

    ip: str
    eventgroup: int
    at_ns: int
    ttl_s: int
    process: Process


class SomeipWorld:
    """The applications of one story."""

    def __init__(
        self,
        scheduler: Scheduler,
        networks: Mapping[str, SimNetwork],
        ip_network: SimIpNetwork,
        kernel: SimKernel,
    ) -> None:
        self._scheduler = scheduler
        self._networks = networks
        self._ids = UuidSource(scheduler.wall_ms, scheduler.rng.getrandbits)
        kernel.on_sent, kernel.on_read = self._on_streamer_sent, self._on_streamer_read
        self.ecus = {each.ip: Ecu(ip_network.add_host(each.ip), each, self._on_ecu) for each in ECUS}
        self.inside = SimApp(networks[INSIDE], "the application inside", self._on_inside)
        self.outside = SimApp(networks[OUTSIDE], "the application outside", self._on_outside)
        for sink in APP, _CALLED:
            self.inside.subscribe(filter_key(ANY, sink, "hpc"))
        self.outside.subscribe(filter_key(ANY, READER, "cloud"))
        for topic in _SUBSCRIBED:
            self.outside.subscribe(filter_key(topic, None, "chassis"))
        self.sent: dict[Key, SentMessage] = {}
        self.refused: set[Key] = set()
        """What an ECU could not send: without subscriber, room or link."""
        self.taken: dict[Key, Taken] = {}
        self.on_wire: dict[Key, list[int]] = {}
        """When a streamer gave a message for an ECU to its kernel."""
        self.received: dict[Key, list[int]] = {}
        self.responses: dict[Key, int] = {}
        """How many responses a caller received; error responses included."""
        self.answered: set[Key] = set()
        """The calls of an ECU whose response a streamer gave to its kernel."""
        self.unserved: list[str] = []
        """What did not work again after all faults."""
        self.acks: list[Subscription] = []
        """Acks that a streamer sent to ECUs."""
        self.subscribes: list[Subscription] = []
        """Subscribes of ECUs that a streamer read."""
        self.subscribed: set[UUri | None] = set()
        self._subscribing: dict[UUID, UUri] = {}
        self._numbers = [0] * len(FLOWS)
        self._call_ids: dict[UUID, Key] = {}
        self.key_of_id: dict[bytes, Key] = {}

    # --- sending ------------------------------------------------------------------------------------------------------

    def send(self, name: str, size: int, ttl_ms: int) -> None:
        """Send one message of a flow; ECUs know no ttl."""
        number = FLOW_NUMBERS[name]
        flow = FLOWS[number]
        self._numbers[number] += 1
        key = number, self._numbers[number]
        payload = identify(*key, size)
        if flow.kind == "in":
            self.sent[key] = SentMessage(self._scheduler.now_ns, 0, b"")
            if not self.ecus[flow.ecu.ip].send_event(flow.id, payload, flow.protocol):
                self.refused.add(key)
        elif flow.kind == "ecu call":
            self.sent[key] = SentMessage(self._scheduler.now_ns, 0, b"")
            if not self.ecus[flow.ecu.ip].call(flow.service, flow.id, payload, key[1]):
                self.refused.add(key)
        else:
            self._send_on_zenoh(key, flow, payload, ttl_ms)

    def _send_on_zenoh(self, key: Key, flow: SomeipFlow, payload: bytes, ttl_ms: int) -> None:
        id = self._ids.next()
        if flow.kind == "call":
            message = request(id, APP, flow.uuri, payload, ttl=ttl_ms or CALL_TTL_MS)
            self._call_ids[id] = key
        else:
            message = publish(id, flow.uuri, payload, ttl=ttl_ms or None)
        self.sent[key] = SentMessage(self._scheduler.now_ns, message.attributes.ttl or 0, wire_id(id))
        self.key_of_id[wire_id(id)] = key
        self._publish(self.inside, message, "hpc")

    @staticmethod
    def _publish(app: SimApp, message: UMessage, authority: str) -> None:
        key = message_key(message.attributes.source, message.attributes.sink, authority)
        attachment = VERSION_BYTE + encode(message.id, message.attributes)
        app.publish(wire_message(key, message.payload, attachment, wire_id(message.id)))

    def subscribe(self) -> None:
        """Subscribe the application outside to the events of the ECUs, at the streamer."""
        for topic in _SUBSCRIBED:
            wanted = subscribe_request(SubscribeRequest(topic, None)).SerializeToString()
            sink = UUri("hpc", 0, 3, 1)
            message = request(self._ids.next(), READER, sink, wanted, UPayloadFormat.PROTOBUF, ttl=5_000)
            self._subscribing[message.id] = topic
            self._publish(self.outside, message, "cloud")

    # --- receiving ----------------------------------------------------------------------------------------------------

    def _receive(self, key: Key | None) -> None:
        if key is not None:
            self.received.setdefault(key, []).append(self._scheduler.now_ns)

    def _on_outside(self, received: WireMessage) -> None:
        _, attributes = decode(received.attachment[1:])
        if attributes.reqid is not None:
            topic = self._subscribing.pop(attributes.reqid, None)
            is_answer = topic is not None and attributes.commstatus is None
            if is_answer and status_in(3, received.payload, attributes.payload_format) in _ACCEPTED:
                self.subscribed.add(topic)
            return
        self._receive(identity_in(received.payload))

    def _on_inside(self, received: WireMessage) -> None:
        id, attributes = decode(received.attachment[1:])
        if attributes.type is UMessageType.REQUEST:
            self._receive(identity_in(received.payload))
            answer = response(self._ids.next(), UMessage(id, attributes), received.payload)
            self._scheduler.call_after(NS_PER_MS, lambda: self._publish(self.inside, answer, "hpc"))
        elif attributes.reqid in self._call_ids:
            key = self._call_ids[attributes.reqid]
            self.responses[key] = self.responses.get(key, 0) + 1

    def _on_ecu(self, message: WireHeader) -> None:
        key = identity_in(message.payload)
        if key is not None and FLOWS[key[0]].kind == "ecu call":
            self.responses[key] = self.responses.get(key, 0) + 1
        else:
            self._receive(key)

    # --- the kernel of the streamer -----------------------------------------------------------------------------------

    def _on_streamer_sent(self, data: bytes, address: IpAddress) -> None:
        message = decode_message(data)
        now_ns = self._scheduler.now_ns
        if message.service == SD_SERVICE:
            for entry in decode_sd(data):
                if entry.kind == ACK and entry.ttl_s:
                    found = Subscription(
                        address[0], entry.last, now_ns, entry.ttl_s, self._scheduler.current.process
                    )
                    self.acks.append(found)
            return
        if message.kind in (RESPONSE, ERROR):
            self.answered.add((FLOW_NUMBERS["ecu call"], message.session))
            return
        key = identity_in(message.payload)
        if key is not None and FLOWS[key[0]].kind in ("out", "call"):
            self.on_wire.setdefault(key, []).append(now_ns)

    def _on_streamer_read(self, data: bytes, sender: IpAddress) -> None:
        message = decode_message(data)
        now_ns, process = self._scheduler.now_ns, self._scheduler.current.process
        if message.service == SD_SERVICE:
            for entry in decode_sd(data):
                if entry.kind == SUBSCRIBE:
                    self.subscribes.append(Subscription(sender[0], entry.last, now_ns, entry.ttl_s, process))
            return
        key = identity_in(message.payload)
        if key is not None and FLOWS[key[0]].kind in ("in", "ecu call"):
            self.taken.setdefault(key, Taken(now_ns, process))

    def note_taken_from_zenoh(self) -> None:
        """Add what streamers took from Zenoh to `taken`, after the run."""
        network = self._networks[INSIDE]
        for id, process in network.taken.items():
            key = self.key_of_id.get(id)
            if key is not None:
                self.taken[key] = Taken(network.taken_ns[id], process)

    def has_arrived(self, key: Key) -> bool:
        kind = FLOWS[key[0]].kind
        return key in self.received and (kind not in ("call", "ecu call") or key in self.responses)
