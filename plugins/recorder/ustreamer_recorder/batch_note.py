# SPDX-License-Identifier: Apache-2.0
"""Messages that were delivered together, as columns of the numbers that differ. The note holds no message."""

import sys
from array import array
from collections.abc import Sequence
from typing import Final

import msgspec

from ustreamer.core.delivery.delivery import Delivery
from ustreamer.uprotocol.batch import MessageBatch
from ustreamer.uprotocol.uattributes import UAttributes
from ustreamer.uprotocol.umessage import UMessage

AS_STORED: Final = sys.byteorder == "little"
"""Whether an array has the byte order of a recording; if not, each row has its own note."""


class BatchNote(msgspec.Struct, frozen=True, gc=False):
    """Messages of the same attributes, DELIVERED to one target at the first attempt.

    `times_ns`: when each message arrived, was decided and was tried; one number if the time is common.
    """

    attributes: UAttributes
    delivery: Delivery
    msbs: "array[int]"
    lsbs: "array[int]"
    sizes: "array[int]"
    times_ns: "int | array[int]"
    settled_ns: int

    def __len__(self) -> int:
        return len(self.msbs)

    def time_ns(self, number: int) -> int:
        """The arrival time of row `number`."""
        times_ns = self.times_ns
        return times_ns if isinstance(times_ns, int) else times_ns[number]


def batch_note_of(
    messages: Sequence[UMessage], delivery: Delivery, times_ns: Sequence[int], settled_ns: int
) -> BatchNote | None:
    """The columns of messages in the order of `times_ns`; None if their attributes differ or a number does not fit."""
    batch = MessageBatch.from_messages(messages)
    if batch is None or batch.reqids is not None:
        return None
    msbs, lsbs = batch.ids.msb_lsb_columns()
    try:
        return BatchNote(
            batch.attributes,
            delivery,
            array("Q", msbs),
            array("Q", lsbs),
            batch.sizes,
            times_ns[0] if times_ns[0] == times_ns[-1] else array("Q", times_ns),
            settled_ns,
        )
    except OverflowError:  # an id or a time does not fit
        return None
