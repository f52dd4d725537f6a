# SPDX-License-Identifier: Apache-2.0
"""The mapping between SOME/IP return codes and uProtocol status codes (up-spec, up-l1/someip.adoc).

There are more return codes than UCodes for them, services define their own (0x20 to 0x5E), and an ERROR may have a
payload that only users of the service can read. A uProtocol caller needs one format for every failure. A failure
therefore becomes a UStatus with return code and payload among its details (`SomeipReturnCode` of our proto). A
UStatus with such a detail returns to SOME/IP unchanged: through two streamers, or from a provider that uses SOME/IP
return codes.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from ustreamer.transports.someip.protocol.codec import ReturnCode
from ustreamer.uprotocol.pb import ustatus as pb_status
from ustreamer.uprotocol.pb import ustreamer_v1 as pb_ustreamer
from ustreamer.uprotocol.ustatus import UCode, UStatus

LAST_RETURN_CODE: Final = 0x5E
"""The last return code; 0x5F to 0xFF are invalid, though some bridges send 0xFF."""
# The largest payload in which a detail is searched: the SOME/IP limit and a margin.
_MAX_STATUS_BYTES: Final = 1 << 21


class SomeipFailure(NamedTuple):
    """Return code and payload of an ERROR."""

    return_code: int
    payload: bytes = b""


# Where up-spec names two codes for one UCode: the one that vsomeip-based bridges send. up-spec names none for the
# UCodes that are missing here; they become E_NOT_OK (0xFF, which those bridges send, is invalid). UNIMPLEMENTED is
# our choice.
_RETURN_CODES: Final = {
    UCode.OK: ReturnCode.E_OK,
    UCode.UNKNOWN: ReturnCode.E_NOT_OK,
    UCode.NOT_FOUND: ReturnCode.E_UNKNOWN_SERVICE,
    UCode.INVALID_ARGUMENT: ReturnCode.E_WRONG_MESSAGE_TYPE,
    UCode.UNAVAILABLE: ReturnCode.E_NOT_READY,
    UCode.INTERNAL: ReturnCode.E_NOT_REACHABLE,
    UCode.DEADLINE_EXCEEDED: ReturnCode.E_TIMEOUT,
    UCode.FAILED_PRECONDITION: ReturnCode.E_WRONG_PROTOCOL_VERSION,
    UCode.DATA_LOSS: ReturnCode.E_MALFORMED_MESSAGE,
    UCode.UNIMPLEMENTED: ReturnCode.E_UNKNOWN_METHOD,
}

_UCODES: Final[Mapping[int, UCode]] = {
    ReturnCode.E_OK: UCode.OK,
    ReturnCode.E_NOT_OK: UCode.UNKNOWN,
    ReturnCode.E_UNKNOWN_SERVICE: UCode.NOT_FOUND,
    ReturnCode.E_UNKNOWN_METHOD: UCode.INVALID_ARGUMENT,
    ReturnCode.E_WRONG_MESSAGE_TYPE: UCode.INVALID_ARGUMENT,
    ReturnCode.E_NOT_READY: UCode.UNAVAILABLE,
    ReturnCode.E_NOT_REACHABLE: UCode.INTERNAL,
    ReturnCode.E_TIMEOUT: UCode.DEADLINE_EXCEEDED,
    ReturnCode.E_WRONG_PROTOCOL_VERSION: UCode.FAILED_PRECONDITION,
    ReturnCode.E_WRONG_INTERFACE_VERSION: UCode.FAILED_PRECONDITION,
    ReturnCode.E_MALFORMED_MESSAGE: UCode.DATA_LOSS,
}


# [impl->RPC-371]
def return_code_of(commstatus: UCode | None) -> ReturnCode:
    """The return code for a commstatus; None means success."""
    return ReturnCode.E_OK if commstatus is None else _RETURN_CODES.get(commstatus, ReturnCode.E_NOT_OK)


def ucode_of(return_code: int) -> UCode:
    """The UCode for a return code; UNKNOWN for E2E results, service-specific and reserved codes."""
    return _UCODES.get(return_code, UCode.UNKNOWN)


def return_code_name(return_code: int) -> str:
    known = {int(code): code.name for code in ReturnCode}
    return f"{known.get(return_code, 'not in the standard')} (0x{return_code:02X})"


def encode_failure(status: UStatus, failure: SomeipFailure) -> bytes:
    """The payload of an error Response: `status`, with `failure` as a detail."""
    message = pb_status.UStatus(code=int(status.code), message=status.message)
    # An invalid code appears in the text only. A payload is kept with every code.
    if 0 < failure.return_code <= LAST_RETURN_CODE or failure.payload:
        message.details.add().Pack(pb_ustreamer.SomeipReturnCode(**failure._asdict()))
    return message.SerializeToString()


def decode_failure(payload: bytes) -> SomeipFailure | None:
    """The ERROR inside the payload of an error Response; None if there is none, or the payload is no UStatus."""
    if not payload or len(payload) > _MAX_STATUS_BYTES:
        return None
    status, return_code_detail = pb_status.UStatus(), pb_ustreamer.SomeipReturnCode()
    try:
        status.ParseFromString(payload)
        for detail in status.details:
            if detail.Unpack(return_code_detail) and 0 < return_code_detail.return_code <= LAST_RETURN_CODE:
                return SomeipFailure(return_code_detail.return_code, return_code_detail.payload)
    except DecodeError:
        pass
    return None
