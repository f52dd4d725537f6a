# SPDX-License-Identifier: Apache-2.0
"""The description of an attack, and the parts of a configuration that an attack needs."""

from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from ustreamer.host.attack.scene import Scene


class Need(StrEnum):
    """A part of a configuration. An attack without its parts does not apply."""

    ZENOH = "a Zenoh network without authentication"
    OUTER = "a Zenoh network without authentication, apart from the streamer's own authority"
    USUBSCRIPTION = "the plugin usubscription"
    PERMISSIONS = "a topic with a permission level"
    SOMEIP = "a SOME/IP network"
    OFFERED = "a service that the streamer offers on SOME/IP"
    OFFERED_METHOD = "a method that the streamer offers on SOME/IP"
    ECU_METHOD = "a method of an ECU over UDP"
    SOMEIP_TCP = "a SOME/IP port over TCP"
    SD = "SOME/IP service discovery"
    FOUND_SERVICE = "a SOME/IP service without a configured address"
    WAMP = "the plugin wamp without TLS"
    WAMP_USERS = "a WAMP user with a ticket"
    WAMP_ANONYMOUS = "anonymous WAMP clients"
    OBSERVE = "metrics"


class Attack(msgspec.Struct, frozen=True):
    """One attack. `aim` is what the attacker tries, a sentence without a subject.

    `run` attacks for one window, `Scene.seconds`. It returns the effect of the attack: "" if it has none, else a clause
    such as "an outsider read the routes". The probe measures the vehicle path meanwhile.
    """

    name: str
    family: str
    aim: str
    needs: tuple[Need, ...]
    run: "Callable[[Scene], str]"
