# SPDX-License-Identifier: Apache-2.0
"""Received events with E2E protection: dropped, passed or marked, in any way that an event arrives."""

from typing import Any

import msgspec
import pytest

from ustreamer.core.base.clock import ManualClock
from ustreamer.transports.someip.config import SomeipEndpoint
from ustreamer.transports.someip.protocol.addresses import Address
from ustreamer.transports.someip.protocol.codec import HEADER_LENGTH, MessageType, SomeIpMessage, encode
from ustreamer.transports.someip.protocol.e2e import E2eProtector, E2eResult, covered_header
from ustreamer.transports.someip.protocol.e2e_config import E2eConfig
from ustreamer.transports.someip.protocol.mapping import SomeipRefusal
from ustreamer.transports.someip.rpc.e2e_events import E2eEvents
from ustreamer.transports.someip.rpc.exchange import Exchange, RefusedMessage
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UCode
from ustreamer.uprotocol.uuri import UUri

ECU: Address = ("127.0.0.1", 30501)
TOPIC = UUri("chassis", 0x1234, 1, 0x8001)
E2E = {"profile": "P06", "data_id": 7}


class Bench:
    """An exchange with one protected event, and the ECU that protects it."""

    def __init__(self, **e2e: Any) -> None:
        config = msgspec.convert(
            {
                "transport": "someip",
                "authorities": ["chassis"],
                "bind": "127.0.0.1",
                "port": 30500,
                "services": [
                    {
                        "service": 0x1234,
                        "major": 1,
                        "events": [{"id": 0x8001, "e2e": E2E | e2e}, {"id": 0x8002}],
                        "remote": "127.0.0.1:30501",
                    }
                ],
            },
            SomeipEndpoint,
        )
        self.exchange = Exchange(config, "hpc", ManualClock().clock())
        self._protector = E2eProtector(msgspec.convert(E2E, E2eConfig))

    def event(self, *, corrupt: bool = False) -> SomeIpMessage:
        session = 0x4711
        payload = self._protector.protect(
            covered_header(session, 1, MessageType.NOTIFICATION, 0), bytes(5) + b"data", valid=not corrupt
        )
        self._protector.advance()
        return SomeIpMessage(0x1234, 0x8001, 0, session, 1, MessageType.NOTIFICATION, 0, payload)

    def receive(self, event: SomeIpMessage) -> UMessage | RefusedMessage | None:
        assert (
            self.exchange.match_event(encode(event), ECU[0]) is None
        )  # not the fast path, which checks nothing
        return self.exchange.decode_message(event, ECU)


def test_a_valid_event_passes_unchanged_and_is_counted() -> None:
    bench = Bench()
    for event in (bench.event(), bench.event()):
        message = bench.receive(event)
        assert isinstance(message, UMessage)
        assert (message.payload, message.attributes.commstatus) == (event.payload, None)
    assert bench.exchange.statistics()["e2e_ok"] == 2


@pytest.mark.parametrize("on_error", ["drop", "pass", "mark"])
def test_an_invalid_event_is_dropped_passed_or_marked(on_error: str) -> None:
    bench = Bench(on_error=on_error)
    event = bench.event(corrupt=True)
    outcome = bench.receive(event)
    if on_error == "drop":
        assert outcome == RefusedMessage(SomeipRefusal.E2E_ERROR)
    else:
        assert isinstance(outcome, UMessage)
        assert outcome.payload == event.payload
        assert outcome.attributes.commstatus is (UCode.DATA_LOSS if on_error == "mark" else None)
        outcome.check(strict=False)
    assert bench.exchange.statistics()["e2e_error"] == 1


def test_a_repeated_event_and_a_wrong_sequence_have_their_own_reasons() -> None:
    bench = Bench(max_delta_counter=1)
    first, _, third = (bench.event() for _ in range(3))
    assert isinstance(bench.receive(first), UMessage)
    assert bench.receive(first) == RefusedMessage(SomeipRefusal.E2E_REPEATED)
    assert bench.receive(third) == RefusedMessage(SomeipRefusal.E2E_WRONG_SEQUENCE)


def test_an_endpoint_without_protected_events_has_no_counters_of_them() -> None:
    assert E2eEvents({}).statistics() == {}
    counted = E2eEvents({TOPIC: msgspec.convert(E2E, E2eConfig)})
    assert TOPIC in counted
    assert set(counted.statistics()) == {f"e2e_{each}" for each in E2eResult}


def test_the_e2e_header_can_be_removed() -> None:
    bench = Bench(strip=True)
    message = bench.receive(bench.event())
    assert isinstance(message, UMessage)
    assert message.payload == b"data"


def test_events_without_protection_keep_the_fast_path() -> None:
    bench = Bench()
    plain = encode(SomeIpMessage(0x1234, 0x8002, 0, 1, 1, MessageType.NOTIFICATION, 0, b"plain"))
    assert bench.exchange.match_event(plain, ECU[0]) is not None
    assert len(plain) == HEADER_LENGTH + 5


def test_a_located_service_is_checked_as_well() -> None:
    bench = Bench()
    [located] = bench.exchange.services._static_services
    bench.exchange.services.set_located_services([located])
    assert bench.receive(bench.event(corrupt=True)) == RefusedMessage(SomeipRefusal.E2E_ERROR)
