# SPDX-License-Identifier: Apache-2.0
"""The reply to a malformed REQUEST. Its header is the only part that can be trusted.

another protocol version          E_WRONG_PROTOCOL_VERSION
longer than its datagram          E_MALFORMED_MESSAGE
a length less than 8              no reply: ignored (PRS SOME/IP, length field)
fewer than 16 bytes               no reply: there is no header
not a REQUEST, or an error code   no reply: replies to replies would never end
"""

from struct import Struct
from typing import Final

from ustreamer.transports.someip.protocol.codec import (
    HEADER_LENGTH,
    MIN_LENGTH,
    MalformedMessage,
    MalformedReason,
    MessageType,
    ReturnCode,
    pack_header,
)

_HEADER: Final = Struct(">HHIHHBBBB")
_REPLY_CODES: Final = {
    MalformedReason.PROTOCOL_VERSION: ReturnCode.E_WRONG_PROTOCOL_VERSION,
    MalformedReason.LENGTH_BEYOND_DATAGRAM: ReturnCode.E_MALFORMED_MESSAGE,
}


# [impl->RPC-597, RPC-703]
def error_reply(
    datagram: bytes, error: MalformedMessage, error_type: MessageType = MessageType.ERROR
) -> bytes | None:
    """The reply, in our protocol version, to the message at `error.offset` of `datagram`; None: no reply."""
    return_code = _REPLY_CODES.get(error.reason)
    if return_code is None or len(datagram) - error.offset < HEADER_LENGTH:
        return None
    service, method, length, client, session, _, version, kind, code = _HEADER.unpack_from(
        datagram, error.offset
    )
    if kind != MessageType.REQUEST or code != ReturnCode.E_OK or length < MIN_LENGTH:
        return None
    return pack_header(service, method, client, session, version, error_type, return_code, 0)
