# SPDX-License-Identifier: Apache-2.0
"""UCode, UStatus, and the exception that carries them (uProtocol up-core-api `ustatus.proto`, `ucode.proto`)."""

from enum import IntEnum
from typing import Final

import msgspec


class UCode(IntEnum):
    """The status codes of uProtocol; the numbers are those of `google.rpc.Code`."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16

    @classmethod
    def from_number(cls, number: int) -> "UCode":
        """The code with this number; UNKNOWN for a number of a later revision."""
        return _CODES.get(number, cls.UNKNOWN)


_CODES: Final = {int(code): code for code in UCode}


class UStatus(msgspec.Struct, frozen=True):
    """The result of a call: a code and a readable text."""

    code: UCode
    message: str = ""

    def __str__(self) -> str:
        return f"{self.code.name}: {self.message}" if self.message else self.code.name


class UStatusError(Exception):
    """A failure with a UCode, raised by all operations of this package.

    `str()` is `CODE: message`; `status` is the value on the wire.
    """

    def __init__(self, code: UCode, message: str) -> None:
        super().__init__(code, message)
        self.status = UStatus(code, message)

    @property
    def code(self) -> UCode:
        """The code of `status`."""
        return self.status.code

    @property
    def message(self) -> str:
        """The text of `status`."""
        return self.status.message

    def __str__(self) -> str:
        return str(self.status)


def invalid_argument(message: str) -> UStatusError:
    """Return an INVALID_ARGUMENT error to raise; the message names the place, the value and the expected value."""
    return UStatusError(UCode.INVALID_ARGUMENT, message)
