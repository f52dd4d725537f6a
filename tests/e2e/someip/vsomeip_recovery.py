# SPDX-License-Identifier: Apache-2.0
"""Times to the first event of a vsomeip ECU: of a Zenoh application behind the streamer, and of vsomeip's own client.

    python -m tests.e2e.someip.vsomeip_recovery DIRECTORY PROGRAM [ROUNDS]

runs in its own namespace, with the ECU at the far end of a cable. In each round both clients do the same, one after
the other: subscribe, then recover from a StopOffer, a killed ECU and a lost link. Prints the medians in milliseconds.
Both clients are connected before they subscribe. After an Offer vsomeip subscribes at once, and "at once" is the
streamer without the delay of the standard.
"""

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Final, NamedTuple

from tests.e2e.rigs.cable import FAR_ADDRESS, NEAR_ADDRESS, Cable, run_system_command
from tests.e2e.rigs.entities import USUBSCRIPTION, ZenohEntity
from tests.e2e.rigs.ports import tcp_ports, udp_ports
from tests.e2e.rigs.sd_ecu import SD_GROUP
from tests.e2e.rigs.streamer import START_S, StreamerProcess
from tests.e2e.rigs.wire import (
    FETCH_SUBSCRIPTIONS,
    SUBSCRIBE,
    UNSUBSCRIBE,
    Uri,
    subscription_request,
    topic_request,
)
from tests.e2e.someip.vsomeip_peer import VsomeipPeer, offered_service
from tests.e2e.someip.vsomeip_peer_scenarios import SD, VsomeipPeerScenarios
from tests.e2e.someip.vsomeip_samples import Installation, installation

ECU: Final = 0x1111
TOPIC: Final = Uri("chassis", ECU, 1, 0x8001)
_NOTIFY_S: Final = 0.005
_QUIET_S: Final = 0.3
_SUBSCRIBES: Final = 5
_CONFIG: Final = """\
authority = "hpc.vin1"
state_dir = "state"

[endpoints.backbone]
transport = "zenoh"
authorities = ["hpc.vin1"]
listen = ["tcp/127.0.0.1:{zenoh}"]

[endpoints.chassis]
transport = "someip"
authorities = ["chassis"]
bind = "{near}"
port = {data}

[endpoints.chassis.sd]
multicast = "{group}"
interface = "{near}"
timings = {{ request_response_delay_min_ms = {delay_ms[0]}, request_response_delay_max_ms = {delay_ms[1]} }}

[[endpoints.chassis.services]]
service = 0x1111
major = 1
events = [{{ id = 0x8001, eventgroup = 1 }}]

[plugins.usubscription]
"""


class EcuUnderTest:
    """A vsomeip application that notifies one event all the time, and can be killed and started again."""

    def __init__(self, start: Callable[[], VsomeipPeer]) -> None:
        self._start = start
        self.peer = start()
        self._stopping = Event()
        self._notifier = Thread(target=self._notify, daemon=True)
        self._offer()
        self._notifier.start()

    def _offer(self) -> None:
        self.peer.send(f"event {ECU:x} 1 8001 1 event udp", f"offer {ECU:x} 1")

    def _notify(self) -> None:
        while not self._stopping.wait(_NOTIFY_S):
            with suppress(OSError, ValueError):
                self.peer.send(f"notify {ECU:x} 1 8001 8")

    def restart(self) -> None:
        """Start the killed application again."""
        self.peer = self._start()
        self._offer()

    def close(self) -> None:
        self._stopping.set()
        self._notifier.join(START_S)
        self.peer.kill()


def _wait_for_event(count: Callable[[], int], before: int, began: float) -> float:
    """The milliseconds until the number of received events is above `before`."""
    while count() <= before:
        assert time.monotonic() - began < START_S, "no event"
        time.sleep(0.001)
    return (time.monotonic() - began) * 1_000


def _wait_quiet(count: Callable[[], int]) -> int:
    """Wait until no event arrives for a moment; the number of events."""
    known, since = count(), time.monotonic()
    while time.monotonic() - since < _QUIET_S:
        time.sleep(0.01)
        if count() != known:
            known, since = count(), time.monotonic()
    return known


class Client(NamedTuple):
    """A client under test. `subscribe` returns when it began; `received` gives the number of its events."""

    subscribe: Callable[[], float]
    unsubscribe: Callable[[], object]
    received: Callable[[], int]

    def subscribe_ms(self) -> float:
        """The milliseconds from a Subscribe to the first event."""
        before = self.received()
        return _wait_for_event(self.received, before, self.subscribe())


def _subscribes(client: Client) -> Iterator[tuple[str, float]]:
    yield "first Subscribe", client.subscribe_ms()
    for _ in range(_SUBSCRIBES):
        client.unsubscribe()
        _wait_quiet(client.received)
        yield "Subscribe", client.subscribe_ms()


def _recoveries(ecu: EcuUnderTest, count: Callable[[], int]) -> Iterator[tuple[str, float]]:
    ecu.peer.send(f"stop {ECU:x} 1")
    before, began = _wait_quiet(count), time.monotonic()
    ecu.peer.send(f"offer {ECU:x} 1")
    yield "StopOffer", _wait_for_event(count, before, began)

    ecu.peer.kill()
    before = _wait_quiet(count)
    ecu.restart()
    yield "kill and start", _wait_for_event(count, before, time.monotonic())

    run_system_command("ip", "link", "set", "near", "down")
    before, began = _wait_quiet(count), time.monotonic()
    run_system_command("ip", "link", "set", "near", "up")
    run_system_command("ip", "route", "replace", "224.0.0.0/4", "dev", "near")
    yield "link loss", _wait_for_event(count, before, began)


@contextmanager
def _streamer(directory: Path, delay_ms: tuple[int, int]) -> Iterator[Client]:
    """The subscribe of a Zenoh application, and the count of its events."""
    [zenoh], [data] = tcp_ports(1), udp_ports(1)
    config = directory / "recovery.toml"
    text = _CONFIG.format(zenoh=zenoh, data=data, near=NEAR_ADDRESS, group=SD_GROUP, delay_ms=delay_ms)
    config.write_text(text, encoding="utf-8")
    with StreamerProcess(config) as streamer, ZenohEntity(zenoh, "hpc.vin1") as app:
        streamer.stderr.wait_one(lambda line: "someip.found" in line)
        # As the other client, it is now connected.
        app.call(USUBSCRIPTION.at(FETCH_SUBSCRIPTIONS), topic_request(TOPIC))

        def subscribe() -> float:
            began = time.monotonic()
            app.call(USUBSCRIPTION.at(SUBSCRIBE), subscription_request(TOPIC))
            return began

        def unsubscribe() -> None:
            app.call(USUBSCRIPTION.at(UNSUBSCRIBE), topic_request(TOPIC))

        yield Client(subscribe, unsubscribe, lambda: len(app.events(TOPIC)))


@contextmanager
def _vsomeip(found: Installation, program: Path, directory: Path) -> Iterator[Client]:
    """The same of vsomeip's own client. Two routing managers need a directory each."""
    directory /= "client"
    directory.mkdir()
    with VsomeipPeer(found, program, directory, NEAR_ADDRESS, SD, (), name="client") as client:
        client.send(f"find {ECU:x} 1")
        client.wait_line(f"available {ECU:x} 1")

        def subscribe() -> float:
            began = time.monotonic()
            client.send(f"subscribe {ECU:x} 1 8001 1 event udp")
            return began

        def unsubscribe() -> None:
            client.send(f"unsubscribe {ECU:x} 1 8001 1")

        yield Client(
            subscribe,
            unsubscribe,
            lambda: len(client.output.items(lambda line: f" event {ECU:x} 1 8001 " in line)),
        )


def measure(directory: Path, found: Installation, program: Path, rounds: int) -> dict[str, dict[str, float]]:
    """The median of each time, by step and client."""
    taken: dict[str, dict[str, list[float]]] = {}
    with Cable() as cable:
        VsomeipPeerScenarios(directory, found, program, cable)  # the multicast route of the far end
        run_system_command("ip", "route", "add", "224.0.0.0/4", "dev", "near")
        for number in range(rounds):
            for name in ("streamer", "at once", "vsomeip"):
                place = directory / f"{name.replace(' ', '-')}{number}"
                place.mkdir()

                def start(place: Path = place) -> VsomeipPeer:
                    offers = [offered_service(ECU, 1, 31_001)]
                    return VsomeipPeer(
                        found, program, place, FAR_ADDRESS, SD, offers, cable.far_prefix, name="ecu"
                    )

                ecu = EcuUnderTest(start)
                if name == "vsomeip":
                    opened = _vsomeip(found, program, place)
                else:
                    opened = _streamer(place, (10, 50) if name == "streamer" else (0, 0))
                with opened as client:
                    steps = [*_subscribes(client), *_recoveries(ecu, client.received)]
                    ecu.close()
                    _wait_quiet(
                        client.received
                    )  # so that the streamer has nothing to send when its application leaves
                for step, milliseconds in steps:
                    taken.setdefault(step, {}).setdefault(name, []).append(milliseconds)
    return {
        step: {name: statistics.median(times) for name, times in of_step.items()}
        for step, of_step in taken.items()
    }


def _main(directory: Path, program: Path, rounds: int = 3) -> None:
    found = installation(os.environ)
    assert isinstance(found, Installation), found
    for step, medians in measure(directory, found, program, rounds).items():
        ours, at_once, theirs = medians["streamer"], medians["at once"], medians["vsomeip"]
        print(
            f"{step:15} streamer {ours:6.1f} ms {ours / theirs:5.2f}   at once {at_once:6.1f} ms {at_once / theirs:5.2f}"
            f"   vsomeip {theirs:6.1f} ms"
        )


if __name__ == "__main__":
    _main(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:]))
