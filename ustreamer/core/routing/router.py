# SPDX-License-Identifier: Apache-2.0
"""Stage 5: attributes of a message go in; its targets go out, or a verdict and its reason.

The ingress calls `Router.decide` once per header, and for a publication again with each version of the directory. It
caches the decision as a route.

* Publish: the targets are the endpoints with a subscriber of the topic. A broadcast topic, one of the streamer's own,
  also has each multicast domain as a target whose access rules allow its publication.
* Notification, Request, Response: the target is the endpoint behind which the authority of the sink lives.
* No message returns to the endpoint it came in at. A message whose source lives behind another endpoint is denied,
  except a reply whose sink lives at the endpoint it came in at: it has no target.
* A message that another streamer forwards is deferred (`ustreamer.core.routing.forwarding`).
* A message that no identity of its endpoint may send has no target (`ustreamer.core.routing.identity`), nor has one
  that the access rules of the endpoint deny (`ustreamer.core.routing.access`), or a plugin.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final

import msgspec

from ustreamer.core.delivery.ledger import Verdict
from ustreamer.core.routing.access import AccessPolicy
from ustreamer.core.routing.forwarding import FORWARD_ALL, ForwardingPolicy, ForwardingRole, Target
from ustreamer.core.routing.identity import Authorise, IdentityTable, Peer
from ustreamer.core.routing.paused_subscriptions import PausedDirectory
from ustreamer.core.routing.subscriptions import (
    UNLIMITED,
    MergedDirectory,
    PausedSubscription,
    SubscriptionDirectory,
    fastest_period,
)
from ustreamer.uprotocol.uattributes import UAttributes, UMessageType, check_attributes
from ustreamer.uprotocol.ustatus import UCode, UStatus, UStatusError
from ustreamer.uprotocol.uuri import ANY_AUTHORITY, UUri

SELF: Final = "self"
"""The name of the streamer's own endpoint. The hosted services live behind it."""

_REPLY_TYPES: Final = (UMessageType.RESPONSE, UMessageType.NOTIFICATION)
"""Their sink is a reply address (resource 0)."""


class RoutingDecision(msgspec.Struct, frozen=True):
    """The targets of a message or, if there are none, the verdict and its reason.

    `denied_as` is the counter of a denied message: `spoofed`, `identity`, `access` or `authorisation`. A message that is
    `deferred` to another streamer is no delivery. A `silent` decision sends no error response.
    """

    targets: tuple[Target, ...] = ()
    verdict: Verdict = Verdict.NO_SUBSCRIBER
    reason: UStatus | None = None
    denied_as: str = ""
    deferred: bool = False
    silent: bool = False


class InvalidMessage(UStatusError):
    """A message whose attributes break the rules of its type. It is not accepted, so the ledger does not count it."""


class AuthorityTable:
    """The endpoint of each authority and of each hosted service."""

    def __init__(self, authorities: Mapping[str, str], services: Iterable[UUri] = ()) -> None:
        """`authorities` maps authority (or `*`: all others) to endpoint; `services` are the hosted uEntities."""
        self._authorities = dict(authorities)
        self._default = self._authorities.pop(ANY_AUTHORITY, None)
        self._services = {(service.authority_name, service.ue_id) for service in services}

    def endpoint_of(self, entity: UUri) -> str | None:
        """The endpoint behind which `entity` lives; None if its authority is unknown."""
        if (entity.authority_name, entity.ue_id) in self._services:
            return SELF
        return self.endpoint_of_authority(entity.authority_name)

    def endpoint_of_authority(self, authority: str) -> str | None:
        """The endpoint of the entities at `authority`, except hosted services; None if the authority is unknown."""
        return self._authorities.get(authority, self._default)


class Router:
    """Decides by the authority table and the subscription directory. Reads only; safe from any thread."""

    def __init__(
        self,
        authority_table: AuthorityTable,
        directory: SubscriptionDirectory,
        unicast: Mapping[str, bool],
        access: Mapping[str, AccessPolicy] | None = None,
        forwarding: ForwardingPolicy = FORWARD_ALL,
        identities: Mapping[str, IdentityTable] | None = None,
        authorise: Authorise | None = None,
        broadcast_topics: Collection[UUri] = (),
    ) -> None:
        """`unicast` has an entry per endpoint: whether each of its subscribers is a target of its own.

        `access` has the rules of the endpoints with rules. `forwarding` decides which messages other streamers forward.
        `identities` has the endpoints that authenticate. `authorise` is the decision of plugins. `broadcast_topics` are
        those of hosted services that need no subscription.
        """
        self.authority_table = authority_table
        self.directory = directory
        # The ingress reads the version for every message. A property would cost 0.08 us of the 1.0 us per message.
        inner = directory.inner if isinstance(directory, PausedDirectory) else directory
        self.version_source = inner.version_source if isinstance(inner, MergedDirectory) else inner
        self._unicast = unicast
        self._access = dict(access or {})
        self.forwarding = forwarding
        self._identities = dict(identities or {})
        self._authorise = authorise
        self._has_guards = bool(access or identities or authorise)
        self._broadcast_endpoints = dict[UUri, tuple[str, ...]]()
        self._broadcast_refusals = dict[UUri, dict[str, str]]()
        for topic in broadcast_topics:
            reasons = self._broadcast_reasons(topic)
            self._broadcast_refusals[topic] = {name: reason for name, reason in reasons.items() if reason}
            self._broadcast_endpoints[topic] = tuple(name for name, reason in reasons.items() if not reason)

    def decide(self, ingress: str, attributes: UAttributes) -> RoutingDecision:
        """The decision for a message with these attributes that came in at `ingress`. Raises InvalidMessage."""
        role = self.forwarding.forwarding_role(ingress, attributes)
        if role is ForwardingRole.DEFER:
            return DEFERRED
        try:
            check_attributes(attributes)
        except UStatusError as error:
            raise InvalidMessage(error.code, error.message) from error
        sink = attributes.sink if attributes.type in _REPLY_TYPES else None
        if sink is not None and self.authority_table.endpoint_of(sink) == ingress:
            # Before the check of the source: a peer may have forwarded the message from another network.
            return _stays_at(ingress, sink)
        home = self.authority_table.endpoint_of(attributes.source)
        if home == SELF != ingress and self.forwarding.own_messages_return_at(ingress):
            return DEFERRED  # of this streamer, or of one with the same authority
        if home is None and attributes.type is UMessageType.REQUEST:
            called = attributes.sink
            if called is not None and self.authority_table.endpoint_of(called) == ingress:
                return _stays_at(ingress, called)  # a denial would answer in place of the one that is called
        if home != ingress:
            text = f"source {attributes.source} does not live behind endpoint {ingress!r} but {home!r}"
            reason = UStatus(UCode.PERMISSION_DENIED, text)
            return RoutingDecision(
                (), Verdict.DENIED, reason, "spoofed", silent=role is ForwardingRole.FORWARD_SILENTLY
            )
        denied = self._denial(ingress, attributes) if self._has_guards else None
        if denied is not None:
            return denied
        if attributes.type is UMessageType.PUBLISH:
            return RoutingDecision(self.subscribed_targets(ingress, attributes.source))
        assert attributes.sink is not None  # check_attributes has checked it
        return self._route_by_sink(ingress, attributes.sink)

    def _denial(self, ingress: str, attributes: UAttributes) -> RoutingDecision | None:
        """The decision to deny a message for its sender; None if it is accepted."""
        table = self._identities.get(ingress)
        identities = None if table is None else table(attributes.source)
        if identities is not None and not identities:
            text = f"no identity of endpoint {ingress!r} may send from {attributes.source}"
            return _denied(UStatus(UCode.PERMISSION_DENIED, text), "identity")
        access = self._access.get(ingress)
        reason = None if access is None else access.deny_reason(attributes, identities)
        if reason is not None:
            return _denied(reason, "access")
        # A Response belongs to a request that was accepted.
        if self._authorise is None or ingress == SELF or attributes.type is UMessageType.RESPONSE:
            return None
        reason = self._authorise(Peer(ingress, identities), attributes)
        return None if reason is None else _denied(reason, "authorisation")

    def peer_at(self, endpoint: str, source: UUri) -> Peer:
        """The sender of messages from `source` that come in at `endpoint`."""
        table = self._identities.get(endpoint)
        return Peer(endpoint, None if table is None else table(source), hosted=endpoint == SELF)

    def peer_of(self, source: UUri) -> Peer:
        """The sender of accepted messages from `source`: they come in at the endpoint of its authority."""
        return self.peer_at(self.authority_table.endpoint_of(source) or "", source)

    def access_policy(self, ingress: str) -> AccessPolicy | None:
        """The access rules of an endpoint; None if it has no rules."""
        return self._access.get(ingress)

    def _route_by_sink(self, ingress: str, sink: UUri) -> RoutingDecision:
        endpoint = self.authority_table.endpoint_of(sink)
        if endpoint is None:
            return _undeliverable(f"no endpoint for authority {sink.authority_name!r} of sink {sink}")
        if endpoint == ingress:
            return _stays_at(ingress, sink)
        return RoutingDecision((Target(endpoint),))

    def subscribed_targets(self, ingress: str, topic: UUri) -> tuple[Target, ...]:
        """The targets of a publication on `topic`: its subscribers, grouped by endpoint."""
        # One message reaches all subscribers of a multicast domain, so it goes at the fastest rate subscribed there.
        periods: dict[tuple[str, UUri | None], int] = {}
        paused: dict[tuple[str, UUri | None], int] = {}
        for subscription in self.directory.subscribers(topic):
            endpoint = self.authority_table.endpoint_of(subscription.subscriber)
            if endpoint is None or endpoint == ingress:
                continue
            subscriber = subscription.subscriber if self._unicast[endpoint] else None
            known = paused if isinstance(subscription, PausedSubscription) else periods
            target, period_ns = (endpoint, subscriber), subscription.period_ns
            known[target] = fastest_period((period_ns, known.get(target, period_ns)))
        broadcast = list[Target]()
        for endpoint in self.broadcast_endpoints(topic) if ingress == SELF else ():
            target = endpoint, None
            if target in periods or target in paused:
                # One message reaches subscribers and listeners, and the listeners want each.
                periods[target] = UNLIMITED
            else:
                broadcast.append(Target(endpoint, broadcast=True))
        targets = [Target(*target, period_ns) for target, period_ns in periods.items()] + broadcast
        if paused:
            targets += [
                Target(*target, period_ns, paused=True)
                for target, period_ns in paused.items()
                if target not in periods
            ]
        if len(targets) > 1:  # multicast domains first
            targets.sort(key=lambda target: target.subscriber is not None)
        return tuple(targets)

    def broadcast_endpoints(self, topic: UUri) -> Collection[str]:
        """The multicast domains that a topic of the streamer's own is published to without a subscription."""
        return self._broadcast_endpoints.get(topic, ())

    def broadcast_refusals(self, topic: UUri) -> Mapping[str, str]:
        """The multicast domains where access rules keep out a broadcast topic, with the rule."""
        return self._broadcast_refusals.get(topic, {})

    def is_broadcast(self, endpoint: str, attributes: UAttributes) -> bool:
        """Whether a message went to this endpoint for listeners only, without a subscriber there."""
        topic = attributes.source
        return (
            attributes.type is UMessageType.PUBLISH
            and endpoint in self.broadcast_endpoints(topic)
            and Target(endpoint, broadcast=True) in self.subscribed_targets(SELF, topic)
        )

    def _broadcast_reasons(self, topic: UUri) -> dict[str, str]:
        """All multicast domains; the reason is empty where the topic goes out."""
        return {
            name: self._access[name].broadcast_deny_reason(topic) if name in self._access else ""
            for name, unicast in self._unicast.items()
            if not unicast and name != SELF
        }


DEFERRED: Final = RoutingDecision(deferred=True)
"""Another streamer forwards the message."""


def _stays_at(ingress: str, sink: UUri) -> RoutingDecision:
    return RoutingDecision(
        reason=UStatus(UCode.OK, f"sink {sink} lives behind {ingress!r}, where it came from")
    )


def _denied(reason: UStatus, denied_as: str) -> RoutingDecision:
    return RoutingDecision((), Verdict.DENIED, reason, denied_as)


def _undeliverable(text: str) -> RoutingDecision:
    return RoutingDecision((), Verdict.DEAD_LETTERED, UStatus(UCode.UNAVAILABLE, text))
