# SPDX-License-Identifier: Apache-2.0
"""A fixed run of the plugin usubscription on a local network: its responses, updates, calls to others, and its store.

Covered: both versions of the interface, rates, expiry, details, observers, topic states, remote topics and history.
"""

from pathlib import Path
from queue import SimpleQueue

import msgspec
from google.protobuf.message import Message
from ustreamer_usubscription.config import UsubscriptionConfig
from ustreamer_usubscription.plugin import UsubscriptionPlugin

from tests.golden.frames import Frame, numbered
from tests.golden.store_runs import frames_of_store
from ustreamer.core.base.clock import ManualClock
from ustreamer.hooks import PluginContext
from ustreamer.transports.local.transport import LocalNetwork, LocalTransport
from ustreamer.uprotocol.pb import usubscription_v3 as pb
from ustreamer.uprotocol.pb import usubscription_v4 as pb4
from ustreamer.uprotocol.pb.google_any import Any
from ustreamer.uprotocol.pb.google_timestamp import Timestamp
from ustreamer.uprotocol.uattributes import UMessageType, UPayloadFormat
from ustreamer.uprotocol.umessage import UMessage, request, response
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import ANY, ANY_AUTHORITY, ANY_ENTITY, ANY_RESOURCE, ANY_VERSION, UUri
from ustreamer.uprotocol.wire import encode_tail

STORE = "usubscription"
OWN = "device1"
APP = UUri(OWN, 0x300EF, 4, 0)
OTHER_APP = UUri(OWN, 0x42, 1, 0)
TOPIC = UUri("device2", 0x10AB, 3, 0x80CD)
SECOND = UUri("device2", 0x10AB, 3, 0x80CE)
REMOTE = UUri("device3", 0x10AB, 3, 0x80CD)
EVERY_INSTANCE = UUri("device2", 0xFFFF_10AB, 3, 0x80CD)
WITHIN_S = 30.0
CONFIG = {
    "topic_lifecycle": "track",
    "map_size_mb": 1,
    "may_reset": ["//*/0/FF/0"],
    "delivery": [{"topic": str(TOPIC), "id": "zenoh", "type": "fast", "attributes": {"key": "value"}}],
}


def run(directory: Path) -> list[Frame]:
    """The frames of the run; the store stays in the directory."""
    rig = _Rig(directory)
    try:
        _subscribe(rig)
        _observe(rig)
        _remote(rig)
        _refused(rig)
    finally:
        rig.plugin.service.stop()
    return [*rig.frames, *frames_of_store(directory / STORE)]


class _Rig:
    """The plugin, and one client for all its peers."""

    def __init__(self, state_dir: Path) -> None:
        self.time = ManualClock()
        self.frames: list[Frame] = []
        network = LocalNetwork()
        bus, self.client = LocalTransport(network, OWN), LocalTransport(network, OWN)
        bus.open()
        self.client.open()
        self._received: SimpleQueue[UMessage] = SimpleQueue()
        entities = UUri(ANY_AUTHORITY, ANY_ENTITY, ANY_VERSION, 0)
        others = UUri("device3", 0, ANY_VERSION, ANY_RESOURCE)
        for sink in (entities, others, None):
            self.client.register_listener(ANY, sink, self._received.put)
        self._ids = UuidSource(self.time.clock().wall_ms)
        self._call_ids = UuidSource(self.time.clock().wall_ms, lambda _: 9)
        context = PluginContext(
            OWN,
            (OWN, "device2"),
            state_dir,
            self.time.clock(),
            lambda when_ns, action: None,
            authorities=("device3",),
        )
        config = msgspec.convert(CONFIG, UsubscriptionConfig)
        self.plugin = UsubscriptionPlugin(config, context)
        self.plugin.service.start(bus)
        self.plugin.ustreamer_started()

    def call(
        self,
        name: str,
        method: int,
        payload: Message | bytes,
        caller: UUri = APP,
        version: int = 3,
        payload_format: UPayloadFormat = UPayloadFormat.PROTOBUF,
    ) -> list[UMessage]:
        """Call a method, and note all that the service sends for it, and before it what has become due."""
        data = payload if isinstance(payload, bytes) else payload.SerializeToString()
        self.time.advance(ms=200)
        due = self._receive_rest()
        asked = self._request(UUri(OWN, 0, version, method), data, caller, payload_format, self._call_ids)
        self._note(name, found := due + self._receive_response(asked) + self._receive_rest())
        self.time.advance(ms=400)
        return found

    def _request(
        self,
        sink: UUri,
        data: bytes = b"",
        caller: UUri = APP,
        payload_format: UPayloadFormat = UPayloadFormat.PROTOBUF,
        ids: UuidSource | None = None,
    ) -> UMessage:
        asked = request((ids or self._ids).next(), caller, sink, data, payload_format, ttl=5_000)
        self.client.send(asked)
        return asked

    def _receive_response(self, asked: UMessage) -> list[UMessage]:
        """All messages up to the response to `asked`."""
        found = [self._received.get(timeout=WITHIN_S)]
        while found[-1].attributes.reqid != asked.id:
            found.append(self._received.get(timeout=WITHIN_S))
        return found

    def _receive_rest(self) -> list[UMessage]:
        """What follows the last response: updates, and calls of other devices. Two queries come behind them.

        The service may still work behind its response to the second query. So the time moves before a query only:
        what becomes due then is sent before the response to the query, however fast the service is.
        """
        found = list[UMessage]()
        for _ in range(2):
            found += self._receive_response(self._request(UUri(OWN, 0, 3, 3)))[:-1]
        return found

    def _note(self, name: str, found: list[UMessage]) -> None:
        self.frames += numbered(name, map(_as_bytes, found))

    def grant(self, name: str, requests: list[UMessage], answer: Message) -> None:
        """Answer the requests to another device."""
        self.time.advance(ms=200)
        for each in requests:
            if each.attributes.type is UMessageType.REQUEST:
                data = answer.SerializeToString()
                self.client.send(response(self._ids.next(), each, data, UPayloadFormat.PROTOBUF))
        self._note(name, self._receive_rest())
        self.time.advance(ms=200)


def _as_bytes(message: UMessage) -> bytes:
    """A message without its id, which the service draws at random."""
    return encode_tail(message.attributes) + b"|" + message.payload


def _subscription(
    topic: UUri, period_ms: int | None = None, *, details: bool = False
) -> pb.SubscriptionRequest:
    attributes = pb.SubscribeAttributes(sample_period_ms=period_ms)
    if details:
        attributes.expire.FromMilliseconds(1_700_000_600_500)
        attributes.details.add(type_url="type.googleapis.com/google.protobuf.StringValue", value=b"\x0a\x01x")
    return pb.SubscriptionRequest(topic=topic.to_pb(), attributes=attributes)


def _subscribe(rig: _Rig) -> None:
    """Subscriptions of both versions, with rates, expiry, details, and a payload in an Any."""
    rig.call("subscribe", 1, _subscription(TOPIC))
    rig.call("subscribe with a period", 1, _subscription(TOPIC, 25), OTHER_APP)
    rig.call("subscribe with details", 1, _subscription(SECOND, 40, details=True), OTHER_APP)
    frequency = pb.SubscriptionRequest(topic=SECOND.to_pb()).SerializeToString()
    at_60_hz = bytes.fromhex("1a09190000000000004e40")
    rig.call("subscribe with 60 Hz", 1, frequency + at_60_hz)
    wrapped = Any(
        type_url="type.googleapis.com/uprotocol.core.usubscription.v3.SubscriptionRequest",
        value=_subscription(TOPIC, 100).SerializeToString(),
    )
    rig.call("subscribe in an Any", 1, wrapped, payload_format=UPayloadFormat.PROTOBUF_WRAPPED_IN_ANY)
    expiration = Timestamp()
    expiration.FromMilliseconds(1_700_000_900_000)
    version_4 = pb4.SubscribeRequest(topic=EVERY_INSTANCE.to_pb(), expiration=expiration, sample_period=17)
    rig.call("subscribe, version 4", 1, version_4, version=4)
    rig.call("fetch", 3, pb.FetchSubscriptionsRequest(topic=TOPIC.to_pb()), OTHER_APP)
    rig.call("fetch subscribers", 8, pb.FetchSubscribersRequest(topic=SECOND.to_pb()), OTHER_APP)
    rig.call("fetch, version 4", 3, pb4.FetchSubscriptionsRequest(), OTHER_APP, version=4)


def _observe(rig: _Rig) -> None:
    """Registrations for notifications, their updates, and topic states."""
    rig.call("register", 6, pb.NotificationsRequest(topic=TOPIC.to_pb()), OTHER_APP)
    rig.call("register, version 4", 4, pb4.NotificationsRequest(), OTHER_APP, version=4)
    rig.call("create a topic", 4, pb.CreateTopicRequest(topic=TOPIC.to_pb()), UUri("device2", 0x10AB, 3, 0))
    rig.call(
        "deprecate a topic", 5, pb.DeprecateTopicRequest(topic=TOPIC.to_pb()), UUri("device2", 0x10AB, 3, 0)
    )
    rig.call("unsubscribe", 2, pb.UnsubscribeRequest(topic=TOPIC.to_pb()), OTHER_APP)
    rig.call("subscribe a deprecated topic", 1, _subscription(TOPIC, 50), OTHER_APP)
    rig.call("register for another topic", 6, pb.NotificationsRequest(topic=SECOND.to_pb()), APP)
    rig.call("unregister", 7, pb.NotificationsRequest(topic=SECOND.to_pb()), APP)


def _remote(rig: _Rig) -> None:
    """Topics of another device: the calls there, and the updates behind its answers."""
    calls = rig.call("subscribe a remote topic", 1, _subscription(REMOTE, 30))
    granted = pb.SubscriptionResponse(
        status=pb.SubscriptionStatus(state=pb.SubscriptionStatus.SUBSCRIBED), topic=REMOTE.to_pb()
    )
    rig.grant("the other device grants", calls, granted)
    calls = rig.call("subscribe a remote topic faster", 1, _subscription(REMOTE, 10, details=True), OTHER_APP)
    rig.grant("the other device grants more", calls, granted)
    every_instance = UUri("device3", 0xFFFF_10AB, 3, 0x80CD)
    version_4 = pb4.SubscribeRequest(topic=every_instance.to_pb(), sample_period=17)
    rig.call("subscribe a remote topic, version 4", 1, version_4, version=4)
    pending = UUri("device3", 0x10AB, 3, 0x80CF)
    rig.call("subscribe a pending topic", 1, _subscription(pending))
    rig.call("unsubscribe a pending topic", 2, pb.UnsubscribeRequest(topic=pending.to_pb()))


def _refused(rig: _Rig) -> None:
    """Requests that are refused, with their texts."""
    rig.call("no topic", 1, pb.SubscriptionRequest())
    rig.call("not protobuf", 1, b"\xff")
    rig.call("unknown method", 99, b"")
    rig.call("reset by an application", 9, b"")
    rig.call("unsubscribe nothing", 2, pb.UnsubscribeRequest(topic=UUri("device2", 1, 1, 0x8000).to_pb()))
