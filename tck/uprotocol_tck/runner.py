# SPDX-License-Identifier: Apache-2.0
"""Runs cases: most of them next to each other, those that disturb others alone and at the end."""

import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, suppress
from enum import StrEnum
from typing import Final, NamedTuple

import zenoh

from uprotocol_tck.case import Case, CaseFailed, Need, NotApplicable
from uprotocol_tck.probe import Network
from uprotocol_tck.protobuf import MalformedProtobuf
from uprotocol_tck.remote import RemoteUsubscription
from uprotocol_tck.uprotocol import Code
from uprotocol_tck.world import Names, Options, World

JOBS: Final = 8
FEATURES: Final = {
    "v3": Need.VERSION_3,
    "v4": Need.VERSION_4,
    "lifecycle": Need.LIFECYCLE,
    "max-frequency": Need.MAX_FREQUENCY,
}
"""What the subject may lack. The kit finds out the first three, unless the command line has them."""


class Verdict(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    NOT_APPLICABLE = "not applicable"


class Outcome(NamedTuple):
    """The end of one case; `reason` is empty for a passed one."""

    case: Case
    verdict: Verdict
    reason: str
    seconds: float


class Unreachable(Exception):
    """Nothing answers where the subject should be."""


class Session:
    """The networks of one run."""

    def __init__(self, near: Network, far: Network | None, options: Options) -> None:
        """`far` is the network of the other device; without it, that device is on the network `near`."""
        self._near = near
        self._far = far or near
        self._options = options
        self._names = Names()
        self._stack = ExitStack()
        self._remote = RemoteUsubscription(self._far, options.other) if options.other else None
        if self._remote:
            self._stack.callback(self._remote.close)
        self.default_version = 3

    def world(self, version: int) -> World:
        """A world for one case."""
        far = self._far if self._options.other else None
        made_for = version or self.default_version
        return World(self._near, far, self._remote, self._options, self._names, made_for)

    def find_missing(self) -> dict[Need, str]:
        """What the subject does not speak, with the reason. Raises Unreachable if it answers in no version."""
        missing: dict[Need, str] = {Need.MAX_FREQUENCY: ""}
        for version, need in ((3, Need.VERSION_3), (4, Need.VERSION_4)):
            answered = self._answer_of(version)
            if answered is not Code.OK:
                what = "no answer" if answered is None else answered.name
                missing[need] = f"FetchSubscriptions in version {version}: {what}"
        if missing.keys() >= {Need.VERSION_3, Need.VERSION_4}:
            service = f"//{self._options.authority}/0"
            answers = "; ".join(filter(None, missing.values()))
            raise Unreachable(
                f"no uSubscription answers at {service}: {answers}. "
                f"--authority names the authority of the subject, now {self._options.authority!r}"
            )
        if Need.VERSION_3 in missing:
            self.default_version = 4
            missing[Need.LIFECYCLE] = missing[Need.VERSION_3]
        elif (answered := self._lifecycle_answer()) in {None, Code.UNIMPLEMENTED, Code.NOT_FOUND}:
            missing[Need.LIFECYCLE] = f"CreateTopic: {answered.name if answered else 'no answer'}"
        return missing

    def close(self) -> None:
        self._stack.close()

    def _answer_of(self, version: int) -> Code | None:
        world = self.world(version)
        app = world.app()
        return _code(
            lambda: (
                app.ask(
                    app.dialect.methods.fetch_subscriptions, app.dialect.fetch(None, app.address)
                ).head.code
            ),
            world,
        )

    def _lifecycle_answer(self) -> Code | None:
        world = self.world(3)
        app = world.app()
        request = app.dialect.topic_request(app.address.at(0x8001))
        return _code(lambda: app.ask(app.dialect.methods.create_topic, request).head.code, world)


def _code(ask: Callable[[], Code], world: World) -> Code | None:
    try:
        return ask()
    except CaseFailed:
        return None
    finally:
        world.close()


def run_cases(
    session: Session,
    cases: Sequence[Case],
    missing: dict[Need, str],
    *,
    jobs: int = JOBS,
    fail_fast: bool = False,
    on_outcome: Callable[[Outcome], None] = lambda _: None,
) -> list[Outcome]:
    """Run the cases; the outcomes are in their order. With `fail_fast`, cases after the first failure are left out."""
    outcomes: dict[int, Outcome] = {}

    def end(number: int, outcome: Outcome) -> bool:
        outcomes[number] = outcome
        on_outcome(outcome)
        return fail_fast and outcome.verdict is Verdict.FAILED

    numbered = list(enumerate(cases))
    skipped = {n: why for n, case in numbered if (why := _why_not(case, missing))}
    for number, why in skipped.items():
        end(number, Outcome(cases[number], Verdict.NOT_APPLICABLE, why, 0.0))
    together = [(n, case) for n, case in numbered if n not in skipped and not case.alone]
    alone = [(n, case) for n, case in numbered if n not in skipped and case.alone]
    stopped = False
    with ThreadPoolExecutor(max_workers=jobs) as pool:
        pending = {pool.submit(run_case, session, case): n for n, case in together}
        for future in as_completed(pending):
            stopped = end(pending[future], future.result())
            if stopped:
                break
        for future in pending:
            future.cancel()  # the running ones still end
    for number, case in alone:
        if stopped:
            break
        stopped = end(number, run_case(session, case))
    return [outcomes[number] for number in sorted(outcomes)]


def run_case(session: Session, case: Case) -> Outcome:
    """Run one case in a world of its own."""
    began = time.monotonic()
    world = session.world(case.version)
    verdict, reason = Verdict.PASSED, ""
    try:
        case.body(world)
    except CaseFailed as failed:
        verdict, reason = Verdict.FAILED, str(failed)
    except MalformedProtobuf as malformed:
        verdict, reason = Verdict.FAILED, f"a payload of another type than the rule has: {malformed}"
    except NotApplicable as why:
        verdict, reason = Verdict.NOT_APPLICABLE, str(why)
    except Exception:  # noqa: BLE001 - a defect of the kit is shown, and the other cases still run
        verdict, reason = Verdict.FAILED, f"the case itself failed:\n{traceback.format_exc()}"
    seconds = time.monotonic() - began
    with suppress(CaseFailed, zenoh.ZError):  # of a session that the case has lost
        world.close()
    return Outcome(case, verdict, reason, seconds)


def _why_not(case: Case, missing: dict[Need, str]) -> str:
    return next(
        (
            f"{need.value} ({missing[need]})" if missing[need] else need.value
            for need in case.needs
            if need in missing
        ),
        "",
    )


def selected(cases: Iterable[Case], subjects: Iterable[str], patterns: Iterable[str]) -> list[Case]:
    """The cases of these subjects whose name or a rule contains one of the patterns, or all without a pattern."""
    wanted = set(subjects)
    texts = list(patterns)
    return [
        each
        for each in cases
        if each.subject in wanted
        and (not texts or any(text in name for text in texts for name in (each.name, *each.rules)))
    ]
