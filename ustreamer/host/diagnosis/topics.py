# SPDX-License-Identifier: Apache-2.0
"""Why messages of a topic do not arrive: a table of checks, in the order in which a message meets their subjects.

Evidence in, findings out. The first finding is the cause, because nothing behind it can help before it is mended.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from ustreamer.core.base.recent_failures import RecentFailure
from ustreamer.core.dispatch.delivery_registry import TargetStatistics
from ustreamer.core.routing.forwarding import Target
from ustreamer.core.routing.router import SELF
from ustreamer.core.routing.subscriptions import PausedSubscription, RecentSubscriptionChange
from ustreamer.core.routing.usubscription_codec import Status
from ustreamer.host.diagnosis.evidence import EndpointEvidence, Evidence
from ustreamer.host.diagnosis.findings import (
    DENIALS,
    HEALTHY,
    STALLED_ADVICE,
    UNREACHABLE,
    Check,
    DiagnosisFinding,
    differing_part,
    failure_finding,
    failures_of,
    hertz,
    is_deferred,
    is_named,
    letter_findings,
    link_down,
    listed,
    messages_wait,
    peers_text,
    refused_stores,
    run_checks,
    similar_name,
    spoofed_denials,
    total,
    unknown_authority,
    unknown_subscriptions,
    wrong_endpoint,
    wrong_endpoint_finding,
)
from ustreamer.uprotocol.uuri import UUri

_OLD_MS: Final = 1_000
_THROTTLED_SHARE: Final = 0.5
_EXPECTED_MESSAGES: Final = 3
"""A sample in which fewer messages are expected does not show that the publisher is silent."""
_SD_REFUSALS: Final = "sd_"
_OTHER_FINDINGS: Final = (
    "e2e_error",
    "e2e_repeated",
    "e2e_wrong_sequence",
    "spoofed",
    "access",
    "deferred_to_peer",
    "error_response",
    "no_answer",
    "service_gone",
    "request_expired",
    UNREACHABLE,
    "service_not_offered",
)
"""Failures that have findings of their own, or are none of a topic."""

_REFUSAL_TEXTS: Final = {
    "event_version": ("wrong_major_version", "the major version of its service is not the configured one"),
    "event_unknown": ("unknown_event", "the configuration of the endpoint does not have this event"),
    "event_address": ("wrong_sender_address", "it comes from another address than the configured `remote`"),
}
"""Refusals that a wrong configuration of a SOME/IP event causes: their cause, and what is wrong."""

_FailuresByKind: TypeAlias = Mapping[str, Sequence[RecentFailure]]


def topic_findings(evidence: Evidence) -> list[DiagnosisFinding]:
    """All findings about a topic, the cause first; one `healthy` finding if nothing is wrong."""
    return run_checks(TOPIC_CHECKS, evidence) or [_healthy(evidence)]


# --- the decision of the router --------------------------------------------------------------------------------------


def _denied(evidence: Evidence) -> Iterator[DiagnosisFinding]:
    for explanation in evidence.explanations:
        for step in explanation.steps:
            if step.rule in DENIALS and not step.passed:
                what, advice = DENIALS[step.rule]
                yield DiagnosisFinding(
                    "access_denied",
                    f"{what} {evidence.subject}: {step.text}.",
                    evidence.loaded_ms,
                    advice.format(explanation.ingress),
                )


def _deferred(evidence: Evidence) -> Iterator[DiagnosisFinding]:
    home = evidence.home_endpoint
    by_route = any(each.decision.deferred and each.source == evidence.subject for each in evidence.routes)
    if home is None or not (by_route or any(map(is_deferred, evidence.explanations))):
        return
    peers = dict.fromkeys(each for one in evidence.endpoints.values() for each in one.peers)
    others = listed(map(repr, peers)) or "another streamer"
    yield DiagnosisFinding(
        "deferred_to_peer",
        f"The peer streamer {others} forwards {evidence.subject}, so this streamer does not.",
        max((each.peers_ms for each in evidence.endpoints.values() if each.peers_ms), default=None),
        "Run `ustreamer why` at that streamer if its messages do not arrive.",
    )


def _failing_directory(evidence: Evidence) -> Iterator[DiagnosisFinding]:
    if evidence.directory_problem:
        yield DiagnosisFinding(
            "plugin_failed",
            f"The subscription directory of a plugin fails for {evidence.subject}: {evidence.directory_problem}.",
            None,
            "The log has `plugins.failed` with the traceback.",
        )


def _no_target(evidence: Evidence) -> Iterator[DiagnosisFinding]:
    """The topic has no target: no subscription, or none that this streamer can serve."""
    if evidence.directory_problem:
        return
    if any(each.targets or is_deferred(each) or each.verdict == "denied" for each in evidence.explanations):
        return
    if evidence.home is None:
        return
    if evidence.outage is not None and not evidence.subscriptions:
        yield from unknown_subscriptions(evidence)
    elif evidence.subscriptions:
        yield from _unserved_subscribers(evidence)
    elif _listeners_text(evidence):
        yield from _refused_listeners(evidence)
    else:
        yield from _ended_subscription(evidence)


def _refused_listeners(evidence: Evidence) -> Iterator[DiagnosisFinding]:
    """A broadcast topic that access rules keep from each network, and that has no subscriber."""
    yield DiagnosisFinding(
        "listeners_refused",
        f"{evidence.subject} goes to no network.{_listeners_text(evidence)}",
        evidence.loaded_ms,
        "Allow the topic in `access` of an endpoint, then `ustreamer reload`; or have a receiver subscribe it.",
    )


def _unserved_subscribers(evidence: Evidence) -> Iterator[DiagnosisFinding]:
    for each in evidence.subscriptions:
        if evidence.subscriber_endpoints.get(each.subscriber) is None:
            authority = each.subscriber.authority_name
            similar = similar_name(authority, evidence.endpoint_by_authority)
            text = (
                f"No endpoint has the authority {authority!r} of the only subscribers of {evidence.subject}"
            )
            text += f"; {similar!r} is similar" if similar else ""
            yield DiagnosisFinding(
                "subscriber_authority_unknown",
                f"{text}: {each.subscriber} cannot be reached.",
                _subscribed_ms(evidence, each.subscriber),
                "Add the authority to `authorities` of its endpoint, or have the subscriber subscribe with its own.",
            )
            return
    yield DiagnosisFinding(
        "same_network",
        f"All subscribers of {evidence.subject} live behind endpoint {evidence.home!r}, where the topic comes in, "
        "so the streamer sends nothing back.",
        _subscribed_ms(evidence, evidence.subscriptions[0].subscriber),
        f"Look for the fault in the network of endpoint {evidence.home!r}.",
    )


def _ended_subscription(evidence: Evidence) -> Iterator[DiagnosisFinding]:
    """The topic has no subscription: because the last one ended, because of a typing error, or it never had one."""
    topic = evidence.subject
    ended = [each for each in evidence.changes if each.status == Status.UNSUBSCRIBED.name]
    if ended:
        yield _ended(evidence, ended[-1])
        return
    yield from refused_stores(evidence)
    for each in evidence.similar:
        part = differing_part(topic, each.topic)
        yield DiagnosisFinding(
            "similar_subscription",
            f"{topic} has no subscriber, but {each.subscriber} has subscribed {each.topic}, which differs in the "
            f"{part}.",
            _subscribed_ms(evidence, each.subscriber),
            f"Correct the {part} in the subscription, or in the publisher.",
        )
        return
    since_ms = evidence.since_ms if evidence.running else None
    advice = "Have the receiver call Subscribe, or look in `ustreamer subscriptions ls` for what it has subscribed."
    yield DiagnosisFinding("no_subscriber", f"{topic} has no subscriber.", since_ms, advice)


def _ended(evidence: Evidence, change: RecentSubscriptionChange) -> DiagnosisFinding:
    topic, subscriber, reason = change.topic, change.subscriber, change.reason
    home = evidence.home_endpoint
    if reason.startswith("expire"):
        text = f"The subscription of {topic} by {subscriber} has expired, and it has no other subscriber."
        advice = "Have the subscriber renew its subscription before `expire`, or subscribe without it."
        return DiagnosisFinding("subscription_expired", text, change.time_ms, advice)
    if home is not None and home.transport == "someip" and topic.authority_name in reason:
        text = f"The ECU behind endpoint {home.name!r} refuses the event group of {topic}."
        advice = "Compare `eventgroup` of the event with the ECU's service description; then subscribe again."
        return DiagnosisFinding("eventgroup_refused", text, change.time_ms, advice)
    if reason and topic.authority_name in reason:
        text = f"The uSubscription of {topic.authority_name!r} has refused the subscription of {topic}: {reason}."
        advice = f"Mend the cause at {topic.authority_name!r}; then have {subscriber} subscribe again."
        return DiagnosisFinding("remote_refused", text, change.time_ms, advice)
    if reason:
        text = f"The subscription of {topic} by {subscriber} was ended: {reason}."
        return DiagnosisFinding(
            "subscription_ended", text, change.time_ms, "Have the subscriber subscribe again."
        )
    text = f"{subscriber}, the last subscriber of {topic}, has unsubscribed."
    return DiagnosisFinding("unsubscribed", text, change.time_ms, "Have the subscriber subscribe again.")


def _subscription_times(evidence: Evidence) -> list[int]:
    """When the topic was subscribed, oldest first; the start of the streamer if that is not known."""
    times = [each.time_ms for each in evidence.changes if each.status != Status.UNSUBSCRIBED.name]
    return times or [evidence.since_ms]


def _subscribed_ms(evidence: Evidence, subscriber: UUri) -> int | None:
    """When this subscriber subscribed or changed its subscription; None if that is long ago."""
    times = [
        each.time_ms
        for each in evidence.changes
        if each.subscriber == subscriber and each.status != Status.UNSUBSCRIBED.name
    ]
    return times[-1] if times else None


def _stopped(evidence: Evidence) -> Iterator[DiagnosisFinding]:
    """The subscribers have stopped the dispatch."""
    stopped = [each.subscriber for each in evidence.subscriptions if isinstance(each, PausedSubscription)]
    targets = [target for each in evidence.explanations for target in each.targets]
    if stopped and targets and all(each.paused for each in targets):
        yield DiagnosisFinding(
            "stopped_dispatching",
            f"{listed(stopped)} has stopped the dispatch of {evidence.subject}, so its messages wait.",
            evidence.since_ms if evidence.stopped_ms is None else evidence.stopped_ms,
            "Have the subscriber call StartDispatching; waiting messages then go out, unless they expire.",
        )


# --- the publisher's side --------------------------------------------------------------------------------------------


def _publisher_link(evidence: Evidence) -> Iterator[DiagnosisFinding]:
    if not evidence.received_in_sample:
        what = f"no publisher of {evidence.subject} can be behind it"
        yield from link_down(evidence, evidence.home_endpoint, what, "publisher_link_down")


def _remote_pending(evidence: Evidence) -> Iterator[DiagnosisFinding]:
    """Another uSubscription, or an ECU, has not acknowledged the subscription yet."""
    latest = evidence.changes[-1] if evidence.changes else None
    home, topic = evidence.home_endpoint, evidence.subject
    if latest is None or latest.status != Status.SUBSCRIBE_PENDING.name or not _is_silent(evidence):
        return
    if home is not None and home.transport == "someip":
        yield _pending_at_ecu(evidence, home, latest.time_ms)
        return
    yield DiagnosisFinding(
        "remote_pending",
        f"The uSubscription of {topic.authority_name!r} has not acknowledged the subscription of {topic} yet.",
        latest.time_ms,
        f"Check that a uSubscription runs at {topic.authority_name!r} and is reachable from this streamer. With `via`, "
        "check each device on the way.",
    )


def _pending_at_ecu(evidence: Evidence, home: EndpointEvidence, since_ms: int) -> DiagnosisFinding:
    """Service discovery has not found the service of the topic, or has no Ack for its event group."""
    topic = evidence.subject
    missing = [each for each in evidence.failures.get(home.name, ()) if each.kind == "service_not_offered"]
    if not missing:
        text = f"The ECU behind endpoint {home.name!r} has not acknowledged the event group of {topic}."
        return DiagnosisFinding("eventgroup_pending", text, since_ms, "Check that the ECU runs.")
    hint = f"; the network offers it with {missing[0].detail} only" if missing[0].detail else ""
    text = f"The ECU behind endpoint {home.name!r} does not offer its service, which {topic} needs{hint}."
    advice = "Check that the ECU runs, and that service, instance and major version are those of its offers."
    return DiagnosisFinding("service_not_offered", text, since_ms, advice)


def _is_silent(evidence: Evidence) -> bool:
    """Whether a topic with a subscriber brings no message, as far as the sample can show it."""
    return bool(_subscribed_targets(evidence)) and _brings_nothing(evidence)


def _brings_nothing(evidence: Evidence) -> bool:
    """Whether no message of the topic comes in, as far as the sample can show it.

    The topics of the streamer itself are silent while nothing changes.
    """
    if not evidence.running or evidence.received_in_sample or evidence.letters or evidence.input_problem:
        return False
    if evidence.home == SELF:
        return False
    uptime_s = max(1.0, (evidence.now_ms - evidence.since_ms) / 1000)
    return not evidence.received or (evidence.received / uptime_s * evidence.sample_s >= _EXPECTED_MESSAGES)


def _silent_publisher(evidence: Evidence) -> Iterator[DiagnosisFinding]:
    """No message of the topic comes in."""
    home = evidence.home_endpoint
    if home is None or not _is_silent(evidence):
        return
    if evidence.received:
        text = f"The publisher of {evidence.subject} is silent: {evidence.received} messages came in, but none now."
    else:
        text = f"No message of {evidence.subject} has come in at endpoint {home.name!r} since its first subscription."
    yield DiagnosisFinding(
        "publisher_silent",
        text,
        None if evidence.received else _subscription_times(evidence)[0],
        f"Check that the publisher runs behind {home.name!r}, and that it publishes exactly this address.",
    )


def _refused_input(evidence: Evidence, *, earlier: bool = False) -> Iterator[DiagnosisFinding]:
    """The endpoint of the publisher refuses input: messages of the topic, or some that may be."""
    home = evidence.home_endpoint
    if home is None or not _brings_nothing(evidence):
        return
    found = failures_of(evidence, home.name, earlier=earlier)
    of_topic = {name: found.pop(name) for name in _REFUSAL_TEXTS if name in found}
    if home.name in evidence.exact_endpoints or _is_silent(evidence):
        yield from _refused_events(evidence, home, of_topic, earlier=earlier)
    if _is_silent(evidence):
        yield from _other_refusals(evidence, home, found, earlier=earlier)


def _refused_events(
    evidence: Evidence, home: EndpointEvidence, found: _FailuresByKind, *, earlier: bool
) -> Iterator[DiagnosisFinding]:
    """Refusals by a wrong configuration of the topic. They show also while an access rule denies the topic."""
    refuses = "refused" if earlier else "refuses"
    may_be = "" if home.name in evidence.exact_endpoints else "which may be "
    for name, failures in found.items():
        cause, why = _REFUSAL_TEXTS[name]
        events = f"events, {may_be}{evidence.subject}," if may_be else f"events of {evidence.subject}"
        yield failure_finding(
            cause,
            f"Endpoint {home.name!r} {refuses} {total(failures)} {events}{peers_text(failures)}: {why}.",
            failures,
            f"Compare service, major version, events and remote of [[endpoints.{home.name}.services]] with the ECU.",
            earlier=earlier,
        )


def _other_refusals(
    evidence: Evidence, home: EndpointEvidence, found: _FailuresByKind, *, earlier: bool
) -> Iterator[DiagnosisFinding]:
    """Duplicates, and input of any topic that the endpoint refuses."""
    refuses = "refused" if earlier else "refuses"
    if failures := found.get("duplicate", ()):
        yield failure_finding(
            "duplicates",
            f"Endpoint {home.name!r} has dropped {total(failures)} messages as duplicates: their ids repeat.",
            failures,
            "Check that the publisher gives each message a new id; duplicate_window is the number of known ids.",
            earlier=earlier,
        )
    others = [
        each
        for name, failures in found.items()
        for each in failures
        if name not in ("duplicate", *_OTHER_FINDINGS) and not name.startswith(_SD_REFUSALS)
    ]
    if others:
        yield failure_finding(
            "input_refused",
            f"Endpoint {home.name!r} {refuses} input{peers_text(others)}, which may be {evidence.subject}: "
            f"{listed(f'{each.kind} {each.count}' for each in others)}.",
            others,
            "The log has the first of each kind with its sender.",
            earlier=earlier,
        )


def _earlier_refused_input(evidence: Evidence) -> Iterator[DiagnosisFinding]:
    """Refusals that ended, of a topic that brings nothing now."""
    yield from _refused_input(evidence, earlier=True)


def _ended_wrong_endpoint(evidence: Evidence, *, earlier: bool = False) -> Iterator[DiagnosisFinding]:
    """Messages of the topic came in at another endpoint in the last minute, or `earlier`. None comes in now."""
    if _brings_nothing(evidence):
        for denial in spoofed_denials(evidence):
            if not denial.goes_on(evidence.now_ms) and denial.is_current(evidence.now_ms) is not earlier:
                yield wrong_endpoint_finding(evidence, denial)
                return


def _earlier_wrong_endpoint(evidence: Evidence) -> Iterator[DiagnosisFinding]:
    yield from _ended_wrong_endpoint(evidence, earlier=True)


def _failed_checks(evidence: Evidence) -> Iterator[DiagnosisFinding]:
    """Messages of the topic come in, but their content fails its E2E check."""
    if evidence.input_problem:
        yield DiagnosisFinding(
            "e2e_failed",
            f"{evidence.input_problem}.",
            None,
            f"Compare `e2e` of the event in [[endpoints.{evidence.home}.services]] with the ECU: profile, data id, offset.",
        )


# --- the receiver's side ---------------------------------------------------------------------------------------------


def _subscribed_targets(evidence: Evidence) -> list[Target]:
    """The targets with a subscriber. Nothing is owed to those with listeners only."""
    return [target for each in evidence.explanations for target in each.targets if not target.broadcast]


def _target_endpoints(evidence: Evidence) -> list[EndpointEvidence]:
    names = dict.fromkeys(target.endpoint for target in _subscribed_targets(evidence))
    return [evidence.endpoints[each] for each in names if each in evidence.endpoints]


def _receiver_link(evidence: Evidence) -> Iterator[DiagnosisFinding]:
    for endpoint in _target_endpoints(evidence):
        what = f"{evidence.subject} reaches no subscriber there"
        yield from link_down(evidence, endpoint, what, "link_down")


def _receiver_absent(evidence: Evidence) -> Iterator[DiagnosisFinding]:
    """Nothing listens at the UDP address of a receiver. Messages for it still count as delivered."""
    for endpoint in _target_endpoints(evidence):
        for failure in failures_of(evidence, endpoint.name).get(UNREACHABLE, ()):
            if failure.goes_on(evidence.now_ms) or not evidence.received_in_sample:
                yield failure_finding(
                    "receiver_absent",
                    f"Nothing listens at {failure.peer}, to which endpoint {endpoint.name!r} sends {evidence.subject}: "
                    f"its host reported that {failure.count} times.",
                    [failure],
                    "Start the receiver, or correct `remote` of the service; messages sent meanwhile are lost.",
                    earlier=False,
                )


def _waiting(evidence: Evidence, target: TargetStatistics) -> int:
    """Messages that the target has received and not settled, as far as the counters show it."""
    lost = sum(each.total for each in evidence.letters if each.endpoint == target.endpoint)
    return target.received - target.delivered - target.throttled - lost


def _receiver_waits(evidence: Evidence) -> Iterator[DiagnosisFinding]:
    """Messages of the topic wait in an egress queue."""
    paused = {
        (target.endpoint, target.subscriber)
        for each in evidence.explanations
        for target in each.targets
        if target.paused
    }
    for target in evidence.targets:
        endpoint = evidence.endpoints.get(target.endpoint)
        if endpoint is None or endpoint.after is None or not endpoint.up:
            continue
        if (target.endpoint, target.subscriber) in paused or _waiting(evidence, target) <= 0:
            continue
        yield from _waiting_target(evidence, target, endpoint)


def _waiting_target(
    evidence: Evidence, target: TargetStatistics, endpoint: EndpointEvidence
) -> Iterator[DiagnosisFinding]:
    assert endpoint.after is not None  # the streamer runs
    who = str(target.subscriber or f"The receiver behind {target.endpoint!r}")
    queue, blocked = endpoint.after.queue, evidence.blocked.get(target.endpoint)
    failing = [each for each in queue.fullest if each.failures and each.subscriber == target.subscriber]
    if blocked and target.endpoint in evidence.stalled_ms:
        yield _stalled_receiver(evidence, target, blocked.number)
    elif blocked or failing:
        number = blocked.number if blocked else failing[0].queued
        yield DiagnosisFinding(
            "receiver_unavailable",
            f"{who} cannot be reached at present, so {messages_wait(number)} at endpoint {target.endpoint!r}"
            f"{_refusal_reason(evidence, target)}.",
            blocked.since_ms if blocked else None,
            "Start the receiver or check its network; waiting messages go out as soon as it is there.",
        )
    elif endpoint.unblocked_age_ms > _OLD_MS:
        yield DiagnosisFinding(
            "slow_receiver",
            f"{who} is slow: {messages_wait(queue.queued)} at endpoint {target.endpoint!r}, the oldest for "
            f"{endpoint.unblocked_age_ms / 1_000:.1f} s.",
            evidence.now_ms - endpoint.unblocked_age_ms,
            "Have the receiver subscribe fewer messages per second, or find what slows it down.",
        )


def _stalled_receiver(evidence: Evidence, target: TargetStatistics, number: int) -> DiagnosisFinding:
    """The last receiver of the topic had stopped when its link ended. Others behind the endpoint may read."""
    places = evidence.subscriber_endpoints
    subscribers = (
        [target.subscriber]
        if target.subscriber
        else [
            each.subscriber
            for each in evidence.subscriptions
            if places.get(each.subscriber) == target.endpoint
        ]
    )
    who = f", {listed(dict.fromkeys(subscribers))}," if subscribers else ""
    return DiagnosisFinding(
        "receiver_stalled",
        f"The receiver of {evidence.subject} behind endpoint {target.endpoint!r}{who} stopped reading, and its link ended; "
        f"{messages_wait(number)}.",
        evidence.stalled_ms[target.endpoint],
        STALLED_ADVICE,
    )


def _refusal_reason(evidence: Evidence, target: TargetStatistics) -> str:
    """The reason of the last refused send to the target, by the log."""
    for line in reversed(evidence.log_lines):
        if line.event in ("egress.unavailable", "egress.route_unavailable"):
            fields = line.fields
            who = fields.get("subscriber")
            is_target = who is None or who == str(target.subscriber)
            is_of_route = line.event == "egress.unavailable" or is_named(
                evidence.subject, fields.get("reason", "")
            )
            if fields.get("endpoint") == target.endpoint and is_target and is_of_route and "reason" in fields:
                return f": {fields['reason']}"
    return ""


def _dead_letters(evidence: Evidence) -> Iterator[DiagnosisFinding]:
    yield from letter_findings(evidence, f"messages of {evidence.subject}")


def _throttled(evidence: Evidence) -> Iterator[DiagnosisFinding]:
    for target in evidence.targets:
        if target.period_ns and target.throttled >= target.received * _THROTTLED_SHARE > 0:
            who = target.subscriber or f"the subscribers behind {target.endpoint!r}"
            yield DiagnosisFinding(
                "throttled",
                f"{evidence.subject} is throttled for {who}: they asked for at most {hertz(target.period_ns)}, and "
                f"{target.throttled} of {target.received} messages were above that.",
                _subscription_times(evidence)[-1],
                "Have the subscriber subscribe again with a higher max_frequency, or with none.",
            )


def _failing_plugins(evidence: Evidence) -> Iterator[DiagnosisFinding]:
    """Plugins fail at the endpoint of the topic, during the sample."""
    home = evidence.home_endpoint
    for name in ("filter_errors", "directory_errors"):
        if home is not None and (count := home.rise(name)):
            lines = [each for each in evidence.log_lines if each.event == "plugins.failed"]
            detail = f": {lines[-1].fields.get('error', '')}" if lines else ""
            yield DiagnosisFinding(
                "plugin_failed",
                f"A plugin fails at endpoint {home.name!r}, {count} times in {evidence.sample_s:g} s{detail}.",
                lines[0].time_ms if lines else evidence.since_ms,
                "The log has `plugins.failed` with the traceback.",
            )


def _target_count_text(targets: Sequence[Target]) -> str:
    return "1 target" if len(targets) == 1 else f"{len(targets)} targets"


def _listeners_text(evidence: Evidence) -> str:
    """A sentence about the listeners of a topic that needs no subscription; empty for other topics."""
    steps = [step for each in evidence.explanations for step in each.steps if step.rule == "listeners"]
    if not steps:
        return ""
    subscribed = "" if _subscribed_targets(evidence) else " It has no subscriber."
    return f"{subscribed} The topic needs no subscription: {'; '.join(step.text for step in steps)}."


def _healthy(evidence: Evidence) -> DiagnosisFinding:
    targets = [target for each in evidence.explanations for target in each.targets]
    if not evidence.running:
        text = f"{evidence.subject} has {_target_count_text(targets)} by the configuration and the stored subscriptions."
        return DiagnosisFinding(HEALTHY, text + _listeners_text(evidence))
    rate = evidence.received_in_sample / evidence.sample_s if evidence.sample_s else 0
    delivered = sum(each.delivered for each in evidence.targets)
    text = (
        f"Nothing is wrong with {evidence.subject}: {rate:.3g} messages/s come in for {_target_count_text(targets)}, and "
        f"{delivered} were delivered."
    )
    return DiagnosisFinding(HEALTHY, text + _listeners_text(evidence))


TOPIC_CHECKS: Final[tuple[Check, ...]] = (
    unknown_authority,
    wrong_endpoint,
    _failing_directory,
    _denied,
    _deferred,
    _no_target,
    _publisher_link,
    _stopped,
    _receiver_link,
    _receiver_absent,
    _receiver_waits,
    _dead_letters,
    _failing_plugins,
    _failed_checks,
    _refused_input,
    _ended_wrong_endpoint,
    _remote_pending,
    _silent_publisher,
    _earlier_refused_input,
    _earlier_wrong_endpoint,
    _throttled,
    refused_stores,
    unknown_subscriptions,
)
"""In the order of the path: the configuration, the router, the publisher's network, the subscribers, the queues."""
