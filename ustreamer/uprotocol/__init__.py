# SPDX-License-Identifier: Apache-2.0
"""The basic types of Eclipse uProtocol: addresses, ids, attributes, messages, status, and the transport port.

In and out: protobuf bytes and text on one side, frozen values on the other. Imports no other package of this project
and does no I/O. The names are those of the specification: see `docs/architecture.md`.

umessage.py, uattributes.py, uuri.py, uuid.py, ustatus.py   the values and their rules; read umessage.py first
utransport.py                the port that every transport implements
wire.py                      UAttributes and UStatus to and from protobuf; pb/ has the generated modules
batch.py       fast path: many similar messages as columns
rpc.py                       a client for tests, uEntities and the demo
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
