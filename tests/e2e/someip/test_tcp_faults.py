# SPDX-License-Identifier: Apache-2.0
"""SOME/IP over TCP during reloads, clock steps and a full disk, and under a flood: all events arrive, in order.

Events pass in both directions at 500 Hz. Each direction has one connection, which the fault must not end.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Final, NamedTuple

import pytest

from tests.e2e.rigs import small_disk, wire
from tests.e2e.rigs.entities import Metronome, eventually
from tests.e2e.rigs.small_disk import SmallDisk
from tests.e2e.rigs.stepped_clock import SteppedClockProcess
from tests.e2e.rigs.streamer import StreamerProcess, statistics
from tests.e2e.rigs.subscriber import Subscriber
from tests.e2e.rigs.wire import Uri
from tests.e2e.someip.tcp_scenario import (
    ECU,
    HZ,
    PATIENCE_S,
    PROVIDER,
    SERVICE,
    TcpReceiver,
    TcpScenario,
    TcpService,
    numbers,
    payload,
    running,
)

_HOUR_S: Final = 3_600
_TO_2040_S: Final = 14 * 365 * 86_400
_NO_ROUTE: Final = Uri("chassis", 0x3FFF, 1, 1)
_FLOOD: Final = 20_000


class BothDirections(NamedTuple):
    """Events from an ECU to the application, and from the application to a receiver."""

    app: Subscriber
    receiver: TcpReceiver
    inward: Metronome
    outward: Metronome

    def wait_more(self, count: int = 50) -> None:
        """Wait until `count` more events have arrived in each direction."""
        self.receiver.wait_numbers(len(self.receiver.inbox.items(str.isdigit)) + count)
        self.app.wait_events(ECU.at(0x8001), len(self.app.events(ECU.at(0x8001))) + count)

    def check_all_arrived(self) -> None:
        self.receiver.wait_numbers(self.outward.beats)
        assert self.receiver.kill() == list(range(self.outward.beats))
        assert numbers(self.app, ECU.at(0x8001), self.inward.beats) == list(range(self.inward.beats))


@contextmanager
def both_directions(net: TcpScenario) -> Iterator[BothDirections]:
    """Run events in both directions; at the end check that all of them arrived once and in order."""
    app = net.app
    app.subscribe(ECU.at(0x8001))
    with TcpService(net.ports.ecu) as service, TcpReceiver(net.ports.tcp) as receiver:
        ecu = service.accept()
        inward = Metronome(HZ, lambda beat: ecu.sendall(wire.event(SERVICE, 0x8001, payload(beat, 8))))

        def publish(beat: int) -> None:
            app.publish(PROVIDER.at(0x8001), payload(beat, 8))

        outward = Metronome(HZ, publish)
        flow = BothDirections(app, receiver, inward, outward)
        with inward, outward:
            flow.wait_more()
            yield flow
        flow.check_all_arrived()


def test_reloads_lose_nothing(tmp_path: Path) -> None:
    with running(tmp_path) as net, both_directions(net) as flow:
        config = net.process.config
        text = config.read_text(encoding="utf-8")
        for number in range(1, 7):
            changed = text.replace("queue_bytes = 64000000", f"queue_bytes = {64_000_000 + number}")
            config.write_text(
                changed.replace('["hpc.vin1"]', f'["hpc.vin1", "fleet{number}"]'), encoding="utf-8"
            )
            net.process.send_sighup()
            net.process.stderr.wait_count(lambda line: '"streamer.reloaded"' in line, number)
            flow.wait_more()


def test_clock_steps_lose_nothing(tmp_path: Path) -> None:
    with running(tmp_path, launch=SteppedClockProcess) as net, both_directions(net) as flow:
        assert isinstance(net.process, SteppedClockProcess)
        for number, step_s in enumerate((_HOUR_S, 0, _TO_2040_S, 0, -_HOUR_S, 0), 1):
            net.process.set_offsets(wall_s=step_s)
            net.process.stderr.wait_count(lambda line: '"clock.stepped"' in line, number)
            flow.wait_more()


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    if reason := small_disk.unsupported_reason("tmpfs", tmp_path):
        pytest.skip(reason)
    with SmallDisk("tmpfs", tmp_path) as disk:
        (disk.outer / "state").mkdir()
        launch = partial(StreamerProcess, prefix=disk.prefix)
        with (
            running(tmp_path, launch=launch, state=str(disk.inner / "state")) as net,
            both_directions(net) as flow,
        ):
            disk.fill()
            for number in range(10):
                assert net.app.call(_NO_ROUTE, b"%d" % number).status.code == wire.NOT_FOUND
                flow.wait_more(20)
            eventually(lambda: statistics(disk.outer / "state")["dead_letters"]["not_persisted"] > 0, True)
            flow.wait_more()
            disk.free()


def test_a_flood_of_an_ecu_arrives_whole_and_in_order(tmp_path: Path) -> None:
    """The streamer reads as fast as it can send; the ECU's TCP connection waits."""
    topic = ECU.at(0x8001)
    with running(tmp_path) as net, TcpService(net.ports.ecu) as service:
        net.app.subscribe(topic)
        connection = service.accept()
        connection.settimeout(PATIENCE_S)
        stream = b"".join(wire.event(SERVICE, 0x8001, payload(number, 60)) for number in range(_FLOOD))
        sender = Thread(target=connection.sendall, args=(stream,))
        sender.start()
        found = numbers(net.app, topic, _FLOOD)
        sender.join()
        net.process.stop()
        ledger = net.process.ledger
    assert found == list(range(_FLOOD))
    assert ledger["dead_lettered"] == ledger["expired"] == 0


def test_datagrams_to_an_absent_receiver_are_counted_at_a_stop(tmp_path: Path) -> None:
    """They are `delivered`: UDP took them. Its host reports each by ICMP."""
    with running(tmp_path) as net:
        for number in range(20):
            net.app.publish(PROVIDER.at(0x8002), payload(number, 8))
            eventually(
                lambda: statistics(tmp_path / "state")["endpoints"]["chassis"]["unreachable"], number + 1
            )
        net.process.stop()
        [stopped] = [line for line in net.process.log_records if line["event"] == "streamer.stopped"]
    assert stopped["endpoints"]["chassis"]["unreachable"] == 20
