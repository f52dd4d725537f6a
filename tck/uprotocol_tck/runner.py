# SPDX-License-Identifier: Apache-2.0
"""Runs cases: most of them next to each other, those that disturb others alone and at the end."""

import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
from contextlib import ExitStack, contextmanager, suppress
from enum import StrEnum
from typing import Final, NamedTuple

import zenoh

from uprotocol_tck.case import Case, CaseFailed, Need, NotApplicable, NotJudged
from uprotocol_tck.other_runs import OtherRuns
from uprotocol_tck.probe import Network
from uprotocol_tck.protobuf import MalformedProtobuf
from uprotocol_tck.remote import RemoteUsubscription
from uprotocol_tck.shared_restart import SharedRestart
from uprotocol_tck.uprotocol import Code, Uri
from uprotocol_tck.world import Application, Names, Options, World

JOBS: Final = 8
FEATURES: Final = {
    "v3": Need.VERSION_3,
    "v4": Need.VERSION_4,
    "lifecycle": Need.LIFECYCLE,
    "max-frequency": Need.MAX_FREQUENCY,
}
"""What the subject may lack. The kit finds out the first three, unless the command line has them."""
INTERRUPTED: Final = "the run was interrupted"
GONE: Final = "the subject does not answer any more"
_UNKNOWN_TOPIC: Final = {Code.NOT_FOUND, Code.FAILED_PRECONDITION}
"""The outcome of a Subscribe where a topic exists only after CreateTopic."""


class Verdict(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    NOT_APPLICABLE = "not applicable"
    NOT_JUDGED = "not judged"


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

    def __init__(
        self,
        near: Network,
        far: Network | None,
        options: Options,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`far` is the network of the other device; without it, that device is on the network `near`.

        `note` takes what the user should know before the verdicts. Raises NotJudged if another run is in the way.
        """
        self._note = note
        self._near = near
        self._far = far or near
        self._options = options
        self._other_runs = OtherRuns(near, note)
        self._names = Names(self._other_runs.instance)
        self._stack = ExitStack()
        self._remote: RemoteUsubscription | None = None
        if options.other:
            self._remote = RemoteUsubscription(self._far, options.other, self._is_foreign)
            self._stack.callback(self._remote.close)
        self.stop = near.stop
        self.default_version = 3
        self._answer_s = 0.0

    def world(self, version: int, restart: SharedRestart | None = None) -> World:
        """A world for one case. `restart` is shared by the cases that run next to it."""
        far = self._far if self._options.other else None
        made_for = version or self.default_version
        return World(self._near, far, self._remote, self._options, self._names, made_for, restart)

    @contextmanager
    def without_other_runs(self) -> Iterator[None]:
        """The body may disturb every client of the subject. Raises NotJudged if another run does not end."""
        with self._other_runs.exclusive(self._without_far_network):
            yield

    @contextmanager
    def _without_far_network(self) -> Iterator[None]:
        """In the body another run can take away the network of the other device: this one has left it."""
        if self._far is self._near:
            yield
            return
        self._far.leave()
        try:
            yield
        finally:
            self._far.return_()
            if self._remote:
                self._remote.listen()

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
        else:
            self._options = self._options._replace(creates_topics=self._topics_are_created())
        self._options = self._options._replace(answer_s=self._answer_s)
        return missing

    def answers(self) -> bool:
        """Whether the uSubscription of the subject answers now."""
        return self._answer_of(self.default_version) is not None

    def close(self) -> None:
        self._stack.close()

    def _is_foreign(self, topic: Uri) -> bool:
        """True for a topic of another run of the kit, which answers the calls about it."""
        instance = topic.ue_id >> 16
        return instance != self._other_runs.instance and self._other_runs.has(instance)

    def _answer_of(self, version: int) -> Code | None:
        return self._code(version, lambda app: app.fetch_code())

    def _lifecycle_answer(self) -> Code | None:
        return self._code(3, lambda app: app.create_code(app.address.at(0x8001)))

    def _topics_are_created(self) -> bool:
        """Whether a topic can be subscribed after CreateTopic only."""
        outcome = self._code(3, lambda app: app.subscribe_code(app.address.at(0x8001)))
        if outcome not in _UNKNOWN_TOPIC:
            return False
        self._note(
            f"a Subscribe of a new topic is answered {outcome.name}: the kit calls CreateTopic for its topics"
        )
        return True

    def _code(self, version: int, ask: Callable[[Application], Code]) -> Code | None:
        """The outcome of a call of a new application; None without an answer, UNKNOWN for one that is malformed."""
        world = self.world(version)
        app = world.app()
        began = time.monotonic()
        try:
            code = ask(app)
            self._answer_s = max(self._answer_s, time.monotonic() - began)
            return code
        except CaseFailed:
            return None
        except MalformedProtobuf:
            return Code.UNKNOWN
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
    """Run the cases; the outcomes are in their order. With `fail_fast`, cases after the first failure are left out.

    Ctrl-C, and a subject that does not answer any more, set `session.stop`: the other cases are not judged.
    """
    run = _Run(session, cases, fail_fast, on_outcome)
    run.skip(missing)
    try:
        run.run_together(jobs)
        run.run_alone()
    except KeyboardInterrupt:
        session.stop.set(INTERRUPTED)
    run.leave_rest()
    return [run.outcomes[number] for number in sorted(run.outcomes)]


class _Run:
    """The cases of one run by their number, and their outcomes so far."""

    def __init__(
        self, session: Session, cases: Sequence[Case], fail_fast: bool, on_outcome: Callable[[Outcome], None]
    ) -> None:
        self.outcomes: dict[int, Outcome] = {}
        self._session = session
        self._cases = dict(enumerate(cases))
        self._fail_fast = fail_fast
        self._on_outcome = on_outcome
        self._has_failed = False

    @property
    def _is_over(self) -> bool:
        return bool(self._session.stop.reason) or (self._fail_fast and self._has_failed)

    def skip(self, missing: dict[Need, str]) -> None:
        """End the cases whose needs are not met."""
        for number, case in self._cases.items():
            if why := _why_not(case, missing):
                self._end(number, Outcome(case, Verdict.NOT_APPLICABLE, why, 0.0))

    def run_together(self, jobs: int) -> None:
        """Run the cases that disturb no other."""
        with ThreadPoolExecutor(max_workers=jobs) as pool:
            waiting = [(number, case) for number, case in self._open() if not case.alone]
            pending = {pool.submit(run_case, self._session, case): number for number, case in waiting}
            try:
                for future in as_completed(pending):
                    self._end(pending.pop(future), future.result())
                    if self._is_over:
                        break
            except KeyboardInterrupt:
                self._session.stop.set(INTERRUPTED)
            for future in pending:
                future.cancel()  # the running ones still end
        if self._session.stop.reason:
            for future, number in pending.items():
                if not future.cancelled():
                    self._end(number, future.result())

    def run_alone(self) -> None:
        """Run the other cases one by one, and at the end those that disturb other runs of the kit, too."""
        for number, case in self._open():
            if not (self._is_over or case.disturbs):
                self._end(number, run_case(self._session, case))
        for group in _grouped_by_restart(self._open()):
            if self._is_over:
                break
            try:
                with self._session.without_other_runs():
                    self._run_group(group)
            except NotJudged as why:
                self._leave(str(why))
                break

    def _run_group(self, group: Sequence[tuple[int, Case]]) -> None:
        """Run the cases that share a restart. All have ended before the first outcome: the subject answers again."""
        restart = SharedRestart(len(group), self._session.stop)
        with ThreadPoolExecutor(max_workers=len(group)) as pool:
            futures = [pool.submit(run_case, self._session, case, restart) for _, case in group]
            try:
                wait(futures)
            except KeyboardInterrupt:
                self._session.stop.set(INTERRUPTED)
        for (number, _), future in zip(group, futures, strict=True):
            self._end(number, future.result())

    def leave_rest(self) -> None:
        """After the end of the run: the cases without an outcome are not judged."""
        if reason := self._session.stop.reason:
            self._leave(reason)

    def _leave(self, reason: str) -> None:
        for number, case in self._open():
            self._end(number, Outcome(case, Verdict.NOT_JUDGED, reason, 0.0))

    def _open(self) -> list[tuple[int, Case]]:
        return [(number, case) for number, case in self._cases.items() if number not in self.outcomes]

    def _end(self, number: int, outcome: Outcome) -> None:
        if outcome.verdict is Verdict.FAILED:
            outcome = self._confirmed(outcome)
        self.outcomes[number] = outcome
        self._has_failed |= outcome.verdict is Verdict.FAILED
        self._on_outcome(outcome)

    def _confirmed(self, failed: Outcome) -> Outcome:
        """A failure, unless the subject has stopped next to other cases: then any of them may have ended it."""
        if not self._session.stop.reason and not self._session.answers():
            self._session.stop.set(f"{GONE}, since {failed.case.name}")
        if failed.case.alone or not self._session.stop.reason.startswith(GONE):
            return failed
        return failed._replace(verdict=Verdict.NOT_JUDGED, reason=f"{GONE}; the case found: {failed.reason}")


def _grouped_by_restart(cases: Iterable[tuple[int, Case]]) -> list[list[tuple[int, Case]]]:
    """Cases that restart the subject are one group, those that reset it before are another one; all others are alone."""
    groups: dict[object, list[tuple[int, Case]]] = {}
    for number, case in cases:
        key = (Need.RESTART, Need.RESET in case.needs) if Need.RESTART in case.needs else number
        groups.setdefault(key, []).append((number, case))
    return list(groups.values())


def run_case(session: Session, case: Case, restart: SharedRestart | None = None) -> Outcome:
    """Run one case in a world of its own. `restart` is shared by the cases that run next to it."""
    began = time.monotonic()
    world = session.world(case.version, restart)
    verdict, reason = Verdict.PASSED, ""
    try:
        case.body(world)
    except CaseFailed as failed:
        verdict, reason = Verdict.FAILED, str(failed)
    except MalformedProtobuf as malformed:
        verdict, reason = Verdict.FAILED, f"a payload of another type than the rule has: {malformed}"
    except NotApplicable as why:
        verdict, reason = Verdict.NOT_APPLICABLE, str(why)
    except NotJudged as why:
        verdict, reason = Verdict.NOT_JUDGED, str(why)
    except Exception:  # noqa: BLE001 - a defect of the kit is shown, and the other cases still run
        verdict, reason = Verdict.FAILED, f"the case itself failed:\n{traceback.format_exc()}"
    finally:
        seconds = time.monotonic() - began
        with suppress(CaseFailed, NotJudged, zenoh.ZError):  # of a session that the case has lost
            world.close()
        if restart:
            restart.leave()
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
