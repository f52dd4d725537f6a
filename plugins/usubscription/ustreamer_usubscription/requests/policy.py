# SPDX-License-Identifier: Apache-2.0
"""The configured rules for topics and callers: permission to subscribe, to register, and delivery settings."""

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Final

import msgspec

from ustreamer.core.base.links import LinkStates
from ustreamer.core.routing.identity import Peer
from ustreamer.uprotocol.pb.google_any import Any
from ustreamer.uprotocol.pb.usubscription_v3 import EventDeliveryConfig
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuri import (
    ANY,
    ANY_AUTHORITY,
    ANY_INSTANCE,
    ANY_RESOURCE,
    ANY_TYPE,
    ANY_VERSION,
    UUri,
)
from ustreamer_usubscription.config import (
    DeliveryConfig,
    LifecycleMode,
    UsubscriptionConfig,
    is_address,
)

_STRING: Final = "type.googleapis.com/google.protobuf.StringValue"


class PermissionLevel(msgspec.Struct, frozen=True):
    """The permission level of the topics that match a pattern."""

    topics: UUri
    level: int


class CallerRule(msgspec.Struct, frozen=True):
    """The callers of an address pattern, or with a verified identity."""

    pattern: UUri | None
    identity: str = ""

    def matches(self, caller: UUri, peer: Peer) -> bool:
        if self.pattern is None:
            return peer.is_one_of((self.identity,))
        return self.pattern.matches(caller)


class DeliveryRoute(msgspec.Struct, frozen=True):
    """The delivery settings of the topics that match a pattern."""

    topics: UUri
    config: EventDeliveryConfig


class SubscriptionPolicy:
    """The configured rules, compiled. In every list the first pattern that matches a topic applies."""

    def __init__(
        self,
        config: UsubscriptionConfig,
        authority: str,
        serves: Iterable[str] = (),
        peers: Collection[str] = (),
        links: LinkStates | None = None,
    ) -> None:
        """`authority` replaces an empty one in a pattern; `peers` are the other configured authorities, a live view."""

        def pattern(text: str) -> UUri:
            return UUri.parse(text).with_authority(authority)

        def caller_rule(text: str) -> CallerRule:
            return CallerRule(pattern(text)) if is_address(text) else CallerRule(None, text)

        self.lifecycle: LifecycleMode = config.topic_lifecycle
        self._may_reset = tuple(map(caller_rule, config.may_reset))
        self.has_caller_levels = bool(config.callers)
        self._caller_levels = tuple((caller_rule(each.caller), each.level) for each in config.callers)
        self._served_authorities = frozenset({authority, *serves})
        self._peers = peers
        self._links = links or LinkStates()
        self._upstream_of = config.upstream_of
        self.counts: Counter[str] = Counter()
        self._strict = config.register_policy == "strict"
        self._dispatchers = tuple(map(pattern, config.dispatchers))
        self._highest_level = config.permission_levels
        self._levels = tuple(PermissionLevel(pattern(each.topic), each.level) for each in config.permissions)
        self._delivery_routes = tuple(
            DeliveryRoute(pattern(each.topic), _delivery_config(each)) for each in config.delivery
        )

    # --- permission -----------------------------------------------------------------------------------------

    def check_permission_level(self, topic: UUri, level: int, caller: UUri, peer: Peer) -> None:
        """PERMISSION_DENIED if the caller may not subscribe `topic`.

        Its level is the configured one. `level`, its own claim or 0, can only raise it, which permits less.
        """
        granted = self._highest_level
        for rule, its_level in self._caller_levels:
            if rule.matches(caller, peer):
                granted = its_level
                break
        found, required = max(granted, level), self._level_of(topic)
        if found > required:
            raise UStatusError(
                UCode.PERMISSION_DENIED,
                f"topic {topic}: permission_level {found} of the caller {caller}, expected at most {required}",
            )

    def may_reset(self, caller: UUri, peer: Peer) -> bool:
        """Whether the configuration names the caller for Reset."""
        return any(rule.matches(caller, peer) for rule in self._may_reset)

    def _level_of(self, topic: UUri) -> int:
        """The strictest level of all topics that `topic`, which may have an instance wildcard, matches."""
        strictest = self._highest_level
        for rule in self._levels:
            if rule.topics.matches(topic):
                return min(strictest, rule.level)
            if _overlap(rule.topics, topic):
                strictest = min(strictest, rule.level)
        return strictest

    def is_known_authority(self, authority: str) -> bool:
        """Whether the endpoint of an authority is configured, so that no other device can claim it."""
        return authority in self._served_authorities or authority in self._peers

    def pending_reason(self, topic: UUri) -> str:
        """Why a remote topic may stay SUBSCRIBE_PENDING, for people; empty if its uSubscription is being called."""
        authority = self._upstream_of(topic.authority_name)
        for each in (topic.authority_name, authority):
            if not self._links.has_endpoint(each):
                self.counts["pending_without_endpoint"] += 1
                return f"{each!r} lives behind no endpoint of this streamer; add it to the authorities of an endpoint"
        if not self._links.state_of(authority).up:
            self.counts["pending_link_down"] += 1
            return f"the link to {authority!r} is down; its core.usubscription is called when the link is up"
        return ""

    # --- registration ---------------------------------------------------------------------------------------

    def check_observer(self, caller: UUri, topic: UUri) -> None:
        """PERMISSION_DENIED if `caller` may not observe `topic`; ANY is every topic (X-8).

        [impl->LIF-10] [impl->LIF-11] [impl->LIF-12] Under `strict`, a producer may observe its own topics, and a listed
        dispatcher any topic; version 3 has no such rule, hence `open`.
        """
        if not self._strict or any(each.matches(caller) for each in self._dispatchers):
            return
        if topic == ANY or not is_producer(caller, topic):
            raise UStatusError(
                UCode.PERMISSION_DENIED,
                f"caller {caller}: it neither produces {'every topic' if topic == ANY else topic} nor is it one of the "
                "configured dispatchers, and register_policy is strict",
            )

    # --- delivery -------------------------------------------------------------------------------------------

    def delivery_config_of(self, topic: UUri) -> EventDeliveryConfig | None:
        """The information that a subscriber needs to consume `topic`, if it differs from the topic's address.

        [impl->LIF-14]
        """
        return next((route.config for route in self._delivery_routes if route.topics.matches(topic)), None)


def is_producer(caller: UUri, topic: UUri) -> bool:
    """True if `caller` is the entity that owns the topic."""
    return caller.with_resource(0) == topic.with_resource(0)


def _overlap(first: UUri, second: UUri) -> bool:
    """Whether an address may match both patterns."""
    return all(
        wildcard in (one, other) or one == other
        for wildcard, one, other in (
            (ANY_AUTHORITY, first.authority_name, second.authority_name),
            (ANY_TYPE, first.ue_type, second.ue_type),
            (ANY_INSTANCE, first.ue_instance, second.ue_instance),
            (ANY_VERSION, first.ue_version_major, second.ue_version_major),
            (ANY_RESOURCE, first.resource_id, second.resource_id),
        )
    )


def _delivery_config(section: DeliveryConfig) -> EventDeliveryConfig:
    from google.protobuf.wrappers_pb2 import StringValue  # most configurations have no delivery settings

    config = EventDeliveryConfig(id=section.id, type=section.type)
    for name, text in section.attributes.items():
        value = StringValue(value=text).SerializeToString()
        config.attributes[name].CopyFrom(Any(type_url=_STRING, value=value))
    return config
