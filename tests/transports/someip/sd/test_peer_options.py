# SPDX-License-Identifier: Apache-2.0
"""Announcements of a streamer as options of service discovery."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ustreamer.core.peers.election import Announcement, AnnouncementRole, RouterId
from ustreamer.transports.someip.sd.options import Configuration, Endpoint, read_options, write_option
from ustreamer.transports.someip.sd.peer_options import (
    MAX_PARTS,
    AnnouncementPart,
    MalformedAnnouncement,
    decode_announcement_part,
    decode_streamer_mark,
    encode_announcements,
    roles_and_subjects,
    streamer_mark,
)

WHO = RouterId("g1.vin1", "0123456789abcdef")
MARK = b"up-streamer=1/0123456789abcdef/g1.vin1"
PLACE = b"up-part=backbone/1/0/1"

names = st.from_regex(r"[a-z0-9.-]{1,100}", fullmatch=True).filter(lambda name: name != ".")
words = st.frozensets(
    st.tuples(st.sampled_from([AnnouncementRole.CARRIES, AnnouncementRole.LOCAL]), names | st.just("*")),
    max_size=60,
)


# [utest->SD-157, SD-162, SD-502]
def test_a_mark_is_decoded_as_encoded() -> None:
    assert decode_streamer_mark((Endpoint("10.0.0.1", 1), streamer_mark(WHO))) == WHO
    assert streamer_mark(WHO) == Configuration((MARK,))


# [utest->SD-1146, SD-1147]
def test_the_items_of_two_options_are_merged_and_none_is_lost() -> None:
    names, mark = Configuration((b"hostname=a", b"hostname=b")), Configuration((b"hostname=a", MARK))
    assert decode_streamer_mark((names, mark)) == WHO
    with pytest.raises(MalformedAnnouncement, match="^2 marks"):
        decode_streamer_mark((mark, mark))


def test_an_offer_without_a_mark_is_not_a_streamers() -> None:
    assert (
        decode_streamer_mark((Endpoint("10.0.0.1", 1), Configuration((b"hostname=ecu", b"up-streamers=7"))))
        is None
    )


# [utest->RPC-624, SD-684, SD-500, SD-503, SD-575]
@given(words, st.integers(520, 1_400))
def test_announcements_are_decoded_as_encoded_with_the_identity_last(
    claims_sent: frozenset[tuple[AnnouncementRole, str]], room: int
) -> None:
    claims_sent |= {(AnnouncementRole.IDENTITY, WHO.authority)}
    options, cut = encode_announcements(WHO, "backbone", 7, claims_sent, room)
    assert cut == 0
    decoded_claims: set[tuple[AnnouncementRole, str]] = set()
    for number, option in enumerate(options):
        written = write_option(option)
        assert len(written) <= room + 5
        part = decode_announcement_part(WHO, read_options(written))
        assert (part.endpoint, part.generation, part.part, part.parts) == (
            "backbone",
            7,
            number,
            len(options),
        )
        assert ((AnnouncementRole.IDENTITY, WHO.authority) in part.claims) == (number == len(options) - 1)
        decoded_claims |= part.claims
    assert decoded_claims == claims_sent


def test_dropped_announcements_are_counted_and_never_the_identity() -> None:
    claims_sent = {(AnnouncementRole.CARRIES, f"authority-{number}") for number in range(5_000)} | {
        (AnnouncementRole.IDENTITY, WHO.authority)
    }
    options, cut = encode_announcements(WHO, "backbone", 1, claims_sent, 600)
    assert len(options) == MAX_PARTS
    parts = [decode_announcement_part(WHO, (option,)) for option in options]
    assert sum(len(part.claims) for part in parts) + cut == len(claims_sent)
    assert (AnnouncementRole.IDENTITY, WHO.authority) in parts[-1].claims


def test_claims_are_roles_and_subjects() -> None:
    claims_sent = Announcement(WHO.instance, "backbone", WHO.authority, AnnouncementRole.LOCAL, "chassis")
    assert roles_and_subjects([claims_sent]) == {(AnnouncementRole.LOCAL, "chassis")}


@pytest.mark.parametrize(
    ("items", "why"),
    [
        ((MARK, MARK), "2 marks"),
        ((b"up-streamer",), "expected one, 1/<16 hex digits>/<own authority>"),
        ((b"up-streamer=2/0123456789abcdef/g1",), "expected one"),
        ((b"up-streamer=1/0123/g1",), "expected one"),
        ((b"up-streamer=1/0123456789abcdef/*",), "'*' is not an authority of one streamer"),
        ((b"up-streamer=1/0123456789abcdef/G 1",), "authority 'G 1' is not"),
        ((b"up-streamer=1/0123456789abcdef/\xff",), "is not UTF-8"),
    ],
)
def test_a_malformed_mark_is_refused(items: tuple[bytes, ...], why: str) -> None:
    with pytest.raises(MalformedAnnouncement, match=why.replace("*", r"\*")):
        decode_streamer_mark((Configuration(items),))


@pytest.mark.parametrize(
    ("items", "why"),
    [
        ((), "0 parts"),
        ((PLACE, PLACE), "2 parts"),
        ((b"up-part=Back/1/0/1",), "expected one, <endpoint>/<generation>/<part>/<parts>"),
        ((b"up-part=back/1/1/1",), "expected one of 64 at most"),
        ((b"up-part=back/1/0/65",), "expected one of 64 at most"),
        ((b"up-part=back/65536/0/1",), "generation 0 to 65535"),
        ((PLACE, b"up-carries=a b"), "authority 'a b' is not"),
        ((PLACE, b"up-here=\xfe"), "is not UTF-8"),
        ((PLACE, b"up-is=g2"), "expected 'g1.vin1'"),
        ((PLACE, b"up-is=*"), "'*' is not an authority of one streamer"),
    ],
)
def test_a_malformed_part_is_refused(items: tuple[bytes, ...], why: str) -> None:
    with pytest.raises(MalformedAnnouncement, match=why.replace("*", r"\*")):
        decode_announcement_part(WHO, (Configuration(items),))


def test_unknown_items_are_ignored() -> None:
    part = decode_announcement_part(
        WHO, (Configuration((MARK, PLACE, b"up-future=x", b"otherserv=up-streamer", b"flag")),)
    )
    assert part == AnnouncementPart(WHO, "backbone", 1, 0, 1, frozenset())


@given(st.lists(st.binary(min_size=1, max_size=60), max_size=6))
def test_arbitrary_items_raise_only_malformed_announcement(items: list[bytes]) -> None:
    for prefix in (b"", b"up-streamer=", b"up-part=", b"up-is=", b"up-carries="):
        option = Configuration(tuple(prefix + item for item in items))
        for read in (decode_streamer_mark, lambda options: decode_announcement_part(WHO, options)):
            with suppress(MalformedAnnouncement):
                read((option,))
