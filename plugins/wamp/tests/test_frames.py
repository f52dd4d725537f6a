# SPDX-License-Identifier: Apache-2.0
"""The frames between the streamer and the process of its sessions, without a process."""

import logging
import socket
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


class FakeTransport:
    """A connection to the streamer that takes nothing."""

    def __init__(self) -> None:
        self.written = b""

    def write(self, data: bytes) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return len(self.written)


def link_of_child() -> tuple[child.StreamerLink, FakeTransport]:
    config = msgspec.structs.replace(CONFIG, listen="ws://127.0.0.1:0/ws", tls=None)
    link = child.StreamerLink(frames.Start(frames.pack_config(config), PLACE, []))
    transport = FakeTransport()
    link._transport = transport  # type: ignore[assignment]  # it has the methods that are called
    return link, transport


def test_a_streamer_that_takes_nothing_gets_no_more_publications() -> None:
    link, transport = link_of_child()
    id = UUID(1_700_000_000_000 << 16 | 0x7000, 0b10 << 62)
    message = publish(id, UUri("wamp.hpc", 0x4711, 1, 0x8000), bytes(100_000))
    sent = 0
    while link.dispatch(message):
        sent += 1
    assert 10 <= sent <= 12
    assert link.unsent_bytes == len(transport.written) < 1_300_000
    link.sessions.router.server.close()


class FailingSocket:
    """The socket of a child that takes nothing, or has ended."""

    def __init__(self, error: OSError) -> None:
        self._error = error

    def sendall(self, data: bytes) -> None:
        raise self._error


@pytest.mark.parametrize("error", [TimeoutError(), BrokenPipeError()])
def test_events_that_a_child_did_not_take_are_counted(error: OSError) -> None:
    streamer = cast("parent.StreamerSide", SimpleNamespace(decoder=lambda topic: None))
    process = parent.SessionsProcess(CONFIG, PLACE, streamer, lambda: 0)
    process._feed.attach(cast("socket.socket", FailingSocket(error)))
    entity, topic = rate_entity("wamp.hpc", 1), UUri("car", 0x2001, 1, 0x8001)
    message = publish(UUID(1_700_000_000_000 << 16 | 0x7000, 0b10 << 62), topic, b"x")
    process._feed._send(VehicleBatch((), {(entity, topic): 2}, [(entity, message, None)]))
    assert process.statistics()["events_no_subscriber"] == 3


def test_a_log_line_keeps_its_fields_and_its_limit() -> None:
    link, transport = link_of_child()

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
    reader.feed(transport.written)
    line = reader.next_frame()
    assert isinstance(line, frames.ForwardedLog)
    assert (line.event, line.fields) == (
        "wamp.client_ended",
        {"peer": "192.0.2.1", "path": "/x", LIMITED: ["192.0.2.1"]},
    )
    link.sessions.router.server.close()


def test_the_uentity_of_a_rate_has_its_number_as_instance() -> None:
    entity = rate_entity("wamp.hpc", 3)
    assert (entity.ue_instance, entity.ue_type, entity.resource_id) == (3, 0x8001, 0)
    assert Pattern(entity, "up.", "prefix").entity == UUri("wamp.hpc", 0x3_8001, 1, 0)
