# SPDX-License-Identifier: Apache-2.0
"""Virtual time: a clock and timers that move by calls only, and plugins alone in it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pluggy

from ustreamer.core.base.clock import ManualClock
from ustreamer.core.base.timers import Timers
from ustreamer.core.delivery.delivery import Delivery
from ustreamer.core.delivery.ledger import Ledger, LedgerSnapshot, Verdict
from ustreamer.core.delivery.ports import Filter, SendOne, Tap
from ustreamer.core.dispatch.dispatcher import Dispatcher
from ustreamer.core.routing.router import SELF, AuthorityTable, Router
from ustreamer.core.routing.subscriptions import StaticDirectory, Subscription
from ustreamer.hooks import PROJECT, Hooks, PluginContext
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.uuri import UUri


class VirtualTime(ManualClock):
    """`advance` makes each scheduled call at its time, in order. All calls run on the thread of the caller, without waiting."""

    def __init__(self, wall_ms: int = 1_700_000_000_000) -> None:
        super().__init__(wall_ms)
        self._timers = Timers()

    def schedule(self, when_ns: int, action: Callable[[], None]) -> None:
        """As `PluginContext.schedule`."""
        self._timers.schedule(when_ns, action)

    def advance(self, *, s: float = 0, ms: float = 0, ns: int = 0) -> None:
        """Move the time forward, and make the scheduled calls that become due, in their order."""
        until_ns = self.now_ns + round(s * 1e9) + round(ms * 1e6) + ns
        while (due_ns := self._timers.next_due_ns) is not None and due_ns <= until_ns:
            self.now_ns = max(self.now_ns, due_ns)
            for action in self._timers.pop_due(self.now_ns):
                action()
        self.now_ns = max(self.now_ns, until_ns)

    def context(
        self, authority: str = "hpc", state_dir: Path = Path("state"), **fields: Any
    ) -> PluginContext:
        """The context of a plugin in this time; `fields` as `PluginContext`."""
        return PluginContext(authority, (authority,), state_dir, self.clock(), self.schedule, **fields)


class _RecordingEgress:
    """An egress that delivers at once and records the messages."""

    unicast = False

    def __init__(self, name: str) -> None:
        self.name = name
        self.ledger = Ledger()
        self.sent: list[UMessage] = []

    def transmitter(self, subscriber: UUri | None) -> SendOne:
        return self.sent.append

    def offer(self, delivery: Delivery, message: UMessage, now_ns: int) -> None:
        delivery.transmit(message)
        delivery.settle(self.ledger, message, Verdict.DELIVERED, now_ns, now_ns)


class DispatcherBench:
    """The real dispatcher in virtual time, without threads and transports: for a plugin with filters or taps.

        bench = DispatcherBench(time, {"chassis": "chassis", "hpc": "backbone"}, [plugin], [Subscription(...)])
        bench.dispatch(message)                 # at the endpoint behind which its source lives
        assert bench.sent("backbone") == [message]

    `authorities` are the endpoints by authority. `plugins` are instances with hooks.
    """

    def __init__(
        self,
        time: VirtualTime,
        authorities: Mapping[str, str],
        plugins: Iterable[object] = (),
        subscriptions: Sequence[Subscription] = (),
        own_authority: str = "hpc",
    ) -> None:
        self._authorities = dict(authorities)
        manager = pluggy.PluginManager(PROJECT)
        manager.add_hookspecs(Hooks)
        for plugin in plugins:
            manager.register(plugin)
        manager.check_pending()
        self._egress = {name: _RecordingEgress(name) for name in (SELF, *self._authorities.values())}

        hook = manager.hook

        def filters(delivery: Delivery) -> Iterable[Filter]:
            found: list[Filter] = hook.ustreamer_filters(delivery=delivery)
            return found

        def taps(endpoint: str) -> Iterable[Tap]:
            found: list[Tap] = hook.ustreamer_taps(endpoint=endpoint)
            return found

        unicast = dict.fromkeys(self._egress, False)
        router = Router(AuthorityTable(self._authorities), StaticDirectory(subscriptions), unicast)
        self.dispatcher = Dispatcher(
            own_authority,
            time.clock(),
            router,
            self._egress,
            filters=filters,
            taps=taps,
            schedule=time.schedule,
        )

    def dispatch(self, message: UMessage) -> None:
        """Receive a message at the endpoint behind which its source lives."""
        self.dispatcher.ingress(self._authorities[message.attributes.source.authority_name]).dispatch(message)

    def sent(self, endpoint: str) -> list[UMessage]:
        """The messages that the endpoint has sent, in order."""
        return list(self._egress[endpoint].sent)

    def ledger(self) -> LedgerSnapshot:
        """The ledger of this moment; held messages are queued."""
        return self.dispatcher.ledger_snapshot([each.ledger for each in self._egress.values()], queued=0)
