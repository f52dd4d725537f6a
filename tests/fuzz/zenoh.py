# SPDX-License-Identifier: Apache-2.0
"""Borders of Zenoh: samples, tokens and receipts."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from tests.fuzz.border import Border, join_pieces, pure, split_pieces
from tests.transports.zenoh.test_decoder import attachment_of, key_of
from ustreamer.core.peers.election import Announcement, AnnouncementRole
from ustreamer.core.peers.topic_advertisements import TopicAdvertisement
from ustreamer.testing.messages import ALPHA, BETA, TOPIC, four_messages
from ustreamer.transports.zenoh.decoder import SampleDecoder, decode_sample
from ustreamer.transports.zenoh.receipts.receipt_keys import (
    ReceiptGiverId,
    parse_receipt_key,
    parse_token_key,
    receipt_key,
    split_receipt,
    token_key,
)
from ustreamer.transports.zenoh.subscriber import ListenerFilters
from ustreamer.transports.zenoh.tokens.token_keys import advertisement_key, announcement_key, parse_token
from ustreamer.uprotocol.ustatus import UStatusError

_INSTANCE: Final = "0123456789abcdef"


def take_sample(data: bytes) -> None:
    """A piece with the key, then pieces with attachments. Each sample is decoded with and without caches."""
    decoder, key = SampleDecoder(), ""
    for number, (_, piece) in enumerate(split_pieces(data)):
        if not number:
            key = piece.decode("utf-8", errors="replace")  # Zenoh hands over text
            continue
        expected = decode_sample(key, piece, b"")
        assert decoder.decode(key, piece, b"") == expected
        assert decoder.decode(key, piece, b"") == expected


def refuses(parse: Callable[[str], object]) -> Callable[[bytes], None]:
    """Takes keys: `parse` raises UStatusError or accepts."""

    def take(data: bytes) -> None:
        with suppress(UStatusError):
            parse(data.decode("utf-8", errors="replace"))

    return take


def take_receipt(data: bytes) -> None:
    with suppress(UStatusError):
        split_receipt(data)


_GIVER: Final = ReceiptGiverId(ALPHA, "link", _INSTANCE)
_TOKENS: Final = [
    announcement_key(Announcement(_INSTANCE, "link", ALPHA, AnnouncementRole(role), BETA))
    for role in AnnouncementRole
] + [advertisement_key(TopicAdvertisement(_INSTANCE, "link", ALPHA, TOPIC, 10_000_000))]

BORDERS: Final[Mapping[str, Border]] = {
    "zenoh-sample": Border(
        pure(take_sample),
        [
            join_pieces(key_of(each).encode(), attachment_of(each), attachment_of(each))
            for each in four_messages()
        ],
    ),
    "zenoh-token": Border(pure(refuses(parse_token)), [each.encode() for each in _TOKENS]),
    "zenoh-receipt-key": Border(pure(refuses(parse_receipt_key)), [receipt_key(_GIVER).encode()]),
    "zenoh-receipt-token": Border(
        pure(refuses(parse_token_key)), [token_key(_GIVER, ListenerFilters(TOPIC, None)).encode()]
    ),
    "zenoh-receipt": Border(pure(take_receipt), [bytes(17), bytes(34)]),
}
