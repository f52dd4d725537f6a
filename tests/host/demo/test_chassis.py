# SPDX-License-Identifier: Apache-2.0
"""The simulated ECU, seen from the other end of its socket."""

import socket
import time
from collections.abc import Iterator
from threading import Event

import pytest

from ustreamer.core.base.clock import ManualClock
from ustreamer.host.demo.chassis import (
    CLIMATE,
    DOOR_EVENT,
    DOOR_HZ,
    DOORS,
    MAJOR,
    SET_TEMPERATURE,
    STEERING_EVENT,
    WHEEL_EVENTS,
    WHEEL_HZ,
    WHEELS,
    Chassis,
    PeriodicTicks,
)
from ustreamer.transports.someip.protocol.codec import MessageType, ReturnCode, SomeIpMessage, encode, split

DEADLINE_S = 30.0
S = 1_000_000_000


# --- ticks -----------------------------------------------------------------------------------------------------------


class Quiet(Event):
    """Notes the wait before each tick."""

    def __init__(self) -> None:
        super().__init__()
        self.waits_s: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waits_s.append(timeout)
        return super().wait(timeout)


class Patient(Quiet):
    """Waits by advancing a clock."""

    def __init__(self, time: ManualClock) -> None:
        super().__init__()
        self._time = time

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self._time.advance(s=timeout)
        return super().wait(0)


def test_beats_count_from_0_the_first_at_once_and_each_at_its_time() -> None:
    clock = ManualClock()
    beats = PeriodicTicks(500, Patient(clock), clock.clock())
    assert [(next(beats), clock.now_ns) for _ in range(11)] == [(n, n * S // 500) for n in range(11)]


def test_a_late_tick_does_not_shift_later_ones_and_missed_ticks_are_skipped() -> None:
    clock = ManualClock()
    beats = PeriodicTicks(100, Patient(clock), clock.clock())
    assert next(beats) == 0
    clock.advance(ms=13)
    assert (next(beats), clock.now_ns) == (1, 13_000_000)
    assert (next(beats), clock.now_ns) == (2, 20_000_000)
    clock.advance(ms=35)  # 30, 40 and 50 are missed or late: one tick for all of them
    assert (next(beats), clock.now_ns) == (5, 55_000_000)
    assert (next(beats), clock.now_ns) == (6, 60_000_000)


def test_ticks_end_on_request_even_during_a_wait() -> None:
    quiet = Quiet()
    quiet.set()
    assert list(PeriodicTicks(1, quiet)) == []

    waiting = Event()
    beats = PeriodicTicks(0.01, waiting)
    assert next(beats) == 0
    waiting.set()
    began = time.monotonic()
    assert list(beats) == []
    assert time.monotonic() - began < DEADLINE_S  # the next tick would be due in 100 s


# -------------------------------------------------------------------------------------------------------------- chassis


@pytest.fixture
def streamer() -> Iterator[socket.socket]:
    """The socket that the ECU sends to."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as streamer:
        streamer.bind(("127.0.0.1", 0))
        streamer.settimeout(DEADLINE_S)
        yield streamer


@pytest.fixture
def chassis(streamer: socket.socket) -> Iterator[Chassis]:
    chassis = Chassis(("127.0.0.1", 0), streamer.getsockname())
    yield chassis
    chassis.close()


def received(streamer: socket.socket) -> SomeIpMessage:
    datagram, _ = streamer.recvfrom(65_536)
    messages, malformed = split(datagram)
    assert malformed == []
    [message] = messages
    return message


Topic = tuple[int, int]


def collected(streamer: socket.socket, enough: int) -> dict[Topic, list[SomeIpMessage]]:
    """Events by (service, event), once one of each kind and `enough` in total have arrived."""
    events: dict[Topic, list[SomeIpMessage]] = {}
    expected = {(WHEELS, event) for event in WHEEL_EVENTS.values()}
    expected |= {(WHEELS, STEERING_EVENT), (DOORS, DOOR_EVENT)}
    while expected - events.keys() or sum(map(len, events.values())) < enough:
        message = received(streamer)
        events.setdefault((message.service, message.method), []).append(message)
    assert events.keys() == expected
    return events


def test_the_ecu_sends_wheel_speeds_and_doors_as_someip_notifications(
    chassis: Chassis, streamer: socket.socket
) -> None:
    chassis.start()
    sizes = {(WHEELS, STEERING_EVENT): 2, (DOORS, DOOR_EVENT): 2}
    for topic, messages in collected(streamer, 40).items():
        for message in messages:
            assert message.message_type == MessageType.NOTIFICATION
            assert message.return_code == ReturnCode.E_OK
            assert (message.client, message.interface_version) == (0, MAJOR)
        assert [message.session for message in messages] == list(range(1, len(messages) + 1))
        assert {len(message.payload) for message in messages} == {sizes.get(topic, 4)}


def test_the_ecu_counts_its_events_and_runs_at_its_rate(chassis: Chassis, streamer: socket.socket) -> None:
    chassis.start()
    collected(streamer, 100)
    chassis.stop_publishing()
    # The counts stop once the threads have noticed the stop, so the test waits for the counts.
    for thread in chassis._threads[:2]:
        thread.join(DEADLINE_S)
    wheels = chassis.rate(WHEELS, WHEEL_EVENTS["front left"])
    assert wheels.events >= 18
    assert wheels.hz <= WHEEL_HZ * 1.5  # a late tick at the start shortens the window
    assert chassis.rate(DOORS, DOOR_EVENT).events >= 1
    assert chassis.rate(DOORS, DOOR_EVENT).hz <= DOOR_HZ * 1.5
    assert chassis.rate(DOORS, 0x8777).events == 0
    chassis.reset_rates()
    assert chassis.rate(WHEELS, WHEEL_EVENTS["front left"]).events == 0
    assert wheels.events >= 18  # the result is a copy


@pytest.mark.parametrize(
    ("service", "method", "kind", "code", "answer"),
    [
        (CLIMATE, SET_TEMPERATURE, MessageType.RESPONSE, ReturnCode.E_OK, b"\x00\xd7"),
        (CLIMATE, 0x0002, MessageType.ERROR, ReturnCode.E_UNKNOWN_METHOD, b""),
        (DOORS, SET_TEMPERATURE, MessageType.ERROR, ReturnCode.E_UNKNOWN_METHOD, b""),
    ],
)
def test_the_climate_method_responds_and_other_methods_are_unknown(
    chassis: Chassis,
    streamer: socket.socket,
    service: int,
    method: int,
    kind: MessageType,
    code: ReturnCode,
    answer: bytes,
) -> None:
    chassis.stop_publishing()
    chassis.start()
    sent_request = SomeIpMessage(
        service, method, 0x0102, 0x0304, MAJOR, MessageType.REQUEST, ReturnCode.E_OK, b"\x00\xd7"
    )
    streamer.sendto(encode(sent_request), chassis._socket.getsockname())
    message = received(streamer)
    while message.message_type == MessageType.NOTIFICATION:  # a tick in progress
        message = received(streamer)
    assert (message.service, message.method) == (service, method)
    assert (message.client, message.session) == (0x0102, 0x0304)  # so that the caller can pair them
    assert (message.message_type, message.return_code, message.payload) == (kind, code, answer)
    assert chassis.calls == 1


def test_a_message_other_than_a_request_gets_no_response(chassis: Chassis, streamer: socket.socket) -> None:
    chassis.stop_publishing()
    chassis.start()
    to = chassis._socket.getsockname()
    for kind in (MessageType.REQUEST_NO_RETURN, MessageType.RESPONSE, MessageType.REQUEST):
        sent_request = SomeIpMessage(
            CLIMATE, SET_TEMPERATURE, 1, 2, MAJOR, kind, ReturnCode.E_OK, bytes([kind])
        )
        streamer.sendto(encode(sent_request), to)
    streamer.sendto(b"no SOME/IP at all", to)
    assert received(streamer).payload == bytes([MessageType.REQUEST])
    assert chassis.calls == 1


def test_an_ecu_that_never_ran_can_be_closed_and_its_port_is_free_again(streamer: socket.socket) -> None:
    chassis = Chassis(("127.0.0.1", 0), streamer.getsockname())
    address = chassis._socket.getsockname()
    chassis.close()
    again = Chassis(address, streamer.getsockname())
    again.start()
    again.close()
    assert not any(thread.is_alive() for thread in again._threads)
