# SPDX-License-Identifier: Apache-2.0
"""An owner with half of a full table gives up its own oldest key; any other owner gives up none."""

from ustreamer.core.base.fair_eviction import FairEviction


def test_only_an_owner_with_half_of_the_table_gives_up_a_key_of_its_own() -> None:
    keys: FairEviction[int] = FairEviction(4)
    assert keys.victim("a") is None
    keys.add("a", 1)
    keys.add("b", 2)
    assert keys.victim("a") is None
    keys.add("a", 3)
    assert (keys.victim("a"), keys.victim("b")) == (1, None)
    keys.remove("a", 1)
    assert keys.victim("a") is None


def test_an_owner_without_keys_takes_no_memory() -> None:
    keys: FairEviction[int] = FairEviction(4)
    keys.add("a", 1)
    keys.remove("a", 1)
    assert keys._keys == {}
