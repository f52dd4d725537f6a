# SPDX-License-Identifier: Apache-2.0
"""The table of attacks, its list, and the report."""

import json
from collections import Counter
from pathlib import Path

import pytest

from ustreamer.host.attack import report
from ustreamer.host.attack.command import UnknownAttack, select
from ustreamer.host.attack.families import ALL
from ustreamer.host.attack.verdicts import AttackResult, AttackVerdict
from ustreamer.host.cli.main import main

ROOT = Path(__file__).parents[3]
RESULT = AttackResult("reset", "subscriptions", AttackVerdict.HELD, (), 1.1, 2.0, 2.2, 400, 0, 50.0, 51.0)


def test_there_are_enough_attacks_with_names_of_their_own() -> None:
    assert len(ALL) >= 40
    assert f"with {len(ALL)} scripted attacks" in (ROOT / "docs/command-line.md").read_text(encoding="utf-8")
    assert max(Counter(each.name for each in ALL).values()) == 1
    assert all(each.aim[0].islower() and not each.aim.endswith(".") for each in ALL)


def test_the_security_page_lists_every_attack_with_its_aim() -> None:
    page = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| `") and line.count("|") == 4]
    assert rows == [f"| `{each.name}` | {each.family} | {each.aim} |" for each in ALL]


def test_attacks_are_selected_by_name_and_keep_their_order() -> None:
    assert [each.name for each in select(["malformed-messages", "reset"])] == ["reset", "malformed-messages"]
    assert select([]) == list(ALL)
    with pytest.raises(UnknownAttack, match="no attack 'rest'"):
        select(["rest"])


def test_the_list_shows_every_attack(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["attack", "--list"]) == 0
    shown = capsys.readouterr().out
    assert all(f"  {each.name:<24} {each.aim}\n" in shown for each in ALL)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["attack", "--only", "rest"], "CONFIG is missing"),
        (["attack", "configs/vehicle.toml", "--only", "rest"], "no attack 'rest'"),
        (["attack", "configs/vehicle.toml", "--seconds", "0"], "expected seconds, 0.1 to 60"),
    ],
)
def test_a_wrong_use_is_explained(
    arguments: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(arguments)
    except SystemExit as ended:
        code = ended.code  # type: ignore[assignment]
    assert code == 2
    assert error in capsys.readouterr().err


def test_a_report_counts_verdicts_and_names_what_is_broken() -> None:
    broken = AttackResult("x", "y", AttackVerdict.BROKEN, ("read",), 9.0, 1.0, 9.0, 400, 3, 50.0, 90.0)
    made = report.report_of("car.toml", [RESULT, broken], {"sd-hijack": "SOME/IP service discovery"})
    assert (made.held, made.broken) == (1, 1)
    assert report.summary(made) == "1 held, 1 broken, 1 do not apply\nbroken: x"
    lines = report.row(broken).splitlines()
    assert lines[0].split() == ["x", "broken", "9.00", "1.00", "9.00", "3", "50.0", "90.0"]
    assert lines[1:] == ["    read"]
    assert len(report.header()) == len(lines[0])
    assert json.dumps(report.row(RESULT)).count("\\n") == 0
