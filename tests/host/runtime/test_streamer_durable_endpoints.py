# SPDX-License-Identifier: Apache-2.0
"""A streamer with a durable endpoint: the persisted messages of a stop, after restarts and changes."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import pytest

from tests.host.streamer_bench import TOPIC, Bench, fake, link
from tests.host.waiting import eventually
from ustreamer.host.config.config import StreamerConfig
from ustreamer.host.runtime.streamer import Streamer
from ustreamer.testing.messages import new_id
from ustreamer.uprotocol.uattributes import UMessageType
from ustreamer.uprotocol.umessage import publish, request
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuri import UUri

RECEIVER: Final = UUri("dash", 7, 1, 0)
QUICK: Final = "[egress.default]\nretry = { first_ms = 1, max_ms = 1 }"
NO_RETRY: Final = "[egress.default]\nretry = { first_ms = 600_000, max_ms = 600_000 }"
CAR: Final = fake("car", TOPIC.authority_name)


def dash(*, durable: bool = True) -> str:
    return fake("dash", "dash", transport="sessions", receivers=[str(RECEIVER)], durable=durable)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.finish()


def start(bench: Bench, *sections: str, up: bool, retry: str = QUICK) -> Streamer:
    streamer = bench.streamer(*sections, retry, state="state")
    if not up:
        link(streamer, "dash").fault = UCode.UNAVAILABLE
    streamer.start()
    return streamer


def arrive(streamer: Streamer, count: int, first: int = 0) -> None:
    for n in range(first, first + count):
        link(streamer, "car").receive_message(publish(new_id(), TOPIC, b"%d" % n))


def persisted_count(streamer: Streamer) -> int:
    return sum(endpoint_queue.persisted for endpoint_queue in streamer.egress_queues())


def is_paused(streamer: Streamer) -> bool:
    return any(each.failures for queue in streamer.egress_queues() for each in queue.fullest)


def sent(streamer: Streamer) -> list[tuple[UUri | None, bytes]]:
    return [(subscriber, message.payload) for subscriber, message in link(streamer, "dash").sent]


def test_a_stop_excludes_persisted_messages_and_the_next_start_sends_them(
    bench: Bench,
) -> None:
    first = start(bench, CAR, dash(), up=False)
    arrive(first, 5)
    assert first.stop() == 0
    ledger = first.ledger()
    assert (ledger.queued, ledger.dead_lettered, ledger.unaccounted) == (5, 0, 0)
    assert first.dead_letter_writer.statistics()["persisted"] == 0
    assert persisted_count(first) == 5

    second = start(bench, CAR, dash(), up=True)
    arrive(second, 1, first=5)
    eventually(lambda: len(sent(second)) == 6, "all to be sent")
    assert sent(second) == [(RECEIVER, b"%d" % n) for n in range(6)]
    assert second.ledger().received == second.ledger().delivered == 6
    assert second.stop() == 0
    assert second.endpoints()["dash"]["spooled"] == 0


def test_persisted_messages_survive_the_removal_of_their_ingress_endpoint(bench: Bench) -> None:
    first = start(bench, CAR, dash(), up=False)
    arrive(first, 3)
    eventually(lambda: persisted_count(first) == 3, "all to be on disk")
    assert first.stop() == 0
    second = start(bench, dash(), up=True)
    eventually(lambda: len(sent(second)) == 3, "all to be sent")
    assert second.ledger().unaccounted == 0


def test_an_expired_persisted_request_gets_an_error_response_at_its_ingress(
    bench: Bench,
) -> None:
    method, caller = UUri("dash", 7, 1, 1), UUri(TOPIC.authority_name, 9, 1, 0)
    sent_request = request(new_id(), caller, method, ttl=2_000)  # a busy disk takes time
    first = start(bench, CAR, dash(), up=False)
    link(first, "car").receive_message(sent_request)
    eventually(lambda: persisted_count(first) == 1, "the message to be on disk")
    assert first.stop() == 0
    assert link(first, "car").sent == []

    eventually(lambda: sent_request.id.time_ms + 2_001 < new_id().time_ms, "its ttl to end")
    second = start(bench, CAR, dash(), up=True)
    eventually(lambda: len(link(second, "car").sent) == 1, "an answer")
    [(_, answer)] = link(second, "car").sent
    assert answer.attributes.type is UMessageType.RESPONSE
    assert (answer.attributes.reqid, answer.attributes.sink) == (sent_request.id, caller)
    assert answer.attributes.commstatus is UCode.DEADLINE_EXCEEDED
    assert second.ledger().expired == 1


def test_an_expired_request_of_a_removed_endpoint_causes_no_error(bench: Bench) -> None:
    method, caller = UUri("dash", 7, 1, 1), UUri(TOPIC.authority_name, 9, 1, 0)
    sent_request = request(new_id(), caller, method, ttl=2_000)
    first = start(bench, CAR, dash(), up=False)
    link(first, "car").receive_message(sent_request)
    eventually(lambda: persisted_count(first) == 1, "the message to be on disk")
    first.stop()
    eventually(lambda: sent_request.id.time_ms + 2_001 < new_id().time_ms, "its ttl to end")
    second = start(bench, dash(), up=True)
    eventually(lambda: second.ledger().expired == 1, "the request to expire")
    assert second.stop() == 0


def test_a_spool_of_a_no_longer_durable_endpoint_is_unused_and_logged(
    bench: Bench, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    first = start(bench, CAR, dash(), up=False)
    arrive(first, 3)
    first.stop()
    with caplog.at_level(logging.WARNING):
        start(bench, CAR, dash(durable=False), up=True).stop()
    [log_record] = [record for record in caplog.records if record.message == "streamer.spool_unused"]
    assert log_record.__dict__["spool"] == str(tmp_path / "state" / "spool" / "dash")
    third = start(bench, CAR, dash(), up=True)
    eventually(lambda: len(sent(third)) == 3, "all to be sent")


def test_a_reload_changes_how_much_may_be_kept(bench: Bench) -> None:
    streamer = start(bench, CAR, dash(), up=False, retry=NO_RETRY)
    before: StreamerConfig = streamer._config
    limits = msgspec.structs.replace(before.limits("dash"), spool_messages=4)  # two for one subscriber
    after = msgspec.structs.replace(before, egress={**before.egress, "dash": limits})
    assert streamer.reload(after) == ["egress.dash.spool_messages"]
    # A message in flight is outside the limits. With a retry each ms, the send thread could hold one or two of
    # the five during the arrivals, and only two or one became dead letters. So the queue is paused first.
    arrive(streamer, 1)
    eventually(lambda: is_paused(streamer), "the failed send to pause the subscriber queue")
    arrive(streamer, 4, first=1)
    eventually(lambda: streamer.ledger().dead_lettered == 3, "three dead letters beyond the limit of two")
    assert streamer.stop() == 0
    assert persisted_count(streamer) == 2


def test_a_locked_spool_prevents_the_start(bench: Bench) -> None:
    start(bench, CAR, dash(), up=True)
    second = bench.streamer(CAR, dash(), QUICK, state="state")
    with pytest.raises(UStatusError, match="is held"):
        second.start()
