# SPDX-License-Identifier: Apache-2.0
"""160 000 hostile inputs: each is decoded or refused with a typed error, and none leaks memory.

Inputs are mutated valid messages, because random bytes rarely pass the first check. The seeds are fixed: a failure is
reproducible.
"""

import gc
import random
import sys
from collections.abc import Callable
from ipaddress import ip_network

import pytest

from ustreamer.transports.someip.protocol.codec import (
    MalformedMessage,
    MessageType,
    SomeIpMessage,
    encode,
    split,
)
from ustreamer.transports.someip.protocol.stream import CLIENT_COOKIE, StreamReader
from ustreamer.transports.someip.protocol.tp import Reassembly, TpRefused
from ustreamer.transports.someip.protocol.tp_config import TpLimits
from ustreamer.transports.someip.protocol.tp_segmenter import split_into_segments
from ustreamer.transports.someip.sd.codec import (
    EntryType,
    EventgroupEntry,
    MalformedSdMessage,
    RefusedEntry,
    SdMessage,
    ServiceEntry,
    decode_sd_message,
    encode_sd_message,
)
from ustreamer.transports.someip.sd.config import TTL_FOREVER, SdLimits
from ustreamer.transports.someip.sd.discovery import Discovery as ServiceDiscovery
from ustreamer.transports.someip.sd.options import (
    Configuration,
    Endpoint,
    L4Protocol,
    LoadBalancing,
    UnknownOption,
)
from ustreamer.transports.someip.sd.settings import OfferedService, SdSettings, ServiceKey, WantedService

INPUTS = {
    "header": 60_000,
    "discovery": 20_000,
    "discovery states": 10_000,
    "tp": 35_000,
    "stream": 35_000,
}
PEER = ("10.0.0.2", 30490)

EVENT = SomeIpMessage(0x1234, 0x8778, 0, 7, 1, MessageType.NOTIFICATION, 0, bytes(range(40)))
UDP = Endpoint("10.0.0.2", 30509)
DISCOVERY = encode_sd_message(
    SdMessage(
        (
            ServiceEntry(
                EntryType.OFFER, 0x1234, 1, 1, 0, 3, (UDP, Endpoint("10.0.0.2", 5, int(L4Protocol.TCP)))
            ),
            EventgroupEntry(EntryType.SUBSCRIBE, 0x4321, 1, 1, 7, TTL_FOREVER, options=(UDP,)),
            EventgroupEntry(
                EntryType.ACK, 0x1234, 1, 1, 7, 3, options=(LoadBalancing(1, 2), UnknownOption(9, b"x"))
            ),
            ServiceEntry(EntryType.FIND, 0x4321, 0xFFFF, 0xFF, 0, 3, (Configuration((b"a=b", b"c")),)),
        ),
        reboot=True,
    ),
    1,
)
SEGMENTS = list(
    split_into_segments(SomeIpMessage(0x1234, 0x8778, 0, 7, 1, MessageType.NOTIFICATION, 0, bytes(200)), 48)
)


class Mutations:
    """Invalid inputs from valid ones: bytes changed, removed and inserted, and wrong lengths."""

    def __init__(self, seed: int, good: list[bytes]) -> None:
        self._rng = random.Random(seed)
        self._good = good

    def next(self) -> bytes:
        rng = self._rng.random()
        raw = bytearray(self._good[int(rng * 7919) % len(self._good)])
        kind = int(rng * 10)
        at = int(rng * 104_729) % len(raw)
        if kind < 4:
            raw[at] = int(rng * 1_299_709) & 0xFF
        elif kind < 6:
            del raw[at:]
        elif kind == 6:
            raw[at:at] = self._rng.randbytes(int(rng * 15_485_863) % 20)
        elif kind == 7:
            at = at // 4 * 4
            raw[at : at + 4] = self._rng.choice(
                (b"\0\0\0\0", b"\xff\xff\xff\xff", b"\0\0\0\x07", b"\0\0\0\x10", b"\x7f\xff\xff\xff")
            )
        elif kind == 8:
            raw += raw[at:]
        else:
            return self._rng.randbytes(at)
        return bytes(raw)


def header_only(inputs: Mutations) -> Callable[[], None]:
    def work() -> None:
        messages, refused = split(inputs.next())
        assert messages or refused
        assert all(type(each) is MalformedMessage for each in refused)

    return work


def discovery_codec(inputs: Mutations) -> Callable[[], None]:
    def work() -> None:
        for message in split(inputs.next())[0]:
            try:
                _, refused = decode_sd_message(message)
            except MalformedSdMessage:
                continue
            assert all(type(each) is RefusedEntry for each in refused)

    return work


def discovery_states(inputs: Mutations) -> Callable[[], None]:
    key = ServiceKey(0x4321, 1, 1)
    settings = SdSettings(
        own=("10.0.0.1", 30490),
        networks=(ip_network("10.0.0.0/24"),),
        events=("10.0.0.1", 30500),
        limits=SdLimits(peer_entries_per_s=1_000_000_000),
    )
    discovery = ServiceDiscovery(settings, lambda: 0.5)
    discovery.offer_service(OfferedService(key, udp=("10.0.0.1", 30501), eventgroups=((7, None),)), 0)
    discovery.subscribe(WantedService(0x1234), 7, 0)
    discovery.link_up(0)
    now = 0

    def work() -> None:
        nonlocal now
        now += 1_000_000
        for message in split(inputs.next())[0]:
            discovery.feed(message, PEER, multicast=bool(now % 3), now_ns=now)
        discovery.on_timer(now)

    return work


def reassembly(inputs: Mutations) -> Callable[[], None]:
    parts = Reassembly(TpLimits())
    now = 0

    def work() -> None:
        nonlocal now
        now += 10_000_000
        for message in split(inputs.next())[0]:
            if message.is_tp:
                outcome = parts.feed(message, PEER, now)
                assert outcome is None or type(outcome) in {SomeIpMessage, TpRefused}
        parts.expire(now)

    return work


def stream(inputs: Mutations) -> Callable[[], None]:
    readers = [StreamReader(max_message=2_048), StreamReader(cookies=True, max_message=2_048)]

    def work() -> None:
        data = inputs.next()
        for index, reader in enumerate(readers):
            fed = reader.feed(data)
            assert all(type(each) is MalformedMessage for each in fed.refused)
            assert reader.pending_bytes < 2_048
            if reader.broken:
                readers[index] = StreamReader(max_message=2_048)

    return work


PARSERS: dict[str, tuple[Callable[[Mutations], Callable[[], None]], list[bytes]]] = {
    "header": (header_only, [encode(EVENT), encode(EVENT) * 3, DISCOVERY]),
    "discovery": (discovery_codec, [DISCOVERY]),
    "discovery states": (discovery_states, [DISCOVERY]),
    "tp": (reassembly, SEGMENTS),
    "stream": (stream, [encode(EVENT), encode(EVENT) * 2, CLIENT_COOKIE + encode(EVENT)]),
}


@pytest.mark.parametrize("parser", PARSERS)
def test_hostile_bytes_are_decoded_or_refused_without_a_memory_leak(parser: str) -> None:
    make, good = PARSERS[parser]
    work = make(Mutations(1, good))
    number = INPUTS[parser]
    for _ in range(number // 10):  # one-time allocations, and caches up to their limits
        work()
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(number - number // 10):
        work()
    gc.collect()
    # Up to 64 session numbers, 5 blocks each, come and go; one block for every sixth input would be 1 500.
    assert sys.getallocatedblocks() - before < 1_200


@pytest.mark.parametrize("parser", PARSERS)
def test_the_inputs_reach_every_depth_of_the_parser(parser: str) -> None:
    """Inputs fail at different checks, and few are valid."""
    _, good = PARSERS[parser]
    inputs = Mutations(2, good)
    made = [inputs.next() for _ in range(2_000)]
    read = sum(bool(split(each)[0]) for each in made)
    whole = sum(each in good for each in made)
    assert 400 < read < 1_900
    assert whole < 200
    assert len(set(made)) > 400
