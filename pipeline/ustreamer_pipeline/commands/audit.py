# SPDX-License-Identifier: Apache-2.0
"""`ustreamer-pipeline audit LAKE`."""

import argparse
import json
from collections.abc import Collection
from typing import TYPE_CHECKING

from ustreamer_pipeline import session
from ustreamer_pipeline.days import LAST_DATE, day
from ustreamer_pipeline.errors import UsageError

if TYPE_CHECKING:
    from ustreamer_pipeline.gold.audit import AuditResult

HELP = "prove from recordings what the streamer promises, or name the rows that break it"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("lake", metavar="LAKE", help="folder of the tables")
    parser.add_argument("--rules", metavar="RULE,...", help="only these (all)")
    parser.add_argument(
        "--examples", type=int, default=20, metavar="N", help="rows to name of each broken rule (20)"
    )
    parser.add_argument("--since", default="", metavar="DATE", help="first day, as 2026-11-21")
    parser.add_argument("--until", default=LAST_DATE, metavar="DATE", help="last day")
    parser.add_argument("--json", action="store_true", help="as one JSON object")
    session.arguments(parser)


def chosen_rules(text: str | None, known: Collection[str]) -> list[str]:
    """The rules of `--rules`, all without it. Raises UsageError."""
    if text is None:
        return list(known)
    chosen = list(dict.fromkeys(name.strip() for name in text.split(",")))
    unknown = ",".join(name for name in chosen if name not in known)
    if unknown or "" in chosen:
        place = f"--rules {unknown}" if unknown.strip(",") else f"--rules {text!r}: a rule without a name"
        raise UsageError(f"{place}: expected some of {', '.join(known)}")
    return chosen


def run(options: argparse.Namespace) -> int:
    from ustreamer_pipeline.gold.audit import PROMISES, audit, load
    from ustreamer_pipeline.lake.storage import storage_of
    from ustreamer_pipeline.progress import progress

    chosen = chosen_rules(options.rules, PROMISES)
    since, until = day("--since", options.since), day("--until", options.until)
    storage_of(options.lake)
    with (
        session.session("audit", **session.chosen(options), reads=[options.lake]) as spark,
        progress(spark, "auditing"),
    ):
        verdict = audit(load(spark, options.lake, since, until), options.examples, chosen)
    print(json.dumps(vars(verdict)) if options.json else format_result(verdict))
    return 0 if verdict.clean else 1


def format_result(verdict: "AuditResult") -> str:
    """One line per rule, followed by the rows that violate it."""
    from ustreamer_pipeline.gold.audit import PROMISES

    lines = [f"{verdict.rows:,} deliveries of {verdict.gateways:,} gateways"]
    for name, count in verdict.counts.items():
        broken = f": {count:,} times not" if count else ""
        lines.append(f"{'FAIL' if count else 'ok  '}  {name:<16} {PROMISES[name]}{broken}")
        for row in verdict.examples:
            if row["rule"] == name:
                place = "" if row["seq"] is None else f" seq {row['seq']}"
                lines.append(f"        {row['gateway']} run {row['run']}{place}: {row['subject']}")
                lines.append(f"            expected {row['expected']}; found {row['found']}")
    return "\n".join(lines)
