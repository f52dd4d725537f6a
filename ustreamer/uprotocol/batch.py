# SPDX-License-Identifier: Apache-2.0
"""Messages that differ in their ids and payloads only, as columns.

What comes in together is mostly that: the events of one topic. To whom a message is one of many, a run is a sequence of
messages, made when they are asked for; whoever handles thousands of them takes the columns, and decides once.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Final, Protocol, overload

import msgspec

from ustreamer.uprotocol.uattributes import UAttributes
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.uuid import UUID

MIN_BATCH: Final = 8
"""Fewer messages are cheaper one by one."""


class BatchIds(Protocol):
    """A column of ids, in whatever form they came: a transport may know its own form again, and leave them in it."""

    def msb_lsb_columns(self) -> tuple[Sequence[int], Sequence[int]]:
        """The first halves of all, and the second ones."""

    def sliced(self, index: slice) -> "BatchIds":
        """Some of them."""


class IdColumns:
    """Ids as their two halves."""

    __slots__ = ("lsbs", "msbs")

    def __init__(self, msbs: Sequence[int], lsbs: Sequence[int]) -> None:
        self.msbs = msbs
        self.lsbs = lsbs

    def msb_lsb_columns(self) -> tuple[Sequence[int], Sequence[int]]:
        return self.msbs, self.lsbs

    def sliced(self, index: slice) -> "IdColumns":
        return IdColumns(self.msbs[index], self.lsbs[index])


class MessageBatch(Sequence[UMessage]):
    """Messages of the same attributes, or answers that differ in their reqid. All ids and reqids are valid version 7 UUIDs.

    `ids` and `payloads` have a value for each message, and `reqids` if they are answers; `attributes` is the rest, that of all.
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
        """Nothing is checked, as it happens on the path: see `of`. `size` is that of every payload, if they are known to have one."""
        self.attributes = attributes
        self.ids = ids
        self.payloads = payloads
        self.reqids = reqids
        self._sizes = None if size is None else array("I", (size,)) * len(payloads)

    @classmethod
    def from_messages(cls, messages: Sequence[UMessage]) -> "MessageBatch | None":
        """The columns of `messages`, whose ids are valid; None if there are none, or what they say keeps them apart.

        Answers stay apart, but for those that are a run already.
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
        """How long each payload is, as 32-bit numbers: measured once, as a lane, a transport and a recorder ask for it."""
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
