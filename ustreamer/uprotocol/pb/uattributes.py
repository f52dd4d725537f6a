# SPDX-License-Identifier: Apache-2.0
# Made by proto/generate.py, do not edit. What the fields mean is said in
# uprotocol/v1/uattributes.proto
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper as _EnumTypeWrapper

from ustreamer.uprotocol.pb import ucode as _ucode
from ustreamer.uprotocol.pb import uri as _uri
from ustreamer.uprotocol.pb import uuid as _uuid
from ustreamer.uprotocol.pb._pool import POOL as _POOL, message_class as _message_class

DESCRIPTOR = _POOL.AddSerializedFile(
    b'\n\x1euprotocol/v1/uattributes.proto\x12\x0cuprotocol.v1\x1a\x18uprotocol/v1'
    b'/ucode.proto\x1a\x16uprotocol/v1/uri.proto\x1a\x17uprotocol/v1/uuid.prot'
    b'o"\xe2\x04\n\x0bUAttributes\x12"\n\x02id\x18\x01 \x01(\x0b2\x12.uprotocol.v1.UUIDR\x02id\x12.\n\x04typ'
    b'e\x18\x02 \x01(\x0e2\x1a.uprotocol.v1.UMessageTypeR\x04type\x12*\n\x06source\x18\x03 \x01(\x0b2\x12.'
    b'uprotocol.v1.UUriR\x06source\x12&\n\x04sink\x18\x04 \x01(\x0b2\x12.uprotocol.v1.UUriR'
    b'\x04sink\x123\n\x08priority\x18\x05 \x01(\x0e2\x17.uprotocol.v1.UPriorityR\x08priority\x12\x15'
    b'\n\x03ttl\x18\x06 \x01(\rH\x00R\x03ttl\x88\x01\x01\x12.\n\x10permission_level\x18\x07 \x01(\rH\x01R\x0fpermissio'
    b'nLevel\x88\x01\x01\x128\n\ncommstatus\x18\x08 \x01(\x0e2\x13.uprotocol.v1.UCodeH\x02R\ncommst'
    b'atus\x88\x01\x01\x12(\n\x05reqid\x18\t \x01(\x0b2\x12.uprotocol.v1.UUIDR\x05reqid\x12\x19\n\x05token\x18\n'
    b' \x01(\tH\x03R\x05token\x88\x01\x01\x12%\n\x0btraceparent\x18\x0b \x01(\tH\x04R\x0btraceparent\x88\x01\x01\x12C\n\x0ep'
    b'ayload_format\x18\x0c \x01(\x0e2\x1c.uprotocol.v1.UPayloadFormatR\rpayloadFo'
    b'rmatB\x06\n\x04_ttlB\x13\n\x11_permission_levelB\r\n\x0b_commstatusB\x08\n\x06_tokenB\x0e'
    b'\n\x0c_traceparent*\x9f\x01\n\x0cUMessageType\x12\x1d\n\x19UMESSAGE_TYPE_UNSPECIFIED'
    b'\x10\x00\x12\x19\n\x15UMESSAGE_TYPE_PUBLISH\x10\x01\x12\x19\n\x15UMESSAGE_TYPE_REQUEST\x10\x02\x12\x1a\n\x16'
    b'UMESSAGE_TYPE_RESPONSE\x10\x03\x12\x1e\n\x1aUMESSAGE_TYPE_NOTIFICATION\x10\x04*\xab\x01\n'
    b'\tUPriority\x12\x19\n\x15UPRIORITY_UNSPECIFIED\x10\x00\x12\x11\n\rUPRIORITY_CS0\x10\x01\x12\x11\n\r'
    b'UPRIORITY_CS1\x10\x02\x12\x11\n\rUPRIORITY_CS2\x10\x03\x12\x11\n\rUPRIORITY_CS3\x10\x04\x12\x11\n\rUPR'
    b'IORITY_CS4\x10\x05\x12\x11\n\rUPRIORITY_CS5\x10\x06\x12\x11\n\rUPRIORITY_CS6\x10\x07*\x9e\x02\n\x0eUPayl'
    b"oadFormat\x12\x1f\n\x1bUPAYLOAD_FORMAT_UNSPECIFIED\x10\x00\x12+\n'UPAYLOAD_FORMA"
    b'T_PROTOBUF_WRAPPED_IN_ANY\x10\x01\x12\x1c\n\x18UPAYLOAD_FORMAT_PROTOBUF\x10\x02\x12\x18\n'
    b'\x14UPAYLOAD_FORMAT_JSON\x10\x03\x12\x1a\n\x16UPAYLOAD_FORMAT_SOMEIP\x10\x04\x12\x1e\n\x1aUPAYL'
    b'OAD_FORMAT_SOMEIP_TLV\x10\x05\x12\x17\n\x13UPAYLOAD_FORMAT_RAW\x10\x06\x12\x18\n\x14UPAYLOAD'
    b'_FORMAT_TEXT\x10\x07\x12\x17\n\x13UPAYLOAD_FORMAT_SHM\x10\x08b\x06proto3'
)

UMessageType = _EnumTypeWrapper(DESCRIPTOR.enum_types_by_name["UMessageType"])
UMESSAGE_TYPE_UNSPECIFIED = 0
UMESSAGE_TYPE_PUBLISH = 1
UMESSAGE_TYPE_REQUEST = 2
UMESSAGE_TYPE_RESPONSE = 3
UMESSAGE_TYPE_NOTIFICATION = 4

UPriority = _EnumTypeWrapper(DESCRIPTOR.enum_types_by_name["UPriority"])
UPRIORITY_UNSPECIFIED = 0
UPRIORITY_CS0 = 1
UPRIORITY_CS1 = 2
UPRIORITY_CS2 = 3
UPRIORITY_CS3 = 4
UPRIORITY_CS4 = 5
UPRIORITY_CS5 = 6
UPRIORITY_CS6 = 7

UPayloadFormat = _EnumTypeWrapper(DESCRIPTOR.enum_types_by_name["UPayloadFormat"])
UPAYLOAD_FORMAT_UNSPECIFIED = 0
UPAYLOAD_FORMAT_PROTOBUF_WRAPPED_IN_ANY = 1
UPAYLOAD_FORMAT_PROTOBUF = 2
UPAYLOAD_FORMAT_JSON = 3
UPAYLOAD_FORMAT_SOMEIP = 4
UPAYLOAD_FORMAT_SOMEIP_TLV = 5
UPAYLOAD_FORMAT_RAW = 6
UPAYLOAD_FORMAT_TEXT = 7
UPAYLOAD_FORMAT_SHM = 8

UAttributes = _message_class(DESCRIPTOR.message_types_by_name["UAttributes"], __name__)
