# SPDX-License-Identifier: Apache-2.0
"""What a streamer says of itself in service discovery: items of Configuration options. Values in, values out.

Every Offer of a streamer has a mark, so that another streamer does not take it for an ECU's:

    up-streamer=1/<instance>/<own authority>

What it announces (`ustreamer.core.peers.election`) is offered as a service that does not speak SOME/IP, in as many entries as it
needs, each with a mark, its place among them, and its share of the words:

    otherserv=up-streamer   up-part=<endpoint>/<generation>/<part, from 0>/<parts>   up-carries=<authority> ...

The 1 is the version of all this. An ECU has no use for such an option, and goes by the others. Other items are ignored.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Final

from msgspec import Struct

from ustreamer.core.peers.election import Announcement, Role, Who
from ustreamer.transports.someip.sd.options import Configuration, Option
from ustreamer.uprotocol.ustatus import UStatusError
from ustreamer.uprotocol.uuri import ANY_AUTHORITY, check_authority

MAX_PARTS: Final = 64
"""Of what one streamer announces: 2 000 authorities of 20 letters, in datagrams of 1 400 bytes."""
MAX_GENERATION: Final = 0xFFFF

_MARK: Final = b"up-streamer"
_PART: Final = b"up-part"
_NOT_SOMEIP: Final = b"otherserv=up-streamer"
_ROLES: Final = {f"up-{role}".encode(): role for role in Role}
_MARKED: Final = re.compile(r"1/([0-9a-f]{16})/([^/]+)")
_PLACED: Final = re.compile(r"([a-z0-9_-]{1,128})/([0-9]{1,5})/([0-9]{1,2})/([0-9]{1,2})")


class MalformedWords(ValueError):
    """A streamer's item that does not say what it should."""


class Part(Struct, frozen=True):
    """One of the `parts` that the `generation` of a streamer's words has, which are about the network of its `endpoint`."""

    who: Who
    endpoint: str
    generation: int
    part: int
    parts: int
    words: frozenset[tuple[Role, str]]


# --- writing ------------------------------------------------------------------------------------------------------------


def mark(who: Who) -> Configuration:
    """The option that marks an Offer as this streamer's."""
    return Configuration((_mark(who),))


def _mark(who: Who) -> bytes:
    return b"%s=1/%s/%s" % (_MARK, who.instance.encode(), who.authority.encode())


def write_parts(
    who: Who, endpoint: str, generation: int, words: Iterable[tuple[Role, str]], room: int
) -> tuple[list[Configuration], int]:
    """The options that say it, of `room` bytes each, and how many words found no room. Who we are is said last."""
    items = [b"up-%s=%s" % (str(role).encode(), subject.encode()) for role, subject in _last_last(words)]
    fixed = sum(len(item) + 1 for item in (_mark(who), _NOT_SOMEIP, _place(endpoint, MAX_GENERATION, 63, 64)))
    shares: list[list[bytes]] = [[]]
    size = fixed
    for item in items:
        if shares[-1] and size + len(item) + 1 > room:
            shares.append([])
            size = fixed
        shares[-1].append(item)
        size += len(item) + 1
    cut = sum(map(len, shares[:-MAX_PARTS]))
    shares = shares[-MAX_PARTS:]
    return [
        Configuration((_mark(who), _NOT_SOMEIP, _place(endpoint, generation, number, len(shares)), *share))
        for number, share in enumerate(shares)
    ], cut


def _place(endpoint: str, generation: int, part: int, parts: int) -> bytes:
    return b"%s=%s/%d/%d/%d" % (_PART, endpoint.encode(), generation, part, parts)


def _last_last(words: Iterable[tuple[Role, str]]) -> list[tuple[Role, str]]:
    return sorted(words, key=lambda each: (each[0] is Role.IS, each))


def words_of(announcements: Iterable[Announcement]) -> frozenset[tuple[Role, str]]:
    return frozenset((each.role, each.subject) for each in announcements)


# --- reading ------------------------------------------------------------------------------------------------------------


def read_mark(options: Iterable[Option]) -> Who | None:
    """Whose mark an Offer has; None: nobody's. Raises MalformedWords."""
    found = [value for key, value in _items(options) if key == _MARK]
    if not found:
        return None
    text = _text(_MARK, found[0])
    match = _MARKED.fullmatch(text)
    if len(found) > 1 or match is None:
        raise MalformedWords(f"{len(found)} marks, {text!r}: expected one, 1/<16 hex digits>/<own authority>")
    return Who(_authority(_MARK, match[2]), match[1])


def read_part(who: Who, options: Iterable[Option]) -> Part:
    """What an entry of a streamer's announcement says. Raises MalformedWords."""
    items = list(_items(options))
    places = [value for key, value in items if key == _PART]
    text = _text(_PART, places[0]) if places else ""
    match = _PLACED.fullmatch(text)
    if len(places) != 1 or match is None:
        raise MalformedWords(
            f"{len(places)} places, {text!r}: expected one, <endpoint>/<generation>/<part>/<parts>"
        )
    generation, part, parts = map(int, match.groups()[1:])
    if not 0 <= part < parts <= MAX_PARTS or generation > MAX_GENERATION:
        raise MalformedWords(f"part {text!r}: expected one of {MAX_PARTS} at most, generation 0 to 65535")
    words = frozenset(
        (_ROLES[key], _authority(key, _text(key, value))) for key, value in items if key in _ROLES
    )
    for role, subject in words:
        if role is Role.IS and subject != who.authority:
            raise MalformedWords(f"up-is: {subject!r}, and the mark says {who.authority!r}")
    return Part(who, match[1], generation, part, parts, words)


def _items(options: Iterable[Option]) -> Iterator[tuple[bytes, bytes]]:
    for option in options:
        if isinstance(option, Configuration):
            for item in option.items:
                key, _, value = item.partition(b"=")
                yield key, value


def _text(key: bytes, value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise MalformedWords(f"{key.decode()}: {value!r} is no UTF-8") from None


def _authority(key: bytes, text: str) -> str:
    name = key.decode()
    try:
        check_authority(text, name)
    except UStatusError as error:
        raise MalformedWords(f"{name}: {error.message}") from error
    if text == ANY_AUTHORITY and _ROLES.get(key, Role.IS) is Role.IS:
        raise MalformedWords(f"{name}: '*' is nobody's own authority")
    return text
