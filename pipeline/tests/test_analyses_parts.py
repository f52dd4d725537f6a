# SPDX-License-Identifier: Apache-2.0
"""Parts of the analyses that need no Spark."""

import argparse

import pytest
from ustreamer_pipeline.commands import audit, report, whatif
from ustreamer_pipeline.days import day
from ustreamer_pipeline.errors import UsageError
from ustreamer_pipeline.gold.audit import AuditResult
from ustreamer_pipeline.replay.added_subscribers import AddedSubscribers
from ustreamer_pipeline.replay.target_replay import GateState
from ustreamer_pipeline.replay.whatif_scenarios import Scenario
from ustreamer_pipeline.report.report import FleetReport, moment
from ustreamer_pipeline.schemas import VERDICTS


def test_a_day_is_a_date_or_nothing() -> None:
    assert [day("--since", text) for text in ("", "2026-11-21")] == ["", "2026-11-21"]
    with pytest.raises(UsageError, match="^--since 21.11.: expected a date, as 2026-11-21$"):
        day("--since", "21.11.")


def test_an_audit_prints_one_line_per_rule() -> None:
    found = {
        "rule": "ledger",
        "gateway": "vin1",
        "run": 7,
        "seq": None,
        "subject": "law",
        "expected": "1",
        "found": "2",
    }
    told = audit.format_result(AuditResult(1_000, 2, {"rate": 0, "ledger": 1}, [found])).splitlines()
    assert told[0] == "1,000 deliveries of 2 gateways"
    assert told[1].startswith("ok    rate")
    assert told[2].endswith(": 1 times not")
    assert told[3:] == ["        vin1 run 7: law", "            expected 1; found 2"]


def test_a_sweep_is_read_from_the_command_line() -> None:
    parser = argparse.ArgumentParser()
    whatif.arguments(parser)
    options = parser.parse_args(["lake", "--hz", "1,0", "--egress", "backbone"])
    assert [each.name for each in whatif.scenarios(options)] == ["1 Hz", "no limit"]


def test_a_report_needs_a_folder() -> None:
    parser = argparse.ArgumentParser()
    report.arguments(parser)
    assert parser.parse_args(["lake", "out"]).out == "out"
    assert moment(0) == "1970-01-01 00:00:00"
    assert (
        FleetReport({}, dict.fromkeys(["rows", *map(str.lower, VERDICTS)], 0), 1, {}).delivery_ratio is None
    )


def test_a_gate_without_a_limit_restarts_with_the_next_limit() -> None:
    gate = GateState()
    assert gate.set_limit(100, 0.1, 0) is not None
    assert [gate.admit(0), gate.admit(1)] == [True, False]
    assert gate.set_limit(0, 0.1, 2) is None
    gate.set_limit(100, 0.1, 3)
    assert gate.admit(3)
    AddedSubscribers(Scenario("nothing")).begin_run()
