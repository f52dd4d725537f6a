# SPDX-License-Identifier: Apache-2.0
"""The Zenoh keys and the payload of receipts between streamers (docs/decisions/0031-receipts.md).

    up-receipts / 1 / authority / endpoint / instance / source filter / sink filter     liveliness token of a receiver
    up-receipts / 1 / authority / endpoint / instance                                   put with the ids of a receipt

The 1 is the version. Authorities and filters are percent-encoded; the sink filter `-` stands for publications. The
payload of a receipt is a sequence of ids, each in the bytes of an attachment: msb, a tag byte, lsb. An empty one follows
the declaration of the subscribers: the process is ready. The prefix is none of uProtocol, so entities without receipts
get none of this.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from operator import itemgetter
from struct import Struct
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from ustreamer.transports.zenoh.decoder import AttachmentColumns
from ustreamer.transports.zenoh.subscriber import ListenerFilters
from ustreamer.uprotocol.batch import MessageBatch
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UStatusError, invalid_argument
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri, check_authority

PREFIX: Final = "up-receipts/1"
EVERY_TOKEN: Final = f"{PREFIX}/**"
EVERY_RECEIPT: Final = f"{PREFIX}/*/*/*"

ID_BYTES: Final = 17
ID_IN_ATTACHMENT: Final = slice(4, 4 + ID_BYTES)
"""The place of an id in an attachment, after the version byte and two tags."""
_id_in_attachment: Final = itemgetter(ID_IN_ATTACHMENT)
_ID: Final = Struct("<QcQ")
_TAG: Final = b"\x11"
_PUBLICATIONS: Final = "-"
_MAX_GIVERS: Final = 64  # with a parsed key: 0.01 ms for each receipt
_GIVER: Final = rf"{PREFIX}/([^/]+)/([a-z0-9_-]{{1,128}})/([0-9a-f]{{1,32}})"
_TOKEN: Final = rf"{_GIVER}/([^/]+)/([^/]+)"


class ReceiptGiverId(NamedTuple):
    """A process that gives receipts: its streamer's authority, its endpoint, and the id of the process."""

    authority: str
    endpoint: str
    instance: str


def receipt_id(id: UUID) -> bytes:
    """An id in the form of a receipt."""
    return _ID.pack(id.msb, _TAG, id.lsb)


def uuid_of(id: bytes) -> UUID:
    """The id of a message from its form in a receipt."""
    msb, _, lsb = _ID.unpack(id)
    return UUID(msb, lsb)


def receipt_ids(messages: Sequence[UMessage]) -> bytes:
    """The joined ids of messages, as in a receipt. Received attachments are reused."""
    if type(messages) is MessageBatch:
        if type(messages.ids) is AttachmentColumns:
            return joined_ids(messages.ids.items)
        return b"".join(
            [_ID.pack(msb, _TAG, lsb) for msb, lsb in zip(*messages.ids.msb_lsb_columns(), strict=True)]
        )
    return b"".join([receipt_id(each.id) for each in messages])


def joined_ids(attachments: Sequence[bytes]) -> bytes:
    """The ids of attachments, as in a receipt."""
    return b"".join(map(_id_in_attachment, attachments))


def check_receipt(payload: bytes) -> None:
    """Raise INVALID_ARGUMENT if the payload of a receipt is not a whole number of ids; none is valid."""
    if len(payload) % ID_BYTES:
        raise invalid_argument(f"a receipt of {len(payload)} bytes, expected a multiple of {ID_BYTES}")


def split_receipt(payload: bytes) -> list[bytes]:
    """The ids in the payload of a receipt."""
    return [payload[at : at + ID_BYTES] for at in range(0, len(payload), ID_BYTES)]


def receipt_key(giver: ReceiptGiverId) -> str:
    """The key of the receipts of a process."""
    return f"{PREFIX}/{quote(giver.authority, safe='')}/{giver.endpoint}/{giver.instance}"


def token_key(giver: ReceiptGiverId, filters: ListenerFilters) -> str:
    """The key of the token that announces: this process gives receipts for what matches the filters."""
    sink = _PUBLICATIONS if filters.sink is None else quote(str(filters.sink), safe="")
    return f"{receipt_key(giver)}/{quote(str(filters.source), safe='')}/{sink}"


@lru_cache(_MAX_GIVERS)
def parse_receipt_key(key: str) -> ReceiptGiverId:
    """The inverse of `receipt_key`; INVALID_ARGUMENT for any other key."""
    match = re.fullmatch(_GIVER, key)
    if match is None:
        raise invalid_argument(f"receipt {key!r}: expected {PREFIX}/authority/endpoint/instance")
    return _giver(key, *match.groups())


def parse_token_key(key: str) -> tuple[ReceiptGiverId, ListenerFilters]:
    """The inverse of `token_key`; INVALID_ARGUMENT for any other key."""
    match = re.fullmatch(_TOKEN, key)
    if match is None:
        raise invalid_argument(
            f"receipt token {key!r}: expected {PREFIX}/authority/endpoint/instance/source filter/sink filter"
        )
    *giver, source, sink = match.groups()
    sink_filter = None if sink == _PUBLICATIONS else _filter(key, sink)
    return _giver(key, *giver), ListenerFilters(_filter(key, source), sink_filter)


def _giver(key: str, quoted_authority: str, endpoint: str, instance: str) -> ReceiptGiverId:
    authority = unquote(quoted_authority, errors="replace")
    check_authority(authority, key)
    return ReceiptGiverId(authority, endpoint, instance)


def _filter(key: str, chunk: str) -> UUri:
    try:
        return UUri.parse(unquote(chunk, errors="replace"))
    except UStatusError as error:
        raise invalid_argument(f"receipt token {key!r}: {error.message}") from error
