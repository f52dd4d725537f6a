# SPDX-License-Identifier: Apache-2.0
"""The contract of all transports, as far as it applies to two SOME/IP endpoints.

SOME/IP carries no id, only configured messages, and no header field but the addresses. test_transport.py tests the
fields
that SOME/IP does carry.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from tests.e2e.rigs.ports import udp_ports
from ustreamer.host.runtime.clock import SYSTEM_CLOCK
from ustreamer.testing.contract import Pair, TransportContract
from ustreamer.testing.mailbox import Mailbox
from ustreamer.testing.messages import ALPHA, BETA, TOPIC, new_id
from ustreamer.transport_port import EndpointContext
from ustreamer.transports.someip.config import SomeipEndpoint
from ustreamer.transports.someip.endpoint.transport import SomeipTransport
from ustreamer.uprotocol.umessage import publish
from ustreamer.uprotocol.uuri import ANY

# The other contract tests compare header and id of sent and received messages, or send between arbitrary uEntities.
APPLICABLE = {
    "test_unregistering_an_unknown_listener_is_not_found",
    "test_filters_that_match_no_message_are_refused",
    "test_the_number_of_listeners_is_bounded",
    "test_a_message_that_breaks_the_rules_of_its_type_is_not_sent",
    "test_a_refused_message_is_refused_again",
    "test_no_transport_supports_receive",
    "test_before_opening_and_after_closing_a_send_is_unavailable",
    "test_closing_may_be_repeated_and_leaves_no_thread",
    "test_a_transport_that_was_never_opened_can_be_closed",
}


class TestContract(TransportContract):
    @contextmanager
    def make_pair(self) -> Iterator[Pair]:
        """An endpoint that offers a service, and a second endpoint that is configured with it."""
        first, second = two_free_ports()
        events = [{"id": 0x8001}, {"id": 0x8002}]
        offered = {
            "service": 0x000A,
            "major": 1,
            "events": events,
            "offered": True,
            "provider": f"//{ALPHA}/1000A/1/0",
            "remote": f"127.0.0.1:{second}",
        }
        remote = {"service": 0x000A, "major": 1, "events": events, "remote": f"127.0.0.1:{first}"}
        yield Pair(endpoint(BETA, ALPHA, first, offered), endpoint(ALPHA, BETA, second, remote))

    def wait_connected(self, pair: Pair) -> None:
        """UDP on loopback needs no time to connect."""


for name in [each for each in dir(TransportContract) if each.startswith("test_")]:
    if name not in APPLICABLE:
        setattr(TestContract, name, None)


def test_the_contract_has_the_tests_that_are_named_here() -> None:
    assert APPLICABLE - set(dir(TransportContract)) == set()


def two_free_ports() -> tuple[int, int]:
    first, second = udp_ports(2)
    return first, second


def endpoint(network: str, own: str, port: int, service: dict[str, object]) -> SomeipTransport:
    section = {
        "transport": "someip",
        "authorities": [network],
        "bind": "127.0.0.1",
        "port": port,
        "services": [service],
    }
    return SomeipTransport(
        msgspec.convert(section, SomeipEndpoint), EndpointContext(network, own, SYSTEM_CLOCK)
    )


def test_two_endpoints_reach_each_other() -> None:
    """So that the tests above cannot pass on endpoints without a connection."""
    with TestContract().make_pair() as pair:
        inbox = Mailbox()
        pair.b.register_listener(ANY, None, inbox)
        pair.b.open()
        pair.a.open()
        try:
            pair.a.send(publish(new_id(), TOPIC, b"hello"))
            (message,) = inbox.wait(1)
        finally:
            pair.a.close()
            pair.b.close()
    assert (str(message.attributes.source), message.payload) == (f"up://{ALPHA}/A/1/8001", b"hello")
