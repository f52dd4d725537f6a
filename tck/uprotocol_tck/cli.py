# SPDX-License-Identifier: Apache-2.0
"""The command `uprotocol-tck`."""

import argparse
import io
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import zenoh

from uprotocol_tck import arguments
from uprotocol_tck.case import SUBJECTS, Case, Need, NotJudged, registered_cases
from uprotocol_tck.cases import load_cases
from uprotocol_tck.probe import Network
from uprotocol_tck.reports.junit import junit_xml
from uprotocol_tck.reports.page import html_page
from uprotocol_tck.reports.text import case_lines, outcome_lines, summary
from uprotocol_tck.runner import (
    FEATURES,
    INTERRUPTED,
    Outcome,
    Session,
    Unreachable,
    Verdict,
    run_cases,
    selected,
)
from uprotocol_tck.stop import Stop
from uprotocol_tck.world import Options

EXIT_FAILED: Final = 1
EXIT_UNREACHABLE: Final = 69
EXIT_UNWRITTEN: Final = 74
EXIT_INTERRUPTED: Final = 130
_RUST_PLACE: Final = re.compile(r"\s+at /\S+\.rs:\d+\.?")


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    _print_anything()
    parser = arguments.parser()
    given = parser.parse_args(argv)
    load_cases()
    subjects = SUBJECTS if given.subject == "all" else (given.subject,)
    cases = selected(registered_cases(), subjects, given.patterns)
    try:
        if given.list:
            print(*case_lines(cases), sep="\n")
            return 0
        arguments.check(parser, given)
        if not cases:
            parser.error(f"no case has one of {given.patterns} in its name or its rules")
        with _terminated_as_interrupted():
            return _judge(given, cases)
    except BrokenPipeError:  # the reader, such as `head`, has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_UNWRITTEN


def _judge(given: argparse.Namespace, cases: Sequence[Case]) -> int:
    """Run the cases and write the reports, also if nothing could be judged."""
    stop = Stop()
    try:
        outcomes = _run(given, cases, stop)
    except KeyboardInterrupt:
        stop.set(INTERRUPTED)
        outcomes = _not_judged(cases, stop.reason)
    except (Unreachable, NotJudged, zenoh.ZError) as error:
        stop.set(_plain(error))
        outcomes = _not_judged(cases, stop.reason)
    if stop.reason:
        _note(stop.reason)
    print(summary(outcomes))
    is_written = _write_reports(given, outcomes)
    if stop.reason == INTERRUPTED:
        return EXIT_INTERRUPTED
    verdicts = {each.verdict for each in outcomes}
    if Verdict.FAILED in verdicts:
        return EXIT_FAILED
    if stop.reason or (Verdict.NOT_JUDGED in verdicts and Verdict.PASSED not in verdicts):
        return EXIT_UNREACHABLE
    return 0 if is_written else EXIT_UNWRITTEN


def _run(given: argparse.Namespace, cases: Sequence[Case], stop: Stop) -> list[Outcome]:
    with ExitStack() as stack:
        networks = []
        for option, locator in (("--connect", given.connect), ("--connect-other", given.connect_other)):
            if locator:
                networks.append(_network(option, locator, given.deadline, stop))
                stack.callback(networks[-1].leave)
        session = Session(networks[0], networks[1] if len(networks) > 1 else None, _options(given), _note)
        stack.callback(session.close)
        missing = session.find_missing() | _not_given(given)
        for feature in given.present:
            missing.pop(FEATURES[feature], None)
        missing |= {FEATURES[each]: f"--without {each}" for each in given.absent}
        return run_cases(
            session,
            cases,
            missing,
            jobs=given.jobs,
            fail_fast=given.fail_fast,
            on_outcome=lambda each: print(*outcome_lines(each), sep="\n", flush=True),
        )


def _network(option: str, locator: str, deadline_s: float, stop: Stop) -> Network:
    """A session. Raises Unreachable if no node of Zenoh answers."""
    try:
        return Network(locator, deadline_s, stop)
    except zenoh.ZError as error:
        raise Unreachable(f"{option} {locator}: no node of Zenoh answers there: {_plain(error)}") from None


def _plain(error: Exception) -> str:
    """The text of an error without the place in Zenoh's source."""
    return _RUST_PLACE.sub("", str(error)).strip()


def _options(given: argparse.Namespace) -> Options:
    return Options(
        authority=given.authority,
        other=given.other,
        deadline_s=given.deadline,
        quiet_s=given.quiet,
        restart=given.restart,
        dead_letters=given.dead_letters,
        wamp=given.wamp,
        wamp_realm=given.wamp_realm,
        wamp_user=given.wamp_user,
        wamp_prefix=given.wamp_prefix,
        wamp_denied=given.wamp_denied,
    )


def _not_given(given: argparse.Namespace) -> dict[Need, str]:
    """The needs that the command line does not meet."""
    values = {
        Need.OTHER: given.other,
        Need.OTHER_NETWORK: given.connect_other,
        Need.RESTART: given.restart,
        Need.RESET: given.allow_reset,
        Need.SLOW: given.slow,
        Need.DEAD_LETTERS: given.dead_letters,
        Need.WAMP: given.wamp,
        Need.WAMP_LIMITED: given.wamp and given.wamp_denied,
    }
    return {need: "" for need, value in values.items() if not value}


def _not_judged(cases: Sequence[Case], reason: str) -> list[Outcome]:
    return [Outcome(each, Verdict.NOT_JUDGED, reason, 0.0) for each in cases]


def _write_reports(given: argparse.Namespace, outcomes: Sequence[Outcome]) -> bool:
    """Returns False if a report could not be written."""
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    facts = f"//{given.authority} at {given.connect}, {now}"
    reports: tuple[tuple[str, Path | None, Callable[[], bytes]], ...] = (
        ("--junit", given.junit, lambda: junit_xml(outcomes, given.subject)),
        ("--page", given.page, lambda: html_page(outcomes, given.subject, facts).encode(errors="replace")),
    )
    is_written = True
    for option, path, report in reports:
        if path:
            try:
                path.write_bytes(report())
            except OSError as error:
                _note(f"{option} {path} was not written: {error.strerror}")
                is_written = False
    return is_written


def _note(text: str) -> None:
    with suppress(BrokenPipeError):
        print(f"uprotocol-tck: {text}", file=sys.stderr, flush=True)


def _print_anything() -> None:
    """A character that the terminal does not have is printed as an escape."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM ends the run as Ctrl-C does: with its reports."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
    sys.exit(main())
