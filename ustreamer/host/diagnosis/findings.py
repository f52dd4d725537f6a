# SPDX-License-Identifier: Apache-2.0
"""The finding of a diagnosis, and what the checks share: evidence in, sentences out."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Final, TypeAlias

import msgspec

from ustreamer.core.base.recent_failures import CURRENT_MS, RecentFailure
from ustreamer.core.dispatch.explain import Explanation
from ustreamer.core.dispatch.recent_denials import RecentDenial
from ustreamer.core.routing.subscriptions import NO_ANSWER
from ustreamer.host.diagnosis.evidence import EndpointEvidence, Evidence
from ustreamer.host.diagnosis.recent import RecentLetters
from ustreamer.uprotocol.ustatus import UCode
from ustreamer.uprotocol.uuri import ANY_AUTHORITY, UUri

HEALTHY: Final = "healthy"
STALLED_ADVICE: Final = "Find what stops the process of the receiver: a debugger, SIGSTOP, a full disk, a loop. Restart it if needed."
UNREACHABLE: Final = "receiver_unreachable"
"""The kind of a failure: nothing listens at a UDP address to which an endpoint sends."""
_NO_DELAY_MS: Final = 30_000
"""No network delays a message for so long."""
_CLOCK_DIFFERENCE_MS: Final = 1_000
_MANY_LETTERS: Final = 3
_VARIATION: Final = 0.1
_DAYS_S: Final = 172_800
_NS_PER_S: Final = 1_000_000_000


class DiagnosisFinding(msgspec.Struct, frozen=True):
    """One thing that is wrong. `cause` is its stable name for programs; `text` is one sentence.

    `since_ms` is None if the start of it is unknown. With `at_least` it may have begun earlier: nothing older is known.
    `until_ms` is the end of a problem that is over. `advice` can be empty.
    """

    cause: str
    text: str
    since_ms: int | None = None
    advice: str = ""
    at_least: bool = False
    until_ms: int | None = None


Check: TypeAlias = Callable[[Evidence], Iterator[DiagnosisFinding]]
DENIALS: Final = {
    "access": ("The access rules deny", "Correct [[endpoints.{}.access]], then `ustreamer reload`."),
    "identity": ("The identities deny", "Correct `identities` of endpoint {!r}, and restart."),
    "authorisation": ("A plugin denies", "Correct the token or the rights of the sender at endpoint {!r}."),
}
"""Reasons to deny an authentic sender: what denies it, and what to do."""


def run_checks(checks: Iterable[Check], evidence: Evidence) -> list[DiagnosisFinding]:
    """All findings, in the order of the checks."""
    return [finding for check in checks for finding in check(evidence)]


def failures_of(
    evidence: Evidence, endpoint: str, *, earlier: bool = False
) -> dict[str, tuple[RecentFailure, ...]]:
    """The failures at an endpoint by kind, the latest first: those of the last minute, or with `earlier` all others."""
    found: dict[str, tuple[RecentFailure, ...]] = {}
    for each in sorted(evidence.failures.get(endpoint, ()), key=lambda each: -each.last_ms):
        if each.count and each.is_current(evidence.now_ms) is not earlier:
            found[each.kind] = (*found.get(each.kind, ()), each)
    return found


def failure_finding(
    cause: str, text: str, failures: Sequence[RecentFailure], advice: str, *, earlier: bool
) -> DiagnosisFinding:
    """A finding with the times of its failures."""
    first_ms = min(each.first_ms for each in failures)
    return DiagnosisFinding(cause, text, first_ms, advice, until_ms=last_ms(failures) if earlier else None)


def last_ms(failures: Iterable[RecentFailure]) -> int:
    return max(each.last_ms for each in failures)


def total(failures: Iterable[RecentFailure]) -> int:
    return sum(each.count for each in failures)


def peers_text(failures: Iterable[RecentFailure]) -> str:
    """from A, B and 2 more; "" if no peer is known."""
    peers = dict.fromkeys(each.peer for each in failures if each.peer)
    return f" from {listed(peers)}" if peers else ""


def similar_name(name: str, names: Iterable[str]) -> str | None:
    """The one of `names` that is similar to `name`, which has at most 128 characters; None without one."""
    found = get_close_matches(name, [each for each in names if each != name], n=1)
    return found[0] if found else None


# --- checks of every subject -----------------------------------------------------------------------------------------


def unknown_authority(evidence: Evidence) -> Iterator[DiagnosisFinding]:
    """No endpoint has the authority of the subject."""
    if evidence.home is None:
        authority = evidence.subject.authority_name
        text = f"No endpoint has the authority {authority!r} of {evidence.subject}"
        similar = similar_name(authority, evidence.endpoint_by_authority)
        if similar is not None:
            text += f"; {similar!r} of endpoint {evidence.endpoint_by_authority[similar]!r} is similar"
        yield DiagnosisFinding(
            "unknown_authority",
            f"{text}.",
            evidence.loaded_ms,
            "Correct the address, or add the authority to `authorities` of its endpoint.",
        )


def wrong_endpoint(evidence: Evidence) -> Iterator[DiagnosisFinding]:
    """Messages from the subject come in at an endpoint behind which it does not live."""
    for denial in spoofed_denials(evidence):
        if denial.goes_on(evidence.now_ms):
            yield wrong_endpoint_finding(evidence, denial)
            return


def spoofed_denials(evidence: Evidence) -> list[RecentDenial]:
    """The denials of messages from the subject because of their endpoint, the latest first."""
    found = [
        each for each in evidence.denials if each.denied_as == "spoofed" and each.source == evidence.subject
    ]
    return sorted(found, key=lambda each: -each.last_ms)


def wrong_endpoint_finding(evidence: Evidence, denial: RecentDenial) -> DiagnosisFinding:
    """A finding about denied messages from the subject; in the past tense if no more of them come."""
    goes_on = denial.goes_on(evidence.now_ms)
    come, are = ("come", "are") if goes_on else ("came", "were")
    return DiagnosisFinding(
        "wrong_endpoint",
        f"Messages from {denial.source} {come} in at endpoint {denial.ingress!r} and {are} denied, because "
        f"{denial.source.authority_name!r} lives behind {evidence.home!r}.",
        denial.first_ms,
        f"Move the authority to `authorities` of endpoint {denial.ingress!r}, or correct the sender.",
        until_ms=None if goes_on else denial.last_ms,
    )


def link_down(
    evidence: Evidence, endpoint: EndpointEvidence | None, what: str, cause: str
) -> Iterator[DiagnosisFinding]:
    """The endpoint reaches no receiver, or one that may be frozen. `what` is a clause about the consequence."""
    if endpoint is None or endpoint.after is None:
        return
    if endpoint.up:
        yield from _suspect_node(endpoint, endpoint.after.link_suspicion)
        return
    if endpoint.after.link_problem:
        yield _stalled_receiver(endpoint, endpoint.after.queue.queued, what)
        return
    how = "no longer reaches any node" if endpoint.after.link.up_count else "has not reached any node yet"
    kept = " on disk" if endpoint.durable else ""
    queued = endpoint.after.queue.queued
    waiting = f"; {messages_wait(queued)}{kept}" if queued else ""
    since_ms = endpoint.link_ms if endpoint.after.link.up_count else evidence.since_ms
    yield DiagnosisFinding(
        cause,
        f"The link of endpoint {endpoint.name!r} is down, so {what}: it {how}{waiting}.",
        since_ms,
        f"Check the network of endpoint {endpoint.name!r} and the nodes behind it; waiting messages go out "
        "as soon as the link is up.",
    )


def _stalled_receiver(endpoint: EndpointEvidence, queued: int, what: str) -> DiagnosisFinding:
    waiting = f"; {messages_wait(queued)}" if queued else ""
    return DiagnosisFinding(
        "receiver_stalled",
        f"The receiver behind endpoint {endpoint.name!r} stopped reading, so its link is down and {what}{waiting}.",
        endpoint.link_ms,
        STALLED_ADVICE,
    )


def _suspect_node(endpoint: EndpointEvidence, suspicion: str) -> Iterator[DiagnosisFinding]:
    if suspicion:
        yield DiagnosisFinding(
            "node_suspect",
            f"A node behind endpoint {endpoint.name!r} may be frozen or cut off: {suspicion}.",
            None,
            "Look whether its process runs: within 10 s the link counts as down, or the suspicion ends.",
        )


def refused_stores(evidence: Evidence) -> Iterator[DiagnosisFinding]:
    """A store that the disk refuses to write."""
    for store in evidence.stores:
        if store.state.degraded:
            yield DiagnosisFinding(
                "store_full",
                f"The store {store.name!r} accepts no writes: {store.state.degraded}.",
                _log_time(evidence, "storage.degraded", "store", store.name),
                "Free room on the disk of state_dir; the store is tried again within 1 s.",
            )


def _log_time(evidence: Evidence, event: str, field: str, ending: str) -> int | None:
    times = [
        each.time_ms
        for each in evidence.log_lines
        if each.event == event and each.fields.get(field, "").endswith(ending)
    ]
    return times[-1] if times else None


def unknown_subscriptions(evidence: Evidence) -> Iterator[DiagnosisFinding]:
    """The service of another process that has the subscriptions gives no list of them."""
    outage = evidence.outage
    if outage is None:
        return
    authority = outage.method.authority_name
    name = evidence.endpoint_by_authority.get(authority, evidence.endpoint_by_authority.get(ANY_AUTHORITY))
    if outage.reason != NO_ANSWER:
        how = f"answers {outage.reason} to"
        advice = f"Have that process permit {outage.method} to {evidence.authority!r}; its log has the cause."
    else:
        how = "does not answer"
        advice = (
            f"Start it on the network of endpoint {name!r}, or correct `authority`."
            if name
            else f"Add {authority!r} to `authorities` of its endpoint, or correct `authority`."
        )
    effect = (
        "later changes of subscriptions do not count"
        if evidence.subscriptions
        else f"the streamer knows no subscription of {evidence.subject}"
    )
    yield DiagnosisFinding(
        "usubscription_silent",
        f"core.usubscription of {authority!r}, another process, {how} {outage.method}, so {effect}.",
        outage.since_ms,
        advice,
    )


# --- dead letters ----------------------------------------------------------------------------------------------------


def letter_findings(evidence: Evidence, what: str) -> Iterator[DiagnosisFinding]:
    """The dead letters of the last minute, the latest first. `what` is a noun phrase, such as "messages of ..."."""
    for letters in reversed(evidence.letters):
        if evidence.now_ms - letters.last_ms <= CURRENT_MS:
            reason, until_ms = full_queue(evidence, letters)
            current = msgspec.structs.replace(letters, reason=reason)
            cause, text, advice = _judge_letters(current, what)
            yield DiagnosisFinding(cause, text, letters.first_ms, advice, until_ms=until_ms)


def full_queue(evidence: Evidence, letters: RecentLetters) -> tuple[str, int | None]:
    """The reason of dead letters, and when it ended: of a full queue that is empty now."""
    endpoint = evidence.endpoints.get(letters.endpoint)
    if letters.code != UCode.RESOURCE_EXHAUSTED or endpoint is None or endpoint.after is None:
        return letters.reason, None
    queue = endpoint.after.queue
    queued = queue.queued
    if "of subscriber" in letters.reason:
        queued = sum(
            each.queued for each in queue.fullest if is_named_subscriber(each.subscriber, letters.reason)
        )
    if queued or " is full" not in letters.reason:
        return letters.reason, None
    return f"{letters.reason.replace(' is full', ' was full')} and is empty now", letters.last_ms


def is_named_subscriber(subscriber: UUri | None, reason: str) -> bool:
    """Whether a full queue is that of a subscriber, by the reason of its dead letters."""
    return f"of subscriber {subscriber} " in reason


def _judge_letters(letters: RecentLetters, what: str) -> tuple[str, str, str]:
    """The cause, the sentence and the advice of dead letters."""
    reason, endpoint = letters.reason, letters.endpoint
    lost = f"{letters.count} of the {what} became dead letters"
    retry = "`ustreamer dead-letters redrive` sends them again after the repair."
    match letters.code:
        case UCode.RESOURCE_EXHAUSTED if "wait for the disk" in reason:
            advice = f"Look for a full, slow or failing disk under state_dir. {retry}"
            return (
                "disk_slow",
                f"The disk is slower than the {what}, or refuses them: {lost} ({reason}).",
                advice,
            )
        case UCode.RESOURCE_EXHAUSTED if "spool is full" in reason:
            advice = f"The receivers behind {endpoint!r} are away, or slower than their messages: repair or throttle them, "
            advice += f"or raise spool_messages and spool_bytes in [egress.{endpoint}]. {retry}"
            return "spool_full", f"The spool of endpoint {endpoint!r} is full: {lost} ({reason}).", advice
        case UCode.RESOURCE_EXHAUSTED if "of subscriber" in reason:
            advice = (
                "The subscriber is slower than its messages: have it subscribe fewer per second, or raise "
            )
            advice += f"subscriber_messages in [egress.{endpoint}]. {retry}"
            return "subscriber_queue_full", f"The {reason}: {lost}.", advice
        case UCode.RESOURCE_EXHAUSTED if "queue" in reason:
            advice = f"The receivers behind {endpoint!r} are slower than their messages: repair or throttle them, or "
            advice += f"raise queue_messages and queue_bytes in [egress.{endpoint}]. {retry}"
            return "queue_full", f"The {reason}: {lost}.", advice
        case UCode.DEADLINE_EXCEEDED if "arrival" in reason:
            return _expired_on_arrival(letters, lost)
        case UCode.DEADLINE_EXCEEDED:
            advice = f"Find what slows the receivers behind {endpoint!r}, or raise max_age_ms in [egress.{endpoint}]."
            text = f"Messages expire in the egress queue of endpoint {endpoint!r}: {lost} ({reason})."
            return "expired_in_queue", text, advice
        case UCode.INTERNAL:
            advice = "The log has `plugins.failed` or `egress.failed` with the traceback."
            return "plugin_failed", f"A failure in the streamer stops {what}: {reason}; {lost}.", advice
        case UCode.UNAVAILABLE:
            advice = f"Start the receiver behind {endpoint!r}, or check its network. {retry}"
            return "receiver_absent", f"The receiver is not available, and {lost}: {reason}.", advice
        case _:
            advice = f"Compare the configuration of endpoint {endpoint!r} with the receiver."
            return "send_refused", f"Endpoint {endpoint!r} cannot send {what}: {reason}.", advice


def _expired_on_arrival(letters: RecentLetters, lost: str) -> tuple[str, str, str]:
    """Of messages that were expired when they arrived: by their ages, the clock of the sender differs, or they are late.

    A delay varies from message to message; a difference of clocks does not.
    """
    least_ms, most_ms = letters.ages_ms
    is_constant = letters.count >= _MANY_LETTERS and most_ms - least_ms <= least_ms * _VARIATION
    if least_ms >= _NO_DELAY_MS or (least_ms >= _CLOCK_DIFFERENCE_MS and is_constant):
        behind = duration(least_ms)
        text = f"The clock of the sender seems to be {behind} behind the one here, or this one ahead: {lost}, because "
        text += f"by the times in their ids they were {behind} old on arrival."
        advice = f"Compare both clocks and set the wrong one; the sender lives behind {letters.ingress!r}. "
        return "sender_clock", text, f"{advice}Until then, have it send without ttl."
    text = (
        f"The ttl is too short: {lost}, as their {letters.reason}, {duration(most_ms)} after they were sent."
    )
    advice = "Raise the ttl of the sender, or find what delays the messages before the streamer."
    return "expired_on_arrival", text, advice


# --- words -----------------------------------------------------------------------------------------------------------


def duration(ms: int) -> str:
    """12 s, 5 min, 2 h, 3 days."""
    seconds = max(0, ms) // 1_000
    if seconds < 120:
        return f"{seconds} s"
    if seconds < 7_200:
        return f"{seconds // 60} min"
    return f"{seconds // 3_600} h" if seconds < _DAYS_S else f"{seconds // 86_400} days"


def time_of_day(time_ms: int) -> str:
    return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def hertz(period_ns: int) -> str:
    return f"{_NS_PER_S / period_ns:.3g} Hz"


def differing_part(one: UUri, other: UUri) -> str | None:
    """The name of the only part in which two addresses differ; None if they differ in none or in several."""
    parts = [
        name
        for name, differs in (
            ("authority", one.authority_name != other.authority_name),
            ("uEntity", one.ue_id != other.ue_id),
            ("major version", one.ue_version_major != other.ue_version_major),
            ("resource", one.resource_id != other.resource_id),
        )
        if differs
    ]
    return parts[0] if len(parts) == 1 else None


def is_similar(one: UUri, other: UUri) -> bool:
    """Whether two addresses differ in one part only, and there as by a typing error."""
    match differing_part(one, other):
        case "major version":
            return True
        case "authority":
            return is_one_edit(one.authority_name, other.authority_name)
        case "uEntity":
            return is_one_edit(f"{one.ue_id:X}", f"{other.ue_id:X}")
        case "resource":
            return is_one_edit(f"{one.resource_id:X}", f"{other.resource_id:X}")
    return False


def is_one_edit(one: str, other: str) -> bool:
    """Whether one changed, added, missing or swapped character makes the difference of two different texts."""
    start = 0
    while start < min(len(one), len(other)) and one[start] == other[start]:
        start += 1
    one, other = one[start:], other[start:]
    swapped = one[:2] == other[1::-1] and len(one) > 1 and one[2:] == other[2:]
    return swapped or one[1:] == other[1:] or one[1:] == other or one == other[1:]


def is_named(address: UUri, text: str) -> bool:
    """Whether a text has this address, and not only a longer one that begins like it."""
    return re.search(rf"{re.escape(str(address))}(?![0-9A-Fa-f/])", text) is not None


def messages_wait(number: int) -> str:
    return "1 message waits" if number == 1 else f"{number} messages wait"


def listed(items: Iterable[object], most: int = 3) -> str:
    """A, B, C and 2 more."""
    texts = [str(each) for each in items]
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return ", ".join(texts[:most]) + more


def is_deferred(explanation: Explanation) -> bool:
    return explanation.verdict == "deferred"
