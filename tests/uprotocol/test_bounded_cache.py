# SPDX-License-Identifier: Apache-2.0
"""A bounded cache keeps the newest entries, and drops one entry at a time."""

from hypothesis import given
from hypothesis import strategies as st

from ustreamer.uprotocol.bounded_cache import BoundedCache


@given(st.integers(1, 5), st.lists(st.integers(0, 8)))
def test_the_newest_keys_are_kept(limit: int, keys: list[int]) -> None:
    cache: BoundedCache[int, int] = BoundedCache(limit)
    model: list[int] = []  # keys in order of their insertion
    for number, key in enumerate(keys):
        cache.add(key, number)
        if key not in model:
            model = [*model, key][-limit:]
        assert list(cache) == model
        assert cache[key] == number
