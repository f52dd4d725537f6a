# SPDX-License-Identifier: Apache-2.0
"""The cached route: the decision and the deliveries for all messages with equal attributes, and the key to find it."""

from typing import Final

import msgspec

from ustreamer.core.delivery.delivery import Delivery
from ustreamer.core.routing.router import RoutingDecision
from ustreamer.uprotocol.batch import MessageBatch
from ustreamer.uprotocol.uattributes import UAttributes, UMessageType, UPriority
from ustreamer.uprotocol.uuri import UUri

_MIN_RESPONSE_PRIORITY: Final = int(UPriority.CS4)

CacheKey = UAttributes | tuple[UUri, UUri]
"""The key of a route: attributes, or the source and the sink of Responses."""


def cache_key(attributes: UAttributes) -> CacheKey:
    """The key for attributes with a reqid. Each Response has its own reqid, but Responses share a route.

    For a Response the router reads source, sink and type, and whether priority and reqid are valid. If one of them is
    invalid, the key is the attributes.
    """
    reqid, sink = attributes.reqid, attributes.sink
    if (
        reqid is None
        or sink is None
        or attributes.type is not UMessageType.RESPONSE
        or attributes.priority < _MIN_RESPONSE_PRIORITY
        or reqid.msb & 0xF000 != 0x7000
        or reqid.lsb >> 62 != 0b10  # UUID.is_valid
    ):
        return attributes
    return attributes.source, sink


def batch_cache_key(batch: MessageBatch) -> CacheKey:
    """The `cache_key` that all messages of a batch share."""
    attributes = batch.attributes
    if batch.reqids is None:
        return attributes
    return cache_key(msgspec.structs.replace(attributes, reqid=batch.reqids[0]))


class CachedRoute(msgspec.Struct, frozen=True, gc=False):
    """The handling of all messages with equal attributes, as long as the directory has this version."""

    version: int | None  # None: unknown, so never valid again
    deliveries: tuple[Delivery, ...]
    decision: RoutingDecision


class ObservedRoute(msgspec.Struct, frozen=True):
    """The decision for messages that have come in at `ingress`."""

    ingress: str
    source: UUri
    sink: UUri | None
    decision: RoutingDecision
