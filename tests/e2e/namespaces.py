# SPDX-License-Identifier: Apache-2.0
"""A streamer, ECUs beyond a cable whose other end is in another network namespace, and Zenoh applications on this side.

    python -m tests.e2e.namespaces DIRECTORY PEERS REBOOTS

run in a namespace of its own: all acts of `Play`, one after the other, and their outcome as JSON. All that goes over the
cable is in DIRECTORY/cable.pcapng, if there is a dumpcap.
"""

import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.e2e import wire
from tests.e2e.cable import NEAR, Cable, alone, obstacle
from tests.e2e.capture import Capture
from tests.e2e.car import (
    CLIMATE,
    OFFERED,
    PENDING,
    PROVIDER,
    SPEED,
    CarPorts,
    configuration,
    offered,
    service,
    state_of,
)
from tests.e2e.ecu import Seen
from tests.e2e.far_side import NETWORK, FarEcu, FarSide, near_link
from tests.e2e.peers import DEADLINE_S, ECHO, USUBSCRIPTION, Metronome, ZenohPeer, eventually
from tests.e2e.plain_ecu import TCP, PlainEcu, endpoint
from tests.e2e.ports import tcp_ports, udp_ports
from tests.e2e.segments import cut, joined
from tests.e2e.streamer import StreamerProcess
from tests.e2e.wire import Uri

TRUNK, FIRST_SHORT_LIVED = 0x5001, 0x1301
APP: Final = 0x10A0
TOPIC: Final = Uri("chassis", SPEED, 1, 0x8001)
TRUNK_TOPIC: Final = Uri("chassis", TRUNK, 1, 0x8001)
LONG: Final = bytes(range(256)) * 20
KILLS: Final = 3
_AROUND_S: Final = 100.0
_ROUND_S: Final = 0.1

_ONE_EVENT: Final = "events = [{ id = 0x8001, eventgroup = 1 }]"
_SERVICES: Final = (
    service(SPEED, _ONE_EVENT),
    service(CLIMATE, "methods = [0x0001]"),
    service(TRUNK, _ONE_EVENT, "methods = [0x0001]", 'protocol = "tcp"'),
    offered(
        OFFERED,
        "events = [",
        "    { id = 0x8001, eventgroup = 1 },",
        '    { id = 0x8002, eventgroup = 2, protocol = "tcp" },',
        "    { id = 0x8003, eventgroup = 3, tp = true },",
        "]",
        'methods = [0x0001, { id = 0x0002, tp = true }, { id = 0x0003, protocol = "tcp" }]',
    ),
)


class Ports(NamedTuple):
    """TCP ports, then UDP ports."""

    zenoh: int
    tcp: int
    trunk: int
    data: int
    sd: int


class Outcome(NamedTuple):
    """What the acts have found; times in seconds."""

    ports: Ports
    data_ports: list[int]
    """Of ECUs, over UDP."""
    resubscribed: list[float]
    """After the first Offer of each life of each short-lived ECU."""
    reboots: int
    """That many there were, of ECUs that were subscribed."""
    busy: int
    """How often this machine was too slow to send two datagrams as close as they would have to be."""
    counted: int
    """That many the streamer has noticed."""
    after_kill: list[float]
    """From an ECU's restart to its subscription."""
    after_link: list[float]
    """From the link's return to the subscription."""
    ledger: dict[str, int]
    stalled: float
    """For how long at most this machine kept a thread waiting that had but to look at the clock."""


class Play:
    """The streamer and its applications at the near end, everything else at the far one."""

    def __init__(self, directory: Path, stack: ExitStack, peers: int) -> None:
        self._stack = stack
        self.ports = Ports(*tcp_ports(3), *udp_ports(2))
        self.cable = stack.enter_context(Cable())
        self.far = FarSide(self.cable)
        self.peers = peers
        self.data_ports: set[int] = set()
        self.config = directory / "namespaces.toml"
        short_lived = [service(FIRST_SHORT_LIVED + each, _ONE_EVENT) for each in range(peers)]
        ports = CarPorts(self.ports.zenoh, self.ports.tcp, self.ports.data, self.ports.sd)
        text = configuration(ports, *_SERVICES, *short_lived, host=NEAR)
        self.config.write_text(text, encoding="utf-8")
        capture = directory / "cable.pcapng"
        network = NETWORK.format(0)
        there = shutil.which("dumpcap") is not None
        stack.enter_context(Capture(capture, f"net {network}/24", NEAR) if there else nullcontext())

    @property
    def address(self) -> tuple[str, int]:
        return (NEAR, self.ports.data)

    def ecu(self, number: int) -> FarEcu:
        host = NETWORK.format(number)
        made = self._stack.enter_context(FarEcu(self.cable, host, self.ports.sd))
        self.data_ports.add(made.address[1])
        return made

    @contextmanager
    def app(self) -> Iterator[ZenohPeer]:
        with ZenohPeer(self.ports.zenoh, "hpc.vin1", APP) as app:
            app.call(USUBSCRIPTION.at(wire.FETCH_SUBSCRIBERS), wire.on_topic(TOPIC))  # it is heard
            yield app

    # --- acts ---------------------------------------------------------------------------------------------------------

    def streamer_killed(self, ecu: FarEcu) -> None:
        """An ECU is found, called and subscribed; the streamer dies and lives, and nobody has to say anything again."""
        ecu.offer(SPEED, 1)
        ecu.offer(CLIMATE)
        first = StreamerProcess(self.config).ready()
        self._stack.callback(first.kill)
        with self.app() as app:
            assert app.call(Uri("chassis", CLIMATE, 1, ECHO), b"22").payload == b"22"
            eventually(lambda: state_of(app, TOPIC), wire.SUBSCRIBED)
            self.told(app, ecu, b"before")
        first.kill()

    def subscribed_again_by_itself(self, app: ZenohPeer, ecu: FarEcu) -> None:
        """After a restart of the streamer: it remembers who wants what, and the ECU sees that it has rebooted."""
        ecu.seen.wait(lambda seen: seen == Seen("subscribed", SPEED, 1), count=2)
        self.told(app, ecu, b"behind")

    def told(self, app: ZenohPeer, ecu: FarEcu, payload: bytes) -> None:
        """An event arrives."""
        ecu.send(wire.event(SPEED, 0x8001, payload), self.address)
        app.inbox.one(lambda sample: sample.is_event and sample.payload == payload)

    def served(self, app: ZenohPeer, ecu: FarEcu) -> None:
        """The ECU finds what we offer, calls it and subscribes it."""
        with ZenohPeer(self.ports.zenoh, "hpc.vin1", PROVIDER.ue_id) as provider:
            ecu.do("find", OFFERED)
            ecu.seen.one(lambda seen: seen == Seen("offered", OFFERED))
            ecu.send(wire.someip(OFFERED, 1, wire.SOMEIP_REQUEST, b"?", client=7, session=9), self.address)
            provider.respond(provider.inbox.one(lambda sample: sample.payload == b"?"), b"!")
            ecu.data.one(lambda each: each.raw == wire.someip(OFFERED, 1, 0x80, b"!", client=7, session=9))

            ecu.do("subscribe", OFFERED, 1)
            self.published(provider, 0x8001, b"open", lambda: [each.raw[16:] for each in ecu.data.all()])
            self.in_segments(app, provider, ecu)

    def in_segments(self, app: ZenohPeer, provider: ZenohPeer, ecu: FarEcu) -> None:
        """Events and an answer that are longer than a datagram, in both directions."""
        for segment in cut(SPEED, 0x8001, wire.SOMEIP_NOTIFICATION, LONG, session=5):
            ecu.send(segment, self.address)
        app.inbox.one(lambda sample: sample.is_event and sample.payload == LONG)
        ecu.do("subscribe", OFFERED, 3)
        self.published(provider, 0x8003, LONG, lambda: joined(each.raw for each in ecu.data.all()))
        ecu.send(wire.someip(OFFERED, 2, wire.SOMEIP_REQUEST, b"all", client=7, session=10), self.address)
        provider.respond(provider.inbox.one(lambda sample: sample.payload == b"all"), LONG + b"!")
        eventually(lambda: LONG + b"!" in joined(each.raw for each in ecu.data.all()), True)

    def published(
        self, provider: ZenohPeer, resource: int, payload: bytes, heard: Callable[[], list[bytes]]
    ) -> None:
        """The provider says it until the ECU has heard it: that it has subscribed takes until here, and tells nobody."""

        def arrived() -> bool:
            provider.publish(PROVIDER.at(resource), payload)
            return payload in heard()

        eventually(arrived, True)

    def over_tcp(self, app: ZenohPeer) -> None:
        """An ECU whose service is reliable is subscribed and called; and it calls and subscribes in its turn."""
        host = self.far.address(40)
        listening = self.far.socket(socket.SOCK_STREAM, (host, self.ports.trunk))
        listening.listen()
        option = endpoint((host, self.ports.trunk), TCP)
        ecu = PlainEcu(self.far.socket(socket.SOCK_DGRAM, (host, self.ports.sd)), TRUNK, option)
        assert state_of(app, TRUNK_TOPIC) == PENDING
        ecu.begin()
        with listening, listening.accept()[0] as connection:
            connection.settimeout(DEADLINE_S)
            eventually(lambda: state_of(app, TRUNK_TOPIC), wire.SUBSCRIBED)
            connection.sendall(wire.event(TRUNK, 0x8001, b"shut") + wire.event(TRUNK, 0x8001, LONG + b"."))
            for payload in (b"shut", LONG + b"."):
                app.inbox.one(lambda sample, payload=payload: sample.payload == payload)  # type: ignore[misc]
            call = app.request(Uri("chassis", TRUNK, 1, 1), LONG)
            asked = receive(connection)
            assert asked[16:] == LONG
            client, session = asked[8:10], asked[10:12]
            connection.sendall(_answer(TRUNK, 1, b"yes", client, session))
            assert app.answer(call).payload == b"yes"
        with ZenohPeer(self.ports.zenoh, "hpc.vin1", PROVIDER.ue_id) as provider:
            self._client_over_tcp(provider, host, ecu)

    def _client_over_tcp(self, provider: ZenohPeer, host: str, ecu: PlainEcu) -> None:
        with self.far.socket(socket.SOCK_STREAM, (host, 0)) as connection:
            connection.connect((NEAR, self.ports.tcp))
            connection.sendall(wire.someip(OFFERED, 3, wire.SOMEIP_REQUEST, b"tcp?", client=8, session=3))
            provider.respond(provider.inbox.one(lambda sample: sample.payload == b"tcp?"), b"tcp!")
            assert receive(connection) == wire.someip(OFFERED, 3, 0x80, b"tcp!", client=8, session=3)
            ecu.subscribe(OFFERED, 2, (NEAR, self.ports.sd), endpoint(connection.getsockname(), TCP))
            connection.settimeout(_ROUND_S)

            def heard() -> list[bytes]:
                with suppress(TimeoutError):
                    return [receive(connection)[16:]]
                return []

            self.published(provider, 0x8002, b"hot", heard)

    def short_lives(self, app: ZenohPeer, reboots: int) -> tuple[list[float], int]:
        """ECUs that reboot all the time: how soon each life was subscribed, and how often the machine was busy."""
        ecus = []
        for number in range(self.peers):
            host, service = self.far.address(100 + number), FIRST_SHORT_LIVED + number
            assert state_of(app, Uri("chassis", service, 1, 0x8001)) == PENDING
            sd = self._stack.enter_context(self.far.socket(socket.SOCK_DGRAM, (host, self.ports.sd)))
            ecus.append(PlainEcu(sd, service, endpoint((host, self.ports.data))))
        with ThreadPoolExecutor(self.peers) as side_by_side:
            taken = list(side_by_side.map(lambda ecu: ecu.live(reboots // self.peers + 1), ecus))
        return [each for life in taken for each in life[1:]], sum(each.busy for each in ecus)

    def ecu_killed(self, app: ZenohPeer, ecu: FarEcu) -> tuple[FarEcu, list[float]]:
        """An ECU's process dies, once with session numbers that have wrapped, and another one comes."""
        taken = []
        for number in range(KILLS):
            if number == 1:
                ecu.do("near_wrap")
                ecu.do("wait_wrapped")
            ecu.kill()
            eventually(lambda: state_of(app, TOPIC), PENDING)
            ecu = self.ecu(2)
            began = time.monotonic()
            ecu.offer(SPEED, 1)
            ecu.seen.one(lambda seen: seen == Seen("subscribed", SPEED, 1))
            taken.append(time.monotonic() - began)
            eventually(lambda: state_of(app, TOPIC), wire.SUBSCRIBED)
            self.told(app, ecu, b"life %d" % number)
        return ecu, taken

    def link_down(self, app: ZenohPeer, ecu: FarEcu) -> list[float]:
        """The cable is pulled out at the far end; then our own interface is switched off."""
        taken = []
        for number, link in enumerate((self.far.link, near_link)):
            link(False)
            eventually(lambda: state_of(app, TOPIC), PENDING)
            ecu.seen.wait(lambda seen: seen == Seen("unsubscribed", SPEED, 1), count=number + 1)
            link(True)
            began = time.monotonic()
            ecu.seen.wait(lambda seen: seen == Seen("subscribed", SPEED, 1), count=number + 2)
            taken.append(time.monotonic() - began)
            eventually(lambda: state_of(app, TOPIC), wire.SUBSCRIBED)
            self.told(app, ecu, b"link %d" % number)
        return taken


def receive(connection: socket.socket) -> bytes:
    """The next message of a stream."""
    head = _exactly(connection, 8)
    return head + _exactly(connection, int.from_bytes(head[4:8], "big"))


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        assert piece, f"the connection ended after {len(data)} of {size} bytes"
        data += piece
    return data


def _answer(service: int, method: int, payload: bytes, client: bytes, session: bytes) -> bytes:
    numbers = {"client": int.from_bytes(client, "big"), "session": int.from_bytes(session, "big")}
    return wire.someip(service, method, wire.SOMEIP_RESPONSE, payload, **numbers)


def perform(directory: Path, peers: int, reboots: int) -> Outcome:
    with ExitStack() as stack:
        play = Play(directory, stack, peers)
        ecu = play.ecu(2)
        play.streamer_killed(ecu)
        ticks: list[float] = []
        with StreamerProcess(play.config) as process:
            with play.app() as app, Metronome(50, lambda _: ticks.append(time.monotonic())):
                play.subscribed_again_by_itself(app, ecu)
                play.served(app, ecu)
                play.over_tcp(app)
                resubscribed, busy = play.short_lives(app, reboots)
                ecu, after_kill = play.ecu_killed(app, ecu)
                after_link = play.link_down(app, ecu)
            process.stop()
        [stopped] = [line for line in process.log if line["event"] == "stopped"]
        (directory / "log").write_text(process.said, encoding="utf-8")
        counted = stopped["endpoints"]["chassis"]["sd_reboots"]
        data_ports = sorted(play.data_ports)
        happened = len(resubscribed) + len(after_kill)
        return Outcome(
            play.ports,
            data_ports,
            resubscribed,
            happened,
            busy,
            counted,
            after_kill,
            after_link,
            process.ledger,
            max(later - earlier for earlier, later in pairwise(ticks)),
        )


def performed(directory: Path, peers: int, reboots: int) -> Outcome:
    """The play in a namespace of its own. There must be no `obstacle`."""
    assert not obstacle()
    done = subprocess.run(
        alone("tests.e2e.namespaces", str(directory), str(peers), str(reboots)),
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=_AROUND_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    ports, *rest = json.loads(done.stdout)
    return Outcome(Ports(*ports), *rest)


def _main(arguments: list[Any]) -> None:
    directory, peers, reboots = arguments
    print(json.dumps(perform(Path(directory), int(peers), int(reboots))))


if __name__ == "__main__":
    _main(sys.argv[1:])
