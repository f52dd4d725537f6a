# SPDX-License-Identifier: Apache-2.0
"""Converts the TCP settings of vsomeip: `reliable` ports, and events sent over TCP."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

NoteLeftOut = Callable[[str, str], None]
"""Receives a place in the file and the reason for its omission."""


def protocol_of(unreliable: int | None, reliable: int | None) -> str:
    """The protocol of a service, by its ports. vsomeip leaves the choice to callers; with both ports UDP is its
    default.
    """
    return "tcp" if reliable is not None and unreliable is None else "udp"


def event_protocol(
    event: Mapping[str, Any],
    place: str,
    service: str,
    ports: tuple[int | None, int | None],
    note_left_out: NoteLeftOut,
) -> dict[str, str]:
    """`protocol` of an event, if it differs from that of its service. `ports` are those of UDP and TCP."""
    is_reliable = event.get("is_reliable")
    if is_reliable is None:
        return {}
    wanted = "tcp" if str(is_reliable).strip().lower() == "true" else "udp"
    unreliable, reliable = ports
    if wanted == service:
        return {}
    if (reliable if wanted == "tcp" else unreliable) is None:
        note_left_out(
            f"{place}.is_reliable",
            f"the service has no port for {wanted.upper()}: it is sent over {service.upper()}",
        )
        return {}
    return {"protocol": wanted}


def has_cookies(reliable: object) -> bool:
    """Whether a `reliable` port enables magic cookies."""
    enabled = reliable.get("enable-magic-cookies") if isinstance(reliable, dict) else None
    return str(enabled).strip().lower() == "true"


def endpoint_keys(ports: Iterable[int], *, cookies: bool, note_left_out: NoteLeftOut) -> dict[str, Any]:
    """`port_tcp` and `tcp` of the endpoint. It listens at one port, even if services of the file use several."""
    keys: dict[str, Any] = {}
    first, *others = sorted(set(ports)) or (None,)
    if first is not None:
        keys["port_tcp"] = first
    for other in others:
        note_left_out(
            "port_tcp", f"an endpoint has one TCP port, {first}: services offered at {other} use it now"
        )
    if cookies:
        keys["tcp"] = {"cookies": True}
    return keys
