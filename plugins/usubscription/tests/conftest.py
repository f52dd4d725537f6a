# SPDX-License-Identifier: Apache-2.0
"""A streamer's worth of surroundings for the plugin: a local network, a clock that is moved by hand, and a client."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest
from google.protobuf.message import Message
from msgspec.structs import replace
from ustreamer_usubscription.plugin import UsubscriptionPlugin

from ustreamer.core.base.clock import ManualClock
from ustreamer.core.base.links import LinkStates
from ustreamer.core.base.timers import Timers
from ustreamer.core.routing.identity import Peer
from ustreamer.hooks import PluginContext
from ustreamer.transports.local.transport import LocalNetwork, LocalTransport
from ustreamer.uprotocol.pb import usubscription_v3 as pb
from ustreamer.uprotocol.pb import usubscription_v4 as pb4
from ustreamer.uprotocol.pb.google_any import Any
from ustreamer.uprotocol.uattributes import UMessageType, UPayloadFormat
from ustreamer.uprotocol.umessage import UMessage, error_response, notification, request, response
from ustreamer.uprotocol.ustatus import UCode, UStatus
from ustreamer.uprotocol.uuid import UUID, UuidSource
from ustreamer.uprotocol.uuri import ANY, ANY_AUTHORITY, ANY_ENTITY, ANY_RESOURCE, ANY_VERSION, UUri
from ustreamer.uprotocol.wire import decode_status

T = TypeVar("T")
M = TypeVar("M", bound=Message)

OWN = "device1"
SERVED = "device2"  # is behind a transport without a uSubscription
APP = UUri(OWN, 0x300EF, 4, 0)
OTHER_APP = UUri(OWN, 0x42, 1, 0)
PEER = UUri("device3", 0, 3, 0)  # another streamer's uSubscription
REMOTE_AUTHORITIES = ("device3", "device4")  # with uSubscriptions of their own
REMOTE = UUri("device3", 0x10AB, 3, 0x80CD)
TOPIC = UUri(SERVED, 0x10AB, 3, 0x80CD)
DEADLINE_S = 30.0


class ServiceRig:
    """The plugin on one end of a local network, and a client on the other.

    `post` sends a request and `answer` waits for its response, so that many requests can be pending; `call` does
    both. `start` starts the plugin; `restart` starts it again on its stored state.
    """

    def __init__(self, state_dir: Path, serves: tuple[str, ...] = (OWN, SERVED), **config: object) -> None:
        self.state_dir = state_dir
        self.config = {"may_reset": ("//*/FFFF0000/FF/0",), **config}
        self.peers: dict[UUri, Peer] = {}
        """The verified senders; any other is unverified."""
        self.serves = serves
        self.clock = ManualClock()
        network = LocalNetwork()
        self.bus, self.client = LocalTransport(network, OWN), LocalTransport(network, OWN)
        self.bus.open()
        self.client.open()
        self.response_order: list[UUID] = []
        self.notifications: list[UMessage] = []
        self.published: list[UMessage] = []
        self.on_response: Callable[[UMessage], None] = lambda _: None
        self.links = LinkStates(lambda authority: authority)
        self._ids = UuidSource(self.clock.clock().wall_ms)
        self._remote_requests: list[UMessage] = []
        self.probes: list[UMessage] = []
        """Requests for the version of devices that have not answered."""
        self._responses: dict[UUID, UMessage] = {}
        self._changed = threading.Condition()
        self._timers = Timers()
        self._timers_lock = threading.Lock()
        self.client.register_listener(ANY, UUri(ANY_AUTHORITY, ANY_ENTITY, ANY_VERSION, 0), self._receive)
        self.client.register_listener(ANY, None, self.published.append)
        for authority in REMOTE_AUTHORITIES:
            everything = UUri(authority, 0, ANY_VERSION, ANY_RESOURCE)
            self.client.register_listener(ANY, everything, self._on_remote_request)
        self.plugin = self._new_plugin()

    # --- the streamer's part ------------------------------------------------------------------------------------------

    def _new_plugin(self) -> UsubscriptionPlugin:
        context = PluginContext(
            OWN,
            self.serves,
            self.state_dir,
            self.clock.clock(),
            self._schedule,
            self.links,
            REMOTE_AUTHORITIES,
            peer_of=lambda source: self.peers.get(source, Peer("")),
        )
        return UsubscriptionPlugin(UsubscriptionPlugin.Config(**self.config), context)  # type: ignore[arg-type]

    def _schedule(self, when_ns: int, action: Callable[[], None]) -> None:
        with self._timers_lock:
            self._timers.schedule(when_ns, action)

    def start(self) -> "ServiceRig":
        self.plugin.service.start(self.bus)
        self.plugin.ustreamer_started()
        return self

    def stop(self) -> None:
        self.plugin.service.stop()

    def restart(self) -> None:
        self.stop()
        self.plugin = self._new_plugin()
        self.start()

    def advance(self, *, s: float = 0, ms: float = 0, wall_only: bool = False) -> None:
        """Advance the time, and fire the timers that are due; `wall_only`: step the wall clock only."""
        if wall_only:
            self.clock._wall_at_zero_ms += round(s * 1000 + ms)
        else:
            self.clock.advance(s=s, ms=ms)
        with self._timers_lock:
            due = self._timers.pop_due(self.clock.now_ns)
        for action in due:
            action()

    @property
    def now_ms(self) -> int:
        return self.clock.clock().wall_ms()

    def statistics(self, name: str) -> int:
        return self.plugin.service.statistics().get(name, 0)

    def routed_subscribers(self, topic: UUri = TOPIC) -> list[tuple[UUri, int]]:
        """The subscribers to which the core would route `topic`, with their periods."""
        return [(each.subscriber, each.period_ns) for each in self.plugin.directory.subscribers(topic)]

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Let other threads run until `condition` is true. Fails with `what` after DEADLINE_S."""
        end = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < end, f"waited {DEADLINE_S} s for {what}"
            self.advance()  # the service may have set its timer after the time advanced
            time.sleep(0.001)

    @contextmanager
    def service_blocked(self) -> Iterator[None]:
        """Block the service's thread in the middle of a response, so that requests posted meanwhile are queued."""
        blocked, go = threading.Event(), threading.Event()

        def hold(_: UMessage) -> None:
            self.on_response = lambda _: None  # others may be answered on other threads
            blocked.set()
            assert go.wait(DEADLINE_S)

        self.on_response = hold
        self.send_request(3)
        assert blocked.wait(DEADLINE_S)
        try:
            yield
        finally:
            go.set()

    # --- the client's part --------------------------------------------------------------------------------------------

    def _receive(self, message: UMessage) -> None:
        reqid = message.attributes.reqid
        if message.attributes.source.authority_name in REMOTE_AUTHORITIES:
            return  # messages of other uSubscriptions to this one
        if reqid is None:
            self.notifications.append(message)
            return
        with self._changed:
            self._responses[reqid] = message
            self.response_order.append(reqid)
            self._changed.notify_all()
        self.on_response(message)

    def send_request(
        self,
        method: int,
        payload: Message | bytes = b"",
        *,
        caller: UUri = APP,
        authority: str = OWN,
        version: int = 3,
        payload_format: UPayloadFormat = UPayloadFormat.PROTOBUF,
        ttl: int = 5000,
        permission_level: int | None = None,
    ) -> UUID:
        """Send a request; its id."""
        if isinstance(payload, Message):
            data = payload.SerializeToString()
            if payload_format is UPayloadFormat.PROTOBUF_WRAPPED_IN_ANY:
                name = f"type.googleapis.com/{payload.DESCRIPTOR.full_name}"
                data = Any(type_url=name, value=data).SerializeToString()
        else:
            data = payload
        sink = UUri(authority, 0, version, method)
        message = request(self._ids.next(), caller, sink, data, payload_format, ttl=ttl)
        if permission_level is not None:
            attributes = replace(message.attributes, permission_level=permission_level)
            message = replace(message, attributes=attributes)
        self.client.send(message)
        return message.id

    def send_empty_request(self, sink: UUri) -> None:
        """Send an empty request to any service."""
        self.client.send(request(self._ids.next(), APP, sink, ttl=1000))

    def wait_response(self, reqid: UUID) -> UMessage:
        with self._changed:
            assert self._changed.wait_for(lambda: reqid in self._responses, DEADLINE_S), (
                f"no answer to {reqid}"
            )
            return self._responses.pop(reqid)

    def call(self, method: int, payload: Message | bytes = b"", **options: object) -> UMessage:
        return self.wait_response(self.send_request(method, payload, **options))  # type: ignore[arg-type]

    def call_for(self, kind: type[M], method: int, payload: Message | bytes = b"", **options: object) -> M:
        """The answer as a message; fails if it is an error."""
        answer = self.call(method, payload, **options)
        assert answer.attributes.commstatus is None, decode_status(answer.payload)
        return kind.FromString(answer.payload)

    def call_refused(self, method: int, payload: Message | bytes = b"", **options: object) -> UStatus:
        """The status of an error answer; fails if it is none, or if commstatus and payload differ."""
        answer = self.call(method, payload, **options)
        status = decode_status(answer.payload)
        assert answer.attributes.commstatus == status.code != UCode.OK
        assert answer.attributes.payload_format is UPayloadFormat.PROTOBUF
        return status

    @staticmethod
    def subscription_request(
        topic: UUri = TOPIC, *, sample_period_ms: int | None = None, expire_ms: int | None = None
    ) -> pb.SubscriptionRequest:
        attributes = pb.SubscribeAttributes(sample_period_ms=sample_period_ms)
        if expire_ms is not None:
            attributes.expire.seconds, attributes.expire.nanos = (
                expire_ms // 1000,
                expire_ms % 1000 * 1_000_000,
            )
        return pb.SubscriptionRequest(topic=topic.to_pb(), attributes=attributes)

    def subscribe(
        self,
        topic: UUri = TOPIC,
        *,
        caller: UUri = APP,
        sample_period_ms: int | None = None,
        expire_ms: int | None = None,
    ) -> int:
        """Subscribe and return the state in the answer."""
        wanted = self.subscription_request(topic, sample_period_ms=sample_period_ms, expire_ms=expire_ms)
        return self.call_for(pb.SubscriptionResponse, 1, wanted, caller=caller).status.state

    def unsubscribe(self, topic: UUri = TOPIC, *, caller: UUri = APP) -> None:
        self.call_for(pb.UnsubscribeResponse, 2, pb.UnsubscribeRequest(topic=topic.to_pb()), caller=caller)

    def register(self, topic: UUri = TOPIC, *, caller: UUri = OTHER_APP) -> None:
        self.call_for(
            pb.NotificationsResponse, 6, pb.NotificationsRequest(topic=topic.to_pb()), caller=caller
        )

    def unregister(self, topic: UUri = TOPIC, *, caller: UUri = OTHER_APP) -> None:
        self.call_for(
            pb.NotificationsResponse, 7, pb.NotificationsRequest(topic=topic.to_pb()), caller=caller
        )

    def reset(self, *, caller: UUri = PEER) -> None:
        self.call_for(pb.ResetResponse, 9, caller=caller)

    # --- the part of other devices ------------------------------------------------------------------------------------

    def _on_remote_request(self, message: UMessage) -> None:
        if message.attributes.type is UMessageType.REQUEST:
            (self.probes if self._is_probe(message) else self._remote_requests).append(message)

    def _is_probe(self, message: UMessage) -> bool:
        silent = list(self.plugin.service._remote_topics._probes._silent.values())
        return any(message.id in [probe.reqid for probe in each.probes] for each in silent)

    def take_remote_requests(self) -> list[UMessage]:
        """The requests to other uSubscriptions since the last call, but for probes; all due requests have been sent."""
        self.fetch()
        self.fetch()
        calls, self._remote_requests[:] = list(self._remote_requests), []
        return calls

    def take_remote_request(self) -> UMessage:
        """The one request to another uSubscription since the last time."""
        [call] = self.take_remote_requests()
        return call

    def take_remote_request_fields(self) -> list[tuple[int, UUri, int, int | None]]:
        """(method, topic, sample_period_ms, expire_ms) of the requests to others since the last time."""
        return [self.remote_request_fields(call) for call in self.take_remote_requests()]

    @staticmethod
    def remote_request_fields(call: UMessage) -> tuple[int, UUri, int, int | None]:
        """(method, topic, sample_period_ms, expire_ms) of a request to another uSubscription."""
        sink = call.attributes.sink
        assert sink is not None
        if sink.ue_version_major == 4:
            new = pb4.SubscribeRequest.FromString(call.payload)
            end = new.expiration.ToMilliseconds() if new.HasField("expiration") else None
            return sink.resource_id, UUri.from_pb(new.topic), new.sample_period, end
        old = pb.SubscriptionRequest.FromString(call.payload)
        attributes = old.attributes
        end = attributes.expire.ToMilliseconds() if attributes.HasField("expire") else None
        return sink.resource_id, UUri.from_pb(old.topic), attributes.sample_period_ms, end

    def remote_grants(self, call: UMessage, state: int = pb.SubscriptionStatus.SUBSCRIBED) -> None:
        """Answer a request as another uSubscription does. On return the service has processed the response."""
        self.send_remote_grant(call, state)
        self.fetch()

    def send_remote_grant(self, call: UMessage, state: int = pb.SubscriptionStatus.SUBSCRIBED) -> None:
        """Answer a request as another uSubscription does."""
        method, topic, _, _ = self.remote_request_fields(call)
        assert call.attributes.sink is not None
        answer: Message = pb.UnsubscribeResponse()
        if method == 1 and call.attributes.sink.ue_version_major == 4:
            answer = pb4.SubscribeResponse(topic=topic.to_pb(), status=state + 1)
        elif method == 1:
            status = pb.SubscriptionStatus(state=state)
            answer = pb.SubscriptionResponse(status=status, topic=topic.to_pb())
        payload = answer.SerializeToString()
        self.client.send(response(self._ids.next(), call, payload, UPayloadFormat.PROTOBUF))

    def answer_list(self, probe: UMessage) -> None:
        """Answer a FetchSubscriptions with an empty list. On return the service has processed it."""
        self.client.send(response(self._ids.next(), probe, b"", UPayloadFormat.PROTOBUF))
        self.fetch()

    def remote_refuses(self, call: UMessage, code: UCode, text: str = "no") -> None:
        """Answer a request with an error. On return the service has processed it."""
        self.send_remote_error(call, code, text)
        self.fetch()

    def send_remote_error(self, call: UMessage, code: UCode, text: str = "no") -> None:
        """Answer a request with an error, on any thread."""
        self.client.send(error_response(self._ids.next(), call, UStatus(code, text)))

    def remote_notifies(
        self, topic: UUri, state: int, source: UUri | None = None, subscriber: UUri | None = None
    ) -> None:
        """Notify the service of a change, as another uSubscription does. On return the service has processed it."""
        self.send_remote_notification(topic, state, source, subscriber)
        self.fetch()

    def send_remote_notification(
        self, topic: UUri, state: int, source: UUri | None = None, subscriber: UUri | None = None
    ) -> None:
        """Notify the service of a change, as another uSubscription does."""
        update = pb.Update(
            topic=topic.to_pb(),
            subscriber=pb.SubscriberInfo(uri=(subscriber or UUri(OWN, 0, 3, 0)).to_pb()),
            status=pb.SubscriptionStatus(state=state),
        )
        source = source or UUri(topic.authority_name, 0, 3, 0x8000)
        payload = update.SerializeToString()
        self.client.send(
            notification(self._ids.next(), source, UUri(OWN, 0, 3, 0), payload, UPayloadFormat.PROTOBUF)
        )

    # --- requests of the client -----------------------------------------------------------------------------

    def take_v3_notifications(self) -> list[tuple[UUri, UUri, UUri, str]]:
        """(receiver, topic, subscriber, state) of each v3 notification since the last call, in order.

        Calls the service twice. The first call ends expired subscriptions; after the second response all earlier
        notifications have arrived.
        """
        self.fetch()
        self.fetch()
        messages, self.notifications[:] = list(self.notifications), []
        return [
            (
                each.attributes.sink,
                UUri.from_pb(update.topic),
                UUri.from_pb(update.subscriber.uri),
                pb.SubscriptionStatus.State.Name(update.status.state),
            )
            for each in messages
            if each.attributes.sink is not None and each.attributes.source == UUri(OWN, 0, 3, 0x8000)
            for update in [pb.Update.FromString(each.payload)]
        ]

    def registered_observers(self) -> set[tuple[UUri, UUri]]:
        """(topic, entity) of every registration in the service."""
        return {each.pair for each in self.plugin.service._state.observers}

    def fetch(
        self, topic: UUri | None = None, *, subscriber: UUri | None = None, offset: int | None = None
    ) -> pb.FetchSubscriptionsResponse:
        if subscriber is not None:
            info = pb.SubscriberInfo(uri=subscriber.to_pb())
            wanted = pb.FetchSubscriptionsRequest(subscriber=info, offset=offset)
        else:
            wanted = pb.FetchSubscriptionsRequest(topic=topic.to_pb() if topic else None, offset=offset)
        return self.call_for(pb.FetchSubscriptionsResponse, 3, wanted)

    def pairs(self) -> list[tuple[UUri, UUri]]:
        """(topic, subscriber) of every subscription, as FetchSubscriptions lists them."""
        return [(UUri.from_pb(s.topic), UUri.from_pb(s.subscriber.uri)) for s in self.fetch().subscriptions]


@pytest.fixture
def make_rig(tmp_path: Path) -> Iterator[Callable[..., ServiceRig]]:
    """Makes rigs, each with its own state directory unless one is given, and stops them at the end."""
    rigs: list[ServiceRig] = []

    def make(state_dir: Path | None = None, **config: object) -> ServiceRig:
        rigs.append(ServiceRig(state_dir or tmp_path / f"state{len(rigs)}", **config))  # type: ignore[arg-type]
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.stop()


@pytest.fixture
def rig(make_rig: Callable[..., ServiceRig]) -> ServiceRig:
    return make_rig().start()
