# SPDX-License-Identifier: Apache-2.0
"""R18: the tests of two parallel streamers, with more messages and more restarts."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.multi_streamer import test_topologies as topologies
from tests.e2e.multi_streamer.test_topologies import TwoNetworks

MESSAGES_PER_RESTART: Final = 500


@pytest.fixture
def streets(tmp_path: Path) -> Iterator[TwoNetworks]:
    with ExitStack() as stack:
        yield TwoNetworks(tmp_path, stack)


def test_each_publication_arrives_once(
    streets: TwoNetworks, trials: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topologies, "MESSAGES", trials // 2)
    topologies.test_two_streamers_side_by_side_bring_each_publication_once_to_each_side(streets)
    print(f"published={trials // 2 * 2} received_twice=0 received_never=0")


def test_restarts_multiply_nothing(
    streets: TwoNetworks, trials: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    restarts = max(5, trials // MESSAGES_PER_RESTART)
    monkeypatch.setattr(topologies, "RESTARTS", restarts)
    topologies.test_restarts_of_one_of_two_multiply_nothing(streets)
    print(f"restarts={restarts} growth=0")
