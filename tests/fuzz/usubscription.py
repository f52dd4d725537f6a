# SPDX-License-Identifier: Apache-2.0
"""Borders of uSubscription: the payloads of requests, and the attributes of messages."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from ustreamer_usubscription.config import UsubscriptionConfig
from ustreamer_usubscription.directory import InMemoryDirectory
from ustreamer_usubscription.requests import v3, v4
from ustreamer_usubscription.requests.policy import SubscriptionPolicy
from ustreamer_usubscription.requests.requests import CallContext
from ustreamer_usubscription.store.transaction import ServiceState, Transaction

from plugins.usubscription.tests.requests.test_malformed_requests import VALID
from tests.fuzz.border import Border, pure
from ustreamer.uprotocol.uattributes import UPayloadFormat
from ustreamer.uprotocol.ustatus import UStatusError
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri

_OWN: Final = "device1"
_SERVES: Final = frozenset({_OWN, "device2"})
_CALLER: Final = UUri(_OWN, 0x300EF, 4, 0)
_CONFIG: Final = UsubscriptionConfig()
_POLICY: Final = SubscriptionPolicy(_CONFIG, _OWN)
_NOW_MS: Final = 1_700_000_000_000
_ID: Final = UUID(_NOW_MS << 16 | 0x7000, 0b10 << 62)
_MUTATIONS: Final = [*v3.MUTATIONS.values(), *v3.LIFECYCLE_MUTATIONS.values(), *v4.MUTATIONS.values()]
_QUERIES: Final = [*v3.QUERIES.values(), *v4.QUERIES.values()]
_FORMATS: Final = (UPayloadFormat.PROTOBUF, UPayloadFormat.PROTOBUF_WRAPPED_IN_ANY, UPayloadFormat.RAW)
_LIMIT: Final = 100


def take_request(data: bytes) -> None:
    """Bytes 0 and 1 choose the operation and the format; the rest is the payload."""
    if len(data) < 2:
        return
    state = ServiceState(_SERVES, InMemoryDirectory())
    call = CallContext(
        _ID,
        _CALLER,
        _OWN,
        _SERVES,
        data[2:],
        _FORMATS[data[1] % len(_FORMATS)],
        policy=_POLICY,
    )
    at = data[0] % (len(_MUTATIONS) + len(_QUERIES))
    with suppress(UStatusError):
        if at < len(_MUTATIONS):
            response = _MUTATIONS[at](call, Transaction(state, _CONFIG, _NOW_MS))
        else:
            response = _QUERIES[at - len(_MUTATIONS)](call, state, _LIMIT)
        response.SerializeToString()


BORDERS: Final[Mapping[str, Border]] = {
    "usubscription-request": Border(
        pure(take_request),
        [
            bytes([operation, 0]) + payload
            for payload in VALID
            for operation in range(len(_MUTATIONS) + len(_QUERIES))
        ],
    ),
}
