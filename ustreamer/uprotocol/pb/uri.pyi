# SPDX-License-Identifier: Apache-2.0
# Made by proto/generate.py, do not edit. What the fields mean is said in
# uprotocol/v1/uri.proto
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Final as _Final, Literal as _Literal, Never as _Never
from typing import final as _final

from google.protobuf import descriptor as _descriptor, message as _message
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import well_known_types as _well_known_types


DESCRIPTOR: _descriptor.FileDescriptor

@_final
class UUri(_message.Message):
    DESCRIPTOR: _descriptor.Descriptor
    AUTHORITY_NAME_FIELD_NUMBER: _Final = 1
    UE_ID_FIELD_NUMBER: _Final = 2
    UE_VERSION_MAJOR_FIELD_NUMBER: _Final = 3
    RESOURCE_ID_FIELD_NUMBER: _Final = 4
    authority_name: str
    ue_id: int
    ue_version_major: int
    resource_id: int
    def __init__(self, *, authority_name: str | None = ..., ue_id: int | None = ..., ue_version_major: int | None = ..., resource_id: int | None = ...) -> None: ...
    def HasField(self, field_name: _Never) -> bool: ...

@_final
class UUriBatch(_message.Message):
    DESCRIPTOR: _descriptor.Descriptor
    URIS_FIELD_NUMBER: _Final = 1
    @property
    def uris(self) -> _containers.RepeatedCompositeFieldContainer[UUri]: ...
    def __init__(self, *, uris: _Iterable[UUri] | None = ...) -> None: ...
    def HasField(self, field_name: _Never) -> bool: ...
