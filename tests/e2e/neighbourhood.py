# SPDX-License-Identifier: Apache-2.0
"""Zenoh networks that stay, applications on them, and streamers between them that come and go."""

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import zenoh

from tests.e2e.peers import ZenohPeer, eventually
from tests.e2e.ports import tcp_ports
from tests.e2e.streamer import StreamerProcess, run_command
from tests.e2e.two_streamers import _router

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
        return "\n".join([*sections, "[plugins.usubscription]"])


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

    def top(self) -> object:
        """What it counts at this moment."""
        found = json.loads(run_command("top", self.config, "--json").stdout)
        return found["ledger"], found["endpoints"]

    def refused(self, endpoint: str) -> dict[str, int]:
        """What it refused there, by its last words."""
        [stopped] = [line for line in self.process.log if line["event"] == "stopped"]
        counted: dict[str, int] = stopped["endpoints"][endpoint]
        return {
            key.removeprefix("refused_"): n for key, n in counted.items() if n and key.startswith("refused_")
        }


def _end(process: StreamerProcess) -> None:
    if process.alive:
        process.kill()
    else:
        process._close()
