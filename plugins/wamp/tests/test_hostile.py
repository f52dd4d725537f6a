# SPDX-License-Identifier: Apache-2.0
"""500 000 frames that somebody has tampered with: each is answered as the protocol has it, and none leaves anything behind."""

import os
import random
import resource
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ustreamer_wamp.codec import SERIALIZERS
from ustreamer_wamp.connections.rawsocket import WIRE_FORMATS
from ustreamer_wamp.session import Session, SessionState
from ustreamer_wamp.users import User

if TYPE_CHECKING:
    from tests.conftest import RealmRig

FRAMES = 167_000  # for each of the three serializers
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
    """An outlet that counts what is said, by code, and keeps none of it."""

    def __init__(self, session_wire: Any, sent: Counter[int]) -> None:
        self._wire = session_wire
        self._sent = sent

    def send_reply(self, message: Any) -> None:
        self._wire.encode_message(message)  # it can be written
        self._sent[message[0]] += 1

    def send_event(self, event: Any) -> None:
        event.frame_for(self._wire)
        self._sent[36] += 1

    def close(self, code: int, reason: str) -> None:
        assert code in (1000, 1002, 1008)


def rss() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()


def test_tampered_frames_are_answered_and_leave_nothing_behind(
    make_hall: Callable[..., "RealmRig"], serializer: str
) -> None:
    hall = make_hall(User(authid="a", secret="s"))
    dice = random.Random(f"{serializer} {os.environ.get('FUZZ_SEED', '1')}")
    made = next(each for each in SERIALIZERS if each.name == serializer)
    wire, said = WIRE_FORMATS[made.rawsocket], Counter[int]()
    frames = [made.encode(message) for message in GOOD]
    hello = made.encode(HELLO)
    session, before, ended = None, 0, 0
    for number in range(FRAMES):
        if session is None or session.state is SessionState.CLOSED:
            ended += 1
            session = Session(
                {"realm1": hall.realm}, made, CountingSink(wire, said), 0, peer=str(number % 50)
            )
            if number % 4:
                session.on_message(hello)
        session.on_message(tampered(dice.choice(frames), dice.choice(frames), dice))
        if number == FRAMES // 4:
            before = rss()
    assert session is not None
    session.on_connection_lost()
    assert set(said) <= ANSWERS
    assert min(said[code] for code in (3, 4, 8, 17, 33, 36)) > 50, said
    assert said[3] > 10_000
    assert ended > 10_000
    assert len(hall.realm.broker) == 0
    assert hall.realm.sessions == {}
    assert rss() - before < 4 << 20
