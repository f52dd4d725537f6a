# SPDX-License-Identifier: Apache-2.0
"""A fixed run of a WAMP realm without sockets: every frame that its sessions send, in JSON, MessagePack and CBOR.

Also: publications of the vehicle as EVENTs, publications of clients as messages, WebSocket frames, and the payloads
of calls to uSubscription.
"""

import random
from collections import Counter
from pathlib import Path
from typing import Any

from ustreamer_wamp.auth import Authenticator, UserTable
from ustreamer_wamp.codec import JSON, SERIALIZERS, Serializer
from ustreamer_wamp.connections import rawsocket, websocket
from ustreamer_wamp.connections.outbox import OutboxLimits, SessionOutbox
from ustreamer_wamp.events import Publication, WampEvent, WireFormat
from ustreamer_wamp.realm import Env, NullBackend, Realm, SessionLimits
from ustreamer_wamp.session import Session
from ustreamer_wamp.uri import MATCHES
from ustreamer_wamp.users import Principal, User
from ustreamer_wamp.vehicle.mapping import WampEventTemplate, message_of, topic_of
from ustreamer_wamp.vehicle.usubscription_codec import encode_subscribe, encode_unsubscribe

from tests.golden.frames import Frame
from ustreamer.core.base.clock import Clock, ManualClock
from ustreamer.uprotocol.uattributes import UPayloadFormat, UPriority
from ustreamer.uprotocol.umessage import UMessage, publish
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import UUri
from ustreamer.uprotocol.wire import encode

HELLO = [
    1,
    "realm1",
    {"roles": {"subscriber": {"features": {"subscription_revocation": True}}, "publisher": {}}},
]
ANONYMOUS = Principal(
    "anonymous", "anonymous", "anonymous", "static", ("",), ("com.", "bytes."), meta_api=True
)
USERS = (
    User(authid="tom", ticket="t", publish=("",)),
    User(authid="cra", secret="s", salt="salt", iterations=10),
    User(authid="key", public_keys=("ab" * 32,)),
)
VALUES: dict[str, Any] = {
    "none": None,
    "booleans": [True, False],
    "integers": [0, -1, 127, 128, 65_536, -(2**63), 2**63, 2**64 - 1],
    "floats": [0.5, -1e300, 3.0],
    "text": 'caf\u00e9 \u2713 \U0001f697 "quoted" \n',
    "nested": {"b": [1, {"a": []}], "a": {}},
    "bytes": b"\x00\xff payload",
}
TOPIC = UUri("vcu.my_vin", 0x210AB, 3, 0x80CD)


def run(_directory: Path) -> list[Frame]:
    """The frames of the run."""
    frames = list[Frame]()
    for serializer in SERIALIZERS:
        found = [
            *_pubsub(serializer),
            *_slow_client(serializer),
            *_vehicle_events(serializer),
            *_websocket(serializer),
        ]
        frames += [(f"{serializer.name}, {name}", data) for name, data in found]
    return [*frames, *_refusals(JSON), *_authentication(JSON), *_client_publications(), *_calls()]


class _Client:
    """A session with its outbox: the `FrameSink` of the session."""

    def __init__(self, realm: Realm, serializer: Serializer, clock: Clock) -> None:
        self.serializer = serializer
        self.written = b""
        self.closed = b""
        wire = rawsocket.WIRE_FORMATS[serializer.rawsocket]
        limits = OutboxLimits(events=2, bytes=1024)
        self.outbox = SessionOutbox(wire, limits, self._write, lambda: None, Counter())
        self.send_reply, self.send_event = self.outbox.enqueue_reply, self.outbox.enqueue_event
        self.write_event = self.outbox.write_event
        self.report_dropped = self.outbox.report_dropped
        self.session = Session({realm.name: realm}, serializer, self, clock.monotonic_ns(), peer="192.0.2.1")

    def _write(self, data: bytes) -> None:
        self.written += data

    def close(self, code: int, reason: str) -> None:
        self.closed = f"closed with {code} {reason}".encode()

    def send(self, *message: object) -> None:
        self.session.on_message(self.serializer.encode(list(message)))

    def pop_frames(self) -> bytes:
        """The bytes since the last call."""
        self.outbox.flush()
        found, self.written = self.written + self.closed, b""
        self.closed = b""
        return found


class _Rig:
    """A realm with a clock moved by hand and a seeded random number generator."""

    def __init__(self, serializer: Serializer, anonymous: Principal | None = ANONYMOUS) -> None:
        self.serializer = serializer
        self.time = ManualClock()
        self.clock = self.time.clock()
        rng = random.Random(1)
        bits = rng.getrandbits
        env = Env(self.clock.monotonic_ns, self.clock.wall_ms, bits, SessionLimits(), NullBackend(), bits)
        authenticator = Authenticator(UserTable(USERS, anonymous), rng.randbytes, self.clock.wall_ms)
        self.realm = Realm("realm1", authenticator, env)
        self.frames: list[Frame] = []
        self.clients: dict[str, _Client] = {}

    def client(self, name: str) -> _Client:
        self.clients[name] = client = _Client(self.realm, self.serializer, self.clock)
        return client

    def step(self, name: str) -> None:
        """Note what each client received since the last step."""
        self.frames += [
            (f"{name}, to {client}", data)
            for client, each in self.clients.items()
            if (data := each.pop_frames())
        ]


def _pubsub(serializer: Serializer) -> list[Frame]:
    """HELLO to GOODBYE: subscriptions of each policy, publications of each kind of value, meta events and calls."""
    rig = _Rig(serializer)
    subscriber, publisher = rig.client("subscriber"), rig.client("publisher")
    for each in (subscriber, publisher):
        each.send(*HELLO)
    rig.step("hello")
    publisher.send(32, 1, {}, "wamp.subscription.on_create")
    publisher.send(32, 2, {"match": "prefix"}, "wamp.subscription.")
    rig.step("subscribe to meta events")
    for request, (match, topic) in enumerate(
        zip(MATCHES, ("com.car.speed", "com.car", "com..speed"), strict=True), 1
    ):
        subscriber.send(32, request, {"match": match, "max_frequency": 10}, topic)
        rig.step(f"subscribe {match}")
    subscriber.send(32, 4, {}, "bytes.exact")
    rig.step("subscribe for bytes")
    for request, (name, value) in enumerate(VALUES.items(), 3):
        topic = "bytes.exact" if name == "bytes" else "com.car.speed"
        publisher.send(16, request, {"acknowledge": True}, topic, [value], {"name": name, "value": value})
        rig.step(f"publish {name}")
    publisher.send(16, 20, {}, "com.car.speed")
    rig.step("publish nothing")
    publisher.send(16, 21, {"disclose_me": True, "retain": True, "exclude_me": False}, "com.car.speed", [1])
    rig.step("publish disclosed and retained")
    subscriber.send(32, 5, {"get_retained": True}, "com.car.speed")
    rig.step("subscribe with retained")
    ids = {each.match: each.id for each in rig.realm.broker if each.topic.startswith("com.")}
    calls: dict[str, list[object]] = {
        "list": [],
        "lookup": ["com.car", {"match": "prefix"}],
        "match": ["com.car.speed"],
        "get": [ids["wildcard"]],
        "list_subscribers": [ids["exact"]],
        "count_subscribers": [ids["exact"]],
    }
    for request, (name, arguments) in enumerate(calls.items(), 6):
        subscriber.send(48, request, {}, f"wamp.subscription.{name}", arguments)
        rig.step(f"call {name}")
    subscriber.session.on_subscription_revoked("com.car.speed", "the service is gone")
    rig.step("revoked")
    subscriber.send(34, 12, ids["prefix"])
    rig.step("unsubscribe")
    subscriber.send(6, {}, "wamp.close.close_realm")
    rig.step("goodbye of the client")
    publisher.session.send_goodbye("wamp.close.system_shutdown")
    rig.step("goodbye of the router")
    publisher.send(6, {}, "wamp.close.goodbye_and_out")
    rig.step("echo of the client")
    return rig.frames


def _refusals(serializer: Serializer) -> list[Frame]:
    """ERROR and ABORT, with their URIs and texts."""
    rig = _Rig(serializer)
    client = rig.client("client")
    client.send(*HELLO)
    refused: dict[str, list[object]] = {
        "subscribe to no URI": [32, 1, {}, "com..speed"],
        "subscribe with a wrong rate": [32, 2, {"max_frequency": -1}, "com.car"],
        "unsubscribe nothing": [34, 3, 77],
        "publish not allowed": [16, 4, {"acknowledge": True}, "org.car"],
        "publish reserved": [16, 5, {"acknowledge": True}, "wamp.car"],
        "call nothing": [48, 6, {}, "com.procedure"],
        "get nothing": [48, 7, {}, "wamp.subscription.get", [77]],
        "get without id": [48, 8, {}, "wamp.subscription.get"],
    }
    for name, message in refused.items():
        client.send(*message)
        rig.step(name)
    violations: dict[str, list[object]] = {
        "hello without roles": [1, "realm1", {}],
        "no such realm": [1, "realm2", {"roles": {"publisher": {}}}],
        "no hello": [32, 1, {}, "com.car"],
        "type code": [99, 1],
        "length": [32, 1],
        "field": [1, 7, {}],
    }
    for name, message in violations.items():
        rig.client(name).send(*message)
        rig.step("aborted")
    rig.client("late")
    rig.time.advance(s=60)
    rig.clients["late"].session.tick(rig.time.now_ns)
    client.session.kill("wamp.close.killed", "by the operator")
    rig.step("ended")
    return rig.frames


def _authentication(serializer: Serializer) -> list[Frame]:
    """CHALLENGE of each method, WELCOME and ABORT behind it."""
    rig = _Rig(serializer, anonymous=None)
    extra = {"pubkey": "ab" * 32}
    for name, method, authid in (
        ("ticket", "ticket", "tom"),
        ("wampcra", "wampcra", "cra"),
        ("cryptosign", "cryptosign", "key"),
        ("unknown user", "ticket", "who"),
        ("anonymous", "anonymous", ""),
        ("no method", "scram", "tom"),
    ):
        details = {
            "roles": {"publisher": {}},
            "authmethods": [method],
            "authid": authid,
            "authextra": extra,
        }
        rig.client(name).send(1, "realm1", details)
        rig.step("hello")
    rig.clients["ticket"].send(5, "t", {})
    rig.clients["unknown user"].send(5, "t", {})
    rig.clients["wampcra"].send(5, "wrong", {})
    rig.step("authenticate")
    return rig.frames


def _slow_client(serializer: Serializer) -> list[Frame]:
    """Events that replace others, and the count of those dropped, for a client that does not read."""
    rig = _Rig(serializer)
    slow, publisher = rig.client("slow"), rig.client("publisher")
    for each in (slow, publisher):
        each.send(*HELLO)
    slow.send(32, 1, {"match": "prefix"}, "com.")
    rig.step("joined")
    slow.outbox.pause()
    for number in range(12):
        publisher.send(16, number + 1, {}, f"com.topic{number % 4}", [number])
    slow.outbox.resume()
    rig.step("reads again")
    return rig.frames


def _vehicle_messages() -> dict[str, UMessage]:
    ids = UuidSource(ManualClock().clock().wall_ms, lambda _: 5)
    return {
        "raw": publish(ids.next(), TOPIC, b"\x00\x01", UPayloadFormat.RAW),
        "json": publish(ids.next(), TOPIC, b'{"speed": 12.5}', UPayloadFormat.JSON, ttl=250),
        "text": publish(ids.next(), TOPIC, b"caf\xc3\xa9", UPayloadFormat.TEXT, priority=UPriority.CS5),
        "damaged json": publish(ids.next(), TOPIC, b"{", UPayloadFormat.JSON),
        "empty": publish(ids.next(), TOPIC),
    }


def _vehicle_events(serializer: Serializer) -> list[Frame]:
    """EVENTs of messages from the vehicle, exact and by pattern."""
    frames = list[Frame]()
    wire = rawsocket.WIRE_FORMATS[serializer.rawsocket]
    for number, (name, message) in enumerate(_vehicle_messages().items(), 1):
        template = WampEventTemplate(message.attributes, None)
        arguments, _ = template.args(message)
        publication = Publication(number, template.topic, arguments, template.kwargs(message), live=True)
        for match in MATCHES:
            frames.append((f"vehicle {name}, {match}", WampEvent(publication, 7, match).frame_for(wire)))
    return frames


def _websocket(serializer: Serializer) -> list[Frame]:
    """Frames of the three forms of a length: the head of long ones."""
    wire: WireFormat = websocket.WIRE_FORMATS[serializer.subprotocol]
    return [
        (f"websocket frame with {size} characters", wire.encode_message([36, 1, 2, {}, ["x" * size]])[:32])
        for size in (1, 200, 70_000)
    ]


def _client_publications() -> list[Frame]:
    """Publications of clients as messages: attributes, then payload."""
    ids = UuidSource(ManualClock().clock().wall_ms, lambda _: 5)
    published: dict[str, tuple[list[object], dict[str, object]]] = {
        "bytes": ([b"\x00\x01"], {}),
        "text": (["caf\u00e9"], {}),
        "json": ([{"b": 1, "a": [1.5, None]}], {}),
        "nothing": ([], {}),
        "options": ([b"p"], {"format": "SOMEIP", "priority": "CS5", "ttl": 250}),
    }
    frames = list[Frame]()
    for name, (args, kwargs) in published.items():
        message = message_of(ids.next(), TOPIC, args, kwargs)
        frames.append(
            (f"client publication {name}", encode(message.id, message.attributes) + b"|" + message.payload)
        )
    return [*frames, ("URI of a topic", topic_of(TOPIC).encode())]


def _calls() -> list[Frame]:
    """Payloads of Subscribe and Unsubscribe, version 3 and, for every instance, version 4."""
    every_instance = UUri(TOPIC.authority_name, 0xFFFF_10AB, 3, 0x80CD)
    return [
        (f"{name} {each}, period {period_ns}", data)
        for each in (TOPIC, every_instance)
        for period_ns in (0, 16_666_667)
        for name, data in (
            ("subscribe", encode_subscribe(each, period_ns)),
            ("unsubscribe", encode_unsubscribe(each)),
        )
    ]
