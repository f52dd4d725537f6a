# SPDX-License-Identifier: Apache-2.0
"""The section `[plugins.usubscription]`."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta


class UsubscriptionConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every key has a default; README.md explains each.

    `max_subscriptions`, `max_registrations` and `map_size_mb` bound the state, `max_queued_requests` what waits for the
    disk, `page_size` the records in one answer. `damaged` says what becomes of a damaged store.
    """

    topic_lifecycle: Literal["off", "track", "enforce"] = "off"
    # A million subscriptions written in random order take 322 MB; the file grows only as it is used.
    map_size_mb: Annotated[int, Meta(ge=1, le=65_536)] = 512
    damaged: Literal["quarantine", "refuse"] = "quarantine"
    max_subscriptions: Annotated[int, Meta(ge=1, le=10_000_000)] = 1_000_000
    # Each of them may multiply every change of a subscription.
    max_registrations: Annotated[int, Meta(ge=1, le=1_000_000)] = 1_000
    max_queued_requests: Annotated[int, Meta(ge=1, le=1_000_000)] = 10_000
    page_size: Annotated[int, Meta(ge=1, le=1_000_000)] = 100_000
