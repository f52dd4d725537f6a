# SPDX-License-Identifier: Apache-2.0
import gc
import logging
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest

from ustreamer.core.base.clock import ManualClock
from ustreamer.testing.contract import Pair, TransportContract
from ustreamer.testing.mailbox import Mailbox
from ustreamer.testing.messages import ALPHA, BETA, TOPIC, code_of, new_id
from ustreamer.transport_port import EndpointContext
from ustreamer.transports.local.config import LocalEndpoint
from ustreamer.transports.local.transport import (
    MAX_ATTACHMENTS,
    LocalNetwork,
    LocalTransport,
    make_local_transport,
)
from ustreamer.uprotocol.umessage import UMessage, publish, request
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuri import ANY, UUri


class TestContract(TransportContract):
    @contextmanager
    def make_pair(self) -> Iterator[Pair]:
        network = LocalNetwork("contract")
        yield Pair(LocalTransport(network, ALPHA), LocalTransport(network, BETA))


def opened(network: LocalNetwork, authority: str) -> LocalTransport:
    transport = LocalTransport(network, authority)
    transport.open()
    return transport


def test_a_send_delivers_to_all_other_attachments_before_it_returns() -> None:
    network = LocalNetwork()
    sender, *others = (opened(network, f"ecu{n}") for n in range(4))
    inboxes = [Mailbox() for _ in others]
    for transport, inbox in zip(others, inboxes, strict=True):
        transport.register_listener(ANY, None, inbox)
    message = publish(new_id(), UUri("ecu0", 1, 1, 0x8000), b"x")
    sender.send(message)
    assert [inbox.messages for inbox in inboxes] == [[message]] * 3


def test_a_listener_unregistered_by_another_during_delivery_is_not_called() -> None:
    network = LocalNetwork()
    a, b = opened(network, ALPHA), opened(network, BETA)
    late = Mailbox()

    def first(message: UMessage) -> None:
        b.unregister_listener(TOPIC, None, late)

    b.register_listener(TOPIC, None, first)
    b.register_listener(TOPIC, None, late)
    a.send(publish(new_id(), TOPIC))
    assert late.messages == []


@pytest.mark.parametrize("refuses", [True, False])
def test_a_request_without_listener_is_refused_on_a_closed_network(refuses: bool) -> None:
    network = LocalNetwork()
    service = opened(network, BETA)
    sender = LocalTransport(network, ALPHA, refuses_requests_without_listener=refuses)
    sender.open()
    reply_to, method = UUri(ALPHA, 1, 1, 0), UUri(BETA, 1, 1, 1)
    sent_request = request(new_id(), reply_to, method, ttl=1_000)
    if refuses:
        with pytest.raises(UStatusError, match=f"no service listens for calls of {method}") as refused:
            sender.send(sent_request)
        assert refused.value.code is UCode.UNIMPLEMENTED
    else:
        sender.send(sent_request)
    sender.send(publish(new_id(), reply_to.with_resource(0x8000)))  # which needs no listener
    inbox = Mailbox()
    service.register_listener(ANY, method, inbox)
    sender.send(sent_request)
    assert inbox.messages == [sent_request]


def test_a_name_means_the_same_network_while_it_is_referenced() -> None:
    network = LocalNetwork.named("bench")
    assert LocalNetwork.named("bench") is network
    assert LocalNetwork.named("other") is not network
    opened(network, ALPHA)
    del network
    gc.collect()
    assert LocalNetwork.named("bench").attached == ()


def test_a_configured_endpoint_and_a_test_share_a_network_by_name() -> None:
    section = {"transport": "local", "authorities": ["*"], "network": "meeting"}
    config = msgspec.convert(section, LocalEndpoint)
    endpoint = make_local_transport(config, EndpointContext("backbone", BETA, ManualClock().clock()))
    endpoint.open()
    inbox = Mailbox()
    endpoint.register_listener(ANY, None, inbox)
    app = opened(LocalNetwork.named("meeting"), ALPHA)
    message = publish(new_id(), TOPIC)
    app.send(message)
    assert inbox.messages == [message]
    endpoint.close()
    app.close()


@pytest.mark.parametrize("wrong", [{}, {"network": ""}, {"network": "x", "netwrok": "y"}])
def test_a_section_requires_a_network_and_no_unknown_key(wrong: dict[str, str]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"transport": "local", "authorities": ["*"], **wrong}, LocalEndpoint)


def test_the_number_of_attachments_is_bounded_and_a_close_frees_one() -> None:
    network = LocalNetwork("crowd")
    attached = [opened(network, ALPHA) for _ in range(MAX_ATTACHMENTS)]
    one_more = LocalTransport(network, BETA)
    with pytest.raises(UStatusError, match="UNAVAILABLE: .*'crowd'.*64 attachments"):
        one_more.open()
    attached[0].close()
    one_more.open()
    assert len(network.attached) == MAX_ATTACHMENTS


def test_a_closed_transport_stays_closed() -> None:
    transport = opened(LocalNetwork(), ALPHA)
    transport.close()
    assert code_of(transport.open) is UCode.UNAVAILABLE


@pytest.mark.parametrize("authority", ["*", "", "Not.Lower", "a b"])
def test_an_attachment_is_for_one_authority(authority: str) -> None:
    with pytest.raises(UStatusError, match="INVALID_ARGUMENT"):
        LocalTransport(LocalNetwork(), authority)


def test_a_failing_listener_is_logged_once_per_kind(caplog: pytest.LogCaptureFixture) -> None:
    network = LocalNetwork()
    a, b = opened(network, ALPHA), opened(network, BETA)
    failures = iter([ValueError("one"), ValueError("two"), KeyError("three")])

    def broken(message: UMessage) -> None:
        raise next(failures)

    b.register_listener(ANY, None, broken)
    with caplog.at_level(logging.ERROR, "ustreamer.local"):
        for _ in range(3):
            a.send(publish(new_id(), TOPIC))
    logged = [str(record.exc_info[1]) for record in caplog.records if record.exc_info]
    assert logged == ["one", "'three'"]
    assert b.statistics()["listener_errors"] == 3


def test_the_repr_shows_authority_network_and_state() -> None:
    network = LocalNetwork("bench")
    transport = LocalTransport(network, ALPHA)
    assert repr(transport) == "<LocalTransport 'alpha.vin1' on 'bench': new, 0 listeners>"
    transport.register_listener(ANY, None, print)
    transport.open()
    assert repr(transport) == "<LocalTransport 'alpha.vin1' on 'bench': open, 1 listeners>"
    assert repr(network) == "<LocalNetwork 'bench': 1 attached>"
