# SPDX-License-Identifier: Apache-2.0
"""R10: links that lose, delay, reorder and limit packets, or carry none for a time.

    python -m tests.scorecard.thin_links tcp|durable|someip-tcp|udp|sd DIRECTORY SECONDS CONDITION

runs one measurement in a namespace of its own and prints its result as JSON.
"""

import json
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from threading import Event
from typing import Any, Final

import pytest

from tests.e2e.delivery.outage_scenarios import OutageOutcome, OutageScenario
from tests.e2e.discovery.far_namespace import FarEcu, FarNamespace
from tests.e2e.discovery.sd_vehicle import (
    SPEED,
    SUBSCRIBE_PENDING,
    SdVehiclePorts,
    sd_vehicle_toml,
    service_toml,
    subscription_state,
)
from tests.e2e.rigs import wire
from tests.e2e.rigs.cable import FAR_ADDRESS, NEAR_ADDRESS, in_own_namespace, unsupported_reason
from tests.e2e.rigs.entities import Metronome, ZenohEntity, eventually
from tests.e2e.rigs.streamer import StreamerProcess, statistics
from tests.e2e.rigs.vehicle import free_ports, write_config
from tests.e2e.rigs.wire import Uri
from tests.e2e.someip.tcp_scenario import ECU, SERVICE, TcpService, numbers, payload, running
from tests.scorecard.lossy_cable import CLEAN, PARTITION, Conditions, LossyCable

CONDITIONS: Final[dict[str, Conditions]] = {
    "loss 1 %": Conditions(loss=0.01),
    "loss 5 %": Conditions(loss=0.05),
    "loss 20 %": Conditions(loss=0.20),
    "1 Mbit/s": Conditions(bytes_per_s=125_000),
    "delay 50 ms": Conditions(delay_ms=50, jitter_ms=20, reorder=0.05),
    "partition": PARTITION,
}
AT_ONCE: Final = 6
HZ: Final = 500
REPLAY_MS: Final = 15_000
TOPIC: Final = Uri("chassis", SPEED, 1, 0x8001)
_OVERHEAD_S: Final = 120.0
_SILENCE_S: Final = 20.0
"""The streamer closes a TCP connection of SOME/IP that is silent for 25 s; then the events in the ECU's buffer are lost.
"""


# --- the measurements, in a namespace of their own --------------------------------------------------------------------


def _zenoh(directory: Path, seconds: float, conditions: Conditions, settings: str = "") -> dict[str, float]:
    """A Zenoh subscriber behind the link."""
    with ExitStack() as stack:
        cable = stack.enter_context(LossyCable())
        hosts = ("127.0.0.1", NEAR_ADDRESS)
        scene = OutageScenario(directory, stack, "listen", REPLAY_MS, hosts, settings)
        outcome: OutageOutcome = scene.run_outage(
            seconds,
            lambda: scene.start_subscriber(prefix=cable.far_prefix, host=NEAR_ADDRESS),
            lambda: cable.set(conditions),
            lambda: cable.set(CLEAN),
        )
        counts = cable.close()
    first = outcome.first_received
    return {
        "tcp_sent": outcome.sent,
        "tcp_lost": len(outcome.lost),
        "tcp_reordered": int(first != sorted(first)),
        "tcp_twice": outcome.duplicates,
        "packets_dropped": counts.get("dropped tcp", 0),
    }


def _durable_zenoh(directory: Path, seconds: float, conditions: Conditions) -> dict[str, float]:
    """The same behind a durable endpoint."""
    return _zenoh(directory, seconds, conditions, "durable = true")


def _someip_tcp(directory: Path, seconds: float, conditions: Conditions) -> dict[str, float]:
    """An ECU with a service over TCP behind the link, and an application without a link."""
    directory.mkdir()
    topic = ECU.at(0x8001)
    with ExitStack() as stack:
        cable = stack.enter_context(LossyCable())
        net = stack.enter_context(running(directory, hosts=(NEAR_ADDRESS, FAR_ADDRESS)))
        net.app.subscribe(topic)
        listener = FarNamespace(cable).open_socket(  # type: ignore[arg-type]  # as a Cable
            socket.SOCK_STREAM, (FAR_ADDRESS, net.ports.ecu)
        )
        service = stack.enter_context(TcpService(net.ports.ecu, listener))
        connection = service.accept()
        # It holds the events of a partition.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_000_000)

        def beat(number: int) -> None:
            connection.sendall(wire.event(SERVICE, 0x8001, payload(number, 8)))

        with Metronome(HZ, beat) as metronome:
            net.app.wait_events(topic, HZ)
            cable.set(conditions)
            Event().wait(min(seconds, _SILENCE_S))
            cable.set(CLEAN)
            net.app.wait_events(topic, metronome.beats + HZ, seconds + _OVERHEAD_S)
        received = numbers(net.app, topic, metronome.beats)
        counts = cable.close()
    return {
        "tcp_sent": metronome.beats,
        "tcp_lost": metronome.beats - len(set(received)),
        "tcp_reordered": int(received != sorted(received)),
        "tcp_twice": len(received) - len(set(received)),
        "packets_dropped": counts.get("dropped tcp", 0),
    }


def _udp(directory: Path, seconds: float, conditions: Conditions) -> dict[str, float]:
    """An ECU behind the link, without service discovery, and an application without a link."""
    directory.mkdir()
    ports = free_ports()
    config = write_config(directory, ports)
    text = config.read_text(encoding="utf-8").replace('bind = "127.0.0.1"', f'bind = "{NEAR_ADDRESS}"')
    config.write_text(
        text.replace(f'"127.0.0.1:{ports.ecu}"', f'"{FAR_ADDRESS}:{ports.ecu}"'), encoding="utf-8"
    )
    with ExitStack() as stack:
        cable = stack.enter_context(LossyCable())
        ecu = FarNamespace(cable).open_socket(  # type: ignore[arg-type]  # as a Cable
            socket.SOCK_DGRAM, (FAR_ADDRESS, ports.ecu)
        )
        stack.enter_context(ecu)
        process = stack.enter_context(StreamerProcess(config))
        app = stack.enter_context(ZenohEntity(ports.backbone, "hpc.vin1"))
        app.subscribe(TOPIC)

        def beat(number: int) -> None:
            ecu.sendto(wire.event(SPEED, 0x8001, b"%d" % number), (NEAR_ADDRESS, ports.someip))

        with Metronome(HZ, beat) as metronome:
            app.wait_events(TOPIC, HZ)
            cable.set(conditions)
            Event().wait(seconds)
            cable.set(CLEAN)
            behind = metronome.beats + HZ
            eventually(lambda: int(app.events(TOPIC)[-1].payload) >= behind, True)
        last = b"%d" % (metronome.beats - 1)
        app.inbox.wait_one(lambda sample: sample.payload == last)
        received = [int(each.payload) for each in app.events(TOPIC)]
        refused = statistics(directory / "state")["endpoints"]["chassis"]["udp_dropped"]
        counts = cable.close()
        process.stop()
    dropped = counts.get(f"dropped udp{ports.someip}", 0)
    lost = metronome.beats - len(set(received))
    return {
        "udp_sent": metronome.beats,
        "udp_injected": dropped,
        "udp_lost_beyond": abs(lost - dropped - refused),
        "udp_twice": len(received) - len(set(received)),
    }


def _sd(directory: Path, seconds: float, conditions: Conditions) -> dict[str, float]:
    """An ECU with service discovery behind the link: how long it is not subscribed after the link is good again."""
    directory.mkdir()
    ports = SdVehiclePorts.free()
    config = directory / "sd.toml"
    speed = service_toml(SPEED, "events = [{ id = 0x8001, eventgroup = 1 }]")
    config.write_text(sd_vehicle_toml(ports, speed, host=NEAR_ADDRESS), encoding="utf-8")
    with ExitStack() as stack:
        cable = stack.enter_context(LossyCable())
        ecu = stack.enter_context(FarEcu(cable, FAR_ADDRESS, ports.sd))  # type: ignore[arg-type]  # as a Cable
        ecu.offer(SPEED, 1)
        process = stack.enter_context(StreamerProcess(config))
        app = stack.enter_context(ZenohEntity(ports.zenoh, "hpc.vin1"))
        eventually(lambda: subscription_state(app, TOPIC), wire.SUBSCRIBED)
        cable.set(conditions)
        Event().wait(seconds)
        is_pending = subscription_state(app, TOPIC) == SUBSCRIBE_PENDING
        cable.set(CLEAN)
        began = time.monotonic()
        eventually(lambda: subscription_state(app, TOPIC), wire.SUBSCRIBED)
        recovered_s = time.monotonic() - began
        ecu.send(wire.event(SPEED, 0x8001, b"behind"), (NEAR_ADDRESS, ports.data))
        app.wait_events(TOPIC)
        counts = cable.close()
        process.stop()
    return {
        "sd_recover_s": recovered_s,
        "sd_pending": is_pending,
        "sd_dropped": counts.get(f"dropped udp{ports.sd}", 0),
    }


MEASUREMENTS: Final = {
    "tcp": _zenoh,
    "durable": _durable_zenoh,
    "someip-tcp": _someip_tcp,
    "udp": _udp,
    "sd": _sd,
}


# --- the tests --------------------------------------------------------------------------------------------------------


def measure(directory: Path, kind: str, seconds: float, condition: str) -> dict[str, float]:
    done = subprocess.run(
        in_own_namespace("tests.scorecard.thin_links", kind, str(directory), str(seconds), condition),
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=seconds + _OVERHEAD_S,
        check=False,
    )
    assert done.returncode == 0, f"{kind}, {condition}: {done.stderr}"
    found: dict[str, float] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("kind", MEASUREMENTS)
def test_a_bad_link_loses_nothing_but_datagrams(tmp_path: Path, trials: int, kind: str) -> None:
    """`trials` is the time of each condition in s."""
    if reason := unsupported_reason():
        pytest.skip(f"no network namespace: {reason}")
    if not Path("/dev/net/tun").exists():
        pytest.skip("no TUN device")

    def run(condition: str) -> dict[str, float]:
        return measure(tmp_path / condition.replace(" ", "_").replace("/", "_"), kind, trials, condition)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        for condition, found in zip(CONDITIONS, pool.map(run, CONDITIONS), strict=True):
            figures = (f"{name}={value:.3f}".rstrip("0").rstrip(".") for name, value in found.items())
            print(condition, *figures)
            print("links=1")


def _main(kind: str, directory: str, seconds: str, condition: str) -> None:
    result: dict[str, Any] = MEASUREMENTS[kind](Path(directory), float(seconds), CONDITIONS[condition])
    print(json.dumps(result))


if __name__ == "__main__":
    _main(*sys.argv[1:])
