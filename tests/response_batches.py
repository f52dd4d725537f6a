# SPDX-License-Identifier: Apache-2.0
"""Responses as a batch, as a transport receives them."""

from collections.abc import Sequence

import msgspec

from ustreamer.uprotocol.batch import IdColumns, MessageBatch
from ustreamer.uprotocol.umessage import UMessage


def batch_of_responses(messages: Sequence[UMessage]) -> MessageBatch | None:
    """The columns of responses whose ids and reqids are valid; None if there are none, or they differ in any other
    field.
    """
    reqids = [each.attributes.reqid for each in messages if each.attributes.reqid is not None]
    shared_attributes = [msgspec.structs.replace(each.attributes, reqid=None) for each in messages]
    if (
        not messages
        or len(reqids) < len(messages)
        or shared_attributes.count(shared_attributes[0]) < len(shared_attributes)
    ):
        return None
    if not all(each.is_valid for each in [*reqids, *(message.id for message in messages)]):
        return None
    id_columns = IdColumns([each.id.msb for each in messages], [each.id.lsb for each in messages])
    return MessageBatch(shared_attributes[0], id_columns, [each.payload for each in messages], reqids)
