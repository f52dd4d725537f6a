# SPDX-License-Identifier: Apache-2.0
"""Borders of plugin wamp: messages of a session, the framings below them, and the process of its sessions."""

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final, cast

from ustreamer_wamp.codec import SERIALIZERS, Serializer
from ustreamer_wamp.connections.connection import Connection
from ustreamer_wamp.connections.rawsocket import WIRE_FORMATS, RawSocketConnection
from ustreamer_wamp.connections.websocket import HttpGate, WebSocketConnection
from ustreamer_wamp.process import frames
from ustreamer_wamp.session import Session, SessionState
from ustreamer_wamp.users import User

from plugins.wamp.tests.conftest import RealmRig
from plugins.wamp.tests.connections.test_hostile_streams import (
    Loop,
    Socket,
    connection_context,
    rawsocket,
    websocket,
)
from plugins.wamp.tests.test_frames import CONFIG
from plugins.wamp.tests.test_hostile import GOOD, HELLO, CountingSink
from tests.fuzz.border import Border, Take, join_pieces, pure, split_pieces

if TYPE_CHECKING:
    import asyncio


def takes_messages(serializer: Serializer) -> Take:
    """Takes the messages of a session, one in each piece. A kind of 0 at the first piece says HELLO before them."""
    wire = WIRE_FORMATS[serializer.rawsocket]
    hello = serializer.encode(HELLO)

    def take(data: bytes) -> None:
        realm = RealmRig(User(authid="a", secret="s")).realm
        session = Session({"realm1": realm}, serializer, CountingSink(wire, Counter()), 0, peer="192.0.2.1")
        for number, (kind, piece) in enumerate(split_pieces(data)):
            if not number and not kind:
                session.on_message(hello)
            if session.state is SessionState.CLOSED:
                break
            session.on_message(piece)
        if session.state is not SessionState.CLOSED:
            session.on_connection_lost()
        assert (len(realm.broker), realm.sessions) == (0, {})

    return take


def takes_stream(framing: str) -> Take:
    """Takes the bytes of a connection; each piece is what one read gives."""

    def take(data: bytes) -> None:
        rig, loop, sock = RealmRig(), Loop(), Socket()
        here: list[Connection] = []
        context = connection_context(rig, Counter())
        ends = (cast("asyncio.AbstractEventLoop", loop), here.append, here.remove)
        connection: Connection
        if framing == "websocket":
            connection = WebSocketConnection(context, *ends, HttpGate("/ws", ()), private=True)
        else:
            connection = RawSocketConnection(context, *ends, private=True)
        connection.connection_made(sock)
        for _, piece in split_pieces(data):
            if sock.closed:
                break
            connection.data_received(piece)
            loop.run_pending()
        connection.connection_lost(None)
        loop.run_pending()
        assert (here, len(rig.realm.broker), rig.realm.sessions) == ([], 0, {})

    return take


def take_process_frames(data: bytes) -> None:
    """What a taken-over process of sessions writes to the streamer."""
    reader = frames.reader_in_streamer(CONFIG)
    reader.feed(data)
    with suppress(frames.InvalidFrame):
        while reader.next_frame() is not None:
            pass


def _message_border(serializer: Serializer) -> Border:
    good = [serializer.encode(each) for each in GOOD]
    seeds = [join_pieces(*good[6:]), *(join_pieces(each, kind=1) for each in good[:2])]
    return Border(pure(takes_messages(serializer)), seeds)


_FRAMINGS: Final = {"websocket": websocket, "rawsocket": rawsocket}
_FRAMES: Final[list[frames.FromSessions]] = [
    frames.Ready(["ws://127.0.0.1:1/ws"]),
    frames.SessionMessage(b"header", b"payload"),
    frames.Failed("port 1 is in use"),
]

BORDERS: Final[Mapping[str, Border]] = {
    **{f"wamp-{each.name}": _message_border(each) for each in SERIALIZERS},
    **{
        f"wamp-{framing}": Border(
            pure(takes_stream(framing)),
            [join_pieces(*pieces(each)) for each in SERIALIZERS],
            max_length=8_192,
        )
        for framing, pieces in _FRAMINGS.items()
    },
    "wamp-process": Border(
        pure(take_process_frames),
        [*(frames.pack(each) for each in _FRAMES), frames.pack(_FRAMES[2]).replace(b"port", b"\xffort")],
    ),
}
