# SPDX-License-Identifier: Apache-2.0
"""From what Zenoh hands over to a UMessage, or to the reason why it is none (`up-transport-zenoh`, attributes mapping).

The attachment is one byte, the major version of uProtocol, and then a protobuf UAttributes. Key and attributes must name
the same source and sink: access rules of a Zenoh network are written for keys, and a message whose attributes say
otherwise would pass by them. Whether the attributes suit their message type is for the dispatcher to say.
"""

from collections.abc import Sequence
from enum import StrEnum
from struct import Struct
from typing import Final, final

import msgspec

from ustreamer.transports.zenoh.keys import read_key
from ustreamer.uprotocol.batch import Halves, Run
from ustreamer.uprotocol.struct_columns import columns, numbers
from ustreamer.uprotocol.uattributes import UAttributes, UMessageType
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UStatusError, invalid
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri
from ustreamer.uprotocol.wire import REQID, REQID_PREFIX, HeaderDecoder, around_reqid, decode

VERSION: Final = 1
VERSION_BYTE: Final = bytes((VERSION,))
MAX_ATTACHMENT: Final = 16_384  # uProtocol sets no bound; web servers grant as much to a request's header
_HEAD: Final = Struct("<4sQcQ")  # up to the id's end, as nearly all attachments have it
_HEAD_SIZE: Final = _HEAD.size
_BEFORE_MSB: Final = VERSION_BYTE + b"\x0a\x12\x09"
_BEFORE_LSB: Final = b"\x11"
_ID_FRAME: Final = _BEFORE_MSB[1:]
_REQID_FRAME: Final = REQID_PREFIX
_ID_TAG: Final = 11
"""Where in either field the tag of the second half is, whatever the id is."""
_VERSION_7: Final = bytes(range(0x70, 0x80))
_VARIANT: Final = bytes(range(0x80, 0xC0))
_REPEATING: Final = 512  # longer ones are not kept: two full authorities and every number come to about 350


class Reason(StrEnum):
    """All the ways in which a Zenoh sample can be no message of ours."""

    NO_ATTACHMENT = "no_attachment"
    SHORT = "short"
    LONG = "long"
    VERSION = "version"
    ATTRIBUTES = "attributes"
    KEY = "key"
    MISMATCH = "mismatch"
    DELETE = "delete"


@final  # so that `type(x) is Refusal` tells the two apart: 0.03 us, isinstance of a Struct 0.09
class Refusal(msgspec.Struct, frozen=True):
    """Why a sample is not a message."""

    reason: Reason
    text: str


def inbound(key: str, attachment: bytes | None, payload: bytes) -> UMessage | Refusal:
    """Read one sample. Never raises, whatever the bytes are."""
    if attachment is None:
        return Refusal(Reason.NO_ATTACHMENT, "no attachment, expected 01 and a UAttributes")
    refusal = _unframed(attachment)
    if refusal is not None:
        return refusal
    try:
        id, attributes = decode(attachment[1:])
    except UStatusError as error:
        return Refusal(Reason.ATTRIBUTES, error.message)
    agreed = agree(key, attributes)
    return agreed if isinstance(agreed, Refusal) else UMessage(id, agreed, payload)


def _unframed(attachment: bytes) -> Refusal | None:
    """What is wrong with the frame around the attributes; None if it is sound."""
    if len(attachment) < 2:
        return Refusal(Reason.SHORT, f"attachment of {len(attachment)} bytes, expected 01 and a UAttributes")
    if attachment[0] != VERSION:
        return Refusal(Reason.VERSION, f"attachment begins with {attachment[0]:02x}, expected {VERSION:02x}")
    if len(attachment) > MAX_ATTACHMENT:
        return Refusal(Reason.LONG, f"attachment of {len(attachment)} bytes, limit {MAX_ATTACHMENT}")
    return None


def agree(key: str, attributes: UAttributes) -> UAttributes | Refusal:
    """The attributes as the key confirms them: empty authorities filled in, no sink on a publication (X-22).

    The very object is returned where nothing had to be changed.
    """
    try:
        source, sink = read_key(key)
        for uuri in (source, sink):
            if uuri is not None and uuri.wildcard():
                raise invalid(f"Zenoh key {key!r}: {uuri} is a pattern, expected the address of one entity")
    except UStatusError as error:
        return Refusal(Reason.KEY, error.message)
    stated_sink = None if attributes.type is UMessageType.PUBLISH else _filled(attributes.sink, sink)
    stated_source = attributes.source.with_authority(source.authority_name)
    if (sink is None) is not (attributes.type is UMessageType.PUBLISH):
        found = "no sink, as for a PUBLISH only" if sink is None else f"sink {sink}, as for all but a PUBLISH"
        return Refusal(Reason.MISMATCH, f"a {attributes.type.name} on key {key!r}, which names {found}")
    if stated_source != source or stated_sink != sink:
        return Refusal(Reason.MISMATCH, f"attributes from {stated_source} to {stated_sink} on key {key!r}")
    if stated_source is attributes.source and stated_sink is attributes.sink:
        return attributes
    return msgspec.structs.replace(attributes, source=stated_source, sink=stated_sink)


def _filled(sink: UUri | None, by_key: UUri | None) -> UUri | None:
    if sink is None or by_key is None:
        return sink
    return sink.with_authority(by_key.authority_name)


class Attachments:
    """Ids as attachments have them, all of which have the same tail."""

    __slots__ = ("_halves", "each", "tail")

    def __init__(self, each: Sequence[bytes], tail: bytes) -> None:
        self.each = each
        self.tail = tail
        self._halves: tuple[Sequence[int], Sequence[int]] | None = None

    def halves(self) -> tuple[Sequence[int], Sequence[int]]:
        if self._halves is None:
            msbs, lsbs = numbers(f"<4xQxQ{len(self.tail)}x", b"".join(self.each))
            self._halves = msbs, lsbs
        return self._halves

    def part(self, part: slice) -> "Attachments":
        return Attachments(self.each[part], self.tail)


def _have_valid_heads(joined: bytes, size: int) -> bool:
    """Whether attachments of this size, joined, all begin with a `_HEAD` whose id is valid.

    Looked at byte by byte, each of all of them: 0.02 us an attachment, and 0.15 by comparing numbers.
    """
    return joined[::size].count(VERSION) == len(joined) // size and _have_valid_ids(
        joined, size, 1, _ID_FRAME
    )


def _have_valid_reqids(joined: bytes, size: int, at: int) -> bool:
    """The same of reqids, each of which is to be a field of its own, at this place."""
    return _have_valid_ids(joined, size, at, _REQID_FRAME)


def _have_valid_ids(joined: bytes, size: int, at: int, frame: bytes) -> bool:
    number = len(joined) // size
    for place, byte in (*enumerate(frame), (_ID_TAG, _BEFORE_LSB[0])):
        if joined[at + place :: size].count(byte) < number:
            return False
    # The wire has the halves of an id with their lowest byte first: the version is above the counter, the variant is on top.
    versions, variants = joined[at + 4 :: size], joined[at + 19 :: size]
    return not versions.translate(None, _VERSION_7) and not variants.translate(None, _VARIANT)


class InboundReader:
    """`inbound`, with the work done once per distinct header and key: 0.5 us where both were seen before together.

    Bounded as `HeaderDecoder`: at `limit` all are forgotten. Not locked: one reader belongs to one receiving thread.
    """

    def __init__(self, limit: int = 8192) -> None:
        self._limit = limit
        self._decoder = HeaderDecoder(limit)
        # Attributes with an empty authority mean something else on another key, so the key is part of the question.
        self._agreed: dict[tuple[str, bytes], UAttributes] = {}
        # Of answers: what is around the reqid, and the attributes without it.
        self._answers: dict[tuple[str, bytes, bytes], UAttributes] = {}
        self._key, self._tail = "", b""  # what was looked up last, and found
        self._same: UAttributes | None = None

    def read(self, key: str, attachment: bytes | None, payload: bytes) -> UMessage | Refusal:
        """As the function `inbound`."""
        if attachment:
            tail = attachment[_HEAD_SIZE:]
            # Mostly as the one before: to compare is 0.07 us less than to look up, for which both are new and have no hash.
            if tail == self._tail and key == self._key:
                agreed: UAttributes | None = self._same
            else:
                agreed = self._agreed.get((key, tail))
                if agreed is not None:
                    self._key, self._tail, self._same = key, tail, agreed
                else:
                    agreed = self._answer(key, attachment)
            if agreed is not None:
                head, msb, tag, lsb = _HEAD.unpack_from(attachment)
                if head == _BEFORE_MSB and tag == _BEFORE_LSB:
                    return UMessage(UUID(msb, lsb), agreed, payload)
        return self._read_first(key, attachment, payload)

    def run(self, key: str, attachments: Sequence[bytes], payloads: Sequence[bytes]) -> Run | None:
        """As `read` of samples of one key, if all say the same as one that was read before, and each has a valid id."""
        tail, number = attachments[0][_HEAD_SIZE:], len(attachments)
        agreed = self._agreed.get((key, tail))
        if agreed is None:
            return self._run_of_answers(key, attachments, payloads)
        if [each[_HEAD_SIZE:] for each in attachments].count(tail) < number:
            return None
        if not _have_valid_heads(b"".join(attachments), _HEAD_SIZE + len(tail)):
            return None
        return Run(agreed, Attachments(attachments, tail), payloads)

    def _run_of_answers(
        self, key: str, attachments: Sequence[bytes], payloads: Sequence[bytes]
    ) -> Run | None:
        """The same of answers, which may differ in their reqid."""
        first, number = attachments[0], len(attachments)
        begin = first.find(REQID_PREFIX, _HEAD_SIZE)
        end = begin + REQID.size
        before, behind = first[_HEAD_SIZE:begin], first[end:]
        like = None if begin < 0 or end > len(first) else self._answers.get((key, before, behind))
        if like is None or list(map(len, attachments)).count(len(first)) < number:
            return None
        joined, size = b"".join(attachments), len(first)
        befores = [each[_HEAD_SIZE:begin] for each in attachments]
        if befores.count(before) < number or [each[end:] for each in attachments].count(behind) < number:
            return None
        if not _have_valid_heads(joined, size) or not _have_valid_reqids(joined, size, begin):
            return None
        record = f"<4xQxQ{len(before)}x3xQxQ{len(behind)}x"
        msbs, lsbs, reqid_msbs, reqid_lsbs = columns(record, joined)
        return Run(like, Halves(msbs, lsbs), payloads, list(map(UUID, reqid_msbs, reqid_lsbs)))

    def _answer(self, key: str, attachment: bytes) -> UAttributes | None:
        """The attributes of an answer that differs from one of before in its reqid only; None if it is none."""
        begin = attachment.find(REQID_PREFIX, _HEAD.size)
        end = begin + REQID.size
        if begin < 0 or end > len(attachment):
            return None
        like = self._answers.get((key, attachment[_HEAD.size : begin], attachment[end:]))
        if like is None:
            return None
        _, msb, tag, lsb = REQID.unpack_from(attachment, begin)
        return msgspec.structs.replace(like, reqid=UUID(msb, lsb)) if tag == _BEFORE_LSB else None

    def _read_first(self, key: str, attachment: bytes | None, payload: bytes) -> UMessage | Refusal:
        if not attachment or attachment[0] != VERSION or len(attachment) > _REPEATING:
            return inbound(key, attachment, payload)
        try:
            id, attributes = self._decoder.decode(attachment[1:])
        except UStatusError:
            return inbound(key, attachment, payload)
        agreed = agree(key, attributes)
        if isinstance(agreed, Refusal):
            return agreed
        tail = attachment[_HEAD.size :]
        if self._decoder.knows(tail):
            if len(self._agreed) >= self._limit:
                self._agreed.clear()
            self._agreed[key, tail] = agreed
        # What came before the tail must be an id and nothing but an id, as for any other tail.
        elif attachment[: _HEAD.size] == _HEAD.pack(_BEFORE_MSB, id.msb, _BEFORE_LSB, id.lsb):
            self._keep_answer(key, tail, agreed)
        return UMessage(id, agreed, payload)

    def _keep_answer(self, key: str, tail: bytes, agreed: UAttributes) -> None:
        like = msgspec.structs.replace(agreed, reqid=None)
        around = around_reqid(tail, agreed.reqid) if agreed.reqid is not None and like.repeats else None
        if around is not None:
            if len(self._answers) >= self._limit:
                self._answers.clear()
            self._answers[key, *around] = like
