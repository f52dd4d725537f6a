# SPDX-License-Identifier: Apache-2.0
"""The contract of all transports, as far as two SOME/IP endpoints can be held to it.

SOME/IP carries no id and nothing of a header but its addresses, and only what is configured; what it does carry, and how,
is in test_transport.py.
"""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import msgspec

from tests.transports.contract import ALPHA, BETA, TOPIC, Mailbox, Pair, TransportContract, new_id
from ustreamer.hookspecs import EndpointContext
from ustreamer.host.clock import SYSTEM_CLOCK
from ustreamer.transports.someip.config import SomeipEndpoint
from ustreamer.transports.someip.transport import SomeipTransport
from ustreamer.uprotocol.umessage import publish
from ustreamer.uprotocol.uuri import ANY

# Those that compare what was sent with what arrived, header and id, or send from one uEntity to another as they like.
NOT_CARRIED = (
    "test_every_message_arrives_as_it_was_sent",
    "test_a_payload_of_any_size_is_untouched",
    "test_order_is_kept",
    "test_an_empty_authority_means_the_sender",
    "test_the_sink_that_a_streamer_may_put_into_a_publication_is_not_carried",
    "test_own_messages_do_not_come_back",
    "test_a_listener_gets_what_its_filters_match_and_nothing_else",
    "test_registering_again_changes_nothing",
    "test_every_listener_of_the_same_filters_is_called",
    "test_a_listener_is_called_once_however_many_of_its_filters_match",
    "test_no_call_follows_an_unregistration",
    "test_a_listener_that_raises_is_counted_and_stops_nobody",
    "test_a_listener_may_register_send_and_unregister",
    "test_listeners_registered_before_opening_get_messages",
    "test_after_stop_receiving_nothing_comes_in_and_sending_goes_on",
    "test_statistics_are_a_snapshot",
    "test_what_is_unregistered_stays_counted",
)


class TestContract(TransportContract):
    @contextmanager
    def made(self) -> Iterator[Pair]:
        """An endpoint that offers a service to another one, which knows of it."""
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

    def reach(self, pair: Pair) -> None:
        """UDP on loopback needs no time to find its way."""


for name in NOT_CARRIED:
    assert callable(getattr(TransportContract, name)), name
    setattr(TestContract, name, None)


def two_free_ports() -> tuple[int, int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) for _ in range(2)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        first, second = (each.getsockname()[1] for each in sockets)
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
    """So that the tests above do not pass on endpoints that could not have done anything wrong."""
    with TestContract().made() as pair:
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
