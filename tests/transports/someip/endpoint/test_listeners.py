# SPDX-License-Identifier: Apache-2.0
"""The listeners of a message."""

import pytest

from ustreamer.transports.someip.endpoint.listeners import MAX_LISTENERS, Listeners
from ustreamer.transports.someip.protocol.field_values import FieldValues
from ustreamer.uprotocol.uattributes import UAttributes, UMessageType
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.utransport import Listener
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import ANY, UUri, any_at

TOPIC = UUri.parse("//chassis/10AB/3/80CD")
METHOD = UUri.parse("//hpc.vin1/9077/1/1")
CLIENT = UUri.parse("//chassis/3AB/1/0")
EVENT = UAttributes(type=UMessageType.PUBLISH, source=TOPIC)
REQUEST = UAttributes(type=UMessageType.REQUEST, source=CLIENT, sink=METHOD, ttl=1)


def listener(_: UMessage) -> None:
    """Does nothing."""


def other(_: UMessage) -> None:
    """Does nothing."""


def listeners_with(*filters: tuple[UUri, UUri | None]) -> Listeners:
    listeners = Listeners("hpc.vin1", FieldValues(()))
    for source, sink in filters:
        listeners.register(source, sink, listener)
    return listeners


@pytest.mark.parametrize(
    ("source", "sink", "attributes", "matches"),
    [
        (ANY, None, EVENT, True),
        (TOPIC, None, EVENT, True),
        (any_at("chassis"), None, EVENT, True),
        (any_at("body"), None, EVENT, False),
        (ANY, None, REQUEST, False),  # no sink filter: publications only
        (ANY, ANY, EVENT, False),  # a sink filter: nothing without a sink
        (ANY, ANY, REQUEST, True),
        (ANY, any_at("hpc.vin1"), REQUEST, True),
        (ANY, any_at("cloud"), REQUEST, False),
        (any_at("body"), ANY, REQUEST, False),
        (ANY, any_at(""), REQUEST, True),  # empty is the streamer's own authority
    ],
)
def test_a_listener_receives_the_messages_that_its_filters_match(
    source: UUri, sink: UUri | None, attributes: UAttributes, matches: bool
) -> None:
    listeners = listeners_with((source, sink))

    assert listeners.listeners_for(attributes) == ((listener,) if matches else ())
    assert listeners.listeners_for(attributes) == ((listener,) if matches else ())  # the cached result


def test_a_listener_on_two_filters_that_match_is_called_once() -> None:
    assert listeners_with((ANY, None), (TOPIC, None)).listeners_for(EVENT) == (listener,)


def test_listeners_are_called_in_order_of_registration() -> None:
    listeners = listeners_with((ANY, None))
    listeners.register(TOPIC, None, other)

    assert listeners.listeners_for(EVENT) == (listener, other)


def test_registering_again_changes_nothing() -> None:
    listeners = listeners_with((ANY, None), (ANY, None))
    listeners.unregister(ANY, None, listener)

    assert listeners.listeners_for(EVENT) == ()


def test_a_change_invalidates_cached_results() -> None:
    listeners = listeners_with()
    answers: list[tuple[Listener, ...]] = [listeners.listeners_for(EVENT)]
    listeners.register(ANY, None, listener)
    answers.append(listeners.listeners_for(EVENT))
    listeners.unregister(ANY, None, listener)
    answers.append(listeners.listeners_for(EVENT))

    assert answers == [(), (listener,), ()]


def test_unregistering_an_unknown_listener_is_not_found() -> None:
    with pytest.raises(UStatusError) as refused:
        listeners_with((ANY, None)).unregister(ANY, ANY, listener)

    assert refused.value.code is UCode.NOT_FOUND


def test_filters_that_can_match_nothing_are_refused() -> None:
    for operation in (listeners_with().register, listeners_with().unregister):
        with pytest.raises(UStatusError) as refused:
            operation(CLIENT, None, listener)
        assert refused.value.code is UCode.INVALID_ARGUMENT


def test_the_number_of_listeners_is_limited() -> None:
    listeners = Listeners("hpc.vin1", FieldValues(()))
    for number in range(MAX_LISTENERS):
        listeners.register(UUri("chassis", number, 1, 0x8000), None, listener)

    with pytest.raises(UStatusError) as refused:
        listeners.register(ANY, None, listener)
    assert refused.value.code is UCode.RESOURCE_EXHAUSTED
    listeners.register(UUri("chassis", 0, 1, 0x8000), None, listener)  # already registered


def test_the_cache_is_bounded_and_responses_to_one_client_share_an_entry() -> None:
    listeners = listeners_with((ANY, ANY))
    for number in range(10_000):
        listeners.listeners_for(
            UAttributes(type=UMessageType.PUBLISH, source=UUri("chassis", number, 1, 0x8000))
        )
    before = set(listeners._table.cache)
    for number in range(3):
        answer = UAttributes(type=UMessageType.RESPONSE, source=METHOD, sink=CLIENT, reqid=UUID(1, number))
        assert listeners.listeners_for(answer) == (listener,)
    assert len(set(listeners._table.cache) - before) == 1
    assert len(before) == len(listeners._table.cache) == 8192


def test_an_event_of_a_field_goes_to_the_keeper_first() -> None:
    values = FieldValues([TOPIC])
    listeners = Listeners("hpc.vin1", values)
    assert listeners.listeners_for(EVENT) == (values.keep,)
    listeners.register(ANY, None, listener)
    assert listeners.listeners_for(EVENT) == (values.keep, listener)
    assert listeners.listeners_for(UAttributes(type=UMessageType.PUBLISH, source=METHOD)) == (listener,)
