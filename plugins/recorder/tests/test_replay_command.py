# SPDX-License-Identifier: Apache-2.0
"""What `recordings replay` sends, and when. tests/e2e/operations/test_recording.py replays into a real streamer."""

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from ustreamer_recorder.commands import add_commands
from ustreamer_recorder.replay_command import run_replay

from ustreamer.core.base.clock import Clock
from ustreamer.core.delivery.ledger import EMPTY_LEDGER
from ustreamer.core.routing.subscriptions import Change, Subscription, SubscriptionDirectory
from ustreamer.core.routing.usubscription_codec import subscribe_in, unsubscribe_in
from ustreamer.hooks import Networks, OfflineRouting, StoredMessages
from ustreamer.uprotocol.uattributes import UPayloadFormat
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuri import UUri

if TYPE_CHECKING:
    from tests.conftest import Bench

TOPIC, OTHER = UUri("chassis", 0x1234, 1, 0x8001), UUri("chassis", 0x2001, 1, 0x8001)
APP, UNKNOWN = UUri("hpc", 7, 1, 0), UUri("nowhere", 7, 1, 0)


class Sent:
    """Networks that remember what they get."""

    authority = "hpc"

    def __init__(self) -> None:
        self.now_ns = 0
        self.clock = Clock(self._monotonic_ns, lambda: 1_700_000_000_000)
        self.published: list[UMessage] = []
        self.calls: list[tuple[UUri, UUri, bytes]] = []
        self.settled = False

    def _monotonic_ns(self) -> int:
        self.now_ns += 1_000_000_000  # every step is due at once
        return self.now_ns

    def publish(self, message: UMessage) -> None:
        self.published.append(message)

    def call(self, source: UUri, method: UUri, payload: bytes) -> None:
        if source == UNKNOWN:
            raise UStatusError(UCode.UNIMPLEMENTED, f"{source}: its node cannot be replaced")
        self.calls.append((source, method, payload))

    def settle(self) -> None:
        self.settled = True

    @contextmanager
    def opened(self, config: Path) -> Iterator[Networks]:
        yield self


def no_routing(config: Path, directory: SubscriptionDirectory) -> OfflineRouting:
    pytest.fail(f"{config}: loaded")


def replay(sent: Sent, *arguments: str) -> int:
    parser = argparse.ArgumentParser()
    add_commands(parser.add_subparsers(), lambda _: StoredMessages(), sent.opened, None, no_routing)
    options = parser.parse_args(["recordings", "replay", *arguments, "--into", "streamer.toml"])
    return run_replay(options, sent.opened)


def test_messages_are_sent_once_in_order_with_their_payloads(
    build: "Callable[..., Bench]", capsys: pytest.CaptureFixture[str]
) -> None:
    bench = build(payloads=("//chassis/1234/1/*",), payload_hz=10.0)
    bench.drain()
    for change, period_ns in ((Change.SUBSCRIBED, 50_000_000), (Change.UNSUBSCRIBED, 0)):
        bench.note_queue.on_subscription_change(Subscription(TOPIC, APP, period_ns), change)
        bench.time.advance(s=0.001)
    bench.note_queue.on_subscription_change(Subscription(TOPIC, UNKNOWN), Change.PRESENT)
    messages = []
    for number, topic in enumerate((TOPIC, OTHER, TOPIC)):
        messages.append(bench.message(topic, b"kept%d" % number))
        for _ in range(2):  # two targets
            bench.settle(bench.delivery(), message=messages[-1])
        bench.time.advance(s=0.01)
    bench.settle(message=bench.message(UUri("hpc", 4, 1, 0x8000)))  # a dead letter, of the streamer itself
    bench.drain()
    bench.journal.finish(EMPTY_LEDGER)
    sent = Sent()
    assert replay(sent, str(bench.directory), "--json") == 0
    found = [(each.attributes.source, each.payload) for each in sent.published]
    assert found == [(TOPIC, b"kept0"), (OTHER, bytes(5)), (TOPIC, b"kept0")]
    assert not {each.id for each in sent.published} & {each.id for each in messages}
    subscribed, unsubscribed = sent.calls
    assert subscribed[:2] == (APP, UUri("hpc", 0, 3, 1))
    assert subscribe_in(3, subscribed[2], UPayloadFormat.PROTOBUF).period_ns == 50_000_000
    assert unsubscribe_in(3, unsubscribed[2], UPayloadFormat.PROTOBUF) == TOPIC
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (result["published"], result["subscription_changes"], result["not_replayed"]) == (3, 2, 0)
    assert result["skipped"] == {f"{UNKNOWN}: its node cannot be replaced": 1}
    assert sent.settled


def test_a_wrong_speed_or_run_is_one_line(
    bench: "Bench", tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, code, text in (
        ([str(tmp_path), "--speed", "0"], 2, "--speed 0.0: expected a number above 0"),
        ([str(bench.directory), "--run", "12"], 1, "no run 12 (have: 0000000000000001)"),
        ([str(tmp_path / "none")], 1, "No such file or directory"),
    ):
        assert replay(Sent(), *arguments) == code
        assert text in capsys.readouterr().err


def test_rows_that_cannot_be_read_are_reported(
    build: "Callable[..., Bench]", capsys: pytest.CaptureFixture[str]
) -> None:
    bench = build()
    bench.drain()
    for _ in range(3):
        bench.settle(message=bench.message(TOPIC, b"speed"))
        bench.drain()
    bench.journal.finish(EMPTY_LEDGER)
    [file] = bench.directory.glob("*.useg")
    data = bytearray(file.read_bytes())
    at = data.rindex(b"1234")  # any byte in a block before the last one
    data[at] ^= 1
    file.write_bytes(data)
    assert replay(Sent(), str(bench.directory)) == 74
    assert "the recording is damaged or incomplete" in capsys.readouterr().err
