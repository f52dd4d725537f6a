# SPDX-License-Identifier: Apache-2.0
"""A request always gets one response, whatever its outcome; no other message gets one (DSP-17, X-12).

Covers every outcome without delivery, in a whole streamer between fake links.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

import msgspec
import pytest

from tests.host.streamer_bench import (
    QUICK_RETRY,
    WITH_USUBSCRIPTION,
    Bench,
    FakeTransport,
    NoConfig,
    fake,
    link,
)
from tests.host.waiting import eventually
from ustreamer.core.delivery.delivery import Delivery
from ustreamer.core.delivery.ledger import Verdict
from ustreamer.core.delivery.ports import Filter
from ustreamer.hooks import HostedService, PluginContext, hookimpl
from ustreamer.host.runtime.streamer import Streamer
from ustreamer.testing.messages import new_id
from ustreamer.transport_port import RouteUnavailable
from ustreamer.uprotocol.uattributes import UMessageType, UPayloadFormat, UPriority
from ustreamer.uprotocol.umessage import UMessage, notification, publish, request, response
from ustreamer.uprotocol.ustatus import UCode
from ustreamer.uprotocol.utransport import UTransport
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri
from ustreamer.uprotocol.wire import decode_status

APP: Final = UUri("app", 0x10, 1, 0)
METHOD: Final = UUri("chassis", 0x2001, 1, 1)
SILENT: Final = UUri("hpc", 7, 1, 1)
TTL_MS: Final = 60_000


class SilentService:
    """Hosts a uEntity without a listener."""

    Config = NoConfig
    entities: ClassVar = [SILENT.with_resource(0)]

    def __init__(self, config: NoConfig, context: PluginContext) -> None: ...

    def start(self, bus: UTransport) -> None: ...

    def stop(self) -> None: ...

    @hookimpl
    def ustreamer_services(self) -> Sequence[HostedService]:
        return [self]


class Filtering:
    """Installs one filter, of the class named here, towards the chassis."""

    Config = NoConfig
    made: ClassVar[type[Filter]]

    def __init__(self, config: NoConfig, context: PluginContext) -> None: ...

    @hookimpl
    def ustreamer_filters(self, delivery: Delivery) -> Filter | None:
        return self.made() if delivery.endpoint == "chassis" else None


class Answering(Filter):
    def __init__(self, verdict: Verdict) -> None:
        self._verdict = verdict

    def admit(self, message: UMessage, now_ns: int) -> Verdict | None:
        return self._verdict


class Raising(Filter):
    def admit(self, message: UMessage, now_ns: int) -> Verdict | None:
        raise KeyError("a mistake")


def filtering(make: Callable[[], Filter]) -> dict[str, type[Any]]:
    return {"filtering": type("Filtering1", (Filtering,), {"made": staticmethod(make)})}


class FailureCase(NamedTuple):
    """An outcome. `sink` is the called method; `prepare` sets up the failure, and `after` completes it."""

    code: UCode
    text: str
    sink: UUri = METHOD
    sections: tuple[str, ...] = ()
    extra: dict[str, type[Any]] = {}  # noqa: RUF012  # never changed
    prepare: Callable[[Streamer], object] = lambda streamer: None
    after: Callable[[Streamer], object] = lambda streamer: None
    changed: dict[str, object] = {}  # noqa: RUF012  # attributes of the request, as above
    old_ms: int = 0


def fault(code: UCode) -> Callable[[Streamer], None]:
    def prepare(streamer: Streamer) -> None:
        link(streamer, "chassis").fault = code

    return prepare


def blow_up(streamer: Streamer) -> None:
    def transmit(subscriber: UUri | None, message: UMessage) -> None:
        raise ZeroDivisionError("in a transport")

    link(streamer, "chassis")._transmit = transmit  # type: ignore[method-assign]


def stop(streamer: Streamer) -> None:
    assert streamer.stop(0.05) > 0


RULE = '[[endpoints.app.access]]\nallow = true\ntype = "publish"'
FAILURE_CASES = {
    "no route": FailureCase(UCode.UNAVAILABLE, "no endpoint for authority 'mars'", UUri("mars", 1, 1, 1)),
    "denied by a rule": FailureCase(UCode.PERMISSION_DENIED, "no rule of endpoints.app.access allows", sections=(RULE,)),
    "spoofed": FailureCase(
        UCode.PERMISSION_DENIED, "does not live behind", changed={"source": UUri("chassis", 0x99, 1, 0)}
    ),
    "malformed": FailureCase(UCode.INVALID_ARGUMENT, "priority of at least CS4", changed={"priority": UPriority.CS1}),
    "without ttl": FailureCase(UCode.INVALID_ARGUMENT, "ttl above 0", changed={"ttl": None}),
    "expired on arrival": FailureCase(UCode.DEADLINE_EXCEEDED, "had run out on arrival", old_ms=TTL_MS + 1_000),
    "expired in the queue": FailureCase(
        UCode.DEADLINE_EXCEEDED,
        "waited too long",
        prepare=fault(UCode.UNAVAILABLE),
        sections=(QUICK_RETRY,),
        old_ms=TTL_MS - 200,
    ),
    "queue full": FailureCase(
        UCode.RESOURCE_EXHAUSTED,
        "egress queue of endpoint 'chassis' is full",
        sections=("[egress.chassis]\nqueue_bytes = 1",),
    ),
    "the link cannot carry it": FailureCase(UCode.UNIMPLEMENTED, "no way to chassis", prepare=fault(UCode.UNIMPLEMENTED)),
    "the transport is broken": FailureCase(UCode.INTERNAL, "ZeroDivisionError", prepare=blow_up),
    "no such method of ours": FailureCase(UCode.UNIMPLEMENTED, "", UUri("hpc", 4, 1, 0x7F)),
    "no such version of uSubscription": FailureCase(
        UCode.UNIMPLEMENTED, "", UUri("hpc", 0, 0x77, 1), sections=(WITH_USUBSCRIPTION,)
    ),
    "a service that does not listen": FailureCase(
        UCode.UNIMPLEMENTED, f"no service listens for calls of {SILENT}", SILENT, extra={"mute": SilentService}
    ),
    "a filter denies": FailureCase(
        UCode.PERMISSION_DENIED, "by a filter", extra=filtering(lambda: Answering(Verdict.DENIED))
    ),
    "a filter throttles": FailureCase(
        UCode.RESOURCE_EXHAUSTED, "of a filter", extra=filtering(lambda: Answering(Verdict.THROTTLED))
    ),
    "a filter raises": FailureCase(UCode.INTERNAL, "filter Raising raised KeyError", extra=filtering(Raising)),
    "stopped while it waits": FailureCase(
        UCode.UNAVAILABLE, "the streamer was stopped", prepare=fault(UCode.UNAVAILABLE), after=stop
    ),
    "stopped while a filter holds it": FailureCase(
        UCode.UNAVAILABLE,
        "the streamer was stopped",
        extra=filtering(lambda: Answering(Verdict.QUEUED)),
        after=stop,
    ),
}  # fmt: skip


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.finish()


def streamer_in(trouble: FailureCase, bench: Bench) -> tuple[Streamer, FakeTransport]:
    """A streamer with the failure set up, and the link to the application."""
    streamer = bench.started(
        fake("app", "app"), fake("chassis", "chassis"), *trouble.sections, extra=trouble.extra
    )
    trouble.prepare(streamer)
    return streamer, link(streamer, "app")


def made(trouble: FailureCase, message: UMessage) -> UMessage:
    id = new_id()
    old = UUID(id.msb - (trouble.old_ms << 16), id.lsb)
    return UMessage(old, msgspec.structs.replace(message.attributes, **trouble.changed), message.payload)


@pytest.mark.parametrize("trouble", FAILURE_CASES.values(), ids=FAILURE_CASES)
def test_a_request_that_ends_badly_is_answered_once(bench: Bench, trouble: FailureCase) -> None:
    streamer, app = streamer_in(trouble, bench)
    sent_request = made(trouble, request(new_id(), APP, trouble.sink, b"?", UPayloadFormat.RAW, ttl=TTL_MS))
    app.receive_message(sent_request)
    trouble.after(streamer)
    eventually(lambda: bool(app.sent), "an answer")
    eventually(lambda: streamer.ledger().queued == 0, "quiet")
    [(_, answer)] = app.sent
    answer.check(strict=True)
    attributes = answer.attributes
    assert (attributes.type, attributes.reqid) == (UMessageType.RESPONSE, sent_request.id)
    assert (attributes.source, attributes.sink) == (trouble.sink, sent_request.attributes.source)
    status = decode_status(answer.payload)
    assert (attributes.commstatus, status.code) == (trouble.code, trouble.code)
    assert trouble.text in status.message
    assert link(streamer, "chassis").sent == []


def unanswerable(sink: UUri) -> list[UMessage]:
    """One message of each type that gets no response, to the address of `sink`."""
    sent_request = request(new_id(), sink.with_resource(0), APP.with_resource(1), ttl=TTL_MS)
    return [
        publish(new_id(), APP.with_resource(0x8001), ttl=TTL_MS),
        notification(new_id(), APP.with_resource(0x8001), sink.with_resource(0), ttl=TTL_MS),
        response(new_id(), sent_request),
    ]


@pytest.mark.parametrize("trouble", FAILURE_CASES.values(), ids=FAILURE_CASES)
def test_nothing_but_a_request_is_answered_whatever_its_end(bench: Bench, trouble: FailureCase) -> None:
    streamer, app = streamer_in(trouble, bench)
    for message in unanswerable(trouble.sink):
        app.receive_message(made(trouble, message))
    if trouble.after is stop:
        streamer.stop(0.05)
    eventually(lambda: streamer.ledger().queued == 0, "quiet")
    assert app.sent == []


def test_a_failed_call_of_a_hosted_service_gets_an_error_response(bench: Bench) -> None:
    """It is behind the endpoint `self`, which no other component observes."""
    streamer = bench.started(fake("chassis", "chassis"), extra={"mute": SilentService})
    received: list[UMessage] = []
    bus = streamer._bus
    bus.register_listener(UUri("*", 0xFFFFFFFF, 0xFF, 0xFFFF), SILENT.with_resource(0), received.append)
    sent_request = request(new_id(), SILENT.with_resource(0), UUri("mars", 1, 1, 1), ttl=TTL_MS)
    bus.send(sent_request)
    eventually(lambda: bool(received), "an answer")
    assert [(each.attributes.reqid, each.attributes.commstatus) for each in received] == [
        (sent_request.id, UCode.UNAVAILABLE)
    ]
    assert link(streamer, "chassis").sent == []


def test_a_stop_does_not_wait_for_unreachable_requesters(bench: Bench) -> None:
    streamer = bench.started(fake("app", "app"), fake("chassis", "chassis"))
    for name in ("app", "chassis"):
        link(streamer, name).fault = UCode.UNAVAILABLE
    link(streamer, "app").receive_message(request(new_id(), APP, METHOD, ttl=TTL_MS))
    assert streamer.stop(0.05) == 1
    ledger = streamer.ledger()
    assert (ledger.queued, ledger.dead_lettered) == (0, 2)  # the request and its response


class ClosedRoute:
    """Closes the link `name` until the `times`-th wait for its queue during a stop."""

    def __init__(self, streamer: Streamer, name: str, times: int) -> None:
        self._endpoint_queue = streamer._egress_queues[name]
        self._link = link(streamer, name)
        self._transmit, self._wait_empty = self._link._transmit, self._endpoint_queue.wait_empty
        self._times = times
        self._closed = True
        self._link._transmit = self._refuse  # type: ignore[method-assign]
        self._endpoint_queue.wait_empty = self._waited  # type: ignore[method-assign]

    def _refuse(self, subscriber: UUri | None, message: UMessage) -> None:
        if self._closed:
            raise RouteUnavailable("route", "no listener yet")
        self._transmit(subscriber, message)

    def _waited(self, deadline_ns: int) -> bool:
        self._times -= 1
        if not self._times:
            self._closed = False
            self._endpoint_queue.on_route_open("route")
        return self._wait_empty(deadline_ns)


def test_a_stop_waits_briefly_for_a_route_of_a_response(bench: Bench) -> None:
    streamer = bench.started(fake("app", "app"), fake("chassis", "chassis"))
    ClosedRoute(streamer, "app", times=1)
    sent_request = request(new_id(), APP, METHOD, ttl=TTL_MS)
    link(streamer, "chassis").receive_message(response(new_id(), sent_request))
    eventually(lambda: streamer._egress_queues["app"].blocked == 1, "the response to be blocked")
    assert streamer.stop(0) == 0
    assert [each.attributes.reqid for _, each in link(streamer, "app").sent] == [sent_request.id]
    assert streamer.ledger().dead_lettered == 0


def test_error_responses_of_a_stop_have_time_to_be_sent(bench: Bench) -> None:
    streamer = bench.started(fake("app", "app"), fake("chassis", "chassis"))
    link(streamer, "chassis").fault = UCode.UNAVAILABLE
    ClosedRoute(streamer, "app", times=2)
    sent_request = request(new_id(), APP, METHOD, ttl=TTL_MS)
    link(streamer, "app").receive_message(sent_request)
    assert streamer.stop(0) == 1
    [(_, answer)] = link(streamer, "app").sent
    assert (answer.attributes.reqid, answer.attributes.commstatus) == (sent_request.id, UCode.UNAVAILABLE)
    assert streamer.ledger().dead_lettered == 1  # the request only
