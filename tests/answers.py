# SPDX-License-Identifier: Apache-2.0
"""Answers as a run, as a transport makes one of what comes in."""

from collections.abc import Sequence

import msgspec

from ustreamer.uprotocol.batch import Halves, Run
from ustreamer.uprotocol.umessage import UMessage


def run_of_answers(messages: Sequence[UMessage]) -> Run | None:
    """The columns of answers whose ids and reqids are valid; None if there are none, or they differ in anything else."""
    reqids = [each.attributes.reqid for each in messages if each.attributes.reqid is not None]
    alike = [msgspec.structs.replace(each.attributes, reqid=None) for each in messages]
    if not messages or len(reqids) < len(messages) or alike.count(alike[0]) < len(alike):
        return None
    if not all(each.is_valid for each in [*reqids, *(message.id for message in messages)]):
        return None
    halves = Halves([each.id.msb for each in messages], [each.id.lsb for each in messages])
    return Run(alike[0], halves, [each.payload for each in messages], reqids)
