# SPDX-License-Identifier: Apache-2.0
"""A sending and one or two receiving streamers with receipts, all durable. Processes are killed, some in an outage.

Without receipts, what the router and a receiving streamer had taken is lost with them. Each application must receive
each message once.
"""

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random
from threading import Event
from typing import Final

import pytest

from tests.e2e.delivery.outage_scenarios import TOPIC, ZenohProcess
from tests.e2e.delivery.stop_scenarios import StopScenario, events_on_disk
from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import USUBSCRIPTION, ZenohEntity
from tests.e2e.rigs.ports import tcp_ports
from tests.e2e.rigs.power_cut import PowerCut, has_strace
from tests.e2e.rigs.streamer import START_S, StreamerProcess, statistics

HZ: Final = 200
_RECEIVER: Final = """\
authority = "{authority}"
state_dir = "{authority}"

[endpoints.link]
transport = "zenoh"
authorities = ["hpc.vin1", "chassis"]
mode = "client"
connect = ["tcp/127.0.0.1:{router}"]
durable = true
receipts = true

[endpoints.apps]
transport = "zenoh"
authorities = ["{authority}"]
listen = ["tcp/127.0.0.1:{apps}"]
durable = true

[egress.apps]
max_age_ms = 600_000

[plugins.usubscription]
"""


class ReceiptScenario(StopScenario):
    """As StopScenario, with a second streamer behind the router and an application behind that one."""

    def __init__(
        self,
        directory: Path,
        stack: ExitStack,
        retransmit_bytes: int = 16_000_000,
        retransmit_ms: int = 15_000,
    ) -> None:
        super().__init__(
            directory,
            stack,
            durable=True,
            receipts=True,
            retransmit_bytes=retransmit_bytes,
            retransmit_ms=retransmit_ms,
        )
        self.subscriber.kill()  # the messages are for the receiving streamer alone
        self._receiver_config = directory / "cloud.toml"
        self._receiver, self.app = self._add_receiver(self._receiver_config)
        stack.callback(lambda: self._receiver.kill() if self._receiver.is_alive else None)
        self._wait_first_receipts()
        self.app.wait_received(self.sent - 1)
        self.first = self.app.received[0]

    def _add_receiver(self, config: Path) -> tuple[StreamerProcess, ZenohProcess]:
        """A receiving streamer with the authority of the name of its configuration, and its application."""
        [apps] = tcp_ports(1)
        authority = config.stem
        config.write_text(
            _RECEIVER.format(authority=authority, router=self.port, apps=apps), encoding="utf-8"
        )
        receiver = StreamerProcess(config).wait_ready()
        with ZenohEntity(apps, authority) as app:
            subscribe = USUBSCRIPTION._replace(authority=authority).at(wire.SUBSCRIBE)
            app.call(subscribe, wire.subscription_request(TOPIC))
        return receiver, self.start_process("client", apps)

    def _wait_first_receipts(self) -> None:
        until = time.monotonic() + START_S
        count, receipts = round(HZ * 0.1), 0
        while (
            receipts < count
        ):  # until the first streamer knows the subscription and the receipts of the second one
            assert time.monotonic() < until, statistics(self._state)
            before = self._receipts()
            self.send(HZ, 0.1)
            self.wait_accepted()
            self.wait_receipts()
            receipts = self._receipts() - before

    def _receipts(self) -> int:
        received: int = statistics(self._state)["endpoints"]["backbone"]["receipts_received"]
        return received

    def _start_receiver(self) -> StreamerProcess:
        return StreamerProcess(self._receiver_config).wait_ready()

    def freeze_receiver(self) -> None:
        """Freeze it when its own disk is empty: what is there is sent again after a kill, also to an application."""
        until = time.monotonic() + START_S
        while True:
            os.kill(self._receiver.pid, signal.SIGSTOP)
            os.waitid(os.P_PID, self._receiver.pid, os.WSTOPPED | os.WNOWAIT)  # a busy machine stops it later
            found = events_on_disk(self._receiver_config.parent / "cloud", "apps")
            if not found:
                return
            self.thaw_receiver()
            assert time.monotonic() < until, found

    def thaw_receiver(self) -> None:
        os.kill(self._receiver.pid, signal.SIGCONT)

    def restart_receiver(self) -> None:
        """SIGKILL, and a new start."""
        self._receiver.kill()
        self._receiver = self._start_receiver()

    def restart_router(self) -> None:
        """SIGKILL, and a new start."""
        self.router.kill()
        self.router = self.start_process("router")

    def cut_power_in_an_outage(self, seed: int) -> int:
        """Cut the power of both streamers, 1.5 s after their router ended; returns how many writes the disks lost."""
        self._wait_quiet()
        self._streamer.kill()
        self._receiver.kill()
        traced = []
        places = (
            (self._state / "spool/backbone/data.mdb",),
            (
                self._receiver_config.parent / "cloud/spool/apps/data.mdb",
                self._receiver_config.parent / "cloud/received/link",
            ),
        )
        for number, files in enumerate(places):
            traced.append(PowerCut(self._state.parent / f"traces{number}", files))
        self._streamer = StreamerProcess(self._config, prefix=traced[0].prefix).wait_ready()
        self._receiver = StreamerProcess(self._receiver_config, prefix=traced[1].prefix).wait_ready()
        self.sent_earlier = self.sent
        self._wait_first_receipts()
        self.send(HZ, 1.0)
        before, ended = self.sent, time.monotonic()
        self.router.kill()
        self.send(HZ, 1.0)
        self.wait_accepted()
        self.wait_on_disk(range(before, self.sent))
        Event().wait(
            max(0.0, ended + 1.5 - time.monotonic())
        )  # the bound of docs/delivery/durable.md is a time
        self._streamer.kill()
        self._receiver.kill()
        rng = Random(seed)
        lost = sum(each.cut(rng) for each in traced)
        self.router = self.start_process("router")
        self._streamer = StreamerProcess(self._config).wait_ready()
        self._receiver = self._start_receiver()
        return lost

    def _wait_quiet(self) -> None:
        """Until a kill repeats nothing: all is sent, has a receipt, and is recorded by the receiver."""
        self.wait_receipts()
        self.wait_disk_empty()
        until = time.monotonic() + START_S
        while events_on_disk(self._receiver_config.parent / "cloud", "apps"):
            assert time.monotonic() < until, "the receiver has events on its disk"

    def check_received_once(self) -> None:
        """The application has received each message once, after a few more messages."""
        self.send(HZ, 0.2)
        self.app.wait_received(self.sent - 1)
        self.wait_receipts()
        self._check_app(self.app)

    def _check_app(self, app: ZenohProcess) -> None:
        received = Counter(app.received)
        twice = [number for number, times in received.items() if times > 1]
        lost = sorted(set(range(self.first, self.sent)) - received.keys())
        assert (lost, twice) == ([], []), self._counters()

    def _counters(self) -> list[object]:
        states = self._state, self._receiver_config.parent / "cloud"
        return [(found["ledger"], found["endpoints"]) for found in map(statistics, states)]


class TwoReceiversScenario(ReceiptScenario):
    """As ReceiptScenario, with a second receiving streamer and its application."""

    def __init__(self, directory: Path, stack: ExitStack, retransmit_ms: int = 15_000) -> None:
        super().__init__(directory, stack, retransmit_ms=retransmit_ms)
        self._second_config = directory / "fleet.toml"
        self._second, self._second_app = self._add_receiver(self._second_config)
        stack.callback(lambda: self._second.kill() if self._second.is_alive else None)
        self._wait_first_at_second()
        self.first = self.sent
        self.send(HZ, 0.2)
        self._second_app.wait_received(self.sent - 1)
        self.wait_receipts()

    def _wait_first_at_second(self) -> None:
        until = time.monotonic() + START_S
        while not self._second_app.received:
            assert time.monotonic() < until, statistics(self._state)
            self.send(HZ, 0.1)

    def restart_without_the_second(self, *, with_sigterm: bool) -> None:
        """Send while the second receiver is killed, restart the sender, and let the first one give all receipts.

        Then start the second receiver.
        """
        self._wait_receivers_quiet()
        self._second.kill()
        before = self._send_to_disk()
        self.restart(with_sigterm=with_sigterm)
        self._start_second_after_the_first(self.sent - before)

    def restart_both_receivers(self, away_s: float) -> None:
        """Send while both receivers are killed, for this time. Let the first one give all receipts, then start the second."""
        self._wait_receivers_quiet()
        self._receiver.kill()
        self._second.kill()
        receipts = self._receipts()
        before = self._send_to_disk()
        Event().wait(away_s)
        self._receiver = self._start_receiver()
        self._start_second_after_the_first(receipts + self.sent - before)

    def _wait_receivers_quiet(self) -> None:
        """Until a kill of a receiver repeats nothing: what is on its disk is sent again, also to its application."""
        until = time.monotonic() + START_S
        for config in self._receiver_config, self._second_config:
            while found := events_on_disk(config.parent / config.stem, "apps"):
                assert time.monotonic() < until, found

    def _send_to_disk(self) -> int:
        """Returns the number of the first event."""
        before = self.sent
        self.send(HZ, 1.0)
        self.wait_accepted()
        self.wait_on_disk(range(before, self.sent))
        return before

    def _start_second_after_the_first(self, receipts: int) -> None:
        self.app.wait_received(self.sent - 1)
        until = time.monotonic() + START_S
        while self._receipts() < receipts:
            assert time.monotonic() < until, statistics(self._state)
        self._second = StreamerProcess(self._second_config).wait_ready()

    def check_received_once(self) -> None:
        super().check_received_once()
        self._second_app.wait_received(self.sent - 1)
        self._check_app(self._second_app)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[ReceiptScenario]:
    with ExitStack() as stack:
        yield ReceiptScenario(tmp_path / "receipts", stack)


def test_kills_of_both_streamers_and_the_router_in_an_outage_lose_and_double_nothing(
    scene: ReceiptScenario,
) -> None:
    before = scene.sent
    scene.freeze_receiver()
    scene.send(HZ, 1.0)
    scene.wait_accepted()
    scene.wait_on_disk(range(before, scene.sent))
    scene.restart()
    scene.restart_receiver()
    scene.wait_disk_empty()
    scene.check_received_once()


@pytest.mark.soak
@pytest.mark.parametrize("ends", ["receiver", "sender", "router"])
@pytest.mark.parametrize("size", [8, 1_400])
def test_a_kill_while_the_receiver_is_frozen_loses_and_doubles_nothing(
    scene: ReceiptScenario, ends: str, size: int
) -> None:
    """With 1 400 bytes the buffers of the kernels are full, and the router waits.

    All ends before the lease of 10 s: the link to the application has no receipts, and its end makes copies.
    """
    before = scene.sent
    scene.freeze_receiver()
    scene.send(2_000 if size > 8 else HZ, 4.0, size)
    scene.wait_accepted()
    if ends == "receiver":
        scene.restart_receiver()
    elif ends == "sender":
        scene.wait_on_disk(range(before, scene.sent))
        scene.restart()
        scene.thaw_receiver()
    else:
        scene.restart_router()
        scene.thaw_receiver()
    scene.check_received_once()


@pytest.mark.soak
def test_what_exceeds_the_memory_for_retransmissions_is_sent_again_from_the_disk(tmp_path: Path) -> None:
    with ExitStack() as stack:
        scene = ReceiptScenario(tmp_path / "receipts", stack, retransmit_bytes=400_000)
        before = scene.sent
        scene.freeze_receiver()
        scene.send(HZ, 4.0, 1_400)  # 1.1 MB
        scene.wait_accepted()
        scene.wait_on_disk(range(before, scene.sent))
        scene.restart_router()
        scene.thaw_receiver()
        scene.check_received_once()


def test_a_stop_keeps_what_exceeds_the_memory_for_retransmissions_on_disk(tmp_path: Path) -> None:
    with ExitStack() as stack:
        scene = ReceiptScenario(tmp_path / "receipts", stack, retransmit_bytes=400_000)
        before = scene.sent
        scene.freeze_receiver()
        scene.send(2 * HZ, 2.0, 1_400)  # 1.1 MB
        scene.wait_accepted()
        scene.wait_on_disk(range(before, scene.sent))
        scene.restart(with_sigterm=True)
        scene.thaw_receiver()
        scene.check_received_once()


@pytest.mark.parametrize("with_sigterm", [True, False])
def test_a_receiver_that_is_back_after_a_new_start_of_the_sender_lacks_and_doubles_nothing(
    tmp_path: Path, *, with_sigterm: bool
) -> None:
    """The first receiver opens the route, and its receipts come before the second one is back."""
    with ExitStack() as stack:
        scene = TwoReceiversScenario(tmp_path / "receipts", stack)
        scene.restart_without_the_second(with_sigterm=with_sigterm)
        scene.check_received_once()


def test_what_waits_on_disk_is_for_all_receivers_that_were_known(tmp_path: Path) -> None:
    """Also after more than `retransmit_ms`: without a subscriber this time does not pass."""
    with ExitStack() as stack:
        scene = TwoReceiversScenario(tmp_path / "receipts", stack, retransmit_ms=8_000)
        scene.restart_both_receivers(away_s=9.0)
        scene.check_received_once()


@pytest.mark.soak
@pytest.mark.skipif(not has_strace(), reason="needs strace, which records when files are written and synced")
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_power_cut_of_both_streamers_in_an_outage_loses_and_doubles_nothing(
    scene: ReceiptScenario, seed: int
) -> None:
    scene.cut_power_in_an_outage(seed)
    scene.check_received_once()
