# SPDX-License-Identifier: Apache-2.0
"""The section `[plugins.usubscription]`."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from ustreamer.transport_port import NamedPattern
from ustreamer.uprotocol.ustatus import UStatusError
from ustreamer.uprotocol.uuri import UUri

LifecycleMode: TypeAlias = Literal["off", "track", "enforce"]


class Permission(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Callers of at most this permission level may subscribe the topics of this pattern."""

    topic: Annotated[str, Meta(examples=["//*/FFFFFFFF/FF/FFFF"])]
    level: Annotated[int, Meta(ge=0)]


class DeliveryConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The EventDeliveryConfig of the topics of this pattern; `attributes` go out as StringValue."""

    topic: Annotated[str, Meta(examples=["//*/FFFFFFFF/FF/FFFF"])]
    id: str = ""
    type: str = ""
    attributes: dict[str, str] = {}


class UsubscriptionConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every key has a default; README.md explains each.

    `max_subscriptions`, `max_registrations`, `max_topics`, `max_remote_topics` and `map_size_mb` limit the state.
    `max_queued_requests` limits the requests that wait for the disk, `page_size` the records of one response,
    `history` the stored events. `damaged` selects the action for a damaged store. `remote_refresh_s` is the interval
    at which subscriptions at other devices are confirmed. `legacy_subscriber_field` adds the field that services
    before 2024-08-07 need in calls.
    """

    topic_lifecycle: LifecycleMode = "off"
    register_policy: Literal["open", "strict"] = "open"
    dispatchers: tuple[str, ...] = ()
    permission_levels: Annotated[int, Meta(ge=0)] = 5
    permissions: tuple[Permission, ...] = ()
    delivery: tuple[DeliveryConfig, ...] = ()
    # A million subscriptions written in random order take 322 MB; the file grows only with its content.
    map_size_mb: Annotated[int, Meta(ge=1, le=65_536)] = 512
    damaged: Literal["quarantine", "refuse"] = "quarantine"
    max_subscriptions: Annotated[int, Meta(ge=1, le=10_000_000)] = 1_000_000
    # Each of them may multiply every change of a subscription.
    max_registrations: Annotated[int, Meta(ge=1, le=1_000_000)] = 1_000
    max_topics: Annotated[int, Meta(ge=1, le=10_000_000)] = 100_000
    # Those that are still to be unsubscribed count, too: a device that is away must not make them pile up.
    max_remote_topics: Annotated[int, Meta(ge=1, le=1_000_000)] = 100_000
    # At 130 bytes each it is 1.3 MB; a smaller one takes effect with the next change.
    history: Annotated[int, Meta(ge=0, le=1_000_000)] = 10_000
    max_queued_requests: Annotated[int, Meta(ge=1, le=1_000_000)] = 10_000
    remote_refresh_s: Annotated[int, Meta(ge=0, le=31_536_000)] = 3600
    legacy_subscriber_field: bool = False
    page_size: Annotated[int, Meta(ge=1, le=1_000_000)] = 100_000

    def __post_init__(self) -> None:
        for place, pattern in self._patterns():
            try:
                UUri.parse(pattern)
            except UStatusError as error:
                raise ValueError(f"{place}: {error.message}") from error
        for index, permission in enumerate(self.permissions):
            if permission.level > self.permission_levels:
                raise ValueError(
                    f"permissions[{index}].level: {permission.level} is above permission_levels: "
                    f"expected at most {self.permission_levels}"
                )

    def patterns(self) -> Sequence[NamedPattern]:
        """See `ustreamer.hooks.ReviewedConfig`."""
        return [NamedPattern(place, UUri.parse(text)) for place, text in self._patterns()]

    def _patterns(self) -> Iterator[tuple[str, str]]:
        """(place, text) of every address pattern in the section."""
        yield from ((f"dispatchers[{index}]", text) for index, text in enumerate(self.dispatchers))
        yield from (
            (f"permissions[{index}].topic", each.topic) for index, each in enumerate(self.permissions)
        )
        yield from ((f"delivery[{index}].topic", each.topic) for index, each in enumerate(self.delivery))
