# SPDX-License-Identifier: Apache-2.0
"""Zenoh networks that stay, applications on them, and streamers between them that come and go."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import zenoh

from tests.e2e import wire
from tests.e2e.peers import ZenohPeer, eventually
from tests.e2e.ports import tcp_ports
from tests.e2e.streamer import StreamerProcess, run_command, statistics
from tests.e2e.two_streamers import _router
from tests.e2e.wire import Attributes, Id, Uri

FAR: Final = tuple(f"b{number}.vin1" for number in range(8))
"""So many that each of two streamers has some: by lot, and always the same."""
SIDE_BY_SIDE: Final = {"one": ("a.vin1", "g1", "g2"), "two": FAR}
EACH: Final = 25

QUIET_S: Final = 0.5
"""A streamer that has counted nothing for so long has nothing left to read."""

_ENDPOINT = """\
[endpoints.{name}]
transport = "zenoh"
mode = "client"
authorities = [{authorities}]
connect = ["tcp/127.0.0.1:{port}"]
{more}
"""


class Neighbourhood:
    """Everything ends with `last_first`. Networks are routers in the test's process, by name."""

    def __init__(self, directory: Path, last_first: ExitStack, *networks: str) -> None:
        self._directory = directory
        self._last_first = last_first
        self.ports = dict(zip(networks, tcp_ports(len(networks)), strict=True))
        for port in self.ports.values():
            router: zenoh.Session = _router(port)
            last_first.callback(router.close)

    def branch(self, name: str, of: str) -> zenoh.Session:
        """Part of a network behind a router of its own; when that is closed, whoever is there is cut off."""
        [self.ports[name]] = tcp_ports(1)
        router: zenoh.Session = _router(self.ports[name], connect=self.ports[of])
        self._last_first.callback(router.close)
        return router

    def peer(self, network: str, authority: str, ue_id: int | None = None) -> ZenohPeer:
        """An application on a network."""
        return self._last_first.enter_context(ZenohPeer(self.ports[network], authority, ue_id))

    def launch(
        self, authority: str, endpoints: Mapping[str, Sequence[str]], more: Mapping[str, str] | None = None
    ) -> "Gateway":
        """Start a streamer and wait for nothing. `endpoints` are authorities by network; `more` is TOML for one of them.

        An endpoint is called like its network, or `network:name`.
        """
        config = self._directory / f"{authority}.toml"
        config.write_text(self._text(authority, endpoints, more or {}), encoding="utf-8")
        process = StreamerProcess(config)
        self._last_first.callback(_end, process)
        return Gateway(authority, config, process, len(endpoints))

    def reload(self, gateway: "Gateway", endpoints: Mapping[str, Sequence[str]]) -> None:
        """Have it go on with these, and wait until it does."""
        gateway.config.write_text(self._text(gateway.authority, endpoints, {}), encoding="utf-8")
        assert run_command("reload", gateway.config).returncode == 0

    def _text(self, authority: str, endpoints: Mapping[str, Sequence[str]], more: Mapping[str, str]) -> str:
        sections = [f'authority = "{authority}"\nstate_dir = "state-{authority}"']
        for each, authorities in endpoints.items():
            network, _, name = each.partition(":")
            sections.append(
                _ENDPOINT.format(
                    name=name or network,
                    authorities=", ".join(f'"{who}"' for who in authorities),
                    port=self.ports[network],
                    more=more.get(each, ""),
                )
            )
        return "\n".join([*sections, "[plugins.usubscription]", "[plugins.throttle]"])


class Gateway:
    """A streamer in a process."""

    def __init__(self, authority: str, config: Path, process: StreamerProcess, endpoints: int) -> None:
        self.authority = authority
        self.config = config
        self.process = process
        self._endpoints = endpoints

    def ready(self) -> "Gateway":
        """Wait until it is, and connected everywhere."""
        self.process.ready()
        self.process.stderr.wait(lambda line: "link_up" in line, self._endpoints)
        return self

    def there(self, endpoint: str) -> list[str]:
        """The streamers that it last said to be on a network."""
        said = [
            each
            for each in self.process.log
            if each["event"] == "neighbours" and each["endpoint"] == endpoint
        ]
        return sorted(said[-1]["there"]) if said else []

    def wait_there(self, endpoint: str, *authorities: str) -> None:
        """Wait until it knows these streamers, and no others, on a network."""
        eventually(lambda: self.there(endpoint), sorted(authorities))

    def counts(self) -> tuple[dict[str, int], dict[str, dict[str, int]]]:
        """Its ledger, and what it counts at each endpoint."""
        found = statistics(self.config.parent / f"state-{self.authority}")
        return found["ledger"], found["endpoints"]

    def refused(self, endpoint: str) -> dict[str, int]:
        """What it refused there, by its last words."""
        [stopped] = [line for line in self.process.log if line["event"] == "stopped"]
        counted: dict[str, int] = stopped["endpoints"][endpoint]
        return {
            key.removeprefix("refused_"): n for key, n in counted.items() if n and key.startswith("refused_")
        }


def side_by_side(street: Neighbourhood, more: Mapping[str, str] | None = None) -> list[Gateway]:
    """g1 and g2, which know of each other on both sides."""
    gateways = [street.launch(name, SIDE_BY_SIDE, more) for name in ("g1", "g2")]
    for each in gateways:
        each.ready()
    if more is None:
        for one, other in (gateways, gateways[::-1]):
            for network in SIDE_BY_SIDE:
                one.wait_there(network, other.authority)
    return gateways


def notify(speaker: ZenohPeer, sink: Uri) -> Id:
    topic = speaker.address.at(0x8009)
    return speaker.send(Attributes(wire.new_id(), wire.NOTIFICATION, topic, sink, priority=wire.CS1), b"note")


def times_come(peer: ZenohPeer, ids: Sequence[Id]) -> list[int]:
    """How often each of these has come."""
    counts = Counter(each.attributes.id for each in peer.inbox.all() if each.attributes is not None)
    return [counts[id] for id in ids]


def await_way(speaker: ZenohPeer, listener: ZenohPeer, *authorities: str) -> None:
    """Wait until a notification to each of these authorities arrives: Zenoh needs a moment to know who listens."""
    for authority in authorities:
        asked: list[Id] = []

        def arrives(authority: str = authority, asked: list[Id] = asked) -> bool:
            asked.append(notify(speaker, Uri(authority, 0x99, 1)))
            time.sleep(0.01)
            return any(times_come(listener, asked))

        eventually(arrives, True)


def all_has_come(speaker: ZenohPeer, listener: ZenohPeer, *gateways: Gateway) -> None:
    """End these streamers, which send what they have, and wait until what they sent has come.

    What the speaker, a new one on the network of the listener, says then comes after it: it is as unimportant.
    """
    # Not while one of them has something to read yet: when another ends, that becomes its own.
    counted: object = None
    since = 0.0

    def is_quiet() -> bool:
        nonlocal counted, since
        now = [each.counts() for each in gateways]
        if now != counted:
            counted, since = now, time.monotonic()
        return time.monotonic() - since > QUIET_S

    eventually(is_quiet, True)
    for each in gateways:
        each.process.stop()
    last = speaker.publish(speaker.address.at(0x8FFF), b"last")
    eventually(lambda: times_come(listener, [last]), [1])


def _end(process: StreamerProcess) -> None:
    if process.alive:
        process.kill()
    else:
        process._close()
