# SPDX-License-Identifier: Apache-2.0
"""SOME/IP networks on loopback, one for each port of service discovery, ECUs on them, and streamers between them."""

import dataclasses
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from tests.e2e import wire
from tests.e2e.ecu import FAST, GROUP, Ecu, Seen
from tests.e2e.neighbourhood import Gateway
from tests.e2e.peers import ECHO, eventually
from tests.e2e.ports import udp_ports
from tests.e2e.streamer import StreamerProcess

SPEED: Final = 0x1234
EVENT: Final = 0x8001
EVENTGROUP: Final = 1
TTL_S: Final = 5
"""Longer than a busy machine stands still."""
_PATIENT: Final = dataclasses.replace(FAST, ANNOUNCE_TTL=TTL_S, SUBSCRIBE_TTL=TTL_S)
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

HERE: Final = ""
"""The service lives on a network."""


def offered_for(authority: str) -> str:
    """It is offered on a network, for who lives on another one."""
    return f'offered = true\nprovider = "//{authority}/1234/1/0"'


class Street:
    """Everything ends with `last_first`."""

    _hosts = itertools.count(20)

    def __init__(self, directory: Path, last_first: ExitStack, *networks: str) -> None:
        self._directory = directory
        self._last_first = last_first
        ports = udp_ports(len(networks) + _MOST_ENDPOINTS)  # all at once, or two could be the same
        self._sd = dict(zip(networks, ports, strict=False))
        self._ports = iter(ports[len(networks) :])

    def ecu(self, network: str) -> Ecu:
        return self._last_first.enter_context(Ecu(self._host(), self._sd[network], timings=_PATIENT))

    def _host(self) -> str:
        return f"127.0.0.{next(self._hosts) % 200 + 20}"

    def launch(
        self,
        authority: str,
        services: Mapping[str, Sequence[str]],
        more: Mapping[str, str] | None = None,
        *,
        beside: str = "",
        ttl_s: int = TTL_S,
    ) -> Gateway:
        """Start a streamer and wait for nothing. `services` is what it says of the service, by network; `more` is TOML.

        `beside` are sections of other endpoints; `ttl_s` is for how long its Offers are valid.
        """
        host = self._host()
        sections = [f'authority = "{authority}"\nstate_dir = "state-{authority}"\n[plugins.usubscription]']
        for name, each in services.items():
            text = "".join(_SERVICE.format(name=name, more=what) for what in each)
            sections.append(
                _ENDPOINT.format(
                    name=name,
                    host=host,
                    port=next(self._ports),
                    group=GROUP,
                    sd=self._sd[name],
                    ttl=ttl_s,
                    services=text,
                    more=(more or {}).get(name, ""),
                )
            )
        config = self._directory / f"{authority}.toml"
        config.write_text("\n".join([*sections, beside]), encoding="utf-8")
        process = StreamerProcess(config)
        self._last_first.callback(end, process)
        return Gateway(authority, config, process, len(services))

    def finish(self, *gateways: Gateway) -> None:
        """Have streamers send all that they have, and be gone."""
        for each in gateways:
            each.process.stop()


def end(process: StreamerProcess) -> None:
    if process.alive:
        process.kill()


class Source:
    """An ECU that has the service, and sends its event to whoever has subscribed it."""

    def __init__(self, ecu: Ecu) -> None:
        self.ecu = ecu
        ecu.offer(SPEED, EVENTGROUP)

    def emit(self, payload: bytes) -> None:
        for address in list(self.ecu.subscribers.get((SPEED, EVENTGROUP), ())):
            self.ecu.emit(SPEED, EVENT, payload, address)

    def asked(self, payload: bytes) -> int:
        """How often the method was called with this."""
        return len(self.ecu.data.inbox.all(lambda frame: frame.head.payload == payload))


class Receiver:
    """An ECU that subscribes the event of everybody who offers the service."""

    def __init__(self, ecu: Ecu) -> None:
        self.ecu = ecu
        self._marks = itertools.count()
        ecu.find(SPEED)
        ecu.subscribe(SPEED, EVENTGROUP)

    def payloads(self) -> list[bytes]:
        """All that has come, or was sent before and is on its way."""
        mark = b"mark %d" % next(self._marks)
        self.ecu.data.send_to(wire.event(SPEED, EVENT, mark), self.ecu.data.address)
        self.ecu.data.inbox.one(lambda frame: frame.head.payload == mark)
        return [frame.head.payload for frame in self.ecu.data.inbox.all()]

    def times(self, payloads: Sequence[bytes]) -> set[int]:
        """How often each of these has come."""
        came = Counter(self.payloads())
        return {came[each] for each in payloads}

    def has(self, payload: bytes) -> bool:
        return payload in self.payloads()

    def call(self, payload: bytes, service: int = SPEED) -> None:
        """Call the method where the service is offered."""
        asked = wire.someip(service, ECHO, wire.SOMEIP_REQUEST, payload, client=7, session=1)
        self.ecu.data.send_to(asked, self.ecu.places[Seen("offered", service)])

    def answers(self, payload: bytes) -> int:
        """How often a call with this was answered, by an echo."""
        return Counter(self.payloads())[payload]


def await_way(source: Source, *receivers: Receiver) -> None:
    """Wait until what the source sends comes to all of these."""

    def all_hear() -> bool:
        source.emit(b"?")
        return all(each.has(b"?") for each in receivers)

    eventually(all_hear, True)
