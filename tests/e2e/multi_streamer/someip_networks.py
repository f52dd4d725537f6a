# SPDX-License-Identifier: Apache-2.0
"""SOME/IP networks on loopback, one per service discovery port, with ECUs, and streamers between them."""

import dataclasses
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from tests.e2e.multi_streamer.zenoh_networks import Gateway
from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import ECHO, eventually
from tests.e2e.rigs.ports import udp_ports
from tests.e2e.rigs.sd_ecu import FAST_TIMINGS, SD_GROUP, SdEcu, SdNotification
from tests.e2e.rigs.streamer import StreamerProcess

SPEED: Final = 0x1234
EVENT: Final = 0x8001
EVENTGROUP: Final = 1
TTL_S: Final = 5
"""Longer than a pause of a busy machine."""
_LONG_TTLS: Final = dataclasses.replace(FAST_TIMINGS, ANNOUNCE_TTL=TTL_S, SUBSCRIBE_TTL=TTL_S)
_MOST_ENDPOINTS: Final = 12

_ENDPOINT = """\
[endpoints.{name}]
transport = "someip"
authorities = ["{name}"]
bind = "{host}"
port = {port}
{more}
[endpoints.{name}.sd]
multicast = "{group}"
port = {sd}
interface = "{host}"
[endpoints.{name}.sd.timings]
initial_delay_min_ms = 1
initial_delay_max_ms = 10
repetitions_base_delay_ms = 20
cyclic_offer_delay_ms = 200
ttl_offer_s = {ttl}
ttl_subscribe_s = 5
request_response_delay_min_ms = 1
request_response_delay_max_ms = 5
{services}
"""
_SERVICE = """\
[[endpoints.{name}.services]]
service = 0x1234
major = 1
events = [{{ id = 0x8001, eventgroup = 1 }}]
methods = [0x0001]
{more}
"""

LOCAL_SERVICE: Final = ""
"""The service is on this network."""


def offered_for(authority: str) -> str:
    """The service is offered on this network, from another one."""
    return f'offered = true\nprovider = "//{authority}/1234/1/0"'


class SomeipNetworks:
    """Everything ends with `exit_stack`."""

    _hosts = itertools.count(20)

    def __init__(self, directory: Path, exit_stack: ExitStack, *networks: str) -> None:
        self._directory = directory
        self._exit_stack = exit_stack
        ports = udp_ports(len(networks) + _MOST_ENDPOINTS)  # all at once, otherwise two could be equal
        self._sd = dict(zip(networks, ports, strict=False))
        self._ports = iter(ports[len(networks) :])

    def new_ecu(self, network: str) -> SdEcu:
        return self._exit_stack.enter_context(SdEcu(self._next_host(), self._sd[network], timings=_LONG_TTLS))

    def _next_host(self) -> str:
        return f"127.0.0.{next(self._hosts) % 200 + 20}"

    def launch_streamer(
        self,
        authority: str,
        services: Mapping[str, Sequence[str]],
        extra_toml: Mapping[str, str] | None = None,
        *,
        extra_sections: str = "",
        ttl_s: int = TTL_S,
    ) -> Gateway:
        """Start a streamer without waiting. `services` are its settings of the service, by network.

        `extra_toml` is TOML by network, `extra_sections` has sections of other endpoints. `ttl_s` is the ttl of its
        Offers.
        """
        host = self._next_host()
        sections = [f'authority = "{authority}"\nstate_dir = "state-{authority}"\n[plugins.usubscription]']
        for name, each in services.items():
            text = "".join(_SERVICE.format(name=name, more=service_lines) for service_lines in each)
            sections.append(
                _ENDPOINT.format(
                    name=name,
                    host=host,
                    port=next(self._ports),
                    group=SD_GROUP,
                    sd=self._sd[name],
                    ttl=ttl_s,
                    services=text,
                    more=(extra_toml or {}).get(name, ""),
                )
            )
        config = self._directory / f"{authority}.toml"
        config.write_text("\n".join([*sections, extra_sections]), encoding="utf-8")
        process = StreamerProcess(config)
        self._exit_stack.callback(kill_if_alive, process)
        return Gateway(authority, config, process, len(services))

    def stop_streamers(self, *gateways: Gateway) -> None:
        """Stop streamers after they have drained their queues."""
        for each in gateways:
            each.process.stop()


def kill_if_alive(process: StreamerProcess) -> None:
    if process.is_alive:
        process.kill()


class OfferingEcu:
    """An ECU with the service, which sends its event to every subscriber."""

    def __init__(self, ecu: SdEcu) -> None:
        self.ecu = ecu
        ecu.offer(SPEED, EVENTGROUP)

    def send_event(self, payload: bytes) -> None:
        for address in list(self.ecu.event_subscribers.get((SPEED, EVENTGROUP), ())):
            self.ecu.send_event(SPEED, EVENT, payload, address)

    def call_count(self, payload: bytes) -> int:
        """Number of calls of the method with this payload."""
        return len(self.ecu.data_socket.inbox.items(lambda frame: frame.head.payload == payload))


class SubscribingEcu:
    """An ECU that subscribes the event at every offer of the service."""

    def __init__(self, ecu: SdEcu) -> None:
        self.ecu = ecu
        self._marks = itertools.count()
        ecu.find(SPEED)
        ecu.subscribe(SPEED, EVENTGROUP)

    def received_payloads(self) -> list[bytes]:
        """All received events, including those in transit."""
        mark = b"mark %d" % next(self._marks)
        self.ecu.data_socket.send_to(wire.event(SPEED, EVENT, mark), self.ecu.data_socket.address)
        self.ecu.data_socket.inbox.wait_one(lambda frame: frame.head.payload == mark)
        return [frame.head.payload for frame in self.ecu.data_socket.inbox.items()]

    def receive_counts(self, payloads: Sequence[bytes]) -> set[int]:
        """Receive count of each event."""
        counts = Counter(self.received_payloads())
        return {counts[each] for each in payloads}

    def has_received(self, payload: bytes) -> bool:
        return payload in self.received_payloads()

    def send_call(self, payload: bytes, service: int = SPEED) -> None:
        """Call the method at the offered address."""
        request = wire.someip(service, ECHO, wire.SOMEIP_REQUEST, payload, client=7, session=1)
        self.ecu.data_socket.send_to(request, self.ecu.endpoints[SdNotification("offered", service)])

    def response_count(self, payload: bytes) -> int:
        """Number of echo responses to this call."""
        return Counter(self.received_payloads())[payload]


def wait_delivered(source: OfferingEcu, *receivers: SubscribingEcu) -> None:
    """Wait until the events of the source arrive at all of these."""

    def all_received() -> bool:
        source.send_event(b"?")
        return all(each.has_received(b"?") for each in receivers)

    eventually(all_received, True)
