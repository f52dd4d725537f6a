# SPDX-License-Identifier: Apache-2.0
"""A hundred clients, ten of which stop reading.

The others receive all events, and the queues of the ten stay bounded.
"""

import resource
import selectors
import socket
import struct
import threading
from array import array
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec
import pytest
from ustreamer_wamp.config import WampConfig
from ustreamer_wamp.connections.outbox import OutboxLimits, OverflowPolicy
from ustreamer_wamp.events import Publication, WampEvent
from ustreamer_wamp.router import WampRouter

from tests.waiting import wait_until
from ustreamer.host.runtime.clock import SYSTEM_CLOCK

CLIENTS, STALLED = 100, 10
EVENTS, SIZE, TOPICS = (
    1500,
    4096,
    10,
)  # 6 MB each: more than the kernel buffers for a client that does not read (4 MB)
AT_ONCE = 20
DEADLINE_S = 60.0
HELLO = [1, "realm1", {"roles": {"subscriber": {}}}]


def rss() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()


class Reader:
    """Many RawSocket clients on one thread. It counts the numbers of the events that each client receives."""

    def __init__(self, port: int, clients: int) -> None:
        self._selector = selectors.DefaultSelector()
        self.sockets = [self._joined(port) for _ in range(clients)]
        # Not lists: 36 bytes for a number would be all that the memory of this process grows by.
        self.numbers = [array("I") for _ in range(clients)]
        self._buffers = [bytearray() for _ in range(clients)]
        for index, each in enumerate(self.sockets):
            each.setblocking(False)
            self._selector.register(each, selectors.EVENT_READ, index)
        self._ending = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _joined(self, port: int) -> socket.socket:
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        client.settimeout(DEADLINE_S)
        client.connect(("127.0.0.1", port))
        client.sendall(b"\x7f\xf2\x00\x00")
        client.recv(4)
        for message, code in ((HELLO, 2), ([32, 1, {"match": "prefix"}, "com."], 33)):
            data = msgspec.msgpack.encode(message)
            client.sendall(struct.pack("!I", len(data)) + data)
            (size,) = struct.unpack("!I", client.recv(4))
            assert msgspec.msgpack.decode(client.recv(size))[0] == code
        return client

    def _run(self) -> None:
        while not self._ending:
            for key, _ in self._selector.select(0.05):
                index = key.data
                buffer = self._buffers[index]
                try:
                    buffer += self.sockets[index].recv(1 << 18)
                except BlockingIOError:
                    continue
                at = 0
                while len(buffer) - at >= 4:
                    (size,) = struct.unpack_from("!I", buffer, at)
                    if len(buffer) - at - 4 < size:
                        break
                    self.numbers[index].append(struct.unpack_from("!I", buffer, at + 4 + size - SIZE)[0])
                    at += 4 + size
                del buffer[:at]

    def stop_reading(self, index: int) -> None:
        self._selector.unregister(self.sockets[index])

    def read_again(self, index: int) -> None:
        self._selector.register(self.sockets[index], selectors.EVENT_READ, index)

    def close(self) -> None:
        self._ending = True
        self._thread.join()
        for each in self.sockets:
            each.close()
        self._selector.close()


class RouterRig:
    """A router with a hundred clients. Events come together, or each comes alone (`FrameSink.write_event`)."""

    def __init__(self, policy: OverflowPolicy, *, alone: bool) -> None:
        self._alone = alone
        config = WampConfig(listen="rs://127.0.0.1:0", anonymous=True, outbox=OutboxLimits(policy=policy))
        self.router = WampRouter(config, SYSTEM_CLOCK)
        self.router.server.open()
        self.reader = Reader(int(self.router.server.urls[0].rsplit(":", 1)[1]), CLIENTS)
        self._number = 0

    def publish(self, events: int) -> list[int]:
        """Publish on the loop's thread, as the vehicle does, at the rate of the slowest client that reads."""
        numbers = list(range(self._number, self._number + events))
        self._number += events
        for at in range(0, events, AT_ONCE):
            spread = threading.Event()
            self.router.server.run_on_loop(self._fan_out, numbers[at : at + AT_ONCE], spread)
            assert spread.wait(DEADLINE_S)
            first = numbers[at]
            wait_until(partial(self._is_received, first))
        return numbers

    def _is_received(self, number: int) -> bool:
        return all((self.reader.numbers[index] or [-1])[-1] >= number for index in self.reading)

    def _fan_out(self, numbers: list[int], done: threading.Event) -> None:
        realm = self.router.realm
        for number in numbers:
            payload = struct.pack("!I", number) + bytes(SIZE - 4)
            publication = Publication(realm.new_id(), f"com.{number % TOPICS}", [payload], {})
            if not self._alone:
                realm.fan_out(publication)
                continue
            (subscription,) = realm.broker.matching(publication.topic)
            event = WampEvent(publication, subscription.id, subscription.match)
            for session in subscription.subscribers:
                session.frame_sink.write_event(event)
        done.set()

    reading = range(STALLED, CLIENTS)

    def close(self) -> None:
        self.reader.close()
        self.router.server.close()


@pytest.fixture(params=["conflate", "drop_oldest"])
def policy(request: pytest.FixtureRequest) -> OverflowPolicy:
    found: OverflowPolicy = request.param
    return found


@pytest.fixture(params=["together", "alone"])
def rig(policy: OverflowPolicy, request: pytest.FixtureRequest) -> Iterator[RouterRig]:
    made = RouterRig(policy, alone=request.param == "alone")
    yield made
    made.close()


def test_ten_that_stop_reading_cost_the_others_nothing(rig: RouterRig) -> None:
    reader, realm = rig.reader, rig.router.realm
    sent = rig.publish(200)
    wait_until(lambda: all(list(numbers) == sent for numbers in reader.numbers))
    for index in range(STALLED):
        reader.stop_reading(index)
    before = rss()
    sent += rig.publish(EVENTS)
    wait_until(lambda: all(len(reader.numbers[index]) == len(sent) for index in rig.reading))
    assert all(list(reader.numbers[index]) == sent for index in rig.reading), "each event, once, in order"
    assert rss() - before < 5 << 20
    lost = rig.router.counts["events_conflated"] + rig.router.counts["events_dropped"]
    assert lost > STALLED * 100, "the ten had to lose something, or this shows nothing"
    for index in range(STALLED):
        reader.read_again(index)
    wait_until(lambda: all(reader.numbers[index][-1] == sent[-1] for index in range(STALLED)))
    for index in range(STALLED):
        numbers = list(reader.numbers[index])
        assert numbers == sorted(set(numbers)), "what is left is in order"
        assert {number % TOPICS for number in numbers[-TOPICS:]} == set(range(TOPICS)), (
            "the latest of each topic"
        )
    assert sum(len(sent) - len(reader.numbers[index]) for index in range(STALLED)) == lost
    assert len(realm.sessions) == CLIENTS
