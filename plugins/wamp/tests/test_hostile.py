# SPDX-License-Identifier: Apache-2.0
"""Tampered frames: each is answered as the protocol demands, and none leaves memory behind."""

import gc
import os
import random
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ustreamer_wamp.codec import SERIALIZERS
from ustreamer_wamp.connections.rawsocket import WIRE_FORMATS
from ustreamer_wamp.session import Session, SessionState
from ustreamer_wamp.users import User

if TYPE_CHECKING:
    from tests.conftest import RealmRig

FRAMES = 80_000  # for each of the three serializers
HELLO = [1, "realm1", {"roles": {"subscriber": {"features": {}}}}]
GOOD: list[list[Any]] = [
    HELLO,
    [
        1,
        "realm1",
        {"roles": {"subscriber": {}}, "authmethods": ["wampcra"], "authid": "a", "authextra": {"k": "v"}},
    ],
    [3, {"message": "bye"}, "wamp.error.whatever", [1], {"k": 2}],
    [5, "signature", {}],
    [6, {}, "wamp.close.normal"],
    [8, 32, 1, {}, "wamp.error.whatever"],
    [
        16,
        1,
        {"acknowledge": True, "exclude_me": False, "retain": True},
        "com.a.b",
        [1, -2.5, "x", b"y"],
        {"k": [None]},
    ],
    [16, 2, {"exclude": [1, 2], "eligible_authrole": ["anonymous"]}, "com.a.b"],
    [32, 1, {}, "com.a.b"],
    [32, 2, {"match": "prefix", "get_retained": True, "max_frequency": 10.5}, "com."],
    [32, 3, {"match": "wildcard"}, "com..b"],
    [34, 4, 1],
    [34, 5, 2],
    [48, 6, {}, "wamp.subscription.lookup", ["com.", {"match": "prefix"}]],
    [48, 7, {}, "wamp.subscription.get", [1]],
]
ANSWERS = {2, 3, 4, 6, 8, 17, 33, 35, 36, 50}


def tampered(frame: bytes, other: bytes, rng: random.Random) -> bytes:
    """A frame with a few bytes changed, taken out, put in or exchanged for those of another."""
    data = bytearray(frame)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(6):
            case 0:
                data[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                del data[at : at + rng.randrange(1, 9)]
            case 2:
                data[at:at] = rng.randbytes(rng.randrange(1, 9))
            case 3:
                data[at:] = other[rng.randrange(len(other)) :]
            case 4:
                data[at : at + 1] = bytes([data[at % len(data)] ^ 1 << rng.randrange(8)]) if data else b""
            case _:
                data[at:at] = data[at : at + 20]
    return bytes(data)


class CountingSink:
    """An outlet that counts messages by code, and keeps none."""

    def __init__(self, session_wire: Any, sent: Counter[int]) -> None:
        self._wire = session_wire
        self._sent = sent

    def send_reply(self, message: Any) -> None:
        self._wire.encode_message(message)  # it can be written
        self._sent[message[0]] += 1

    def send_event(self, event: Any) -> None:
        event.frame_for(self._wire)
        self._sent[36] += 1

    write_event = send_event

    def report_dropped(self, events: int) -> None:
        """No event is dropped here."""

    def close(self, code: int, reason: str) -> None:
        assert code in (1000, 1002, 1008)


def allocated_blocks() -> int:
    """Blocks of memory that Python objects hold.

    Not the resident size: that of a process grows by megabytes when a busy machine has paged it out and it runs
    again.
    """
    gc.collect()
    return sys.getallocatedblocks()


def least_growth(blocks: Sequence[int]) -> int:
    """The growth of the quietest interval: other threads and caches of the process add steps, a leak adds to each."""
    return min(after - before for before, after in pairwise(blocks))


def test_tampered_frames_are_answered_and_leave_nothing_behind(
    make_rig: Callable[..., "RealmRig"], serializer: str
) -> None:
    rig = make_rig(User(authid="a", secret="s"))
    rng = random.Random(f"{serializer} {os.environ.get('FUZZ_SEED', '1')}")
    made = next(each for each in SERIALIZERS if each.name == serializer)
    wire, sent = WIRE_FORMATS[made.rawsocket], Counter[int]()
    frames = [made.encode(message) for message in GOOD]
    hello = made.encode(HELLO)
    session, ended = None, 0
    blocks: list[int] = []
    for number in range(FRAMES):
        if session is None or session.state is SessionState.CLOSED:
            ended += 1
            session = Session({"realm1": rig.realm}, made, CountingSink(wire, sent), 0, peer=str(number % 50))
            if number % 4:
                session.on_message(hello)
        session.on_message(tampered(rng.choice(frames), rng.choice(frames), rng))
        if number % (FRAMES // 5) == 0:
            blocks.append(allocated_blocks())
    assert session is not None
    session.on_connection_lost()
    assert set(sent) <= ANSWERS
    assert min(sent[code] for code in (3, 4, 8, 17, 33, 36)) > 20, sent
    assert sent[3] > FRAMES // 16
    assert ended > FRAMES // 16
    assert len(rig.realm.broker) == 0
    assert rig.realm.sessions == {}
    # A leak of one object in fifty frames grows in every interval; a session that stays has dozens of objects. Tables
    # that are not full yet grow by up to half of that.
    assert least_growth(blocks) < FRAMES // 5 // 50
