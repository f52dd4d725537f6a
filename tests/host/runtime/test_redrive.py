# SPDX-License-Identifier: Apache-2.0
"""Dead letters of a whole streamer, dispatched again."""

from collections.abc import Iterable
from pathlib import Path
from threading import Event
from typing import Any, Final

import pytest

from tests.host.streamer_bench import OWN, TOPIC, Bench, fake, link, wait_persisted_letters
from tests.host.waiting import eventually
from tests.waiting import DEADLINE_S
from ustreamer.core.peers.election import Announcement, AnnouncementRole
from ustreamer.host.admin.server import RedriveRequest
from ustreamer.host.admin.status import RedriveResult
from ustreamer.host.runtime import control as runtime_control
from ustreamer.host.runtime.clock import SYSTEM_CLOCK
from ustreamer.host.runtime.control import Control
from ustreamer.host.runtime.redrive import Redriver
from ustreamer.host.runtime.streamer import Streamer
from ustreamer.host.storage.spool import Spool
from ustreamer.testing.messages import new_id
from ustreamer.uprotocol.uattributes import UPayloadFormat
from ustreamer.uprotocol.umessage import (
    notification,
    publish,
)
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuri import UUri

RECEIVER: Final = UUri("dash", 7, 1, 0)
DURABLE: Final = fake("dash", "dash", transport="sessions", receivers=[str(RECEIVER)], durable=True)
RETRY: Final = "[egress.default]\nretry = { first_ms = 600_000, max_ms = 600_000 }"


def test_a_dead_letter_is_stored_and_redriven_as_a_new_message(bench: Bench) -> None:
    streamer = bench.started(bench.local("inside", OWN), fake("chassis", "chassis"))
    chassis = link(streamer, "chassis")
    chassis.fault = UCode.INTERNAL
    sink = UUri("chassis", 1, 1, 0)
    lost = notification(new_id(), TOPIC, sink, b"\x01\x02", UPayloadFormat.RAW, ttl=60_000)
    bench.app("inside").transport.send(lost)
    [number] = wait_persisted_letters(streamer, 1)
    chassis.fault = None
    redriven = streamer.redrive(number)
    eventually(lambda: bool(chassis.sent), "the message")
    [(_, sent)] = chassis.sent
    assert (sent.attributes, sent.payload) == (lost.attributes, lost.payload)
    assert sent.id.time_ms >= lost.id.time_ms
    assert sent.id.lsb & 0xFFFF_FFFF == lost.id.lsb & 0xFFFF_FFFF  # the request id of a SOME/IP header
    assert (redriven.id, redriven.new_id) == (str(lost.id), str(sent.id)) != (str(sent.id), str(lost.id))
    assert streamer.statistics().dead_letters["stored"] == 1  # a successful redrive by the control deletes it


def test_a_failed_redrive_is_a_dead_letter_again(bench: Bench) -> None:
    streamer = bench.started(bench.local("inside", OWN), fake("chassis", "chassis"))
    link(streamer, "chassis").fault = UCode.INTERNAL
    bench.app("inside").transport.send(notification(new_id(), TOPIC, UUri("chassis", 1, 1, 0), b"x"))
    [first] = wait_persisted_letters(streamer, 1)
    streamer.redrive(first)
    assert wait_persisted_letters(streamer, 2) == [first, first + 1]


def test_an_unredrivable_dead_letter_gives_the_reason(bench: Bench) -> None:
    streamer = bench.started(
        bench.local("inside", OWN), fake("chassis", "chassis"), "[dead_letters]\npayload_bytes = 1"
    )
    link(streamer, "chassis").fault = UCode.INTERNAL
    bench.app("inside").transport.send(notification(new_id(), TOPIC, UUri("chassis", 1, 1, 0), b"large"))
    [number] = wait_persisted_letters(streamer, 1)
    for sent_request, code, text in (
        (number, UCode.FAILED_PRECONDITION, "payload of 5 bytes was too large"),
        (number + 1, UCode.NOT_FOUND, "none of this number"),
    ):
        with pytest.raises(UStatusError, match=text) as refused:
            streamer.redrive(sent_request)
        assert refused.value.code is code


def test_a_dead_letter_of_a_removed_endpoint_cannot_be_redriven(bench: Bench) -> None:
    streamer = bench.started(bench.local("inside", OWN), fake("chassis", "chassis"))
    link(streamer, "chassis").fault = UCode.INTERNAL
    bench.app("inside").transport.send(notification(new_id(), TOPIC, UUri("chassis", 1, 1, 0), b"x"))
    [number] = wait_persisted_letters(streamer, 1)
    later = Redriver(streamer.dead_letter_writer.store, streamer.dispatcher, ("outside",), SYSTEM_CLOCK)
    with pytest.raises(UStatusError, match=r"its ingress was 'inside' \(have: outside\)") as refused:
        later(number)
    assert refused.value.code is UCode.FAILED_PRECONDITION


def test_a_dead_letter_forwarded_by_a_peer_cannot_be_redriven(bench: Bench) -> None:
    """It would be left to the peer, and lost."""
    streamer = bench.started(bench.local("inside", OWN), fake("chassis", "chassis"))
    link(streamer, "chassis").fault = UCode.INTERNAL
    bench.app("inside").transport.send(notification(new_id(), TOPIC, UUri("chassis", 1, 1, 0), b"x"))
    [number] = wait_persisted_letters(streamer, 1)
    announced = [
        (AnnouncementRole.IDENTITY, "chassis"),
        (AnnouncementRole.LOCAL, OWN),
        (AnnouncementRole.CARRIES, "chassis"),
    ]
    text = (Announcement("1" * 16, "x", "chassis", *each, trusted=True) for each in announced)
    streamer._peers.on_announcements("inside", frozenset(text))
    with pytest.raises(UStatusError, match="a peer streamer forwards such messages to 'chassis'") as refused:
        streamer.redrive(number)
    assert refused.value.code is UCode.FAILED_PRECONDITION
    streamer._peers.on_announcements("inside", frozenset())
    assert streamer.redrive(number).number == number


def letters_at_a_durable_endpoint(bench: Bench, number: int) -> tuple[Streamer, Control]:
    """A streamer with dead letters, whose endpoint is away from now on."""
    streamer = bench.started(fake("car", TOPIC.authority_name), DURABLE, RETRY)
    link(streamer, "dash").fault = UCode.INTERNAL
    for _ in range(number):
        link(streamer, "car").receive_message(publish(new_id(), TOPIC, b"x"))
    wait_persisted_letters(streamer, number)
    link(streamer, "dash").fault = UCode.UNAVAILABLE
    return streamer, Control(streamer, Path("none.toml"), lambda path: pytest.fail("no reload"))


def redrive_all(control: Control) -> RedriveResult:
    result = control.handle_request(RedriveRequest(None))
    assert isinstance(result, RedriveResult)
    return result


def test_a_dead_letter_is_deleted_when_its_message_is_on_disk(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill between both would lose it."""
    streamer, control = letters_at_a_durable_endpoint(bench, 250)
    store, on_disk = streamer.dead_letter_writer.store, list[int]()
    delete = store.delete

    def noting(numbers: Iterable[int]) -> int:
        [queue] = (each for each in streamer.egress_queues() if each.endpoint == "dash")
        on_disk.append(queue.persisted)
        return delete(numbers)

    monkeypatch.setattr(store, "delete", noting)
    result = redrive_all(control)
    assert (result.redriven, result.left) == (250, 0)
    assert on_disk == [100, 200, 250]


def test_a_dead_letter_stays_while_a_disk_does_not_take_its_message(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    streamer, control = letters_at_a_durable_endpoint(bench, 150)
    hangs = Event()
    commit = Spool.commit

    def hanging(*arguments: Any, **named: Any) -> Any:
        hangs.wait(DEADLINE_S)
        return commit(*arguments, **named)

    monkeypatch.setattr(Spool, "commit", hanging)
    monkeypatch.setattr(runtime_control, "_SAFE_WAIT_S", 0.1)
    try:
        result = redrive_all(control)
    finally:
        hangs.set()
    assert (result.redriven, result.left) == (0, 150)
    assert "and not deleted: a durable endpoint cannot write it to disk" in result.reasons[0].reason
    assert result.reasons[-1].reason == "the disk is full or slow"
    assert len(streamer.dead_letter_writer.store.numbers()) == 150
