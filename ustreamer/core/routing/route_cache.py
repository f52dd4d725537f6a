# SPDX-License-Identifier: Apache-2.0
"""What is decided once for many messages, and by what it is found again."""

from typing import Final

import msgspec

from ustreamer.core.delivery.delivery import Delivery
from ustreamer.core.routing.router import Decision
from ustreamer.uprotocol.batch import Run
from ustreamer.uprotocol.uattributes import UAttributes, UMessageType, UPriority
from ustreamer.uprotocol.uuri import UUri

_LEAST_OF_ANSWERS: Final = int(UPriority.CS4)

PlanKey = UAttributes | tuple[UUri, UUri]
"""What has one plan: attributes, or the source and the sink of answers."""


def plan_key(attributes: UAttributes) -> PlanKey:
    """By what the plan of attributes with a reqid is kept: no two answers have the same, but where they go is all alike.

    Of a Response the router asks for source, sink and type, and whether priority and reqid are valid. The attributes
    themselves where one of these is not.
    """
    reqid, sink = attributes.reqid, attributes.sink
    if (
        reqid is None
        or sink is None
        or attributes.type is not UMessageType.RESPONSE
        or attributes.priority < _LEAST_OF_ANSWERS
        or reqid.msb & 0xF000 != 0x7000
        or reqid.lsb >> 62 != 0b10  # UUID.is_valid
    ):
        return attributes
    return attributes.source, sink


def plan_key_of(run: Run) -> PlanKey:
    """As `plan_key` of each message of a run."""
    attributes = run.attributes
    if run.reqids is None:
        return attributes
    return plan_key(msgspec.structs.replace(attributes, reqid=run.reqids[0]))


class Plan(msgspec.Struct, frozen=True, gc=False):
    """What to do with every message of the same attributes, as long as the directory has this version."""

    version: int
    deliveries: tuple[Delivery, ...]
    decision: Decision
