# SPDX-License-Identifier: Apache-2.0
"""UMessage, and one factory function per message type."""

from typing import Final

import msgspec

from ustreamer.uprotocol.uattributes import (
    UAttributes,
    UMessageType,
    UPayloadFormat,
    UPriority,
    check_attributes,
)
from ustreamer.uprotocol.ustatus import UCode, UStatus, invalid_argument
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri
from ustreamer.uprotocol.wire import encode_status

_RESPONSE_TTL_MS: Final = 10_000  # for the error response to a request without ttl


class UMessage(msgspec.Struct, frozen=True, gc=False):
    """A message: id, attributes (shared by messages that differ only in id and payload), opaque payload.

    An absent payload is `b""`: Zenoh cannot distinguish them, and the dispatcher never reads a payload.
    """

    id: UUID
    attributes: UAttributes
    payload: bytes = b""

    def check(self, *, strict: bool = True) -> None:
        """INVALID_ARGUMENT unless id and attributes are valid; `strict` for a message that we create."""
        if not self.id.is_valid:
            raise invalid_argument(f"id {self.id}: expected a version 7 UUID")
        check_attributes(self.attributes, strict=strict)

    def sent_from(self, authority: str) -> "UMessage":
        """The message for a network, with `authority` where it has none: a local address is not local at the receiver.

        The sink that a streamer may have added to a publication is removed (X-22).
        """
        attributes = self.attributes
        source, sink = attributes.source, attributes.sink
        if attributes.type is UMessageType.PUBLISH:
            sink = None
        if source.authority_name and sink is attributes.sink and (sink is None or sink.authority_name):
            return self
        source, sink = source.with_authority(authority), sink and sink.with_authority(authority)
        return UMessage(self.id, msgspec.structs.replace(attributes, source=source, sink=sink), self.payload)


def publish(
    id: UUID,
    topic: UUri,
    payload: bytes = b"",
    payload_format: UPayloadFormat = UPayloadFormat.UNSPECIFIED,
    *,
    priority: UPriority = UPriority.CS1,
    ttl: int | None = None,
) -> UMessage:
    """A publication on `topic`. The priority is always set: up-python refuses messages without one."""
    return UMessage(
        id,
        UAttributes(
            type=UMessageType.PUBLISH, source=topic, priority=priority, ttl=ttl, payload_format=payload_format
        ),
        payload,
    )


def notification(
    id: UUID,
    source: UUri,
    sink: UUri,
    payload: bytes = b"",
    payload_format: UPayloadFormat = UPayloadFormat.UNSPECIFIED,
    *,
    priority: UPriority = UPriority.CS1,
    ttl: int | None = None,
) -> UMessage:
    """A notification from the topic `source` to the uEntity `sink` (resource 0)."""
    return UMessage(
        id,
        UAttributes(
            type=UMessageType.NOTIFICATION,
            source=source,
            sink=sink,
            priority=priority,
            ttl=ttl,
            payload_format=payload_format,
        ),
        payload,
    )


def request(
    id: UUID,
    reply_to: UUri,
    method: UUri,
    payload: bytes = b"",
    payload_format: UPayloadFormat = UPayloadFormat.UNSPECIFIED,
    *,
    ttl: int,
    priority: UPriority = UPriority.CS4,
) -> UMessage:
    """A call of `method`; the response goes to `reply_to` (resource 0) within `ttl` ms."""
    return UMessage(
        id,
        UAttributes(
            type=UMessageType.REQUEST,
            source=reply_to,
            sink=method,
            priority=priority,
            ttl=ttl,
            payload_format=payload_format,
        ),
        payload,
    )


def response(
    id: UUID,
    to: UMessage,
    payload: bytes = b"",
    payload_format: UPayloadFormat = UPayloadFormat.UNSPECIFIED,
) -> UMessage:
    """The successful response to the request `to`; commstatus stays unset."""
    return UMessage(id, response_attributes(to, None, payload_format), payload)


def error_response(id: UUID, to: UMessage, status: UStatus) -> UMessage:
    """The error response to the request `to`: commstatus, and a UStatus as payload.

    [impl->dsn~service-error-model-error-response~1] The source is the method, not the dispatcher (X-12).
    """
    return UMessage(id, response_attributes(to, status.code, UPayloadFormat.PROTOBUF), encode_status(status))


def response_attributes(
    to: UMessage, commstatus: UCode | None, payload_format: UPayloadFormat
) -> UAttributes:
    """The attributes of a response to the request `to`: source and sink swapped, priority and ttl copied, reqid set."""
    request_attributes = to.attributes
    if request_attributes.type is not UMessageType.REQUEST or request_attributes.sink is None:
        raise invalid_argument(f"{request_attributes.type.name} {to.id}: only a REQUEST has a response")
    return UAttributes(
        type=UMessageType.RESPONSE,
        source=request_attributes.sink,
        sink=request_attributes.source,
        # A request below CS4 is refused, but its error response must be valid.
        priority=max(request_attributes.priority, UPriority.CS4),
        ttl=request_attributes.ttl or _RESPONSE_TTL_MS,
        reqid=to.id,
        commstatus=commstatus,
        payload_format=payload_format,
    )
