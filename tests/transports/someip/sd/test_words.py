# SPDX-License-Identifier: Apache-2.0
"""What a streamer says of itself, as options of service discovery."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ustreamer.core.peers.election import Announcement, Role, Who
from ustreamer.transports.someip.sd.options import Configuration, Endpoint, read_options, write_option
from ustreamer.transports.someip.sd.peer_options import (
    MAX_PARTS,
    MalformedWords,
    Part,
    mark,
    read_mark,
    read_part,
    words_of,
    write_parts,
)

WHO = Who("g1.vin1", "0123456789abcdef")
MARK = b"up-streamer=1/0123456789abcdef/g1.vin1"
PLACE = b"up-part=backbone/1/0/1"

names = st.from_regex(r"[a-z0-9.-]{1,100}", fullmatch=True).filter(lambda name: name != ".")
words = st.frozensets(
    st.tuples(st.sampled_from([Role.CARRIES, Role.HERE]), names | st.just("*")), max_size=60
)


def test_a_mark_is_read_as_it_was_written() -> None:
    assert read_mark((Endpoint("10.0.0.1", 1), mark(WHO))) == WHO
    assert mark(WHO) == Configuration((MARK,))


def test_what_has_no_mark_is_no_streamers() -> None:
    assert read_mark((Endpoint("10.0.0.1", 1), Configuration((b"hostname=ecu", b"up-streamers=7")))) is None


@given(words, st.integers(520, 1_400))
def test_words_are_read_as_they_were_said_and_who_it_is_comes_last(
    said: frozenset[tuple[Role, str]], room: int
) -> None:
    said |= {(Role.IS, WHO.authority)}
    options, cut = write_parts(WHO, "backbone", 7, said, room)
    assert cut == 0
    heard: set[tuple[Role, str]] = set()
    for number, option in enumerate(options):
        written = write_option(option)
        assert len(written) <= room + 5
        part = read_part(WHO, read_options(written))
        assert (part.endpoint, part.generation, part.part, part.parts) == (
            "backbone",
            7,
            number,
            len(options),
        )
        assert ((Role.IS, WHO.authority) in part.words) == (number == len(options) - 1)
        heard |= part.words
    assert heard == said


def test_what_finds_no_room_is_counted_and_who_it_is_is_said_all_the_same() -> None:
    said = {(Role.CARRIES, f"authority-{number}") for number in range(5_000)} | {(Role.IS, WHO.authority)}
    options, cut = write_parts(WHO, "backbone", 1, said, 600)
    assert len(options) == MAX_PARTS
    parts = [read_part(WHO, (option,)) for option in options]
    assert sum(len(part.words) for part in parts) + cut == len(said)
    assert (Role.IS, WHO.authority) in parts[-1].words


def test_the_words_of_announcements_are_their_roles_and_subjects() -> None:
    said = Announcement(WHO.instance, "backbone", WHO.authority, Role.HERE, "chassis")
    assert words_of([said]) == {(Role.HERE, "chassis")}


@pytest.mark.parametrize(
    ("items", "why"),
    [
        ((MARK, MARK), "2 marks"),
        ((b"up-streamer",), "expected one, 1/<16 hex digits>/<own authority>"),
        ((b"up-streamer=2/0123456789abcdef/g1",), "expected one"),
        ((b"up-streamer=1/0123/g1",), "expected one"),
        ((b"up-streamer=1/0123456789abcdef/*",), "'*' is nobody's own authority"),
        ((b"up-streamer=1/0123456789abcdef/G 1",), "authority 'G 1' is not"),
        ((b"up-streamer=1/0123456789abcdef/\xff",), "is no UTF-8"),
    ],
)
def test_a_mark_that_says_nothing_is_told(items: tuple[bytes, ...], why: str) -> None:
    with pytest.raises(MalformedWords, match=why.replace("*", r"\*")):
        read_mark((Configuration(items),))


@pytest.mark.parametrize(
    ("items", "why"),
    [
        ((), "0 places"),
        ((PLACE, PLACE), "2 places"),
        ((b"up-part=Back/1/0/1",), "expected one, <endpoint>/<generation>/<part>/<parts>"),
        ((b"up-part=back/1/1/1",), "expected one of 64 at most"),
        ((b"up-part=back/1/0/65",), "expected one of 64 at most"),
        ((b"up-part=back/65536/0/1",), "generation 0 to 65535"),
        ((PLACE, b"up-carries=a b"), "authority 'a b' is not"),
        ((PLACE, b"up-here=\xfe"), "is no UTF-8"),
        ((PLACE, b"up-is=g2"), "the mark says 'g1.vin1'"),
        ((PLACE, b"up-is=*"), "'*' is nobody's own authority"),
    ],
)
def test_a_part_that_says_nothing_is_told(items: tuple[bytes, ...], why: str) -> None:
    with pytest.raises(MalformedWords, match=why.replace("*", r"\*")):
        read_part(WHO, (Configuration(items),))


def test_what_is_not_known_yet_is_ignored() -> None:
    part = read_part(WHO, (Configuration((MARK, PLACE, b"up-future=x", b"otherserv=up-streamer", b"flag")),))
    assert part == Part(WHO, "backbone", 1, 0, 1, frozenset())


@given(st.lists(st.binary(min_size=1, max_size=60), max_size=6))
def test_no_items_raise_anything_else(items: list[bytes]) -> None:
    for prefix in (b"", b"up-streamer=", b"up-part=", b"up-is=", b"up-carries="):
        option = Configuration(tuple(prefix + item for item in items))
        for read in (read_mark, lambda options: read_part(WHO, options)):
            with suppress(MalformedWords):
                read((option,))
