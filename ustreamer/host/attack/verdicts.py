# SPDX-License-Identifier: Apache-2.0
"""Held or broken. Pure: measured windows in, a result out.

An attack is broken if it has an effect, if the streamer ends, or if it harms the vehicle path: a message is lost, the
p99 is more than `P99_RATIO` of the p99 of the quiet windows next to it, or the memory stays above `MEMORY_RATIO`.
Medians of several windows, and a floor for each limit: a busy machine is not an attack.
"""

from collections.abc import Sequence
from enum import StrEnum
from statistics import median
from typing import Final

import msgspec

P99_RATIO: Final = 1.5
P99_FLOOR_MS: Final = 10.0
"""A p99 below this counts as equal to any other."""
MEMORY_RATIO: Final = 1.1
MEMORY_FLOOR_BYTES: Final = 16_000_000
"""Growth below this counts as none: caches fill, and allocators keep pages."""
LOSS_SHARE: Final = 0.001
"""Lost messages of the stream that count as none, beyond those of the quiet windows: a socket overflows when the
machine stalls."""

_NS_PER_MS: Final = 1_000_000


class AttackVerdict(StrEnum):
    HELD = "held"
    BROKEN = "broken"


class StreamWindow(msgspec.Struct, frozen=True):
    """Part of the stream. `foreign` are messages of its topic that the probe did not send."""

    sent: int
    lost: int
    foreign: int
    p50_ms: float
    p99_ms: float


class Measurement(msgspec.Struct, frozen=True):
    """One attack: windows without and with it in turn, the memory before and after it, and its own effect."""

    quiet: Sequence[StreamWindow]
    attacked: Sequence[StreamWindow]
    memory_before: int
    memory_after: int
    effect: str = ""
    alive: bool = True


class AttackResult(msgspec.Struct, frozen=True):
    """The verdict of an attack, with the figures of the vehicle path. `reasons` is empty if it held."""

    name: str
    family: str
    verdict: AttackVerdict
    reasons: tuple[str, ...]
    p99_ratio: float
    quiet_p99_ms: float
    attacked_p99_ms: float
    sent: int
    lost: int
    memory_before_mb: float
    memory_after_mb: float


def window(latencies_ns: Sequence[int], sent: int, foreign: int) -> StreamWindow:
    """The window of `sent` messages, of which those with a latency arrived."""
    ordered = sorted(latencies_ns)
    return StreamWindow(
        sent,
        sent - len(ordered),
        foreign,
        round(_quantile_ms(ordered, 0.5), 3),
        round(_quantile_ms(ordered, 0.99), 3),
    )


def _quantile_ms(ordered_ns: Sequence[int], quantile: float) -> float:
    """The quantile of sorted latencies; 0 without any."""
    return ordered_ns[int(quantile * (len(ordered_ns) - 1))] / _NS_PER_MS if ordered_ns else 0.0


def memory_limit(before: int) -> int:
    """Bytes that the streamer may take after an attack."""
    return max(round(before * MEMORY_RATIO), before + MEMORY_FLOOR_BYTES)


def judge(name: str, family: str, measured: Measurement) -> AttackResult:
    """The result of a measured attack."""
    quiet_p99 = median(each.p99_ms for each in measured.quiet)
    attacked_p99 = median(each.p99_ms for each in measured.attacked)
    lost, sent = (sum(getattr(each, key) for each in measured.attacked) for key in ("lost", "sent"))
    reasons = tuple(_reasons(measured, quiet_p99, attacked_p99))
    return AttackResult(
        name,
        family,
        AttackVerdict.BROKEN if reasons else AttackVerdict.HELD,
        reasons,
        round(attacked_p99 / quiet_p99, 2) if quiet_p99 else 0.0,
        round(quiet_p99, 2),
        round(attacked_p99, 2),
        sent,
        lost,
        round(measured.memory_before / 1e6, 1),
        round(measured.memory_after / 1e6, 1),
    )


def _reasons(measured: Measurement, quiet_p99: float, attacked_p99: float) -> list[str]:
    reasons = [measured.effect] if measured.effect else []
    if not measured.alive:
        return [*reasons, "the streamer has ended"]
    foreign = sum(each.foreign for each in measured.attacked)
    if foreign:
        reasons.append(f"{foreign} forged messages reached a subscriber")
    lost, sent = (sum(getattr(each, key) for each in measured.attacked) for key in ("lost", "sent"))
    usual = max((each.lost / each.sent for each in measured.quiet if each.sent), default=0.0)
    if lost > (usual + LOSS_SHARE) * sent:
        reasons.append(f"{lost} of {sent} vehicle messages are lost")
    if attacked_p99 > max(P99_RATIO * quiet_p99, P99_FLOOR_MS):
        reasons.append(
            f"the p99 of the vehicle path is {attacked_p99:.1f} ms, without attack {quiet_p99:.1f} ms"
        )
    if measured.memory_after > memory_limit(measured.memory_before):
        grown = (measured.memory_after - measured.memory_before) / 1e6
        reasons.append(f"{grown:.0f} MB of memory are not given back")
    return reasons


def is_noise(reasons: Sequence[str], measured: Measurement) -> bool:
    """Whether a busy machine could explain the reasons, so that the attack is measured again."""
    return (
        bool(reasons)
        and measured.alive
        and not measured.effect
        and not any(each.foreign for each in measured.attacked)
    )
