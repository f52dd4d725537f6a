# SPDX-License-Identifier: Apache-2.0
# Made by proto/generate.py, do not edit. What the fields mean is said in
# google/protobuf/timestamp.proto
from ustreamer.uprotocol.pb._pool import POOL as _POOL, message_class as _message_class

DESCRIPTOR = _POOL.AddSerializedFile(
    b'\n\x1fgoogle/protobuf/timestamp.proto\x12\x0fgoogle.protobuf";\n\tTimest'
    b'amp\x12\x18\n\x07seconds\x18\x01 \x01(\x03R\x07seconds\x12\x14\n\x05nanos\x18\x02 \x01(\x05R\x05nanosB\x85\x01\n\x13com.'
    b'google.protobufB\x0eTimestampProtoP\x01Z2google.golang.org/protobu'
    b'f/types/known/timestamppb\xf8\x01\x01\xa2\x02\x03GPB\xaa\x02\x1eGoogle.Protobuf.WellKno'
    b'wnTypesb\x06proto3'
)

Timestamp = _message_class(DESCRIPTOR.message_types_by_name["Timestamp"], __name__)
