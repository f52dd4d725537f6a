# SPDX-License-Identifier: Apache-2.0
"""The change topics of redundant streamers: each reaches every network once, also with a subscriber at the peer."""

import itertools
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.e2e.multi_streamer.zenoh_networks import FAR_AUTHORITIES, ZenohNetworks, launch_side_by_side
from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import DEADLINE_S, SUBSCRIPTION_CHANGE, ZenohEntity, eventually
from tests.e2e.rigs.wire import Uri
from tests.waiting import wait_until

NEAR_USUBSCRIPTION, FAR_USUBSCRIPTION = Uri("g1", 0, 3), Uri("g2", 0, 3)
CHANNEL = NEAR_USUBSCRIPTION.at(SUBSCRIPTION_CHANGE)
CHANGES = 10


def subscribe(entity: ZenohEntity, usubscription: Uri, topic: Uri) -> None:
    answer = entity.call(usubscription.at(wire.SUBSCRIBE), wire.subscription_request(topic))
    assert answer.head.commstatus in {None, wire.OK}, answer.status


def changes(entity: ZenohEntity, topic: Uri) -> list[wire.Id]:
    about = wire.topic_request(topic)
    return [each.head.id for each in entity.events(CHANNEL) if each.payload.startswith(about)]


def wait_changes(
    listeners: Sequence[ZenohEntity], topics: Sequence[Uri], within_s: float = DEADLINE_S
) -> None:
    """Wait until each listener has a change of each topic."""
    wait_until(
        lambda: all(changes(each, topic) for each in listeners for topic in topics), "the changes", within_s
    )


# [itest->req~usubscription-change-topic~1]
@pytest.mark.parametrize("also_at_the_peer", [False, True], ids=["listeners", "a subscriber at the peer"])
def test_through_two_redundant_streamers_each_change_arrives_once_on_each_network(
    tmp_path: Path, also_at_the_peer: bool
) -> None:
    with ExitStack() as exit_stack:
        nets = ZenohNetworks(tmp_path, exit_stack, "one", "two")
        gateways = launch_side_by_side(nets)
        app = nets.connect_entity("one", "a.vin1")
        listeners = [app, nets.connect_entity("two", FAR_AUTHORITIES[0])]
        if also_at_the_peer:
            subscribe(listeners[1], FAR_USUBSCRIPTION, CHANNEL)
        probes = (app.address.at(0xA000 + number) for number in itertools.count())

        def has_arrived() -> bool:
            """A change is lost on a network whose listeners the streamers do not know yet."""
            probe = next(probes)
            subscribe(app, NEAR_USUBSCRIPTION, probe)
            with suppress(AssertionError):
                wait_changes(listeners, [probe], within_s=0.5)
                return True
            return False

        eventually(has_arrived, True)
        first_probes = 2 * (next(probes).resource - 0xA000)  # in two versions
        topics = [app.address.at(0x8001 + number) for number in range(CHANGES)]
        for topic in topics:
            subscribe(app, NEAR_USUBSCRIPTION, topic)
        wait_changes(listeners, topics)
        eventually(has_arrived, True)  # a copy of an earlier change would be there by now
        # Before the stop: messages of the last 0.2 s before it can come twice.
        for each in listeners:
            counted = Counter(id for topic in topics for id in changes(each, topic))
            assert sorted(counted.values()) == [1] * CHANGES
        for gateway in gateways:
            gateway.process.stop()
            ledger = gateway.process.ledger
            assert ledger["dead_lettered"] == 0
            # What one streamer sends before the other knows it as a peer: the changes of the first probes.
            assert ledger["denied"] <= first_probes
