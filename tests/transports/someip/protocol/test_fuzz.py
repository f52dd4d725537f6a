# SPDX-License-Identifier: Apache-2.0
"""160 000 hostile inputs: each is decoded or refused with a typed error, and none leaks memory.

Inputs are mutated valid messages, because random bytes rarely pass the first check. The seeds are fixed: a failure is
reproducible.
"""

import gc
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest

from tests.fuzz.mutations import Mutations
from tests.fuzz.someip import (
    DISCOVERY,
    EVENT,
    MAX_STREAM_MESSAGE,
    PEER,
    SEGMENTS,
    new_discovery,
    take_datagram,
    take_discovery,
)
from ustreamer.transports.someip.protocol.codec import encode, split
from ustreamer.transports.someip.protocol.stream import CLIENT_COOKIE, StreamReader
from ustreamer.transports.someip.protocol.tp import Reassembly
from ustreamer.transports.someip.protocol.tp_config import TpLimits


def takes_discovery_steps() -> Callable[[bytes], None]:
    """One host of service discovery takes all datagrams."""
    discovery, now = new_discovery(), 0

    def take(data: bytes) -> None:
        nonlocal now
        now += 1_000_000
        for message in split(data)[0]:
            discovery.feed(message, PEER, multicast=bool(now % 3), now_ns=now)
        discovery.on_timer(now)

    return take


def takes_segments() -> Callable[[bytes], None]:
    """One table of unfinished messages takes all datagrams."""
    parts, now = Reassembly(TpLimits()), 0

    def take(data: bytes) -> None:
        nonlocal now
        now += 10_000_000
        for message in split(data)[0]:
            if message.is_tp:
                parts.feed(message, PEER, now)
        parts.expire(now)

    return take


def takes_streams() -> Callable[[bytes], None]:
    """Two connections take all bytes; a new one follows each that broke."""
    readers = [StreamReader(max_message=MAX_STREAM_MESSAGE) for _ in range(2)]

    def take(data: bytes) -> None:
        for index, reader in enumerate(readers):
            reader.feed(data)
            if reader.broken:
                readers[index] = StreamReader(cookies=bool(index), max_message=MAX_STREAM_MESSAGE)

    return take


class Parser(NamedTuple):
    """`make` builds what takes `inputs` mutations of `good`."""

    make: Callable[[], Callable[[bytes], None]]
    inputs: int
    good: Sequence[bytes]


DATAGRAMS = [encode(EVENT), encode(EVENT) * 3, DISCOVERY]
PARSERS = {
    "header": Parser(lambda: take_datagram, 60_000, DATAGRAMS),
    "discovery": Parser(lambda: take_discovery, 20_000, [DISCOVERY]),
    "discovery steps": Parser(takes_discovery_steps, 10_000, [DISCOVERY]),
    "segments": Parser(takes_segments, 35_000, SEGMENTS),
    "stream": Parser(
        takes_streams, 35_000, [encode(EVENT), encode(EVENT) * 2, CLIENT_COOKIE + encode(EVENT)]
    ),
}


@pytest.mark.parametrize("name", PARSERS)
def test_hostile_bytes_are_decoded_or_refused_without_a_memory_leak(name: str) -> None:
    parser = PARSERS[name]
    take, mutations, number = parser.make(), Mutations(1, parser.good), parser.inputs
    for _ in range(number // 10):  # one-time allocations, and caches up to their limits
        take(mutations.next())
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(number - number // 10):
        take(mutations.next())
    gc.collect()
    # Up to 64 session numbers, 5 blocks each, come and go; one block for every sixth input would be 1 500.
    assert sys.getallocatedblocks() - before < 1_200


@pytest.mark.parametrize("name", PARSERS)
def test_the_inputs_reach_every_depth_of_the_parser(name: str) -> None:
    """Inputs fail at different checks, and few are valid."""
    good = PARSERS[name].good
    inputs = Mutations(2, good)
    made = [inputs.next() for _ in range(2_000)]
    read = sum(bool(split(each)[0]) for each in made)
    whole = sum(each in good for each in made)
    assert 400 < read < 1_900
    assert whole < 200
    assert len(set(made)) > 400
