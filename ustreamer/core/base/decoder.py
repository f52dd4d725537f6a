# SPDX-License-Identifier: Apache-2.0
"""The type of a payload decoder: plugins provide decoders, transports and dashboards use them, routing never does."""

from collections.abc import Callable

Decoder = Callable[[bytes], object]
"""From a payload to None, bool, int, float, str, bytes, and lists and dicts (with str keys) of these.

A decoder may raise any exception for a payload that it cannot read. The payload is then shown undecoded.
"""


def min_payload_bytes(decoder: Decoder | None) -> int:
    """The size of the smallest payload that `decoder` reads: `min_size` of the object that it belongs to, or else 0."""
    size: int = getattr(getattr(decoder, "__self__", None), "min_size", 0)
    return size
