# SPDX-License-Identifier: Apache-2.0
"""A durable endpoint: the subscriber is absent, the streamer is killed or stopped, both restart, and all messages
arrive.

The negative control is the same scenario with `durable = false`.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Final

import pytest

from tests.e2e.delivery.outage_scenarios import ZenohProcess
from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import Metronome, SomeipNode, ZenohEntity
from tests.e2e.rigs.streamer import START_S, VERDICTS, StreamerProcess, statistics
from tests.e2e.rigs.vehicle import SPEED, VehiclePorts, free_ports
from tests.e2e.rigs.wire import Uri

COUNT: Final = 2_000
MANY: Final = 6_000
HZ: Final = 2_000  # otherwise the buffer of the kernel is tested
MAX_REPEATED: Final = 256
TOPIC: Final = Uri("chassis", SPEED, 1, 0x8001)

_CONFIG: Final = """\
authority = "hpc.vin1"
state_dir = "state"

[endpoints.backbone]
transport = "zenoh"
authorities = ["hpc.vin1"]
listen = ["tcp/127.0.0.1:{ports.backbone}"]
durable = {durable}

[endpoints.chassis]
transport = "someip"
authorities = ["chassis"]
bind = "127.0.0.1"
port = {ports.someip}

[[endpoints.chassis.services]]
service = 0x1234
instance = 1
major = 1
events = [{{ id = 0x8001, eventgroup = 1 }}]
remote = "127.0.0.1:{ports.ecu}"

[egress.backbone]
queue_messages = {queue_messages}
max_age_ms = 600_000

[plugins.usubscription]
"""


class DurableScenario:
    """A streamer between an ECU and a network, and a subscriber that subscribed and left."""

    def __init__(self, directory: Path, ecu: SomeipNode, ports: VehiclePorts) -> None:
        self.ports = ports
        self._ecu = ecu
        self._file = directory / "durable.toml"
        self._sent = 0
        self._processes: list[StreamerProcess] = []

    def configure(self, *, durable: bool, queue_messages: int = 10_000) -> None:
        text = _CONFIG.format(ports=self.ports, durable=str(durable).lower(), queue_messages=queue_messages)
        self._file.write_text(text, encoding="utf-8")

    def start(self) -> StreamerProcess:
        self._processes.append(StreamerProcess(self._file))
        return self._processes[-1].wait_ready()

    def kill_all(self) -> None:
        """Clean up, also after a failed test."""
        for process in self._processes:
            if process.is_alive:
                process.kill()

    def start_subscribed(self) -> StreamerProcess:
        """Let an application subscribe and leave, and start the streamer again.

        On a busy machine the streamer may detect the end of the application so late that it looks like a kill. A
        durable endpoint would keep the answers to the application on disk, next to the events. So this run has none.
        """
        durable_config = self._file.read_text(encoding="utf-8")
        self._file.write_text(durable_config.replace("durable = true", "durable = false"), encoding="utf-8")
        first = self.start()
        with ZenohEntity(self.ports.backbone, "hpc.vin1") as app:
            app.subscribe(TOPIC)
        first.stderr.wait_one(lambda line: "link_down" in line)
        first.stop()
        self._file.write_text(durable_config, encoding="utf-8")
        return self.start()

    def queue_counts(self) -> dict[str, int]:
        """Statistics of the queue."""
        queues = statistics(self._file.parent / "state")["egress_queues"]
        [queue] = [each for each in queues if each["endpoint"] == "backbone"]
        return {name: queue[name] for name in ("queued", "persisted")}

    def wait_queue(self, **expected: int) -> None:
        """Wait for these statistics."""
        until = time.monotonic() + START_S
        while not (found := self.queue_counts()).items() >= expected.items():
            assert time.monotonic() < until, f"{found}, expected {expected}"
            time.sleep(0.01)

    def send_events(self, count: int = COUNT) -> None:
        """Let the ECU send this number of events, and wait until all are queued."""
        done = Event()
        first, self._sent = self._sent, self._sent + count

        def beat(number: int) -> None:
            if number < count:
                datagram = wire.event(SPEED, 0x8001, b"%d" % (first + number), session=number % 0xFFFF + 1)
                self._ecu.send_to_port(datagram, self.ports.someip)
            else:
                done.set()

        with Metronome(HZ, beat):
            assert done.wait(START_S)
        self.wait_queue(queued=self._sent)

    def send_persisted_events(self, at_once: int = 250) -> None:
        """Send COUNT events, with no more in memory than the write buffer holds, for any speed of the disk."""
        for _ in range(COUNT // at_once):
            self.send_events(at_once)
            self.wait_queue(persisted=self._sent)

    def send_one_event(self) -> None:
        """Send one more event, for a present subscriber."""
        self._ecu.send_to_port(wire.event(SPEED, 0x8001, b"%d" % self._sent), self.ports.someip)
        self._sent += 1

    @contextmanager
    def subscriber(self) -> Iterator[ZenohProcess]:
        """Restart the subscriber, as a process."""
        child = ZenohProcess("client", self.ports.backbone)
        try:
            yield child.wait_ready()
        finally:
            child.kill()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[DurableScenario]:
    ports = free_ports()
    with SomeipNode(ports.ecu) as ecu:
        scene = DurableScenario(tmp_path, ecu, ports)
        yield scene
        scene.kill_all()


def stop_and_check(process: StreamerProcess) -> dict[str, int]:
    """Stop the streamer; it must exit with 0 and a balanced ledger."""
    process.send_sigterm()
    code = process.wait_exit()
    assert code == 0, process.output
    ledger = process.ledger
    assert ledger["received"] == sum(ledger[verdict] for verdict in VERDICTS), ledger
    return ledger


def test_messages_queued_for_a_durable_endpoint_survive_a_kill_in_order_and_once(
    scene: DurableScenario,
) -> None:
    scene.configure(durable=True, queue_messages=500)  # three quarters are on disk only
    first = scene.start_subscribed()
    scene.send_persisted_events()
    first.kill()

    second = scene.start()
    assert scene.queue_counts() == {"queued": COUNT, "persisted": COUNT}
    scene.send_events(10)  # new events do not overtake
    with scene.subscriber() as subscriber:
        subscriber.wait_received(COUNT + 9)
        assert subscriber.received == list(range(COUNT + 10))
        scene.wait_queue(queued=0)
        ledger = stop_and_check(second)
    assert ledger["received"] == ledger["delivered"] == COUNT + 10, ledger


def test_a_plain_endpoint_loses_all_of_it(scene: DurableScenario) -> None:
    scene.configure(durable=False)
    first = scene.start_subscribed()
    scene.send_events()
    first.kill()
    second = scene.start()
    assert scene.queue_counts()["queued"] == 0
    with scene.subscriber() as subscriber:
        scene.send_one_event()
        subscriber.wait_received(COUNT)
        assert subscriber.received == [COUNT]
        stop_and_check(second)


def test_a_kill_in_the_middle_of_sending_repeats_few_and_loses_none(scene: DurableScenario) -> None:
    scene.configure(durable=True)
    first = scene.start_subscribed()
    scene.send_events(MANY)
    scene.wait_queue(persisted=MANY)
    with scene.subscriber() as subscriber:
        subscriber.wait_received(300)
        first.kill()
        second = scene.start()
        subscriber.wait_received(MANY - 1)
        scene.wait_queue(queued=0)
        ledger = stop_and_check(second)
        received_messages = subscriber.received
    unique = list(dict.fromkeys(received_messages))
    assert unique == list(range(MANY))
    assert len(received_messages) - len(unique) <= MAX_REPEATED
    assert MANY > ledger["received"] == ledger["delivered"] > 0, ledger  # the kill was in the middle


def test_a_stop_with_messages_on_disk_is_no_failure(scene: DurableScenario) -> None:
    scene.configure(durable=True)
    first = scene.start_subscribed()
    scene.send_events()
    ledger = stop_and_check(first)
    assert (ledger["queued"], ledger["dead_lettered"]) == (COUNT, 0)
    [stopped] = [line for line in first.log_records if line["event"] == "streamer.stopped"]
    assert (stopped["persisted"], stopped["unsent"]) == (COUNT, 0)

    second = scene.start()
    with scene.subscriber() as subscriber:
        subscriber.wait_received(COUNT - 1)
        assert subscriber.received == list(range(COUNT))
        ledger = stop_and_check(second)
    assert ledger["received"] == ledger["delivered"] == COUNT, ledger
