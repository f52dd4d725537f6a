# SPDX-License-Identifier: Apache-2.0
"""A copy of a configuration that reaches nothing but loopback.

Each address becomes one of loopback, each port a free one, and the state directory a temporary one. Two addresses that
differ still differ, and two that are equal are still equal. Files of certificates and keys are used where they are. The
copy is for the streamer only: it is written with mode 0600 and never printed.
"""

import ipaddress
import json
import re
import socket
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

_LOCATOR: Final = re.compile(
    r"(?P<protocol>[a-z_]+)/(?P<host>\[[^\]]*\]|[^:/\[\]]*):(?P<port>\d+)(?P<rest>.*)"
)
_URL: Final = re.compile(r"(?P<scheme>ws|wss|rs|rss)://(?P<host>\[[^\]]*\]|[^:/]+):\d+(?P<path>/.*)?")
_DEVICE_KEYS: Final = ("interface", "vlan_priority")
"""Keys of a SOME/IP endpoint that name a device of another machine."""


class LoopbackAddresses:
    """Maps addresses to those of loopback: an address of loopback keeps its host, any other gets one below 127.1."""

    def __init__(self, allocate_port: Callable[[], int]) -> None:
        self._allocate_port = allocate_port
        self._hosts: dict[str, str] = {}
        self._ports: dict[tuple[str, int], int] = {}

    def host(self, host: str) -> str:
        """The host of loopback for an IP address or a name."""
        found = _ip(host)
        if found is not None and found.version == 4 and found.is_loopback:
            return str(found)
        number = len(self._hosts) + 1
        return self._hosts.setdefault(host, f"127.1.{number >> 8}.{number & 0xFF}")

    def port(self, host: str, port: int) -> int:
        """A free port: the same one for the same address."""
        key = (host, port)
        if port == 0 or key not in self._ports:
            self._ports[key] = self._allocate_port()
        return self._ports[key]

    def address(self, text: str) -> str:
        """An address with a port, such as "10.0.0.2:30501"."""
        host, _, port = text.rpartition(":")
        host = host.strip("[]")
        return f"{self.host(host)}:{self.port(host, int(port))}"

    def network(self, text: str) -> str:
        """A network (CIDR): one of loopback stays, any other is that of all mapped hosts."""
        network = ipaddress.ip_network(text, strict=False)
        return text if network.version == 4 and network.is_loopback else "127.1.0.0/16"


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None


class FreePorts:
    """Ports that are free for UDP and TCP on all addresses. They are held until `release`, so that no two are equal."""

    def __init__(self) -> None:
        self._held = ExitStack()

    def allocate(self) -> int:
        while True:
            udp = self._held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            udp.bind(("0.0.0.0", 0))
            port: int = udp.getsockname()[1]
            tcp = self._held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            try:
                tcp.bind(("0.0.0.0", port))
            except OSError:
                continue
            return port

    def release(self) -> None:
        self._held.close()


def copied(
    data: dict[str, Any], base: Path, directory: Path, allocate_port: Callable[[], int]
) -> dict[str, Any]:
    """The data of the copy. `data` is that of the file, whose relative paths start at `base`; it is not changed."""
    copy: dict[str, Any] = json.loads(json.dumps(data, default=str))
    addresses = LoopbackAddresses(allocate_port)
    copy["state_dir"] = str(directory / "state")
    for endpoint in copy.get("endpoints", {}).values():
        match endpoint.get("transport"):
            case "zenoh":
                _move_zenoh(endpoint, base, addresses)
            case "someip":
                _move_someip(endpoint, addresses)
    observe = copy.get("observe")
    if observe is not None:
        observe["listen"] = f"127.0.0.1:{allocate_port()}"
        _make_paths_absolute(observe, base)
    plugins = copy.get("plugins", {})
    if "wamp" in plugins:
        _move_wamp(plugins["wamp"], base, directory, allocate_port)
    if "recorder" in plugins:
        plugins["recorder"]["directory"] = "recordings"
    if "usubscription" in plugins:
        plugins["usubscription"].pop("external", None)  # the other process does not run here
    return copy


def _move_zenoh(endpoint: dict[str, Any], base: Path, addresses: LoopbackAddresses) -> None:
    """Listen on loopback only, and connect to nothing."""
    if "config" in endpoint:
        endpoint["config"] = str(base / endpoint["config"])
    listen = [_moved_locator(each, addresses) for each in endpoint.get("listen", [])]
    endpoint["listen"] = listen or [f"tcp/127.0.0.1:{addresses.port('zenoh', 0)}"]
    endpoint.pop("connect", None)
    if "config" in endpoint:
        endpoint["connect"] = []  # overrides the file
    endpoint["scouting"] = False
    if endpoint.get("mode") == "client":
        endpoint["mode"] = "peer"  # a client needs a router


def _moved_locator(text: str, addresses: LoopbackAddresses) -> str:
    found = _LOCATOR.fullmatch(text)
    if found is None:
        return f"tcp/127.0.0.1:{addresses.port('zenoh', 0)}"
    return f"{found['protocol']}/127.0.0.1:{addresses.port(text, 0)}{found['rest']}"


def _move_someip(endpoint: dict[str, Any], addresses: LoopbackAddresses) -> None:
    bind = endpoint.get("bind", "127.0.0.1")
    for key in ("port", "port_tcp"):
        if key in endpoint:
            endpoint[key] = addresses.port(bind, endpoint[key])
    endpoint["bind"] = addresses.host(bind)
    for key in _DEVICE_KEYS:
        endpoint.pop(key, None)
    if "clients" in endpoint:
        endpoint["clients"] = list(dict.fromkeys(addresses.network(each) for each in endpoint["clients"]))
    if "peer_streamer_addresses" in endpoint:
        endpoint["peer_streamer_addresses"] = [
            addresses.host(each) for each in endpoint["peer_streamer_addresses"]
        ]
    sd = endpoint.get("sd")
    if isinstance(sd, dict):
        sd["interface"] = endpoint["bind"]
        sd["port"] = addresses.port("sd", sd.get("port", 30490))
        sd["multicast"] = "224.244.224.245"
        if "networks" in sd:
            sd["networks"] = list(dict.fromkeys(addresses.network(each) for each in sd["networks"]))
    for service in endpoint.get("services", []):
        _move_service(service, bind, addresses)
    if sd:
        _give_the_probe_an_ecu(endpoint, addresses)


def _move_service(service: dict[str, Any], bind: str, addresses: LoopbackAddresses) -> None:
    for key in ("remote", "remote_tcp"):
        if key in service:
            service[key] = addresses.address(service[key])
    for key in ("port", "port_tcp"):
        if key in service:
            service[key] = addresses.port(bind, service[key])
    for receiver in service.get("receivers", []):
        receiver["address"] = addresses.address(receiver["address"])
    for group in service.get("eventgroups", []):
        if "multicast" in group:
            port = addresses.port(group["multicast"], 1)
            group["multicast"] = f"239.244.224.{1 + port % 200}:{port}"


def _give_the_probe_an_ecu(endpoint: dict[str, Any], addresses: LoopbackAddresses) -> None:
    """With service discovery, the first service of the network gets an address: the probe is no SD client."""
    services = [
        each for each in endpoint.get("services", []) if not each.get("offered") and each.get("events")
    ]
    if services and not any("remote" in each for each in services):
        services[0]["remote"] = addresses.address("127.0.0.1:1")


def _move_wamp(
    section: dict[str, Any], base: Path, directory: Path, allocate_port: Callable[[], int]
) -> None:
    listen = section.get("listen", [])
    urls = [listen] if isinstance(listen, str) else listen
    section["listen"] = [
        _moved_url(each, number, directory, allocate_port) for number, each in enumerate(urls)
    ]
    _make_paths_absolute(section, base)


def _moved_url(url: str, number: int, directory: Path, allocate_port: Callable[[], int]) -> str:
    found = _URL.fullmatch(url)
    if found is None:
        return f"{url.partition('+')[0]}+unix://{directory}/wamp{number}.sock"
    return f"{found['scheme']}://127.0.0.1:{allocate_port()}{found['path'] or ''}"


def _make_paths_absolute(section: Any, base: Path) -> None:
    """Relative paths of secrets, certificates and keys start at the file of the configuration."""
    if isinstance(section, list):
        for each in section:
            _make_paths_absolute(each, base)
    if not isinstance(section, dict):
        return
    for key, value in section.items():
        if key in {"file", "certificate", "key", "client_ca"} and isinstance(value, str):
            section[key] = str(base / value)
        else:
            _make_paths_absolute(value, base)


# --- TOML -------------------------------------------------------------------------------------------------------------


def toml_text(data: dict[str, Any]) -> str:
    """TOML of plain data: a line for each key, nested tables inline."""
    return "".join(f"{_key(name)} = {_value(value)}\n" for name, value in data.items())


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)


def _value(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case dict():
            return "{" + ", ".join(f"{_key(name)} = {_value(each)}" for name, each in value.items()) + "}"
        case list():
            return "[" + ", ".join(map(_value, value)) + "]"
        case str():
            return json.dumps(value)
        case _:
            return repr(value)
