# SPDX-License-Identifier: Apache-2.0
"""Over real Zenoh sessions: a call of a method without a listener is answered long before its ttl ends.

The listeners of these tests receive one method only, so Zenoh knows which methods have no listener.
"""

import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import SomeipNode, ZenohEntity, ZenohSample
from tests.e2e.rigs.streamer import statistics
from tests.e2e.rigs.vehicle import PROVIDER, Vehicle, running_vehicle
from tests.e2e.rigs.wire import Uri
from tests.e2e.someip.test_calls_from_someip import send_call, wait_response
from tests.waiting import wait_until

TTL_MS: Final = 60_000
PROMPT_S: Final = 10.0
"""Far below the ttl, and far above the answer on an idle machine, which takes at most 1.5 s."""
CALLS: Final = 20
ATTEMPTS: Final = 5
NOTHING: Final = "up/nothing"
_resources = itertools.count(1)


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vehicle]:
    """A streamer without listeners that receive everything. A bystander in the cloud keeps the link up."""
    with (
        running_vehicle(tmp_path_factory.mktemp("quiet")) as running,
        ZenohEntity(running.ports.cloud, "cloud", listen_to=NOTHING),
    ):
        yield running


@pytest.fixture
def caller(quiet: Vehicle) -> Iterator[ZenohEntity]:
    with ZenohEntity(quiet.ports.backbone, "hpc.vin1") as entity:
        yield entity


@pytest.fixture
def provider(quiet: Vehicle) -> Iterator[ZenohEntity]:
    """A node in the cloud that offers no method yet."""
    with ZenohEntity(quiet.ports.cloud, "cloud", listen_to=NOTHING) as entity:
        yield entity


def new_method(provider: ZenohEntity) -> Uri:
    """A method that no other test calls."""
    return provider.address.at(next(_resources))


def calls_of(method: Uri) -> str:
    """The key of the calls of a method by any caller."""
    return f"up/*/*/*/*/*/{method.chunks}"


def send_numbered(caller: ZenohEntity, method: Uri, numbers: range) -> list[wire.Id]:
    return [caller.send_request(method, b"%d" % number, ttl=TTL_MS) for number in numbers]


def wait_calls(provider: ZenohEntity, method: Uri, count: int) -> list[ZenohSample]:
    return provider.inbox.wait_count(lambda each: each.head.sink == method, count)


def answered_promptly(caller: ZenohEntity, method: Uri) -> ZenohSample:
    return caller.wait_response(caller.send_request(method, b"?", ttl=TTL_MS), within=PROMPT_S)


def wait_until_absence_is_known(caller: ZenohEntity, method: Uri) -> None:
    """Call until a call is answered. A call that was put before the streamer knew of the absence waits out its ttl."""

    def answers() -> list[ZenohSample]:
        caller.send_request(method, b"?", ttl=TTL_MS)
        return caller.inbox.items(
            lambda each: each.head.source == method and each.head.commstatus is not None
        )

    assert_unavailable(wait_until(answers, "an answer", within_s=PROMPT_S)[0], method)


def assert_unavailable(answer: ZenohSample, method: Uri) -> None:
    assert (answer.head.source, answer.head.commstatus) == (method, wire.UNAVAILABLE)
    assert answer.status.code == wire.UNAVAILABLE
    assert f"no subscriber for up:{method}" in answer.status.message


def test_calls_of_a_method_without_a_listener_are_answered_promptly(
    caller: ZenohEntity, provider: ZenohEntity
) -> None:
    method = new_method(provider)
    provider.listen(calls_of(new_method(provider)))
    sent = send_numbered(caller, method, range(CALLS))
    answers = [caller.wait_response(each, within=PROMPT_S) for each in sent]
    for answer in answers:
        assert_unavailable(answer, method)
    assert [caller.responses(each) for each in sent] == [[answer] for answer in answers]


def are_waiting(quiet: Vehicle) -> bool:
    """Whether the calls wait in the egress queue soon, and were not sent before the loss of the listener was known."""

    def blocked() -> bool:
        queues = statistics(quiet.process.config.parent / "state")["egress_queues"]
        return any(each["endpoint"] == "cloud" and each["blocked"] >= CALLS for each in queues)

    return holds_within(blocked, 0.3)


def holds_within(condition: Callable[[], bool], seconds: float) -> bool:
    try:
        wait_until(condition, within_s=seconds)
    except AssertionError:
        return False
    return True


def test_a_provider_that_returns_receives_the_calls_in_between_in_order(
    quiet: Vehicle, caller: ZenohEntity, provider: ZenohEntity
) -> None:
    """A busy streamer may send calls before it knows that the listener has left. Then they are made again."""

    def attempt() -> tuple[bool, Uri, list[wire.Id]]:
        method = new_method(provider)
        listener = provider.listen(calls_of(method))
        send_numbered(caller, method, range(CALLS))
        wait_calls(provider, method, CALLS)
        listener.undeclare()  # type: ignore[no-untyped-call]
        sent = send_numbered(caller, method, range(CALLS, 2 * CALLS))
        waited = are_waiting(quiet)
        provider.listen(calls_of(method))
        arrived = waited and holds_within(
            lambda: bool(provider.inbox.items(lambda each: each.head.id == sent[-1])), PROMPT_S / 2
        )
        return arrived, method, sent

    attempts = (attempt() for _ in range(ATTEMPTS))
    method, sent = next((method, sent) for arrived, method, sent in attempts if arrived)
    by_id = {each.head.id: each for each in wait_calls(provider, method, 2 * CALLS)}
    assert [by_id[each].payload for each in sent] == [b"%d" % each for each in range(CALLS, 2 * CALLS)]
    assert [each for each in by_id if each in sent] == sent
    for each in sent:
        provider.respond(by_id[each], by_id[each].payload)
    for number, each in enumerate(sent, CALLS):
        assert caller.wait_response(each).payload == b"%d" % number


def test_calls_after_the_end_of_a_provider_are_answered_promptly(
    caller: ZenohEntity, provider: ZenohEntity
) -> None:
    method = new_method(provider)
    listener = provider.listen(calls_of(method))
    served = caller.send_request(method, b"?", ttl=TTL_MS)
    provider.respond(wait_calls(provider, method, 1)[0], b"!")
    assert caller.wait_response(served).payload == b"!"
    listener.undeclare()  # type: ignore[no-untyped-call]
    wait_until_absence_is_known(caller, method)
    began = time.monotonic()
    for _ in range(CALLS):
        assert_unavailable(answered_promptly(caller, method), method)
    assert time.monotonic() - began < CALLS * 0.5  # the later calls do not wait again


def test_a_provider_that_comes_later_is_called(caller: ZenohEntity, provider: ZenohEntity) -> None:
    method = new_method(provider)
    assert_unavailable(answered_promptly(caller, method), method)
    provider.listen(calls_of(method))
    sent = caller.send_request(method, b"now", ttl=TTL_MS)
    provider.respond(wait_calls(provider, method, 1)[0], b"yes")
    assert caller.wait_response(sent).payload == b"yes"


def test_a_listener_with_a_wildcard_offers_the_method(caller: ZenohEntity, provider: ZenohEntity) -> None:
    method, elsewhere = new_method(provider), Uri("cloud", 0x7777, 1, 1)
    provider.listen(f"up/*/*/*/*/*/{provider.address.at(0).chunks.rsplit('/', 1)[0]}/*")
    sent = caller.send_request(method, b"?", ttl=TTL_MS)
    wait_calls(provider, method, 1)
    assert_unavailable(answered_promptly(caller, elsewhere), elsewhere)
    assert caller.responses(sent) == []


def test_calls_wait_for_a_network_that_comes_up(tmp_path: Path) -> None:
    """The listeners behind a link that is down are unknown."""
    with (
        running_vehicle(tmp_path) as vehicle,
        ZenohEntity(vehicle.ports.backbone, "hpc.vin1") as caller,
    ):
        method = Uri("cloud", 0x99, 1, 1)
        sent = send_numbered(caller, method, range(CALLS))
        vehicle.process.stderr.wait_one(lambda line: "egress.unavailable" in line)
        with ZenohEntity(vehicle.ports.cloud, "cloud", 0x99, listen_to=calls_of(method)) as provider:
            received = wait_calls(provider, method, CALLS)
            assert [each.head.id for each in received] == sent
            provider.respond(received[-1], b"at last")
            assert caller.wait_response(sent[-1]).payload == b"at last"
            for each in sent[:-1]:
                assert caller.responses(each) == []


def test_a_someip_client_gets_not_ready_if_no_provider_listens(tmp_path: Path) -> None:
    with (
        running_vehicle(tmp_path) as vehicle,
        ZenohEntity(vehicle.ports.backbone, PROVIDER.authority, PROVIDER.ue_id, listen_to=NOTHING),
        SomeipNode() as client,
    ):
        session = send_call(client, vehicle, b"to no provider")
        head = wait_response(client, session).head
        assert (head.message_type.value, head.return_code.value) == (wire.SOMEIP_ERROR, wire.E_NOT_READY)
