# SPDX-License-Identifier: Apache-2.0
"""The collection of actions: entries for one receiver share messages, in order and within a size limit."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.transports.someip.sd.network import OTHER, PEER, of_kind, offer, read, subscribe
from tests.transports.someip.sd.network import settings as sd_settings
from ustreamer.transports.someip.protocol.addresses import Address
from ustreamer.transports.someip.sd.action_buffer import ActionBuffer
from ustreamer.transports.someip.sd.actions import PeerRebooted, SdInputRefused, SdRefusal, Send
from ustreamer.transports.someip.sd.config import SdLimits
from ustreamer.transports.someip.sd.options import Configuration, Endpoint, L4Protocol, Option
from ustreamer.transports.someip.sd.settings import ServiceKey


def make_buffer(datagram: int = 1_400) -> ActionBuffer:
    counts: dict[Address | None, int] = {}

    def number(to: Address | None) -> tuple[int, bool]:
        counts[to] = counts.get(to, 0) + 1
        return counts[to], True

    return ActionBuffer(sd_settings(limits=SdLimits(datagram=datagram)), lambda: 0.5, number)


UDP, TCP = Endpoint("10.0.0.2", 30_501), Endpoint("10.0.0.2", 30_502, protocol=int(L4Protocol.TCP))
MARK = Configuration((b"up-streamer=1/0123456789abcdef/hpc.vin1",))


# [utest->SD-100]
def test_every_message_has_the_unicast_flag() -> None:
    buffer = make_buffer()
    buffer.enqueue(None, offer())
    buffer.enqueue(PEER, subscribe())
    assert [read(send)[0].unicast for send in of_kind(Send, buffer.drain())] == [True, True]


# [utest->SD-900]
def test_many_offers_of_a_streamer_respect_the_size_limit() -> None:
    """Services over UDP, over TCP and over both; each Offer ends with the mark of the streamer."""
    busy = make_buffer()
    for number in range(1, 91):
        endpoints = ((UDP,), (TCP,), (UDP, TCP))[number % 3]
        busy.enqueue(None, offer(options=(*endpoints, MARK), key=ServiceKey(number, 1, 1)))
    sends = of_kind(Send, busy.drain())
    assert max(len(send.datagram) for send in sends) <= 1_400
    assert sum(len(read(send)[0].entries) for send in sends) == 90


POOL: list[Option] = [UDP, TCP, MARK, *(Configuration((b"k=" + bytes(size),)) for size in (0, 60, 200))]


@settings(max_examples=200, deadline=None)
@given(st.integers(), st.integers(1_000, 3_000), st.integers(2, len(POOL)))
def test_any_mix_of_entries_and_options_respects_the_size_limit(seed: int, datagram: int, pool: int) -> None:
    """A group of two entries with all options fits; by `seed` because most lists of a strategy are short."""
    rng, busy = random.Random(seed), make_buffer(datagram)
    posted = []
    for number in range(rng.randrange(120)):
        key = ServiceKey(number + 1, 1, 1)
        entries = [
            subscribe(ttl, tuple(rng.sample(POOL[:pool], rng.randrange(pool))), key=key)
            for ttl in range(rng.randint(1, 2))
        ]
        posted += entries
        busy.enqueue(PEER, *entries)
    sends = of_kind(Send, busy.drain())
    assert all(len(send.datagram) <= datagram for send in sends)
    assert [entry for send in sends for entry in read(send)[0].entries] == posted


@pytest.mark.parametrize("each", [1, 2, 3])
def test_no_message_has_more_options_than_an_index_can_name(each: int) -> None:
    busy = make_buffer(65_507)
    for number in range(300):
        options = tuple(Endpoint("10.0.0.2", 1 + number * each + n) for n in range(each))
        busy.enqueue(PEER, subscribe(1, options, key=ServiceKey(number + 1, 1, 1)))
    sends = of_kind(Send, busy.drain())
    assert sum(len(read(send)[0].entries) for send in sends) == 300


def test_emitted_actions_precede_the_sends_and_later_ones_follow() -> None:
    busy = make_buffer()
    busy.emit_after(PeerRebooted(OTHER))
    busy.enqueue(PEER, offer())
    busy.emit_refused(SdRefusal.SD_RATE, PEER, "x")
    busy.emit(PeerRebooted(PEER))
    busy.enqueue(None, offer())
    kinds = [(type(action), getattr(action, "to", None)) for action in busy.drain()]
    assert kinds == [
        (SdInputRefused, None),
        (PeerRebooted, None),
        (Send, PEER),
        (Send, None),
        (PeerRebooted, None),
    ]
    assert busy.drain() == []


def test_each_receiver_has_its_own_session_numbers() -> None:
    busy = make_buffer()
    sessions = []
    for to in (PEER, None, PEER, OTHER):
        busy.enqueue(to, offer())
        sessions += [(send.to, read(send)[1]) for send in of_kind(Send, busy.drain())]
    assert sessions == [(PEER, 1), (None, 1), (PEER, 2), (OTHER, 1)]


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 400)), max_size=600), st.integers(576, 2_000))
def test_messages_respect_the_size_limit_and_contain_all_entries(
    groups: list[tuple[int, int]], datagram: int
) -> None:
    busy = make_buffer(datagram)
    posted = []
    for number, (size, port) in enumerate(groups):
        key = ServiceKey(number + 1, 1, 1)
        options = (Endpoint("10.0.0.2", port),) if port else ()
        entries = [subscribe(ttl, options, key=key) for ttl in range(size)]
        posted.append(tuple(entries))
        busy.enqueue(PEER, *entries)
    sends = of_kind(Send, busy.drain())
    messages = [read(send)[0].entries for send in sends]
    assert [entry for entries in messages for entry in entries] == [e for group in posted for e in group]
    assert all(len(send.datagram) <= datagram for send in sends)
    for group in posted:  # a group stays in one message
        assert any(set(group) <= set(entries) for entries in messages)
