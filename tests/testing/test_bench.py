# SPDX-License-Identifier: Apache-2.0
"""The fixtures: a streamer on loopback with its surroundings, virtual time, the ledger law as an assertion."""

import subprocess
import sys
from collections.abc import Mapping

import msgspec
import pytest

from tests.e2e.rigs.ports import tcp_ports, udp_ports
from ustreamer.core.delivery.delivery import Delivery
from ustreamer.core.delivery.ledger import EMPTY_LEDGER, LedgerSnapshot, Verdict
from ustreamer.core.delivery.ports import Filter
from ustreamer.core.routing.subscriptions import Subscription
from ustreamer.hooks import PluginContext, hookimpl
from ustreamer.host.config.config import ConfigError
from ustreamer.testing import plugin
from ustreamer.testing.bench import StreamerBench, free_ports
from ustreamer.testing.ledger import assert_accounted
from ustreamer.testing.messages import new_id
from ustreamer.testing.virtual_time import DispatcherBench, VirtualTime
from ustreamer.uprotocol.umessage import UMessage, publish, response
from ustreamer.uprotocol.uuri import UUri

DOOR = UUri("chassis", 0x2001, 1, 0x8001)
CLIMATE = UUri("chassis", 0x3001, 1, 1)
SWITCH = UUri("hpc", 0x4001, 1, 2)

VEHICLE = """
authority = "hpc"
state_dir = "state"

[endpoints.backbone]
transport = "local"
network = "{backbone}"
authorities = ["hpc"]

[endpoints.cloud]
transport = "zenoh"
listen = ["{locator}"]
authorities = ["cloud"]

[endpoints.chassis]
transport = "someip"
authorities = ["chassis"]
bind = "127.0.0.1"
port = {port}
sd = false

[[endpoints.chassis.services]]
service = 0x2001
major = 1
events = [{{ id = 0x8001 }}]
remote = "127.0.0.1:{ecu}"

[[endpoints.chassis.services]]
service = 0x3001
major = 1
methods = [1]
remote = "127.0.0.1:{ecu}"

[plugins.usubscription]
map_size_mb = 1
"""


def test_a_streamer_with_local_zenoh_and_someip_surroundings(streamer_bench: StreamerBench) -> None:
    [tcp], [port, ecu_port] = tcp_ports(1), udp_ports(2)
    locator = f"tcp/127.0.0.1:{tcp}"
    streamer_bench.start_streamer(
        VEHICLE.format(
            backbone=streamer_bench.network("backbone").name, locator=locator, port=port, ecu=ecu_port
        )
    )
    ecu = streamer_bench.someip_ecu(port, {(0x3001, 1): bytes.upper}, ecu_port)
    app = streamer_bench.entity("backbone", "hpc")
    fleet = streamer_bench.zenoh_entity(locator, "cloud", usubscription="hpc")
    for each in (app, fleet):
        each.subscribe(DOOR)
    ecu.send_event(0x2001, 0x8001, b"open")
    assert [each.wait_received(1) for each in (app, fleet)] == [[b"open"], [b"open"]]
    assert fleet.call(CLIMATE, b"warm").payload == b"WARM"
    app.serve(SWITCH, lambda request: response(new_id(), request, b"on"))
    assert fleet.call(SWITCH).payload == b"on"
    app.unsubscribe(DOOR)


def test_errors_of_a_configuration_are_those_of_check(streamer_bench: StreamerBench) -> None:
    with pytest.raises(ConfigError, match="netwrok"):
        streamer_bench.make_streamer('authority = "hpc"\nnetwrok = 1\n')


def test_free_ports_are_different() -> None:
    for protocol in ("tcp", "udp"):
        assert len(set(free_ports(protocol, 5))) == 5


def test_an_entity_that_cannot_reach_a_streamer_fails_with_what_it_waited_for(
    streamer_bench: StreamerBench,
) -> None:
    entity = streamer_bench.entity("backbone", "hpc")
    with pytest.raises(AssertionError, match="1 messages"):
        entity.wait_received(1, within_s=0.1)


# --- the ledger -------------------------------------------------------------------------------------------------------


BALANCED = LedgerSnapshot(7, 1, 1, 1, 1, 1, 1, 1)


def test_a_balanced_ledger_is_accounted_for_in_both_forms() -> None:
    for ledger in (EMPTY_LEDGER, BALANCED):
        assert_accounted(ledger)
        assert_accounted({**msgspec.to_builtins(ledger), "more": 3})
    assert_accounted(BALANCED, queued=1)


@pytest.mark.parametrize(
    "ledger", [LedgerSnapshot(8, 1, 1, 1, 1, 1, 1, 1), LedgerSnapshot(6, 1, 1, 1, 1, 1, 1, 1)]
)
def test_a_message_without_a_verdict_or_with_two_fails_with_all_counts(ledger: LedgerSnapshot) -> None:
    with pytest.raises(AssertionError, match=r"[68] received are not 1 delivered \+ .* 1 queued"):
        assert_accounted(ledger)


def test_queued_messages_fail_where_none_may_wait() -> None:
    with pytest.raises(AssertionError, match="1 queued, expected 0"):
        assert_accounted(BALANCED, queued=0)


# --- virtual time -----------------------------------------------------------------------------------------------------


def test_scheduled_calls_are_made_at_their_times_in_order(virtual_time: VirtualTime) -> None:
    calls: list[tuple[str, int]] = []

    def note(name: str) -> None:
        calls.append((name, virtual_time.now_ns // 1_000_000))
        if name == "first":
            virtual_time.schedule(virtual_time.now_ns + 5_000_000, lambda: note("again"))

    for name, ms in (("last", 30), ("first", 10), ("never", 41)):
        virtual_time.schedule(ms * 1_000_000, lambda each=name: note(each))  # type: ignore[misc]
    virtual_time.advance(ms=40)
    assert calls == [("first", 10), ("again", 15), ("last", 30)]
    assert virtual_time.now_ns == 40_000_000


class OncePerSecond(Filter):
    """Holds a message for a second."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery
        self._held: UMessage | None = None

    def admit(self, message: UMessage, now_ns: int) -> Verdict | None:
        if self._held is not None:
            return Verdict.THROTTLED
        self._held = message
        self._delivery.wake_at(now_ns + 1_000_000_000, self)
        return Verdict.QUEUED

    def release_due(self, now_ns: int) -> UMessage | None:
        held, self._held = self._held, None
        return held


class SlowPlugin:
    class Config(msgspec.Struct, frozen=True): ...

    def __init__(self, config: Config, context: PluginContext) -> None:
        self.verdicts: list[Verdict] = []

    @hookimpl
    def ustreamer_filters(self, delivery: Delivery) -> Filter:
        return OncePerSecond(delivery)

    @hookimpl
    def ustreamer_taps(self, endpoint: str) -> "SlowPlugin":
        return self

    def __call__(self, message: UMessage, delivery: Delivery | None, verdict: Verdict, *more: object) -> None:
        self.verdicts.append(verdict)


def test_a_plugin_alone_in_virtual_time(virtual_time: VirtualTime) -> None:
    slow = SlowPlugin(SlowPlugin.Config(), virtual_time.context())
    places: Mapping[str, str] = {"chassis": "chassis", "hpc": "backbone"}
    bench = DispatcherBench(virtual_time, places, [slow], [Subscription(DOOR, UUri("hpc", 1, 1, 0))])
    first, second = publish(new_id(), DOOR), publish(new_id(), DOOR)
    bench.dispatch(first)
    bench.dispatch(second)
    assert bench.sent("backbone") == []
    assert_accounted(bench.ledger(), queued=1)
    virtual_time.advance(ms=999)
    assert bench.sent("backbone") == []
    virtual_time.advance(ms=1)
    assert bench.sent("backbone") == [first]
    assert slow.verdicts == [Verdict.THROTTLED, Verdict.DELIVERED]
    assert_accounted(bench.ledger(), queued=0)


# --- the pytest plugin ------------------------------------------------------------------------------------------------


def test_the_pytest_plugin_is_installed(request: pytest.FixtureRequest) -> None:
    assert request.config.pluginmanager.get_plugin("ustreamer") is plugin


def test_the_pytest_plugin_loads_nothing_of_the_streamer() -> None:
    program = (
        "import sys, ustreamer.testing.plugin; print(sorted(m for m in sys.modules if 'ustreamer' in m))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['ustreamer', 'ustreamer.testing', 'ustreamer.testing.plugin']"
