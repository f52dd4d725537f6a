# SPDX-License-Identifier: Apache-2.0
"""The options and details in messages of clients."""

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from ustreamer_wamp.realm import JoinedSession

_NS_PER_S: Final = 10**9
_LOWEST_HZ: Final = 1e-6


def has_feature(roles: object, role: str, feature: str) -> bool:
    """Whether a client has announced a feature; details of another type announce nothing."""
    found = roles
    for name in (role, "features", feature):
        found = found.get(name) if isinstance(found, dict) else None
    return found is True


def wants_revocation(roles: object) -> bool:
    """Whether a client accepts an unsolicited UNSUBSCRIBED.

    autobahn-python (to 26.10.2) announces this feature and then drops the connection. The code identifies this client
    by a feature that no other client announces.
    """
    return has_feature(roles, "subscriber", "subscription_revocation") and not has_feature(
        roles, "subscriber", "payload_encryption_cryptobox"
    )


def min_period_ns(options: Mapping[str, Any]) -> int:
    """The shortest time between two events, in ns, of the option `max_frequency` (Hz); 0 if there is none."""
    hertz = options.get("max_frequency", options.get("_max_frequency"))
    if hertz is None:
        return 0
    if not _LOWEST_HZ <= hertz < math.inf:
        raise ValueError(f"max_frequency {hertz!r}: expected a finite number of Hz of at least {_LOWEST_HZ}")
    return math.ceil(_NS_PER_S / float(hertz))


def _authid(session: JoinedSession) -> object:
    return session.principal and session.principal.authid


def _authrole(session: JoinedSession) -> object:
    return session.principal and session.principal.role


def _id(session: JoinedSession) -> object:
    return session.id


_LISTS: Final[Mapping[str, Callable[[JoinedSession], object]]] = {
    "exclude": _id,
    "exclude_authid": _authid,
    "exclude_authrole": _authrole,
    "eligible": _id,
    "eligible_authid": _authid,
    "eligible_authrole": _authrole,
}


def eligibility_filter(options: Mapping[str, Any]) -> Callable[[JoinedSession], bool] | None:
    """The filter of receivers by the lists of the publisher, which all apply; None without lists."""
    if not options:
        return None
    lists = [
        (name.startswith("eligible"), read, options[name]) for name, read in _LISTS.items() if name in options
    ]
    if not lists:
        return None

    def wanted(session: JoinedSession) -> bool:
        return all((read(session) in values) is eligible for eligible, read, values in lists)

    return wanted
