# SPDX-License-Identifier: Apache-2.0
"""The attacks, by what the attacker can reach. `ALL` has them in the order of the report."""

from typing import Final

from ustreamer.host.attack.attack import Attack
from ustreamer.host.attack.families import (
    discovery,
    floods,
    local_access,
    messages,
    someip_datagrams,
    someip_streams,
    sources,
    subscriptions,
    wamp,
)

ALL: Final[tuple[Attack, ...]] = (
    *sources.ATTACKS,
    *subscriptions.ATTACKS,
    *messages.ATTACKS,
    *floods.ATTACKS,
    *someip_datagrams.ATTACKS,
    *someip_streams.ATTACKS,
    *discovery.ATTACKS,
    *wamp.ATTACKS,
    *local_access.ATTACKS,
)
