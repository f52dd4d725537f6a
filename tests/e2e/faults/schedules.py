# SPDX-License-Identifier: Apache-2.0
"""Random schedules of real faults: a seed in, a `Schedule` out. The same seed always gives the same schedule."""

import random
from typing import Final, NamedTuple

DURATIONS_S: Final = {
    "freeze receiver": (0.5, 12.0),
    "kill receiver": (0.1, 6.0),
    "freeze router": (0.5, 12.0),
    "kill router": (0.1, 6.0),
    "cut cable": (0.5, 14.0),
    "freeze streamer": (0.5, 6.0),
    "kill streamer": (0.1, 3.0),
    "stop streamer": (0.1, 3.0),
    "kill someip receiver": (0.1, 6.0),
    "fill disk": (0.5, 5.0),
}
"""Each fault, and how long it lasts. Zenoh detects a silent node after 4 s, and closes its link after 10 s."""
ROUTER_FAULTS: Final = frozenset({"freeze router", "kill router"})
RATES_HZ: Final = (50, 200, 200, 1_000)
FIRST_S: Final = 1.0
"""Messages flow for this time before the first fault."""
_LATEST_S: Final = 3.0
LONG_AGE_MS: Final = 60_000
SHORT_AGE_MS: Final = 1_000


class Fault(NamedTuple):
    """One fault: its kind, its begin after the first message, and its duration."""

    kind: str
    at_s: float
    seconds: float

    def __str__(self) -> str:
        return f"{self.kind} at {self.at_s:.1f} s for {self.seconds:.1f} s"


class Schedule(NamedTuple):
    """The set-up of one run, and one fault or two that overlap."""

    seed: int
    has_router: bool
    """A router between the streamer and the Zenoh receiver; otherwise the receiver is a client of the streamer."""
    durable: bool
    protocol: str
    """Of the SOME/IP receiver: udp or tcp."""
    hz: int
    faults: tuple[Fault, ...]
    max_age_ms: int = LONG_AGE_MS
    """Of messages for the Zenoh receiver. A short one makes dead letters in an outage."""

    def __str__(self) -> str:
        way = "router" if self.has_router else "direct"
        kind = "durable" if self.durable else "plain"
        age = f", max_age {self.max_age_ms} ms" if self.max_age_ms != LONG_AGE_MS else ""
        return f"seed {self.seed}: {way}, {kind}, {self.protocol}, {self.hz} Hz{age}: " + "; ".join(
            map(str, self.faults)
        )


def schedule_of(seed: int) -> Schedule:
    """The schedule of a seed. Odd seeds have two faults."""
    rng = random.Random(seed)
    has_router = rng.random() < 0.5
    kinds = [kind for kind in DURATIONS_S if has_router or kind not in ROUTER_FAULTS]
    first = _fault(rng, rng.choice(kinds), FIRST_S, _LATEST_S)
    faults = [first]
    if seed % 2:
        second = rng.choice([kind for kind in kinds if kind.split()[-1] != first.kind.split()[-1]])
        # Within the first fault, or shortly after it.
        faults.append(_fault(rng, second, first.at_s, first.at_s + first.seconds + 1))
    durable, protocol, hz = rng.random() < 0.5, rng.choice(("udp", "tcp")), rng.choice(RATES_HZ)
    max_age_ms = SHORT_AGE_MS if rng.random() < 0.3 else LONG_AGE_MS
    return Schedule(seed, has_router, durable, protocol, hz, tuple(faults), max_age_ms)


def _fault(rng: random.Random, kind: str, earliest_s: float, latest_s: float) -> Fault:
    shortest, longest = DURATIONS_S[kind]
    return Fault(kind, rng.uniform(earliest_s, latest_s), rng.uniform(shortest, longest))
