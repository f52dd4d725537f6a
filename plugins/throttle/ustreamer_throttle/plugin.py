# SPDX-License-Identifier: Apache-2.0
"""`max_frequency`: forward a publication to each subscriber no faster than it requested (DSP-20 to DSP-24).

One gate per delivery target and topic, never one for a wildcard or a rule, so that no topic uses up another's rate.
Messages that a gate drops are counted as throttled and never dead-lettered.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Final, Literal
from weakref import WeakKeyDictionary, proxy

import msgspec

from ustreamer.core.delivery.delivery import Delivery
from ustreamer.core.delivery.ledger import Verdict
from ustreamer.core.delivery.ports import Filter
from ustreamer.core.routing.sublist import Sublist
from ustreamer.hooks import PluginContext, hookimpl
from ustreamer.transport_port import ConfigWarning, NamedPattern
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UStatusError
from ustreamer.uprotocol.uuri import FIRST_TOPIC, UUri
from ustreamer_throttle.gate import DEFAULT_TOLERANCE, MAX_DELAY_NS, MAX_TOLERANCE, NS_PER_MS, Gate, Sampler
from ustreamer_throttle.pacer import Pacer

NEVER_NS: Final = 1 << 62


class ThrottleConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[plugins.throttle]`.

    `tolerance` is the permitted earliness of a message, as a fraction of the period; 0 is strict (see `gate`). `mode`
    "drop" drops early messages; "latest" holds the newest message and sends it when it is due. Topics that match a
    pattern in `latest` use mode "latest" in any case. `max_delay_ms` is the longest wait of a message that the network
    delivered in a bunch, and the greatest lag for which its creation time counts; 0: arrival alone counts.
    """

    tolerance: Annotated[float, msgspec.Meta(ge=0, le=MAX_TOLERANCE)] = DEFAULT_TOLERANCE
    mode: Literal["drop", "latest"] = "drop"
    latest: tuple[str, ...] = ()
    max_delay_ms: Annotated[int, msgspec.Meta(ge=0, le=MAX_DELAY_NS // NS_PER_MS)] = 100

    def __post_init__(self) -> None:
        for index, pattern in enumerate(self.latest):
            try:
                UUri.parse(pattern)
            except UStatusError as error:
                raise ValueError(f"latest[{index}]: {error.message}") from error

    def patterns(self) -> Sequence[NamedPattern]:
        """See `ustreamer.hooks.ReviewedConfig`."""
        return [NamedPattern(f"latest[{index}]", UUri.parse(each)) for index, each in enumerate(self.latest)]

    def warnings(self) -> Sequence[ConfigWarning]:
        """See `ustreamer.hooks.ReviewedConfig`."""
        if self.mode != "latest" or not self.latest:
            return [
                ConfigWarning(
                    f"latest[{index}]", "is no topic: only publications are throttled", "leave it out"
                )
                for index, each in enumerate(self.latest)
                if UUri.parse(each).resource_id < FIRST_TOPIC
            ]
        text = 'changes nothing: with mode = "latest" every topic is treated so'
        return (ConfigWarning("latest", text, "leave latest out"),)


class PacedFilter(Filter):
    """A gate. After a bunch, messages that pass wait for their time to leave."""

    def __init__(self, gate: Gate, delivery: Delivery) -> None:
        self._gate = gate
        self._pacer: Pacer[UMessage] = Pacer(gate)
        # Weak, because the plugin keeps filters by delivery: a strong reference back would keep both for ever.
        self._delivery = proxy(delivery)
        self._timer_ns = NEVER_NS  # of the earliest timer that is set

    def release_due(self, now_ns: int) -> UMessage | None:
        if now_ns >= self._timer_ns:
            self._timer_ns = NEVER_NS
        message = self._release(now_ns)
        self._set_timer()
        return message

    def set_tolerance(self, tolerance: float) -> None:
        """See `Gate.set_tolerance`."""
        self._gate.set_tolerance(tolerance)
        self._pacer.set_tolerance(tolerance)
        self._set_timer()

    def retune(self, period_ns: int, now_ns: int) -> None:
        """See `Gate.retune`."""
        self._gate.retune(period_ns, now_ns)
        self._pacer.retune(period_ns, now_ns)
        self._drop_excess(now_ns)
        self._set_timer()

    def _pace(self, message: UMessage, now_ns: int) -> Verdict | None:
        if self._pacer.offer(message, len(message.payload), now_ns):
            return None
        self._drop_excess(now_ns)
        self._set_timer()
        return Verdict.QUEUED

    def _drop_excess(self, now_ns: int) -> None:
        for message in self._pacer.drop_excess(now_ns):
            self._delivery.dropped_held(message, now_ns)

    def _release(self, now_ns: int) -> UMessage | None:
        return self._pacer.release(now_ns)

    def _due_ns(self) -> int | None:
        return self._pacer.due_ns

    def _set_timer(self) -> None:
        # A timer cannot be cancelled. So a second one is set only for an earlier time.
        due_ns = self._due_ns()
        if due_ns is not None and due_ns < self._timer_ns:
            self._timer_ns = due_ns
            self._delivery.wake_at(due_ns, self)


class DropFilter(PacedFilter):
    """Mode `drop`: early messages are dropped."""

    def admit(self, message: UMessage, now_ns: int) -> Verdict | None:
        if not self._gate.admit(now_ns, message.id.msb):
            return Verdict.THROTTLED
        if self._gate.departure_gate is None and self._pacer.release_gate is None:
            return None
        return self._pace(message, now_ns)


class LatestFilter(PacedFilter):
    """Mode `latest`: an early message is held until it is due or a newer one replaces it."""

    def __init__(self, gate: Gate, delivery: Delivery) -> None:
        super().__init__(gate, delivery)
        self._sampler: Sampler[UMessage] = Sampler(gate)

    def admit(self, message: UMessage, now_ns: int) -> Verdict | None:
        passes, displaced = self._sampler.offer(message, now_ns, message.id.msb)
        if displaced is not None:
            self._delivery.dropped_held(displaced, now_ns)
        if passes:
            return self._pace(message, now_ns)
        self._set_timer()
        return Verdict.QUEUED

    def _release(self, now_ns: int) -> UMessage | None:
        message = self._pacer.release(now_ns)
        if message is not None:
            return message
        message = self._sampler.release(now_ns)
        if message is None:
            return None
        leaves = self._pacer.offer(message, len(message.payload), now_ns)  # behind the messages that wait
        self._drop_excess(now_ns)
        return message if leaves else None

    def may_depart_at(self, when_ns: int) -> bool:
        # Before that, a message of the sampler only moves behind those that wait.
        release_gate = self._pacer.release_gate
        return release_gate is None or when_ns >= release_gate.due_ns

    def _due_ns(self) -> int | None:
        due = [each for each in (self._pacer.due_ns, self._sampler.due_ns) if each is not None]
        return min(due, default=None)


class ThrottlePlugin:
    """Adds a gate to every delivery with a limit."""

    Config = ThrottleConfig

    def __init__(self, config: ThrottleConfig, context: PluginContext) -> None:
        self._config = config
        self._latest: Sublist[bool] = Sublist()
        for pattern in config.latest:
            self._latest.insert(UUri.parse(pattern).with_authority(context.authority), True)
        self._filters: WeakKeyDictionary[Delivery, PacedFilter] = WeakKeyDictionary()

    def reconfigure(self, config: ThrottleConfig) -> Callable[[], None]:
        """Apply another tolerance. Raises ValueError for another mode: held messages would follow newer ones."""
        fixed = [
            key
            for key in ("mode", "latest", "max_delay_ms")
            if getattr(config, key) != getattr(self._config, key)
        ]
        if fixed:
            raise ValueError(f"{' and '.join(fixed)}: needs a restart")

        def apply() -> None:
            self._config = config
            for paced in self._filters.values():
                paced.set_tolerance(config.tolerance)

        return apply

    @hookimpl
    def ustreamer_filters(self, delivery: Delivery) -> Filter | None:
        """A gate for a publication with a limit; none for RPC and notifications, which are never throttled."""
        if delivery.topic is None or not delivery.period_ns:
            self._filters.pop(delivery, None)
            return None
        paced = self._filters.get(delivery)
        if paced is None:
            paced = self._filters[delivery] = self._new_filter(delivery, delivery.topic)
        else:
            paced.retune(delivery.period_ns, delivery.period_since_ns)
        return paced

    def _new_filter(self, delivery: Delivery, topic: UUri) -> PacedFilter:
        gate = Gate(delivery.period_ns, self._config.tolerance, self._config.max_delay_ms * NS_PER_MS)
        if self._config.mode == "latest" or self._latest.match(topic):
            return LatestFilter(gate, delivery)
        return DropFilter(gate, delivery)
