# SPDX-License-Identifier: Apache-2.0
"""How what is to be done is collected: entries for one receiver share messages, in order and within a size."""

from hypothesis import given
from hypothesis import strategies as st

from tests.transports.someip.sd.network import OTHER, PEER, of_kind, offer, read, settings, subscribe
from ustreamer.transports.someip.protocol.addresses import Address
from ustreamer.transports.someip.sd.action_buffer import Desk
from ustreamer.transports.someip.sd.actions import PeerRebooted, Refusal, Refused, Send
from ustreamer.transports.someip.sd.options import Endpoint
from ustreamer.transports.someip.sd.settings import Limits, ServiceKey


def desk(datagram: int = 1_400) -> Desk:
    counts: dict[Address | None, int] = {}

    def number(to: Address | None) -> tuple[int, bool]:
        counts[to] = counts.get(to, 0) + 1
        return counts[to], True

    return Desk(settings(limits=Limits(datagram=datagram)), lambda: 0.5, number)


def test_what_is_told_comes_before_what_is_sent_and_what_is_told_later_behind_it() -> None:
    busy = desk()
    busy.tell_later(PeerRebooted(OTHER))
    busy.post(PEER, offer())
    busy.refuse(Refusal.SD_RATE, PEER, "x")
    busy.tell(PeerRebooted(PEER))
    busy.post(None, offer())
    kinds = [(type(action), getattr(action, "to", None)) for action in busy.done()]
    assert kinds == [(Refused, None), (PeerRebooted, None), (Send, PEER), (Send, None), (PeerRebooted, None)]
    assert busy.done() == []


def test_each_receiver_has_numbers_of_its_own() -> None:
    busy = desk()
    sessions = []
    for to in (PEER, None, PEER, OTHER):
        busy.post(to, offer())
        sessions += [(send.to, read(send)[1]) for send in of_kind(Send, busy.done())]
    assert sessions == [(PEER, 1), (None, 1), (PEER, 2), (OTHER, 1)]


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 400)), max_size=600), st.integers(576, 2_000))
def test_messages_are_within_their_size_and_lose_nothing(
    groups: list[tuple[int, int]], datagram: int
) -> None:
    busy = desk(datagram)
    posted = []
    for number, (size, port) in enumerate(groups):
        key = ServiceKey(number + 1, 1, 1)
        options = (Endpoint("10.0.0.2", port),) if port else ()
        entries = [subscribe(ttl, options, key=key) for ttl in range(size)]
        posted.append(tuple(entries))
        busy.post(PEER, *entries)
    sends = of_kind(Send, busy.done())
    messages = [read(send)[0].entries for send in sends]
    assert [entry for entries in messages for entry in entries] == [e for group in posted for e in group]
    assert all(len(send.datagram) <= datagram for send in sends)
    for group in posted:  # what belongs together is in one message
        assert any(set(group) <= set(entries) for entries in messages)
