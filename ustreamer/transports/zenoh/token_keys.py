# SPDX-License-Identifier: Apache-2.0
"""The keys of liveliness tokens, by which streamers tell each other about themselves.

    up-streamer / 1 / instance / endpoint / own authority / role / authority
    up-streamer / 1 / instance / endpoint / own authority / puts / topic / period in ns

The 1 is the version of these keys. Authorities and topics are percent-encoded, so `*` is `%2A` and no wildcard.
"""

import re
from collections.abc import Collection
from typing import Final
from urllib.parse import quote, unquote

from ustreamer.core.peers.election import Announcement, Role
from ustreamer.core.peers.topic_advertisements import Put
from ustreamer.core.routing.subscriptions import MAX_PERIOD_NS
from ustreamer.uprotocol.ustatus import invalid
from ustreamer.uprotocol.uuri import ANY_AUTHORITY, UUri, check_authority

PREFIX: Final = "up-streamer/1"

_WHO: Final = rf"{PREFIX}/([0-9a-f]{{16}})/([a-z0-9_-]{{1,128}})/([^/]+)"
_ANNOUNCEMENT: Final = re.compile(rf"{_WHO}/([a-z]+)/([^/]+)")
_PUT: Final = re.compile(rf"{_WHO}/puts/([^/]+)/(0|[1-9][0-9]{{0,18}})")


def announcement_key(announcement: Announcement) -> str:
    """The key of the token that says it."""
    each = announcement
    return f"{_who(each)}/{each.role}/{quote(each.subject, safe='')}"


def put_key(put: Put) -> str:
    """The key of the token that says it."""
    return f"{_who(put)}/puts/{quote(str(put.topic), safe='')}/{put.period_ns}"


def _who(each: Announcement | Put) -> str:
    return f"{PREFIX}/{each.instance}/{each.endpoint}/{quote(each.authority, safe='')}"


def read_token(key: str, vouched: Collection[str] = ()) -> Announcement | Put:
    """What a token says; INVALID_ARGUMENT for any other key. Own authorities in `vouched` are vouched for."""
    if match := _PUT.fullmatch(key):
        *who, topic, period = match.groups()
        return Put(*_speaker(key, *who), _topic(key, topic), _period(key, period))
    match = _ANNOUNCEMENT.fullmatch(key)
    if match is None:
        raise invalid(f"token {key!r}: expected {PREFIX}/instance/endpoint/own authority/role/authority")
    *who, role, subject = match.groups()
    if role not in set(Role):
        raise invalid(f"token {key!r}: role {role!r} (have: {', '.join(Role)})")
    instance, endpoint, authority = _speaker(key, *who)
    said = Role(role), _authority(key, subject)
    return Announcement(instance, endpoint, authority, *said, vouched=authority in vouched)


def _speaker(key: str, instance: str, endpoint: str, own: str) -> tuple[str, str, str]:
    authority = _authority(key, own)
    if authority == ANY_AUTHORITY:
        raise invalid(f"token {key!r}: '*' is nobody's own authority")
    return instance, endpoint, authority


def _decoded(key: str, chunk: str) -> str:
    text = unquote(chunk, errors="replace")
    if quote(text, safe="") != chunk:
        raise invalid(f"token {key!r}: {chunk!r} is not percent-encoded as expected")
    return text


def _authority(key: str, chunk: str) -> str:
    authority = _decoded(key, chunk)
    check_authority(authority, key)
    return authority


def _topic(key: str, chunk: str) -> UUri:
    text = _decoded(key, chunk)
    topic = UUri.parse(text)
    if str(topic) != text or not topic.authority_name or not topic.is_topic or topic.wildcard() is not None:
        raise invalid(f"token {key!r}: {text!r} is not the one way to write one topic of a named authority")
    return topic


def _period(key: str, digits: str) -> int:
    period_ns = int(digits)
    if period_ns > MAX_PERIOD_NS:
        raise invalid(f"token {key!r}: a period of {digits} ns, expected {MAX_PERIOD_NS} at most")
    return period_ns
