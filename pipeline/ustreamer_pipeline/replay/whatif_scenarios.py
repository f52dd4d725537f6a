# SPDX-License-Identifier: Apache-2.0
"""What might be otherwise: scenarios as a person writes them, checked once, and asked once per target.

    [[scenario]]
    name = "dashboards at 5 Hz"
    tolerance = 0.2                                     # of the throttle; left out: as recorded
    rates       = [{ topic = "//chassis/1/1/8001", hz = 5.0 }, { egress = "backbone", scale = 0.5 }]
    subscribe   = [{ topic = "//chassis/FFFF0002/1/FFFF", egress = "cloud", hz = 1.0 }]
    unsubscribe = [{ topic = "//*/FFFFFFFF/FF/FFFF", egress = "backbone" }]
    links       = [{ egress = "backbone", queue_messages = 100, bytes_per_s = 125_000 }]
    ttl         = [{ topic = "//chassis/1/1/8001", ttl_ms = 200 }]

A `topic` is a UUri or a pattern of UUris, as in a subscription; left out, it means all. The first entry that matches
counts.
"""

import math
import tomllib
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Final

import msgspec

from ustreamer.uprotocol.ustatus import UStatusError
from ustreamer.uprotocol.uuri import UUri
from ustreamer_pipeline.errors import UsageError

ANY: Final = "//*/FFFFFFFF/FF/FFFF"
RECORDED: Final = "recorded"
"""The scenario without changes; it is always computed and checks the replay."""
MAX_SCENARIOS: Final = 1_000

Positive = Annotated[float, msgspec.Meta(gt=0)]
Hertz = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
Count = Annotated[int, msgspec.Meta(gt=0)]


def period_of(hz: float) -> int:
    """Period in ns of a frequency, rounded up as in the gateway; 0 (no limit) for 0."""
    return math.ceil(1_000_000_000 / hz) if hz else 0


def fastest(periods: Iterable[int]) -> int:
    """The shortest of the requested periods; 0, no limit, is the shortest."""
    return min(periods)


class _Matching(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    topic: str = ANY
    egress: str | None = None
    subscriber: str | None = None

    def __post_init__(self) -> None:
        for text in (self.topic, self.subscriber):
            if text is not None:
                try:
                    UUri.parse(text)
                except UStatusError as error:
                    raise ValueError(error.message) from error

    def matches(self, topic: str, egress: str, subscriber: str | None) -> bool:
        return (
            self.egress in (None, egress)
            and (self.subscriber is None or (subscriber is not None and _covers(self.subscriber, subscriber)))
            and _covers(self.topic, topic)
        )


class ScenarioRate(_Matching, frozen=True):
    """A changed limit: `hz` (0 for none), or `scale`, a factor for the recorded limit."""

    hz: Hertz | None = None
    scale: Positive | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.hz is None) == (self.scale is None):
            raise ValueError("expected either `hz` or `scale`")

    def period_ns(self, recorded_ns: int) -> int:
        if self.hz is None:
            assert self.scale is not None
            return max(1, round(recorded_ns / self.scale)) if recorded_ns else 0
        return period_of(self.hz)


class Subscribe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An added subscription for the whole time; `subscriber` only for endpoints with one target per subscriber."""

    topic: str
    egress: str
    subscriber: str | None = None
    hz: Hertz = 0.0

    def __post_init__(self) -> None:
        _Matching(self.topic, self.egress, self.subscriber)

    @property
    def period_ns(self) -> int:
        return period_of(self.hz)

    def matches(self, topic: str) -> bool:
        return _covers(self.topic, topic)


class Unsubscribe(_Matching, frozen=True):
    """A removed target."""


class Ttl(_Matching, frozen=True):
    """A changed time to live; 0 for none."""

    ttl_ms: Annotated[int, msgspec.Meta(ge=0)] = 0


class ScenarioLink(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Changed limits of an egress queue, or a changed link; omitted values are as recorded."""

    egress: str
    queue_messages: Count | None = None
    queue_bytes: Count | None = None
    max_age_ms: Count | None = None
    bytes_per_s: Positive | None = None


class Scenario(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
    tolerance: Annotated[float, msgspec.Meta(ge=0, le=0.5)] | None = None
    rates: tuple[ScenarioRate, ...] = ()
    subscribe: tuple[Subscribe, ...] = ()
    unsubscribe: tuple[Unsubscribe, ...] = ()
    links: tuple[ScenarioLink, ...] = ()
    ttl: tuple[Ttl, ...] = ()

    def limit_for(
        self, topic: str, egress: str, subscriber: str | None, period_ns: int, tolerance: float
    ) -> tuple[int, float] | None:
        """Period and tolerance of this target in the scenario; None if the scenario removes the target."""
        if any(each.matches(topic, egress, subscriber) for each in self.unsubscribe):
            return None
        for rate in self.rates:
            if rate.matches(topic, egress, subscriber):
                period_ns = rate.period_ns(period_ns)
                break
        added = self.added_targets(topic).get((egress, subscriber)) if self.subscribe else None
        if added is not None:  # the target existed and now serves the faster of two subscriptions
            period_ns = fastest([period_ns, added])
        return period_ns, tolerance if self.tolerance is None else self.tolerance

    def added_targets(self, topic: str) -> dict[tuple[str, str | None], int]:
        """Targets added for `topic`: the period by egress and subscriber."""
        added: dict[tuple[str, str | None], int] = {}
        for each in self.subscribe:
            if each.matches(topic):
                key = each.egress, each.subscriber
                added[key] = fastest([added[key], each.period_ns]) if key in added else each.period_ns
        return added

    def ttl_ms(self, topic: str, egress: str, subscriber: str | None) -> int | None:
        """The changed time to live; None for the recorded one."""
        return next((each.ttl_ms for each in self.ttl if each.matches(topic, egress, subscriber)), None)

    def link(self, egress: str) -> ScenarioLink | None:
        return next((each for each in self.links if each.egress == egress), None)


class _File(msgspec.Struct, forbid_unknown_fields=True):
    scenario: list[Scenario]


def parse(text: str, where: str) -> list[Scenario]:
    """Read a TOML file of scenarios. Raises UsageError with the place in the file."""
    try:
        scenarios = msgspec.convert(tomllib.loads(text), _File).scenario
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise UsageError(f"{where}: {error}") from error
    return checked(scenarios, where)


def load(path: Path) -> list[Scenario]:
    try:
        return parse(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {error}") from error


def sweep(hz: Sequence[float], topic: str = ANY, egress: str | None = None) -> list[Scenario]:
    """One scenario for each rate. Raises UsageError as `parse` does."""
    try:
        return [
            Scenario(f"{each:g} Hz" if each else "no limit", rates=(ScenarioRate(topic, egress, hz=each),))
            for each in hz
        ]
    except ValueError as error:
        raise UsageError(f"sweep: {error}") from error


def checked(scenarios: list[Scenario], where: str) -> list[Scenario]:
    if len(scenarios) > MAX_SCENARIOS:
        raise UsageError(f"{where}: {len(scenarios)} scenarios; at most {MAX_SCENARIOS} fit into one pass")
    seen = {RECORDED}
    for scenario in scenarios:
        if scenario.name in seen:
            raise UsageError(f"{where}: two scenarios named {scenario.name!r} ({RECORDED!r} is always there)")
        seen.add(scenario.name)
    return scenarios


@lru_cache(maxsize=100_000)
def _covers(pattern: str, uuri: str) -> bool:
    try:
        return UUri.parse(pattern).matches(UUri.parse(uuri))
    except UStatusError:  # a recording may contain an invalid UUri; only the same text matches it
        return pattern == uuri
