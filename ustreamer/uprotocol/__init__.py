# SPDX-License-Identifier: Apache-2.0
"""The basic types of Eclipse uProtocol: addresses, ids, attributes, messages, status, and the transport port.

Imports nothing else of ours and does no I/O. The specification's names are kept: see `docs/architecture.md`.
"""

from ustreamer.uprotocol.uattributes import UAttributes, UMessageType, UPayloadFormat, UPriority
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UCode, UStatus, UStatusError
from ustreamer.uprotocol.utransport import Listener, UTransport
from ustreamer.uprotocol.uuid import UUID, UuidSource
from ustreamer.uprotocol.uuri import UUri

__all__ = [
    "UUID",
    "Listener",
    "UAttributes",
    "UCode",
    "UMessage",
    "UMessageType",
    "UPayloadFormat",
    "UPriority",
    "UStatus",
    "UStatusError",
    "UTransport",
    "UUri",
    "UuidSource",
]
