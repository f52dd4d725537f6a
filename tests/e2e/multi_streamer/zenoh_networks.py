# SPDX-License-Identifier: Apache-2.0
"""Permanent Zenoh networks with applications, and streamers between them that start and stop."""

import time
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import zenoh

from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import ZenohEntity, eventually
from tests.e2e.rigs.ports import tcp_ports
from tests.e2e.rigs.streamer import StreamerProcess, run_command, statistics
from tests.e2e.rigs.two_streamers import open_router
from tests.e2e.rigs.wire import Attributes, Id, Uri

FAR_AUTHORITIES: Final = tuple(f"b{number}.vin1" for number in range(8))
"""Enough authorities for each of two streamers to have some: by hash, and always the same."""
SIDE_BY_SIDE: Final = {"one": ("a.vin1", "g1", "g2"), "two": FAR_AUTHORITIES}
MESSAGES_EACH: Final = 25

QUIET_S: Final = 0.5
"""A streamer with unchanged counters for this time has nothing left to read."""

_ENDPOINT = """\
[endpoints.{name}]
transport = "zenoh"
mode = "client"
authorities = [{authorities}]
connect = ["tcp/127.0.0.1:{port}"]
{more}
"""


class ZenohNetworks:
    """Everything ends with `exit_stack`. Networks are routers in the process of the test, by name."""

    def __init__(self, directory: Path, exit_stack: ExitStack, *networks: str) -> None:
        self._directory = directory
        self._exit_stack = exit_stack
        self.ports = dict(zip(networks, tcp_ports(len(networks)), strict=True))
        for port in self.ports.values():
            router: zenoh.Session = open_router(port)
            exit_stack.callback(router.close)

    def open_branch(self, name: str, network: str) -> zenoh.Session:
        """Part of a network behind its own router; closing the router cuts off its sessions."""
        [self.ports[name]] = tcp_ports(1)
        router: zenoh.Session = open_router(self.ports[name], connect=self.ports[network])
        self._exit_stack.callback(router.close)
        return router

    def connect_entity(self, network: str, authority: str, ue_id: int | None = None) -> ZenohEntity:
        """An application on a network."""
        return self._exit_stack.enter_context(ZenohEntity(self.ports[network], authority, ue_id))

    def launch_streamer(
        self,
        authority: str,
        endpoints: Mapping[str, Sequence[str]],
        extra_toml: Mapping[str, str] | None = None,
        throttle_toml: str = "",
        usubscription_toml: str = "",
    ) -> "Gateway":
        """Start a streamer without waiting.

        `endpoints` are authorities by network; `extra_toml` is TOML per endpoint, `throttle_toml` and
        `usubscription_toml` of these plugins.

        An endpoint has the name of its network, or is written as `network:name`.
        """
        config = self._directory / f"{authority}.toml"
        text = self._config_toml(authority, endpoints, extra_toml or {})
        text += f"\n{throttle_toml}\n[plugins.usubscription]\n{usubscription_toml}\n"
        config.write_text(text, encoding="utf-8")
        process = StreamerProcess(config)
        self._exit_stack.callback(_kill_if_alive, process)
        return Gateway(authority, config, process, len(endpoints))

    def reload_streamer(self, gateway: "Gateway", endpoints: Mapping[str, Sequence[str]]) -> None:
        """Reload the streamer with these endpoints, and wait until it has."""
        text = self._config_toml(gateway.authority, endpoints, {}) + "\n[plugins.usubscription]\n"
        gateway.config.write_text(text, encoding="utf-8")
        assert run_command("reload", gateway.config).returncode == 0

    def _config_toml(
        self, authority: str, endpoints: Mapping[str, Sequence[str]], extra_toml: Mapping[str, str]
    ) -> str:
        sections = [f'authority = "{authority}"\nstate_dir = "state-{authority}"']
        for each, authorities in endpoints.items():
            network, _, name = each.partition(":")
            sections.append(
                _ENDPOINT.format(
                    name=name or network,
                    authorities=", ".join(f'"{who}"' for who in authorities),
                    port=self.ports[network],
                    more=extra_toml.get(each, ""),
                )
            )
        return "\n".join([*sections, "[plugins.throttle]"])


class Gateway:
    """A streamer in a process."""

    def __init__(self, authority: str, config: Path, process: StreamerProcess, endpoints: int) -> None:
        self.authority = authority
        self.config = config
        self.process = process
        self._endpoints = endpoints

    def wait_ready(self) -> "Gateway":
        """Wait until the streamer is ready and connected on every endpoint."""
        self.process.wait_ready()
        self.process.stderr.wait_count(lambda line: "link_up" in line, self._endpoints)
        return self

    def known_peers(self, endpoint: str) -> list[str]:
        """Peers on a network by the last log record."""
        records = [
            each
            for each in self.process.log_records
            if each["event"] == "streamer.peers" and each["endpoint"] == endpoint
        ]
        return sorted(records[-1]["present"]) if records else []

    def wait_known_peers(self, endpoint: str, *authorities: str) -> None:
        """Wait until exactly these peers are known on a network."""
        eventually(lambda: self.known_peers(endpoint), sorted(authorities))

    def ledger_and_counters(self) -> tuple[dict[str, int], dict[str, dict[str, int]]]:
        """The ledger, and the counters of each endpoint."""
        found = statistics(self.config.parent / f"state-{self.authority}")
        return found["ledger"], found["endpoints"]

    def refused_counts(self, endpoint: str) -> dict[str, int]:
        """Refused messages of an endpoint by reason, from the last log record."""
        [stopped] = [line for line in self.process.log_records if line["event"] == "streamer.stopped"]
        counted: dict[str, int] = stopped["endpoints"][endpoint]
        return {
            key.removeprefix("refused_"): n for key, n in counted.items() if n and key.startswith("refused_")
        }


def launch_side_by_side(nets: ZenohNetworks, extra_toml: Mapping[str, str] | None = None) -> list[Gateway]:
    """Start g1 and g2, which are connected on both networks."""
    gateways = [nets.launch_streamer(name, SIDE_BY_SIDE, extra_toml) for name in ("g1", "g2")]
    for each in gateways:
        each.wait_ready()
    if extra_toml is None:
        for one, other in (gateways, gateways[::-1]):
            for network in SIDE_BY_SIDE:
                one.wait_known_peers(network, other.authority)
    return gateways


def send_notification(sender: ZenohEntity, sink: Uri) -> Id:
    topic = sender.address.at(0x8009)
    return sender.send_message(
        Attributes(wire.new_id(), wire.NOTIFICATION, topic, sink, priority=wire.CS1), b"note"
    )


def receive_counts(peer: ZenohEntity, ids: Sequence[Id]) -> list[int]:
    """Receive count of each message."""
    counts = Counter(each.attributes.id for each in peer.inbox.items() if each.attributes is not None)
    return [counts[id] for id in ids]


def wait_forwarded(sender: ZenohEntity, listener: ZenohEntity, *authorities: str) -> None:
    """Wait until a notification to each authority arrives: Zenoh needs time to find the listeners."""
    for authority in authorities:
        sent_ids: list[Id] = []

        def arrives(authority: str = authority, sent_ids: list[Id] = sent_ids) -> bool:
            sent_ids.append(send_notification(sender, Uri(authority, 0x99, 1)))
            time.sleep(0.01)
            return any(receive_counts(listener, sent_ids))

        eventually(arrives, True)


def stop_and_drain(
    sender: ZenohEntity, listener: ZenohEntity, *gateways: Gateway, codes: Container[int] = (0,)
) -> None:
    """Stop these streamers, which drain their queues, and wait until all their messages have arrived.

    A new publisher on the network of the listener sends a last message with the same priority. It arrives after all
    others.
    """
    # Not while one of them has messages to read: they would become messages of the other when it stops.
    last_counters: object = None
    since = 0.0

    def is_quiet() -> bool:
        nonlocal last_counters, since
        now = [each.ledger_and_counters() for each in gateways]
        if now != last_counters:
            last_counters, since = now, time.monotonic()
        return time.monotonic() - since > QUIET_S

    eventually(is_quiet, True)
    for each in gateways:
        each.process.stop(codes)
    last = sender.publish(sender.address.at(0x8FFF), b"last")
    eventually(lambda: receive_counts(listener, [last]), [1])


def _kill_if_alive(process: StreamerProcess) -> None:
    if process.is_alive:
        process.kill()
    else:
        process.close_pipes()
