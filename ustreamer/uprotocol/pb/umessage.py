# SPDX-License-Identifier: Apache-2.0
# Made by proto/generate.py, do not edit. What the fields mean is said in
# uprotocol/v1/umessage.proto
from ustreamer.uprotocol.pb import uattributes as _uattributes
from ustreamer.uprotocol.pb._pool import POOL as _POOL, message_class as _message_class

DESCRIPTOR = _POOL.AddSerializedFile(
    b'\n\x1buprotocol/v1/umessage.proto\x12\x0cuprotocol.v1\x1a\x1euprotocol/v1/ua'
    b'ttributes.proto"p\n\x08UMessage\x129\n\nattributes\x18\x01 \x01(\x0b2\x19.uprotocol.'
    b'v1.UAttributesR\nattributes\x12\x1d\n\x07payload\x18\x02 \x01(\x0cH\x00R\x07payload\x88\x01\x01B\n\n'
    b'\x08_payloadb\x06proto3'
)

UMessage = _message_class(DESCRIPTOR.message_types_by_name["UMessage"], __name__)
