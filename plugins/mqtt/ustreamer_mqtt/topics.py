# SPDX-License-Identifier: Apache-2.0
"""Topic names and topic filters (`dsn~up-transport-mqtt5-e2e-topic-names~1`, `dsn~up-transport-mqtt5-d2d-topic-names~1`).

    in_vehicle     authority/type/instance/version/resource   of the source, and for all but publications of the sink
    off_vehicle    authority of the source/authority of the sink

Numbers are upper-case hex without leading zeros. Pure.
"""

from collections.abc import Sequence
from typing import Final, Literal

from ustreamer.uprotocol.ustatus import invalid_argument
from ustreamer.uprotocol.uuri import ANY_AUTHORITY, UUri, check_authority
from ustreamer_mqtt.config import MqttEndpoint

Structure = Literal["in_vehicle", "off_vehicle"]

_ANY_ADDRESS: Final = "+/+/+/+"
"""Type, instance, version and resource in a filter."""
_PARTS: Final = 5


def topic_of(source: UUri, sink: UUri | None) -> str:
    """The topic of a message in the vehicle; without a sink, of a publication. INVALID_ARGUMENT for a wildcard.

    [impl->dsn~up-transport-mqtt5-e2e-topic-names~1]
    """
    return (
        _address("source", source)
        if sink is None
        else f"{_address('source', source)}/{_address('sink', sink)}"
    )


def device_topic_of(source: UUri, sink_authority: str) -> str:
    """The topic of all messages from the authority of `source` to another authority.

    [impl->dsn~up-transport-mqtt5-d2d-topic-names~1]
    """
    return f"{source.authority_name}/{sink_authority}"


def _address(name: str, uuri: UUri) -> str:
    wildcard = uuri.wildcard()
    if wildcard:
        raise invalid_argument(
            f"{name} {uuri}: the {wildcard} is a wildcard, expected the address of one entity"
        )
    return (
        f"{uuri.authority_name}/{uuri.ue_id & 0xFFFF:X}/{uuri.ue_id >> 16:X}"
        f"/{uuri.ue_version_major:X}/{uuri.resource_id:X}"
    )


def authorities_of(topic: str, structure: Structure) -> tuple[str, str | None]:
    """The authorities of source and sink in a topic; None without a sink. INVALID_ARGUMENT for any other topic."""
    segments = topic.split("/")
    if structure == "off_vehicle":
        if len(segments) != 2:
            raise invalid_argument(f"topic {topic[:300]!r}: expected authority/authority")
        source, sink = segments[0], segments[1]
    elif len(segments) == _PARTS:
        source, sink = segments[0], ""
    elif len(segments) == 2 * _PARTS:
        source, sink = segments[0], segments[_PARTS]
    else:
        raise invalid_argument(
            f"topic {topic[:300]!r}: expected once or twice authority/type/instance/version/resource"
        )
    for authority in (source, sink):
        if authority == ANY_AUTHORITY:
            raise invalid_argument(f"topic {topic[:300]!r}: the authority is a wildcard")
    check_authority(source, topic[:300])
    if not sink and len(segments) == _PARTS:
        return source, None
    check_authority(sink, topic[:300])
    return source, sink


def filters_of(config: MqttEndpoint) -> Sequence[str]:
    """The topic filters of an endpoint: messages from its authorities only. No two of them match one topic."""
    sources = [_segment(each) for each in _unless_any(config.authorities)]
    sinks = [_segment(each) for each in _unless_any(config.receive_for)]
    if config.topics == "off_vehicle":
        found = [f"{source}/{sink}" for source in sources for sink in sinks]
    else:
        found = [f"{source}/{_ANY_ADDRESS}" for source in sources]
        found += [f"{source}/{_ANY_ADDRESS}/{sink}/{_ANY_ADDRESS}" for source in sources for sink in sinks]
    return [f"$share/{config.shared}/{each}" for each in found] if config.shared else found


def _unless_any(authorities: Sequence[str]) -> Sequence[str]:
    """Without repetitions; the wildcard alone, if it is among them."""
    return [ANY_AUTHORITY] if ANY_AUTHORITY in authorities else list(dict.fromkeys(authorities))


def _segment(authority: str) -> str:
    return "+" if authority == ANY_AUTHORITY else authority
