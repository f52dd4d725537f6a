# SPDX-License-Identifier: Apache-2.0
"""The cached route: the decision and the deliveries for all messages with equal attributes, and the key to find it."""

from collections.abc import Iterable
from typing import Final

import msgspec

from ustreamer.core.base.fair_eviction import FairEviction
from ustreamer.core.delivery.delivery import Delivery
from ustreamer.core.routing.router import RoutingDecision
from ustreamer.uprotocol.batch import MessageBatch
from ustreamer.uprotocol.bounded_cache import BoundedCache
from ustreamer.uprotocol.uattributes import UAttributes, UMessageType, UPriority
from ustreamer.uprotocol.uuri import UUri

_MIN_RESPONSE_PRIORITY: Final = int(UPriority.CS4)

CacheKey = UAttributes | tuple[UUri, UUri]
"""The key of a route: attributes, or the source and the sink of Responses."""


def cache_key(attributes: UAttributes) -> CacheKey:
    """The key of the route for `attributes`: source and sink of a valid Response, else the attributes themselves.

    Each Response has its own reqid, and the router reads only whether priority and reqid are valid. So valid Responses
    from one source to one sink share a route.
    """
    reqid, sink = attributes.reqid, attributes.sink
    if (
        reqid is None
        or sink is None
        or attributes.type is not UMessageType.RESPONSE
        or attributes.priority < _MIN_RESPONSE_PRIORITY
        or reqid.msb & 0xF000 != 0x7000
        or reqid.lsb >> 62 != 0b10  # UUID.is_valid
    ):
        return attributes
    return attributes.source, sink


def batch_cache_key(batch: MessageBatch) -> CacheKey:
    """The `cache_key` that all messages of a batch share."""
    attributes = batch.attributes
    if batch.reqids is None:
        return attributes
    return cache_key(msgspec.structs.replace(attributes, reqid=batch.reqids[0]))


class CachedRoute(msgspec.Struct, frozen=True, gc=False):
    """The handling of all messages with equal attributes, as long as the directory has this version."""

    version: int | None  # None: unknown, so never valid again
    deliveries: tuple[Delivery, ...]
    decision: RoutingDecision
    first_ms: int = 0
    """When the first of these messages came in, in ms since the epoch: the first one in the cache."""


class RouteCache(BoundedCache[CacheKey, CachedRoute]):
    """Cached routes by key. Routes can be dropped by the source of their messages. Not locked.

    At the limit an authority that has half of the routes gives up its oldest one. So it displaces no route of others.

    The sources are indexed from the first `index_sources` on: gateways with fewer topics than the limit need no index.
    """

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self._authorities: FairEviction[CacheKey] = FairEviction(limit)
        self._by_source: dict[UUri, dict[UAttributes, None]] | None = None

    @property
    def is_full(self) -> bool:
        """Whether routes of earlier messages may be missing."""
        return len(self) >= self.limit

    def add(self, key: CacheKey, value: CachedRoute) -> None:
        if key not in self:
            authority = _authority_of(key)
            if len(self) >= self.limit:
                oldest = self._authorities.victim(authority)
                self._remove(next(iter(self)) if oldest is None else oldest)
            self._authorities.add(authority, key)
        self[key] = value
        self._add_to_index(key)

    def _remove(self, key: CacheKey) -> None:
        del self[key]
        self._authorities.remove(_authority_of(key), key)
        self._remove_from_index(key)

    def clear(self) -> None:
        super().clear()
        self._authorities.clear()
        self._by_source = None

    def index_sources(self) -> None:
        """Make `drop_sources` cost as much as the routes that it drops, instead of a pass over all routes."""
        if self._by_source is None:
            self._by_source = {}
            for key in self:
                self._add_to_index(key)

    def drop_sources(self, sources: Iterable[UUri]) -> None:
        """Drop the routes of messages from `sources`, but not those of Responses."""
        if self._by_source is None:
            sources = frozenset(sources)
            keys = [key for key in self if isinstance(key, UAttributes) and key.source in sources]
        else:
            keys = [key for source in sources for key in self._by_source.pop(source, ())]
        for key in keys:
            del self[key]
            self._authorities.remove(_authority_of(key), key)

    def _add_to_index(self, key: CacheKey) -> None:
        if self._by_source is not None and isinstance(key, UAttributes):
            self._by_source.setdefault(key.source, {})[key] = None

    def _remove_from_index(self, key: CacheKey) -> None:
        if self._by_source is None or not isinstance(key, UAttributes):
            return
        keys = self._by_source[key.source]
        del keys[key]
        if not keys:
            del self._by_source[key.source]


def _authority_of(key: CacheKey) -> str:
    source = key.source if isinstance(key, UAttributes) else key[0]
    return source.authority_name


class ObservedRoute(msgspec.Struct, frozen=True):
    """The decision for messages that have come in at `ingress`, the first one at `first_ms`.

    `is_current`: one came in since `Ingress.mark_routes_unseen`.
    """

    ingress: str
    source: UUri
    sink: UUri | None
    decision: RoutingDecision
    ttl: int | None = None
    first_ms: int = 0
    is_current: bool = False
