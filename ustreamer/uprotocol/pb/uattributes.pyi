# SPDX-License-Identifier: Apache-2.0
# Made by proto/generate.py, do not edit. What the fields mean is said in
# uprotocol/v1/uattributes.proto
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Final as _Final, Literal as _Literal, Never as _Never
from typing import final as _final

from google.protobuf import descriptor as _descriptor, message as _message
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import well_known_types as _well_known_types

from ustreamer.uprotocol.pb import ucode as _ucode
from ustreamer.uprotocol.pb import uri as _uri
from ustreamer.uprotocol.pb import uuid as _uuid

DESCRIPTOR: _descriptor.FileDescriptor

class _UMessageType:
    DESCRIPTOR: _descriptor.EnumDescriptor
    UMESSAGE_TYPE_UNSPECIFIED: _Final = 0
    UMESSAGE_TYPE_PUBLISH: _Final = 1
    UMESSAGE_TYPE_REQUEST: _Final = 2
    UMESSAGE_TYPE_RESPONSE: _Final = 3
    UMESSAGE_TYPE_NOTIFICATION: _Final = 4
    def Name(self, number: int) -> str: ...
    def Value(self, name: str) -> int: ...
    def keys(self) -> list[str]: ...
    def values(self) -> list[int]: ...
    def items(self) -> list[tuple[str, int]]: ...
UMessageType: _Final[_UMessageType]
UMESSAGE_TYPE_UNSPECIFIED: _Final = 0
UMESSAGE_TYPE_PUBLISH: _Final = 1
UMESSAGE_TYPE_REQUEST: _Final = 2
UMESSAGE_TYPE_RESPONSE: _Final = 3
UMESSAGE_TYPE_NOTIFICATION: _Final = 4

class _UPriority:
    DESCRIPTOR: _descriptor.EnumDescriptor
    UPRIORITY_UNSPECIFIED: _Final = 0
    UPRIORITY_CS0: _Final = 1
    UPRIORITY_CS1: _Final = 2
    UPRIORITY_CS2: _Final = 3
    UPRIORITY_CS3: _Final = 4
    UPRIORITY_CS4: _Final = 5
    UPRIORITY_CS5: _Final = 6
    UPRIORITY_CS6: _Final = 7
    def Name(self, number: int) -> str: ...
    def Value(self, name: str) -> int: ...
    def keys(self) -> list[str]: ...
    def values(self) -> list[int]: ...
    def items(self) -> list[tuple[str, int]]: ...
UPriority: _Final[_UPriority]
UPRIORITY_UNSPECIFIED: _Final = 0
UPRIORITY_CS0: _Final = 1
UPRIORITY_CS1: _Final = 2
UPRIORITY_CS2: _Final = 3
UPRIORITY_CS3: _Final = 4
UPRIORITY_CS4: _Final = 5
UPRIORITY_CS5: _Final = 6
UPRIORITY_CS6: _Final = 7

class _UPayloadFormat:
    DESCRIPTOR: _descriptor.EnumDescriptor
    UPAYLOAD_FORMAT_UNSPECIFIED: _Final = 0
    UPAYLOAD_FORMAT_PROTOBUF_WRAPPED_IN_ANY: _Final = 1
    UPAYLOAD_FORMAT_PROTOBUF: _Final = 2
    UPAYLOAD_FORMAT_JSON: _Final = 3
    UPAYLOAD_FORMAT_SOMEIP: _Final = 4
    UPAYLOAD_FORMAT_SOMEIP_TLV: _Final = 5
    UPAYLOAD_FORMAT_RAW: _Final = 6
    UPAYLOAD_FORMAT_TEXT: _Final = 7
    UPAYLOAD_FORMAT_SHM: _Final = 8
    def Name(self, number: int) -> str: ...
    def Value(self, name: str) -> int: ...
    def keys(self) -> list[str]: ...
    def values(self) -> list[int]: ...
    def items(self) -> list[tuple[str, int]]: ...
UPayloadFormat: _Final[_UPayloadFormat]
UPAYLOAD_FORMAT_UNSPECIFIED: _Final = 0
UPAYLOAD_FORMAT_PROTOBUF_WRAPPED_IN_ANY: _Final = 1
UPAYLOAD_FORMAT_PROTOBUF: _Final = 2
UPAYLOAD_FORMAT_JSON: _Final = 3
UPAYLOAD_FORMAT_SOMEIP: _Final = 4
UPAYLOAD_FORMAT_SOMEIP_TLV: _Final = 5
UPAYLOAD_FORMAT_RAW: _Final = 6
UPAYLOAD_FORMAT_TEXT: _Final = 7
UPAYLOAD_FORMAT_SHM: _Final = 8

@_final
class UAttributes(_message.Message):
    DESCRIPTOR: _descriptor.Descriptor
    ID_FIELD_NUMBER: _Final = 1
    TYPE_FIELD_NUMBER: _Final = 2
    SOURCE_FIELD_NUMBER: _Final = 3
    SINK_FIELD_NUMBER: _Final = 4
    PRIORITY_FIELD_NUMBER: _Final = 5
    TTL_FIELD_NUMBER: _Final = 6
    PERMISSION_LEVEL_FIELD_NUMBER: _Final = 7
    COMMSTATUS_FIELD_NUMBER: _Final = 8
    REQID_FIELD_NUMBER: _Final = 9
    TOKEN_FIELD_NUMBER: _Final = 10
    TRACEPARENT_FIELD_NUMBER: _Final = 11
    PAYLOAD_FORMAT_FIELD_NUMBER: _Final = 12
    @property
    def id(self) -> _uuid.UUID: ...
    type: int
    @property
    def source(self) -> _uri.UUri: ...
    @property
    def sink(self) -> _uri.UUri: ...
    priority: int
    ttl: int
    permission_level: int
    commstatus: int
    @property
    def reqid(self) -> _uuid.UUID: ...
    token: str
    traceparent: str
    payload_format: int
    def __init__(self, *, id: _uuid.UUID | None = ..., type: int | None = ..., source: _uri.UUri | None = ..., sink: _uri.UUri | None = ..., priority: int | None = ..., ttl: int | None = ..., permission_level: int | None = ..., commstatus: int | None = ..., reqid: _uuid.UUID | None = ..., token: str | None = ..., traceparent: str | None = ..., payload_format: int | None = ...) -> None: ...
    def HasField(self, field_name: _Literal["id", "source", "sink", "ttl", "permission_level", "commstatus", "reqid", "token", "traceparent"]) -> bool: ...
