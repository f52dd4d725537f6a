# SPDX-License-Identifier: Apache-2.0
"""The type of a payload decoder: plugins provide decoders, transports and dashboards use them, routing never does."""

from collections.abc import Callable

Decoder = Callable[[bytes], object]
"""From a payload to None, bool, int, float, str, bytes, and lists and dicts (with str keys) of these.

A decoder may raise any exception for a payload that it cannot read. The payload is then shown undecoded.
"""
