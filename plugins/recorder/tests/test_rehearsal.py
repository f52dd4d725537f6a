# SPDX-License-Identifier: Apache-2.0
"""`ustreamer test`: what it compares, and what it prints.

tests/host/recording compares its decisions with those of a dispatcher, tests/e2e/operations with a live streamer.
"""

import argparse
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from ustreamer_recorder.commands import add_commands
from ustreamer_recorder.events import Event, Row, SubscriptionChange, Target
from ustreamer_recorder.layout import HEADER, RECORD
from ustreamer_recorder.rehearsal.command import run_test
from ustreamer_recorder.rehearsal.offline_ingress import AcceptingEgress
from ustreamer_recorder.rehearsal.recorded_traffic import NOWHERE, Destination, RecordedTraffic
from ustreamer_recorder.rehearsal.rehearsal import MAX_CHANGES, Rehearsal
from ustreamer_recorder.rehearsal.subscriptions import RecordedSubscriptions
from ustreamer_recorder.segments import list_segments

from ustreamer.core.delivery.ledger import EMPTY_LEDGER, Verdict
from ustreamer.core.egress.limits import EgressLimits
from ustreamer.core.routing.router import SELF, AuthorityTable, Router
from ustreamer.core.routing.subscriptions import Change, Subscription, SubscriptionDirectory
from ustreamer.hooks import OfflineRouting, StoredMessages
from ustreamer.uprotocol.uattributes import UMessageType
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri

if TYPE_CHECKING:
    from tests.conftest import Bench

TOPIC, APP, ECU = UUri("chassis", 0x1234, 1, 0x8001), UUri("hpc", 7, 1, 0), UUri("body", 0x4001, 1, 0)
MS = 1_000_000


def routing_with(
    directory: SubscriptionDirectory, authorities: dict[str, str], *fixed: str
) -> OfflineRouting:
    unicast = dict.fromkeys((SELF, *authorities.values()), True)
    router = Router(AuthorityTable(authorities), directory, unicast)
    limits = {"backbone": EgressLimits(queue_messages=500)}
    return OfflineRouting(router, unicast, lambda delivery: (), limits, frozenset(fixed))


def row(number: int, verdict: Verdict, target: Target, **fields: object) -> Row:
    """A publication that arrived after `number` ms."""
    values = {"type": UMessageType.PUBLISH, "sink": None, "priority": 1, "size": 0, "attempts": 1, **fields}
    return Row(
        seq=number,
        id=UUID((1_700_000_000_000 + number) << 16 | 0x7000, 0b10 << 62),
        verdict=verdict,
        target=target,
        source=str(TOPIC),
        arrived_ns=number * MS,
        received_ns=number * MS,
        first_attempt_ns=0,
        settled_ns=number * MS,
        **values,  # type: ignore[arg-type]
    )


def rehearse(events: Iterable[Event], authorities: dict[str, str], *fixed: str) -> Rehearsal:
    traffic, subscriptions = RecordedTraffic(), RecordedSubscriptions()
    for each in events:
        traffic.add_event(each)
    rehearsal = Rehearsal(traffic, routing_with(subscriptions, authorities, *fixed), subscriptions)
    rehearsal.run()
    return rehearsal


def summary(rehearsal: Rehearsal) -> list[tuple[str | None, Verdict | None, Verdict | None, int]]:
    return [
        (change.destination.endpoint, change.before, change.after, found.total)
        for change, found in rehearsal.changes.items()
    ]


NETWORKS = {"chassis": "chassis", "hpc": "backbone"}
NO_TARGET = Target(1, 0, "chassis")
TO_APP = Target(2, 1, "chassis", "backbone", str(TOPIC), str(APP))
SUBSCRIBED = SubscriptionChange(0, 0, Change.PRESENT, str(TOPIC), str(APP))


def test_an_authority_that_is_missing_in_the_new_file_loses_its_deliveries() -> None:
    rows = [row(number, Verdict.DELIVERED, TO_APP) for number in range(1, 4)]
    assert summary(rehearse([SUBSCRIBED, *rows], NETWORKS)) == []
    lost = rehearse([SUBSCRIBED, *rows], {"chassis": "chassis", "other": "backbone"})
    assert summary(lost) == [("backbone", Verdict.DELIVERED, Verdict.NO_SUBSCRIBER, 3)]


def test_events_that_the_new_file_does_not_configure_are_not_received() -> None:
    traffic, subscriptions = RecordedTraffic(), RecordedSubscriptions()
    events: list[Event] = [SUBSCRIBED, row(1, Verdict.DELIVERED, TO_APP), row(2, Verdict.DELIVERED, TO_APP)]
    for each in events:
        traffic.add_event(each)
    routing = msgspec.structs.replace(
        routing_with(subscriptions, NETWORKS),
        receives_topic=lambda endpoint, topic: (endpoint, topic) != ("chassis", TOPIC),
    )
    rehearsal = Rehearsal(traffic, routing, subscriptions)
    rehearsal.run()
    assert summary(rehearsal) == [("backbone", Verdict.DELIVERED, None, 2)]


def test_the_fate_in_a_queue_is_no_change_and_a_failed_filter_is_one() -> None:
    queued = [row(1, Verdict.EXPIRED, TO_APP), row(2, Verdict.DEAD_LETTERED, TO_APP, code=14)]
    failed = row(3, Verdict.DEAD_LETTERED, TO_APP, code=13, attempts=0)
    assert summary(rehearse([SUBSCRIBED, *queued, failed], NETWORKS)) == [
        ("backbone", Verdict.DEAD_LETTERED, Verdict.DELIVERED, 1)
    ]


def test_a_message_that_was_too_old_on_arrival_still_is() -> None:
    old = row(5_000, Verdict.EXPIRED, NO_TARGET, ttl_ms=10, attempts=0)
    assert summary(rehearse([SUBSCRIBED, old], NETWORKS)) == []
    assert summary(rehearse([old], NETWORKS)) == [(None, Verdict.EXPIRED, Verdict.NO_SUBSCRIBER, 1)]


def test_subscriptions_of_receivers_that_cannot_subscribe_are_those_of_the_file() -> None:
    to_ecu = Target(3, 2, "chassis", "body", str(TOPIC), str(ECU))
    events: list[Event] = [
        SubscriptionChange(0, 0, Change.PRESENT, str(TOPIC), str(ECU)),
        row(1, Verdict.DELIVERED, to_ecu),
    ]
    networks = {"chassis": "chassis", "body": "body"}
    assert summary(rehearse(events, networks)) == []
    assert summary(rehearse(events, networks, "body")) == [
        ("body", Verdict.DELIVERED, Verdict.NO_SUBSCRIBER, 1)
    ]


def test_a_value_that_is_sent_again_to_a_new_subscriber_is_no_message() -> None:
    again = row(1, Verdict.DELIVERED, TO_APP)
    later = Row(
        **{name: getattr(again, name) for name in again.__struct_fields__} | {"arrived_ns": 5_000 * MS}
    )
    rehearsal = rehearse([SUBSCRIBED, again, later], NETWORKS)
    assert (rehearsal.messages, rehearsal.resent, rehearsal.changed) == (1, 1, 0)


def test_a_renamed_endpoint_receives_what_the_old_one_received() -> None:
    networks = {"chassis": "ecus", "hpc": "backbone"}
    rehearsal = rehearse([SUBSCRIBED, row(1, Verdict.DELIVERED, TO_APP)], networks)
    assert rehearsal.moved == {"chassis": {"ecus": 1}}
    assert rehearsal.changed == 0


def test_the_number_of_different_changes_is_bounded() -> None:
    targets = [
        Target(number, number, "chassis", "backbone", str(TOPIC), str(UUri("gone", number, 1, 0)))
        for number in range(1, MAX_CHANGES + 11)
    ]
    rehearsal = rehearse([row(1, Verdict.DELIVERED, each) for each in targets], NETWORKS)
    assert (len(rehearsal.changes), rehearsal.other_changes) == (MAX_CHANGES, 10)


def test_an_egress_here_accepts_every_message() -> None:
    egress = AcceptingEgress("backbone", unicast=True)
    assert egress.transmitter(None) is not None
    assert Destination() == NOWHERE


def run_command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """The exit code and the output of `ustreamer test new.toml` with NETWORKS."""

    def load(config: Path, directory: SubscriptionDirectory) -> OfflineRouting:
        return routing_with(directory, NETWORKS)

    parser = argparse.ArgumentParser()
    add_commands(
        parser.add_subparsers(),
        lambda _: StoredMessages(),
        lambda config: pytest.fail(str(config)),
        None,
        load,
    )
    code = run_test(parser.parse_args(["test", "new.toml", *arguments]), load)
    return code, capsys.readouterr().out


def test_the_command_prints_each_change(
    bench: "Bench", tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.drain()
    bench.note_queue.on_configured(json.dumps({"egress": {"backbone": {"queue_messages": 10_000}}}))
    bench.note_queue.on_subscription_change(Subscription(TOPIC, APP), Change.PRESENT)
    for _ in range(3):
        bench.settle(None, Verdict.NO_SUBSCRIBER, bench.message(TOPIC, b""))
        bench.time.advance(s=0.01)
    bench.drain()
    bench.journal.finish(EMPTY_LEDGER)

    code, text = run_command(capsys, "--recording", str(bench.directory))
    assert code == 1
    assert "egress.backbone.queue_messages was 10000 and is 500: queues are not replayed" in text
    assert (
        "no_subscriber -> forwarded  up://chassis/1234/1/8001, chassis -> backbone for up://hpc/7/1/0" in text
    )
    code, text = run_command(capsys, "--recording", str(bench.directory), "--json")
    assert json.loads(text)["changed"] == 3
    assert "segment" not in text
    assert run_command(capsys, "--recording", str(tmp_path / "none"))[0] == 2
    assert run_command(capsys, "--recording", str(bench.directory), "--run", "12")[0] == 2


def test_the_command_names_what_a_cut_recording_does_not_have(
    bench: "Bench", capsys: pytest.CaptureFixture[str]
) -> None:
    bench.drain()
    ends, data = [], b""
    for _ in range(2):
        bench.settle(None, Verdict.NO_SUBSCRIBER, bench.message(TOPIC, b""))
        bench.time.advance(s=0.01)
        bench.drain()
        data = list_segments(bench.directory)[0].path.read_bytes()
        records = -(-(len(data.rstrip(b"\0")) - HEADER) // RECORD)
        ends.append(HEADER + records * RECORD)
    bench.journal.finish(EMPTY_LEDGER)
    [file] = list_segments(bench.directory)
    no_end = "note: the last segment has no end: the recorder was killed or still runs, or the file was cut"
    torn = r"note: \d+ bytes behind the last whole block are torn: their messages are missing"
    file.path.write_bytes(data[: ends[0]])
    code, text = run_command(capsys, "--recording", str(bench.directory))
    assert (code, no_end in text, re.search(torn, text)) == (0, True, None)
    file.path.write_bytes(data[: sum(ends) // 2])
    code, text = run_command(capsys, "--recording", str(bench.directory))
    assert (code, no_end in text) == (0, True)
    assert re.search(torn, text)
    notes = json.loads(run_command(capsys, "--recording", str(bench.directory), "--json")[1])["notes"]
    assert len(notes) == 2
