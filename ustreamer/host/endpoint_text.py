# SPDX-License-Identifier: Apache-2.0
"""A SOME/IP endpoint as TOML."""

import re
from typing import Final

import msgspec

from ustreamer.transports.someip.config import SomeipEndpoint

_STRAY: Final = re.compile(r"[^\x20-\x7e]")


def toml_text(name: str, authority: str, endpoint: SomeipEndpoint, origin: str) -> str:
    """A configuration with the endpoint `name` and nothing else; `origin` is a file name for the comment at its top."""
    lines = [
        f"# Made of {_STRAY.sub('?', origin)} by `ustreamer import vsomeip`.",
        f"authority = {quoted(authority)}",
        "",
        f"[endpoints.{name}]",
        'transport = "someip"',
        f"authorities = [{', '.join(map(quoted, endpoint.authorities))}]",
        f"bind = {quoted(endpoint.bind)}",
        f"port = {endpoint.port}",
    ]
    sd = endpoint.sd
    if isinstance(sd, bool):
        lines.append("sd = false")
    else:
        lines.append(
            f"sd = {{ multicast = {quoted(sd.multicast)}, port = {sd.port}, interface = {quoted(sd.interface)} }}"
        )
    for service in endpoint.services:
        lines += ["", f"[[endpoints.{name}.services]]", f"service = {service.service:#06x}"]
        lines += [f"instance = {service.instance:#06x}", f"major = {service.major}"]
        if service.events:
            lines.append("events = [")
            for event in service.events:
                group = "" if event.eventgroup is None else f", eventgroup = {event.eventgroup:#06x}"
                lines.append(f"    {{ id = {event.id:#06x}{group} }},")
            lines.append("]")
        if service.methods:
            lines.append(f"methods = [{', '.join(f'{method:#06x}' for method in service.methods)}]")
        if service.remote is not None:
            lines.append(f"remote = {quoted(service.remote)}")
        if service.offered and service.provider is not None:
            lines += ["offered = true", f"provider = {quoted(service.provider)}"]
    return "\n".join(lines) + "\n"


def quoted(text: str) -> str:
    """A TOML basic string; JSON escapes the same characters in the same way."""
    return msgspec.json.encode(text).decode()
