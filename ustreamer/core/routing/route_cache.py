# SPDX-License-Identifier: Apache-2.0
"""What is decided once for many messages, and by what it is found again."""

from typing import Final

import msgspec

from ustreamer.core.delivery.delivery import Delivery
from ustreamer.core.routing.router import RoutingDecision
from ustreamer.uprotocol.batch import MessageBatch
from ustreamer.uprotocol.uattributes import UAttributes, UMessageType, UPriority
from ustreamer.uprotocol.uuri import UUri

_MIN_RESPONSE_PRIORITY: Final = int(UPriority.CS4)

CacheKey = UAttributes | tuple[UUri, UUri]
"""What has one plan: attributes, or the source and the sink of answers."""


def cache_key(attributes: UAttributes) -> CacheKey:
    """By what the plan of attributes with a reqid is kept: no two answers have the same, but where they go is all alike.

    Of a Response the router asks for source, sink and type, and whether priority and reqid are valid. The attributes
    themselves where one of these is not.
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
    """As `plan_key` of each message of a run."""
    attributes = batch.attributes
    if batch.reqids is None:
        return attributes
    return cache_key(msgspec.structs.replace(attributes, reqid=batch.reqids[0]))


class CachedRoute(msgspec.Struct, frozen=True, gc=False):
    """What to do with every message of the same attributes, as long as the directory has this version."""

    version: int
    deliveries: tuple[Delivery, ...]
    decision: RoutingDecision
