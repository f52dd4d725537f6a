# SPDX-License-Identifier: Apache-2.0
# Made by proto/generate.py, do not edit. What the fields mean is said in
# uprotocol/v1/ustatus.proto
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Final as _Final, Literal as _Literal, Never as _Never
from typing import final as _final

from google.protobuf import descriptor as _descriptor, message as _message
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import well_known_types as _well_known_types

from ustreamer.uprotocol.pb import google_any as _google_any
from ustreamer.uprotocol.pb import ucode as _ucode

DESCRIPTOR: _descriptor.FileDescriptor

@_final
class UStatus(_message.Message):
    DESCRIPTOR: _descriptor.Descriptor
    CODE_FIELD_NUMBER: _Final = 1
    MESSAGE_FIELD_NUMBER: _Final = 2
    DETAILS_FIELD_NUMBER: _Final = 3
    code: int
    message: str
    @property
    def details(self) -> _containers.RepeatedCompositeFieldContainer[_google_any.Any]: ...
    def __init__(self, *, code: int | None = ..., message: str | None = ..., details: _Iterable[_google_any.Any] | None = ...) -> None: ...
    def HasField(self, field_name: _Literal["message"]) -> bool: ...
