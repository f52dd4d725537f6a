# SPDX-License-Identifier: Apache-2.0
"""Why calls of a method fail: a table of checks, in the order in which a request meets their subjects."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from ustreamer.core.base.recent_failures import RecentFailure
from ustreamer.core.dispatch.recent_denials import RecentDenial
from ustreamer.core.routing.route_cache import ObservedRoute
from ustreamer.core.routing.router import SELF
from ustreamer.host.diagnosis.evidence import Evidence
from ustreamer.host.diagnosis.findings import (
    DENIALS,
    HEALTHY,
    STALLED_ADVICE,
    UNREACHABLE,
    Check,
    DiagnosisFinding,
    failure_finding,
    failures_of,
    is_deferred,
    is_named,
    last_ms,
    letter_findings,
    link_down,
    listed,
    messages_wait,
    peers_text,
    run_checks,
    time_of_day,
    total,
    unknown_authority,
)
from ustreamer.uprotocol.uuri import UUri

_REQUEST_REFUSALS: Final = {
    "request_address": ("caller_refused", "its address is not in `clients`"),
    "request_service": ("service_not_offered_here", "the service is not offered there"),
    "request_version": ("wrong_major_version", "the major version is not the offered one"),
    "request_method": ("unknown_method", "the method is not in `methods` of the service"),
    "request_type": ("wrong_request_type", "the method has no response, but one is requested"),
    "request_client": ("wrong_client_id", "client id 0xFFFF is a wildcard"),
}
"""Requests of SOME/IP clients that an endpoint refuses: their cause, and what is wrong."""


_CALL_FAILURES: Final = {
    "error_response": (
        "error_response",
        "had the answer",
        "Compare the service description of the ECU with the caller: method, major version, payload, state of the ECU.",
    ),
    "no_answer": (
        "no_answer",
        "had no response within their ttl",
        "Check that the server runs and answers; raise the ttl of the caller if the server is slow.",
    ),
    "service_gone": (
        "server_gone",
        "ended when their service went away",
        "Check why the server has stopped its offer.",
    ),
}
"""Failures of calls by kind: their cause, what happened to the calls, and what to do."""


_SPOOFED_RESPONSES: Final = (
    "The streamer denies",
    "Move the server's authority to `authorities` of endpoint {!r}, or correct its source.",
)
"""Responses from the wrong endpoint: what denies them, and what to do."""


def method_findings(evidence: Evidence) -> list[DiagnosisFinding]:
    """All findings about a method, the cause first; one `healthy` finding if nothing is wrong."""
    found = run_checks(METHOD_CHECKS, evidence) or list(_unanswered_calls(evidence))
    return found or [_healthy(evidence)]


def unanswered_routes(routes: Iterable[ObservedRoute], method: UUri) -> list[ObservedRoute]:
    """The routes of calls of `method`, of callers that have had no Response of it."""
    answered = {each.sink for each in routes if each.source == method}
    return [
        each
        for each in routes
        if each.sink == method and each.source not in answered and each.decision.targets
    ]


def _denials(evidence: Evidence, *, earlier: bool = False) -> list[RecentDenial]:
    """The denied requests of the last minute, or `earlier`, the latest first: those of the given caller, or of all."""
    found = [
        each
        for each in evidence.denials
        if each.sink == evidence.subject
        and evidence.source in (None, each.source)
        and each.is_current(evidence.now_ms) is not earlier
    ]
    return sorted(found, key=lambda each: -each.last_ms)


def _denied_caller(evidence: Evidence) -> Iterator[DiagnosisFinding]:
    """Requests that came in were denied."""
    for denial in _denials(evidence):
        if denial.denied_as in DENIALS:
            what, advice = DENIALS[denial.denied_as]
            yield DiagnosisFinding(
                "access_denied",
                f"{what} calls of {evidence.subject} by {denial.source}: {denial.reason}.",
                denial.first_ms,
                advice.format(denial.ingress),
            )
        else:
            yield DiagnosisFinding(
                "wrong_endpoint",
                f"Calls of {evidence.subject} by {denial.source} are denied, as they come in at endpoint "
                f"{denial.ingress!r}: {denial.reason}.",
                denial.first_ms,
                f"Move the caller's authority to `authorities` of endpoint {denial.ingress!r}, or correct its source.",
            )


def _denied(evidence: Evidence) -> Iterator[DiagnosisFinding]:
    """The router would deny the call of the given caller."""
    if evidence.source is None:
        return  # a rule may allow some callers
    denied = [
        (each.ingress, step)
        for each in evidence.explanations
        for step in each.steps
        if step.rule in DENIALS and not step.passed
    ]
    if denied and len(denied) == len(evidence.explanations) and not any(_denied_caller(evidence)):
        ingress, step = denied[0]
        what, advice = DENIALS[step.rule]
        yield DiagnosisFinding(
            "access_denied",
            f"{what} calls of {evidence.subject}: {step.text}.",
            evidence.loaded_ms,
            advice.format(ingress),
        )


def _denied_responses(evidence: Evidence) -> Iterator[DiagnosisFinding]:
    """Responses of the server to the given caller, or to any, were denied: the last denial names why."""
    denied = [
        each
        for each in evidence.denials
        if each.source == evidence.subject
        and evidence.source in (None, each.sink)
        and each.is_current(evidence.now_ms)
    ]
    if not denied:
        return
    last = max(denied, key=lambda each: each.last_ms)
    callers = listed(dict.fromkeys(str(each.sink) for each in denied))
    what, advice = DENIALS.get(last.denied_as, _SPOOFED_RESPONSES)
    yield DiagnosisFinding(
        "access_denied" if last.denied_as in DENIALS else "wrong_endpoint",
        f"{what} responses of {evidence.subject} to {callers} at endpoint {last.ingress!r}: {last.reason}.",
        min(each.first_ms for each in denied),
        advice.format(last.ingress),
    )


def _same_network(evidence: Evidence) -> Iterator[DiagnosisFinding]:
    """The given caller lives behind the endpoint of the method."""
    if evidence.source is not None and evidence.explanations:
        explanation = evidence.explanations[0]
        if explanation.verdict == "no_subscriber" and explanation.ingress == evidence.home:
            yield DiagnosisFinding(
                "same_network",
                f"{evidence.source} and {evidence.subject} live behind the same endpoint {evidence.home!r}, so the "
                "streamer forwards no calls between them.",
                evidence.loaded_ms,
                f"Look for the fault in the network of endpoint {evidence.home!r}.",
            )


def _deferred(evidence: Evidence) -> Iterator[DiagnosisFinding]:
    by_route = any(each.decision.deferred and each.sink == evidence.subject for each in evidence.routes)
    decided = [each for each in evidence.explanations if each.verdict != "denied"]
    if by_route or (decided and all(map(is_deferred, decided))):
        peers = dict.fromkeys(each for one in evidence.endpoints.values() for each in one.peers)
        yield DiagnosisFinding(
            "deferred_to_peer",
            f"The peer streamer {listed(map(repr, peers)) or 'on this network'} forwards calls of {evidence.subject}, "
            "so this streamer does not.",
            max((each.peers_ms for each in evidence.endpoints.values() if each.peers_ms), default=None),
            "Run `ustreamer why` at that streamer if the calls fail.",
        )


def _server_link(evidence: Evidence) -> Iterator[DiagnosisFinding]:
    what = f"calls of {evidence.subject} reach no server"
    yield from link_down(evidence, evidence.home_endpoint, what, "link_down")


def _failed_calls(evidence: Evidence) -> Iterator[DiagnosisFinding]:
    yield from letter_findings(evidence, f"calls of {evidence.subject}")


def _waiting_calls(evidence: Evidence) -> Iterator[DiagnosisFinding]:
    home = evidence.home_endpoint
    blocked = evidence.blocked.get(evidence.home or "")
    if home is None or blocked is None:
        return
    if home.name in evidence.stalled_ms:
        yield DiagnosisFinding(
            "receiver_stalled",
            f"The server of {evidence.subject} behind endpoint {home.name!r} stopped reading, and its link ended; "
            f"{messages_wait(blocked.number)}.",
            evidence.stalled_ms[home.name],
            STALLED_ADVICE,
        )
        return
    reasons = [
        each.fields["reason"]
        for each in evidence.log_lines
        if each.event == "egress.route_unavailable"
        and is_named(evidence.subject, each.fields.get("reason", ""))
    ]
    reason = f": {reasons[-1]}" if reasons else ""
    yield DiagnosisFinding(
        "server_absent",
        f"The server of {evidence.subject} is not available at endpoint {home.name!r}, so {messages_wait(blocked.number)}"
        f"{reason}.",
        blocked.since_ms,
        "Start the server, or check its network.",
    )


def _failed_at_server(evidence: Evidence) -> Iterator[DiagnosisFinding]:
    """The server answers with errors, or not at all."""
    found = failures_of(evidence, evidence.home or "")
    unreachable = found.get(UNREACHABLE, ())
    if unreachable and ("no_answer" in found or unreachable[0].goes_on(evidence.now_ms)):
        yield failure_finding(
            "server_absent",
            f"Nothing listens at {unreachable[0].peer}, to which endpoint {evidence.home!r} sends calls of "
            f"{evidence.subject}.",
            unreachable,
            "Start the server, or correct `remote` of the service.",
            earlier=False,
        )
    for kind, failures in found.items():
        if kind in _CALL_FAILURES:
            cause, what, advice = _CALL_FAILURES[kind]
            text = f"{_calls(total(failures))} of {evidence.subject} {what}{_detail_text(failures)}."
            yield failure_finding(cause, text, failures, advice, earlier=False)


def _unanswered_requests(evidence: Evidence) -> Iterator[DiagnosisFinding]:
    """Requests of SOME/IP clients that the server, behind another endpoint, did not answer."""
    for endpoint in evidence.endpoints.values():
        failures = failures_of(evidence, endpoint.name).get("request_expired", ())
        if failures and endpoint.name != evidence.home:
            yield failure_finding(
                "no_answer",
                f"{_calls(total(failures))} of {evidence.subject}{peers_text(failures)} had no response within "
                f"request_ttl_ms of endpoint {endpoint.name!r}.",
                failures,
                f"Check that the server behind endpoint {evidence.home!r} runs and answers; raise request_ttl_ms if it "
                "is slow.",
                earlier=False,
            )


def _unanswered_calls(evidence: Evidence) -> Iterator[DiagnosisFinding]:
    """Calls come in now, the first one longer than its ttl ago, and no Response has come since: no other check knows."""
    silent = [
        each
        for each in _silent_routes(evidence)
        if each.is_current and evidence.now_ms - each.first_ms > (each.ttl or 0)
    ]
    if silent:
        callers = listed(dict.fromkeys(each.source for each in silent))
        yield DiagnosisFinding(
            "no_answer",
            f"Calls of {evidence.subject} by {callers} go to endpoint {evidence.home!r}, but no response has come in "
            "from there.",
            min(each.first_ms for each in silent),
            "Check that the server runs and answers; raise the ttl of the caller if the server is slow.",
        )


def _silent_routes(evidence: Evidence) -> list[ObservedRoute]:
    """The routes of calls without a Response, if only the routes can tell, and all are known."""
    home = evidence.home
    if home is None or home == SELF or home in evidence.exact_endpoints or not evidence.routes_complete:
        return []
    found = unanswered_routes(evidence.routes, evidence.subject)
    return [each for each in found if evidence.source in (None, each.source)]


def _calls(number: int) -> str:
    return "1 call" if number == 1 else f"{number} calls"


def _detail_text(failures: Sequence[RecentFailure]) -> str:
    details = dict.fromkeys(each.detail for each in failures if each.detail)
    return f"{f' {listed(details)}' if details else ''}{peers_text(failures)}"


def _refused_requests(evidence: Evidence) -> Iterator[DiagnosisFinding]:
    """Requests of SOME/IP clients that an endpoint did not accept."""
    for endpoint in evidence.endpoints.values():
        if evidence.home in (endpoint.name, SELF):  # no SOME/IP service stands for a service of the streamer
            continue
        for name, failures in failures_of(evidence, endpoint.name).items():
            if name in _REQUEST_REFUSALS:
                cause, why = _REQUEST_REFUSALS[name]
                yield failure_finding(
                    cause,
                    f"Endpoint {endpoint.name!r} refuses {_calls(total(failures))} of {evidence.subject}"
                    f"{peers_text(failures)}: {why}.",
                    failures,
                    f"Compare `clients` and the offered services of endpoint {endpoint.name!r} with the caller. "
                    "The log has the first refused request.",
                    earlier=False,
                )


def _earlier_text(evidence: Evidence) -> str:
    """A sentence about failures that are over."""
    kinds = {kind: what for kind, (_, what, _) in _CALL_FAILURES.items()}
    kinds["request_expired"] = "had no response in time"
    kinds |= {kind: f"were refused, as {why}" for kind, (_, why) in _REQUEST_REFUSALS.items()}
    parts = [
        f"{_calls(total(failures))} {kinds[kind]}{_detail_text(failures)} until {time_of_day(last_ms(failures))}"
        for endpoint in evidence.endpoints
        for kind, failures in failures_of(evidence, endpoint, earlier=True).items()
        if kind in kinds
    ]
    parts += [
        f"{_calls(each.count)} by {each.source} {'was' if each.count == 1 else 'were'} denied until "
        f"{time_of_day(each.last_ms)} ({each.reason})"
        for each in _denials(evidence, earlier=True)
    ]
    return f" Earlier, {listed(parts)}." if parts else ""


def _healthy(evidence: Evidence) -> DiagnosisFinding:
    where = "this streamer" if evidence.home == SELF else f"endpoint {evidence.home!r}"
    if not evidence.running:
        return DiagnosisFinding(HEALTHY, f"Calls of {evidence.subject} go to {where} by the configuration.")
    return DiagnosisFinding(
        HEALTHY,
        f"Nothing is wrong with calls of {evidence.subject}: they go to {where}, and {_callers_text(evidence)}."
        f"{_earlier_text(evidence)}",
    )


def _callers_text(evidence: Evidence) -> str:
    """A clause about the calls that came in."""
    seen = [each for each in evidence.routes if each.sink == evidence.subject]
    inner = dict.fromkeys(each.source for each in seen if each.ingress == evidence.home)
    outer = dict.fromkeys(each.source for each in seen if each.ingress != evidence.home)
    text = f"calls of {listed(outer)} came in lately" if outer else "no call came in lately"
    silent = _silent_routes(evidence)
    if silent:
        callers = listed(dict.fromkeys(each.source for each in silent))
        text += f"; no response for {callers} has come in since {time_of_day(min(each.first_ms for each in silent))}"
    if inner:
        text += f"; {listed(inner)} calls within the network of {evidence.home!r}, where the streamer forwards nothing"
    return text


METHOD_CHECKS: Final[tuple[Check, ...]] = (
    unknown_authority,
    _denied_caller,
    _denied,
    _denied_responses,
    _same_network,
    _deferred,
    _server_link,
    _failed_calls,
    _waiting_calls,
    _refused_requests,
    _failed_at_server,
    _unanswered_requests,
)
