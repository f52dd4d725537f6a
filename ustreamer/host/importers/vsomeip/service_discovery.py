# SPDX-License-Identifier: Apache-2.0
"""Converts the `service-discovery` section of a vsomeip host: the multicast group, the timings and the trusted
networks.
"""

import ipaddress
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from ustreamer.transports.someip.config import EventgroupConfig
from ustreamer.transports.someip.protocol.addresses import format_address
from ustreamer.transports.someip.sd.config import SdTimings

_TIMINGS: Final[Mapping[str, tuple[str, ...]]] = {
    "initial_delay_min": ("initial_delay_min_ms",),
    "initial_delay_max": ("initial_delay_max_ms",),
    "repetitions_base_delay": ("repetitions_base_delay_ms",),
    "repetitions_max": ("repetitions_max",),
    "ttl": ("ttl_offer_s", "ttl_find_s", "ttl_subscribe_s"),
    "cyclic_offer_delay": ("cyclic_offer_delay_ms",),
}
_REASONS: Final[Mapping[str, str]] = {
    "find_debounce_time": "Finds due together are sent together, without a pause",
    "find_initial_debounce_reps": "see `sd.timings`",
    "find_initial_debounce_time": "see `sd.timings`",
    "max_remote_subscribers": "see `sd.limits.peer_subscriptions`, 1024",
    "offer_debounce_time": "Offers due together are sent together, without a pause",
    "request_response_delay": "a response to a multicast comes after `sd.timings.request_response_delay_min_ms` to `_max_ms`",
    "ttl_factor_offers": "the ttl of an Offer is used unchanged",
    "ttl_factor_subscriptions": "the ttl of a Subscribe is used unchanged",
}
_IMPORTED_KEYS: Final = {"enable", "multicast", "port", "protocol", *_TIMINGS}

NoteLeftOut = Callable[[str, str], None]
ParseNumber = Callable[[object], int]


def import_discovery(
    raw: Mapping[str, Any], bind: str, netmask: object, parse_number: ParseNumber, note_left_out: NoteLeftOut
) -> dict[str, Any]:
    """The table `sd` for a host at `bind`. `note_left_out` receives each omission with its place.

    Raises ValueError for an invalid port.
    """
    for key in raw:
        if key not in _IMPORTED_KEYS:
            note_left_out(f"service-discovery.{key}", _REASONS.get(key, "not known"))
    sd: dict[str, Any] = {
        "multicast": str(raw.get("multicast", "224.224.224.0")),
        "port": parse_number(raw.get("port", 30_490)),
        "interface": bind,
    }
    if netmask is not None:
        try:
            sd["networks"] = [str(ipaddress.ip_network(f"{bind}/{netmask}", strict=False))]
        except ValueError:
            note_left_out("netmask", f"left out: {str(netmask)[:60]!r}: expected one such as 255.255.255.0")
    timings = _timings(raw, parse_number, note_left_out)
    if timings:
        sd["timings"] = timings
    return sd


def _timings(raw: Mapping[str, Any], parse_number: ParseNumber, note_left_out: NoteLeftOut) -> dict[str, int]:
    timings: dict[str, int] = {}
    for key, ours in _TIMINGS.items():
        if key in raw:
            try:
                timings |= dict.fromkeys(ours, parse_number(raw[key]))
            except ValueError as error:
                note_left_out(f"service-discovery.{key}", f"left out: {error}")
    try:
        msgspec.convert(timings, SdTimings)
    except ValueError as error:
        note_left_out("service-discovery", f"its timings are left out: {error}")
        return {}
    return timings


def multicast_eventgroups(
    groups: Iterable[tuple[str, Mapping[str, Any]]], parse_number: ParseNumber, note_left_out: NoteLeftOut
) -> Iterator[dict[str, Any]]:
    """The event groups with multicast: as in vsomeip from `threshold` subscribers on, and never with 0."""
    for where, group in groups:
        address, threshold = group.get("multicast"), parse_number(group.get("threshold", 0))
        if address is None or not threshold:
            continue
        try:
            host, port = address["address"], parse_number(address["port"])
            ours = {
                "id": parse_number(group.get("eventgroup")),
                "multicast": format_address((str(host), port)),
                "threshold": threshold,
            }
            msgspec.convert(ours, EventgroupConfig)
        except (KeyError, TypeError, ValueError) as error:
            note_left_out(f"{where}.multicast", f"left out: {error}")
        else:
            yield ours
