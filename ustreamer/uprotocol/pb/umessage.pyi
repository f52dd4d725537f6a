# SPDX-License-Identifier: Apache-2.0
# Made by proto/generate.py, do not edit. What the fields mean is said in
# uprotocol/v1/umessage.proto
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Final as _Final, Literal as _Literal, Never as _Never
from typing import final as _final

from google.protobuf import descriptor as _descriptor, message as _message
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import well_known_types as _well_known_types

from ustreamer.uprotocol.pb import uattributes as _uattributes

DESCRIPTOR: _descriptor.FileDescriptor

@_final
class UMessage(_message.Message):
    DESCRIPTOR: _descriptor.Descriptor
    ATTRIBUTES_FIELD_NUMBER: _Final = 1
    PAYLOAD_FIELD_NUMBER: _Final = 2
    @property
    def attributes(self) -> _uattributes.UAttributes: ...
    payload: bytes
    def __init__(self, *, attributes: _uattributes.UAttributes | None = ..., payload: bytes | None = ...) -> None: ...
    def HasField(self, field_name: _Literal["attributes", "payload"]) -> bool: ...
