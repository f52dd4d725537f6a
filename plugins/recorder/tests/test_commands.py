# SPDX-License-Identifier: Apache-2.0
"""`ustreamer recordings`."""

import argparse
import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from ustreamer_recorder.commands import add_commands
from ustreamer_recorder.recordings_command import ACTIONS

from ustreamer.core.delivery.ledger import EMPTY_LEDGER, LedgerSnapshot, Verdict
from ustreamer.core.routing.subscriptions import Change, Subscription, SubscriptionDirectory
from ustreamer.hooks import Networks, OfflineRouting, StoredMessages
from ustreamer.uprotocol.umessage import request
from ustreamer.uprotocol.ustatus import UCode, UStatus
from ustreamer.uprotocol.uuri import UUri

if TYPE_CHECKING:
    from tests.conftest import Bench

TOPIC, APP = UUri("chassis", 0x1234, 1, 0x8001), UUri("hpc", 7, 1, 0)

Run = Callable[..., tuple[int, list[str]]]


def no_networks(config: Path) -> AbstractContextManager[Networks]:
    raise AssertionError(f"{config}: no command here sends")


def no_routing(config: Path, directory: SubscriptionDirectory) -> OfflineRouting:
    raise AssertionError(f"{config}: no command here routes")


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command on the test's directory: its exit code, and the lines it printed."""
    parser = argparse.ArgumentParser()
    add_commands(parser.add_subparsers(), lambda _: StoredMessages(), no_networks, None, no_routing)

    def run(*arguments: str, directory: Path = tmp_path) -> tuple[int, list[str]]:
        action, *more = arguments
        parsed = parser.parse_args(["recordings", action, str(directory), *more])
        code = parsed.run(parsed)
        out, err = capsys.readouterr()
        return code, (out + err).splitlines()

    return run


@pytest.fixture
def recorded(bench: "Bench") -> "Bench":
    """Three rows, a change, a dead letter, a gap; and the end."""
    delivery = bench.delivery(period_ns=5)
    bench.note_queue.on_subscription_change(Subscription(TOPIC, APP, 5), Change.SUBSCRIBED)
    bench.settle(delivery)
    bench.settle(delivery, Verdict.DEAD_LETTERED, reason=UStatus(UCode.ABORTED, "why"))
    bench.settle(None, Verdict.NO_SUBSCRIBER, request(bench.message().id, APP, TOPIC.with_resource(1), ttl=9))
    bench.drain()
    return bench


BOOKS = LedgerSnapshot(3, 1, 0, 0, 1, 0, 1, 0)


def objects(lines: list[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines]


def test_ls_lists_the_files_and_their_errors(recorded: "Bench", run: Run) -> None:
    (recorded.directory / f"{2:016x}-000000.useg").write_bytes(b"noise")
    code, lines = run("ls")
    assert code == 0
    assert lines[0].startswith("0000000000000001-000000.useg.open ")
    assert lines[0].endswith("hpc  open")
    assert "2023-11-14T22:13:21.000000Z" in lines[0]
    assert lines[1].endswith("unusable: at byte 0: 5 bytes: expected a header of 288")
    _, lines = run("ls", "--json")
    assert objects(lines)[0]["state"] == "open"


def test_show_prints_every_event_with_its_wall_time(recorded: "Bench", run: Run) -> None:
    code, lines = run("show")
    assert code == 0
    kinds = [line.split()[1] for line in lines]
    assert kinds == ["anchor", "target", "subscriptionchange", "row", "row", "letter", "target", "row"]
    assert "period_ns=5 tuned_ns=1000000000" in lines[1]
    assert lines[3].startswith("2023-11-14T22:13:21.000000Z row")
    assert "#0 DELIVERED" in lines[3]
    assert lines[3].endswith("PUBLISH up://chassis/1234/1/8001, chassis -> backbone, 7 B, 0 us")
    assert lines[4].endswith(": why")
    assert "up://hpc/7/1/0 to up://chassis/1234/1/1, chassis -> nowhere" in lines[7]


def test_show_has_every_field_as_json_and_a_limit(recorded: "Bench", run: Run) -> None:
    _, lines = run("show", "--json", "--limit", "4")
    row = objects(lines)[3]
    assert len(lines) == 4
    assert (row["kind"], row["verdict"], row["type"], row["seq"]) == ("row", "DELIVERED", "PUBLISH", 0)
    assert (row["time"], row["target"]["period_ns"]) == ("2023-11-14T22:13:21.000000Z", 5)
    assert row["id"].count("-") == 4


def test_check_reports_a_complete_recording(recorded: "Bench", run: Run) -> None:
    code, lines = run("check", "--json")
    [line] = objects(lines)
    assert (code, line["end"], line["ledger_agrees"]) == (0, "killed, or still running", None)
    recorded.journal.finish(BOOKS)
    code, lines = run("check", "--json")
    [line] = objects(lines)
    assert code == 0
    assert (line["rows"], line["delivered"], line["dead_lettered"], line["no_subscriber"]) == (3, 1, 1, 1)
    assert (line["changes"], line["letters"], line["skipped"]) == (1, 1, 0)
    assert (line["end"], line["ledger_agrees"]) == ("stopped", True)
    assert "ledger_agrees=True" in run("check")[1][0]


def test_check_finds_a_ledger_that_does_not_agree(recorded: "Bench", run: Run) -> None:
    recorded.journal.finish(EMPTY_LEDGER)
    code, lines = run("check", "--json")
    assert (code, objects(lines)[0]["ledger_agrees"]) == (74, False)


def test_check_finds_damage(recorded: "Bench", run: Run) -> None:
    recorded.settle()
    recorded.drain()
    recorded.journal.finish(BOOKS)
    [path] = recorded.directory.iterdir()
    data = bytearray(path.read_bytes())
    data[288 + 96 + 5] ^= 1
    path.write_bytes(data)
    code, lines = run("check", "--json")
    assert code == 74
    assert objects(lines)[0]["damaged"] >= 1
    assert "damage" in [line.split()[1] for line in run("show")[1]]


def test_check_counts_the_rows_of_a_gap_as_skipped(bench: "Bench", run: Run) -> None:
    odd = request(bench.message().id, APP, TOPIC.with_resource(1), ttl=2**40)
    bench.settle(None, Verdict.DENIED, odd)
    bench.settle(None, Verdict.DENIED)
    bench.drain()
    bench.journal.finish(LedgerSnapshot(2, 0, 0, 0, 0, 2, 0, 0))
    code, lines = run("check", "--json")
    [line] = objects(lines)
    assert (code, line["skipped"], line["rows"], line["unannounced"]) == (0, 1, 1, 0)
    assert line["ledger_agrees"] is True


def test_a_missing_directory_is_reported(run: Run, tmp_path: Path) -> None:
    for action in ("ls", "show", "check"):
        code, lines = run(action, directory=tmp_path / "none")
        assert (code, lines) == (1, [f"{tmp_path}/none: No such file or directory"])


def test_deleted_segments_are_counted_and_are_no_damage(build: "Callable[..., Bench]", run: Run) -> None:
    bench = build(max_bytes=100 * 4 * 96 * 2049)
    bench.drain()
    for _ in range(10):
        for _ in range(1500):
            bench.settle()
        bench.drain()
    bench.journal.finish(EMPTY_LEDGER)
    first = min(bench.directory.iterdir())
    first.unlink()
    code, lines = run("check", "--json")
    [line] = objects(lines)
    assert (code, line["deleted"], line["unannounced"], line["ledger_agrees"]) == (0, 1, 0, None)


@pytest.mark.parametrize("action", ACTIONS)
def test_each_action_has_arguments(run: Run, action: str) -> None:
    assert run(action) == (0, [])
