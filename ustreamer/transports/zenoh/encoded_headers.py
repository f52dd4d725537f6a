# SPDX-License-Identifier: Apache-2.0
"""The encoded headers of messages: each distinct header is encoded once.

In: attributes. Out: the part of an attachment after the id, and the publisher of the route.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import repeat
from struct import Struct
from typing import Final

import msgspec

from ustreamer.transports.zenoh.decoder import HEAD, ID_TAG, VERSION_AND_TAGS, AttachmentColumns
from ustreamer.transports.zenoh.retransmit import Origin
from ustreamer.transports.zenoh.route_publishers import RoutePublisher
from ustreamer.uprotocol.batch import MessageBatch
from ustreamer.uprotocol.uattributes import UAttributes
from ustreamer.uprotocol.wire import REQID, REQID_PREFIX, encode_tail, reqid_field, split_around_reqid

_MAX_HEADERS: Final = 32_768
_MAX_TAILS: Final = 256


class EncodedHeader(msgspec.Struct, frozen=True, gc=False):
    """The common part of all messages with equal attributes: the route, and the attachment after the id.

    Responses share all attributes except the reqid, which is encoded between `tail` and `after_reqid`.
    """

    publisher: RoutePublisher
    origins: tuple[Origin]
    put: Callable[..., None]
    tail: bytes
    after_reqid: bytes | None = None

    def encode_for(self, attributes: UAttributes) -> tuple[bytes, bytes]:
        """The attachment after the id of a message with `attributes`, and the encoded reqid field or b""."""
        if self.after_reqid is None or attributes.reqid is None:
            return self.tail, b""
        reqid = reqid_field(attributes.reqid)
        return self.tail + reqid + self.after_reqid, reqid

    def attachments(self, batch: MessageBatch) -> Sequence[bytes]:
        """The attachments of a batch. Received attachments are reused if they equal ours."""
        ids, reqids, tail = batch.ids, batch.reqids, repeat(self.tail)
        if type(ids) is AttachmentColumns and reqids is None and ids.tail == self.tail:
            return ids.items
        msbs, lsbs = ids.msb_lsb_columns()
        head = repeat(VERSION_AND_TAGS), msbs, repeat(ID_TAG), lsbs
        if reqids is None or self.after_reqid is None:
            return list(map(_attachment_struct(len(self.tail)).pack, *head, tail))
        pack = _response_attachment_struct(len(self.tail), len(self.after_reqid)).pack
        reqid = repeat(REQID_PREFIX), [id.msb for id in reqids], repeat(ID_TAG), [id.lsb for id in reqids]
        return list(map(pack, *head, tail, *reqid, repeat(self.after_reqid)))

    def remembered_payloads(self, attachments: Sequence[bytes], payloads: Sequence[bytes]) -> Sequence[bytes]:
        """The payloads as the retransmit buffer stores them: preceded by the reqid field, if there is one."""
        if self.after_reqid is None:
            return payloads
        begin = HEAD.size + len(self.tail)
        reqid = slice(begin, begin + REQID.size)
        return [each[reqid] + payload for each, payload in zip(attachments, payloads, strict=True)]


@lru_cache(_MAX_TAILS)
def _attachment_struct(tail_bytes: int) -> Struct:
    """The layout of an attachment with a tail of this length."""
    return Struct(f"{HEAD.format}{tail_bytes}s")


@lru_cache(_MAX_TAILS)
def _response_attachment_struct(tail_bytes: int, after_reqid: int) -> Struct:
    """The layout of an attachment with these lengths before and after its reqid."""
    return Struct(f"{HEAD.format}{tail_bytes}s{REQID.format[1:]}{after_reqid}s")


class EncodedHeaders:
    """The headers of the last messages. Not thread-safe."""

    def __init__(self) -> None:
        self.plain: Final[OrderedDict[UAttributes, EncodedHeader]] = OrderedDict()
        """By the attributes of messages without a reqid."""
        self.of_responses: Final[OrderedDict[UAttributes, EncodedHeader]] = OrderedDict()
        """By the attributes of responses without their reqid."""

    def find(self, attributes: UAttributes) -> EncodedHeader | None:
        """The cached header for these attributes, for a response with any reqid; None if there is none."""
        reqid = attributes.reqid
        if reqid is None:
            return self.plain.get(attributes)
        if reqid.msb & 0xF000 != 0x7000 or reqid.lsb >> 62 != 0b10:  # UUID.is_valid
            return None
        return self.of_responses.get(msgspec.structs.replace(attributes, reqid=None))

    def encode(
        self, attributes: UAttributes, on_wire: UAttributes, publisher: RoutePublisher
    ) -> EncodedHeader:
        """The header for valid attributes, of which `on_wire` are sent. It is cached if it can be."""
        tail = encode_tail(on_wire)
        around, common = None, attributes
        if attributes.reqid is not None:
            common = msgspec.structs.replace(attributes, reqid=None)
            around = split_around_reqid(tail, attributes.reqid)
        if around is not None and common.is_cacheable:
            origin = Origin(publisher, common, are_responses=True)
            header = EncodedHeader(publisher, (origin,), publisher.put, *around)
            _add(self.of_responses, common, header)
            return header
        header = EncodedHeader(publisher, (Origin(publisher, attributes),), publisher.put, tail)
        if attributes.reqid is None and attributes.is_cacheable:
            _add(self.plain, attributes, header)
        return header

    def drop_those_of(self, publisher: RoutePublisher) -> None:
        """Forget the headers of a publisher."""
        for attributes in publisher.headers:
            self.plain.pop(attributes, None)
            self.of_responses.pop(attributes, None)


def _add(
    headers: OrderedDict[UAttributes, EncodedHeader], attributes: UAttributes, header: EncodedHeader
) -> None:
    """Cache `header`; at the limit, drop the header that was cached first."""
    if len(headers) >= _MAX_HEADERS:
        # In a plain dict each search for the first entry passes all places of dropped ones: up to 0.25 ms.
        oldest, dropped = headers.popitem(last=False)
        dropped.publisher.headers.pop(oldest, None)
    headers[attributes] = header
    header.publisher.headers[attributes] = None
