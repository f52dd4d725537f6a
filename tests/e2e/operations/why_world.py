# SPDX-License-Identifier: Apache-2.0
"""A streamer in this process between real networks, for the faults of `test_why.py`, which are injected one by one.

In: calls of a fault, such as `publish` or `subscribe`. Out: the diagnosis of `ustreamer why` over the admin socket.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import pytest

from tests.e2e.rigs.entities import SomeipNode, ecu_response
from tests.e2e.rigs.ports import tcp_ports, udp_ports
from tests.e2e.rigs.sd_ecu import SD_GROUP, SdEcu
from tests.host.running_streamer import OUTSIDE, RunningStreamer
from tests.waiting import DEADLINE_S, wait_until
from ustreamer.core.delivery.delivery import Delivery
from ustreamer.core.delivery.ledger import Verdict
from ustreamer.core.delivery.ports import Filter
from ustreamer.hooks import hookimpl
from ustreamer.host.cli.main import main
from ustreamer.host.runtime import process
from ustreamer.host.runtime.recent_events import recent_log
from ustreamer.testing.messages import new_id
from ustreamer.transports.local.transport import LocalNetwork, LocalTransport
from ustreamer.uprotocol.pb import ustreamer_v1 as control_pb
from ustreamer.uprotocol.pb import usubscription_v3 as pb
from ustreamer.uprotocol.rpc import RpcClient
from ustreamer.uprotocol.uattributes import UPayloadFormat
from ustreamer.uprotocol.umessage import UMessage, publish, request
from ustreamer.uprotocol.ustatus import UStatusError
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import UUri

FAILING_PLUGIN_TYPE: Final = 0x2FFF
"""The uEntity whose messages a broken filter receives."""
ECU_HOST, OTHER_HOST, SD_HOST = "127.0.0.1", "127.0.0.9", "127.0.0.7"
SUBSCRIBE: Final = UUri("hpc", 0, 3, 1)
UNSUBSCRIBE: Final = UUri("hpc", 0, 3, 2)
_STOP: Final = UUri("hpc", 4, 1, 2)
_SAMPLE_S: Final = 0.05
LOCAL_ENDPOINTS: Final = {"tiny": "tiny", "slow": "slow", "guarded": "guest", "dup": "dupes"}
"""Local endpoints with one fault each, and the authority behind each."""

_USUBSCRIPTION: Final = "[plugins.usubscription]\nmap_size_mb = 1"
_SECTIONS: Final = """\
{local}

[egress.tiny]
queue_bytes = 1

[egress.trunk]
max_age_ms = 50

[[endpoints.guarded.access]]
allow = false
source = "//guest/3001/1/FFFF"

[[endpoints.guarded.access]]
allow = true
type = "publish"
source = "//guest/3002/1/FFFF"

[[endpoints.guarded.access]]
allow = false
type = "response"
source = "//guest/26/1/FFFF"

[endpoints.far]
transport = "zenoh"
authorities = ["far"]
listen = ["tcp/127.0.0.1:{ports.zenoh}"]

[endpoints.chassis]
transport = "someip"
authorities = ["chassis"]
bind = "127.0.0.1"
port = {ports.chassis}
sd = false
clients = ["127.0.0.1/32"]
request_ttl_ms = 200

[[endpoints.chassis.services]]
service = 0x1234
major = 1
events = [
    {{ id = 0x8001 }}, {{ id = 0x8002 }}, {{ id = 0x8003 }},
    {{ id = 0x8004, e2e = {{ profile = "P06", data_id = 7, covers_header = false }} }},
    {{ id = 0x8005, e2e = {{ profile = "P06", data_id = 7, covers_header = false, on_error = "mark" }} }},
]
remote = "127.0.0.1:{ports.ecu}"

[[endpoints.chassis.services]]
service = 0x3001
major = 1
methods = [1, 4]
remote = "127.0.0.1:{ports.ecu}"

[[endpoints.chassis.services]]
service = 0x3002
major = 1
methods = [1]
remote = "127.0.0.1:{ports.receiver}"

[[endpoints.chassis.services]]
service = 0x4001
major = 1
events = [{{ id = 0x8001 }}]
methods = [1, 2]
offered = true
provider = "//hpc/4001/1/0"
remote = "127.0.0.1:{ports.receiver}"

[[endpoints.chassis.services]]
service = 0x4002
major = 1
protocol = "tcp"
events = [{{ id = 0x8001 }}]
offered = true
provider = "//hpc/4002/1/0"
remote = "127.0.0.1:{ports.receiver}"

[endpoints.trunk]
transport = "someip"
authorities = ["trunk"]
bind = "127.0.0.2"
port = {ports.chassis}
sd = false

[[endpoints.trunk.services]]
service = 0x4003
major = 1
protocol = "tcp"
events = [{{ id = 0x8001 }}]
offered = true
provider = "//hpc/4003/1/0"
remote = "127.0.0.1:{ports.receiver}"

[endpoints.body]
transport = "someip"
authorities = ["body"]
bind = "127.0.0.1"
port = {ports.body}

[endpoints.body.sd]
multicast = "{group}"
port = {ports.sd}
interface = "127.0.0.1"

[endpoints.body.sd.timings]
initial_delay_min_ms = 1
initial_delay_max_ms = 10
repetitions_base_delay_ms = 20
cyclic_offer_delay_ms = 200
request_response_delay_min_ms = 1
request_response_delay_max_ms = 5

[[endpoints.body.services]]
service = 0x5001
major = 1
events = [{{ id = 0x8001, eventgroup = 1 }}]

[[endpoints.body.services]]
service = 0x5002
major = 1
events = [{{ id = 0x8001, eventgroup = 1 }}]
methods = [1]

[[endpoints.body.services]]
service = 0x5003
major = 1
events = [{{ id = 0x8001, eventgroup = 1, field = true }}]
offered = true
provider = "//hpc/5003/1/0"

{usubscription}
[plugins.throttle]
"""


class WorldPorts(NamedTuple):
    """Ports on loopback: a TCP port, then UDP ports."""

    zenoh: int
    chassis: int
    ecu: int
    receiver: int
    body: int
    sd: int


class _BrokenFilter(Filter):
    def admit(self, message: UMessage, now_ns: int) -> Verdict | None:
        raise ZeroDivisionError("a defect of this plugin")


class BrokenPlugin:
    """A plugin whose filter fails for one uEntity."""

    @hookimpl
    def ustreamer_filters(self, delivery: Delivery) -> Filter | None:
        is_broken = delivery.topic is not None and delivery.topic.ue_id == FAILING_PLUGIN_TYPE
        return _BrokenFilter() if is_broken else None


class World:
    """The streamer, applications in each network, and ECUs. Each `topic` and `subscriber` is new."""

    def __init__(self, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self._numbers = count(0x100, 0x11)  # no two numbers differ as by a typing error
        self.ports = WorldPorts(*tcp_ports(1), *udp_ports(5))
        self._local = {name: LocalNetwork.named(f"{directory.name}/{name}") for name in LOCAL_ENDPOINTS}
        local = "\n".join(
            f'[endpoints.{name}]\ntransport = "local"\nnetwork = "{self._local[name].name}"\n'
            f'authorities = ["{LOCAL_ENDPOINTS[name]}"]'
            + ("\nduplicate_window = 100" if name == "dup" else "")
            for name in self._local
        )
        sections = _SECTIONS.format(
            local=local, usubscription=_USUBSCRIPTION, ports=self.ports, group=SD_GROUP
        )
        _leave_subscription_of_unknown_authority(directory)
        self.running = RunningStreamer(directory, sections)
        self.running.networks.update(self._local)
        self.streamer = self.running.streamer
        self.streamer.plugins.register(BrokenPlugin())
        self.path = self.running.path
        self._apps: dict[str, LocalTransport] = {}
        self.ecu = SomeipNode(self.ports.ecu, responder=ecu_response)
        self.other_ecu = SomeipNode(host=OTHER_HOST)
        self._sd_ecu: SdEcu | None = None
        recent_log()

    # --- life ---------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.running.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._sd_ecu is not None:
            self._sd_ecu.close()
        self.ecu.close()
        self.other_ecu.close()
        self.running.server.close(DEADLINE_S)
        self.streamer.stop(0)  # messages wait for receivers that are away, as the faults have it
        for each in self._apps.values():
            each.close()
        self.running._lock.release()

    @property
    def sd_ecu(self) -> SdEcu:
        """An ECU with service discovery, started by the first use."""
        if self._sd_ecu is None:
            self._sd_ecu = SdEcu(SD_HOST, self.ports.sd)
        return self._sd_ecu

    # --- addresses ----------------------------------------------------------------------------------------------------

    def topic(self, authority: str = "car", ue_id: int | None = None) -> UUri:
        """A topic that no other fault uses."""
        return UUri(authority, 0x2000 + next(self._numbers) if ue_id is None else ue_id, 1, 0x8001)

    def subscriber(self, authority: str = "cloud") -> UUri:
        return UUri(authority, 0x6000 + next(self._numbers), 1, 0)

    def app(self, authority: str) -> LocalTransport:
        """The application at an authority behind a local endpoint."""
        network = {"hpc": "inside", "car": "inside", "cloud": "outside"}.get(authority)
        if network is None:
            network = next(name for name, each in LOCAL_ENDPOINTS.items() if each == authority)
        if authority not in self._apps:
            self._apps[authority] = self.running.app(network, authority)
        return self._apps[authority]

    # --- messages -----------------------------------------------------------------------------------------------------

    def publish(self, topic: UUri, *, at: str | None = None, ttl: int | None = None, number: int = 1) -> None:
        for _ in range(number):
            self.app(at or topic.authority_name).send(publish(new_id(), topic, b"12", ttl=ttl))

    def send_request(self, method: UUri, *, source: UUri | None = None, at: str = "cloud") -> None:
        """Send a call and do not wait for its response."""
        self.app(at).send(request(new_id(), source or self.subscriber(at), method, ttl=30_000))

    def call(self, caller: UUri, method: UUri, payload: bytes, ttl: int = 5_000) -> UMessage:
        client = RpcClient(self.app(caller.authority_name), caller, UuidSource(lambda: new_id().time_ms))
        try:
            return client.call(method, payload, UPayloadFormat.PROTOBUF, ttl=ttl)
        finally:
            client.close()

    def subscribe(
        self,
        topic: UUri,
        subscriber: UUri | None = None,
        *,
        hz: float | None = None,
        expire_ms: int | None = None,
        has_answer: bool = True,
    ) -> UUri:
        """Subscribe, and return the subscriber. `has_answer` is False where the Response gets lost."""
        subscriber = subscriber or self.subscriber()
        attributes = pb.SubscribeAttributes()
        if hz is not None:
            attributes.sample_period_ms = round(1000 / hz)
        if expire_ms is not None:
            attributes.expire.FromMilliseconds(expire_ms)
        wanted = pb.SubscriptionRequest(topic=topic.to_pb(), attributes=attributes).SerializeToString()
        if has_answer:
            self.call(subscriber, SUBSCRIBE, wanted)
            return subscriber
        message = request(new_id(), subscriber, SUBSCRIBE, wanted, UPayloadFormat.PROTOBUF, ttl=5_000)
        self.app(subscriber.authority_name).send(message)
        directory = self.streamer.dispatcher.router.directory
        wait_until(lambda: bool(directory.subscribers(topic)), "the subscription")
        return subscriber

    def unsubscribe(self, topic: UUri, subscriber: UUri) -> None:
        wanted = pb.UnsubscribeRequest(topic=topic.to_pb())
        self.call(subscriber, UNSUBSCRIBE, wanted.SerializeToString())

    def stop_dispatching(self, topic: UUri, subscriber: UUri) -> None:
        wanted = control_pb.StopDispatchingRequest(topic=topic.to_pb())
        self.call(subscriber, _STOP, wanted.SerializeToString())

    @contextmanager
    def repeating(self, send: Callable[[], None]) -> Iterator[None]:
        """Call `send` every 2 ms during the block."""
        over = threading.Event()

        def run() -> None:
            while not over.wait(0.002):
                send()

        sender = threading.Thread(target=run)
        sender.start()
        try:
            yield
        finally:
            over.set()
            sender.join(DEADLINE_S)

    def statistics(self, endpoint: str) -> Mapping[str, int]:
        return self.streamer.endpoints()[endpoint]

    # --- the command --------------------------------------------------------------------------------------------------

    def why(
        self, subject: UUri, *arguments: str, sample_s: float = _SAMPLE_S
    ) -> tuple[dict[str, Any], float]:
        """The diagnosis of `ustreamer why`, and the CPU time of this process meanwhile: a busy machine adds none."""
        self._capsys.readouterr()
        began = time.process_time()
        main(["why", str(subject), str(self.path), "--json", "--sample", str(sample_s), *arguments])
        took_s = time.process_time() - began
        found: dict[str, Any] = json.loads(self._capsys.readouterr().out)
        return found, took_s


def _leave_subscription_of_unknown_authority(directory: Path) -> None:
    """Run a streamer that knows the authority `gone`; the subscription of it stays on disk."""
    earlier = RunningStreamer(directory)
    earlier.write(_USUBSCRIPTION, authorities={OUTSIDE: ("cloud", "gone")})
    streamer = process.load(earlier.path).streamer()
    streamer.start()
    try:
        app = earlier.app(OUTSIDE, "gone")
        client = RpcClient(app, UUri("gone", 1, 1, 0), UuidSource(lambda: new_id().time_ms))
        wanted = pb.SubscriptionRequest(topic=GONE_TOPIC.to_pb())
        client.call(SUBSCRIBE, wanted.SerializeToString(), UPayloadFormat.PROTOBUF)
        app.close()
    finally:
        streamer.stop()


GONE_TOPIC: Final = UUri("car", 0x2001, 1, 0x8001)
"""The topic of the subscriber whose authority was removed."""


def refuses(call: Callable[[], object]) -> None:
    """Make a call that the streamer refuses."""
    with suppress(UStatusError):
        call()
        raise AssertionError("the call was not refused")
