# SPDX-License-Identifier: Apache-2.0
"""Hop 5: where does this message go? Asked once per topic and version of the directory; the answer becomes a plan.

* Publish: to the endpoints behind which somebody subscribed the topic.
* Notification, Request, Response: to the endpoint behind which the sink's authority lives.
* Nothing goes back to where it came from, and nothing is believed about a source that does not live there.
* What another streamer on that network carries is left to it (`ustreamer.core.peers.election`).
* What the rules of the endpoint it came in at deny (`ustreamer.core.routing.access`) goes nowhere.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from ustreamer.core.delivery.ledger import Verdict
from ustreamer.core.peers.election import Neighbours, Standing
from ustreamer.core.routing.access import Access
from ustreamer.core.routing.paused_subscriptions import PausedDirectory
from ustreamer.core.routing.subscriptions import MergedDirectory, SubscriptionDirectory, fastest
from ustreamer.uprotocol.uattributes import UAttributes, UMessageType, check_attributes
from ustreamer.uprotocol.ustatus import UCode, UStatus, UStatusError
from ustreamer.uprotocol.uuri import ANY_AUTHORITY, UUri

SELF: Final = "self"
"""The name of the streamer's own endpoint, behind which the services that it hosts live."""


class Target(msgspec.Struct, frozen=True):
    """Where one copy of a message goes: an endpoint and, behind a unicast endpoint, one subscriber of a topic."""

    endpoint: str
    subscriber: UUri | None = None
    period_ns: int = 0


class Decision(msgspec.Struct, frozen=True):
    """The targets of a message or, if there are none, the verdict on it and why.

    `denied_as` is what a denied one is counted as: `spoofed` or `access`. Of one that is `left` to another streamer there is
    no delivery, and to a `silent` one no answer.
    """

    targets: tuple[Target, ...] = ()
    verdict: Verdict = Verdict.NO_SUBSCRIBER
    reason: UStatus | None = None
    denied_as: str = ""
    left: bool = False
    silent: bool = False


class Refused(UStatusError):
    """A message whose attributes break the rules of its type; it is not accepted, so the ledger does not know it."""


class Places:
    """Which endpoint each authority and each hosted service lives behind."""

    def __init__(self, authorities: Mapping[str, str], services: Iterable[UUri] = ()) -> None:
        """`authorities` maps authority (or `*`: everyone not named) to endpoint; `services` are uEntities we host."""
        self._authorities = dict(authorities)
        self._default = self._authorities.pop(ANY_AUTHORITY, None)
        self._services = {(service.authority_name, service.ue_id) for service in services}

    def endpoint_of(self, entity: UUri) -> str | None:
        """The endpoint behind which `entity` lives; None if nobody knows its authority."""
        if (entity.authority_name, entity.ue_id) in self._services:
            return SELF
        return self.endpoint_of_authority(entity.authority_name)

    def endpoint_of_authority(self, authority: str) -> str | None:
        """The endpoint behind which whoever is at `authority` and is not hosted here lives; None if nobody knows it."""
        return self._authorities.get(authority, self._default)


class Router:
    """Decides by the places of authorities and the subscription directory. Reads only; safe from any thread."""

    def __init__(
        self,
        places: Places,
        directory: SubscriptionDirectory,
        unicast: Mapping[str, bool],
        access: Mapping[str, Access] | None = None,
        neighbours: Neighbours | None = None,
    ) -> None:
        """`unicast` names every endpoint and tells whether each of its subscribers is a target of its own.

        `access` has the rules of the endpoints that have some; `neighbours` are the other streamers at each.
        """
        self.places = places
        self.directory = directory
        # Its version is read for every message: through a property it would cost 0.08 us of the 1.0 that one takes.
        versioned = directory.behind if isinstance(directory, PausedDirectory) else directory
        self.versioned = versioned.versioned if isinstance(versioned, MergedDirectory) else versioned
        self._unicast = unicast
        self._access = dict(access or {})
        self._neighbours = neighbours or Neighbours("")

    def decide(self, ingress: str, attributes: UAttributes) -> Decision:
        """Where a message with these attributes that came in at `ingress` goes. Raises Refused for invalid ones."""
        standing = self._standing(ingress, attributes)
        if standing is Standing.LEFT:
            return LEFT
        try:
            check_attributes(attributes)
        except UStatusError as error:
            raise Refused(error.code, error.message) from error
        home = self.places.endpoint_of(attributes.source)
        if home == SELF != ingress and ingress in self._neighbours.same_network():
            return LEFT  # our own words, heard back through another endpoint
        if home != ingress:
            text = f"source {attributes.source} does not live behind endpoint {ingress!r} but {home!r}"
            reason = UStatus(UCode.PERMISSION_DENIED, text)
            return Decision((), Verdict.DENIED, reason, "spoofed", silent=standing is Standing.SILENT)
        access = self._access.get(ingress)
        refusal = None if access is None else access.refusal(attributes)
        if refusal is not None:
            return Decision((), Verdict.DENIED, refusal, "access")
        if attributes.type is UMessageType.PUBLISH:
            return Decision(self.subscribed(ingress, attributes.source))
        assert attributes.sink is not None  # check_attributes has seen to it
        return self._by_sink(ingress, attributes.sink)

    def access_at(self, ingress: str) -> Access | None:
        """The rules of an endpoint; None if it has none."""
        return self._access.get(ingress)

    def _standing(self, ingress: str, attributes: UAttributes) -> Standing:
        if self._unicast.get(ingress):
            return Standing.OURS  # whoever sent it there meant us, and no other streamer has heard it
        sink = None if attributes.type is UMessageType.PUBLISH else attributes.sink
        if sink is not None and attributes.type is UMessageType.RESPONSE and self._answers_us(sink):
            sink = None
        to = None if sink is None else sink.authority_name
        if sink is not None and to == self._neighbours.authority and self.places.endpoint_of(sink) == SELF:
            to = None  # a service of ours: nobody else hosts it, so only who has brought it can matter
        return self._neighbours.standing(ingress, attributes.source.authority_name, to)

    def _answers_us(self, sink: UUri) -> bool:
        """Whether only who has forwarded a request can forward its answer, because of who asked."""
        home = self.places.endpoint_of(sink)
        return home is not None and bool(self._unicast.get(home))

    def _by_sink(self, ingress: str, sink: UUri) -> Decision:
        endpoint = self.places.endpoint_of(sink)
        if endpoint is None:
            return _undeliverable(f"no endpoint for authority {sink.authority_name!r} of sink {sink}")
        if endpoint == ingress:
            return Decision(
                reason=UStatus(UCode.OK, f"sink {sink} lives behind {ingress!r}, where it came from")
            )
        return Decision((Target(endpoint),))

    def subscribed(self, ingress: str, topic: UUri) -> tuple[Target, ...]:
        """The targets of a publication on `topic`: its subscribers, grouped by endpoint."""
        # One put reaches everyone in a multicast domain, so it goes at the fastest rate that anyone there asked for.
        periods: dict[tuple[str, UUri | None], list[int]] = {}
        for wish in self.directory.subscribers(topic):
            endpoint = self.places.endpoint_of(wish.subscriber)
            if endpoint is None or endpoint == ingress:
                continue
            subscriber = wish.subscriber if self._unicast[endpoint] else None
            periods.setdefault((endpoint, subscriber), []).append(wish.period_ns)
        targets = [
            Target(endpoint, subscriber, fastest(wished))
            for (endpoint, subscriber), wished in periods.items()
        ]
        return tuple(sorted(targets, key=lambda target: target.subscriber is not None))  # domains first


LEFT: Final = Decision(left=True)
"""Another streamer forwards it."""


def _undeliverable(text: str) -> Decision:
    return Decision((), Verdict.DEAD_LETTERED, UStatus(UCode.UNAVAILABLE, text))
