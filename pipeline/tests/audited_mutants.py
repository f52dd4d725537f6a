# SPDX-License-Identifier: Apache-2.0
"""The audit of many mutated recordings at once: each is a gateway of one lake."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import SparkSession
from tests.mutations import Run, write_run
from ustreamer_pipeline.gold.audit import findings, load
from ustreamer_pipeline.ingest.ingest import ingest


class AuditedMutant(NamedTuple):
    """A mutation, and whether the audit has a finding about its gateway."""

    gateway: str
    name: str
    is_found: bool


def audited_mutants(spark: SparkSession, place: Path, made: Iterable[tuple[str, Run]]) -> list[AuditedMutant]:
    """Ingest and audit all of them in one lake below `place`. Returns them in order."""
    names: dict[str, str] = {}
    for number, (name, run) in enumerate(made):
        gateway = f"m{number:04}.vin1"
        names[gateway] = name
        write_run(run, place / "recordings" / gateway, gateway)
    ingest(spark, [str(place / "recordings")], str(place / "lake"))
    found = findings(load(spark, str(place / "lake"))).select("gateway").distinct().collect()
    with_finding = {row.gateway for row in found}
    return [AuditedMutant(gateway, name, gateway in with_finding) for gateway, name in names.items()]


def format_counts(audited: Iterable[AuditedMutant]) -> str:
    """One line for each kind of mutation: found of made, and the gateways of those that were not found."""
    kinds: dict[str, list[AuditedMutant]] = {}
    for each in audited:
        kinds.setdefault(each.name, []).append(each)
    lines = []
    for name, same in sorted(kinds.items()):
        missed = [each.gateway for each in same if not each.is_found]
        lines.append(f"{len(same) - len(missed):>5} of {len(same):<5}{name}  {' '.join(missed)}".rstrip())
    return "\n".join(lines)
