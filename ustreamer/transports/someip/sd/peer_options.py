# SPDX-License-Identifier: Apache-2.0
"""The announcements of a streamer as items of Configuration options: values in, values out.

Every Offer of a streamer has a mark, so that another streamer does not process it as an ECU's Offer:

    up-streamer=1/<instance>/<own authority>

The announcements (`ustreamer.core.peers.election`) are offered as a service that does not use SOME/IP. They take as
many
entries as necessary. Each entry has a mark, its part number and its share of the announcements:

    otherserv=up-streamer   up-part=<endpoint>/<generation>/<part, from 0>/<parts>   up-carries=<authority> ...

The 1 is the format version. An ECU ignores these options and uses the other ones. Unknown items are ignored.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Final

from msgspec import Struct

from ustreamer.core.peers.election import Announcement, AnnouncementRole, RouterId
from ustreamer.transports.someip.sd.options import Configuration, Option
from ustreamer.uprotocol.ustatus import UStatusError
from ustreamer.uprotocol.uuri import ANY_AUTHORITY, check_authority

MAX_PARTS: Final = 64
"""Maximum parts of one streamer's announcements: 2 000 authorities of 20 letters, in datagrams of 1 400 bytes."""
MAX_GENERATION: Final = 0xFFFF

_MARK: Final = b"up-streamer"
_PART: Final = b"up-part"
_NOT_SOMEIP: Final = b"otherserv=up-streamer"
_ROLES: Final = {f"up-{role}".encode(): role for role in AnnouncementRole}
_MARK_PATTERN: Final = re.compile(r"1/([0-9a-f]{16})/([^/]+)")
_PART_PATTERN: Final = re.compile(r"([a-z0-9_-]{1,128})/([0-9]{1,5})/([0-9]{1,2})/([0-9]{1,2})")


class MalformedAnnouncement(ValueError):
    """A streamer's item has an invalid form."""


class AnnouncementPart(Struct, frozen=True):
    """Part `part` of the `parts` of one announcement `generation`, for the network of `endpoint`."""

    router_id: RouterId
    endpoint: str
    generation: int
    part: int
    parts: int
    claims: frozenset[tuple[AnnouncementRole, str]]


# --- writing ----------------------------------------------------------------------------------------------------------


# [impl->SD-502]
def streamer_mark(router_id: RouterId) -> Configuration:
    """Return the option that marks an Offer as this streamer's."""
    return Configuration((_mark_item(router_id),))


# [impl->SD-157, SD-162]
def _mark_item(router_id: RouterId) -> bytes:
    return b"%s=1/%s/%s" % (_MARK, router_id.instance.encode(), router_id.authority.encode())


# [impl->RPC-624, SD-500, SD-503, SD-575]
def encode_announcements(
    router_id: RouterId,
    endpoint: str,
    generation: int,
    claims: Iterable[tuple[AnnouncementRole, str]],
    max_bytes: int,
) -> tuple[list[Configuration], int]:
    """Encode announcements as options of `max_bytes` each; also returns the number of dropped announcements.

    The own authority is in the last option.
    """
    items = [
        b"up-%s=%s" % (str(role).encode(), subject.encode()) for role, subject in _own_authority_last(claims)
    ]
    fixed = sum(
        len(item) + 1
        for item in (_mark_item(router_id), _NOT_SOMEIP, _part_item(endpoint, MAX_GENERATION, 63, 64))
    )
    shares: list[list[bytes]] = [[]]
    size = fixed
    for item in items:
        if shares[-1] and size + len(item) + 1 > max_bytes:
            shares.append([])
            size = fixed
        shares[-1].append(item)
        size += len(item) + 1
    dropped = sum(map(len, shares[:-MAX_PARTS]))
    shares = shares[-MAX_PARTS:]
    return [
        Configuration(
            (
                _mark_item(router_id),
                _NOT_SOMEIP,
                _part_item(endpoint, generation, number, len(shares)),
                *share,
            )
        )
        for number, share in enumerate(shares)
    ], dropped


def _part_item(endpoint: str, generation: int, part: int, parts: int) -> bytes:
    return b"%s=%s/%d/%d/%d" % (_PART, endpoint.encode(), generation, part, parts)


def _own_authority_last(claims: Iterable[tuple[AnnouncementRole, str]]) -> list[tuple[AnnouncementRole, str]]:
    return sorted(claims, key=lambda each: (each[0] is AnnouncementRole.IDENTITY, each))


def roles_and_subjects(announcements: Iterable[Announcement]) -> frozenset[tuple[AnnouncementRole, str]]:
    return frozenset((each.role, each.subject) for each in announcements)


# --- reading ----------------------------------------------------------------------------------------------------------


def decode_streamer_mark(options: Iterable[Option]) -> RouterId | None:
    """The streamer id in the mark of an Offer; None without a mark. Raises MalformedAnnouncement."""
    found = [value for key, value in _items(options) if key == _MARK]
    if not found:
        return None
    text = _text(_MARK, found[0])
    match = _MARK_PATTERN.fullmatch(text)
    if len(found) > 1 or match is None:
        raise MalformedAnnouncement(
            f"{len(found)} marks, {text!r}: expected one, 1/<16 hex digits>/<own authority>"
        )
    return RouterId(_authority(_MARK, match[2]), match[1])


def decode_announcement_part(router_id: RouterId, options: Iterable[Option]) -> AnnouncementPart:
    """Decode one entry of a streamer's announcements. Raises MalformedAnnouncement."""
    items = list(_items(options))
    part_items = [value for key, value in items if key == _PART]
    text = _text(_PART, part_items[0]) if part_items else ""
    match = _PART_PATTERN.fullmatch(text)
    if len(part_items) != 1 or match is None:
        raise MalformedAnnouncement(
            f"{len(part_items)} parts, {text!r}: expected one, <endpoint>/<generation>/<part>/<parts>"
        )
    generation, part, parts = map(int, match.groups()[1:])
    if not 0 <= part < parts <= MAX_PARTS or generation > MAX_GENERATION:
        raise MalformedAnnouncement(
            f"part {text!r}: expected one of {MAX_PARTS} at most, generation 0 to 65535"
        )
    claims = frozenset(
        (_ROLES[key], _authority(key, _text(key, value))) for key, value in items if key in _ROLES
    )
    for role, subject in claims:
        if role is AnnouncementRole.IDENTITY and subject != router_id.authority:
            raise MalformedAnnouncement(f"up-is: {subject!r}, expected {router_id.authority!r}")
    return AnnouncementPart(router_id, match[1], generation, part, parts, claims)


# [impl->SD-1146, SD-1147]
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
        raise MalformedAnnouncement(f"{key.decode()}: {value!r} is not UTF-8") from None


def _authority(key: bytes, text: str) -> str:
    name = key.decode()
    try:
        check_authority(text, name)
    except UStatusError as error:
        raise MalformedAnnouncement(f"{name}: {error.message}") from error
    if text == ANY_AUTHORITY and _ROLES.get(key, AnnouncementRole.IDENTITY) is AnnouncementRole.IDENTITY:
        raise MalformedAnnouncement(f"{name}: '*' is not an authority of one streamer")
    return text
