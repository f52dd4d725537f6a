# SPDX-License-Identifier: Apache-2.0
"""`ustreamer recordings prove`: files in, a table or JSON lines out, and an exit code."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from ustreamer_recorder.commands import add_commands
from ustreamer_recorder.prove_command import run_prove

from ustreamer.core.delivery.ledger import LedgerSnapshot, Verdict
from ustreamer.hooks import StoredMessage, StoredMessages
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UCode, UStatus, UStatusError
from ustreamer.uprotocol.uuri import UUri

if TYPE_CHECKING:
    from tests.conftest import Bench

TOPIC = UUri("chassis", 0x1234, 1, 0x8001)

Run = Callable[..., tuple[int, list[str]]]


class Stores:
    """The stores of a state directory."""

    def __init__(self) -> None:
        self.messages = StoredMessages()
        self.read_from: list[Path] = []

    def read(self, state_dir: Path) -> StoredMessages:
        self.read_from.append(state_dir)
        return self.messages


@pytest.fixture
def stores() -> Stores:
    return Stores()


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str], stores: Stores) -> Run:
    parser = argparse.ArgumentParser()
    add_commands(
        parser.add_subparsers(),
        stores.read,
        lambda config: pytest.fail(f"{config}: opened"),
        None,
        lambda config, _: pytest.fail(f"{config}: loaded"),
    )

    def run(*arguments: str, directory: Path = tmp_path) -> tuple[int, list[str]]:
        parsed = parser.parse_args(["recordings", "prove", str(directory), *arguments])
        code = run_prove(parsed, stores.read)
        return code, capsys.readouterr().out.splitlines()

    return run


@pytest.fixture
def bench(build: "Callable[..., Bench]", tmp_path: Path) -> "Bench":
    (tmp_path / "logs").mkdir()
    bench = build()
    bench.drain()
    return bench


def write_log(bench: "Bench", name: str, *received: UMessage) -> str:
    """The log of a receiver that is ready from the begin to the end."""
    now_ms = bench.clock.wall_ms()
    start = {"receiver": name, "endpoint": "backbone", "expects": [str(TOPIC)], "time_ms": now_ms - 60_000}
    lines = [start, *({"id": str(each.id), "time_ms": now_ms} for each in received)]
    lines.append({"end": True, "time_ms": now_ms + 60_000})
    path = bench.directory / "logs" / f"{name}.log"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def finish(bench: "Bench", delivered: int, throttled: int = 0, queued: int = 0) -> None:
    bench.drain()
    received = delivered + throttled + queued
    bench.journal.finish(LedgerSnapshot(received, delivered, throttled, 0, 0, 0, 0, queued))


def test_a_whole_history_has_a_table_and_the_exit_code_0(bench: "Bench", run: Run) -> None:
    delivery = bench.delivery()
    first, second = bench.settle(delivery), bench.settle(delivery)
    bench.settle(delivery, Verdict.THROTTLED)
    finish(bench, 2, 1)
    code, lines = run("--received", write_log(bench, "dash", first, second, second))
    assert code == 0
    assert [line.split() for line in lines] == [
        ["receiver", "endpoint", "messages", "repeated", "delivered", "throttled"],
        ["dash", "backbone", "3", "1", "2", "1"],
    ]


def test_a_message_that_is_missing_is_named_and_the_exit_code_is_1(bench: "Bench", run: Run) -> None:
    delivery = bench.delivery()
    first, second = bench.settle(delivery), bench.settle(delivery)
    finish(bench, 2)
    logs = [write_log(bench, "dash", first), write_log(bench, "log", first, second)]
    code, lines = run("--received", *logs)
    assert code == 1
    assert lines[-1] == (
        f"UNEXPLAINED 2023-11-14T22:13:21.000Z {second.id} {TOPIC}, backbone for dash: delivered, and not received"
    )
    code, lines = run("--received", *logs, "--json")
    found: list[dict[str, Any]] = [json.loads(line) for line in lines]
    assert code == 1
    assert [each["kind"] for each in found] == ["receiver", "unexplained", "receiver", "files"]
    assert (found[0]["delivered"], found[0]["unexplained"], found[2]["delivered"]) == (1, 1, 2)
    assert found[1] == {
        "kind": "unexplained",
        "receiver": "dash",
        "id": str(second.id),
        "topic": str(TOPIC),
        "endpoint": "backbone",
        "time": "2023-11-14T22:13:21.000Z",
        "time_ms": 1_700_000_001_000,
        "reason": "delivered, and not received",
    }
    assert found[3] == {"kind": "files", "not_in_spool": 0, "incomplete_runs": []}


def test_the_limit_bounds_the_text_only(bench: "Bench", run: Run) -> None:
    delivery = bench.delivery()
    for _ in range(5):
        bench.settle(delivery)
    finish(bench, 5)
    log = write_log(bench, "dash")
    _, lines = run("--received", log, "--limit", "2")
    assert sum(line.startswith("UNEXPLAINED 2023") for line in lines) == 2
    assert lines[-1] == "UNEXPLAINED 3 more for dash: --json has all"
    assert len(run("--received", log, "--limit", "2", "--json")[1]) == 7


def test_stores_next_to_the_recordings_are_read_and_others_on_request(
    bench: "Bench", run: Run, stores: Stores, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    message = bench.settle(bench.delivery(), Verdict.DEAD_LETTERED, reason=UStatus(UCode.ABORTED, "why"))
    bench.drain()
    bench.journal.finish(LedgerSnapshot(1, 0, 0, 0, 1, 0, 0, 0))
    log = write_log(bench, "dash")
    assert run("--received", log) == (0, [*run("--received", log)[1]])
    assert stores.read_from == []  # no store is there
    state = tmp_path_factory.mktemp("state")
    stores.messages = StoredMessages(
        {}, [StoredMessage(message.id, message.attributes, "backbone", None, UStatus(UCode.ABORTED, "why"))]
    )
    assert run("--received", log)[1][-1] == "dash: 1 suppressed: why"
    (state / "spool").mkdir()
    assert run("--received", log, "--state", str(state))[1][-1] == "dash: 1 dead_lettered: ABORTED: why"
    assert stores.read_from == [state]
    (tmp_path.parent / "dead-letters").mkdir()
    assert run("--received", log)[0] == 0
    assert stores.read_from == [state, tmp_path.parent]
    (tmp_path.parent / "dead-letters").rmdir()


def test_queued_messages_that_no_spool_has_are_counted(bench: "Bench", run: Run) -> None:
    finish(bench, 0, queued=3)
    code, lines = run("--received", write_log(bench, "dash"))
    assert code == 1
    assert lines[-1] == "UNEXPLAINED 3 messages were queued at a stop, and no spool has them"


def test_a_sender_adds_messages_that_the_streamer_did_not_accept(bench: "Bench", run: Run) -> None:
    message = bench.message()
    finish(bench, 0)
    sent = bench.directory / "logs" / "app.log"
    now_ms = bench.clock.wall_ms()
    lines = [
        {"sender": "app", "time_ms": now_ms},
        {"id": str(message.id), "topic": str(TOPIC), "time_ms": now_ms},
    ]
    sent.write_text("".join(json.dumps(line) + "\n" for line in lines))
    code, found = run("--received", write_log(bench, "dash"), "--sent", str(sent), "--json")
    assert code == 0
    assert json.loads(found[0])["streamer_down"] == 1


def test_damage_ends_with_74_also_in_the_first_block_or_the_header(bench: "Bench", run: Run) -> None:
    delivery = bench.delivery()
    received = [bench.settle(delivery) for _ in range(3)]
    finish(bench, 3)
    log = write_log(bench, "dash", *received)
    [path] = bench.directory.glob("*.useg")
    whole = path.read_bytes()
    for at in (3, 40, 288 + 96 + 5, len(whole) - 96 - 300):
        data = bytearray(whole)
        data[at] ^= 1
        path.write_bytes(data)
        code, lines = run("--received", log)
        assert code == 74, at
        assert lines[-1] == "INCOMPLETE run 0000000000000001: `ustreamer recordings check` has the errors"


BAD_INPUT: dict[str, tuple[tuple[str, ...], str]] = {
    "no log": (
        ("--received", "none.log"),
        "none.log: No such file or directory: expected a log of a receiver",
    ),
    "no state": (("--received", "{log}", "--state", "none"), "--state none: expected the directory of a"),
    "one log twice": (("--received", "{log}", "{log}"), "2 logs of 'dash': expected one log for each name"),
    "a log of another role": (
        ("--received", "{log}", "--sent", "{log}"),
        'is of another role: expected {"sender"',
    ),
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input_gets_an_error_with_place_and_what_is_right(bench: "Bench", run: Run, name: str) -> None:
    arguments, expected = BAD_INPUT[name]
    finish(bench, 0)
    log = write_log(bench, "dash")
    with pytest.raises(UStatusError) as found:
        run(*(each.format(log=log) for each in arguments))
    assert found.value.code is UCode.INVALID_ARGUMENT
    assert expected in found.value.message


def test_a_directory_without_recordings_gets_an_error(bench: "Bench", run: Run, tmp_path: Path) -> None:
    log = write_log(bench, "dash")
    with pytest.raises(
        UStatusError, match="none: No such file or directory: expected a directory of recordings"
    ):
        run("--received", log, directory=tmp_path / "none")
    with pytest.raises(UStatusError, match="logs: has no recording: expected files"):
        run("--received", log, directory=tmp_path / "logs")
