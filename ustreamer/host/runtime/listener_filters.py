# SPDX-License-Identifier: Apache-2.0
"""The listeners that a streamer registers at each endpoint, and their filters.

In: the authorities behind each endpoint. Out: registrations at the transports.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final

import msgspec

from ustreamer.core.routing.router import SELF
from ustreamer.transport_port import EndpointTransport
from ustreamer.uprotocol.utransport import Listener
from ustreamer.uprotocol.uuri import ANY, ANY_AUTHORITY, UUri, any_at

_REPLY_ADDRESSES: Final = ANY.with_resource(0)  # sources of requests; sinks of responses and notifications

_MAX_EXACT_PATTERNS: Final = 4
"""The maximum number of authorities elsewhere with a pattern each. With more, one pattern covers all reply addresses."""

FilterPair = tuple[UUri, UUri | None]
"""Source and sink filter, as parameters of `UTransport.register_listener`."""


class EndpointListeners:
    """One listener per endpoint, registered with the filters that follow from the authorities behind all endpoints."""

    def __init__(
        self,
        transports: Mapping[str, EndpointTransport],
        listener_of: Callable[[str], Listener],
        authorities: Mapping[str, Sequence[str]],
        hosted: Sequence[UUri],
    ) -> None:
        """`listener_of` is called per endpoint by `register`. `hosted` are the entities of this streamer."""
        self._transports = transports
        self._listener_of = listener_of
        self._listeners: dict[str, Listener] = {}
        self._authorities = authorities
        self._hosted = hosted

    def register(self) -> None:
        """Register the listeners of all endpoints. Opens nothing. Raises UStatusError if a transport refuses one."""
        for name, transport in self._transports.items():
            self._listeners[name] = self._listener_of(name)
            for source, sink in self._filters(name, self._authorities):
                transport.register_listener(source, sink, self._listeners[name])

    @contextmanager
    def switched(self, authorities: Mapping[str, Sequence[str]]) -> Iterator[None]:
        """Within a `with` block, listen with the new and the old filters; after it with the new ones only."""
        new, old = [], []
        for name in self._transports:
            before, after = self._filters(name, self._authorities), self._filters(name, authorities)
            new += [(name, *filters) for filters in after if filters not in before]
            old += [(name, *filters) for filters in before if filters not in after]
        with ExitStack() as undo:
            for name, source, sink in new:
                listener = self._listeners[name]
                self._transports[name].register_listener(source, sink, listener)
                undo.callback(self._transports[name].unregister_listener, source, sink, listener)
            yield
            undo.pop_all()
        self._authorities = authorities
        for name, source, sink in old:
            self._transports[name].unregister_listener(source, sink, self._listeners[name])

    def _filters(self, endpoint: str, authorities: Mapping[str, Sequence[str]]) -> list[FilterPair]:
        return listener_filters(endpoint, {SELF: (), **authorities}, self._hosted)


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
