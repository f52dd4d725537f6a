# SPDX-License-Identifier: Apache-2.0
"""Messages of the vehicle for the sessions, as they leave the inbox of the endpoint."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.uuri import UUri

_ENTITY_TYPE: Final = 0x8001


@lru_cache(maxsize=256)
def rate_entity(authority: str, number: int) -> UUri:
    """The uEntity of a rate; number 0 is the plugin itself."""
    return UUri(authority, number << 16 | _ENTITY_TYPE, 1, 0)


VehicleEvent: TypeAlias = tuple[UUri, UMessage, bytes | None]
"""The uEntity of a rate, a publication for it, and the value of its payload (`mapping.pack_value`).

None: the sessions decode the payload.
"""


class VehicleBatch(NamedTuple):
    """Responses and Notifications; the numbers of dropped events by uEntity and topic; events."""

    addressed: Sequence[UMessage]
    dropped: Mapping[tuple[UUri, UUri], int]
    events: Sequence[VehicleEvent]
