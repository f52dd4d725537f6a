# SPDX-License-Identifier: Apache-2.0
"""`max_frequency`: forward a publication to each subscriber no faster than it requested (DSP-20 to DSP-24).

One gate per delivery target and topic, never one for a wildcard or a rule, so that no topic uses up another's rate.
Messages that a gate drops are counted as throttled and never dead-lettered.
"""

from collections.abc import Callable, Sequence
from typing import Annotated, Literal
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
from ustreamer.uprotocol.uuri import UUri
from ustreamer_throttle.gate import DEFAULT_TOLERANCE, MAX_TOLERANCE, Gate, Sampler


class ThrottleConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[plugins.throttle]`.

    `tolerance` is the permitted earliness of a message, as a fraction of the period; 0 is strict (see `gate`). `mode`
    "drop" drops early messages; "latest" holds the newest message and sends it when it is due. Topics that match a
    pattern in `latest` use mode "latest" in any case.
    """

    tolerance: Annotated[float, msgspec.Meta(ge=0, le=MAX_TOLERANCE)] = DEFAULT_TOLERANCE
    mode: Literal["drop", "latest"] = "drop"
    latest: tuple[str, ...] = ()

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
            return ()
        text = 'changes nothing: with mode = "latest" every topic is treated so'
        return (ConfigWarning("latest", text, "leave latest out"),)


class Throttle(Filter):
    """A filter whose limit and tolerance can change."""

    def tolerate(self, tolerance: float) -> None:
        raise TypeError(f"{type(self).__name__} does not say how its tolerance changes")

    def retune(self, period_ns: int, now_ns: int) -> None:
        raise TypeError(f"{type(self).__name__} does not say how it is retuned")


class DropFilter(Throttle):
    """Mode `drop`: early messages are dropped."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def admit(self, message: UMessage, now_ns: int) -> Verdict | None:
        return None if self._gate.admit(now_ns) else Verdict.THROTTLED

    def tolerate(self, tolerance: float) -> None:
        self._gate.tolerate(tolerance)

    def retune(self, period_ns: int, now_ns: int) -> None:
        self._gate.retune(period_ns, now_ns)


class LatestFilter(Throttle):
    """Mode `latest`: an early message is held until it is due or a newer one replaces it."""

    def __init__(self, gate: Gate, delivery: Delivery) -> None:
        self._sampler: Sampler[UMessage] = Sampler(gate)
        # Weak, because the plugin keeps filters by delivery: a strong reference back would keep both for ever.
        self._delivery = proxy(delivery)

    def admit(self, message: UMessage, now_ns: int) -> Verdict | None:
        passes, displaced = self._sampler.offer(message, now_ns)
        if displaced is not None:
            self._delivery.dropped_held(displaced, now_ns)
        if passes:
            return None
        if displaced is None:
            self._wake()
        return Verdict.QUEUED

    def release_due(self, now_ns: int) -> UMessage | None:
        message = self._sampler.release(now_ns)
        if message is None:
            self._wake()  # the limit was changed in the meantime
        return message

    def tolerate(self, tolerance: float) -> None:
        self._sampler.gate.tolerate(tolerance)
        self._wake()

    def retune(self, period_ns: int, now_ns: int) -> None:
        self._sampler.gate.retune(period_ns, now_ns)
        self._wake()

    def _wake(self) -> None:
        due_ns = self._sampler.due_ns
        if due_ns is not None:
            self._delivery.wake_at(due_ns, self)


class ThrottlePlugin:
    """Adds a gate to every delivery with a limit."""

    Config = ThrottleConfig

    def __init__(self, config: ThrottleConfig, context: PluginContext) -> None:
        self._config = config
        self._latest: Sublist[bool] = Sublist()
        for pattern in config.latest:
            self._latest.insert(UUri.parse(pattern).with_authority(context.authority), True)
        self._throttles: WeakKeyDictionary[Delivery, Throttle] = WeakKeyDictionary()

    def reconfigure(self, config: ThrottleConfig) -> Callable[[], None]:
        """Apply another tolerance. Raises ValueError for another mode: held messages would follow newer ones."""
        fixed = [key for key in ("mode", "latest") if getattr(config, key) != getattr(self._config, key)]
        if fixed:
            raise ValueError(f"{' and '.join(fixed)}: needs a restart")

        def apply() -> None:
            self._config = config
            for throttle in self._throttles.values():
                throttle.tolerate(config.tolerance)

        return apply

    @hookimpl
    def ustreamer_filters(self, delivery: Delivery) -> Filter | None:
        """A gate for a publication with a limit; none for RPC and notifications, which are never throttled."""
        if delivery.topic is None or not delivery.period_ns:
            self._throttles.pop(delivery, None)
            return None
        throttle = self._throttles.get(delivery)
        if throttle is None:
            throttle = self._throttles[delivery] = self._throttle(delivery, delivery.topic)
        else:
            throttle.retune(delivery.period_ns, delivery.period_since_ns)
        return throttle

    def _throttle(self, delivery: Delivery, topic: UUri) -> Throttle:
        gate = Gate(delivery.period_ns, self._config.tolerance)
        if self._config.mode == "latest" or self._latest.match(topic):
            return LatestFilter(gate, delivery)
        return DropFilter(gate)
