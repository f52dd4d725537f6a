# SPDX-License-Identifier: Apache-2.0
"""A stop during an outage: the router of the subscriber is frozen or killed, then the streamer gets SIGTERM.

    python -m tests.e2e.delivery.stop_scenarios FAULT DURABLE ROUNDS [HZ]    FAULT freeze or kill, DURABLE 0 or 1

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
from tests.e2e.rigs.entities import Metronome, SomeipNode, ZenohEntity
from tests.e2e.rigs.streamer import START_S, VERDICTS, StreamerProcess, statistics
from tests.e2e.rigs.vehicle import SPEED, free_ports
from ustreamer.host.storage.dead_letter_store import DIRECTORY, read_letters

_CONFIG: Final = """\
authority = "hpc.vin1"
state_dir = "state"

[endpoints.backbone]
transport = "zenoh"
authorities = ["hpc.vin1"]
connect = ["tcp/127.0.0.1:{ports.backbone}"]
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
max_age_ms = 600_000

[dead_letters]
messages = 100_000

[plugins.usubscription]
"""


class StopOutcome(NamedTuple):
    """Messages that the ECU sent, the first and the second subscriber received, and that dead letters name."""

    sent: int
    received: list[int]
    received_later: list[int]
    named: list[int]
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
            f"sent {self.sent}, received {len(set(self.received))}, later {len(set(self.received_later))}, "
            f"missing {len(self.missing)}, silent {len(self.silent)}, named {len(self.named)}, "
            f"unconfirmed {self.unconfirmed}, exit code {self.code}, ledger {self.ledger}"
        )


def stop_during_outage(
    directory: Path, fault: str, *, durable: bool, hz: int = 200, before_s: float = 2.0, fault_s: float = 3.0
) -> StopOutcome:
    """Events at `hz` for `before_s`, a fault, events for `fault_s`, SIGTERM; then everything starts again."""
    ports = free_ports()
    directory.mkdir(parents=True, exist_ok=True)
    config = directory / "stop.toml"
    config.write_text(_CONFIG.format(ports=ports, durable=str(durable).lower()), encoding="utf-8")
    with ExitStack() as stack:

        def child(mode: str) -> ZenohProcess:
            process = ZenohProcess(mode, ports.backbone)
            stack.callback(process.kill)
            return process.wait_ready()

        router = child("router")
        streamer = StreamerProcess(config).wait_ready()
        stack.callback(lambda: streamer.kill() if streamer.is_alive else None)
        ecu = stack.enter_context(SomeipNode(ports.ecu))
        with ZenohEntity(ports.backbone, "hpc.vin1") as app:
            app.subscribe(TOPIC)
        subscriber = child("client")
        sent = _send(ecu, ports.someip, 0, hz, before_s)
        subscriber.wait_received(sent - 1)
        if fault == "freeze":
            router.freeze()
        elif fault == "kill":
            router.kill()
        sent = _send(ecu, ports.someip, sent, hz, fault_s)
        _wait_accepted(directory / "state", sent)
        streamer.send_sigterm()
        code = streamer.wait_exit()
        if fault:
            router.kill()
        received = subscriber.received
        [stopped] = [line for line in streamer.log_records if line["event"] == "streamer.stopped"]
        letters = directory / "state" / DIRECTORY
        named = [int(each.message.payload) for _, each in read_letters(letters)] if letters.exists() else []
        received_later: list[int] = []
        if durable:
            subscriber.kill()
            if fault:
                child("router")
            later = child("client")
            with StreamerProcess(config):
                # A last event follows all others.
                _send(ecu, ports.someip, sent, hz, 1 / hz)
                later.wait_received(sent)
            received_later = [number for number in later.received if number != sent]
        return StopOutcome(
            sent,
            received,
            received_later,
            named,
            stopped["unconfirmed"],
            code,
            streamer.ledger,
            streamer.output,
        )


def _send(ecu: SomeipNode, port: int, first: int, hz: int, seconds: float) -> int:
    """Send numbered events; returns the number after the last."""
    count, done = max(1, round(hz * seconds)), Event()

    def beat(number: int) -> None:
        if number < count:
            payload = b"%d" % (first + number)
            ecu.send_to_port(wire.event(SPEED, 0x8001, payload, session=(first + number) % 0xFFFF + 1), port)
        else:
            done.set()

    with Metronome(hz, beat):
        assert done.wait(START_S + seconds)
    return first + count


def _wait_accepted(state: Path, sent: int) -> None:
    until = time.monotonic() + START_S
    while statistics(state)["endpoints"]["chassis"]["received"] < sent:
        assert time.monotonic() < until, f"{sent} were sent, {statistics(state)}"
        time.sleep(0.01)


def assert_all_reported(outcome: StopOutcome) -> None:
    """Check that each missing message is named, and that the counters, the exit line and the names are equal."""
    assert not outcome.silent, outcome
    assert len(outcome.named) == len(set(outcome.named)), outcome
    assert outcome.unconfirmed == len(outcome.named) - _unsent(outcome), outcome
    ledger = outcome.ledger
    assert ledger["received"] == sum(ledger[verdict] for verdict in VERDICTS), outcome
    assert ledger["dead_lettered"] == len(outcome.named), outcome
    assert outcome.code == (75 if outcome.named else 0), outcome
    line = f"{outcome.unconfirmed} messages were sent but may not have arrived"
    assert (line in outcome.output) == bool(outcome.unconfirmed), outcome


def _unsent(outcome: StopOutcome) -> int:
    """Messages that waited in the queue at the stop."""
    lines = [line for line in outcome.output.splitlines() if "were not sent within" in line]
    return int(lines[0].split()[0]) if lines else 0


def main() -> None:
    fault, durable, rounds = sys.argv[1], bool(int(sys.argv[2])), int(sys.argv[3])
    hz = int(sys.argv[4]) if len(sys.argv) > 4 else 200
    good = missing = reported = 0
    for number in range(rounds):
        with tempfile.TemporaryDirectory() as directory:
            fault_s = 0.5 + (number % 7) * 0.7  # any time after a keep-alive
            outcome = stop_during_outage(
                Path(directory) / "stop", fault, durable=durable, hz=hz, before_s=1.5, fault_s=fault_s
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
    print(f"{fault}, durable {durable}: {good} of {rounds} good, missing {missing}, reported {reported}")


if __name__ == "__main__":
    main()
