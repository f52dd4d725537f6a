# SPDX-License-Identifier: Apache-2.0
"""The results as a table for people, or as JSON. Pure."""

from collections.abc import Sequence
from textwrap import shorten

import msgspec

from ustreamer.host.attack.attack import Attack
from ustreamer.host.attack.verdicts import AttackResult, AttackVerdict

_REASON_WIDTH = 100


class AttackReport(msgspec.Struct, frozen=True):
    """The object that `--json` prints. `not_applicable` names each other attack, with the parts that are absent."""

    config: str
    held: int
    broken: int
    attacks: tuple[AttackResult, ...]
    not_applicable: dict[str, str]


def report_of(config: str, results: Sequence[AttackResult], not_applicable: dict[str, str]) -> AttackReport:
    held = sum(each.verdict is AttackVerdict.HELD for each in results)
    return AttackReport(config, held, len(results) - held, tuple(results), not_applicable)


def header() -> str:
    return f"{'attack':<24} {'verdict':<7} {'p99 ms':>7} {'quiet':>7} {'ratio':>6} {'lost':>5} {'MB before':>9} {'after':>7}"


def row(result: AttackResult) -> str:
    """One attack: a line of figures, and a line for each reason."""
    figures = (
        f"{result.name:<24} {result.verdict:<7} {result.attacked_p99_ms:7.2f} {result.quiet_p99_ms:7.2f} "
        f"{result.p99_ratio:6.2f} {result.lost:5d} {result.memory_before_mb:9.1f} {result.memory_after_mb:7.1f}"
    )
    return "\n".join([figures, *(f"    {shorten(each, _REASON_WIDTH)}" for each in result.reasons)])


def summary(report: AttackReport) -> str:
    lines = [f"{report.held} held, {report.broken} broken, {len(report.not_applicable)} do not apply"]
    broken = [each.name for each in report.attacks if each.verdict is AttackVerdict.BROKEN]
    if broken:
        lines.append(f"broken: {' '.join(broken)}")
    return "\n".join(lines)


def listing(attacks: Sequence[Attack]) -> str:
    """The attacks by family, each with its aim."""
    lines: list[str] = []
    family = ""
    for each in attacks:
        if each.family != family:
            family = each.family
            lines.append(f"{family}:")
        lines.append(f"  {each.name:<24} {each.aim}")
    return "\n".join(lines)
