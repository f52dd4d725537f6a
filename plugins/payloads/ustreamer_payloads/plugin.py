# SPDX-License-Identifier: Apache-2.0
"""The plugin: decoders of payloads by topic."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from ustreamer.core.base.decoder import Decoder
from ustreamer.core.routing.sublist import Sublist
from ustreamer.hooks import PluginContext, hookimpl
from ustreamer.transport_port import ConfigWarning, NamedPattern
from ustreamer.uprotocol.ustatus import UStatusError
from ustreamer.uprotocol.uuri import (
    ANY_AUTHORITY,
    ANY_INSTANCE,
    ANY_RESOURCE,
    ANY_TYPE,
    ANY_VERSION,
    UUri,
)
from ustreamer_payloads.compiler import Compiler
from ustreamer_payloads.config import MAX_BYTES, Name, Shape, type_names
from ustreamer_payloads.description import Description
from ustreamer_payloads.errors import PayloadError
from ustreamer_payloads.external_decoders import class_decoder, payload_class

MAX_TYPES: Final = 1024
MAX_TOPICS: Final = 1024


class TopicConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"class_": "class"}):
    """The payloads of `topic`, which can contain wildcards: a type of `types`, or a class "module:Name"."""

    topic: Annotated[str, Meta(examples=["//chassis/1234/1/8001"])]
    type: str | None = None
    class_: str | None = None

    def __post_init__(self) -> None:
        if (self.type is None) == (self.class_ is None):
            raise ValueError("type: expected either a type or a class")


class PayloadsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[plugins.payloads]`. A payload of more than `max_bytes` is not decoded."""

    topics: Annotated[tuple[TopicConfig, ...], Meta(max_length=MAX_TOPICS)] = ()
    types: Annotated[dict[Name, Shape], Meta(max_length=MAX_TYPES)] = {}
    max_bytes: Annotated[int, Meta(ge=1, le=MAX_BYTES)] = 131_072

    def __post_init__(self) -> None:
        self.descriptions()
        _check_overlaps([_pattern(each.topic, index) for index, each in enumerate(self.topics)])

    def patterns(self) -> Sequence[NamedPattern]:
        """See `ustreamer.hooks.ReviewedConfig`."""
        return [
            NamedPattern(f"topics[{index}].topic", _pattern(each.topic, index))
            for index, each in enumerate(self.topics)
        ]

    def warnings(self) -> Sequence[ConfigWarning]:
        """See `ustreamer.hooks.ReviewedConfig`."""
        if not self.topics:
            return (ConfigWarning("", "there are no topics, so no payload is decoded"),)
        used = {each.type for each in self.topics}
        waiting = [self.types[name] for name in used if name in self.types]
        while waiting:
            found = type_names(waiting.pop()) - used
            used |= found
            waiting += [self.types[name] for name in found if name in self.types]
        return [
            ConfigWarning(f"types.{name}", "no topic uses this type", f"leave types.{name} out")
            for name in self.types
            if name not in used
        ]

    def descriptions(self) -> Mapping[str, Description]:
        """The descriptions of the types that topics use, by name. Raises ValueError with the place of an error."""
        compiler = Compiler(self.types)
        compiler.check()
        return {
            each.type: Description(
                each.type, compiler.codec_named(each.type, f"topics[{index}].type"), self.max_bytes
            )
            for index, each in enumerate(self.topics)
            if each.type is not None
        }


class PayloadsPlugin:
    """Decoders for dashboards and taps, from the descriptions in the configuration."""

    Config = PayloadsConfig

    def __init__(self, config: PayloadsConfig, context: PluginContext) -> None:
        """Import the classes that the configuration names. Raises ValueError with the name of an unusable class."""
        self._decoders: Sublist[Decoder] = Sublist()
        descriptions = config.descriptions()
        for index, each in enumerate(config.topics):
            decoder = (
                descriptions[each.type].decode
                if each.type
                else _bounded_class_decoder(each.class_, index, config.max_bytes)
            )
            self._decoders.insert(_pattern(each.topic, index), decoder)

    @hookimpl
    def ustreamer_decoders(self, topic: UUri) -> Decoder | None:
        found = self._decoders.match(topic)
        return found[0] if found else None


def _bounded_class_decoder(path: str | None, index: int, max_bytes: int) -> Decoder:
    try:
        decode = class_decoder(payload_class(path or ""))
    except ValueError as error:
        raise ValueError(f"topics[{index}].class: {error}") from error

    def bounded(payload: bytes) -> object:
        if len(payload) > max_bytes:
            raise PayloadError(f"{len(payload)} bytes, more than max_bytes ({max_bytes})").within(str(path))
        return decode(payload)

    return bounded


def _pattern(topic: str, index: int) -> UUri:
    try:
        return UUri.parse(topic)
    except UStatusError as error:
        raise ValueError(f"topics[{index}].topic: {error.message}") from error


def _check_overlaps(patterns: Sequence[UUri]) -> None:
    """Reject two descriptions of one topic: neither has precedence."""
    exact: dict[UUri, int] = {}
    wild = [(index, each) for index, each in enumerate(patterns) if each.wildcard()]
    for index, topic in enumerate(patterns):
        if topic.wildcard():
            continue
        first = exact.setdefault(topic, index)
        if first != index:
            raise _overlap_error(index, first, topic)
        for other, pattern in wild:
            if pattern.matches(topic):
                raise _overlap_error(index, other, topic)
    for (first, one), (second, two) in combinations(wild, 2):
        if _intersect(one, two):
            raise _overlap_error(second, first, two)


def _overlap_error(index: int, first: int, topic: UUri) -> ValueError:
    return ValueError(
        f"topics[{index}].topic: what is published on {topic} is described by topics[{first}] already"
    )


def _intersect(one: UUri, other: UUri) -> bool:
    """True if at least one topic matches both patterns."""
    pairs = zip(_parts(one), _parts(other), strict=True)
    return all(a == b or wildcard in (a, b) for ((a, wildcard), (b, _)) in pairs)


def _parts(pattern: UUri) -> tuple[tuple[object, object], ...]:
    return (
        (pattern.authority_name, ANY_AUTHORITY),
        (pattern.ue_type, ANY_TYPE),
        (pattern.ue_instance, ANY_INSTANCE),
        (pattern.ue_version_major, ANY_VERSION),
        (pattern.resource_id, ANY_RESOURCE),
    )
