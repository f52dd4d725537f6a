# SPDX-License-Identifier: Apache-2.0
# Made by proto/generate.py, do not edit. What the fields mean is said in
# uprotocol/v1/ucode.proto
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Final as _Final, Literal as _Literal, Never as _Never
from typing import final as _final

from google.protobuf import descriptor as _descriptor, message as _message
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import well_known_types as _well_known_types


DESCRIPTOR: _descriptor.FileDescriptor

class _UCode:
    DESCRIPTOR: _descriptor.EnumDescriptor
    OK: _Final = 0
    CANCELLED: _Final = 1
    UNKNOWN: _Final = 2
    INVALID_ARGUMENT: _Final = 3
    DEADLINE_EXCEEDED: _Final = 4
    NOT_FOUND: _Final = 5
    ALREADY_EXISTS: _Final = 6
    PERMISSION_DENIED: _Final = 7
    RESOURCE_EXHAUSTED: _Final = 8
    FAILED_PRECONDITION: _Final = 9
    ABORTED: _Final = 10
    OUT_OF_RANGE: _Final = 11
    UNIMPLEMENTED: _Final = 12
    INTERNAL: _Final = 13
    UNAVAILABLE: _Final = 14
    DATA_LOSS: _Final = 15
    UNAUTHENTICATED: _Final = 16
    def Name(self, number: int) -> str: ...
    def Value(self, name: str) -> int: ...
    def keys(self) -> list[str]: ...
    def values(self) -> list[int]: ...
    def items(self) -> list[tuple[str, int]]: ...
UCode: _Final[_UCode]
OK: _Final = 0
CANCELLED: _Final = 1
UNKNOWN: _Final = 2
INVALID_ARGUMENT: _Final = 3
DEADLINE_EXCEEDED: _Final = 4
NOT_FOUND: _Final = 5
ALREADY_EXISTS: _Final = 6
PERMISSION_DENIED: _Final = 7
RESOURCE_EXHAUSTED: _Final = 8
FAILED_PRECONDITION: _Final = 9
ABORTED: _Final = 10
OUT_OF_RANGE: _Final = 11
UNIMPLEMENTED: _Final = 12
INTERNAL: _Final = 13
UNAVAILABLE: _Final = 14
DATA_LOSS: _Final = 15
UNAUTHENTICATED: _Final = 16
