# SPDX-License-Identifier: Apache-2.0
"""Refusals are counted by reason and peer, for a bounded number of peers."""

from ustreamer.core.base.intrusions import MAX_PEERS, PeerRefusals


def test_refusals_are_counted_by_reason_and_peer() -> None:
    refusals = PeerRefusals()
    for reason, peer in (("access", "cloud"), ("access", "phone"), ("spoofed", "cloud"), ("access", "cloud")):
        refusals.add(reason, peer)
    assert refusals.counts() == {("access", "cloud"): 2, ("access", "phone"): 1, ("spoofed", "cloud"): 1}


def test_the_peer_that_was_refused_the_longest_ago_is_forgotten() -> None:
    refusals = PeerRefusals()
    for number in range(MAX_PEERS):
        refusals.add("access", str(number))
    refusals.add("access", "0")
    refusals.add("access", "new")
    assert len(refusals.counts()) == MAX_PEERS
    assert ("access", "1") not in refusals.counts()
    assert refusals.counts()["access", "0"] == 2
