# SPDX-License-Identifier: Apache-2.0
"""The sinks: count what arrives or, message by message, note how old it is.

    python -m benchmarks.sinks udp BOARD UDP_PORT              (udp-anywhere: at all addresses)
    python -m benchmarks.sinks zenoh-client BOARD ZENOH_PORT [other] [subscribe]
    python -m benchmarks.sinks zenoh-peer BOARD ZENOH_PORT

While counting they look only every half millisecond: no wake-up per message on either side. A sink that has nothing to do
waits in the receiving call and costs nothing.
"""

import sys
import time
from pathlib import Path
from typing import Final

import zenoh
from zenoh.handlers import FifoChannel

from benchmarks import links, wire
from benchmarks.board import NEWEST, RECEIVED, TIMED, Board

_LOOK_S: Final = 0.0005
_CHANNEL: Final = 65_536  # above any window: the sink's channel is never what holds a forwarder up
_RPC_TTL_MS: Final = 2_000
_SUBSCRIBE_WITHIN_S: Final = 20.0
_MESSAGE_MAX: Final = 2_048


def run_udp(board: Board, port: int, host: str = links.LOOPBACK) -> None:
    """Count and time datagrams."""
    sink = links.udp(port, host=host)
    links.ready()
    recv, recv_into = sink.recv, sink.recv_into
    buffer = bytearray(_MESSAGE_MAX)
    tail = wire.TAIL
    while True:
        sink.setblocking(True)
        while board[TIMED]:
            message = recv(_MESSAGE_MAX)
            _note(board, message)
        sink.setblocking(False)
        while not board[TIMED]:
            count = size = 0
            try:
                while True:
                    size = recv_into(buffer)
                    count += 1
            except BlockingIOError:
                pass
            if count:
                _count(board, count, tail.unpack_from(buffer, size - tail.size)[0])
            time.sleep(_LOOK_S)


def run_zenoh(board: Board, session: zenoh.Session, topic: wire.Address) -> None:
    """Count and time samples."""
    subscriber = session.declare_subscriber(wire.publish_key(topic), FifoChannel(_CHANNEL))
    links.ready()
    recv, try_recv = subscriber.recv, subscriber.try_recv
    while True:
        while board[TIMED]:
            _note(board, recv().payload.to_bytes())
        while not board[TIMED]:
            count, newest = 0, None
            while (sample := try_recv()) is not None:
                count += 1
                newest = sample
            if newest is not None:
                _count(board, count, _number(newest.payload.to_bytes()))
            time.sleep(_LOOK_S)


def _number(message: bytes) -> int:
    number: int = wire.TAIL.unpack_from(message, len(message) - wire.TAIL.size)[0]
    return number


def _note(board: Board, message: bytes) -> None:
    now_ns = time.monotonic_ns()
    number, stamp_ns = wire.TAIL.unpack_from(message, len(message) - wire.TAIL.size)
    if stamp_ns:
        board.note_age(now_ns - stamp_ns)
    _count(board, 1, number)


def _count(board: Board, count: int, newest: int) -> None:
    board[RECEIVED] += count
    board[NEWEST] = max(board[NEWEST], newest + 1)


def subscribe(session: zenoh.Session, topic: wire.Address, subscriber: wire.Address) -> object:
    """Ask the streamer's uSubscription for `topic`; TimeoutError naming the last answer if it does not grant it.

    What is returned hears the answers, and of the change: what nobody hears waits in the streamer.
    """
    changes = session.declare_subscriber(wire.unicast_key(wire.CHANGES, subscriber), FifoChannel(16))
    answers = session.declare_subscriber(wire.unicast_key(wire.SUBSCRIBE, subscriber), FifoChannel(16))
    ask = links.publisher(session, wire.unicast_key(subscriber, wire.SUBSCRIBE))
    tail = wire.request_tail(subscriber, wire.SUBSCRIBE, _RPC_TTL_MS)
    deadline = time.monotonic() + _SUBSCRIBE_WITHIN_S
    last = "no answer"
    while time.monotonic() < deadline:
        # The session may not have heard yet who listens at the other end, so the question is repeated.
        asked_ns = time.time_ns()
        ask.put(
            wire.subscription_request(topic),
            attachment=wire.attachment_head(asked_ns // 1_000_000, asked_ns & 0xFFFF_FFFF) + tail,
        )
        time.sleep(0.1)
        while (answer := answers.try_recv()) is not None:
            last = answer.payload.to_bytes().hex()
            if wire.is_subscribed(answer.payload.to_bytes()):
                return answers, changes
    raise TimeoutError(
        f"Subscribe to {topic}: expected SUBSCRIBED within {_SUBSCRIBE_WITHIN_S:g} s, got {last}"
    )


def main(kind: str, board_path: str, port: str, *options: str) -> None:
    board = Board(Path(board_path))
    board[TIMED] = 1
    match kind:
        case "udp":
            run_udp(board, int(port))
        case "udp-anywhere":
            run_udp(board, int(port), "")
        case "zenoh-client":
            session = links.zenoh_client(int(port))
            other = "other" in options
            topic, subscriber = (
                (wire.APP_TOPIC, wire.FAR_SUBSCRIBER) if other else (wire.ECU_TOPIC, wire.SUBSCRIBER)
            )
            if "subscribe" in options:
                _hearing = subscribe(session, topic, subscriber)
            run_zenoh(board, session, topic)
        case "zenoh-peer":
            run_zenoh(board, links.zenoh_peer(int(port)), wire.APP_TOPIC)
        case _:
            raise ValueError(f"{kind!r}: expected udp, zenoh-client or zenoh-peer")


if __name__ == "__main__":
    links.end_with_parent()
    main(*sys.argv[1:])
