# SPDX-License-Identifier: Apache-2.0
"""Stories of defects, found by seeds and by people. A mended defect stays here: its story must hold from then on.

So do stories of documented limits that the oracle took for defects.
"""

from collections.abc import Mapping
from typing import Final

from tests.simulation.host import INSIDE, OUTSIDE, HostConfig
from tests.simulation.kill_stories import frozen_story, kill_story, receiver_story, with_receipts
from tests.simulation.story import SMALL_SIZES, Step, Story
from tests.simulation.zenoh_link import LinkSizes

_DURABLE: Final = HostConfig(durable=True)


def _events(count: int, rate: int, size: int, at_ms: int = 0) -> Step:
    return Step(at_ms, "publish", ("event", count, 1_000_000 // rate, size, 0))


_FROZEN_THEN_SIGTERM: Final = (
    _events(1_600, 1_000, 8, at_ms=500),
    Step(400, "freeze", (OUTSIDE, 20_000)),
    Step(2_200, "stop", (5_000,)),
    Step(3_000, "router", (OUTSIDE, 2_000)),
)
_KILLED_THEN_SIGTERM: Final = (
    _events(3_000, 5_000, 8),
    Step(500, "router", (OUTSIDE, 8_000)),
    Step(2_500, "stop", (5_000,)),
)
_CUT_THEN_SIGTERM: Final = (
    Step(0, "cut", (OUTSIDE, 20_000)),
    _events(250, 100, 8, at_ms=500),
    Step(2_000, "stop", (5_000,)),
)
_FROZEN_THEN_KILLED: Final = (
    _events(1_600, 200, 8, at_ms=500),
    Step(1_400, "freeze", (OUTSIDE, 20_000)),
    Step(6_500, "kill", (1_000,)),
    Step(8_000, "router", (OUTSIDE, 2_000)),
)
_ROUTER_THEN_STREAMER_KILLED: Final = (
    _events(600, 200, 8),
    Step(1_000, "freeze", (OUTSIDE, 3_000)),
    Step(2_000, "router", (OUTSIDE, 12_000)),
    Step(7_000, "kill", (1_000,)),
)
_CUT_THEN_KILLED: Final = (  # a put waits until Zenoh closes the link, long before Zenoh reports it
    _events(2_400, 200, 100),
    Step(2_477, "cut", (OUTSIDE, 12_323)),
    Step(10_125, "kill", (1_591,)),
    Step(10_475, "router", (OUTSIDE, 893)),
)

_KILLED_WHILE_WAITING: Final = (  # without receipts, what the router had not read is lost silently
    _events(250, 500, 1_000),
    Step(100, "stall", (9_000,)),
    _events(200, 100, 100, at_ms=2_000),
    Step(3_000, "router", (OUTSIDE, 3_000)),
)

STORIES: Final[Mapping[str, Story]] = {
    "2 router frozen, SIGTERM": Story(1, _FROZEN_THEN_SIGTERM),
    "2 router frozen, SIGTERM, durable": Story(1, _FROZEN_THEN_SIGTERM, _DURABLE),
    "2 router killed, SIGTERM": Story(1, _KILLED_THEN_SIGTERM),
    "2 router killed, SIGTERM, durable": Story(1, _KILLED_THEN_SIGTERM, _DURABLE),
    "2 cable cut, SIGTERM": Story(1, _CUT_THEN_SIGTERM),
    "2 cable cut, SIGTERM, durable": Story(1, _CUT_THEN_SIGTERM, _DURABLE),
    "4 router frozen, streamer killed, durable": Story(1, _FROZEN_THEN_KILLED, _DURABLE),
    "4 router killed, streamer killed, durable": Story(1, _ROUTER_THEN_STREAMER_KILLED, _DURABLE),
    "4 cable cut while a put waits, streamer killed, durable": Story(
        53, _CUT_THEN_KILLED, _DURABLE, SMALL_SIZES
    ),
    "3 router hangs for 12 s at 1 500/s": Story(
        1, (_events(15_000, 1_500, 8), Step(1_000, "freeze", (OUTSIDE, 12_000)))
    ),
    "3 router hangs for 12 s, window of 20 kB": Story(
        1,
        (_events(150, 25, 100), Step(1_000, "freeze", (OUTSIDE, 12_000))),
        HostConfig(retransmit_bytes=20_000),
    ),
    "3 router resumes after 9.5 s, without its applications": Story(
        2, (_events(2_600, 200, 8), Step(1_000, "freeze", (OUTSIDE, 9_500)))
    ),
    "5 SIGTERM while WAMP sessions end": Story(
        1,
        (
            Step(0, "sessions", (20,)),
            _events(100, 200, 8, at_ms=500),
            Step(990, "leave", (12,)),
            Step(1_000, "stop", (1_000,)),
        ),
        HostConfig(wamp=True),
        interrupt_every=7,
    ),
    "6 clock glitch to 2038": Story(
        1,
        (
            Step(500, "clock", (450_000_000_000, 1_000)),
            Step(700, "subscribe", (0,)),
            Step(9_000, "subscribe", (1,)),
        ),
    ),
    "6 clock glitch of an hour, subscription of 10 min": Story(
        1,
        (
            Step(0, "subscribe", (0, 600)),
            Step(1_000, "clock", (3_600_000, 2_000)),
            Step(6_000, "publish", ("late0", 20, 2_000, 8, 0)),
        ),
    ),
    "7 live ledger under load": Story(
        1, (_events(3_000, 30_000, 8),), HostConfig(read_ledger_ms=1), interrupt_every=7
    ),
    "11 router killed after a freeze of 1 s": Story(
        1,
        (
            _events(100, 100, 8, at_ms=500),
            Step(600, "freeze", (OUTSIDE, 1_500)),
            Step(1_600, "router", (OUTSIDE, 2_000)),
        ),
    ),
    "11 router frozen for 3 s, then killed, durable": Story(
        1,
        (
            _events(1, 100, 1_000, at_ms=287),
            Step(112, "freeze", (OUTSIDE, 3_049)),
            Step(1_074, "router", (OUTSIDE, 12_774)),
        ),
        _DURABLE,
        SMALL_SIZES,
    ),
    "11 router killed just after a keep-alive": Story(
        1,
        (
            Step(1_300, "publish", ("back", 250, 2_000, 8, 0)),
            Step(1_496, "router", (INSIDE, 1_654)),
        ),
    ),
    "11 cable cut while a router waits for an application": Story(
        24_240,
        (
            _events(250, 500, 1_000),
            Step(100, "stall", (9_000,)),
            _events(200, 100, 100, at_ms=2_000),
            Step(3_000, "cut", (OUTSIDE, 6_424)),
        ),
        sizes=SMALL_SIZES,
    ),
    "11 SIGTERM while a router waits for an application, then frozen, durable": Story(
        1_169,
        (
            _events(250, 500, 1_000),
            Step(108, "stall", (5_201,)),
            _events(200, 50, 8, at_ms=1_721),
            Step(3_116, "stop", (3_000,)),
            Step(5_231, "freeze", (OUTSIDE, 11_196)),
        ),
        _DURABLE,
        LinkSizes(16_000, 64_000, 32_000),
    ),
    "11 SIGTERM while a router waits for an application, then cut off, durable": Story(
        2_656,
        (
            _events(250, 500, 1_000),
            Step(164, "stall", (7_984,)),
            Step(2_188, "publish", ("notice", 200, 2_000, 100, 0)),
            Step(2_665, "stop", (3_000,)),
            Step(4_501, "cut", (OUTSIDE, 8_178)),
        ),
        _DURABLE,
        SMALL_SIZES,
    ),
    "10 router killed while it waits for a streamer with receipts": Story(
        1, _KILLED_WHILE_WAITING, HostConfig(receipts=True), SMALL_SIZES
    ),
    "10 streamer and router killed in an outage, receipts, durable": with_receipts(kill_story(8)),
    "10 puts before the first announcement are lost with the router, receipts, durable": with_receipts(
        kill_story(239)
    ),
    "10 receiving streamer killed, its backlog on disk, receipts, durable": receiver_story(182),
    "10 receiving streamer killed and without power, a receipt lost": receiver_story(185),
    # With congestion control BLOCK for receipts, 128 messages come twice.
    "10 receiving streamer killed while its cut link has no room for receipts": receiver_story(297),
    # What the last batch brought had waited in Zenoh for a second. It is judged by the time at which it was taken.
    "10 streamer killed while its slow disk makes its input wait, durable": kill_story(694),
    "11 outage longer than `retransmit_ms`, two receivers": Story(
        7_760,
        (
            Step(0, "publish", ("shared", 250, 2_000, 1_000, 0)),
            Step(0, "stall backend", (7_162,)),
            Step(3_483, "router", (OUTSIDE, 15_966)),
        ),
        HostConfig(receipts=True, queue_messages=200),
        commit_ms=8,
        has_backend=True,
    ),
    "11 router frozen, then its cable cut": Story(
        38_562,
        (
            Step(434, "publish", ("back", 250, 10_000, 100, 0)),
            Step(1_036, "publish", ("notice", 100, 2_000, 1_000, 500)),
            Step(1_180, "freeze", (INSIDE, 960)),
            Step(1_180, "freeze", (OUTSIDE, 15_561)),
            Step(1_329, "cut", (OUTSIDE, 12_718)),
            Step(1_446, "publish", ("event5", 20, 40_000, 100, 0)),
        ),
        HostConfig(retransmit_bytes=130_000, queue_messages=200),
        SMALL_SIZES,
        interrupt_every=7,
    ),
    "11 restart while a router waits for an application, durable": Story(
        41_505,
        (
            _events(250, 500, 1_000, at_ms=279),
            Step(282, "stall", (4_665,)),
            Step(422, "publish", ("late0", 120, 40_000, 8, 0)),
            Step(422, "subscribe", (0, 600)),
            Step(1_773, "stop", (397,)),
        ),
        HostConfig(durable=True, retransmit_bytes=20_000, queue_messages=200, wamp=True, read_ledger_ms=21),
        commit_ms=40,
    ),
    "11 power cut while a router waits for an application": Story(
        42_389,
        (
            Step(394, "publish", ("call", 250, 20, 1_000, 0)),
            Step(397, "stall", (9_000,)),
            Step(414, "publish", ("late1", 120, 2_000, 8, 0)),
            Step(414, "subscribe", (1, 600)),
            Step(604, "publish", ("event", 250, 10_000, 100, 500)),
            Step(897, "stall", (2_440,)),
            Step(1_426, "power", (589,)),
        ),
        HostConfig(retransmit_bytes=130_000, queue_messages=200),
        commit_ms=40,
        interrupt_every=50,
    ),
    "11 router frozen, 20 kB exceeded before it is suspect, power cut, durable": Story(
        2_310,
        (
            Step(532, "publish", ("event5", 250, 40_000, 100, 0)),
            Step(584, "publish", ("notice", 250, 200, 100, 0)),
            Step(587, "freeze", (OUTSIDE, 13_371)),
            Step(4_822, "power", (5_000,)),
        ),
        HostConfig(durable=True, retransmit_bytes=20_000, queue_messages=200),
        SMALL_SIZES,
        commit_ms=1,
        interrupt_every=50,
    ),
    "11 notices expire while a router restarts, power cut later, durable": Story(
        71_781,
        (
            Step(5_308, "publish", ("notice", 250, 200, 8, 500)),
            Step(5_309, "router", (OUTSIDE, 355)),
            Step(14_055, "power", (523,)),
        ),
        HostConfig(durable=True, queue_messages=200, max_age_ms=30_000, read_ledger_ms=21),
        SMALL_SIZES,
    ),
    "12 router gone, disk fails to delete, durable": Story(
        7436,
        (
            Step(420, "publish", ("call", 100, 40_000, 1_000, 0)),
            Step(423, "router", (OUTSIDE, 12_547)),
            Step(1_324, "disk", ("read-only", 8_356)),
            Step(1_344, "router", (OUTSIDE, 5_848)),
        ),
        HostConfig(durable=True, retransmit_bytes=130_000),
        LinkSizes(16_000, 64_000, 32_000),
        commit_ms=1,
    ),
    "11 a message expires behind a put that waits, with receipts": Story(
        60_446,
        (
            Step(172, "stall backend", (5_759,)),
            Step(241, "publish", ("shared", 250, 200, 1_000, 0)),
            Step(2_015, "unsubscribe", ("backend", 12, 38_555, 989)),
            Step(4_585, "publish", ("notice", 20, 40_000, 8, 500)),
        ),
        HostConfig(durable=False, receipts=True),
        LinkSizes(16_000, 64_000, 32_000),
        commit_ms=40,
        has_backend=True,
    ),
    "11 a subscription ends while its durable sender is off": Story(
        54_124,
        (
            Step(0, "publish", ("shared", 60, 200, 8, 0)),
            Step(0, "stall backend", (3_414,)),
            Step(377, "power", (5_000,)),
            Step(1_625, "unsubscribe", ("first", 12, 41_953, 13_634)),
        ),
        HostConfig(durable=True, receipts=True, read_ledger_ms=21),
        LinkSizes(128_000, 2_500_000, 1_500_000),
        commit_ms=40,
        interrupt_every=50,
        has_backend=True,
    ),
    "11 Zenoh reports the end of a link again after the next connection": Story(
        48,
        (
            Step(4_438, "publish", ("event", 250, 200, 100, 0)),
            Step(4_441, "cut", (OUTSIDE, 5_632)),
        ),
        HostConfig(durable=False, retransmit_bytes=130_000, read_ledger_ms=21),
        SMALL_SIZES,
        commit_ms=8,
        interrupt_every=7,
    ),
    "11 Zenoh forgets the connection that follows a put of 5 s": Story(
        1, (_events(3_000, 500, 1_000), Step(1_000, "freeze", (OUTSIDE, 8_000))), sizes=SMALL_SIZES
    ),
    "11 Zenoh forgets a connection that has what was put again": Story(
        16,
        (
            _events(1, 1_000, 1_000, at_ms=1_900),
            Step(2_614, "publish", ("event5", 250, 2_000, 8, 0)),
            Step(2_615, "cut", (OUTSIDE, 13_828)),
        ),
        HostConfig(durable=True, retransmit_bytes=130_000, max_publishers=16),
        SMALL_SIZES,
        commit_ms=40,
    ),
    "11 publishers that wait for receipts fill all places": Story(
        36_111,
        (
            Step(1_867, "publish", ("notices", 250, 20_000, 100, 0)),
            Step(2_527, "publish", ("call", 20, 40_000, 100, 30_000)),
            Step(2_530, "cut", (OUTSIDE, 5_329)),
            Step(2_554, "publish", ("event", 250, 20, 1_000, 0)),
        ),
        HostConfig(durable=True, receipts=True, retransmit_bytes=20_000, max_publishers=16),
        LinkSizes(16_000, 64_000, 32_000),
        commit_ms=8,
        interrupt_every=50,
    ),
    "11 what was put again alone is lost again with newer messages": with_receipts(kill_story(5_022)),
    "11 a receiver is killed whose application is frozen": frozen_story(51),
    "11 a receiver is killed before its application is suspect": frozen_story(81),
    "11 a streamer starts while its router is frozen": Story(
        0,
        (
            Step(0, "publish", ("event", 9_000, 2_000, 8, 0)),
            Step(1_000, "freeze", (OUTSIDE, 12_500)),
            Step(3_000, "stop", (500,)),
        ),
    ),
    "11 router killed just after an answer": Story(
        9_500,
        (
            Step(848, "publish", ("event", 100, 20, 8, 30_000)),
            Step(851, "router", (OUTSIDE, 11_414)),
        ),
        sizes=SMALL_SIZES,
        commit_ms=1,
    ),
    "3 router hangs at 2 000/s of 1 kB, then killed": Story(
        1,
        (
            _events(8_000, 2_000, 1_000),
            Step(1_000, "freeze", (OUTSIDE, 12_000)),
            Step(9_500, "router", (OUTSIDE, 1_000)),
        ),
    ),
}
"""By the row of the defect in the issue; 11: found by the simulation. Steps need no order."""
