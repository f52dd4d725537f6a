# SPDX-License-Identifier: Apache-2.0
"""Events that wait in the socket while the streamer is stopped are judged by when they arrived at the host."""

import time
from collections.abc import Collection
from pathlib import Path
from typing import Final

from tests.e2e.rigs.entities import SomeipNode, ZenohEntity, ZenohSample
from tests.e2e.rigs.stops import HZ, SECONDS, SentEvent, Stopper, config_with_receive_times, send_steadily
from tests.e2e.rigs.streamer import StreamerProcess
from tests.e2e.rigs.vehicle import Vehicle, free_ports
from tests.e2e.rigs.wire import Uri

ROUNDS: Final = 4
"""The share must be met in one of these: a busy machine also stops the ECU, whose events are then late indeed."""
SHARE: Final = 0.99
LIMIT_HZ: Final = HZ / 0.75
"""The streamer runs for four fifths of the time, so the limit must leave room."""
MAX_AGE_MS: Final = 100 + 20 + 60 + 40
"""`max_delay_ms`, a late timer and a freeze of the streamer; the rest is for the test machine."""
QUIET_S: Final = 2.0


def wait_events(app: ZenohEntity, topic: Uri, sent: Collection[bytes]) -> list[ZenohSample]:
    """The events of these, once all have arrived, or when no more arrive."""
    found, until = list[ZenohSample](), time.monotonic() + QUIET_S
    while len(found) < len(sent) and time.monotonic() < until:
        time.sleep(0.05)
        now = [each for each in app.events(topic) if each.payload in sent]
        if len(now) != len(found):
            found, until = now, time.monotonic() + QUIET_S
    return found


def ages_ms(samples: Collection[ZenohSample], sent: dict[bytes, SentEvent]) -> list[float]:
    wall_s = time.time() - time.monotonic()
    return [(each.received_at + wall_s - sent[each.payload].before_s) * 1000 for each in samples]


def is_good(result: tuple[float, int]) -> bool:
    share, late = result
    return share >= SHARE and late <= 0.02 * HZ * SECONDS


def test_events_that_wait_for_a_stopped_streamer_are_not_throttled(tmp_path: Path) -> None:
    ports = free_ports()
    with (
        StreamerProcess(config_with_receive_times(tmp_path, ports)) as process,
        SomeipNode(ports.ecu) as ecu,
        SomeipNode(ports.receiver) as receiver,
        ZenohEntity(ports.backbone, "hpc.vin1") as app,
    ):
        vehicle = Vehicle(ports, process, ecu, receiver)
        limited, saturated, unlimited = (vehicle.unused_topic() for _ in range(3))
        app.subscribe(limited, max_frequency=LIMIT_HZ)
        app.subscribe(saturated, max_frequency=float(HZ))
        app.subscribe(unlimited)

        def send(payload: bytes) -> None:
            for topic in (limited, saturated, unlimited):
                vehicle.send_event(topic, payload)

        count = HZ * SECONDS
        rounds = list[tuple[float, int]]()
        """The delivered share of each round, and the number of events that were late."""
        while len(rounds) < ROUNDS and not any(map(is_good, rounds)):
            with Stopper(process.pid):
                sent = send_steadily(send, len(rounds) * count)
            everything = wait_events(app, unlimited, sent)
            assert [each.payload for each in everything] == list(sent)
            right = [sent[each.payload].is_received_at(each.head.id.time_ms) for each in everything]
            assert right.count(True) >= 0.98 * count
            delivered = [each.payload for each in wait_events(app, limited, sent)]
            assert delivered == [each for each in sent if each in set(delivered)]
            ages = ages_ms(wait_events(app, saturated, sent), sent)
            assert len(ages) >= 0.6 * count
            rounds.append((len(delivered) / count, sum(each > MAX_AGE_MS for each in ages)))
        assert is_good(rounds[-1]), rounds
