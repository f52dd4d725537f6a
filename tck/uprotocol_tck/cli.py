# SPDX-License-Identifier: Apache-2.0
"""The command `uprotocol-tck`."""

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import zenoh

from uprotocol_tck.case import SUBJECTS, Case, Need, registered_cases
from uprotocol_tck.cases import load_cases
from uprotocol_tck.probe import Network
from uprotocol_tck.reports.junit import junit_xml
from uprotocol_tck.reports.page import html_page
from uprotocol_tck.reports.text import case_lines, outcome_lines, summary
from uprotocol_tck.runner import FEATURES, JOBS, Outcome, Session, Unreachable, Verdict, run_cases, selected
from uprotocol_tck.uprotocol import parse_uri
from uprotocol_tck.world import Options

EXIT_FAILED: Final = 1
EXIT_UNREACHABLE: Final = 69


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="uprotocol-tck",
        description="Judges a uSubscription or a uStreamer on a Zenoh network by the rules of uProtocol.",
        epilog="exit codes: 0 no case failed; 1 a case failed; 2 wrong usage; 69 nothing answers",
    )
    add = parser.add_argument
    add(
        "--connect",
        metavar="LOCATOR",
        help="Zenoh locator of the subject's network, such as tcp/127.0.0.1:7447",
    )
    add("--subject", choices=[*SUBJECTS, "all"], default="all", help="what is judged (default: all)")
    add("--authority", default="hpc.vin1", help="authority of the subject (default: %(default)s)")
    add(
        "--other",
        metavar="AUTHORITY",
        default="",
        help="an authority that the subject takes for another device",
    )
    add(
        "--connect-other",
        metavar="LOCATOR",
        default="",
        help="network of that device (default: the same network)",
    )
    add(
        "--restart",
        metavar="COMMAND",
        default="",
        help="a shell command that restarts the subject and waits for it",
    )
    add(
        "--allow-reset",
        action="store_true",
        help="also run the cases of Reset, which end all its subscriptions",
    )
    add("--dead-letters", metavar="UURI", type=parse_uri, help="the dead letter topic of the subject")
    add("--wamp", metavar="rs://HOST:PORT", default="", help="a WAMP router for RawSocket and JSON")
    add("--wamp-realm", default="realm1", help="its realm (default: %(default)s)")
    add(
        "--wamp-user",
        metavar="AUTHID:TICKET",
        default="",
        help="a login that may publish (default: anonymous)",
    )
    add("--wamp-denied", metavar="TOPIC", default="", help="a topic that this user may not subscribe")
    add("--slow", action="store_true", help="also run the cases that take more than 5 minutes")
    features = ", ".join(FEATURES)
    add(
        "--with",
        dest="present",
        action="append",
        choices=FEATURES,
        default=[],
        help=f"the subject has it: {features}",
    )
    add(
        "--without",
        dest="absent",
        action="append",
        choices=FEATURES,
        default=[],
        help="the subject does not have it",
    )
    add("--deadline", type=float, default=10.0, metavar="S", help="for what must come (default: %(default)s)")
    add("--quiet", type=float, default=0.3, metavar="S", help="for what must not come (default: %(default)s)")
    add("--jobs", type=int, default=JOBS, metavar="N", help="cases at a time (default: %(default)s)")
    add("--fail-fast", action="store_true", help="stop after the first failure")
    add("--junit", type=Path, metavar="FILE", help="write JUnit XML")
    add("--page", type=Path, metavar="FILE", help="write a page in HTML")
    add("--list", action="store_true", help="list the cases and stop")
    add("patterns", nargs="*", metavar="TEXT", help="only cases whose name or rule contains one of these")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    load_cases()
    subjects = SUBJECTS if arguments.subject == "all" else (arguments.subject,)
    cases = selected(registered_cases(), subjects, arguments.patterns)
    if arguments.list:
        print(*case_lines(cases), sep="\n")
        return 0
    if not arguments.connect:
        parser.error("--connect is missing")
    if not cases:
        parser.error(f"no case has one of {arguments.patterns} in its name or its rules")
    if arguments.connect_other and not arguments.other:
        parser.error("--connect-other needs --other, the authority of that device")
    try:
        outcomes = _run(arguments, cases)
    except (Unreachable, zenoh.ZError) as error:
        print(f"uprotocol-tck: {error}", file=sys.stderr)
        return EXIT_UNREACHABLE
    print(summary(outcomes))
    _write_reports(arguments, outcomes)
    return EXIT_FAILED if any(each.verdict is Verdict.FAILED for each in outcomes) else 0


def _run(arguments: argparse.Namespace, cases: Sequence[Case]) -> list[Outcome]:
    options = Options(
        authority=arguments.authority,
        other=arguments.other,
        deadline_s=arguments.deadline,
        quiet_s=arguments.quiet,
        restart=arguments.restart,
        dead_letters=arguments.dead_letters,
        wamp=arguments.wamp,
        wamp_realm=arguments.wamp_realm,
        wamp_user=arguments.wamp_user,
        wamp_denied=arguments.wamp_denied,
    )
    with ExitStack() as stack:
        networks = []
        for locator in filter(None, (arguments.connect, arguments.connect_other)):
            network = Network(locator, options.deadline_s)
            stack.callback(network.leave)
            networks.append(network)
        session = Session(networks[0], networks[1] if len(networks) > 1 else None, options)
        stack.callback(session.close)
        missing = session.find_missing() | _not_given(arguments)
        for feature in arguments.present:
            missing.pop(FEATURES[feature], None)
        missing |= {FEATURES[each]: f"--without {each}" for each in arguments.absent}
        return run_cases(
            session,
            cases,
            missing,
            jobs=arguments.jobs,
            fail_fast=arguments.fail_fast,
            on_outcome=lambda each: print(*outcome_lines(each), sep="\n", flush=True),
        )


def _not_given(arguments: argparse.Namespace) -> dict[Need, str]:
    """The needs that the command line does not meet."""
    given = {
        Need.OTHER: arguments.other,
        Need.OTHER_NETWORK: arguments.connect_other,
        Need.RESTART: arguments.restart,
        Need.RESET: arguments.allow_reset,
        Need.SLOW: arguments.slow,
        Need.DEAD_LETTERS: arguments.dead_letters,
        Need.WAMP: arguments.wamp,
        Need.WAMP_LIMITED: arguments.wamp and arguments.wamp_denied,
    }
    return {need: "" for need, value in given.items() if not value}


def _write_reports(arguments: argparse.Namespace, outcomes: Sequence[Outcome]) -> None:
    if arguments.junit:
        arguments.junit.write_bytes(junit_xml(outcomes, arguments.subject))
    if arguments.page:
        now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
        facts = f"//{arguments.authority} at {arguments.connect}, {now}"
        arguments.page.write_text(html_page(outcomes, arguments.subject, facts), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
