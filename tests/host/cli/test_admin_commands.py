# SPDX-License-Identifier: Apache-2.0
"""The commands for a running streamer, with and without one."""

import argparse
import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec
import pytest

from tests.host.running_streamer import INSIDE, OUTSIDE, RunningStreamer
from tests.host.waiting import eventually
from ustreamer.core.delivery.delivery import Delivery
from ustreamer.core.egress.limits import EgressLimits
from ustreamer.host.cli import admin_commands
from ustreamer.host.cli.admin_commands import ACTIONS
from ustreamer.host.cli.admin_parsers import add_admin_commands
from ustreamer.host.cli.main import main
from ustreamer.host.runtime import control
from ustreamer.testing.messages import new_id
from ustreamer.transport_port import RouteUnavailable
from ustreamer.uprotocol.umessage import UMessage, notification, publish, request
from ustreamer.uprotocol.uuri import UUri

PLUGINS: Final = "[plugins.usubscription]\nmap_size_mb = 1\n[plugins.throttle]"
SMALL: Final = "[egress.outside]\nqueue_bytes = 1"
CLOUD: Final = UUri("cloud", 1, 1, 0)
SOURCE: Final = UUri("hpc", 0x1234, 1, 0x8001)
TOKEN: Final = "ignition-key-4711"

RunCommand = Callable[..., tuple[int, str, str]]


@pytest.fixture
def running(tmp_path: Path) -> Iterator[RunningStreamer]:
    """A streamer whose link to `outside` rejects all messages."""
    with RunningStreamer(tmp_path, PLUGINS, SMALL) as running:
        yield running


@pytest.fixture
def run_command(running: RunningStreamer, capsys: pytest.CaptureFixture[str]) -> RunCommand:
    """Exit code, stdout and stderr of a command about the running streamer."""
    return lambda *arguments: run(capsys, running.path, *arguments)


def run(
    capsys: pytest.CaptureFixture[str], path: Path, command: str, *arguments: str
) -> tuple[int, str, str]:
    capsys.readouterr()
    try:
        code = main([*command.split(), str(path), *arguments])
    except SystemExit as ended:
        code = int(ended.code or 0)
    return code, *capsys.readouterr()


def lose(running: RunningStreamer, *messages: UMessage) -> None:
    """Cause dead letters, in this order."""
    sender = running.app(INSIDE, "hpc")
    stored = running.streamer.dead_letter_writer.statistics()["stored"]
    for number, message in enumerate(messages, stored + 1):
        sender.send(message)
        eventually(
            lambda number=number: running.streamer.dead_letter_writer.statistics()["stored"] == number,  # type: ignore[misc]
            "the dead letter on disk",
        )


def lost(payload: bytes = b"\x01\x02") -> UMessage:
    return notification(new_id(), SOURCE, CLOUD, payload, ttl=60_000)


def call() -> UMessage:
    return request(new_id(), UUri("hpc", 0x10, 1, 0), UUri("cloud", 1, 1, 1), b"unlock", ttl=60_000)


def repaired(running: RunningStreamer, run_command: RunCommand) -> list[UMessage]:
    """Let the link accept messages again; returns the messages that it sends."""
    received = running.listen(OUTSIDE, "cloud", UUri("cloud", 1, 1, 0xFFFF))
    running.write(PLUGINS)
    assert run_command("reload")[0] == 0
    return received


# --------------------------------------------------------------------------------------------- without a streamer


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("reload", []),
        ("routes", []),
        ("top", ["--json"]),
        ("plugins", []),
        ("dead-letters redrive", ["--all"]),
    ],
)
def test_a_command_without_a_running_streamer_fails_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, arguments: list[str]
) -> None:
    path = tmp_path / "u.toml"
    path.write_text('state_dir = "state"\n')
    code, out, err = run(capsys, path, command, *arguments)
    assert (code, out) == (69, "")
    assert f"no streamer runs on state_dir {tmp_path / 'state'}" in err


@pytest.mark.parametrize("text", ["state_dir = 7\n", "nonsense"])
def test_a_configuration_without_a_readable_state_dir_is_invalid(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    (tmp_path / "u.toml").write_text(text)
    code, _, err = run(capsys, tmp_path / "u.toml", "routes")
    assert code == 78
    assert "u.toml:1" in err


def test_the_usual_state_dir_is_that_of_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "u.toml").write_text("")
    assert admin_commands.state_dir_of(tmp_path / "u.toml") == Path("/var/lib/ustreamer")


# --- output ----------------------------------------------------------------------------------------------------------


def test_a_routes_response_has_endpoints_topics_and_targets(
    running: RunningStreamer, run_command: RunCommand
) -> None:
    rpc_topic = UUri("cloud", 4, 1, 0x8001)
    lose(running, lost())
    code, out, _ = run_command("routes")
    assert code == 0
    assert re.search(r"^outside +local +up +cloud$", out, re.MULTILINE)
    found = json.loads(run_command("routes", "--json")[1])
    assert [each["name"] for each in found["endpoints"]] == [INSIDE, OUTSIDE]
    assert found["targets"] == found["stopped"] == []
    running.streamer._paused.pause(rpc_topic, CLOUD)
    assert json.loads(run_command("routes", "--json")[1])["stopped"] == [
        {"topic": str(rpc_topic), "subscriber": str(CLOUD)}
    ]
    assert f"{rpc_topic}  stopped by {CLOUD}" in run_command("routes")[1]


def test_a_target_is_reported_with_rate_and_subscriber() -> None:
    target = {
        "topic": "up://a/1/1/8001",
        "ingress": "a",
        "endpoint": "b",
        "subscriber": "up://b/1/1/0",
        "period_ns": 25_000_000,
    }
    assert admin_commands._format_target(target) == "up://a/1/1/8001  a -> b for up://b/1/1/0  40 Hz"


def test_top_prints_the_ledger_and_endpoint_counters(
    running: RunningStreamer, run_command: RunCommand
) -> None:
    lose(running, lost())
    running.app(INSIDE, "hpc").send(publish(new_id(), SOURCE))
    code, out, _ = run_command("top")
    assert code == 0
    assert "dead_lettered=1" in out
    assert "unaccounted=0" in out
    assert re.search(r"^outside: .*queued=0 .*sent=0", out, re.MULTILINE)
    found = json.loads(run_command("top", "--json")[1])
    assert found["ledger"]["dead_lettered"] == 1
    assert (found["unaccounted"], found["dead_letters"]["stored"]) == (0, 1)


def test_top_prints_the_stores_that_the_disk_refuses(
    running: RunningStreamer, run_command: RunCommand
) -> None:
    stores = running.streamer.context.stores
    stores.on_refused("/s/one", "No space left on device")
    assert "store /s/one: refused=1 degraded: No space left on device\n" in run_command("top")[1]
    assert json.loads(run_command("top", "--json")[1])["stores"] == {
        "/s/one": {"refused": 1, "degraded": "No space left on device"}
    }
    stores.on_written("/s/one")
    assert "store /s/one: refused=1 ok\n" in run_command("top")[1]


def test_top_prints_the_fullest_subscriber_queues(running: RunningStreamer, run_command: RunCommand) -> None:
    def away(message: UMessage, /) -> None:
        raise RouteUnavailable("there", "is away")

    endpoint_queue, ingress = (
        running.streamer._egress_queues[OUTSIDE],
        running.streamer.dispatcher.ingress(INSIDE),
    )
    endpoint_queue.set_limits(EgressLimits())
    delivery = Delivery(ingress, endpoint_queue, SOURCE, CLOUD)
    delivery.transmit, delivery.transmit_batch = away, None
    for _ in range(3):
        ingress.ledger.received += 1
        endpoint_queue.offer(delivery, publish(new_id(), SOURCE), time.monotonic_ns())
    eventually(lambda: endpoint_queue.blocked == 3, "all to wait for it")
    out = run_command("top")[1]
    assert re.search(r"^outside: .*evicted_subscriber_limit=0 subscribers=1 ", out, re.MULTILINE)
    assert f"\n  for {CLOUD}  queued=3 queued_bytes=600 blocked=3 failures=0\n" in out
    [found] = [
        each
        for each in json.loads(run_command("top", "--json")[1])["egress_queues"]
        if each["endpoint"] == OUTSIDE
    ]
    assert [each["subscriber"] for each in found["fullest"]] == [str(CLOUD)]


def test_plugins_of_a_running_streamer_are_those_that_are_switched_on(
    running: RunningStreamer, run_command: RunCommand
) -> None:
    code, out, _ = run_command("plugins")
    assert (code, [line.split()[0] for line in out.splitlines()]) == (0, ["throttle", "usubscription"])


# ----------------------------------------------------------------------------------------------------------- reload


def test_reload_prints_the_changed_keys(running: RunningStreamer, run_command: RunCommand) -> None:
    running.write(PLUGINS, SMALL, authorities={OUTSIDE: ("cloud", "fleet")})
    assert run_command("reload")[:2] == (0, "reloaded: 1 keys changed\n  endpoints.outside.authorities\n")
    assert json.loads(run_command("reload", "--json")[1]) == {"changed": []}


@pytest.mark.parametrize(
    ("section", "arguments"),
    [
        ("[egress.outsid]", "did you mean 'outside'?"),
        ("[dead_letters]\nmessages = 1", "dead_letters.messages: needs a restart"),
    ],
)
def test_a_refused_reload_gives_the_reason_and_ends_with_78(
    running: RunningStreamer, run_command: RunCommand, section: str, arguments: str
) -> None:
    running.write(PLUGINS, SMALL, section)
    code, out, err = run_command("reload")
    assert (code, out) == (78, "")
    assert arguments in err


# ----------------------------------------------------------------------------------------------------- dead letters


def test_dead_letters_are_listed_and_shown_and_their_tokens_are_not(
    running: RunningStreamer, run_command: RunCommand
) -> None:
    plain = lost(b"\x01\x02")
    secret = UMessage(
        plain.id,
        msgspec.structs.replace(plain.attributes, token=TOKEN, unknown=b"\xa0\x06\x01"),
        plain.payload,
    )
    lose(running, secret)
    assert TOKEN.encode() in running.streamer.dead_letter_writer.store.get(1).attributes
    answers = [
        run_command("dead-letters ls"),
        run_command("dead-letters ls", "--json"),
        run_command("dead-letters show", "1"),
        run_command("dead-letters show", "1", "--json"),
    ]
    for code, out, err in answers:
        assert (code, err) == (0, "")
        assert TOKEN not in out
        assert "RESOURCE_EXHAUSTED" in out
    [listed], shown = json.loads(answers[1][1]), json.loads(answers[3][1])
    assert listed == {key: shown[key] for key in listed}
    assert (shown["number"], shown["id"], shown["type"]) == (1, str(secret.id), "NOTIFICATION")
    assert (shown["source"], shown["sink"]) == (str(SOURCE), str(CLOUD))
    assert (shown["ingress"], shown["endpoint"], shown["attempts"]) == (INSIDE, OUTSIDE, 0)
    assert "queue of endpoint 'outside' is full" in shown["reason"]
    assert (shown["payload"], shown["payload_size"], shown["has_token"]) == ("0102", 2, True)
    assert "payload          01 02\n" in answers[2][1]


@pytest.mark.parametrize(
    ("payload", "arguments"),
    [(None, "was too large to be kept"), ("", "none"), ("00" * 300, " ..."), ("ff" * 256, "ff")],
)
def test_a_payload_is_shown_as_bytes_and_not_without_end(payload: str | None, arguments: str) -> None:
    shown = admin_commands._format_payload(payload)
    assert shown.endswith(arguments)
    assert len(shown) <= 3 * 256 + 4


def test_a_redriven_dead_letter_is_delivered_and_deleted(
    running: RunningStreamer, run_command: RunCommand
) -> None:
    first, second = lost(b"1"), lost(b"2")
    lose(running, first, second)
    received = repaired(running, run_command)
    code, out, _ = run_command("dead-letters redrive", "2")
    assert code == 0
    eventually(lambda: len(received) == 1, "the message")
    assert received[0].payload == b"2"
    assert out == f"1 redriven, 0 left\n  2  {second.id} is now {received[0].id}\n"
    assert [each["number"] for each in json.loads(run_command("dead-letters ls", "--json")[1])] == [1]
    assert json.loads(run_command("dead-letters redrive", "--all", "--json")[1])["redriven"] == 1
    eventually(lambda: len(received) == 2, "the other message")
    assert run_command("dead-letters ls")[1] == ""


def test_all_dead_letters_except_calls_are_redriven(
    running: RunningStreamer, run_command: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "_BATCH", 2)
    lose(running, lost(b"1"), call(), lost(b"2"), lost(b"3"))
    received = repaired(running, run_command)
    code, out, _ = run_command("dead-letters redrive", "--all")
    assert code == 0
    assert out.startswith("3 redriven, 1 left\n")
    assert "  2  left: a REQUEST is redriven by its number only\n" in out
    eventually(lambda: len(received) == 3, "the notifications")
    assert run_command("dead-letters redrive", "2")[0] == 0
    eventually(lambda: len(received) == 4, "the call")
    assert [each.payload for each in received] == [b"1", b"2", b"3", b"unlock"]


def test_a_streamer_that_is_about_to_stop_redrives_and_reloads_nothing(
    running: RunningStreamer, run_command: RunCommand
) -> None:
    lose(running, lost())
    running.control.close()
    code, out, _ = run_command("dead-letters redrive", "--all")
    assert (code, out) == (0, "0 redriven, 1 left\n  1  left: the streamer is about to stop\n")
    code, _, err = run_command("reload")
    assert code == 69
    assert "the streamer is about to stop" in err
    assert running.streamer.dead_letter_writer.store.numbers() == [1]


def test_failed_redrives_are_printed_and_set_the_exit_code(run_command: RunCommand) -> None:
    code, out, _ = run_command("dead-letters redrive", "7")
    assert (code, out) == (1, "0 redriven, 1 left\n  7  left: dead letter 7: there is none of this number\n")
    assert run_command("dead-letters redrive", "7", "--json")[0] == 1
    code, _, err = run_command("dead-letters show", "7")
    assert code == 1
    assert "dead letter 7: there is none of this number" in err


@pytest.mark.parametrize("action", ["redrive", "purge"])
@pytest.mark.parametrize("arguments", [[], ["1", "--all"], ["0"], ["x"]], ids=" ".join)
def test_dead_letters_are_selected_by_numbers_or_all(
    run_command: RunCommand, action: str, arguments: list[str]
) -> None:
    assert run_command(f"dead-letters {action}", *arguments)[0] == 2


def test_dead_letters_are_purged_with_and_without_a_running_streamer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with RunningStreamer(tmp_path, PLUGINS, SMALL) as running:
        lose(running, lost(), lost(), lost())
        assert run(capsys, running.path, "dead-letters purge", "2", "9")[:2] == (0, "1 purged\n")
    listed = json.loads(run(capsys, running.path, "dead-letters ls", "--json")[1])
    assert [each["number"] for each in listed] == [1, 3]
    assert run(capsys, running.path, "dead-letters purge", "--all", "--json")[1] == '{\n  "purged": 2\n}\n'
    assert run(capsys, running.path, "dead-letters ls")[:2] == (0, "")


def test_where_there_never_was_a_dead_letter_there_is_none_to_purge_or_list(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "u.toml").write_text('state_dir = "state"\n')
    assert run(capsys, tmp_path / "u.toml", "dead-letters ls")[:2] == (0, "")
    assert run(capsys, tmp_path / "u.toml", "dead-letters purge", "--all")[:2] == (0, "0 purged\n")
    assert not (tmp_path / "state").exists()


def test_a_damaged_store_is_not_listed_as_if_it_were_empty(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with RunningStreamer(tmp_path, PLUGINS, SMALL) as running:
        lose(running, lost())
    (tmp_path / "state" / "dead-letters" / "data.mdb").write_bytes(b"\x5a" * 20_000)
    code, _, err = run(capsys, running.path, "dead-letters ls")
    assert code == 74
    assert "dead-letters" in err


@pytest.mark.parametrize("action", ACTIONS)
def test_each_action_has_arguments(action: str, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser(prog="ustreamer")
    add_admin_commands(parser.add_subparsers())
    with pytest.raises(SystemExit) as ended:
        parser.parse_args([*action.split(), "--help"])
    assert ended.value.code == 0
    assert f"usage: ustreamer {action} " in capsys.readouterr().out
