# SPDX-License-Identifier: Apache-2.0
"""Why a subscriber receives nothing: checks of the subscriber, then the findings of each of its topics."""

from collections.abc import Iterator
from typing import Final

from ustreamer.core.base.recent_failures import CURRENT_MS
from ustreamer.core.routing.usubscription_codec import Status
from ustreamer.host.diagnosis.evidence import Evidence
from ustreamer.host.diagnosis.findings import (
    HEALTHY,
    Check,
    DiagnosisFinding,
    differing_part,
    full_queue,
    is_named_subscriber,
    link_down,
    listed,
    messages_wait,
    refused_stores,
    run_checks,
    spoofed_denials,
    unknown_authority,
    unknown_subscriptions,
    wrong_endpoint,
    wrong_endpoint_finding,
)
from ustreamer.host.diagnosis.topics import topic_findings


def subscriber_findings(evidence: Evidence) -> list[DiagnosisFinding]:
    """All findings about a subscriber, the cause first; one `healthy` finding if nothing is wrong."""
    return run_checks(SUBSCRIBER_CHECKS, evidence) or [_healthy(evidence)]


def _wrong_endpoint(evidence: Evidence) -> Iterator[DiagnosisFinding]:
    """Requests of the subscriber come in at another endpoint; without a subscription, also those of the last minute."""
    if evidence.subscriptions:
        yield from wrong_endpoint(evidence)
        return
    for denial in spoofed_denials(evidence)[:1]:
        if denial.is_current(evidence.now_ms):
            yield wrong_endpoint_finding(evidence, denial)


def _link(evidence: Evidence) -> Iterator[DiagnosisFinding]:
    what = f"{evidence.subject} receives nothing"
    yield from link_down(evidence, evidence.home_endpoint, what, "link_down")


def _no_subscription(evidence: Evidence) -> Iterator[DiagnosisFinding]:
    if evidence.subscriptions or evidence.home is None:
        return
    if evidence.outage is not None:
        yield from unknown_subscriptions(evidence)
        return
    subscriber = evidence.subject
    ended = [each for each in evidence.changes if each.status == Status.UNSUBSCRIBED.name]
    if ended:
        latest = ended[-1]
        expired = latest.reason.startswith("expire")
        how = (
            "has expired"
            if expired
            else f"was ended: {latest.reason}"
            if latest.reason
            else "was unsubscribed"
        )
        yield DiagnosisFinding(
            "subscription_expired" if expired else "subscription_ended" if latest.reason else "unsubscribed",
            f"{subscriber} has no subscription any more: the last one, of {latest.topic}, {how}.",
            latest.time_ms,
            "Have it subscribe again.",
        )
        return
    yield from refused_stores(evidence)
    for each in evidence.similar:
        part = differing_part(subscriber, each.subscriber)
        yield DiagnosisFinding(
            "similar_subscriber",
            f"{subscriber} has no subscription, but {each.subscriber}, which differs in the {part}, has subscribed "
            f"{each.topic}.",
            None,
            f"Correct the {part} in the request of the subscriber, or in this command.",
        )
        return
    yield DiagnosisFinding(
        "no_subscription",
        f"{subscriber} has no subscription.",
        evidence.since_ms if evidence.running else None,
        "Have it call Subscribe.",
    )


def _own_queue(evidence: Evidence) -> Iterator[DiagnosisFinding]:
    """Messages wait for this subscriber, or its queue is full."""
    home = evidence.home_endpoint
    subscriber = evidence.subject
    full = [
        each
        for each in evidence.letters
        if is_named_subscriber(subscriber, each.reason) and evidence.now_ms - each.last_ms <= CURRENT_MS
    ]
    if full:
        count = sum(each.count for each in full)
        reason, until_ms = full_queue(evidence, full[-1])
        slow = "is too slow" if until_ms is None else "was too slow"
        yield DiagnosisFinding(
            "subscriber_queue_full",
            f"{subscriber} {slow}: {count} messages became dead letters, because the {reason}.",
            min(each.first_ms for each in full),
            "Have it subscribe fewer messages per second, or raise subscriber_messages of its endpoint.",
            until_ms=until_ms,
        )
    if home is None or home.after is None:
        return
    for each in home.after.queue.fullest:
        if each.subscriber == subscriber and each.failures:
            yield DiagnosisFinding(
                "receiver_unavailable",
                f"{subscriber} cannot be reached: {each.failures} sends were refused in a row, and "
                f"{messages_wait(each.queued)}.",
                None,
                "Start the subscriber or check its network.",
            )


def _topics(evidence: Evidence) -> Iterator[DiagnosisFinding]:
    """The cause of each topic that has one, worst first: topics that deliver nothing."""
    found = [(each, topic_findings(each)[0]) for each in evidence.topics]
    bad = [(each, finding) for each, finding in found if finding.cause != HEALTHY]
    bad.sort(key=lambda pair: pair[1].cause == "throttled")
    for topic, finding in bad:
        number = "" if len(found) == 1 else f" ({len(bad)} of its {len(found)} topics have a problem)"
        prefix = "" if str(topic.subject) in finding.text else f"{topic.subject}: "
        text = f"{prefix}{finding.text}".removesuffix(".") + f"{number}."
        yield DiagnosisFinding(finding.cause, text, finding.since_ms, finding.advice)


def _healthy(evidence: Evidence) -> DiagnosisFinding:
    topics = listed(each.topic for each in evidence.subscriptions)
    return DiagnosisFinding(HEALTHY, f"Nothing is wrong with {evidence.subject}: it has subscribed {topics}.")


SUBSCRIBER_CHECKS: Final[tuple[Check, ...]] = (
    unknown_authority,
    _wrong_endpoint,
    _link,
    _no_subscription,
    _own_queue,
    _topics,
)
