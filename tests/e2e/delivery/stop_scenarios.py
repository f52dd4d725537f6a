# SPDX-License-Identifier: Apache-2.0
"""A stop during an outage: the router of the subscriber is frozen or killed, then the streamer gets SIGTERM.

    python -m tests.e2e.delivery.stop_scenarios FAULT DURABLE ROUNDS [HZ]    FAULT freeze, kill, hang,
    resume or none, DURABLE 0 or 1

prints one line per round. The last one has the sums.
"""

import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from threading import Event
from typing import Final, NamedTuple

from tests.e2e.delivery.outage_scenarios import TOPIC, ZenohProcess
from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import USUBSCRIPTION, Metronome, SomeipNode, ZenohEntity
from tests.e2e.rigs.streamer import START_S, VERDICTS, StreamerProcess, statistics
from tests.e2e.rigs.vehicle import SPEED, free_ports
from ustreamer.core.storage.store_reader import StoreReader
from ustreamer.host.storage.dead_letter_store import DIRECTORY, read_letters
from ustreamer.host.storage.spool_records import METADATA_KEYS, decode_record
from ustreamer.host.storage.stored_messages import SPOOL

HANGS_S: Final = {"hang": (6.0, 9.0, 12.0), "resume": (8.4, 8.8, 9.2, 9.4)}
"""Seconds of a freeze: `hang` is shorter or longer than the lease; at `resume` the router drops its client and keeps the
link to the streamer."""
_CALL_S: Final = 2.0
_TRUSTED_S: Final = 1.1
"""After this time with a router the streamer trusts what it announces; see docs/delivery/outages.md.

An application that leaves earlier counts as lost: what it has received stays on disk.
"""
_CONFIG: Final = """\
authority = "hpc.vin1"
state_dir = "state"

[endpoints.backbone]
transport = "zenoh"
authorities = ["hpc.vin1", "cloud"]
connect = ["tcp/127.0.0.1:{ports.backbone}"]
durable = {durable}
receipts = {receipts}
retransmit_bytes = {retransmit_bytes}
retransmit_ms = {retransmit_ms}

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
queue_messages = 100_000
queue_bytes = 100_000_000
max_age_ms = 600_000

[dead_letters]
messages = 100_000

[plugins.usubscription]
"""


class StopOutcome(NamedTuple):
    """Messages that the ECU sent, the first and the second subscriber received, and that dead letters name.

    `named_as_sent` are those dead letters that were sent.
    """

    sent: int
    received: list[int]
    received_later: list[int]
    named: list[int]
    named_as_sent: int
    unconfirmed: int
    code: int
    ledger: dict[str, int]
    output: str

    @property
    def missing(self) -> set[int]:
        return set(range(self.sent)) - {*self.received, *self.received_later}

    @property
    def silent(self) -> set[int]:
        """Missing messages that nothing names."""
        return self.missing - set(self.named)

    def __str__(self) -> str:
        return (
            f"sent {self.sent}, received {len(set(self.received))} (+{len(self.received) - len(set(self.received))}), later {len(set(self.received_later))}, "
            f"missing {len(self.missing)}, silent {len(self.silent)}, named {len(self.named)}, "
            f"unconfirmed {self.unconfirmed}, exit code {self.code}, ledger {self.ledger}"
        )


class StopScenario:
    """A streamer between an ECU and a router, and a subscriber behind the router."""

    def __init__(
        self,
        directory: Path,
        stack: ExitStack,
        *,
        durable: bool,
        receipts: bool = False,
        retransmit_bytes: int = 16_000_000,
        retransmit_ms: int = 15_000,
    ) -> None:
        self._ports = free_ports()
        self._stack = stack
        self._durable = durable
        self._state = directory / "state"
        self._config = directory / "stop.toml"
        directory.mkdir(parents=True, exist_ok=True)
        keys = {
            "durable": str(durable).lower(),
            "receipts": str(receipts).lower(),
            "retransmit_bytes": retransmit_bytes,
            "retransmit_ms": retransmit_ms,
        }
        self._config.write_text(_CONFIG.format(ports=self._ports, **keys))
        self.router = self.start_process("router")
        self._streamer = StreamerProcess(self._config, "--drain", "3").wait_ready()
        stack.callback(lambda: self._streamer.kill() if self._streamer.is_alive else None)
        self._ecu = stack.enter_context(SomeipNode(self._ports.ecu))
        with ZenohEntity(self._ports.backbone, "hpc.vin1") as app:
            _wait_reachable(app)
            app.subscribe(TOPIC)
            Event().wait(_TRUSTED_S)
        self.subscriber = self.start_process("client")
        self.sent = 0
        self.sent_earlier = 0
        """Of these, the events for earlier processes."""

    @property
    def port(self) -> int:
        """The port of the router."""
        return self._ports.backbone

    def start_process(self, mode: str, port: int | None = None) -> ZenohProcess:
        process = ZenohProcess(mode, port or self.port)
        self._stack.callback(process.kill)
        return process.wait_ready()

    def send(self, hz: int, seconds: float, size: int = 0) -> None:
        """Send numbered events of at least `size` bytes. `wait_accepted` waits until the streamer has them."""
        first, count, done = self.sent, max(1, round(hz * seconds)), Event()

        def beat(number: int) -> None:
            if number < count:
                session = (first + number) % 0xFFFF + 1
                event = wire.event(SPEED, 0x8001, (b"%d" % (first + number)).ljust(size), session=session)
                self._ecu.send_to_port(event, self._ports.someip)
            else:
                done.set()

        with Metronome(hz, beat):
            assert done.wait(START_S + seconds)
        self.sent += count

    def wait_accepted(self) -> None:
        until = time.monotonic() + START_S
        while statistics(self._state)["endpoints"]["chassis"]["received"] < self.sent - self.sent_earlier:
            assert time.monotonic() < until, f"{self.sent} were sent, {statistics(self._state)}"
            time.sleep(0.01)

    def stop(self, *, router_forwards: bool = False) -> StopOutcome:
        """SIGTERM, then SIGKILL for the router, then a new start of a durable streamer.

        The router loses what it still has: if `router_forwards`, it has forwarded everything.
        """
        self.wait_accepted()
        self._streamer.send_sigterm()
        code = self._streamer.wait_exit()
        if router_forwards:
            self.subscriber.wait_received(self.sent - 1)
        self.router.kill()
        received = self.subscriber.received
        [stopped] = [line for line in self._streamer.log_records if line["event"] == "streamer.stopped"]
        letters = self._state / DIRECTORY
        found = [each for _, each in read_letters(letters)] if letters.exists() else []
        later = self._received_later() if self._durable else []
        return StopOutcome(
            self.sent,
            received,
            later,
            [int(each.message.payload) for each in found],
            sum("may not have arrived" in each.reason for each in found),
            stopped.get("unconfirmed", 0),
            code,
            self._streamer.ledger,
            self._streamer.output,
        )

    def wait_receipts(self) -> None:
        """Wait until each sent event has its receipt."""
        until = time.monotonic() + START_S
        while statistics(self._state)["endpoints"]["backbone"]["receipts_waiting"]:
            assert time.monotonic() < until, statistics(self._state)
            time.sleep(0.01)

    def wait_on_disk(self, numbers: range) -> None:
        """Wait until the disk has these events, whether they were sent or wait."""
        until = time.monotonic() + START_S
        while missing := set(numbers) - self._on_disk():
            assert time.monotonic() < until, f"{len(missing)} are not on disk, {statistics(self._state)}"

    def wait_disk_empty(self) -> None:
        """Wait until the disk has no event any more."""
        until = time.monotonic() + START_S
        while found := self._on_disk():
            assert time.monotonic() < until, f"{len(found)} are on disk, {statistics(self._state)}"

    def _on_disk(self) -> set[int]:
        return events_on_disk(self._state, "backbone")

    def kill(self) -> tuple[list[int], list[int]]:
        """SIGKILL for the streamer and the router; what the first subscriber and one of the next start received."""
        self._streamer.kill()
        self.router.kill()
        return self.subscriber.received, self._received_later()

    def restart(self, *, with_sigterm: bool = False) -> None:
        """SIGKILL for the router, and for the streamer or SIGTERM `with_sigterm`, and a new start of both."""
        if with_sigterm:
            self._streamer.send_sigterm()
            assert self._streamer.wait_exit() == 0, self._streamer.output
        else:
            self._streamer.kill()
        self.router.kill()
        self.router = self.start_process("router")
        self._streamer = StreamerProcess(self._config).wait_ready()

    def _received_later(self) -> list[int]:
        """What a new subscriber receives from the next streamer, up to a new event."""
        self.subscriber.kill()
        self.start_process("router")
        later = self.start_process("client")
        with StreamerProcess(self._config):
            last = self.sent
            self.send(1, 1)
            self.sent = last
            later.wait_received(last)
        return [number for number in later.received if number != last]


def events_on_disk(state_dir: Path, endpoint: str) -> set[int]:
    """The numbers of the events in the spool of an endpoint."""
    with StoreReader("snapshot", state_dir / SPOOL / endpoint) as reader:  # a process of its own
        records = [decode_record(*each) for each in reader.records() if each[0] not in METADATA_KEYS]
    return {int(each.payload) for each in records if each.payload.strip().isdigit()}


def stop_during_outage(
    directory: Path, fault: str, *, durable: bool, hz: int = 200, before_s: float = 2.0, fault_s: float = 3.0
) -> StopOutcome:
    """Events at `hz` for `before_s`, a fault of the router or "none", events for `fault_s`, SIGTERM."""
    with ExitStack() as stack:
        scene = StopScenario(directory, stack, durable=durable)
        scene.send(hz, before_s)
        scene.subscriber.wait_received(scene.sent - 1)
        if fault == "freeze":
            scene.router.freeze()
        elif fault == "kill":
            scene.router.kill()
        scene.send(hz, fault_s)
        return scene.stop(router_forwards=fault == "none")


def router_hangs(directory: Path, *, durable: bool, hz: int, hang_s: float) -> StopOutcome:
    """Events at `hz`; the router stops for `hang_s` and goes on. SIGTERM when the last event has arrived."""
    with ExitStack() as stack:
        scene = StopScenario(directory, stack, durable=durable)
        scene.send(hz, 2.0)
        scene.subscriber.wait_received(scene.sent - 1)
        scene.router.freeze()
        scene.send(hz, hang_s)
        scene.router.thaw()
        scene.send(hz, 2.0)
        scene.subscriber.wait_received(scene.sent - 1)
        return scene.stop()


def _wait_reachable(app: ZenohEntity) -> None:
    """Call until the router knows the listeners of the streamer: READY does not wait for a router."""
    until = time.monotonic() + START_S
    while True:
        call = app.send_request(USUBSCRIPTION.at(wire.UNSUBSCRIBE), wire.topic_request(TOPIC))
        try:
            app.wait_response(call, _CALL_S)
        except AssertionError:
            assert time.monotonic() < until
        else:
            return


def assert_all_reported(outcome: StopOutcome) -> None:
    """Check that each missing message is named, and that the counters, the exit line and the names are equal."""
    assert not outcome.silent, outcome
    assert len(outcome.named) == len(set(outcome.named)), outcome
    assert outcome.unconfirmed == outcome.named_as_sent, outcome
    ledger = outcome.ledger
    assert ledger["received"] == sum(ledger[verdict] for verdict in VERDICTS), outcome
    assert ledger["dead_lettered"] == len(outcome.named), outcome
    if outcome.unconfirmed:
        assert outcome.code == 75, outcome
    line = f"{outcome.unconfirmed} messages were sent but may not have arrived"
    assert (line in outcome.output) == bool(outcome.unconfirmed), outcome


def main() -> None:
    fault, durable, rounds = sys.argv[1], bool(int(sys.argv[2])), int(sys.argv[3])
    hz = int(sys.argv[4]) if len(sys.argv) > 4 else 200
    good = missing = reported = 0
    for number in range(rounds):
        with tempfile.TemporaryDirectory() as name:
            directory = Path(name) / "stop"
            if fault in HANGS_S:
                hang_s = HANGS_S[fault][number % len(HANGS_S[fault])]
                outcome = router_hangs(directory, durable=durable, hz=hz, hang_s=hang_s)
            else:
                fault_s = 0.5 + (number % 7) * 0.7  # any time after a keep-alive
                outcome = stop_during_outage(
                    directory, fault, durable=durable, hz=hz, before_s=1.5, fault_s=fault_s
                )
        try:
            assert_all_reported(outcome)
            assert not (durable and outcome.missing)
            good += 1
        except AssertionError as error:
            print(f"round {number}: {error}")
        missing += len(outcome.missing)
        reported += len(outcome.named)
        print(f"round {number}: {outcome}", flush=True)
    print(
        f"{fault} {hz} Hz, durable {durable}: {good} of {rounds} good, missing {missing}, reported {reported}"
    )


if __name__ == "__main__":
    main()
