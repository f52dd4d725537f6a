# SPDX-License-Identifier: Apache-2.0
"""What vsomeip's JSON says of TCP, in our words: `reliable` ports, and which events go there."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

NoteLeftOut = Callable[[str, str], None]
"""Says of a place why it is not carried over."""


def protocol_of(unreliable: int | None, reliable: int | None) -> str:
    """How a service goes by its ports. vsomeip has its callers choose, and where there is a choice UDP is its default."""
    return "tcp" if reliable is not None and unreliable is None else "udp"


def event_protocol(
    event: Mapping[str, Any],
    place: str,
    service: str,
    ports: tuple[int | None, int | None],
    note_left_out: NoteLeftOut,
) -> dict[str, str]:
    """`protocol` of an event where it is not that of its service; `ports` are those of UDP and TCP."""
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
    """Whether a `reliable` port is to have magic cookies."""
    enabled = reliable.get("enable-magic-cookies") if isinstance(reliable, dict) else None
    return str(enabled).strip().lower() == "true"


def endpoint_keys(ports: Iterable[int], *, cookies: bool, note_left_out: NoteLeftOut) -> dict[str, Any]:
    """`port_tcp` and `tcp` of the endpoint; it listens at one port, whatever the services of the file do."""
    keys: dict[str, Any] = {}
    first, *others = sorted(set(ports)) or (None,)
    if first is not None:
        keys["port_tcp"] = first
    for other in others:
        note_left_out(
            "port_tcp", f"an endpoint has one TCP port, {first}: what was offered at {other} is now there"
        )
    if cookies:
        keys["tcp"] = {"cookies": True}
    return keys
