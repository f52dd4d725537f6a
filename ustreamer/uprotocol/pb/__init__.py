# SPDX-License-Identifier: Apache-2.0
"""uProtocol's protobuf messages, a module for each .proto file: `from ustreamer.uprotocol.pb import uri`.

uri, uuid, ucode, ustatus, umessage, uattributes     uprotocol.v1
usubscription_v3, usubscription_v4                   uprotocol.core.usubscription
ustreamer_v1                                         uprotocol.core.ustreamer
google_any, google_timestamp                         the google.protobuf types that fields of these have

proto/generate.py generates the modules. Each loads at its first import, together with the modules that it needs.

All messages are in `POOL`, separate from protobuf's default descriptor pool, so an application can import
another library's uProtocol messages next to ours. Full names and wire format are those of the standard: an Any
packed by one library can be unpacked by the other. Two differences from messages in the default pool:

* google_timestamp.Timestamp and google_any.Any have all methods of timestamp_pb2.Timestamp and any_pb2.Any
  but are other classes. CopyFrom from one to the other raises TypeError; convert by bytes or FromDatetime.
* json_format finds the message in an Any only with descriptor_pool=POOL.
"""

from ustreamer.uprotocol.pb._pool import POOL as POOL
