# SPDX-License-Identifier: Apache-2.0
"""The collection of actions: entries for one receiver share messages, in order and within a size limit."""

from hypothesis import given
from hypothesis import strategies as st

from tests.transports.someip.sd.network import OTHER, PEER, of_kind, offer, read, settings, subscribe
from ustreamer.transports.someip.protocol.addresses import Address
from ustreamer.transports.someip.sd.action_buffer import ActionBuffer
from ustreamer.transports.someip.sd.actions import PeerRebooted, SdInputRefused, SdRefusal, Send
from ustreamer.transports.someip.sd.options import Endpoint
from ustreamer.transports.someip.sd.settings import SdLimits, ServiceKey


def make_buffer(datagram: int = 1_400) -> ActionBuffer:
    counts: dict[Address | None, int] = {}

    def number(to: Address | None) -> tuple[int, bool]:
        counts[to] = counts.get(to, 0) + 1
        return counts[to], True

    return ActionBuffer(settings(limits=SdLimits(datagram=datagram)), lambda: 0.5, number)


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
