# SPDX-License-Identifier: Apache-2.0
"""Why a message would go where: what the router decides, and rule by rule what made it decide so.

The decision is the router's own. What is said about the rules before the one that ended it follows from that: it got so far.
"""

import msgspec

from ustreamer.core.routing.router import Decision, Refused, Router, Target
from ustreamer.core.routing.subscriptions import Subscription
from ustreamer.uprotocol.uattributes import UAttributes, UMessageType
from ustreamer.uprotocol.uuri import UUri

_NS_PER_S = 1_000_000_000


class Step(msgspec.Struct, frozen=True):
    """A rule that was asked; `passed` is False for the one that ended it, and for a subscriber that gets nothing."""

    rule: str
    passed: bool
    text: str


class Explanation(msgspec.Struct, frozen=True):
    """What becomes of a message that comes in at `ingress`.

    `verdict` is the one in the ledger, `delivered` if there are targets: each of them may still throttle, fail or expire
    it. `refused` is what is no valid message, and `left` what another streamer of that network forwards.
    """

    ingress: str
    steps: tuple[Step, ...]
    verdict: str
    targets: tuple[Target, ...] = ()


def explain(router: Router, ingress: str, attributes: UAttributes) -> Explanation:
    """What `router` decides about a message with these attributes that comes in at `ingress`, and why."""
    try:
        decision = router.decide(ingress, attributes)
    except Refused as refused:
        return Explanation(ingress, (Step("valid", passed=False, text=refused.message),), "refused")
    if decision.left:
        text = f"another streamer at {ingress!r} forwards it"
        return Explanation(ingress, (Step("neighbours", passed=False, text=text),), "left")
    verdict = "delivered" if decision.targets else decision.verdict.name.lower()
    steps = _steps(router, ingress, attributes, decision)
    return Explanation(ingress, steps, verdict, decision.targets)


def _steps(router: Router, ingress: str, attributes: UAttributes, decision: Decision) -> tuple[Step, ...]:
    why = "" if decision.reason is None else decision.reason.message
    source, kind = attributes.source, attributes.type.name
    valid = Step("valid", passed=True, text=f"a {kind} keeps the rules of its type")
    if decision.denied_as == "spoofed":
        return valid, Step("place", passed=False, text=why)
    place = Step("place", passed=True, text=f"source {source} lives behind {ingress!r}, where it comes in")
    if decision.denied_as == "access":
        return valid, place, Step("access", passed=False, text=why)
    rules = router.access_at(ingress)
    let_in = f"endpoints.{ingress}.access has no rules" if rules is None else rules.reason(attributes)
    access = Step("access", passed=True, text=let_in)
    if attributes.type is UMessageType.PUBLISH:
        return valid, place, access, *_wishes(router, ingress, source)
    return valid, place, access, _sink(attributes.sink, decision, why)


def _sink(sink: UUri | None, decision: Decision, why: str) -> Step:
    if not decision.targets:
        return Step("sink", passed=False, text=why)
    return Step("sink", passed=True, text=f"sink {sink} lives behind {decision.targets[0].endpoint!r}")


def _wishes(router: Router, ingress: str, topic: UUri) -> tuple[Step, ...]:
    wishes = router.directory.subscribers(topic)
    if not wishes:
        return (Step("subscribers", passed=False, text=f"nobody has subscribed {topic}"),)
    return tuple(_wish(wish, router.places.endpoint_of(wish.subscriber), ingress) for wish in wishes)


def _wish(wish: Subscription, endpoint: str | None, ingress: str) -> Step:
    who = f"{wish.subscriber} has subscribed {wish.topic}, {rate(wish.period_ns)}"
    if endpoint is None:
        return Step("subscriber", passed=False, text=f"{who}; nobody lives at its authority")
    if endpoint == ingress:
        return Step("subscriber", passed=False, text=f"{who}; it lives behind {ingress!r} and hears it there")
    return Step("subscriber", passed=True, text=f"{who}; it lives behind {endpoint!r}")


def rate(period_ns: int) -> str:
    """A period in words."""
    return f"at most {_NS_PER_S / period_ns:g} Hz" if period_ns else "every message"
