# SPDX-License-Identifier: Apache-2.0
"""The filters that a streamer registers as listeners at each endpoint."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from ustreamer.core.routing.router import SELF
from ustreamer.uprotocol.uuri import ANY, ANY_AUTHORITY, UUri, any_at

_REPLY_ADDRESSES: Final = ANY.with_resource(0)  # sources of requests; sinks of responses and notifications

_MAX_EXACT_PATTERNS: Final = 4
"""The maximum number of authorities elsewhere with a pattern each. With more, one pattern covers all reply addresses."""

FilterPair = tuple[UUri, UUri | None]
"""Source and sink filter, as parameters of `UTransport.register_listener`."""


def listener_filters(
    endpoint: str, behind: Mapping[str, Sequence[str]], entities: Sequence[UUri]
) -> list[FilterPair]:
    """The filters for one endpoint: every publication, every request, and every reply for an entity elsewhere.

    `behind` maps each endpoint to its authorities; `entities` are those that the streamer hosts. A request without a
    route gets an error response. No message matches two filters, so a transport with one subscription per filter
    delivers each message once.
    """
    elsewhere = _reply_patterns_elsewhere(endpoint, behind, entities)
    return [(ANY, None), (_REPLY_ADDRESSES, ANY), *((ANY, sink) for sink in elsewhere)]


def _reply_patterns_elsewhere(
    endpoint: str, behind: Mapping[str, Sequence[str]], entities: Sequence[UUri]
) -> list[UUri]:
    """Patterns of the reply addresses (resource 0) of all entities that are not behind `endpoint`."""
    local = behind[endpoint]
    others = sorted({each for name, named in behind.items() if name != endpoint for each in named})
    # A transport has a subscription and a thread per filter, so patterns per pair of endpoints would grow as their square.
    # The price of one pattern for all: replies between entities of one network are received and have no target.
    if endpoint == SELF or ANY_AUTHORITY in others or len(others) > _MAX_EXACT_PATTERNS:
        return [_REPLY_ADDRESSES]
    hosted = {
        msgspec.structs.replace(entity, ue_version_major=ANY.ue_version_major, resource_id=0)
        for entity in entities
        if entity.authority_name in local or entity.authority_name not in others
    }
    return [*(any_at(authority).with_resource(0) for authority in others), *sorted(hosted)]
