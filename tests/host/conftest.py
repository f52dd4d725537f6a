# SPDX-License-Identifier: Apache-2.0
"""A dispatcher with everything around it as values, as the tests of the core have it."""

from tests.core.conftest import build, holding, unchecked, world
from tests.host.streamer_bench import bench, no_notes

__all__ = ["bench", "build", "holding", "no_notes", "unchecked", "world"]
