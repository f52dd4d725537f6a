# SPDX-License-Identifier: Apache-2.0
# Made by proto/generate.py, do not edit. What the fields mean is said in
# uprotocol/v1/ustatus.proto
from ustreamer.uprotocol.pb import google_any as _google_any
from ustreamer.uprotocol.pb import ucode as _ucode
from ustreamer.uprotocol.pb._pool import POOL as _POOL, message_class as _message_class

DESCRIPTOR = _POOL.AddSerializedFile(
    b'\n\x1auprotocol/v1/ustatus.proto\x12\x0cuprotocol.v1\x1a\x19google/protobuf/'
    b'any.proto\x1a\x18uprotocol/v1/ucode.proto"\x8d\x01\n\x07UStatus\x12\'\n\x04code\x18\x01 \x01('
    b'\x0e2\x13.uprotocol.v1.UCodeR\x04code\x12\x1d\n\x07message\x18\x02 \x01(\tH\x00R\x07message\x88\x01\x01\x12'
    b'.\n\x07details\x18\x03 \x03(\x0b2\x14.google.protobuf.AnyR\x07detailsB\n\n\x08_messageb'
    b'\x06proto3'
)

UStatus = _message_class(DESCRIPTOR.message_types_by_name["UStatus"], __name__)
