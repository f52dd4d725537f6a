# SPDX-License-Identifier: Apache-2.0
"""The pytest plugin: fixtures for tests of plugins and transports. Every run of pytest loads this module.

streamer_bench   a `StreamerBench` in `tmp_path`, which is stopped and checked at the end
virtual_time     a `VirtualTime`
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ustreamer.testing.bench import StreamerBench
    from ustreamer.testing.virtual_time import VirtualTime

# An assertion in these shows its values. The modules are imported by the fixtures: a run without them pays nothing.
pytest.register_assert_rewrite(
    *(
        f"ustreamer.testing.{name}"
        for name in (
            "contract",
            "endpoint_contract",
            "entity",
            "ledger",
            "life_contract",
            "pair",
            "peer_contract",
            "port_contract",
        )
    )
)


@pytest.fixture
def streamer_bench(tmp_path: Path) -> "Iterator[StreamerBench]":
    """Builds streamers, uEntities, Zenoh nodes and SOME/IP ECUs; at the end every message must be accounted for."""
    from ustreamer.testing.bench import StreamerBench

    with StreamerBench(tmp_path) as bench:
        yield bench


@pytest.fixture
def virtual_time() -> "VirtualTime":
    """A clock and timers that move by calls only."""
    from ustreamer.testing.virtual_time import VirtualTime

    return VirtualTime()
