# SPDX-License-Identifier: Apache-2.0
"""The sessions in a process of their own: what crosses the border, and the end of either process.

`make soak` runs the other tests of the streamer with sessions in both ways.
"""

import os
import signal
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING

import pytest
from ustreamer_wamp.process import parent
from websockets.exceptions import ConnectionClosed

from tests.waiting import wait_until
from ustreamer.uprotocol.uattributes import UPayloadFormat
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.uuri import UUri

if TYPE_CHECKING:
    from tests.car import MINE, SECTION, SPEED, SPEED_TOPIC, Car, subscribed
    from tests.vehicle.test_bridge import counted
    from tests.vehicle.test_bridge_events import Reader
else:
    from plugins.wamp.tests.car import MINE, SECTION, SPEED, SPEED_TOPIC, Car, subscribed
    from plugins.wamp.tests.vehicle.test_bridge import counted
    from plugins.wamp.tests.vehicle.test_bridge_events import Reader

RUN = "import sys; from ustreamer.host.cli.main import main; sys.exit(main())"
in_process = pytest.mark.parametrize("make_car", ["process"], indirect=True)


def child_of(car: Car) -> int:
    found = car.process._process
    assert found is not None
    return found.pid


@in_process
def test_messages_patterns_and_values_cross_the_border(car: Car) -> None:
    car.streamer.plugins.register(Reader(Reader.Config(), None))  # type: ignore[arg-type]  # it looks at neither
    peer, other, driver = car.peer().join(), car.peer("cbor").join(), car.peer().join_publisher("driver")
    subscribed(peer, SPEED_TOPIC)
    pattern = subscribed(other, "up.car.", {"match": "prefix"})
    wait_until(lambda: len(car.wamp.patterns) == 1)
    car.publish(SPEED, b"\x01\x00", ttl=60_000)
    event = peer.receive()
    assert (event[4], event[5]["source"], event[5]["ttl"]) == (
        [{"speed": 256}],
        "up://car/2001/1/8001",
        60_000,
    )
    assert other.receive()[1:5:3] == [pattern, [{"speed": 256}]]
    car.publish(UUri("car", 0x2001, 1, 0x8002), b'[1, "\xc3\xa4"]', UPayloadFormat.JSON)
    assert other.receive()[4] == [[1, "ä"]]
    received_messages: list[UMessage] = []
    car.wamp.register_listener(UUri("wamp.hpc", 0x4711, 1, 0x8000), None, received_messages.append)
    assert driver.request(16, 1, {"acknowledge": True}, MINE, [b"\x01"])[0] == 17
    assert wait_until(lambda: received_messages)[0].payload == b"\x01"


@pytest.mark.parametrize("make_car", ["thread", "process"], indirect=True)
def test_a_listener_that_raises_is_counted_and_affects_no_other(
    car: Car, caplog: pytest.LogCaptureFixture
) -> None:
    received_messages: list[bytes] = []

    def fail(message: UMessage) -> None:
        raise KeyError("a defect")

    driver = car.peer().join_publisher("driver")
    for listener in (fail, lambda message: received_messages.append(message.payload)):
        for source in (UUri("wamp.hpc", 0x4711, 1, 0x8000), UUri("wamp.hpc", 0x4711, 1, 0xFFFF)):
            car.wamp.register_listener(source, None, listener)
    for payload in (b"\x01", b"\x02"):
        assert driver.request(16, 1, {"acknowledge": True}, MINE, [payload])[0] == 17
    wait_until(lambda: received_messages == [b"\x01", b"\x02"])
    wait_until(partial(counted, car, "listener_errors", 2))
    assert caplog.messages.count("wamp.listener_failed") == 1
    car.peer().join()


@in_process
def test_a_streamer_with_sessions_in_a_process_imports_no_event_loop(car: Car) -> None:
    code = (
        "import pathlib, sys; from ustreamer.host.runtime import process;"
        f"process.load(pathlib.Path({str(car.path)!r})).streamer(); print(*sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert not {"asyncio", "ssl", "websockets"} & set(found.stdout.split())


@in_process
def test_after_its_end_the_process_is_started_again_and_clients_come_back(
    car: Car, caplog: pytest.LogCaptureFixture
) -> None:
    peer = car.peer().join()
    subscribed(peer, SPEED_TOPIC)
    subscribed(peer, "up.car.", {"match": "prefix"})
    wait_until(partial(counted, car, "sessions", 1))
    links: list[bool] = []
    car.wamp.watch_link(links.append)
    url, before = car.process.urls, child_of(car)
    os.kill(before, signal.SIGKILL)
    with pytest.raises(ConnectionClosed):
        peer.receive()
    wait_until(partial(counted, car, "process_restarts", 1))
    assert (car.process.urls, links, len(car.wamp.patterns)) == (url, [False, True], 0)
    assert child_of(car) != before
    car.publish(SPEED, b"no session")
    wait_until(lambda: car.subscriptions() == [])
    again = car.peer().join()
    subscribed(again, SPEED_TOPIC)
    car.publish(SPEED, b"again")
    assert again.receive()[4] == [b"again"]
    wait_until(partial(counted, car, "sessions", 2))
    assert "wamp.process_ended" in caplog.messages


class BusyListener:
    """A listener of what clients publish, which returns from its first message when it may go on."""

    def __init__(self, car: Car) -> None:
        self.messages = 0
        self.may_go_on = Event()
        car.wamp.register_listener(UUri("wamp.hpc", 0x4711, 1, 0x8000), None, self._on_message)

    def _on_message(self, message: UMessage) -> None:
        self.may_go_on.wait(20.0)
        self.messages += 1


@in_process
def test_a_stop_dispatches_each_publication_that_was_acknowledged(car: Car) -> None:
    driver, listener = car.peer().join_publisher("driver"), BusyListener(car)
    stopping = Thread(target=car.wamp.stop_receiving)
    accepted = 0
    while (answer := driver.request(16, accepted + 1, {"acknowledge": True}, MINE, [b"x"]))[0] == 17:
        accepted += 1
        if accepted == 50:
            stopping.start()
    assert answer[4] == "up.error.unavailable"
    assert stopping.is_alive(), "it waits for what the sessions have accepted"
    listener.may_go_on.set()
    stopping.join()
    assert listener.messages == accepted >= 50
    assert car.wamp.counts["publications_lost"] == 0


@in_process
def test_the_end_of_the_process_during_a_stop_is_logged(car: Car, caplog: pytest.LogCaptureFixture) -> None:
    car.wamp.stop_receiving()
    os.kill(child_of(car), signal.SIGKILL)
    wait_until(lambda: "wamp.process_ended" in caplog.messages)


@in_process
def test_acknowledged_publications_that_come_too_late_are_counted(
    car: Car, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(parent, "_LAST_PUBLICATIONS_S", 0.01)
    driver, listener = car.peer().join_publisher("driver"), BusyListener(car)
    accepted = 100
    for number in range(accepted):  # 10 KB each: more than the socket takes
        assert driver.request(16, number + 1, {"acknowledge": True}, MINE, ["x" * 10_000])[0] == 17
    stopping = Thread(target=car.streamer.stop)
    stopping.start()
    driver.wait_closed()
    listener.may_go_on.set()  # the sessions have ended, and most publications are still in their process
    stopping.join()
    assert "wamp.publications_not_ended" in caplog.messages
    assert 1 <= listener.messages < accepted
    [stopped] = (each for each in caplog.records if each.message == "streamer.stopped")
    assert listener.messages + vars(stopped)["losses"]["publications_lost"] == accepted


@in_process
def test_a_process_that_stands_still_costs_the_vehicle_nothing_and_loses_are_reported(car: Car) -> None:
    """The sessions get the latest event of each topic, and the number of those that were dropped."""
    peer = car.peer().join()
    subscribed(peer, SPEED_TOPIC)
    os.kill(child_of(car), signal.SIGSTOP)
    events = 40_000
    for number in range(events):
        car.publish(SPEED, number.to_bytes(4, "big"))
    (wamp,) = (each for each in car.streamer.egress_queues() if each.endpoint == "wamp")
    assert (wamp.queued, wamp.dead_lettered) == (0, 0)
    os.kill(child_of(car), signal.SIGCONT)
    received, dropped, last = 0, 0, -1
    while received + dropped < events:
        event = peer.receive()
        received += 1
        dropped += event[3].get("_dropped", 0)
        number = int.from_bytes(event[4][0], "big")
        assert number > last
        last = number
    assert (received + dropped, last) == (events, events - 1)
    assert dropped > 10_000


@in_process
def test_a_process_that_stands_still_is_ended_without_events_too(
    car: Car, caplog: pytest.LogCaptureFixture
) -> None:
    """Without sessions nothing is written to it, and no client could connect any more."""
    assert car.process._socket is not None
    car.process._socket.settimeout(1.0)
    car.peer().join()
    wait_until(partial(counted, car, "sessions", 1))  # the reading thread now waits for 1 s
    os.kill(child_of(car), signal.SIGSTOP)
    wait_until(partial(counted, car, "process_restarts", 1))
    car.peer().join()
    assert "wamp.process_stalled" in caplog.messages


@in_process
def test_the_stop_reports_events_that_a_process_did_not_take(
    car: Car, caplog: pytest.LogCaptureFixture
) -> None:
    subscribed(car.peer().join(), SPEED_TOPIC)
    os.kill(child_of(car), signal.SIGSTOP)
    events, in_socket = 5000, 2000  # fewer than that fit into the 32 KiB between the processes
    for number in range(events):
        car.publish(SPEED, number.to_bytes(4, "big"))
    car.streamer.stop()
    [lost] = [each for each in caplog.records if each.message == "wamp.events_lost"]
    assert events - in_socket < vars(lost)["events"] <= events


@in_process
def test_the_stop_of_the_streamer_delivers_what_waits_and_ends_the_process(car: Car) -> None:
    peer = car.peer().join()
    subscribed(peer, SPEED_TOPIC)
    number, child = 1000, child_of(car)
    for each in range(number):
        car.publish(SPEED, each.to_bytes(2, "big"))
    car.streamer.stop()
    received = [peer.receive() for _ in range(number + 1)]
    assert [each[4] for each in received[:-1]] == [[each.to_bytes(2, "big")] for each in range(number)]
    assert received[-1][0] == 6, "GOODBYE"
    assert not Path(f"/proc/{child}").exists()
    assert car.streamer.endpoints()["wamp"]["sessions"] == 1


def test_the_process_ends_with_a_streamer_that_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "car.toml"
    inside = '[endpoints.inside]\ntransport = "local"\nnetwork = "inside"\nauthorities = ["hpc"]'
    path.write_text(
        f'authority = "hpc"\nstate_dir = "state"\n{inside}\n{SECTION}\nprocess = true\n', encoding="utf-8"
    )
    streamer = subprocess.Popen(
        [sys.executable, "-c", RUN, "run", str(path)], stderr=subprocess.PIPE, text=True
    )
    assert streamer.stderr is not None
    try:
        for line in streamer.stderr:
            if "streamer.started" in line:
                break
        else:
            pytest.fail("the streamer did not start")
        children = Path(f"/proc/{streamer.pid}/task/{streamer.pid}/children")
        (child,) = children.read_text(encoding="ascii").split()
        os.kill(int(child), signal.SIGTERM)
        os.kill(int(child), signal.SIGINT)
        assert child in children.read_text(encoding="ascii").split(), "only the streamer ends it"
    finally:
        streamer.kill()
        streamer.wait()
        streamer.stderr.close()
    wait_until(lambda: not Path(f"/proc/{child}").exists())


def test_an_address_that_is_in_use_is_an_error_of_the_start(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(Exception, match=f"listen ws://127.0.0.1:{port}/ws"):
            Car(tmp_path, section=SECTION.replace("127.0.0.1:0", f"127.0.0.1:{port}"), in_process=True)
