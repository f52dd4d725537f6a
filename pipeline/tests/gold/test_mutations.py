# SPDX-License-Identifier: Apache-2.0
"""Many real runs of all modes: no alarm and no differing decision where nothing is wrong, and mutations are found.

USTREAMER_SOAK_STORIES and USTREAMER_SOAK_MUTATIONS set other numbers. test_chain.py has a sample of both.
"""

import json
import os
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import pytest
from pyspark.sql import SparkSession
from tests.audited_mutants import audited_mutants, format_counts
from tests.field_mutations import FIELD_MUTATIONS, field_mutants
from tests.mutations import MUTATIONS, load_runs, mutants
from tests.real_runs import record_stories
from ustreamer_pipeline.cli import main
from ustreamer_pipeline.gold.audit import PROMISES

STORIES = int(os.environ.get("USTREAMER_SOAK_STORIES", "150"))
"""Every third story has two runs: 200 runs."""
MUTANTS = int(os.environ.get("USTREAMER_SOAK_MUTATIONS", "1000"))

pytestmark = [pytest.mark.soak, pytest.mark.timeout(7_200)]


class RealRuns(NamedTuple):
    recordings: Path
    lake: Path


@pytest.fixture(scope="module")
def real_runs(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> RealRuns:
    place = tmp_path_factory.mktemp("real")
    made = RealRuns(record_stories(place / "runs", range(STORIES)), place / "lake")
    assert main(["ingest", str(made.recordings), str(made.lake)]) == 0
    return made


def test_a_clean_real_run_has_no_finding(real_runs: RealRuns, capsys: pytest.CaptureFixture[str]) -> None:
    main(["audit", str(real_runs.lake), "--json"])
    audited = json.loads(capsys.readouterr().out)
    print(f"{len(load_runs(real_runs.recordings))} real runs, {audited['rows']} rows: {audited['counts']}")
    assert audited["counts"] == dict.fromkeys(PROMISES, 0), audited["examples"]


def test_with_nothing_changed_no_decision_of_a_real_run_differs(
    real_runs: RealRuns, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["whatif", str(real_runs.lake), "--json"])
    answer = json.loads(capsys.readouterr().out)
    print(f"{len(load_runs(real_runs.recordings))} real runs: {answer['check']}")
    assert answer["check"]["differing"] == 0, answer["differing"]
    assert answer["check"]["decided"] > 100 * STORIES


def test_99_of_100_mutations_are_found(real_runs: RealRuns, spark: SparkSession, tmp_path: Path) -> None:
    """Each run is there unchanged too, as a gateway of its own: what a mutation shows is not an effect of the copy."""
    runs = load_runs(real_runs.recordings)
    copies = [("nothing", run) for run in runs]
    audited = audited_mutants(spark, tmp_path, chain(copies, mutants(runs, MUTANTS)))
    unchanged, mutated = audited[: len(runs)], audited[len(runs) :]
    alarms = [each.gateway for each in unchanged if each.is_found]
    missed = [each for each in mutated if not each.is_found]
    found = f"{MUTANTS - len(missed)} of {MUTANTS} mutations of {len(runs)} real runs were found"
    print(f"{found}; unchanged copies with a finding: {len(alarms)}\n{format_counts(mutated)}")
    assert {each.name for each in mutated} == MUTATIONS.keys()
    assert not alarms
    assert len(missed) <= MUTANTS // 100, missed


def test_every_mutation_of_a_field_is_found(real_runs: RealRuns, spark: SparkSession, tmp_path: Path) -> None:
    audited = audited_mutants(spark, tmp_path, field_mutants(load_runs(real_runs.recordings), 20))
    print(format_counts(audited))
    assert {each.name for each in audited} == FIELD_MUTATIONS.keys()
    assert [each for each in audited if not each.is_found] == []
