# SPDX-License-Identifier: Apache-2.0
"""Random stories of an outage in which a durable streamer is killed.

    python -m tests.simulation.kill_stories FIRST END [receipts | receiver | frozen]

prints the violations of each story, and the number of stories without one. With `receipts` the application gives
receipts, and often stalls, so that its router waits. With `receiver` the streamer is the one that gives receipts. With
`frozen` the network to which it sends is also frozen shortly before each kill and power cut.
"""

import sys
from collections.abc import Callable, Mapping
from random import Random
from typing import Final

from tests.simulation.host import INSIDE, OUTSIDE, HostConfig
from tests.simulation.seeds import with_fixed_hashes
from tests.simulation.story import DEFAULT_SIZES, SMALL_SIZES, Step, Story, put_wait_ms, run

_CONFIG: Final = HostConfig(durable=True, max_age_ms=600_000)


def kill_story(seed: int) -> Story:
    """An outage at a random time, one or two kills at random times, and often a router that restarts."""
    rng = Random(seed)
    rate = rng.choice((50, 200, 1_000, 3_000))
    events = "event", min(rate * 12, 15_000), 1_000_000 // rate, rng.choice((8, 100, 1_000)), 0
    steps = [Step(0, "publish", events)]
    if rng.random() < 0.4:
        steps.append(Step(100, "publish", ("call", 60, 100_000, 8, 5_000)))
    at_ms, outage_ms = rng.randrange(500, 3_000), rng.randrange(300, 14_000)
    steps.append(Step(at_ms, rng.choice(("freeze", "router", "cut")), (OUTSIDE, outage_ms)))
    if rng.random() < 0.3:
        steps.append(Step(at_ms + rng.randrange(100, 5_000), "router", (OUTSIDE, rng.randrange(200, 6_000))))
    kill_ms = at_ms + rng.randrange(200, 12_000)
    steps.append(Step(kill_ms, "kill", (rng.randrange(100, 2_000),)))
    if rng.random() < 0.5:
        steps.append(
            Step(kill_ms + rng.randrange(200, 3_000), "router", (OUTSIDE, rng.randrange(200, 3_000)))
        )
    if rng.random() < 0.4:
        kind, again_ms = rng.choice(("kill", "stop")), kill_ms + rng.randrange(2_500, 9_000)
        steps.append(Step(again_ms, kind, (rng.randrange(100, 2_000),)))
    if rng.random() < 0.2:
        slow = rng.choice((20, 100)), rng.randrange(500, 5_000)
        steps.append(Step(rng.randrange(500, 6_000), "slow disk", slow))
    return Story(
        seed, tuple(steps), _CONFIG, rng.choice((DEFAULT_SIZES, SMALL_SIZES)), put_wait_ms=put_wait_ms(seed)
    )


def with_receipts(story: Story) -> Story:
    """The story with receipts, and with an application that stalls."""
    rng = Random(story.seed)
    steps = story.steps
    if rng.random() < 0.6:
        steps = *steps, Step(rng.randrange(100, 8_000), "stall", (rng.randrange(500, 9_000),))
    return story._replace(config=story.config._replace(receipts=True), steps=steps)


def receiver_story(seed: int) -> Story:
    """A streamer that receives with receipts, and is killed or loses power once or more; often an outage as well."""
    rng = Random(seed)
    rate = rng.choice((50, 200, 1_000, 3_000))
    events = "back", min(rate * 12, 6_000), 1_000_000 // rate, rng.choice((8, 100)), 0
    steps = [Step(rng.randrange(500), "publish", events)]
    for _ in range(rng.randrange(1, 4)):
        end = rng.choice(("kill", "kill", "power")), (rng.randrange(100, 2_000),)
        steps.append(Step(rng.randrange(500, 9_000), *end))
    if rng.random() < 0.5:
        outage = rng.choice(("freeze", "router", "cut")), (OUTSIDE, rng.randrange(300, 9_000))
        steps.append(Step(rng.randrange(100, 6_000), *outage))
    if rng.random() < 0.3:
        steps.append(Step(rng.randrange(500, 6_000), "slow disk", (100, rng.randrange(500, 5_000))))
    config = _CONFIG._replace(receipts=True, gives_receipts=True)
    return Story(
        seed, tuple(steps), config, rng.choice((DEFAULT_SIZES, SMALL_SIZES)), put_wait_ms=put_wait_ms(seed)
    )


def frozen_story(seed: int) -> Story:
    """As `receiver_story`. The network inside is frozen at most 3 s before each kill and power cut."""
    story, rng = receiver_story(seed), Random(seed)
    freezes = (
        Step(max(1, each.at_ms - rng.randrange(3_000)), "freeze", (INSIDE, rng.randrange(300, 8_000)))
        for each in story.steps
        if each.kind in {"kill", "power"}
    )
    return story._replace(steps=(*story.steps, *freezes))


STORIES: Final[Mapping[str, Callable[[int], Story]]] = {
    "": kill_story,
    "receipts": lambda seed: with_receipts(kill_story(seed)),
    "receiver": receiver_story,
    "frozen": frozen_story,
}


def main(first: int, end: int, kind: str = "") -> int:
    failed = 0
    for seed in range(first, end):
        story = STORIES[kind](seed)
        violations = run(story).violations
        failed += bool(violations)
        for each in violations:
            print(f"{story}\n  violates: {each.kind}: {each.text}", flush=True)
    print(f"{end - first - failed} of {end - first} stories hold")
    return bool(failed)


if __name__ == "__main__":
    with_fixed_hashes("tests.simulation.kill_stories")
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]))
