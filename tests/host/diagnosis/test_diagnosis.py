# SPDX-License-Identifier: Apache-2.0
"""From evidence to findings and sentences, without a streamer."""

from typing import Any, Final

import msgspec
import pytest

from ustreamer.core.base.links import LinkState
from ustreamer.core.base.recent_failures import RecentFailure
from ustreamer.core.dispatch.delivery_registry import TargetStatistics
from ustreamer.core.dispatch.explain import Explanation, Step
from ustreamer.core.dispatch.recent_denials import RecentDenial
from ustreamer.core.egress.limits import EgressLimits
from ustreamer.core.routing.forwarding import Target
from ustreamer.core.routing.route_cache import ObservedRoute
from ustreamer.core.routing.router import SELF, RoutingDecision
from ustreamer.core.routing.subscriptions import ServiceOutage, Subscription
from ustreamer.host.diagnosis.diagnosis import Diagnosis, diagnose, paragraph
from ustreamer.host.diagnosis.evidence import BlockedMessages, EndpointEvidence, Evidence
from ustreamer.host.diagnosis.findings import (
    HEALTHY,
    DiagnosisFinding,
    differing_part,
    is_named,
    is_one_edit,
    is_similar,
    letter_findings,
    listed,
    messages_wait,
)
from ustreamer.host.diagnosis.methods import method_findings
from ustreamer.host.diagnosis.recent import RecentLetters, RecentLogLine
from ustreamer.host.diagnosis.subscribers import subscriber_findings
from ustreamer.host.diagnosis.topics import topic_findings
from ustreamer.host.egress.endpoint_queue import EndpointQueueStatistics, SubscriberQueueStatistics
from ustreamer.host.observe.snapshot import EndpointSnapshot
from ustreamer.uprotocol.ustatus import UCode
from ustreamer.uprotocol.uuri import UUri

TOPIC: Final = UUri("car", 0x1234, 1, 0x8001)
NOW_MS: Final = 1_700_000_000_000


def evidence(subject: UUri = TOPIC, **changes: Any) -> Evidence:
    """Evidence of a stopped streamer with one endpoint, at which `subject` lives."""
    known: dict[str, Any] = {
        "subject": subject,
        "running": False,
        "now_ms": NOW_MS,
        "since_ms": NOW_MS - 60_000,
        "loaded_ms": NOW_MS - 60_000,
        "sample_s": 0.0,
        "authority": "hpc",
        "endpoints": {"inside": EndpointEvidence("inside", "local", ("car",))},
        "endpoint_by_authority": {"car": "inside"},
        "home": "inside",
    }
    return Evidence(**(known | changes))


@pytest.mark.parametrize(
    ("reason", "text", "advice"),
    [
        (
            "no answer",
            "does not answer up://hpc/0/3/3, so",
            "Start it on the network of endpoint 'outside', or",
        ),
        (
            "PERMISSION_DENIED",
            "answers PERMISSION_DENIED to up://hpc/0/3/3, so",
            "Have that process permit up://hpc",
        ),
    ],
)
@pytest.mark.parametrize("subject", [TOPIC, UUri("car", 0x1234, 1, 0)], ids=["topic", "subscriber"])
def test_an_outside_usubscription_that_gives_no_list_is_named_and_not_the_receiver(
    reason: str, text: str, advice: str, subject: UUri
) -> None:
    outage = ServiceOutage(UUri("hpc", 0, 3, 3), NOW_MS - 5_000, reason)
    [finding] = diagnose(evidence(subject, outage=outage)).findings
    assert (finding.cause, finding.since_ms) == ("usubscription_silent", NOW_MS - 5_000)
    assert text in finding.text
    assert str(subject) in finding.text
    if reason == "no answer":
        assert finding.advice == "Add 'hpc' to `authorities` of its endpoint, or correct `authority`."
    places = {"car": "inside", "hpc": "outside"}
    [finding] = diagnose(evidence(subject, outage=outage, endpoint_by_authority=places)).findings
    assert finding.advice.startswith(advice)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("1234", "1235", True),
        ("1234", "1243", True),
        ("1234", "123", True),
        ("1234", "12341", True),
        ("chasis", "chassis", True),
        ("1234", "1256", False),
        ("1234", "2143", False),
        ("1234", "12", False),
        ("a", "b", True),
    ],
)
def test_one_edit_is_one_character(one: str, other: str, *, expected: bool) -> None:
    assert is_one_edit(one, other) is expected
    assert is_one_edit(other, one) is expected


def test_similar_addresses_differ_in_one_part_as_by_a_typing_error() -> None:
    assert differing_part(TOPIC, TOPIC) is None
    assert differing_part(TOPIC, UUri("cab", 0x1234, 2, 0x8001)) is None
    assert is_similar(TOPIC, UUri("cars", 0x1234, 1, 0x8001))
    assert is_similar(TOPIC, UUri("car", 0x1234, 7, 0x8001))
    assert is_similar(TOPIC, TOPIC.with_resource(0x8002))
    assert not is_similar(TOPIC, TOPIC.with_resource(0x9999))
    assert not is_similar(TOPIC, UUri("hpc", 0x1234, 1, 0x8001))


def test_a_topic_for_listeners_needs_no_subscriber_and_no_publisher() -> None:
    steps = (
        Step("listeners", passed=True, text="each listener behind 'inside' gets it without a subscription"),
        Step("listeners", passed=False, text="a listener behind 'cloud' does not get it: a rule denies it"),
    )
    explanation = Explanation(SELF, steps, "delivered", (Target("inside", broadcast=True),))
    [found] = topic_findings(evidence(running=True, home=SELF, explanations=(explanation,)))
    assert found.cause == HEALTHY
    assert found.text.endswith(
        f"It has no subscriber. The topic needs no subscription: {steps[0].text}; {steps[1].text}."
    )


def test_a_broadcast_topic_that_goes_nowhere_names_the_rules() -> None:
    step = Step(
        "listeners", passed=False, text="a listener behind 'inside' does not get it: a rule denies it"
    )
    explanation = Explanation(SELF, (step,), "no_subscriber")
    found = topic_findings(evidence(running=True, home=SELF, explanations=(explanation,)))
    assert [each.cause for each in found] == ["listeners_refused"]
    assert step.text in found[0].text


def test_words_of_numbers_and_lists() -> None:
    assert (messages_wait(1), messages_wait(2)) == ("1 message waits", "2 messages wait")
    assert listed("abcde") == "a, b, c and 2 more"


@pytest.mark.parametrize(
    ("code", "reason", "cause"),
    [
        (UCode.RESOURCE_EXHAUSTED, "egress queue of endpoint 'b' is full (1)", "queue_full"),
        (UCode.RESOURCE_EXHAUSTED, "endpoint 'b': its spool is full (1 messages or 1 bytes)", "spool_full"),
        (UCode.RESOURCE_EXHAUSTED, "endpoint 'b': 1000 messages wait for the disk", "disk_slow"),
        (
            UCode.RESOURCE_EXHAUSTED,
            "egress queue of subscriber up://b/1/1/0 at endpoint 'b' is full",
            "subscriber_queue_full",
        ),
        (UCode.DEADLINE_EXCEEDED, "ttl had run out on arrival at 'a'", "expired_on_arrival"),
        (UCode.DEADLINE_EXCEEDED, "waited too long for endpoint 'b'", "expired_in_queue"),
        (UCode.INTERNAL, "filter x raised", "plugin_failed"),
        (UCode.UNAVAILABLE, "no subscriber", "receiver_absent"),
        (UCode.NOT_FOUND, "no such service", "send_refused"),
    ],
)
def test_a_dead_letter_has_a_cause_for_a_minute(code: UCode, reason: str, cause: str) -> None:
    letters = RecentLetters(TOPIC, None, "b", code, reason, "a", 1, 3, NOW_MS - 5_000, NOW_MS - 1_000, 3)
    [found] = letter_findings(evidence(letters=(letters,)), "messages")
    assert (found.cause, found.since_ms) == (cause, NOW_MS - 5_000)
    assert reason.partition(";")[0] in found.text
    old = msgspec.structs.replace(letters, last_ms=NOW_MS - 61_000)
    assert not list(letter_findings(evidence(letters=(old,)), "messages"))


@pytest.mark.parametrize("find", [topic_findings, method_findings, subscriber_findings])
def test_an_authority_of_no_endpoint_is_the_cause_for_every_kind_of_subject(find: Any) -> None:
    found = find(evidence(UUri("cars", 1, 1, 0x8001), home=None))
    assert found[0].cause == "unknown_authority"
    assert "'car' of endpoint 'inside' is similar" in found[0].text


def test_without_a_problem_the_answer_is_healthy() -> None:
    decided = Explanation("inside", (), "delivered", (Target("outside"),))
    [found] = topic_findings(evidence(explanations=(decided,)))
    assert found.cause == HEALTHY
    assert "1 target by the configuration" in found.text


def test_a_changed_file_comes_first_where_it_may_be_the_cause() -> None:
    changed = diagnose(evidence(home=None, running=True, unloaded_keys=("endpoints.a.authorities",)))
    assert [each.cause for each in changed.findings] == ["not_reloaded", "unknown_authority"]
    other = diagnose(evidence(running=True, unloaded_keys=("egress.a",)))
    assert [each.cause for each in other.findings] == ["no_subscriber", "not_reloaded"]
    broken = diagnose(evidence(running=True, file_problem="u.toml:1: nonsense"))
    assert broken.findings[-1].cause == "file_invalid"


@pytest.mark.parametrize(
    ("age_s", "text"), [(5, "5 s ago"), (150, "2 min ago"), (8_000, "2 h ago"), (-5, "0 s ago")]
)
def test_the_paragraph_states_cause_time_advice_and_further_problems(age_s: int, text: str) -> None:
    findings = (
        DiagnosisFinding("a", "The link is down.", NOW_MS - age_s * 1000, "Mend it."),
        DiagnosisFinding("b", "The store is full."),
    )
    found = paragraph(
        Diagnosis("up://car/1/1/8001", "topic", running=True, findings=findings), NOW_MS, "state"
    )
    assert found.startswith("The link is down. Since 2023-11-14 2")
    assert f"({text}). What to do: Mend it.\nAlso: The store is full." in found


HOUR_MS: Final = 3_600_000
METHOD: Final = UUri("car", 0x1234, 1, 1)
DECIDED: Final = Explanation("inside", (), "delivered", (Target("outside"),))


def failure(kind: str, age_ms: int, **changes: Any) -> RecentFailure:
    """Five failures, the last one `age_ms` ago."""
    return RecentFailure(kind, 5, NOW_MS - age_ms - 10_000, NOW_MS - age_ms, "10.0.0.7", **changes)


def text_of(evidence: Evidence) -> str:
    return paragraph(diagnose(evidence), NOW_MS, "state")


def test_refusals_of_an_hour_ago_have_their_end_and_follow_the_present_cause() -> None:
    known: dict[str, Any] = {"running": True, "explanations": (DECIDED,), "exact_endpoints": {"inside"}}
    present = text_of(evidence(**known, failures={"inside": [failure("event_unknown", 1_000)]}))
    assert present.startswith(f"Endpoint 'inside' refuses 5 events of {TOPIC} from 10.0.0.7:")
    assert "Since 2023-11-14 22:13:09 UTC (11 s ago)" in present
    past = text_of(evidence(**known, failures={"inside": [failure("event_unknown", HOUR_MS)]}))
    assert past.startswith("No message of")
    assert f"Endpoint 'inside' refused 5 events of {TOPIC} from 10.0.0.7:" in past
    assert "From 2023-11-14 21:13:10 UTC until 2023-11-14 21:13:20 UTC (60 min ago)." in past


def test_failed_calls_of_an_hour_ago_leave_a_method_healthy() -> None:
    answer = failure("error_response", HOUR_MS, detail="E_UNKNOWN_METHOD (0x03)")
    found = diagnose(evidence(METHOD, running=True, failures={"inside": [answer]})).findings
    assert [each.cause for each in found] == [HEALTHY]
    assert (
        "Earlier, 5 calls had the answer E_UNKNOWN_METHOD (0x03) from 10.0.0.7 until 2023-" in found[0].text
    )


def test_the_latest_failure_of_a_method_is_the_cause() -> None:
    earlier, later = failure("no_answer", 9_000), failure("error_response", 1_000)
    found = method_findings(evidence(METHOD, running=True, failures={"inside": [later, earlier]}))
    assert [each.cause for each in found] == ["error_response", "no_answer"]


@pytest.mark.parametrize(
    ("count", "ages_ms", "cause"),
    [
        (1, (3_600_000, 3_600_000), "sender_clock"),
        (50, (3_600_000, 3_660_000), "sender_clock"),
        (50, (5_000, 5_040), "sender_clock"),
        (1, (5_000, 5_000), "expired_on_arrival"),
        (50, (1_100, 5_000), "expired_on_arrival"),
        (50, (200, 210), "expired_on_arrival"),
    ],
)
def test_a_constant_age_on_arrival_is_a_clock_and_a_varying_one_a_delay(
    count: int, ages_ms: tuple[int, int], cause: str
) -> None:
    reason = "ttl of 100 ms had run out on arrival at 'a'"
    letters = RecentLetters(
        TOPIC, None, "", UCode.DEADLINE_EXCEEDED, reason, "a", 0, count, NOW_MS, NOW_MS, count, ages_ms
    )
    [found] = letter_findings(evidence(letters=(letters,)), "messages")
    assert found.cause == cause


def test_the_start_of_the_streamer_is_only_a_bound_of_the_time() -> None:
    running = text_of(evidence(running=True, since_ms=NOW_MS - 5_000))
    assert "At least since 2023-11-14 22:13:15 UTC (5 s ago)." in running
    assert "ince 2023" not in text_of(evidence(home=None))
    written = evidence(running=True, unloaded_keys=("a",), file_ms=NOW_MS - 2_000)
    assert "differ. Since 2023-11-14 22:13:18 UTC (2 s ago)." in text_of(written)


def test_an_address_is_not_named_by_a_longer_one() -> None:
    assert is_named(METHOD, f"the server of {METHOD} is away")
    assert not is_named(METHOD, f"the server of {METHOD}A is away")


@pytest.mark.parametrize(("age_ms", "found"), [(1_000, True), (HOUR_MS, False)])
def test_a_queue_that_was_full_an_hour_ago_is_no_present_problem(age_ms: int, *, found: bool) -> None:
    subscriber = UUri("car", 0x20, 1, 0)
    reason = f"egress queue of subscriber {subscriber} at endpoint 'b' is full"
    at_ms = NOW_MS - age_ms
    letters = RecentLetters(TOPIC, None, "b", UCode.RESOURCE_EXHAUSTED, reason, "a", 1, 3, at_ms, at_ms, 3)
    causes = [
        each.cause for each in subscriber_findings(evidence(subscriber, running=True, letters=(letters,)))
    ]
    assert ("subscriber_queue_full" in causes) is found


def snapshot_of(queue: EndpointQueueStatistics, suspicion: str = "") -> EndpointSnapshot:
    """An endpoint whose link is up, with this egress queue."""
    link = LinkState(up=True, up_count=1)
    counts = ("zenoh", link, "", suspicion, 0, 0, (), 0)
    return EndpointSnapshot(queue.endpoint, *counts, queue, 0, EgressLimits(), {}, ())


@pytest.mark.parametrize("waiting", [0, 7])
@pytest.mark.parametrize("by_subscriber", [False, True])
@pytest.mark.parametrize("about_subscriber", [False, True])
def test_a_queue_that_emptied_was_full(waiting: int, *, by_subscriber: bool, about_subscriber: bool) -> None:
    if about_subscriber and not by_subscriber:
        return  # the queue of the endpoint names no subscriber
    subscriber = UUri("b", 0x20, 1, 0)
    whose = f"subscriber {subscriber} at endpoint 'b'" if by_subscriber else "endpoint 'b'"
    reason = f"egress queue of {whose} is full (10 messages)"
    letters = RecentLetters(
        TOPIC, None, "b", UCode.RESOURCE_EXHAUSTED, reason, "a", 1, 3, NOW_MS - 30_000, NOW_MS - 20_000, 3
    )
    fullest = (SubscriberQueueStatistics(subscriber, waiting, 0, 0, 0),) if waiting else ()
    # Messages of others may wait in the queue of the endpoint.
    queue = EndpointQueueStatistics("b", waiting or 5 * by_subscriber, 0, 0, 0, 0, 0, 0, 0, fullest=fullest)
    endpoint = EndpointEvidence("b", "zenoh", ("b",), after=snapshot_of(queue))
    known: dict[str, Any] = {
        "running": True,
        "letters": (letters,),
        "endpoints": {"b": endpoint},
        "home": "b",
    }
    known["endpoint_by_authority"] = {"b": "b", "car": "b"}
    if about_subscriber:
        text = text_of(evidence(subscriber, **known))
    else:
        text = text_of(evidence(**known, explanations=(DECIDED,)))
    if waiting:
        assert f"{reason}" in text
        assert "Since 2023-11-14 22:12:50 UTC (30 s ago)." in text
    else:
        assert "was full (10 messages) and is empty now" in text
        assert " is full" not in text
        assert "is too slow" not in text
        assert "From 2023-11-14 22:12:50 UTC until 2023-11-14 22:13:00 UTC (20 s ago)." in text


DENIED: Final = Explanation("inside", (Step("access", passed=False, text="no rule allows it"),), "denied", ())


@pytest.mark.parametrize(
    ("rule", "begin"),
    [
        ("access", "The access rules deny"),
        ("identity", "The identities deny"),
        ("authorisation", "A plugin denies"),
    ],
)
def test_each_kind_of_denial_is_named(rule: str, begin: str) -> None:
    denied = Explanation("inside", (Step(rule, passed=False, text="not known"),), "denied", ())
    text = text_of(evidence(running=True, explanations=(denied,)))
    assert text.startswith(f"{begin} {TOPIC}: not known.")
    assert "'inside'" in text or "[[endpoints.inside.access]]" in text


def test_a_wrong_major_version_shows_next_to_an_access_rule() -> None:
    known: dict[str, Any] = {"running": True, "explanations": (DENIED,), "exact_endpoints": {"inside"}}
    refused = [failure("event_version", 1_000), failure("malformed", 1_000)]
    found = topic_findings(evidence(**known, failures={"inside": refused}))
    assert [each.cause for each in found] == ["access_denied", "wrong_major_version"]
    others = evidence(**known | {"exact_endpoints": ()}, failures={"inside": refused})
    assert [each.cause for each in topic_findings(others)] == ["access_denied"]


def test_refusals_of_the_whole_endpoint_may_be_those_of_the_topic() -> None:
    refused = {"inside": [failure("event_version", 1_000)]}
    text = text_of(evidence(running=True, explanations=(DECIDED,), failures=refused))
    assert text.startswith(
        f"Endpoint 'inside' refuses 5 events, which may be {TOPIC}, from 10.0.0.7: the major"
    )


@pytest.mark.parametrize(
    "subject", [TOPIC, METHOD, UUri("car", 0x1234, 1, 0)], ids=["topic", "method", "subscriber"]
)
def test_a_suspect_node_is_the_cause_while_its_link_is_up(subject: UUri) -> None:
    suspicion = "the node has sent no sign of life for 5.1 s"
    after = snapshot_of(EndpointQueueStatistics("outside", 0, 0, 0, 0, 0, 0, 0, 0), suspicion)
    outside = EndpointEvidence("outside", "zenoh", ("cloud",), after=after)
    decided = Explanation("inside", (), "delivered", (Target("outside"),))
    home = "inside" if subject.is_topic else "outside"
    known: dict[str, Any] = {
        "endpoints": {"inside": EndpointEvidence("inside", "local", ("car",)), "outside": outside}
    }
    found = diagnose(evidence(subject, running=True, home=home, explanations=(decided,), **known))
    assert found.cause.cause == "node_suspect"
    assert found.cause.text == f"A node behind endpoint 'outside' may be frozen or cut off: {suspicion}."


CALLER: Final = UUri("cloud", 0x55, 1, 0)
COUNTED: Final = TargetStatistics(TOPIC, "inside", "outside", None, 0, 9, 9, 0)
"""A target with 9 messages, all within the sample."""


def denial_of(source: UUri, sink: UUri | None, age_ms: int, denied_as: str) -> RecentDenial:
    """Three denied messages within 200 ms."""
    last_ms = NOW_MS - age_ms
    return RecentDenial("outside", source, sink, denied_as, "no rule allows it", 3, last_ms - 200, last_ms)


@pytest.mark.parametrize(("age_ms", "cause"), [(5_000, "access_denied"), (75_000, HEALTHY)])
def test_a_denied_call_is_a_problem_for_a_minute(age_ms: int, cause: str) -> None:
    denials = (denial_of(CALLER, METHOD, age_ms, "access"),)
    found = diagnose(evidence(METHOD, running=True, denials=denials)).cause
    assert found.cause == cause
    if cause == HEALTHY:
        earlier = "Earlier, 3 calls by up://cloud/55/1/0 were denied until 2023-11-14 22:12:05 UTC (no rule allows it)."
        assert earlier in found.text
    else:
        assert found.since_ms == NOW_MS - 5_200


def test_the_denied_calls_of_another_caller_are_no_problem_of_the_given_one() -> None:
    denials = (denial_of(CALLER, METHOD, 5_000, "access"), denial_of(CALLER, METHOD, 75_000, "access"))
    caller = UUri("hpc", 0x77, 1, 0)
    text = text_of(evidence(METHOD, running=True, denials=denials, source=caller))
    assert text.startswith("Nothing is wrong")
    assert str(CALLER) not in text
    failed = {"inside": [failure("no_answer", 1_000)]}
    found = method_findings(evidence(METHOD, running=True, denials=denials, source=caller, failures=failed))
    assert [each.cause for each in found] == ["no_answer"]


@pytest.mark.parametrize(("age_ms", "count"), [(5_000, 1), (75_000, 0)])
def test_denied_responses_concern_the_caller_that_they_go_to(age_ms: int, count: int) -> None:
    denials = (denial_of(METHOD, CALLER, age_ms, "access"),)
    for source, expected in ((None, count), (CALLER, count), (UUri("hpc", 0x77, 1, 0), 0)):
        found = method_findings(evidence(METHOD, running=True, denials=denials, source=source))
        assert [each.cause for each in found] == (["access_denied"] * expected or [HEALTHY])


@pytest.mark.parametrize(
    ("age_ms", "others", "causes"),
    [
        (500, {}, ["wrong_endpoint", "publisher_silent"]),
        (5_000, {}, ["wrong_endpoint", "publisher_silent"]),
        (75_000, {}, ["publisher_silent", "wrong_endpoint"]),
        (5_000, {"targets": (COUNTED,)}, [HEALTHY]),
        (500, {"targets": (COUNTED,)}, ["wrong_endpoint"]),
        (
            5_000,
            {"failures": {"inside": [failure("event_unknown", 100)]}},
            ["unknown_event", "wrong_endpoint"],
        ),
    ],
)
def test_a_wrong_endpoint_is_over_once_the_messages_come_in_at_the_right_one(
    age_ms: int, others: dict[str, Any], causes: list[str]
) -> None:
    known: dict[str, Any] = {"running": True, "explanations": (DECIDED,), "exact_endpoints": {"inside"}}
    found = topic_findings(evidence(**known, denials=(denial_of(TOPIC, None, age_ms, "spoofed"),), **others))
    assert [each.cause for each in found][: len(causes)] == causes
    for each in found:
        if each.cause == "wrong_endpoint":
            is_over = age_ms > 1_000
            assert each.until_ms == (NOW_MS - age_ms if is_over else None)
            assert ("came in" if is_over else "come in") in each.text


@pytest.mark.parametrize(("age_ms", "expected"), [(5_000, True), (75_000, False)])
def test_a_subscriber_at_the_wrong_endpoint_has_no_subscription(age_ms: int, *, expected: bool) -> None:
    denials = (denial_of(CALLER, UUri("hpc", 0, 3, 1), age_ms, "spoofed"),)
    found = subscriber_findings(evidence(CALLER, home="outside", running=True, denials=denials))
    assert [each.cause for each in found] == ["wrong_endpoint"] * expected + ["no_subscription"]


SENT: Final = RoutingDecision((Target("inside"),))
CALL: Final = ObservedRoute("outside", CALLER, METHOD, SENT, 800, NOW_MS - 5_000, is_current=True)
ANSWER: Final = ObservedRoute("inside", METHOD, CALLER, SENT)


@pytest.mark.parametrize(
    ("known", "cause", "text"),
    [
        (
            {"routes": (CALL,)},
            "no_answer",
            f"by {CALLER} go to endpoint 'inside', but no response has come in",
        ),
        ({"routes": (CALL, ANSWER)}, HEALTHY, f"calls of {CALLER} came in lately."),
        ({"routes": (CALL,), "source": UUri("cloud", 8, 1, 0)}, HEALTHY, "came in lately."),
        ({"routes": (CALL,), "exact_endpoints": {"inside"}}, HEALTHY, "came in lately."),
        ({"routes": (CALL,), "routes_complete": False}, HEALTHY, "came in lately."),
        (
            {"routes": (msgspec.structs.replace(CALL, first_ms=NOW_MS - 700),)},
            HEALTHY,
            f"; no response for {CALLER} has come in since 2023-11-14 22:13:19 UTC.",
        ),
        (
            {"routes": (msgspec.structs.replace(CALL, is_current=False),)},
            HEALTHY,
            f"; no response for {CALLER} has come in since 2023-11-14 22:13:15 UTC.",
        ),
        (
            {"routes": (msgspec.structs.replace(CALL, ingress="inside", decision=RoutingDecision()),)},
            HEALTHY,
            f"no call came in lately; {CALLER} calls within the network of 'inside', where the streamer forwards",
        ),
    ],
)
def test_calls_without_a_response_since_the_first_one(known: dict[str, Any], cause: str, text: str) -> None:
    [found] = method_findings(evidence(METHOD, running=True, **known))
    assert found.cause == cause
    assert text in found.text


def test_a_stalled_receiver_is_named_while_messages_wait_for_it() -> None:
    subscriber = UUri("cloud", 0x20, 1, 0)
    queue = EndpointQueueStatistics("outside", 7, 0, 0, 0, 0, 0, 7, 1)
    known: dict[str, Any] = {
        "running": True,
        "explanations": (DECIDED,),
        "endpoints": {"outside": EndpointEvidence("outside", "zenoh", ("cloud",), after=snapshot_of(queue))},
        "targets": (TargetStatistics(TOPIC, "inside", "outside", None, 0, 9, 2, 0),),
        "blocked": {"outside": BlockedMessages(7, NOW_MS - 3_000)},
        "subscriptions": (Subscription(topic=TOPIC, subscriber=subscriber),),
        "subscriber_endpoints": {subscriber: "outside"},
    }
    [found] = topic_findings(evidence(**known, stalled_ms={"outside": NOW_MS - 9_000}))
    assert (found.cause, found.since_ms) == ("receiver_stalled", NOW_MS - 9_000)
    assert (
        f"behind endpoint 'outside', {subscriber}, stopped reading, and its link ended; 7 messages"
        in found.text
    )
    [found] = topic_findings(evidence(**known, stalled_ms={"inside": NOW_MS - 9_000}))
    assert found.cause == "receiver_unavailable"


@pytest.mark.parametrize(("named", "expected"), [(TOPIC, True), (UUri("cloud", 0x78, 1, 0), False)])
def test_the_reason_of_another_route_is_none_of_the_topic(named: UUri, *, expected: bool) -> None:
    queue = EndpointQueueStatistics("outside", 7, 0, 0, 0, 0, 0, 7, 1)
    reason = f"no subscriber for {named}"
    fields = {"endpoint": "outside", "reason": reason}
    known: dict[str, Any] = {
        "running": True,
        "explanations": (DECIDED,),
        "endpoints": {"outside": EndpointEvidence("outside", "zenoh", ("cloud",), after=snapshot_of(queue))},
        "targets": (TargetStatistics(TOPIC, "inside", "outside", None, 0, 9, 2, 0),),
        "blocked": {"outside": BlockedMessages(7, NOW_MS - 3_000)},
        "log_lines": (RecentLogLine(NOW_MS, "warning", "egress.route_unavailable", fields),),
    }
    [found] = topic_findings(evidence(**known))
    assert (reason in found.text) is expected


@pytest.mark.parametrize(
    ("stalled_ms", "cause"), [({}, "server_absent"), ({"inside": NOW_MS - 9_000}, "receiver_stalled")]
)
def test_calls_wait_for_a_server_that_is_away_or_stalled(stalled_ms: dict[str, int], cause: str) -> None:
    blocked = {"inside": BlockedMessages(7, NOW_MS - 3_000)}
    [found] = method_findings(evidence(METHOD, running=True, blocked=blocked, stalled_ms=stalled_ms))
    assert found.cause == cause
    assert "7 messages wait" in found.text
