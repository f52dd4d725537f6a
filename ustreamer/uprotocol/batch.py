# SPDX-License-Identifier: Apache-2.0
# Fast path of list[UMessage], which is its oracle; compared by
# tests/uprotocol/test_batch.py::test_a_batch_equals_the_list_of_its_messages and
# tests/uprotocol/test_batch.py::test_a_response_batch_equals_the_list_of_its_messages
"""Messages that differ only in their ids and payloads, as columns.

Messages received together mostly do: events of one topic. A `MessageBatch` is a sequence of messages, created on
access. Code that handles thousands of messages reads the columns and decides once per batch.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from struct import iter_unpack
from typing import Any, Final, Protocol, overload

import msgspec

from ustreamer.uprotocol.uattributes import UAttributes
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.uuid import UUID

MIN_BATCH: Final = 8
"""Fewer messages are cheaper as single messages."""
MAX_BATCH: Final = 128
"""A receiver reads at most this number of messages at once."""


def unpack_columns(record: str, records: bytes | memoryview) -> list[tuple[Any, ...]]:
    """The fields of adjacent records as columns. `record` is the struct format of one record; at least one record."""
    return list(zip(*iter_unpack(record, records), strict=True))


class BatchIds(Protocol):
    """A column of ids in the form in which they were received. A transport can reuse its own form unconverted."""

    def msb_lsb_columns(self) -> tuple[Sequence[int], Sequence[int]]:
        """The msb and lsb of all ids, as two columns."""

    def sliced(self, index: slice) -> "BatchIds":
        """The ids of a slice."""


class IdColumns:
    """Ids as columns of msb and lsb."""

    __slots__ = ("lsbs", "msbs")

    def __init__(self, msbs: Sequence[int], lsbs: Sequence[int]) -> None:
        self.msbs = msbs
        self.lsbs = lsbs

    def msb_lsb_columns(self) -> tuple[Sequence[int], Sequence[int]]:
        """The columns themselves."""
        return self.msbs, self.lsbs

    def sliced(self, index: slice) -> "IdColumns":
        """The ids of a slice."""
        return IdColumns(self.msbs[index], self.lsbs[index])


class MessageBatch(Sequence[UMessage]):
    """Messages with equal attributes, or responses that differ in their reqid. Ids and reqids are valid UUIDv7.

    `ids`, `payloads` and, for responses, `reqids` have one value per message. `attributes` is common to all.
    """

    __slots__ = ("_sizes", "attributes", "ids", "payloads", "reqids")

    def __init__(
        self,
        attributes: UAttributes,
        ids: BatchIds,
        payloads: Sequence[bytes],
        reqids: Sequence[UUID] | None = None,
        size: int | None = None,
    ) -> None:
        """Unchecked, as it runs per batch; see `from_messages`. `size` is the common size of the payloads, if any."""
        self.attributes = attributes
        self.ids = ids
        self.payloads = payloads
        self.reqids = reqids
        self._sizes = None if size is None else array("I", (size,)) * len(payloads)

    @classmethod
    def from_messages(cls, messages: Sequence[UMessage]) -> "MessageBatch | None":
        """The batch of `messages`, whose ids must be valid; None if the list is empty or the attributes differ.

        None for responses too, unless `messages` is a batch already.
        """
        if not messages:
            return None
        if type(messages) is cls:
            return messages
        attributes = messages[0].attributes
        if attributes.reqid is not None:
            return None
        if [each.attributes for each in messages].count(attributes) < len(messages):
            return None
        ids = [each.id for each in messages]
        columns = IdColumns([id.msb for id in ids], [id.lsb for id in ids])
        return cls(attributes, columns, [each.payload for each in messages])

    @property
    def sizes(self) -> "array[int]":
        """The payload sizes as 32-bit numbers; computed once for the egress queue, the transport and the recorder."""
        sizes = self._sizes
        if sizes is None:
            sizes = self._sizes = array("I", list(map(len, self.payloads)))
        return sizes

    def __len__(self) -> int:
        return len(self.payloads)

    def __iter__(self) -> Iterator[UMessage]:
        attributes: Iterable[UAttributes] = repeat(self.attributes)
        if self.reqids is not None:
            attributes = map(self._with_reqid, self.reqids)
        return map(UMessage, map(UUID, *self.ids.msb_lsb_columns()), attributes, self.payloads)

    def _with_reqid(self, reqid: UUID) -> UAttributes:
        return msgspec.structs.replace(self.attributes, reqid=reqid)

    @overload
    def __getitem__(self, index: int) -> UMessage: ...

    @overload
    def __getitem__(self, index: slice) -> "MessageBatch": ...

    def __getitem__(self, index: int | slice) -> "UMessage | MessageBatch":
        reqids = self.reqids
        if isinstance(index, slice):
            part = None if reqids is None else reqids[index]
            return MessageBatch(self.attributes, self.ids.sliced(index), self.payloads[index], part)
        msbs, lsbs = self.ids.msb_lsb_columns()
        attributes = self.attributes if reqids is None else self._with_reqid(reqids[index])
        return UMessage(UUID(msbs[index], lsbs[index]), attributes, self.payloads[index])

    def __repr__(self) -> str:
        return f"<MessageBatch of {len(self)}, {self.attributes}>"
