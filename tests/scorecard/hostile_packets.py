# SPDX-License-Identifier: Apache-2.0
"""R13: mutated datagrams at the live ports of a streamer, with a valid event and a call after each thousand."""

import random
import socket
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from tests.e2e.discovery.sd_vehicle import CLIMATE, SPEED, SdVehicle, service_toml
from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import ECHO, eventually
from tests.e2e.rigs.streamer import statistics
from tests.e2e.rigs.wire import Uri
from tests.fuzz.mutations import Mutations
from tests.fuzz.someip import DISCOVERY, SEGMENTS

TOPIC: Final = Uri("chassis", SPEED, 1, 0x8001)
PER_PROBE: Final = 1_000
BURST: Final = 50
"""Datagrams before the streamer must have read them: the receive buffer holds more."""
KINDS: Final = (
    wire.event(SPEED, 0x8001, bytes(range(40))),
    wire.someip(CLIMATE, 1, wire.SOMEIP_RESPONSE, b"answer", client=1),
    wire.someip(CLIMATE, 1, wire.SOMEIP_REQUEST, b"question", client=1),
    *SEGMENTS,
)


def log_types(records: Sequence[Mapping[str, object]]) -> Counter[tuple[object, object]]:
    """The lines of each type: an event, with its reason if it has one. A refusal is logged once for each reason."""
    return Counter((each["event"], each.get("reason")) for each in records)


def _resident_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * 4_096 / (1 << 20)


def test_hostile_datagrams_change_nothing(tmp_path: Path, trials: int, seed: int) -> None:
    rng = random.Random(seed)
    data, sd = Mutations(seed, list(KINDS)), Mutations(seed + 1, [DISCOVERY])
    services = (
        service_toml(SPEED, "events = [{ id = 0x8001, eventgroup = 1 }]"),
        service_toml(CLIMATE, "methods = [0x0001]"),
    )
    with ExitStack() as stack:
        vehicle = SdVehicle(stack, tmp_path, *services)
        ecu = vehicle.new_ecu()
        ecu.offer(SPEED, 1)
        ecu.offer(CLIMATE)
        eventually(lambda: vehicle.subscription_state(TOPIC), wire.SUBSCRIBED)
        hostile = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        hostile.bind(("127.0.0.66", 0))

        def counters() -> dict[str, int]:
            found: dict[str, int] = statistics(tmp_path / "state")["endpoints"]["chassis"]
            return found

        probes = sent = 0
        first_mb, began, lines = 0.0, time.monotonic(), len(vehicle.process.log_records)
        for _ in range(0, trials, PER_PROBE):
            for _ in range(PER_PROBE // BURST):
                for _ in range(BURST):
                    if rng.random() < 0.5:
                        hostile.sendto(data.next(), vehicle.address)
                    else:
                        hostile.sendto(sd.next(), ("127.0.0.1", vehicle.ports.sd))
                sent += BURST
                counters()  # a round trip through the streamer paces the sender
            payload = b"probe %d" % probes
            ecu.send_event(SPEED, 0x8001, payload, vehicle.address)
            vehicle.app.inbox.wait_one(lambda sample: sample.payload == payload)  # noqa: B023 - called at once
            assert vehicle.app.call(Uri("chassis", CLIMATE, 1, ECHO), payload).payload == payload
            probes += 1
            first_mb = first_mb or _resident_mb(vehicle.process.pid)
        grown = _resident_mb(vehicle.process.pid) - first_mb
        forged = [each for each in vehicle.app.events(TOPIC) if not each.payload.startswith(b"probe")]
        subscribed = vehicle.subscription_state(TOPIC) == wire.SUBSCRIBED
        found = counters()
        written = vehicle.process.log_records[lines:]
        # One line in a run of less than a second is one per second.
        rate = max(log_types(written).values(), default=0) / max(1.0, time.monotonic() - began)
        suppressed = sum(statistics(tmp_path / "state")["log_suppressed"].values())
    dropped = found["udp_dropped"] + found.get("sd_dropped", 0)
    print(
        f"datagrams={sent} read={sent - dropped} dropped_percent={100 * dropped / sent:.2f} probes={probes}"
    )
    print(f"probes_failed=0 forwarded={len(forged)} state_changed={int(not subscribed)}")
    print(f"most frequent in the log: {log_types(written).most_common(3)}")
    print(f"log_lines_per_s={rate:.2f} log_suppressed={suppressed} grown_mb={max(0.0, grown):.1f}")
