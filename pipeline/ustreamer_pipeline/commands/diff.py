# SPDX-License-Identifier: Apache-2.0
"""`ustreamer-pipeline diff LAKE --before RELEASE --after RELEASE`."""

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from ustreamer_pipeline import session
from ustreamer_pipeline.days import LAST_DATE, day

if TYPE_CHECKING:
    from ustreamer_pipeline.gold.diff import Difference

HELP = "what changed between two releases: rates, losses, latencies, with significance"
_SHOWN = 50


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("lake", metavar="LAKE", help="folder of the tables")
    for side in ("before", "after"):
        parser.add_argument(
            f"--{side}",
            required=True,
            metavar="RELEASE",
            help="`release` of [plugins.recorder], or a version",
        )
    parser.add_argument("--since", default="", metavar="DATE", help="from this day on")
    parser.add_argument("--until", default=LAST_DATE, metavar="DATE", help="up to this day")
    parser.add_argument("--all", action="store_true", help="also what is not significant")
    parser.add_argument("--json", action="store_true", help="everything, as one JSON object")
    session.arguments(parser)


def run(options: argparse.Namespace) -> int:
    from ustreamer_pipeline.errors import UsageError
    from ustreamer_pipeline.gold.diff import diff
    from ustreamer_pipeline.lake.storage import storage_of
    from ustreamer_pipeline.progress import progress
    from ustreamer_pipeline.replay.files import files_of

    if options.before == options.after:
        raise UsageError(f"--after {options.after}: expected another release than --before")
    since, until = day("--since", options.since), day("--until", options.until)
    storage_of(options.lake)
    files_of(options.lake, since, until)
    with (
        session.session("diff", **session.chosen(options), reads=[options.lake]) as spark,
        progress(spark, "comparing"),
    ):
        found = diff(spark, options.lake, options.before, options.after, since, until)
    if options.json:
        changes = [asdict(each) | {"significant": each.is_significant} for each in found.changes]
        print(json.dumps({"before": asdict(found.before), "after": asdict(found.after), "changes": changes}))
    else:
        print(format_difference(found, show_all=options.all))
    return 0


def format_difference(found: "Difference", *, show_all: bool) -> str:
    """The two releases, and a line per change, the most significant first."""
    from ustreamer_pipeline.gold.diff import METRICS, SIGNIFICANT
    from ustreamer_pipeline.replay.whatif_print import percent_change, short_number, text_table

    lines = [
        f"{name:7}{side.release}: {side.gateways:,} gateways, {side.deliveries:,} deliveries"
        for name, side in (("before", found.before), ("after", found.after))
    ]
    significant = [each for each in found.changes if each.is_significant]
    tested = [each for each in found.changes if each.p is not None]
    lines.append(
        f"\n{len(significant):,} of {len(tested):,} medians over gateways differ "
        f"(Mann-Whitney U test, Holm's correction, p < {SIGNIFICANT})"
    )
    if len(tested) < len(found.changes):
        lines.append(f"{len(found.changes) - len(tested):,} have too few gateways for a test")
    shown = found.changes if show_all else significant[:_SHOWN]
    if shown:

        def cell(value: float | None) -> str:
            return "-" if value is None else short_number(value)

        rows = [
            [
                f"{each.address} -> {each.egress}",
                each.metric,
                cell(each.before),
                cell(each.after),
                percent_change(each.after or 0.0, each.before or 0.0),
                "-" if each.p_adjusted is None else f"{each.p_adjusted:.1g}",
            ]
            for each in shown
        ]
        lines += ["", text_table(["address", "metric", "before", "after", "change", "p"], rows)]
        lines += ["", *(f"{name}: {unit}" for name, unit in METRICS.items())]
    if len(significant) > len(shown):
        lines.append(f"{len(significant) - len(shown):,} more: --all")
    return "\n".join(lines)
