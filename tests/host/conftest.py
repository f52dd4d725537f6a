# SPDX-License-Identifier: Apache-2.0
"""A dispatcher with everything around it as values, as the tests of the core have it."""

from tests.core.conftest import build, holding, unchecked, world

__all__ = ["build", "holding", "unchecked", "world"]
