# SPDX-License-Identifier: Apache-2.0
# Made by proto/generate.py, do not edit. What the fields mean is said in
# uprotocol/v1/uuid.proto
from ustreamer.uprotocol.pb._pool import POOL as _POOL, message_class as _message_class

DESCRIPTOR = _POOL.AddSerializedFile(
    b'\n\x17uprotocol/v1/uuid.proto\x12\x0cuprotocol.v1"*\n\x04UUID\x12\x10\n\x03msb\x18\x01 \x01(\x06'
    b'R\x03msb\x12\x10\n\x03lsb\x18\x02 \x01(\x06R\x03lsbb\x06proto3'
)

UUID = _message_class(DESCRIPTOR.message_types_by_name["UUID"], __name__)
