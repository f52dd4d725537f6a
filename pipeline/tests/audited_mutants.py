# SPDX-License-Identifier: Apache-2.0
"""The audit of many mutated recordings at once: each is a gateway of one lake."""

from collections.abc import Iterable
from pathlib import Path

from pyspark.sql import SparkSession
from tests.mutations import Run, write_run
from ustreamer_pipeline.gold.audit import findings, load
from ustreamer_pipeline.ingest.ingest import ingest


def audited_mutants(spark: SparkSession, place: Path, made: Iterable[tuple[str, Run]]) -> list[str]:
    """The names of those without a finding, in order."""
    names: dict[str, str] = {}
    for number, (name, run) in enumerate(made):
        gateway = f"m{number:04}.vin1"
        names[gateway] = name
        write_run(run, place / "recordings" / gateway, gateway)
    ingest(spark, [str(place / "recordings")], str(place / "lake"))
    found = findings(load(spark, str(place / "lake"))).select("gateway").distinct().collect()
    return [name for gateway, name in names.items() if gateway not in {row.gateway for row in found}]
