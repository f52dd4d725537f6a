# SPDX-License-Identifier: Apache-2.0
"""The uProtocol applications of the demo: each has its own Zenoh session and subscribes through uSubscription."""

import struct
from threading import Event, Lock, Thread
from typing import Final

from ustreamer.core.routing.subscriptions import period_of
from ustreamer.host.demo.rates import RateMeter
from ustreamer.host.runtime.clock import SYSTEM_CLOCK
from ustreamer.transport_port import EndpointContext
from ustreamer.transports.zenoh.config import ZenohEndpoint
from ustreamer.transports.zenoh.transport import ZenohTransport
from ustreamer.uprotocol import UCode, UMessage, UPayloadFormat, UStatusError, UuidSource, UUri
from ustreamer.uprotocol.pb import usubscription_v3 as pb
from ustreamer.uprotocol.rpc import RpcClient

_SUBSCRIBE: Final = 1
_CONNECT_NS: Final = 30_000_000_000
_SUBSCRIBE_MS: Final = 30_000
"""Long, so that the demo starts on a busy machine, too."""
_MAX_FREQUENCY_TAG: Final = b"\x19"  # field 3 as a double: max_frequency of the dispatching specification


class DemoApp:
    """One uEntity on a Zenoh network."""

    def __init__(self, name: str, address: UUri, connect: str, usubscription: UUri) -> None:
        self.name = name
        self.address = address
        self._usubscription = usubscription
        self._ids = UuidSource(SYSTEM_CLOCK.wall_ms)
        config = ZenohEndpoint(
            transport="zenoh", authorities=(address.authority_name,), mode="client", connect=(connect,)
        )
        self.transport = ZenohTransport(config, EndpointContext(name, address.authority_name, SYSTEM_CLOCK))
        self._rpc: RpcClient | None = None
        self._lock = Lock()
        self._received: dict[UUri, RateMeter] = {}
        self.requested: dict[UUri, float | None] = {}

    def start(self) -> None:
        """Connect. Raises UStatusError(UNAVAILABLE) if no peer appears within 30 s."""
        self.transport.open()
        deadline_ns = SYSTEM_CLOCK.monotonic_ns() + _CONNECT_NS
        pause = Event()
        while not self.transport.statistics()["links"]:
            if SYSTEM_CLOCK.monotonic_ns() > deadline_ns:
                raise UStatusError(UCode.UNAVAILABLE, f"application {self.name!r} found no Zenoh node")
            pause.wait(0.01)
        self._rpc = RpcClient(self.transport, self.address, self._ids)

    def subscribe(self, topic: UUri, max_frequency: float | None = None) -> None:
        """Subscribe to `topic` through uSubscription, at most `max_frequency` messages per second."""
        self.transport.register_listener(topic, None, self._on_event)
        request = pb.SubscriptionRequest(topic=topic.to_pb())
        if max_frequency is not None:
            period_of(max_frequency)  # refuses an invalid frequency
            request.attributes.MergeFromString(_MAX_FREQUENCY_TAG + struct.pack("<d", max_frequency))
        self.call(
            self._usubscription.with_resource(_SUBSCRIBE),
            request.SerializeToString(),
            UPayloadFormat.PROTOBUF,
            _SUBSCRIBE_MS,
        )
        self.requested[topic] = max_frequency

    def call(
        self,
        method: UUri,
        payload: bytes,
        payload_format: UPayloadFormat = UPayloadFormat.UNSPECIFIED,
        ttl: int = 5_000,
    ) -> UMessage:
        assert self._rpc is not None, "start() comes first"
        return self._rpc.call(method, payload, payload_format, ttl=ttl)

    def _on_event(self, message: UMessage) -> None:
        now_ns = SYSTEM_CLOCK.monotonic_ns()
        with self._lock:
            self._received.setdefault(message.attributes.source, RateMeter()).record_event(now_ns)

    def reset_rates(self) -> None:
        with self._lock:
            self._received.clear()

    def rate(self, topic: UUri) -> RateMeter:
        with self._lock:
            return self._received.get(topic, RateMeter()).copy()

    def close(self) -> None:
        self.transport.close()


class ClimateControl:
    """Calls the climate method of the chassis through the streamer, repeatedly."""

    def __init__(self, app: DemoApp, method: UUri) -> None:
        self._app = app
        self._method = method
        self._stop = Event()
        self._thread = Thread(target=self._run, name="climate control", daemon=True)
        self.sent = 0
        self.answered = 0

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.1):
            wanted = struct.pack(">H", 200 + self.sent % 50)
            self.sent += 1
            try:
                response = self._app.call(self._method, wanted)
            except UStatusError:
                continue  # a missing response shows as a difference of the two counters
            self.answered += response.payload == wanted

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(10.0)
