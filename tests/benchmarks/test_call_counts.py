# SPDX-License-Identifier: Apache-2.0
"""The Python calls that each kind of message costs are bounded. A count, not a time: it does not depend on the machine."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.call_counts import CallCount, CallCounter


@pytest.fixture
def counter(tmp_path: Path) -> Iterator[CallCounter]:
    counter = CallCounter(tmp_path)
    try:
        yield counter
    finally:
        counter.close()


@pytest.mark.parametrize(
    ("send", "most_calls", "most_files"),
    [
        (CallCounter.event, 65, 16),
        (CallCounter.subscribe_local, 660, 60),  # with two changes for those that only listen
        (CallCounter.subscribe_remote, 830, 64),  # with the probe of the other version
        (CallCounter.call, 150, 17),
    ],
)
def test_calls_of_a_message_are_bounded(
    counter: CallCounter, send: Callable[[CallCounter], CallCount], most_calls: int, most_files: int
) -> None:
    counts = [send(counter) for _ in range(10)]
    fewest = min(counts, key=lambda each: each.total)  # the others built a route or woke a thread once more
    assert fewest.total <= most_calls, fewest.calls.most_common(20)
    assert fewest.files <= most_files
    assert fewest.total > most_calls // 2, "the profiler missed a thread"
