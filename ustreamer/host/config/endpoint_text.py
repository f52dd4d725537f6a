# SPDX-License-Identifier: Apache-2.0
"""Formats a SOME/IP endpoint as TOML, for importers."""

import re
from typing import Final

import msgspec

from ustreamer.transports.someip.config import (
    EventConfig,
    EventgroupConfig,
    MethodConfig,
    ServiceConfig,
    SomeipEndpoint,
)
from ustreamer.transports.someip.protocol.e2e_config import E2eConfig
from ustreamer.transports.someip.protocol.tp_config import TpSegmentation
from ustreamer.transports.someip.sd.config import SdConfig, SdTimings

_STRAY: Final = re.compile(r"[^\x20-\x7e]")


def toml_text(name: str, authority: str, endpoint: SomeipEndpoint, origin: str, kind: str = "vsomeip") -> str:
    """A configuration with only the endpoint `name`. `origin` is a file name for the comment at its top, `kind` that of
    `ustreamer import`.
    """
    lines = [
        f"# Made of {_STRAY.sub('?', origin)} by `ustreamer import {kind}`.",
        f"authority = {quoted(authority)}",
        "",
        f"[endpoints.{name}]",
        'transport = "someip"',
        f"authorities = [{', '.join(map(quoted, endpoint.authorities))}]",
        f"bind = {quoted(endpoint.bind)}",
        f"port = {endpoint.port}",
        *([] if endpoint.port_tcp is None else [f"port_tcp = {endpoint.port_tcp}"]),
        *(["tcp = { cookies = true }"] if endpoint.tcp.cookies else []),
    ]
    sd = endpoint.sd
    if isinstance(sd, bool):
        lines.append("sd = false")
    else:
        lines += ["", f"[endpoints.{name}.sd]", *_discovery(sd)]
        timings = _changed_timings(sd.timings)
        if timings:
            lines += ["", f"[endpoints.{name}.sd.timings]", *timings]
    for service in endpoint.services:
        lines += ["", f"[[endpoints.{name}.services]]", f"service = {service.service:#06x}"]
        lines += [f"instance = {service.instance:#06x}", f"major = {service.major}"]
        if service.events:
            lines.append("events = [")
            for event in service.events:
                field = ", field = true" if event.field else ""
                more = f"{_own_protocol(event)}{_own_tp(event)}{field}{_e2e(event)}"
                lines.append(f"    {{ id = {event.id:#06x}{_groups(event)}{more} }},")
            lines.append("]")
        if service.eventgroups:
            lines += ["eventgroups = [", *map(_eventgroup, service.eventgroups), "]"]
        if service.methods:
            lines.append(f"methods = [{', '.join(map(_method, service.methods))}]")
        if service.protocol != "udp":
            lines.append(f"protocol = {quoted(service.protocol)}")
        if service.tp is not False:
            lines.append(f"tp = {_tp(service.tp)}")
        if service.remote is not None:
            lines.append(f"remote = {quoted(service.remote)}")
        if service.remote_tcp is not None:
            lines.append(f"remote_tcp = {quoted(service.remote_tcp)}")
        if service.offered and service.provider is not None:
            lines += ["offered = true", f"provider = {quoted(service.provider)}"]
            lines += _own_ports(service)
    return "\n".join(lines) + "\n"


def _discovery(sd: SdConfig) -> list[str]:
    lines = [
        f"multicast = {quoted(sd.multicast)}",
        f"port = {sd.port}",
        f"interface = {quoted(sd.interface)}",
    ]
    if sd.networks is not None:
        lines.append(f"networks = [{', '.join(map(quoted, sd.networks))}]")
    return lines


def _changed_timings(timings: SdTimings) -> list[str]:
    usual = msgspec.structs.asdict(SdTimings())
    return [
        f"{key} = {value}" for key, value in msgspec.structs.asdict(timings).items() if value != usual[key]
    ]


def _groups(event: EventConfig) -> str:
    if event.eventgroup is None:
        return ""
    numbers = ", ".join(f"{group:#06x}" for group in event.eventgroup_ids)
    return f", eventgroup = {numbers if len(event.eventgroup_ids) == 1 else f'[{numbers}]'}"


def _eventgroup(group: EventgroupConfig) -> str:
    return f"    {{ id = {group.id:#06x}, multicast = {quoted(group.multicast)}, threshold = {group.threshold} }},"


def _method(method: MethodConfig | int) -> str:
    if isinstance(method, int):
        return f"{method:#06x}"
    no_return = ", no_return = true" if method.no_return else ""
    return f"{{ id = {method.id:#06x}{_own_protocol(method)}{_own_tp(method)}{no_return} }}"


def _own_protocol(message: EventConfig | MethodConfig) -> str:
    return "" if message.protocol is None else f", protocol = {quoted(message.protocol)}"


def _own_ports(service: ServiceConfig) -> list[str]:
    keys = ("minor", "port", "port_tcp")
    return [f"{key} = {value}" for key in keys if (value := getattr(service, key))]


def _e2e(event: EventConfig) -> str:
    """`e2e` with the keys that differ from the defaults."""
    if event.e2e is None:
        return ""
    usual = msgspec.structs.asdict(E2eConfig(profile=event.e2e.profile, data_id=event.e2e.data_id))
    keys = [f"profile = {quoted(event.e2e.profile)}", f"data_id = {event.e2e.data_id:#x}"]
    for key, value in msgspec.structs.asdict(event.e2e).items():
        if value != usual[key]:
            keys.append(f"{key} = {msgspec.json.encode(value).decode()}")
    return f", e2e = {{ {', '.join(keys)} }}"


def _own_tp(message: EventConfig | MethodConfig) -> str:
    return "" if message.tp is None else f", tp = {_tp(message.tp)}"


def _tp(tp: bool | TpSegmentation) -> str:
    if isinstance(tp, bool):
        return str(tp).lower()
    return f"{{ segment_bytes = {tp.segment_bytes}, separation_us = {tp.separation_us} }}"


def quoted(text: str) -> str:
    """A TOML basic string; JSON escapes the same characters in the same way."""
    return msgspec.json.encode(text).decode()
