# SPDX-License-Identifier: Apache-2.0
"""Messages, filters and addresses of two authorities, ALPHA and BETA, for tests of a transport."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from threading import Lock
from typing import Final, NamedTuple

import msgspec

from ustreamer.host.runtime.clock import SYSTEM_CLOCK
from ustreamer.uprotocol.uattributes import UAttributes, UMessageType, UPayloadFormat, UPriority
from ustreamer.uprotocol.umessage import UMessage, notification, publish, request
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuid import UUID, UuidSource
from ustreamer.uprotocol.uuri import ANY, ANY_ENTITY, UUri, any_at

ALPHA: Final = "alpha.vin1"
BETA: Final = "beta.vin1"

TOPIC: Final = UUri(ALPHA, 0x1000A, 1, 0x8001)
OTHER_TOPIC: Final = UUri(ALPHA, 0x1000A, 1, 0x8002)
METHOD: Final = UUri(ALPHA, 0xB, 2, 0x0007)
CLIENT: Final = UUri(ALPHA, 0xC, 1, 0)
REMOTE_METHOD: Final = UUri(BETA, 0x2000D, 1, 0x0008)
REMOTE_CLIENT: Final = UUri(BETA, 0xE, 1, 0)
PROBE: Final = UUri(ALPHA, 0xFF, 1, 0xFFF0)

_ids: Final = UuidSource(SYSTEM_CLOCK.wall_ms)
_lock: Final = Lock()


def new_id() -> UUID:
    """The next id of this process. From any thread."""
    with _lock:
        return _ids.next()


def response_from(source: UUri, sink: UUri) -> UMessage:
    """A Response to a request with a new id."""
    attributes = UAttributes(
        type=UMessageType.RESPONSE,
        source=source,
        sink=sink,
        priority=UPriority.CS4,
        ttl=5000,
        reqid=new_id(),
        payload_format=UPayloadFormat.RAW,
    )
    return UMessage(new_id(), attributes, b"answer")


def four_messages() -> Sequence[UMessage]:
    """One message of each type from ALPHA to BETA. Together they have every header field."""
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    sent_request = request(new_id(), CLIENT, REMOTE_METHOD, b"\x00\xff", UPayloadFormat.PROTOBUF, ttl=5000)
    notified = notification(
        new_id(), TOPIC, REMOTE_CLIENT, b"{}", UPayloadFormat.JSON, priority=UPriority.CS3
    )
    answer = response_from(METHOD, REMOTE_CLIENT)
    return (
        publish(
            new_id(), TOPIC, bytes(range(256)), UPayloadFormat.SOMEIP, priority=UPriority.CS6, ttl=10_001
        ),
        notified,
        msgspec.structs.replace(
            sent_request,
            attributes=msgspec.structs.replace(
                sent_request.attributes,
                permission_level=2,
                token="tok",  # noqa: S106  # no secret
                traceparent=trace,
            ),
        ),
        msgspec.structs.replace(
            answer, attributes=msgspec.structs.replace(answer.attributes, commstatus=UCode.NOT_FOUND)
        ),
    )


def by_id(messages: Iterable[UMessage]) -> list[UMessage]:
    """The messages in order of their ids, which is that of their creation."""
    return sorted(messages, key=lambda message: message.id)


class FilterCase(NamedTuple):
    """The filters of a listener, and the types of `four_messages` that match them."""

    source: UUri
    sink: UUri | None
    matches: frozenset[UMessageType]


_P, _N, _Q, _R = UMessageType.PUBLISH, UMessageType.NOTIFICATION, UMessageType.REQUEST, UMessageType.RESPONSE

# Which of `four_messages` a listener with these filters gets.
FILTERS: Final[Mapping[str, FilterCase]] = {
    "all publications": FilterCase(ANY, None, frozenset({_P})),
    "all publications of an authority": FilterCase(any_at(ALPHA), None, frozenset({_P})),
    "all publications of another authority": FilterCase(any_at(BETA), None, frozenset()),
    "one topic": FilterCase(TOPIC, None, frozenset({_P})),
    "another topic": FilterCase(OTHER_TOPIC, None, frozenset()),
    "a topic of any instance": FilterCase(UUri(ALPHA, 0xFFFF000A, 1, 0x8001), None, frozenset({_P})),
    "a topic of another instance": FilterCase(UUri(ALPHA, 0x2000A, 1, 0x8001), None, frozenset()),
    "a topic of any type": FilterCase(UUri(ALPHA, 0x1FFFF, 1, 0x8001), None, frozenset({_P})),
    "a topic of any version": FilterCase(UUri(ALPHA, 0x1000A, 0xFF, 0x8001), None, frozenset({_P})),
    "all that has a sink": FilterCase(ANY, ANY, frozenset({_N, _Q, _R})),
    "all messages to an authority": FilterCase(ANY, any_at(BETA), frozenset({_N, _Q, _R})),
    "all messages to another authority": FilterCase(ANY, any_at(ALPHA), frozenset()),
    "all messages to a client": FilterCase(ANY, REMOTE_CLIENT, frozenset({_N, _R})),
    "notifications of one topic": FilterCase(TOPIC, REMOTE_CLIENT, frozenset({_N})),
    "responses of one method": FilterCase(METHOD, REMOTE_CLIENT, frozenset({_R})),
    "requests to one method": FilterCase(ANY, REMOTE_METHOD, frozenset({_Q})),
    "requests to a service in any version": FilterCase(
        ANY, UUri(BETA, 0x2000D, 0xFF, 0xFFFF), frozenset({_Q})
    ),
}

BAD_FILTERS: Final[Mapping[str, tuple[UUri, UUri | None]]] = {
    "a method without a sink": (UUri(ALPHA, 1, 1, 5), None),
    "resource 0 without a sink": (UUri(ALPHA, 1, 1, 0), None),
    "resource 0 on both sides": (UUri(ALPHA, 1, 1, 0), UUri(BETA, 1, 1, 0)),
    "requests from a topic": (UUri(ALPHA, 1, 1, 0x8001), UUri(BETA, 1, 1, 5)),
}


def invalid_messages() -> Mapping[str, UMessage]:
    """Messages that break a rule of their type, by the rule."""
    sent_request = request(new_id(), CLIENT, REMOTE_METHOD, ttl=5000)
    return {
        "a publication from a method": publish(new_id(), METHOD),
        "a publication from a wildcard": publish(new_id(), UUri(ALPHA, ANY_ENTITY, 1, 0x8001)),
        "a publication from any authority": publish(new_id(), UUri("*", 1, 1, 0x8001)),
        "a notification to a topic": notification(new_id(), TOPIC, UUri(BETA, 1, 1, 0x8001)),
        "a notification to a wildcard": notification(new_id(), TOPIC, UUri(BETA, ANY_ENTITY, 1, 0)),
        "a request without ttl": request(new_id(), CLIENT, REMOTE_METHOD, ttl=0),
        "a request of low priority": request(
            new_id(), CLIENT, REMOTE_METHOD, ttl=5000, priority=UPriority.CS3
        ),
        "a response without reqid": UMessage(
            new_id(), msgspec.structs.replace(response_from(METHOD, REMOTE_CLIENT).attributes, reqid=None)
        ),
        "an id that is no UUIDv7": UMessage(UUID(1, 2), sent_request.attributes),
        "no type": UMessage(new_id(), UAttributes(type=UMessageType.UNSPECIFIED, source=TOPIC)),
    }


def code_of(call: Callable[[], object]) -> UCode:
    """The code that `call` fails with; OK if it does not."""
    try:
        call()
    except UStatusError as error:
        return error.code
    return UCode.OK
