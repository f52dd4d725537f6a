# SPDX-License-Identifier: Apache-2.0
"""The procedures `wamp.subscription.*`, by which a client reads subscriptions."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from ustreamer_wamp import errors
from ustreamer_wamp.broker import Broker, BrokerSubscription
from ustreamer_wamp.errors import WampRefusal
from ustreamer_wamp.messages import is_id
from ustreamer_wamp.realm import JoinedSession, iso_timestamp
from ustreamer_wamp.uri import MATCHES

MAX_LISTED: Final = 10_000
"""Ids in one answer at most."""

_Broker = Broker[JoinedSession]
Procedure = Callable[[_Broker, list[Any]], Any]


def _list(broker: _Broker, args: list[Any]) -> Any:
    found: dict[str, list[int]] = {match: [] for match in MATCHES}
    for subscription in list(broker)[:MAX_LISTED]:
        found[subscription.match].append(subscription.id)
    return found


def _lookup(broker: _Broker, args: list[Any]) -> Any:
    """The id of the subscription of a topic and policy, or None."""
    options = args[1] if len(args) > 1 and isinstance(args[1], dict) else {}
    match = options.get("match", "exact")
    if not args or not isinstance(args[0], str) or match not in MATCHES:
        return _wrong("topic, {match}")
    found = broker.find(args[0], match)
    return None if found is None else found.id


def _match(broker: _Broker, args: list[Any]) -> Any:
    if not args or not isinstance(args[0], str):
        return _wrong("topic")
    return [each.id for each in broker.matching(args[0])] or None


def _get(broker: _Broker, args: list[Any]) -> Any:
    found = _found(broker, args)
    if isinstance(found, WampRefusal):
        return found
    return {
        "id": found.id,
        "created": iso_timestamp(found.created_ms),
        "uri": found.topic,
        "match": found.match,
    }


def _list_subscribers(broker: _Broker, args: list[Any]) -> Any:
    found = _found(broker, args)
    return found if isinstance(found, WampRefusal) else [each.id for each in found.subscribers][:MAX_LISTED]


def _count_subscribers(broker: _Broker, args: list[Any]) -> Any:
    found = _found(broker, args)
    return found if isinstance(found, WampRefusal) else len(found.subscribers)


def _found(broker: _Broker, args: list[Any]) -> BrokerSubscription[JoinedSession] | WampRefusal:
    if not args or not is_id(args[0]):
        return _wrong("subscription id")
    found = broker.get(args[0])
    return found or WampRefusal(errors.NO_SUCH_SUBSCRIPTION, f"there is no subscription {args[0]}")


def _wrong(expected: str) -> WampRefusal:
    return WampRefusal(errors.INVALID_ARGUMENT, f"expected ({expected})")


PROCEDURES: Final[Mapping[str, Procedure]] = {
    "wamp.subscription.list": _list,
    "wamp.subscription.lookup": _lookup,
    "wamp.subscription.match": _match,
    "wamp.subscription.get": _get,
    "wamp.subscription.list_subscribers": _list_subscribers,
    "wamp.subscription.count_subscribers": _count_subscribers,
}
