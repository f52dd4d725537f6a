# SPDX-License-Identifier: Apache-2.0
"""The listeners of a transport: each is called once for a message that one of its filters matches."""

from asyncio import CancelledError

import pytest

from ustreamer.core.routing.listener_table import ListenerTable
from ustreamer.uprotocol.umessage import UMessage, notification, publish
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import ANY, UUri

IDS = UuidSource(lambda: 1_700_000_000_000)
TOPIC = UUri("ecu", 1, 1, 0x8001)
CLIENT = UUri("hpc", 2, 1, 0)

Errors = list[tuple[Exception, UMessage]]


@pytest.fixture
def errors() -> Errors:
    return []


@pytest.fixture
def table(errors: Errors) -> ListenerTable:
    return ListenerTable("<transport>", "hpc", lambda *each: errors.append(each), max_listeners=3)


def test_a_listener_is_called_once_however_many_of_its_filters_match(table: ListenerTable) -> None:
    received: list[UMessage] = []
    table.register(ANY, None, received.append)
    table.register(TOPIC, None, received.append)
    message = publish(IDS.next(), TOPIC)
    assert table.deliver(message)
    assert received == [message]
    assert (table.received, len(table)) == (1, 2)


@pytest.mark.parametrize(
    ("source", "sink", "matches"),
    [(TOPIC, None, "publication"), (TOPIC, CLIENT, "notification"), (ANY, ANY, "notification")],
)
def test_without_a_sink_filter_only_publications_match(
    table: ListenerTable, source: UUri, sink: UUri | None, matches: str
) -> None:
    table.register(source, sink, lambda message: None)
    found = {
        "publication": table.deliver(publish(IDS.next(), TOPIC)),
        "notification": table.deliver(notification(IDS.next(), TOPIC, CLIENT)),
    }
    assert [name for name, matched in found.items() if matched] == [matches]
    assert table.received == 1
    assert table.listens_to(TOPIC) is (matches == "publication")
    assert not table.listens_to(CLIENT.with_resource(0x8001))


def test_an_empty_authority_in_a_filter_is_that_of_the_table(table: ListenerTable) -> None:
    table.register(TOPIC, UUri("", 2, 1, 0), lambda message: None)
    assert table.deliver(notification(IDS.next(), TOPIC, CLIENT))


@pytest.mark.parametrize(
    "error", [SystemExit("three"), CancelledError(), BaseExceptionGroup("three", [SystemExit()])]
)
def test_errors_of_listeners_are_counted_and_the_first_of_each_type_is_reported(
    table: ListenerTable, errors: Errors, error: BaseException
) -> None:
    raised = iter([ValueError("one"), ValueError("two"), error])
    received: list[UMessage] = []

    def broken(message: UMessage) -> None:
        raise next(raised)

    table.register(TOPIC, None, broken)
    table.register(TOPIC, None, received.append)
    sent = [publish(IDS.next(), TOPIC) for _ in range(3)]
    assert [table.deliver(message) for message in sent] == [True] * 3
    assert [(str(raised), message) for raised, message in errors] == [("one", sent[0]), (str(error), sent[2])]
    assert (table.listener_errors, received) == (3, sent)


def test_errors_of_registration_name_the_transport(table: ListenerTable) -> None:
    for number in range(3):
        table.register(TOPIC.with_resource(0x8001 + number), None, print)
    table.register(TOPIC, None, print)  # again: nothing new
    with pytest.raises(UStatusError, match="'<transport>': 3 listeners are the limit") as full:
        table.register(ANY, None, print)
    assert full.value.code is UCode.RESOURCE_EXHAUSTED
    table.unregister(TOPIC, None, print)
    with pytest.raises(
        UStatusError, match="'<transport>': no such listener for up://ecu/1/1/8001"
    ) as unknown:
        table.unregister(TOPIC, None, print)
    assert unknown.value.code is UCode.NOT_FOUND
