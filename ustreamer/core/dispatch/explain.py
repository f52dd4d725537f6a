# SPDX-License-Identifier: Apache-2.0
"""The reasons of a routing decision: attributes go in, the verdict and a list of rules go out.

The decision is the router's own. All rules before the one that ended the decision have passed.
"""

import msgspec

from ustreamer.core.routing.forwarding import Target
from ustreamer.core.routing.router import SELF, InvalidMessage, Router, RoutingDecision
from ustreamer.core.routing.subscriptions import PausedSubscription, Subscription
from ustreamer.uprotocol.uattributes import UAttributes, UMessageType
from ustreamer.uprotocol.uuri import UUri

_NS_PER_S = 1_000_000_000


class Step(msgspec.Struct, frozen=True):
    """One rule. `passed` is False for the rule that ended the decision, and for one that gives no target."""

    rule: str
    passed: bool
    text: str


class Explanation(msgspec.Struct, frozen=True):
    """The decision for a message that comes in at `ingress`.

    `verdict` is the one in the ledger, or `delivered` if there are targets; each target may still throttle it, fail or
    let it expire. `refused`: the message is invalid. `deferred`: another streamer of that network forwards it.
    """

    ingress: str
    steps: tuple[Step, ...]
    verdict: str
    targets: tuple[Target, ...] = ()


def explain(router: Router, ingress: str, attributes: UAttributes) -> Explanation:
    """The decision of `router` for a message with these attributes that comes in at `ingress`, with its reasons."""
    try:
        decision = router.decide(ingress, attributes)
    except InvalidMessage as refused:
        return Explanation(ingress, (Step("valid", passed=False, text=refused.message),), "refused")
    if decision.deferred:
        text = f"another streamer at {ingress!r} forwards it"
        return Explanation(ingress, (Step("peers", passed=False, text=text),), "deferred")
    verdict = "delivered" if decision.targets else decision.verdict.name.lower()
    steps = _steps(router, ingress, attributes, decision)
    return Explanation(ingress, steps, verdict, decision.targets)


def _steps(
    router: Router, ingress: str, attributes: UAttributes, decision: RoutingDecision
) -> tuple[Step, ...]:
    reason = "" if decision.reason is None else decision.reason.message
    source, kind = attributes.source, attributes.type.name
    first: tuple[Step, ...]
    valid = Step("valid", passed=True, text=f"a {kind} keeps the rules of its type")
    if decision.denied_as == "spoofed":
        return valid, Step("source", passed=False, text=reason)
    source_step = Step(
        "source", passed=True, text=f"source {source} lives behind {ingress!r}, where it comes in"
    )
    first, peer = (valid, source_step), router.peer_at(ingress, source)
    if decision.denied_as == "identity":
        return *first, Step("identity", passed=False, text=reason)
    if peer.identities is not None:
        first = *first, Step("identity", passed=True, text=f"the sender is verified: {peer}")
    if decision.denied_as == "access":
        return *first, Step("access", passed=False, text=reason)
    rules = router.access_policy(ingress)
    access_text = (
        f"endpoints.{ingress}.access has no rules"
        if rules is None
        else rules.allow_reason(attributes, peer.identities)
    )
    first = *first, Step("access", passed=True, text=access_text)
    if decision.denied_as == "authorisation":
        return *first, Step("authorisation", passed=False, text=reason)
    if attributes.type is UMessageType.PUBLISH:
        return *first, *_subscriber_steps(router, ingress, source)
    return *first, _sink(attributes.sink, decision, reason)


def _sink(sink: UUri | None, decision: RoutingDecision, reason: str) -> Step:
    if not decision.targets:
        return Step("sink", passed=False, text=reason)
    return Step("sink", passed=True, text=f"sink {sink} lives behind {decision.targets[0].endpoint!r}")


def _subscriber_steps(router: Router, ingress: str, topic: UUri) -> tuple[Step, ...]:
    subscriptions = router.directory.subscribers(topic)
    listening = router.broadcast_endpoints(topic) if ingress == SELF else ()
    refusals = router.broadcast_refusals(topic) if ingress == SELF else {}
    if not (subscriptions or listening or refusals):
        return (Step("subscribers", passed=False, text=f"no subscription of {topic}"),)
    return (
        *(
            _subscriber_step(each, router.authority_table.endpoint_of(each.subscriber), ingress)
            for each in subscriptions
        ),
        *(
            Step(
                "listeners",
                passed=True,
                text=f"each listener behind {name!r} gets it without a subscription",
            )
            for name in listening
        ),
        *(
            Step("listeners", passed=False, text=f"a listener behind {name!r} does not get it: {reason}")
            for name, reason in refusals.items()
        ),
    )


def _subscriber_step(subscription: Subscription, endpoint: str | None, ingress: str) -> Step:
    subscribed = (
        f"{subscription.subscriber} has subscribed {subscription.topic}, {rate_text(subscription.period_ns)}"
    )
    if endpoint is None:
        return Step("subscriber", passed=False, text=f"{subscribed}; no endpoint has its authority")
    if endpoint == ingress:
        return Step(
            "subscriber",
            passed=False,
            text=f"{subscribed}; it lives behind {ingress!r} and receives it there",
        )
    waits = (
        "; it has stopped the topic, so messages wait" if isinstance(subscription, PausedSubscription) else ""
    )
    return Step("subscriber", passed=True, text=f"{subscribed}; it lives behind {endpoint!r}{waits}")


def rate_text(period_ns: int) -> str:
    """A period as text."""
    return f"at most {_NS_PER_S / period_ns:g} Hz" if period_ns else "every message"
