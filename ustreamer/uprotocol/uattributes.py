# SPDX-License-Identifier: Apache-2.0
"""UAttributes: the attributes of a message except its id, and their validity rules.

The id is in `UMessage`, because all other attributes repeat from message to message of one topic: one UAttributes
value is decoded, checked and routed once, and then shared.
"""

import operator
import re
from collections.abc import Callable
from enum import IntEnum
from functools import partial
from typing import Any, Final

import msgspec

from ustreamer.uprotocol.ustatus import UCode, invalid_argument
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import ANY_AUTHORITY, ANY_ENTITY, ANY_RESOURCE, ANY_VERSION, FIRST_TOPIC, UUri


class UMessageType(IntEnum):
    """The types of messages, with their numbers on the wire."""

    UNSPECIFIED = 0
    PUBLISH = 1
    REQUEST = 2
    RESPONSE = 3
    NOTIFICATION = 4


class UPriority(IntEnum):
    """Priority classes; UNSPECIFIED means CS1."""

    UNSPECIFIED = 0
    CS0 = 1
    CS1 = 2
    CS2 = 3
    CS3 = 4
    CS4 = 5
    CS5 = 6
    CS6 = 7


class UPayloadFormat(IntEnum):
    """The formats of payloads, with their numbers on the wire."""

    UNSPECIFIED = 0
    PROTOBUF_WRAPPED_IN_ANY = 1
    PROTOBUF = 2
    JSON = 3
    SOMEIP = 4
    SOMEIP_TLV = 5
    RAW = 6
    TEXT = 7
    SHM = 8


class UAttributes(msgspec.Struct, frozen=True, kw_only=True, cache_hash=True, gc=False):
    """The attributes of a message without its id (`uattributes.proto`).

    `ttl` is in ms after the id's creation time; None or 0 never expires. `unknown` holds protobuf fields of a later
    revision unchanged, so that they are forwarded (DSP-14).
    """

    type: UMessageType
    source: UUri
    sink: UUri | None = None
    priority: UPriority = UPriority.UNSPECIFIED
    ttl: int | None = None
    permission_level: int | None = None
    commstatus: UCode | None = None
    reqid: UUID | None = None
    token: str | None = None
    traceparent: str | None = None
    payload_format: UPayloadFormat = UPayloadFormat.UNSPECIFIED
    unknown: bytes = b""

    @property
    def is_cacheable(self) -> bool:
        """True if later messages probably have the same value, so that caching it pays."""
        return self.reqid is None and self.token is None and self.traceparent is None

    @property
    def priority_class(self) -> int:
        """0..6 for CS0..CS6; CS1 for UNSPECIFIED."""
        return self.priority - 1 if self.priority else 1


# --- validity ---------------------------------------------------------------------------------------------------------

# Version ff and ids of all zeros are invalid (W3C Trace Context, 3.2.2).
_TRACEPARENT: Final = r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"


class Rule(msgspec.Struct, frozen=True):
    """One line of the table: a value of the attributes, the test that it must pass, and the text for a failure.

    A `strict` rule binds what we send; on receipt it is waived, because a known library breaks it. Tests in C (`bool`,
    `is None`) where possible: each message is checked two to four times on its way.
    """

    expectation: str
    value: Callable[[UAttributes], Any]
    holds: Callable[[Any], bool]
    strict: bool = False


_is_none: Final = partial(operator.is_, None)


def _source(expectation: str, test: Callable[[UUri], bool], *, strict: bool = False) -> Rule:
    return Rule(f"source {expectation}", operator.attrgetter("source"), test, strict)


def _sink(expectation: str, test: Callable[[UUri | None], bool]) -> Rule:
    return Rule(f"sink {expectation}", operator.attrgetter("sink"), test)


def _is_reply_address(uuri: UUri | None) -> bool:
    return uuri is not None and uuri.resource_id == 0 and uuri.is_specific


def _is_specific_method(uuri: UUri | None) -> bool:
    return uuri is not None and 0 < uuri.resource_id < FIRST_TOPIC and uuri.is_specific


def _publish_sink(sink: UUri | None) -> bool:
    # A streamer may add the destination authority of a publication, and nothing else.
    return sink is None or (
        sink.authority_name not in ("", ANY_AUTHORITY)
        and (sink.ue_id, sink.ue_version_major, sink.resource_id) == (ANY_ENTITY, ANY_VERSION, ANY_RESOURCE)
    )


_NO_WILDCARD: Final = _source("without wildcards", operator.attrgetter("is_specific"))
_REPLY_ADDRESS: Final = _sink("with resource 0 and no wildcard", _is_reply_address)
_RPC_PRIORITY: Final = Rule(
    "priority of at least CS4", operator.attrgetter("priority"), partial(operator.le, UPriority.CS4)
)
_NO_REQID: Final = Rule("no reqid outside a Response", operator.attrgetter("reqid"), _is_none, strict=True)
_NO_COMMSTATUS: Final = Rule(
    "no commstatus outside a Response", operator.attrgetter("commstatus"), _is_none, strict=True
)
_TRACE: Final = Rule(
    "traceparent empty or as W3C Trace Context has it",
    operator.attrgetter("traceparent"),
    lambda traceparent: not traceparent or re.fullmatch(_TRACEPARENT, traceparent) is not None,
    strict=True,
)

RULES: Final[dict[UMessageType, tuple[Rule, ...]]] = {
    UMessageType.PUBLISH: (
        _NO_WILDCARD,
        _source("that is a topic (8000..FFFE)", operator.attrgetter("is_topic")),
        _sink("absent, or an authority with all else wildcards", _publish_sink),
        _NO_REQID,
        _NO_COMMSTATUS,
        _TRACE,
    ),
    UMessageType.NOTIFICATION: (
        _NO_WILDCARD,
        _source("with a resource other than 0", lambda uuri: uuri.resource_id != 0),
        # up-rust lets every resource but 0 pass, so only our own sending is held to the range.
        _source("that is a topic (8000..FFFE)", operator.attrgetter("is_topic"), strict=True),
        _REPLY_ADDRESS,
        _NO_REQID,
        _NO_COMMSTATUS,
        _TRACE,
    ),
    UMessageType.REQUEST: (
        _NO_WILDCARD,
        _source("with resource 0, the reply address", lambda uuri: uuri.resource_id == 0),
        _sink("that is a method (1..7FFF) without wildcards", _is_specific_method),
        _RPC_PRIORITY,
        Rule("ttl above 0 ms", operator.attrgetter("ttl"), bool),
        _NO_REQID,
        _NO_COMMSTATUS,
        _TRACE,
    ),
    UMessageType.RESPONSE: (
        _NO_WILDCARD,
        _source("that is the invoked method (1..7FFF)", operator.attrgetter("is_method")),
        _REPLY_ADDRESS,
        _RPC_PRIORITY,
        # up-python does not copy the ttl of the request.
        Rule("ttl above 0 ms, the request's", operator.attrgetter("ttl"), bool, strict=True),
        Rule(
            "reqid, the id of the request",
            operator.attrgetter("reqid"),
            lambda reqid: reqid is not None and reqid.is_valid,
        ),
        _TRACE,
    ),
}
"""The rules of each message type (`uattributes.adoc`); the rules that are not `strict` are the tolerated deviations."""


def check_attributes(attributes: UAttributes, *, strict: bool = False) -> None:
    """INVALID_ARGUMENT with the first broken rule; `strict` for messages that we create."""
    rules = RULES.get(attributes.type)
    if rules is None:
        raise invalid_argument(
            "attributes: type is UNSPECIFIED, expected PUBLISH, REQUEST, RESPONSE or NOTIFICATION"
        )
    for rule in rules:
        if (strict or not rule.strict) and not rule.holds(value := rule.value(attributes)):
            raise invalid_argument(f"{attributes.type.name}: expected {rule.expectation}, got {_show(value)}")


def _show(value: object) -> str:
    if isinstance(value, UPriority):
        return value.name
    return "none" if value is None else str(value)


def is_expired(id_time_ms: int, ttl: int | None, wall_ms: int) -> bool:
    """True if a message must not be processed any more: ttl > 0 and now > creation + ttl (ms, DSP-27, X-23)."""
    return bool(ttl) and wall_ms > id_time_ms + ttl  # type: ignore[operator]
