# SPDX-License-Identifier: Apache-2.0
"""Messages that were delivered together, as columns: what differs between them, number by number. No message is kept."""

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
"""Whether numbers stand in an array as they do in a recording; if not, each row has a note of its own."""


class BatchNote(msgspec.Struct, frozen=True, gc=False):
    """Messages of the same attributes, DELIVERED to one target at the first attempt.

    `times_ns` are those at which each came, was decided about and tried; one number if that is the same for all.
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
        """When the `number`th of them came."""
        times_ns = self.times_ns
        return times_ns if isinstance(times_ns, int) else times_ns[number]


def batch_note_of(
    messages: Sequence[UMessage], delivery: Delivery, times_ns: Sequence[int], settled_ns: int
) -> BatchNote | None:
    """The columns of messages that came in the order of `times_ns`; None if their attributes or a number keep them apart."""
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
    except OverflowError:  # no id, or no time, of this world
        return None
