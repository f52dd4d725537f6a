# SPDX-License-Identifier: Apache-2.0
"""A streamer and Zenoh applications in one network namespace, and ECUs at the other end of a cable in another one.

    python -m tests.e2e.discovery.namespace_scenario DIRECTORY PEERS REBOOTS

runs all steps of `NamespaceScenario` in its own namespace and writes their outcome as JSON. With dumpcap installed,
DIRECTORY/cable.pcapng has all traffic of the cable.
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

from tests.e2e.discovery.far_namespace import ADDRESS_FORMAT, FarEcu, FarNamespace, set_near_link
from tests.e2e.discovery.raw_sd_ecu import TCP_PROTOCOL, RawSdEcu, endpoint_option
from tests.e2e.discovery.sd_vehicle import (
    CLIMATE,
    OFFERED,
    PROVIDER,
    SPEED,
    SUBSCRIBE_PENDING,
    SdVehiclePorts,
    offered_service_toml,
    sd_vehicle_toml,
    service_toml,
    subscription_state,
)
from tests.e2e.discovery.tp_segments import tp_reassembled, tp_segments
from tests.e2e.rigs import wire
from tests.e2e.rigs.cable import NEAR_ADDRESS, Cable, in_own_namespace, unsupported_reason
from tests.e2e.rigs.capture import Capture
from tests.e2e.rigs.entities import DEADLINE_S, ECHO, USUBSCRIPTION, Metronome, ZenohEntity, eventually
from tests.e2e.rigs.ports import tcp_ports, udp_ports
from tests.e2e.rigs.sd_ecu import SdNotification
from tests.e2e.rigs.streamer import StreamerProcess
from tests.e2e.rigs.wire import Uri

TRUNK, FIRST_SHORT_LIVED = 0x5001, 0x1301
APP: Final = 0x10A0
TOPIC: Final = Uri("chassis", SPEED, 1, 0x8001)
TRUNK_TOPIC: Final = Uri("chassis", TRUNK, 1, 0x8001)
LONG: Final = bytes(range(256)) * 20
ECU_KILLS: Final = 2
_SCENARIO_S: Final = 100.0
_ROUND_S: Final = 0.1

_ONE_EVENT: Final = "events = [{ id = 0x8001, eventgroup = 1 }]"
_SERVICES: Final = (
    service_toml(SPEED, _ONE_EVENT),
    service_toml(CLIMATE, "methods = [0x0001]"),
    service_toml(TRUNK, _ONE_EVENT, "methods = [0x0001]", 'protocol = "tcp"'),
    offered_service_toml(
        OFFERED,
        "events = [",
        "    { id = 0x8001, eventgroup = 1 },",
        '    { id = 0x8002, eventgroup = 2, protocol = "tcp" },',
        "    { id = 0x8003, eventgroup = 3, tp = true },",
        "]",
        'methods = [0x0001, { id = 0x0002, tp = true }, { id = 0x0003, protocol = "tcp" }]',
    ),
)


class NamespacePorts(NamedTuple):
    """TCP ports, then UDP ports."""

    zenoh: int
    tcp: int
    trunk: int
    data: int
    sd: int


class NamespaceOutcome(NamedTuple):
    """The results of all steps; times in seconds."""

    ports: NamespacePorts
    data_ports: list[int]
    """The UDP ports of ECUs."""
    resubscribed: list[float]
    """The time from the first Offer to the Subscribe, for each run of each short-lived ECU."""
    reboots: int
    """The reboots of subscribed ECUs."""
    busy_gaps: int
    """How often the machine was too slow to send two datagrams within MAX_GAP_S."""
    reboots_counted: int
    """The reboots that the streamer counted."""
    after_kill: list[float]
    """The time from an ECU's restart to its subscription."""
    after_link: list[float]
    """The time from the link's return to the subscription."""
    ledger: dict[str, int]
    max_stall_s: float
    """The longest delay of a thread that only reads the clock."""


class NamespaceScenario:
    """The streamer and its applications at the near end, all ECUs at the far end."""

    def __init__(self, directory: Path, stack: ExitStack, peers: int) -> None:
        self._stack = stack
        self.ports = NamespacePorts(*tcp_ports(3), *udp_ports(2))
        self.cable = stack.enter_context(Cable())
        self.far_namespace = FarNamespace(self.cable)
        self.peers = peers
        self.data_ports: set[int] = set()
        self.config = directory / "namespaces.toml"
        short_lived = [service_toml(FIRST_SHORT_LIVED + each, _ONE_EVENT) for each in range(peers)]
        ports = SdVehiclePorts(self.ports.zenoh, self.ports.tcp, self.ports.data, self.ports.sd)
        text = sd_vehicle_toml(ports, *_SERVICES, *short_lived, host=NEAR_ADDRESS)
        self.config.write_text(text, encoding="utf-8")
        capture = directory / "cable.pcapng"
        network = ADDRESS_FORMAT.format(0)
        has_dumpcap = shutil.which("dumpcap") is not None
        stack.enter_context(
            Capture(capture, f"net {network}/24", NEAR_ADDRESS) if has_dumpcap else nullcontext()
        )

    @property
    def address(self) -> tuple[str, int]:
        return (NEAR_ADDRESS, self.ports.data)

    def new_ecu(self, number: int) -> FarEcu:
        host = ADDRESS_FORMAT.format(number)
        created = self._stack.enter_context(FarEcu(self.cable, host, self.ports.sd))
        self.data_ports.add(created.address[1])
        return created

    @contextmanager
    def new_app(self) -> Iterator[ZenohEntity]:
        with ZenohEntity(self.ports.zenoh, "hpc.vin1", APP) as app:
            # A response shows that the application is connected.
            app.call(USUBSCRIPTION.at(wire.FETCH_SUBSCRIBERS), wire.topic_request(TOPIC))
            yield app

    # --- steps --------------------------------------------------------------------------------------------------------

    def streamer_killed(self, ecu: FarEcu) -> None:
        """The streamer finds, calls and subscribes to an ECU; then the streamer is killed."""
        ecu.offer(SPEED, 1)
        ecu.offer(CLIMATE)
        first = StreamerProcess(self.config).wait_ready()
        self._stack.callback(first.kill)
        with self.new_app() as app:
            assert app.call(Uri("chassis", CLIMATE, 1, ECHO), b"22").payload == b"22"
            eventually(lambda: subscription_state(app, TOPIC), wire.SUBSCRIBED)
            self.assert_event_arrives(app, ecu, b"before")
        first.kill()

    def resubscribed_after_restart(self, app: ZenohEntity, ecu: FarEcu) -> None:
        """A restarted streamer subscribes again without a new request, and the ECU detects its reboot."""
        ecu.notifications.wait_count(lambda seen: seen == SdNotification("subscribed", SPEED, 1), count=2)
        self.assert_event_arrives(app, ecu, b"behind")

    def assert_event_arrives(self, app: ZenohEntity, ecu: FarEcu, payload: bytes) -> None:
        """Send an event from the ECU and wait for it at the application."""
        ecu.send(wire.event(SPEED, 0x8001, payload), self.address)
        app.inbox.wait_one(lambda sample: sample.is_event and sample.payload == payload)

    def served(self, app: ZenohEntity, ecu: FarEcu) -> None:
        """The ECU finds an offered service, calls it and subscribes to it."""
        with ZenohEntity(self.ports.zenoh, "hpc.vin1", PROVIDER.ue_id) as provider:
            ecu.call_method("find", OFFERED)
            ecu.notifications.wait_one(lambda seen: seen == SdNotification("offered", OFFERED))
            ecu.send(wire.someip(OFFERED, 1, wire.SOMEIP_REQUEST, b"?", client=7, session=9), self.address)
            provider.respond(provider.inbox.wait_one(lambda sample: sample.payload == b"?"), b"!")
            ecu.datagrams.wait_one(
                lambda each: each.raw == wire.someip(OFFERED, 1, 0x80, b"!", client=7, session=9)
            )

            ecu.call_method("subscribe", OFFERED, 1)
            self.publish_until_received(
                provider, 0x8001, b"open", lambda: [each.raw[16:] for each in ecu.datagrams.items()]
            )
            self.in_segments(app, provider, ecu)

    def in_segments(self, app: ZenohEntity, provider: ZenohEntity, ecu: FarEcu) -> None:
        """Events and responses in segments, in both directions."""
        for segment in tp_segments(SPEED, 0x8001, wire.SOMEIP_NOTIFICATION, LONG, session=5):
            ecu.send(segment, self.address)
        app.inbox.wait_one(lambda sample: sample.is_event and sample.payload == LONG)
        ecu.call_method("subscribe", OFFERED, 3)
        self.publish_until_received(
            provider, 0x8003, LONG, lambda: tp_reassembled(each.raw for each in ecu.datagrams.items())
        )
        ecu.send(wire.someip(OFFERED, 2, wire.SOMEIP_REQUEST, b"all", client=7, session=10), self.address)
        provider.respond(provider.inbox.wait_one(lambda sample: sample.payload == b"all"), LONG + b"!")
        eventually(lambda: LONG + b"!" in tp_reassembled(each.raw for each in ecu.datagrams.items()), True)

    def publish_until_received(
        self, provider: ZenohEntity, resource: int, payload: bytes, received: Callable[[], list[bytes]]
    ) -> None:
        """Publish repeatedly until the ECU receives it: no signal reports the end of the ECU's subscription."""

        def arrived() -> bool:
            provider.publish(PROVIDER.at(resource), payload)
            return payload in received()

        eventually(arrived, True)

    def over_tcp(self, app: ZenohEntity) -> None:
        """A TCP service is subscribed and called; its ECU also calls and subscribes over TCP."""
        host = self.far_namespace.add_address(40)
        listening = self.far_namespace.open_socket(socket.SOCK_STREAM, (host, self.ports.trunk))
        listening.listen()
        option = endpoint_option((host, self.ports.trunk), TCP_PROTOCOL)
        ecu = RawSdEcu(
            self.far_namespace.open_socket(socket.SOCK_DGRAM, (host, self.ports.sd)), TRUNK, option
        )
        assert subscription_state(app, TRUNK_TOPIC) == SUBSCRIBE_PENDING
        ecu.offer_until_subscribed()
        with listening, listening.accept()[0] as connection:
            connection.settimeout(DEADLINE_S)
            eventually(lambda: subscription_state(app, TRUNK_TOPIC), wire.SUBSCRIBED)
            connection.sendall(wire.event(TRUNK, 0x8001, b"shut") + wire.event(TRUNK, 0x8001, LONG + b"."))
            for payload in (b"shut", LONG + b"."):
                app.inbox.wait_one(lambda sample, payload=payload: sample.payload == payload)  # type: ignore[misc]
            call = app.send_request(Uri("chassis", TRUNK, 1, 1), LONG)
            request = receive_message(connection)
            assert request[16:] == LONG
            client, session = request[8:10], request[10:12]
            connection.sendall(_response(TRUNK, 1, b"yes", client, session))
            assert app.wait_response(call).payload == b"yes"
        with ZenohEntity(self.ports.zenoh, "hpc.vin1", PROVIDER.ue_id) as provider:
            self._client_over_tcp(provider, host, ecu)

    def _client_over_tcp(self, provider: ZenohEntity, host: str, ecu: RawSdEcu) -> None:
        with self.far_namespace.open_socket(socket.SOCK_STREAM, (host, 0)) as connection:
            connection.connect((NEAR_ADDRESS, self.ports.tcp))
            connection.sendall(wire.someip(OFFERED, 3, wire.SOMEIP_REQUEST, b"tcp?", client=8, session=3))
            provider.respond(provider.inbox.wait_one(lambda sample: sample.payload == b"tcp?"), b"tcp!")
            assert receive_message(connection) == wire.someip(OFFERED, 3, 0x80, b"tcp!", client=8, session=3)
            ecu.send_subscribe(
                OFFERED,
                2,
                (NEAR_ADDRESS, self.ports.sd),
                endpoint_option(connection.getsockname(), TCP_PROTOCOL),
            )
            connection.settimeout(_ROUND_S)

            def received() -> list[bytes]:
                with suppress(TimeoutError):
                    return [receive_message(connection)[16:]]
                return []

            self.publish_until_received(provider, 0x8002, b"hot", received)

    def rebooting_ecus(self, app: ZenohEntity, reboots: int) -> tuple[list[float], int]:
        """ECUs reboot continuously: returns the time to subscribe for each life, and the number of machine stalls."""
        ecus = []
        for number in range(self.peers):
            host, service = self.far_namespace.add_address(100 + number), FIRST_SHORT_LIVED + number
            assert subscription_state(app, Uri("chassis", service, 1, 0x8001)) == SUBSCRIBE_PENDING
            sd = self._stack.enter_context(
                self.far_namespace.open_socket(socket.SOCK_DGRAM, (host, self.ports.sd))
            )
            ecus.append(RawSdEcu(sd, service, endpoint_option((host, self.ports.data))))
        with ThreadPoolExecutor(self.peers) as side_by_side:
            taken = list(side_by_side.map(lambda ecu: ecu.run_lives(reboots // self.peers + 1), ecus))
        return [each for life in taken for each in life[1:]], sum(each.stall_count for each in ecus)

    def ecu_killed(self, app: ZenohEntity, ecu: FarEcu) -> tuple[FarEcu, list[float]]:
        """An ECU process is killed, once with wrapped session numbers, and a new one starts."""
        taken = []
        for number in range(ECU_KILLS):
            if number == 1:
                ecu.call_method("near_wrap")
                ecu.call_method("wait_wrapped")
            ecu.kill()
            eventually(lambda: subscription_state(app, TOPIC), SUBSCRIBE_PENDING)
            ecu = self.new_ecu(2)
            began = time.monotonic()
            ecu.offer(SPEED, 1)
            ecu.notifications.wait_one(lambda seen: seen == SdNotification("subscribed", SPEED, 1))
            taken.append(time.monotonic() - began)
            eventually(lambda: subscription_state(app, TOPIC), wire.SUBSCRIBED)
            self.assert_event_arrives(app, ecu, b"life %d" % number)
        return ecu, taken

    def link_down(self, app: ZenohEntity, ecu: FarEcu) -> list[float]:
        """The link goes down at the far end, then at the near end."""
        taken = []
        for number, link in enumerate((self.far_namespace.set_link, set_near_link)):
            link(False)
            eventually(lambda: subscription_state(app, TOPIC), SUBSCRIBE_PENDING)
            ecu.notifications.wait_count(
                lambda seen: seen == SdNotification("unsubscribed", SPEED, 1), count=number + 1
            )
            link(True)
            began = time.monotonic()
            ecu.notifications.wait_count(
                lambda seen: seen == SdNotification("subscribed", SPEED, 1), count=number + 2
            )
            taken.append(time.monotonic() - began)
            eventually(lambda: subscription_state(app, TOPIC), wire.SUBSCRIBED)
            self.assert_event_arrives(app, ecu, b"link %d" % number)
        return taken


def receive_message(connection: socket.socket) -> bytes:
    """Read the next message of a stream."""
    head = _exactly(connection, 8)
    return head + _exactly(connection, int.from_bytes(head[4:8], "big"))


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        assert piece, f"the connection ended after {len(data)} of {size} bytes"
        data += piece
    return data


def _response(service: int, method: int, payload: bytes, client: bytes, session: bytes) -> bytes:
    numbers = {"client": int.from_bytes(client, "big"), "session": int.from_bytes(session, "big")}
    return wire.someip(service, method, wire.SOMEIP_RESPONSE, payload, **numbers)


def run_scenario(directory: Path, peers: int, reboots: int) -> NamespaceOutcome:
    with ExitStack() as stack:
        scenario = NamespaceScenario(directory, stack, peers)
        ecu = scenario.new_ecu(2)
        scenario.streamer_killed(ecu)
        ticks: list[float] = []
        with StreamerProcess(scenario.config) as process:
            with scenario.new_app() as app, Metronome(50, lambda _: ticks.append(time.monotonic())):
                scenario.resubscribed_after_restart(app, ecu)
                scenario.served(app, ecu)
                scenario.over_tcp(app)
                resubscribed, busy = scenario.rebooting_ecus(app, reboots)
                ecu, after_kill = scenario.ecu_killed(app, ecu)
                after_link = scenario.link_down(app, ecu)
            process.stop()
        [stopped] = [line for line in process.log_records if line["event"] == "streamer.stopped"]
        (directory / "log").write_text(process.output, encoding="utf-8")
        counted = stopped["endpoints"]["chassis"]["sd_reboots"]
        data_ports = sorted(scenario.data_ports)
        happened = len(resubscribed) + len(after_kill)
        return NamespaceOutcome(
            scenario.ports,
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


def run_scenario_isolated(directory: Path, peers: int, reboots: int) -> NamespaceOutcome:
    """Run the scenario in its own namespace. Requires that `unsupported_reason` is empty."""
    assert not unsupported_reason()
    process = subprocess.run(
        in_own_namespace("tests.e2e.discovery.namespace_scenario", str(directory), str(peers), str(reboots)),
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=_SCENARIO_S,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    ports, *rest = json.loads(process.stdout)
    return NamespaceOutcome(NamespacePorts(*ports), *rest)


def _main(arguments: list[Any]) -> None:
    directory, peers, reboots = arguments
    print(json.dumps(run_scenario(Path(directory), int(peers), int(reboots))))


if __name__ == "__main__":
    _main(sys.argv[1:])
