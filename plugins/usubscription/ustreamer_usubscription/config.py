# SPDX-License-Identifier: Apache-2.0
"""The section `[plugins.usubscription]`."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from ustreamer.transport_port import ConfigWarning, NamedPattern
from ustreamer.uprotocol.ustatus import UStatusError
from ustreamer.uprotocol.uuri import ANY, UUri, check_authority


def is_address(text: str) -> bool:
    """Whether a text is an address pattern; otherwise it is the name of an identity."""
    return text.startswith(("/", "up:"))


LifecycleMode: TypeAlias = Literal["off", "track", "enforce"]


class Permission(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Callers of at most this permission level may subscribe the topics of this pattern."""

    topic: Annotated[str, Meta(examples=["//*/FFFFFFFF/FF/FFFF"])]
    level: Annotated[int, Meta(ge=0)]


class CallerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The permission level of callers: of an address pattern (`"//..."`), or of a verified identity (its name)."""

    caller: Annotated[str, Meta(min_length=1, examples=["//*/FFFFFFFF/FF/0"])]
    level: Annotated[int, Meta(ge=0)]


class DeliveryConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The EventDeliveryConfig of the topics of this pattern; `attributes` go out as StringValue."""

    topic: Annotated[str, Meta(examples=["//*/FFFFFFFF/FF/FFFF"])]
    id: str = ""
    type: str = ""
    attributes: dict[str, str] = {}


class UsubscriptionConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every key has a default; README.md explains each.

    With `external`, core.usubscription of this authority is another process, which the streamer follows.

    `max_subscriptions`, `max_registrations`, `max_topics`, `max_remote_topics` and `map_size_mb` limit the state.
    Each has a share of one authority, `max_..._per_authority`, and so has `max_queued_requests`.
    `max_queued_requests` limits the requests that wait for the disk, `page_size` the records of one response,
    `history` the stored events. `damaged` selects the action for a damaged store. `remote_refresh_s` is the interval
    at which subscriptions at other devices are confirmed. `via` names, by the authority of topics, the device in between
    whose uSubscription is called about them. `legacy_subscriber_field` adds the field that services
    before 2024-08-07 need in calls. `may_reset` lists the uSubscriptions that may reset this one. `callers` has the
    permission levels of callers, which their requests can only lower.
    """

    external: bool = False
    topic_lifecycle: LifecycleMode = "off"
    register_policy: Literal["open", "strict"] = "open"
    dispatchers: tuple[str, ...] = ()
    permission_levels: Annotated[int, Meta(ge=0)] = 5
    permissions: tuple[Permission, ...] = ()
    callers: tuple[CallerConfig, ...] = ()
    may_reset: tuple[str, ...] = ()
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
    # The share of one authority, so that one network cannot take the places of all.
    max_subscriptions_per_authority: Annotated[int, Meta(ge=1, le=10_000_000)] = 10_000
    max_registrations_per_authority: Annotated[int, Meta(ge=1, le=1_000_000)] = 500
    max_topics_per_authority: Annotated[int, Meta(ge=1, le=10_000_000)] = 10_000
    max_queued_requests_per_authority: Annotated[int, Meta(ge=1, le=1_000_000)] = 2_500
    # At 130 bytes each it is 1.3 MB; a smaller one takes effect with the next change.
    history: Annotated[int, Meta(ge=0, le=1_000_000)] = 10_000
    max_queued_requests: Annotated[int, Meta(ge=1, le=1_000_000)] = 10_000
    remote_refresh_s: Annotated[int, Meta(ge=0, le=31_536_000)] = 3600
    via: Annotated[dict[str, str], Meta(max_length=1_000, examples=[{"far.vin1": "near.vin1"}])] = {}
    legacy_subscriber_field: bool = False
    page_size: Annotated[int, Meta(ge=1, le=1_000_000)] = 100_000

    def __post_init__(self) -> None:
        for place, pattern in self._patterns():
            try:
                UUri.parse(pattern)
            except UStatusError as error:
                raise ValueError(f"{place}: {error.message}") from error
        for authority in {*self.via, *self.via.values()}:
            try:
                check_authority(authority, "via")
            except UStatusError as error:
                raise ValueError(error.message) from error
        for authority, upstream in self.via.items():
            if authority == upstream:
                raise ValueError(
                    f"via.{authority}: {upstream!r} is the device itself; expected one in between"
                )
        for index, permission in enumerate(self.permissions):
            if permission.level > self.permission_levels:
                raise ValueError(
                    f"permissions[{index}].level: {permission.level} is above permission_levels: "
                    f"expected at most {self.permission_levels}"
                )

        for index, caller in enumerate(self.callers):
            if caller.level > self.permission_levels:
                raise ValueError(
                    f"callers[{index}].level: {caller.level} is above permission_levels: "
                    f"expected at most {self.permission_levels}"
                )

    def warnings(self) -> Sequence[ConfigWarning]:
        """See `ustreamer.hooks.ReviewedConfig`."""
        lowest = min((each.level for each in self.callers), default=self.permission_levels)
        found = []
        if self.dispatchers and self.register_policy == "open":
            text = 'is not used: with register_policy = "open" every caller may register'
            found.append(ConfigWarning("dispatchers", text, "leave dispatchers out"))
        return found + [
            ConfigWarning(
                f"permissions[{index}].level",
                f"no caller may subscribe these topics: no level of `callers` is at most {each.level}",
                "add [[plugins.usubscription.callers]] with such a level",
            )
            for index, each in enumerate(self.permissions)
            if each.level < lowest
        ]

    def patterns(self) -> Sequence[NamedPattern]:
        """See `ustreamer.hooks.ReviewedConfig`."""
        patterns = [NamedPattern(place, UUri.parse(text)) for place, text in self._patterns()]
        authorities = sorted({*self.via, *self.via.values()})
        return patterns + [
            NamedPattern("via", msgspec.structs.replace(ANY, authority_name=each)) for each in authorities
        ]

    def upstream_of(self, authority: str) -> str:
        """The authority whose uSubscription is called about topics of another device."""
        return self.via.get(authority, authority)

    def _patterns(self) -> Iterator[tuple[str, str]]:
        """(place, text) of every address pattern in the section."""
        yield from ((f"dispatchers[{index}]", text) for index, text in enumerate(self.dispatchers))
        yield from (
            (f"permissions[{index}].topic", each.topic) for index, each in enumerate(self.permissions)
        )
        callers = [
            *((f"may_reset[{index}]", text) for index, text in enumerate(self.may_reset)),
            *((f"callers[{index}].caller", each.caller) for index, each in enumerate(self.callers)),
        ]
        yield from (each for each in callers if is_address(each[1]))
        yield from ((f"delivery[{index}].topic", each.topic) for index, each in enumerate(self.delivery))
