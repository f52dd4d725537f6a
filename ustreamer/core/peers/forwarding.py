# SPDX-License-Identifier: Apache-2.0
"""The forwarding policy of a streamer with peers: `ForwardingPolicy` by the election and by topic advertisements."""

from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet

import msgspec

from ustreamer.core.peers.election import PeerRouters
from ustreamer.core.peers.topic_advertisements import TopicAdvertisements
from ustreamer.core.routing.forwarding import ForwardingRole, ForwardingShare, Target
from ustreamer.core.routing.router import SELF, AuthorityTable
from ustreamer.uprotocol.uattributes import UAttributes, UMessageType
from ustreamer.uprotocol.uuri import UUri


class PeerForwarding:
    """A `ForwardingPolicy` for one configuration; `peers` and `advertisements` outlive it. Safe from any thread."""

    def __init__(
        self,
        peers: PeerRouters,
        advertisements: TopicAdvertisements,
        authority_table: AuthorityTable,
        unicast: Mapping[str, bool],
        broadcast_topics: Collection[UUri] = (),
    ) -> None:
        """`unicast` has an entry per endpoint: whether each of its subscribers is a target of its own.

        `broadcast_topics` are those of this streamer. Its peers have the same ones at their own authorities.
        """
        self._peers = peers
        self._advertisements = advertisements
        self._authority_table = authority_table
        self._unicast = unicast
        self._broadcast_topics = frozenset(broadcast_topics)

    def forwarding_role(self, ingress: str, attributes: UAttributes) -> ForwardingRole:
        if self._unicast.get(ingress):
            return ForwardingRole.FORWARD  # the sender addressed this streamer; no peer received the message
        sink = None if attributes.type is UMessageType.PUBLISH else attributes.sink
        if sink is not None and attributes.type is UMessageType.RESPONSE and self._requester_is_unicast(sink):
            sink = None
        authority = None if sink is None else sink.authority_name
        if (
            sink is not None
            and authority == self._peers.authority
            and self._authority_table.endpoint_of(sink) == SELF
        ):
            authority = None  # no peer hosts a service of this streamer, so only the source can decide
        return self._peers.forwarding_role(ingress, attributes.source.authority_name, authority)

    def _requester_is_unicast(self, sink: UUri) -> bool:
        """Whether only the streamer that forwarded the request can forward its response."""
        home = self._authority_table.endpoint_of(sink)
        return home is not None and bool(self._unicast.get(home))

    def own_messages_return_at(self, ingress: str) -> bool:
        peers = self._peers
        return ingress in peers.shared_network_endpoints() or any(
            each.authority == peers.authority for each in peers.peers_at(ingress)
        )

    def assign(self, topic: UUri, targets: tuple[Target, ...], now_ns: int) -> ForwardingShare:
        share = self._advertisements.assign(topic, targets, now_ns)
        published = {each.endpoint for each in targets if self._is_published_by_peer(topic, each.endpoint)}
        return msgspec.structs.replace(share, deferred=share.deferred | published) if published else share

    def _is_published_by_peer(self, topic: UUri, endpoint: str) -> bool:
        """Whether `topic` is a broadcast topic of a peer on this network, which needs no other streamer there."""
        home, peers = topic.authority_name, self._peers
        if self._unicast.get(endpoint) or home == peers.authority:
            return False
        if msgspec.structs.replace(topic, authority_name=peers.authority) not in self._broadcast_topics:
            return False
        return any(
            each.authority == home and peers.is_trusted(endpoint, each, home)
            for each in peers.peers_at(endpoint)
        )

    def end_grace(self, topic: UUri, now_ns: int) -> None:
        self._advertisements.end_grace(topic, now_ns)

    def withdraw(self, topics: AbstractSet[UUri], now_ns: int) -> int:
        return self._advertisements.withdraw(topics, now_ns)
