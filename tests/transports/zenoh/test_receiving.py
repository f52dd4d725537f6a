# SPDX-License-Identifier: Apache-2.0
"""What a receiving thread hands on, and to whom, without a session around it."""

from collections.abc import Sequence

import pytest

from tests.transports.contract import METHOD, REMOTE_CLIENT, TOPIC, new_id, response_from
from ustreamer.transports.zenoh import receiving
from ustreamer.transports.zenoh.receiving import Call, Filters, Given, Reception
from ustreamer.uprotocol.umessage import UMessage, publish
from ustreamer.uprotocol.uuri import ANY, UUri, any_at

HERE = Filters(UUri(METHOD.authority_name, 0xFFFF_FFFF, 0xFF, 0), any_at(REMOTE_CLIENT.authority_name))
ALL = Filters(ANY, any_at(REMOTE_CLIENT.authority_name))


class Bulk:
    """Remembers what came together, and what by itself."""

    def __init__(self) -> None:
        self.helpings: list[list[UMessage]] = []
        self.alone: list[UMessage] = []

    def __call__(self, message: UMessage) -> None:
        self.alone.append(message)

    def take_all(self, messages: Sequence[UMessage]) -> None:
        self.helpings.append(list(messages))


def delivered(messages: list[UMessage], *given: Filters) -> Bulk:
    bulk = Bulk()
    reception = Reception(ALL, "backbone", "alpha", 8)
    reception.use((Call(bulk, Given(given)),))
    reception._deliver_all(messages)
    return bulk


@pytest.fixture
def answers() -> list[UMessage]:
    return [response_from(METHOD, REMOTE_CLIENT) for _ in range(5)]


def test_what_a_listener_was_given_by_other_filters_it_is_not_given_again(answers: list[UMessage]) -> None:
    asked = [*answers, *(response_from(METHOD.with_resource(2), REMOTE_CLIENT) for _ in range(3))]
    mine = Filters(METHOD, ANY)
    assert delivered(asked, mine).helpings == [asked[5:]]
    assert delivered(answers, mine).helpings == []
    assert delivered(answers[:1], mine).alone == []
    assert delivered(asked[5:6], mine).alone == asked[5:6]


def test_whoever_has_other_filters_is_given_many_at_once_too(answers: list[UMessage]) -> None:
    bulk = delivered(answers, HERE)
    assert (bulk.helpings, bulk.alone) == ([answers], [])


def test_filters_are_asked_once_for_each_source_and_sink(
    monkeypatch: pytest.MonkeyPatch, answers: list[UMessage]
) -> None:
    monkeypatch.setattr(receiving, "_KEPT", 4)
    given = Given((Filters(METHOD, ANY), Filters(TOPIC, None)))
    for _ in range(2):
        assert all(given.has(each) for each in answers)
        assert not given.has(response_from(METHOD.with_resource(2), REMOTE_CLIENT))
        assert given.has(publish(new_id(), TOPIC))
    assert len(given._known) == 3
    for number in range(20):
        assert not given.has(publish(new_id(), TOPIC.with_resource(0x9000 + number)))
        assert len(given._known) <= 4
