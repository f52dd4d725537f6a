# SPDX-License-Identifier: Apache-2.0
"""For every test of every distribution."""

from hypothesis import settings

# Two busy cores may hold up any single example for longer than the 200 ms that hypothesis allows it.
settings.register_profile("house", deadline=None)
settings.load_profile("house")
