# SPDX-License-Identifier: Apache-2.0
"""Testbeds whose streamers run from a checkout, and rigs with the traffic models (`benchmarks.traffic.models`)."""

import socket
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.harness.child_process import Child, module_command
from benchmarks.harness.reference import reference_command
from benchmarks.harness.shared_counters import NEWEST_PLUS_1, RECEIVED, STEADY_SENT, SharedCounters
from benchmarks.harness.testbed import (
    CLOUD_ENDPOINT,
    CONFIG,
    ZENOH_CONFIG,
    BenchRig,
    Direction,
    Ports,
    Rig,
    Subject,
    free_ports,
    wait_connected,
)
from benchmarks.traffic import sockets, wire
from benchmarks.traffic.models import TrafficModel, method

STREAMERS: Final = (Subject.STREAMER, Subject.RECORDED)
"""Forwarders with uSubscription and the throttle."""
PLUGINS: Final = ("usubscription", "throttle", "recorder", "wamp", "payloads")
_START_S: Final = 120.0
_SOMEIP_HEAD: Final = CONFIG[: CONFIG.index("[[endpoints.chassis.services]]")]
_BARE_KINDS: Final = {
    Direction.ZENOH_TO_ZENOH: "zenoh-to-zenoh",
    Direction.SOMEIP_TO_ZENOH: "udp-to-zenoh",
    Direction.ZENOH_TO_SOMEIP: "zenoh-to-udp",
}


def start_code(tree: Path) -> str:
    """The entry point that the checkout installs as `ustreamer`. Raises OSError or KeyError if there is none."""
    scripts = tomllib.loads((tree / "pyproject.toml").read_text())["project"]["scripts"]
    module, function = scripts["ustreamer"].split(":")
    return f"import sys; from {module} import {function}; sys.exit({function}())"


def log_option(tree: Path) -> str:
    """The option of `run` for the format of the log: older checkouts have `--log`."""
    parser = tree / "ustreamer/host/cli/main.py"
    renamed = parser.exists() and '"--log-format"' in parser.read_text(encoding="utf-8")
    return "--log-format" if renamed else "--log"


class CheckoutTestbed(BenchRig):
    """A testbed whose streamers run from the checkout `tree`."""

    def __init__(self, directory: Path, payload: int = 0) -> None:
        super().__init__(directory, payload)
        self.tree = Path()
        self._name_count = 0

    def streamer_command(self, path: Path) -> list[str]:
        """-P, otherwise the working directory would precede the checkout."""
        paths = [self.tree, *(self.tree / "plugins" / each for each in PLUGINS)]
        pythonpath = ":".join(str(each.absolute()) for each in paths)
        options = ["run", str(path), log_option(self.tree), "json"]
        return [
            "/usr/bin/env",
            f"PYTHONPATH={pythonpath}",
            sys.executable,
            "-P",
            "-c",
            start_code(self.tree),
            *options,
        ]

    def start_streamer(self, name: str, config: str, ports: Ports) -> Child:
        return super().start_streamer(self._numbered(name), config, ports)

    def _open_counters(self, name: str) -> SharedCounters:
        return super()._open_counters(self._numbered(name))

    def _numbered(self, name: str) -> str:
        self._name_count += 1
        return f"{name}-{self._name_count}"

    def topics_rig(
        self,
        model: TrafficModel,
        direction: Direction,
        subject: Subject,
        idle_endpoints: int = 0,
        priority: int = wire.CS1,
    ) -> Rig:
        """The traffic of a model through a streamer of the checkout or another forwarder.

        `priority` is that of publications from Zenoh, a number of UPriority.
        """
        ports, other = Ports.free(), Ports.free()
        ecus = free_ports([socket.SOCK_DGRAM] * model.services)
        if direction is Direction.ZENOH_TO_ZENOH:
            model = model.set_apart()
        name = f"{subject.name.lower()}-{model.name}"
        if subject is Subject.BARE:
            forwarder = self._bare_topics(name, direction, ports, other.zenoh)
        elif subject is Subject.REFERENCE:
            name = self._numbered(name)
            command = reference_command(self._directory / name, model, ports.zenoh, other.zenoh)
            forwarder = self.start_process(f"{name}-forwarder", command)
        else:
            idle = free_ports([socket.SOCK_STREAM] * idle_endpoints)
            config = topics_config(model, direction, ecus, other.zenoh) + idle_endpoints_config(idle)
            recorder = "[plugins.recorder]\n" if subject is Subject.RECORDED else ""
            forwarder = self.start_streamer(name, config + recorder, ports)
        counters = self._open_counters(name)
        sink = self._topics_sink(counters, model, direction, subject, ports, other.zenoh)
        generator = self._topics_generator(counters, model, direction, ports, ecus, priority)
        progress = NEWEST_PLUS_1 if model.limits else RECEIVED
        return wait_connected(
            Rig(direction, subject, generator, sink, counters, forwarder, progress, STEADY_SENT)
        )

    def _bare_topics(self, name: str, direction: Direction, ports: Ports, other: int) -> Child:
        arguments = {
            Direction.ZENOH_TO_ZENOH: (ports.zenoh, other),
            Direction.SOMEIP_TO_ZENOH: (ports.zenoh, ports.someip),
            Direction.ZENOH_TO_SOMEIP: (ports.zenoh, ports.someip, ports.receiver),
        }[direction]
        command = module_command("traffic.bare_topic_forwarders", _BARE_KINDS[direction], *arguments)
        return self.start_process(self._numbered(f"{name}-forwarder"), command)

    def _topics_sink(
        self,
        counters: SharedCounters,
        model: TrafficModel,
        direction: Direction,
        subject: Subject,
        ports: Ports,
        other: int,
    ) -> Child:
        if direction is Direction.ZENOH_TO_SOMEIP:
            arguments: list[object] = ["udp-sink", counters.path, model.name, ports.receiver]
        else:
            port, *authorities = (
                (other, wire.STREAMER, wire.CLOUD)
                if direction is Direction.ZENOH_TO_ZENOH
                else (ports.zenoh, wire.ECU, wire.STREAMER)
            )
            options = ("subscribe",) if subject in STREAMERS else ()
            arguments = ["zenoh-sink", counters.path, model.name, port, *authorities, *options]
        command = module_command("traffic.many_topics", *arguments)
        return self.start_process(f"{counters.path.stem}-sink", command, _START_S)

    def _topics_generator(
        self,
        counters: SharedCounters,
        model: TrafficModel,
        direction: Direction,
        ports: Ports,
        ecus: Sequence[int],
        priority: int,
    ) -> Child:
        if direction is Direction.SOMEIP_TO_ZENOH:
            arguments: list[object] = ["udp", counters.path, model.name, ports.someip, *ecus]
        else:
            authority = wire.CLOUD if direction is Direction.ZENOH_TO_ZENOH else wire.ECU
            arguments = ["zenoh", counters.path, model.name, ports.zenoh, authority, priority]
        command = module_command("traffic.many_topics", *arguments)
        return self.start_process(f"{counters.path.stem}-generator", command, _START_S)


def topics_config(model: TrafficModel, direction: Direction, ecus: Sequence[int], other: int) -> str:
    """The configuration of a streamer for a model in one direction; each service has its ECU at one of these ports."""
    if direction is Direction.ZENOH_TO_ZENOH:
        return ZENOH_CONFIG + CLOUD_ENDPOINT.replace("{other}", str(other))
    receiver = f"{sockets.LOOPBACK}:{{receiver}}"
    services = []
    for number, port in enumerate(ecus):
        first = number * model.service_topics
        topics = range(first, min(first + model.service_topics, model.topics))
        service = model.address(first).service
        events = ", ".join(f"{{{{ id = {model.address(topic).resource:#06x} }}}}" for topic in topics)
        if direction is Direction.SOMEIP_TO_ZENOH:
            services.append(
                _service(service, f"events = [{events}]", f'remote = "{sockets.LOOPBACK}:{port}"')
            )
            continue
        limit_hz = model.limit_hz(first)
        limit = "" if limit_hz is None else f", max_frequency = {limit_hz}"
        services.append(
            _service(
                service,
                f"events = [{events}]",
                f'receivers = [{{{{ address = "{receiver}"{limit} }}}}]',
                *_offered(service),
            )
        )
    if model.calls:
        called = method(wire.STREAMER)
        is_offered = direction is Direction.SOMEIP_TO_ZENOH
        ends = _offered(called.service) if is_offered else [f'remote = "{receiver}"']
        services.append(_service(called.service, f"methods = [{called.resource:#06x}]", *ends))
    head = _SOMEIP_HEAD.replace("sd = false\n", f'sd = false\nclients = ["{sockets.LOOPBACK}"]\n')
    return head + "".join(services) + "\n[plugins.usubscription]\n[plugins.throttle]\n"


def _service(service: int, *lines: str) -> str:
    head = ["[[endpoints.chassis.services]]", f"service = {service:#06x}", f"major = {wire.MAJOR}"]
    return "\n".join(["", *head, *lines, ""])


def _offered(service: int) -> list[str]:
    return ["offered = true", f'provider = "up://{wire.STREAMER}/{service:X}/{wire.MAJOR}/0"']


def idle_endpoints_config(ports: Sequence[int]) -> str:
    """More Zenoh networks, which have no traffic."""
    return "".join(
        CLOUD_ENDPOINT.replace("{other}", str(port))
        .replace("endpoints.cloud", f"endpoints.idle{number}")
        .replace(wire.CLOUD, f"idle{number}")
        for number, port in enumerate(ports)
    )
