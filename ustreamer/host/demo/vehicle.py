# SPDX-License-Identifier: Apache-2.0
"""The vehicle of the demo: its networks, ECU, applications and subscriptions; and the report of a run."""

import json
import socket
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec

from ustreamer.core.delivery.ledger import LedgerSnapshot
from ustreamer.host.demo import chassis
from ustreamer.host.demo.apps import ClimateControl, DemoApp
from ustreamer.host.demo.chassis import Chassis
from ustreamer.host.runtime import process
from ustreamer.host.runtime.control import Control
from ustreamer.uprotocol.uuri import UUri

AUTHORITY: Final = "hpc.vin1"
TOLERANCE: Final = 0.02
"""The tolerated deviation of a delivered rate from min(published, requested)."""

_CONFIG: Final = """\
# The configuration of `ustreamer demo`.
authority = "hpc.vin1"
state_dir = "state"

[endpoints.backbone]
transport = "zenoh"
authorities = ["hpc.vin1"]
listen = ["tcp/127.0.0.1:{backbone}"]

[endpoints.cloud]
transport = "zenoh"
authorities = ["cloud"]
listen = ["tcp/127.0.0.1:{cloud}"]

[endpoints.chassis]
transport = "someip"
authorities = ["chassis"]
bind = "127.0.0.1"
port = {someip}
sd = false

[[endpoints.chassis.services]]          # wheel speeds, steering angle
service = 0x1234
major = 1
events = [
    {{ id = 0x8001, eventgroup = 1 }}, {{ id = 0x8002, eventgroup = 1 }},
    {{ id = 0x8003, eventgroup = 1 }}, {{ id = 0x8004, eventgroup = 1 }},
    {{ id = 0x8005, eventgroup = 1 }},
]
remote = "127.0.0.1:{ecu}"

[[endpoints.chassis.services]]          # doors
service = 0x2001
major = 1
events = [{{ id = 0x8001, eventgroup = 1 }}]
remote = "127.0.0.1:{ecu}"

[[endpoints.chassis.services]]          # climate
service = 0x3001
major = 1
methods = [0x0001]
remote = "127.0.0.1:{ecu}"

[plugins.usubscription]
[plugins.throttle]
[plugins.recorder]
directory = {recordings}
payloads = ["//chassis/1234/1/*", "//chassis/2001/1/*"]      # signals for the pipeline

[plugins.payloads]                      # what the chassis says, for those who show it
topics = [
    {{ topic = "//chassis/1234/1/8001", type = "Wheel" }}, {{ topic = "//chassis/1234/1/8002", type = "Wheel" }},
    {{ topic = "//chassis/1234/1/8003", type = "Wheel" }}, {{ topic = "//chassis/1234/1/8004", type = "Wheel" }},
    {{ topic = "//chassis/1234/1/8005", type = "Steering" }},
    {{ topic = "//chassis/2001/1/8001", type = "Door" }},
]

[plugins.payloads.types.Wheel]
kind = "struct"
members = [{{ name = "speed", type = "f32", unit = "m/s" }}]

[plugins.payloads.types.Steering]
kind = "struct"
members = [{{ name = "angle", type = "i16", unit = "deg" }}]

[plugins.payloads.types.Side]
kind = "enum"
of = "u8"
values = {{ front_left = 0, front_right = 1, rear_left = 2, rear_right = 3 }}

[plugins.payloads.types.Door]
kind = "struct"
members = [{{ name = "door", type = "Side" }}, {{ name = "open", type = "bool" }}]
"""

_WEB: Final = """
[plugins.wamp]                          # dashboards in browsers, on this machine only
listen = "ws://127.0.0.1:{web}/ws"
anonymous = true
page = true
"""

_OBSERVE: Final = """
[observe]                               # metrics and the page for operators, on this machine only
listen = "127.0.0.1:{metrics}"
page = true
"""
_JOIN_S: Final = 5.0


class DemoSubscription(msgspec.Struct, frozen=True):
    """One application's subscription; `max_frequency` in Hz, None without a limit."""

    app: str
    service: int
    event: int
    max_frequency: float | None


SUBSCRIPTIONS: Final = (
    DemoSubscription("dashboard", chassis.WHEELS, 0x8001, None),
    DemoSubscription("dashboard", chassis.WHEELS, 0x8002, 40.0),
    DemoSubscription("dashboard", chassis.DOORS, chassis.DOOR_EVENT, None),
    DemoSubscription("adas", chassis.WHEELS, 0x8003, 100.0),
    DemoSubscription("adas", chassis.WHEELS, 0x8004, 77.0),
    DemoSubscription("fleet", chassis.WHEELS, 0x8001, 10.0),
)


class TargetRow(msgspec.Struct, frozen=True):
    """The rate at one subscriber of one topic, in Hz; `requested_hz` is None without a limit."""

    topic: str
    subscriber: str
    published_hz: float
    requested_hz: float | None
    delivered_hz: float

    @property
    def expected_hz(self) -> float:
        return self.published_hz if self.requested_hz is None else min(self.published_hz, self.requested_hz)

    @property
    def is_right(self) -> bool:
        return (
            abs(self.delivered_hz - self.expected_hz) <= TOLERANCE * self.expected_hz
            and self.delivered_hz > 0
        )


class RpcRow(msgspec.Struct, frozen=True):
    """Calls of the climate method from Zenoh to SOME/IP."""

    sent: int
    answered: int


class DemoOutcome(msgspec.Struct, frozen=True):
    """The report of a demo run: the object that `--json` prints."""

    ledger: LedgerSnapshot
    unaccounted: int
    targets: tuple[TargetRow, ...]
    rpc: RpcRow
    endpoints: dict[str, dict[str, int]]

    @property
    def defects(self) -> list[str]:
        """What no slow machine explains, as text."""
        return [f"{self.unaccounted} deliveries are unaccounted for"] if self.unaccounted else []

    @property
    def deviations(self) -> list[str]:
        """Rates and calls that differ from what was asked for, as text. A busy machine can cause them."""
        found = [
            f"{row.topic} for {row.subscriber}: {row.delivered_hz:.2f} Hz delivered, {row.expected_hz:.2f} expected"
            for row in self.targets
            if not row.is_right
        ]
        if not 0 < self.rpc.sent == self.rpc.answered:
            found.append(f"{self.rpc.sent} calls sent, {self.rpc.answered} answered")
        return found


class DemoVehicle:
    """The running demo: `with Vehicle() as vehicle`. Networks are loopback sockets; state is a temporary directory."""

    def __init__(
        self, recordings: Path | None = None, web: int | None = None, metrics: int | None = None
    ) -> None:
        """`recordings` is a directory for recordings to keep; by default they are deleted with the rest.

        `web` is the port of a page of live values, `metrics` that of metrics and the page for operators. 0: any port;
        None: no page.
        """
        ports = _free_ports()
        if metrics:
            ports["metrics"] = metrics
        if web:
            ports["web"] = web
        self.page = None if web is None else f"http://127.0.0.1:{ports['web']}/"
        self.metrics_page = None if metrics is None else f"http://127.0.0.1:{ports['metrics']}/"
        where = "recordings" if recordings is None else str(recordings.resolve())
        self._directory = tempfile.TemporaryDirectory(prefix="ustreamer-demo-")
        self.config_file = Path(self._directory.name) / "vehicle.toml"
        config = "".join((_CONFIG, "" if web is None else _WEB, "" if metrics is None else _OBSERVE))
        self.config_file.write_text(config.format(**ports, recordings=json.dumps(where)), encoding="utf-8")
        loaded = process.load(self.config_file)
        self.streamer = loaded.streamer()
        control = Control(self.streamer, self.config_file, lambda path: process.load(path).config)
        self._observe = process.observe_server(loaded.config, self.streamer, control)
        self.chassis = Chassis(("127.0.0.1", ports["ecu"]), ("127.0.0.1", ports["someip"]))
        usubscription = UUri(AUTHORITY, 0, 3, 0)
        backbone, cloud = f"tcp/127.0.0.1:{ports['backbone']}", f"tcp/127.0.0.1:{ports['cloud']}"
        self.apps = {
            "dashboard": DemoApp("dashboard", UUri(AUTHORITY, 0x10A1, 1, 0), backbone, usubscription),
            "adas": DemoApp("adas", UUri(AUTHORITY, 0x10A2, 1, 0), backbone, usubscription),
            "fleet": DemoApp("fleet", UUri("cloud", 0x20B1, 1, 0), cloud, usubscription),
        }
        climate = UUri("chassis", chassis.CLIMATE, chassis.MAJOR, chassis.SET_TEMPERATURE)
        self._climate = ClimateControl(self.apps["dashboard"], climate)

    def __enter__(self) -> Self:
        try:
            if self._observe is not None:
                self._observe.open()
            self.streamer.start()
            if self._observe is not None:
                self._observe.start()
            for app in self.apps.values():
                app.start()
            for subscription in SUBSCRIPTIONS:
                self.apps[subscription.app].subscribe(_topic(subscription), subscription.max_frequency)
            self.chassis.start()
            self._climate.start()
        except BaseException:
            self._close()
            raise
        return self

    def rows(self) -> tuple[TargetRow, ...]:
        """The current rates."""
        return tuple(
            TargetRow(
                topic=str(_topic(subscription)),
                subscriber=str(self.apps[subscription.app].address),
                published_hz=round(self.chassis.rate(subscription.service, subscription.event).hz, 3),
                requested_hz=subscription.max_frequency,
                delivered_hz=round(self.apps[subscription.app].rate(_topic(subscription)).hz, 3),
            )
            for subscription in SUBSCRIPTIONS
        )

    def finish(self) -> DemoOutcome:
        """Stop publishing and calling, stop and drain the streamer, and read the ledger."""
        self._climate.stop()
        self.chassis.stop_publishing()
        rows = self.rows()
        self._close_observe()
        self.streamer.stop()
        ledger = self.streamer.ledger()
        return DemoOutcome(
            ledger=ledger,
            unaccounted=ledger.unaccounted,
            targets=rows,
            rpc=RpcRow(self._climate.sent, self._climate.answered),
            endpoints=self.streamer.endpoints(),
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _close_observe(self) -> None:
        if self._observe is not None:
            self._observe.close(_JOIN_S)

    def _close(self) -> None:
        self.chassis.close()
        for app in self.apps.values():
            app.close()
        self._close_observe()
        self.streamer.stop(drain_s=0)
        self._directory.cleanup()


def _topic(subscription: DemoSubscription) -> UUri:
    return UUri("chassis", subscription.service, chassis.MAJOR, subscription.event)


def _free_ports() -> dict[str, int]:
    """Six unused ports. All are held until the last is found, so that no two are equal."""
    sockets = {
        "backbone": socket.socket(socket.AF_INET, socket.SOCK_STREAM),
        "cloud": socket.socket(socket.AF_INET, socket.SOCK_STREAM),
        "someip": socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
        "ecu": socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
        "web": socket.socket(socket.AF_INET, socket.SOCK_STREAM),
        "metrics": socket.socket(socket.AF_INET, socket.SOCK_STREAM),
    }
    try:
        for each in sockets.values():
            each.bind(("127.0.0.1", 0))
        return {name: each.getsockname()[1] for name, each in sockets.items()}
    finally:
        for each in sockets.values():
            each.close()
