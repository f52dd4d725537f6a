# SPDX-License-Identifier: Apache-2.0
"""The access rules of one endpoint for messages that come in there. The first matching rule decides.

    [[endpoints.chassis.access]]
    allow = true
    type = "publish"
    source = "//chassis/1234/1/FFFF"

The router reads the rules when a route is built. Without rules, every message whose source lives behind the endpoint is
accepted. With rules, a message that matches no rule is denied. A Response needs no rule: it belongs to a request that
was accepted at the other endpoint.
"""

from collections.abc import Collection, Sequence
from typing import Annotated, Final, Literal

import msgspec

from ustreamer.core.routing.identity import Identity
from ustreamer.uprotocol.uattributes import UAttributes, UMessageType
from ustreamer.uprotocol.ustatus import UCode, UStatus, UStatusError
from ustreamer.uprotocol.uuri import ANY, ANY_RESOURCE, UUri

MAX_RULES: Final = 256  # a linear search (0.6 us per rule) for each message with a reqid, a token or a trace

TypeName = Literal["publish", "notification", "request", "response"]

TYPES: Final[dict[TypeName, UMessageType]] = {
    "publish": UMessageType.PUBLISH,
    "notification": UMessageType.NOTIFICATION,
    "request": UMessageType.REQUEST,
    "response": UMessageType.RESPONSE,
}


class AccessRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One rule. `source` and `sink` are UUri patterns; a missing pattern matches every UUri.

    A rule with a `sink` does not apply to publications. A rule without a `type` does not apply to Responses.
    `identity` and `role` are those of the verified sender.
    """

    allow: bool
    source: str | None = None
    sink: str | None = None
    type: TypeName | None = None
    identity: str | None = None
    role: str | None = None

    def __post_init__(self) -> None:
        """Raises ValueError for an invalid pattern, and for a rule that no message can match."""
        source, sink = _pattern("source", self.source), _pattern("sink", self.sink)
        if self.type == "publish" and sink is not None:
            raise ValueError("sink: a publication has none; leave it out, or choose another type")
        if not any(_can_match(each, source or ANY, sink) for each in self.message_types):
            what = self.type or "message"
            raise ValueError(
                f"{'source' if sink is None else 'sink'}: no {what} has such a resource "
                "(topics are 8000..FFFE, methods 1..7FFF, reply addresses 0, any is FFFF)"
            )

    @property
    def message_types(self) -> tuple[UMessageType, ...]:
        """The message types that the rule applies to."""
        if self.type is not None:
            return (TYPES[self.type],)
        if self.sink is not None:
            return (UMessageType.NOTIFICATION, UMessageType.REQUEST)
        return (UMessageType.PUBLISH, UMessageType.NOTIFICATION, UMessageType.REQUEST)

    @property
    def patterns(self) -> tuple[UUri, UUri]:
        """The patterns of source and sink."""
        return _pattern("source", self.source) or ANY, _pattern("sink", self.sink) or ANY


AccessRules = Annotated[tuple[AccessRule, ...], msgspec.Meta(max_length=MAX_RULES)]


def _pattern(key: str, text: str | None) -> UUri | None:
    if text is None:
        return None
    try:
        pattern = UUri.parse(text)
    except UStatusError as error:
        raise ValueError(f"{key}: {error.message}") from error
    if not pattern.authority_name:
        raise ValueError(
            f"{key}: {text!r} names no authority; write //<authority>{text.removeprefix('up:')}, or //*"
        )
    return pattern


def _can_match(type: UMessageType, source: UUri, sink: UUri | None) -> bool:
    """Whether the resources of these patterns occur in messages of this type (`RULES` in uattributes.py)."""
    source_resource, sink_resource = source.resource_id, ANY_RESOURCE if sink is None else sink.resource_id
    sink_is_method = sink_resource == ANY_RESOURCE or (sink is not None and sink.is_method)
    match type:
        case UMessageType.PUBLISH:
            return source_resource == ANY_RESOURCE or source.is_topic
        case UMessageType.NOTIFICATION:
            return source_resource != 0 and sink_resource in (0, ANY_RESOURCE)
        case UMessageType.REQUEST:
            return source_resource in (0, ANY_RESOURCE) and sink_is_method
        case _:
            return (source_resource == ANY_RESOURCE or source.is_method) and sink_resource in (
                0,
                ANY_RESOURCE,
            )


class _ParsedRule(msgspec.Struct, frozen=True):
    """A rule with parsed patterns, and its position in the file."""

    position: int
    allow: bool
    source: UUri
    sink: UUri
    identity: str | None = None
    role: str | None = None

    def has_sender(self, identities: Collection[Identity] | None) -> bool:
        """Whether the rule applies to the sender: to allow, every possible identity has to match; to deny, one."""
        if self.identity is None and self.role is None:
            return True
        found = [
            self.identity in (None, each.name) and self.role in (None, each.role) for each in identities or ()
        ]
        return bool(found) and all(found) if self.allow else any(found)


class AccessPolicy:
    """The parsed rules of one endpoint. Reads only; safe from any thread."""

    def __init__(self, endpoint: str, rules: Sequence[AccessRule]) -> None:
        self._section = f"endpoints.{endpoint}.access"
        self._by_type: dict[UMessageType, list[_ParsedRule]] = {type: [] for type in TYPES.values()}
        for index, rule in enumerate(rules):
            for type in rule.message_types:
                self._by_type[type].append(
                    _ParsedRule(index, rule.allow, *rule.patterns, rule.identity, rule.role)
                )
        self._allowed_by_default = {
            type: not rules or type is UMessageType.RESPONSE for type in TYPES.values()
        }

    def deny_reason(
        self, attributes: UAttributes, identities: Collection[Identity] | None = None
    ) -> UStatus | None:
        """The reason to deny a message with these valid attributes of one of `identities`; None if it is accepted."""
        rule = self._first_match(attributes, identities)
        if rule is not None:
            return None if rule.allow else _denied(attributes, f"{self._section}[{rule.position}] denies")
        may_pass = self._allowed_by_default[attributes.type]
        return None if may_pass else _denied(attributes, f"no rule of {self._section} allows")

    def broadcast_deny_reason(self, topic: UUri) -> str:
        """The rule that keeps a broadcast topic from the listeners behind this endpoint; empty if none does.

        A rule to allow counts only if it names the authority of the topic: other rules are about what may come in.
        """
        for rule in self._by_type[UMessageType.PUBLISH]:
            names_it = rule.source.authority_name == topic.authority_name
            if (names_it or not rule.allow) and rule.source.matches(topic) and rule.has_sender(None):
                return "" if rule.allow else f"{self._section}[{rule.position}] denies it"
        return (
            "" if self._allowed_by_default[UMessageType.PUBLISH] else f"no rule of {self._section} allows it"
        )

    def allow_reason(self, attributes: UAttributes, identities: Collection[Identity] | None = None) -> str:
        """The reason why an accepted message is accepted."""
        rule = self._first_match(attributes, identities)
        if rule is not None:
            return f"{self._section}[{rule.position}] allows it"
        return f"{self._section} has no rule about it, and a {attributes.type.name} needs none"

    def _first_match(
        self, attributes: UAttributes, identities: Collection[Identity] | None
    ) -> _ParsedRule | None:
        type, source, sink = attributes.type, attributes.source, attributes.sink
        for rule in self._by_type[type]:
            if (
                rule.source.matches(source)
                and (type is UMessageType.PUBLISH or sink is None or rule.sink.matches(sink))
                and rule.has_sender(identities)
            ):
                return rule
        return None


def _denied(attributes: UAttributes, rule_text: str) -> UStatus:
    sink = "" if attributes.type is UMessageType.PUBLISH else f" to {attributes.sink}"
    return UStatus(
        UCode.PERMISSION_DENIED, f"{rule_text} a {attributes.type.name} from {attributes.source}{sink}"
    )
