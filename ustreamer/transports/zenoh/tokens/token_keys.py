# SPDX-License-Identifier: Apache-2.0
"""The keys of the liveliness tokens with which streamers announce themselves and advertise topics.

    up-streamer / 1 / instance / endpoint / own authority / role / authority
    up-streamer / 1 / instance / endpoint / own authority / puts / topic / period in ns

The 1 is the version of these keys. Authorities and topics are percent-encoded, so `*` becomes `%2A` and is no wildcard.
"""

import re
from collections.abc import Collection
from typing import Final
from urllib.parse import quote, unquote

from ustreamer.core.peers.election import Announcement, AnnouncementRole
from ustreamer.core.peers.topic_advertisements import TopicAdvertisement
from ustreamer.core.routing.subscriptions import MAX_PERIOD_NS
from ustreamer.uprotocol.ustatus import invalid_argument
from ustreamer.uprotocol.uuri import ANY_AUTHORITY, UUri, check_authority

PREFIX: Final = "up-streamer/1"

_ROUTER: Final = rf"{PREFIX}/([0-9a-f]{{16}})/([a-z0-9_-]{{1,128}})/([^/]+)"
_ANNOUNCEMENT: Final = rf"{_ROUTER}/([a-z]+)/([^/]+)"
_ADVERTISEMENT: Final = rf"{_ROUTER}/puts/([^/]+)/(0|[1-9][0-9]{{0,18}})"


def announcement_key(announcement: Announcement) -> str:
    """The token key of an announcement."""
    each = announcement
    return f"{_router_prefix(each)}/{each.role}/{quote(each.subject, safe='')}"


def advertisement_key(advertisement: TopicAdvertisement) -> str:
    """The token key of a topic advertisement."""
    return f"{_router_prefix(advertisement)}/puts/{quote(str(advertisement.topic), safe='')}/{advertisement.period_ns}"


def _router_prefix(each: Announcement | TopicAdvertisement) -> str:
    return f"{PREFIX}/{each.instance}/{each.endpoint}/{quote(each.authority, safe='')}"


def parse_token(key: str, trusted_authorities: Collection[str] = ()) -> Announcement | TopicAdvertisement:
    """Decode a token key; INVALID_ARGUMENT for any other key. Announcements of `trusted_authorities` are trusted."""
    if match := re.fullmatch(_ADVERTISEMENT, key):
        *router, topic, period = match.groups()
        return TopicAdvertisement(*_parse_router(key, *router), _topic(key, topic), _period(key, period))
    match = re.fullmatch(_ANNOUNCEMENT, key)
    if match is None:
        raise invalid_argument(
            f"token {key!r}: expected {PREFIX}/instance/endpoint/own authority/role/authority"
        )
    *router, role, subject = match.groups()
    if role not in set(AnnouncementRole):
        raise invalid_argument(f"token {key!r}: role {role!r} (have: {', '.join(AnnouncementRole)})")
    instance, endpoint, authority = _parse_router(key, *router)
    role_and_subject = AnnouncementRole(role), _authority(key, subject)
    return Announcement(
        instance, endpoint, authority, *role_and_subject, trusted=authority in trusted_authorities
    )


def _parse_router(key: str, instance: str, endpoint: str, quoted_authority: str) -> tuple[str, str, str]:
    authority = _authority(key, quoted_authority)
    if authority == ANY_AUTHORITY:
        raise invalid_argument(f"token {key!r}: '*' is not the authority of a streamer")
    return instance, endpoint, authority


def _percent_decoded(key: str, chunk: str) -> str:
    text = unquote(chunk, errors="replace")
    if quote(text, safe="") != chunk:
        raise invalid_argument(f"token {key!r}: {chunk!r} is not percent-encoded as expected")
    return text


def _authority(key: str, chunk: str) -> str:
    authority = _percent_decoded(key, chunk)
    check_authority(authority, key)
    return authority


def _topic(key: str, chunk: str) -> UUri:
    text = _percent_decoded(key, chunk)
    topic = UUri.parse(text)
    if str(topic) != text or not topic.authority_name or not topic.is_topic or topic.wildcard() is not None:
        raise invalid_argument(
            f"token {key!r}: {text!r} is not the canonical form of one topic of a named authority"
        )
    return topic


def _period(key: str, digits: str) -> int:
    period_ns = int(digits)
    if period_ns > MAX_PERIOD_NS:
        raise invalid_argument(f"token {key!r}: a period of {digits} ns, expected {MAX_PERIOD_NS} at most")
    return period_ns
