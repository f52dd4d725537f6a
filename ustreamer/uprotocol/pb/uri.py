# SPDX-License-Identifier: Apache-2.0
# Made by proto/generate.py, do not edit. What the fields mean is said in
# uprotocol/v1/uri.proto
from ustreamer.uprotocol.pb._pool import POOL as _POOL, message_class as _message_class

DESCRIPTOR = _POOL.AddSerializedFile(
    b'\n\x16uprotocol/v1/uri.proto\x12\x0cuprotocol.v1"\x8d\x01\n\x04UUri\x12%\n\x0eauthority'
    b'_name\x18\x01 \x01(\tR\rauthorityName\x12\x13\n\x05ue_id\x18\x02 \x01(\rR\x04ueId\x12(\n\x10ue_versio'
    b'n_major\x18\x03 \x01(\rR\x0eueVersionMajor\x12\x1f\n\x0bresource_id\x18\x04 \x01(\rR\nresource'
    b'Id"3\n\tUUriBatch\x12&\n\x04uris\x18\x01 \x03(\x0b2\x12.uprotocol.v1.UUriR\x04urisb\x06pro'
    b'to3'
)

UUri = _message_class(DESCRIPTOR.message_types_by_name["UUri"], __name__)
UUriBatch = _message_class(DESCRIPTOR.message_types_by_name["UUriBatch"], __name__)
