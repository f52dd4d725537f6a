# SPDX-License-Identifier: Apache-2.0
"""The frames between the streamer and the process of its sessions, without a process."""

import asyncio
import logging
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from ustreamer_wamp.config import Place, Tls, WampConfig
from ustreamer_wamp.process import child, frames, parent
from ustreamer_wamp.users import User
from ustreamer_wamp.vehicle.batch import VehicleBatch, rate_entity
from ustreamer_wamp.vehicle.patterns import Pattern

from ustreamer.core.base.log_limit import LIMITED, limited
from ustreamer.uprotocol.umessage import publish
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri

PLACE = Place("wamp.hpc", "hpc", ("hpc",))
CONFIG = WampConfig(
    listen=("wss://127.0.0.1:0/ws", "rs+unix:///run/x"),
    tls=Tls(Path("a.crt"), Path("a.key")),
    users=(User(authid="cra", secret="s", salt="salt", iterations=10),),
    max_message_bytes=512,
)


def test_a_section_crosses_the_border_unchanged() -> None:
    assert frames.unpack_config(frames.pack_config(CONFIG)) == CONFIG


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_frames_are_read_from_pieces_of_any_size(size: int) -> None:
    sent: list[frames.ToSessions] = [
        frames.Start(b"config", PLACE, ["//car/2001/1/8001"]),
        frames.Event(1, b"header", b"payload", None),
        frames.Event(2, b"header", b"", b"value"),
        frames.DroppedEvents(3, "//car/2001/1/8001", 7),
        frames.Close(),
    ]
    reader, received = frames.reader_in_child(), []
    data = b"".join(map(frames.pack, sent))
    for at in range(0, len(data), size):
        reader.feed(data[at : at + size])
        while (frame := reader.next_frame()) is not None:
            received.append(frame)
    assert received == sent


def test_a_lone_frame_is_read_without_a_copy_and_only_if_nothing_waits() -> None:
    reader, data = frames.reader_in_child(), frames.pack(frames.Close())
    assert reader.take_lone_frame(data) == frames.Close()
    for other in (data + data, data[:-1], data[:3], b""):
        assert reader.take_lone_frame(other) is None
    reader.feed(data[:2])
    assert reader.take_lone_frame(data) is None, "it is not the begin of a frame"
    with pytest.raises(frames.InvalidFrame):
        frames.reader_in_child().take_lone_frame(b"\0\0\0\1\xc1")


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff",  # 4 GiB
        b"\0\0\0\1\xc1",  # no MessagePack
        b"\0\0\0\2\x91\x63",  # no such frame
        frames.pack(frames.PatternChange(1, "up.", "regex", None)),  # type: ignore[arg-type]
    ],
)
def test_bytes_of_a_hostile_child_are_an_error(data: bytes) -> None:
    reader = frames.reader_in_streamer(CONFIG)
    reader.feed(data)
    with pytest.raises(frames.InvalidFrame):
        reader.next_frame()


@pytest.fixture
def connected() -> Iterator[tuple[child.StreamerLink, socket.socket]]:
    """The link of a child, and the streamer's end of its socket."""
    config = msgspec.structs.replace(CONFIG, listen="ws://127.0.0.1:0/ws", tls=None)
    ours, theirs = socket.socketpair()
    theirs.settimeout(10.0)
    link = child.StreamerLink(frames.Start(frames.pack_config(config), PLACE, []), ours)
    with ours, theirs:
        yield link, theirs
    link.sessions.router.server.close()


def test_a_streamer_that_takes_nothing_gets_no_more_publications(
    connected: tuple[child.StreamerLink, socket.socket],
) -> None:
    link, _ = connected
    id = UUID(1_700_000_000_000 << 16 | 0x7000, 0b10 << 62)
    message = publish(id, UUri("wamp.hpc", 0x4711, 1, 0x8000), bytes(100_000))
    sent = 0
    while link.dispatch(message):
        sent += 1
    assert 10 <= sent <= 12
    assert link.unsent_bytes < 1_300_000


def test_a_streamer_that_takes_nothing_gets_no_more_log_lines_and_reports(
    connected: tuple[child.StreamerLink, socket.socket],
) -> None:
    link, _ = connected
    line = frames.ForwardedLog("ustreamer.wamp", logging.INFO, "wamp.client_ended", {"reason": "x" * 1_000})

    async def run() -> None:
        link.open()
        for _ in range(3_000):
            link.send_log_line(line)
        before = link.unsent_bytes
        kept, *others = (
            Pattern(rate_entity("wamp.hpc", 1), f"up.{number}.", "prefix") for number in range(100)
        )
        link.add_pattern(kept, 0)
        for each in others:
            link.add_pattern(each, 0)
            link.remove_pattern(each)
        link._send_patterns()
        assert list(link._changed_patterns) == [kept]
        link._report()
        assert link.unsent_bytes == before < 1_300_000

    asyncio.run(run())
    assert link.sessions.counts["log_lines_dropped"] > 1_000


def test_a_defect_in_a_later_turn_ends_a_child(
    connected: tuple[child.StreamerLink, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The streamer then starts another process. A child that only stops reading would stay."""
    link, streamer = connected
    monkeypatch.setattr(child, "_TURN_NS", 0)
    frame = frames.pack(frames.SeenTopic("//a/1/1/8000"))
    wrong = frames.pack(frames.SeenTopic("no topic"))

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        link.open()
        streamer.sendall(frame * 200 + wrong)
        assert await asyncio.to_thread(link.ended.wait, 10.0)

    asyncio.run(asyncio.wait_for(run(), 20.0))


def test_a_streamer_that_reads_slowly_gets_all_frames_in_order(
    connected: tuple[child.StreamerLink, socket.socket],
) -> None:
    link, streamer = connected
    reader = frames.reader_in_streamer(msgspec.structs.replace(CONFIG, max_message_bytes=1 << 20))
    sent = [frames.SessionMessage(b"header", bytes([number]) * 200_000) for number in range(9)]
    found: list[frames.FromSessions] = []

    async def exchange() -> None:
        link.send(sent[0])  # before the link is open
        link.open()
        for each in sent[1:]:
            link.send(each)
        assert link.unsent_bytes > 1_000_000, "the socket takes less"
        while len(found) < len(sent):
            reader.feed(await asyncio.to_thread(streamer.recv, 65_536))
            while (frame := reader.next_frame()) is not None:
                if not isinstance(frame, frames.Report):
                    found.append(frame)

    asyncio.run(asyncio.wait_for(exchange(), 20.0))
    assert isinstance(found[0], frames.Ready)
    assert found[1:] == sent[: len(found) - 1]
    assert link.unsent_bytes < 200_000


def test_the_end_of_the_streamer_ends_a_child(connected: tuple[child.StreamerLink, socket.socket]) -> None:
    link, streamer = connected

    async def run() -> None:
        link.open()
        streamer.close()
        assert await asyncio.to_thread(link.ended.wait, 10.0)
        link.send(frames.SessionMessage(b"header", bytes(100)))
        assert link.unsent_bytes == 0, "it is lost"

    asyncio.run(asyncio.wait_for(run(), 20.0))


class FailingSocket:
    """The socket of a child that takes nothing, or has ended."""

    def __init__(self, error: OSError) -> None:
        self._error = error

    def send(self, data: bytes) -> int:
        raise self._error


@pytest.mark.parametrize("error", [TimeoutError(), BrokenPipeError()])
def test_events_that_a_child_did_not_take_are_counted(error: OSError) -> None:
    streamer = cast("parent.StreamerSide", SimpleNamespace(decoder=lambda topic: None))
    process = parent.SessionsProcess(CONFIG, PLACE, streamer, lambda: 0)
    process._feed.attach(cast("socket.socket", FailingSocket(error)))
    entity, topic = rate_entity("wamp.hpc", 1), UUri("car", 0x2001, 1, 0x8001)
    message = publish(UUID(1_700_000_000_000 << 16 | 0x7000, 0b10 << 62), topic, b"x")
    process._feed._send_batch(VehicleBatch((), {(entity, topic): 2}, [(entity, message, None)]))
    assert process.statistics()["events_no_subscriber"] == 3


def test_a_log_line_keeps_its_fields_and_its_limit(
    connected: tuple[child.StreamerLink, socket.socket],
) -> None:
    link, _ = connected

    def run_now(function: Any, line: frames.ForwardedLog) -> bool:
        function(line)
        return True

    handler = child.LogToStreamer(run_now, link)
    fields = {"peer": "192.0.2.1", "path": Path("/x"), **limited("192.0.2.1")}
    handler.handle(
        logging.makeLogRecord(
            {"name": "ustreamer.wamp", "levelno": logging.INFO, "msg": "wamp.client_ended", **fields}
        )
    )
    reader = frames.reader_in_streamer(CONFIG)
    reader.feed(bytes(link._unsent))
    line = reader.next_frame()
    assert isinstance(line, frames.ForwardedLog)
    assert (line.event, line.fields) == (
        "wamp.client_ended",
        {"peer": "192.0.2.1", "path": "/x", LIMITED: ["192.0.2.1"]},
    )


def test_the_uentity_of_a_rate_has_its_number_as_instance() -> None:
    entity = rate_entity("wamp.hpc", 3)
    assert (entity.ue_instance, entity.ue_type, entity.resource_id) == (3, 0x8001, 0)
    assert Pattern(entity, "up.", "prefix").entity == UUri("wamp.hpc", 0x3_8001, 1, 0)
