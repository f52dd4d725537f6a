# SPDX-License-Identifier: Apache-2.0
# Made by proto/generate.py, do not edit. What the fields mean is said in
# google/protobuf/timestamp.proto
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Final as _Final, Literal as _Literal, Never as _Never
from typing import final as _final

from google.protobuf import descriptor as _descriptor, message as _message
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import well_known_types as _well_known_types


DESCRIPTOR: _descriptor.FileDescriptor

@_final
class Timestamp(_message.Message, _well_known_types.Timestamp):
    DESCRIPTOR: _descriptor.Descriptor
    SECONDS_FIELD_NUMBER: _Final = 1
    NANOS_FIELD_NUMBER: _Final = 2
    seconds: int
    nanos: int
    def __init__(self, *, seconds: int | None = ..., nanos: int | None = ...) -> None: ...
    def HasField(self, field_name: _Never) -> bool: ...
