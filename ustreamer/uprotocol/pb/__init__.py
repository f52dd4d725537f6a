# SPDX-License-Identifier: Apache-2.0
"""uProtocol's protobuf messages, a module for each .proto file: `from ustreamer.uprotocol.pb import uri`.

uri, uuid, ucode, ustatus, umessage, uattributes     uprotocol.v1
usubscription_v3, usubscription_v4                   uprotocol.core.usubscription
ustreamer_v1                                         uprotocol.core.ustreamer
google_any, google_timestamp                         the google.protobuf types that fields of these have

proto/generate.py makes the modules. Each loads when it is first imported, and those it needs with it.

All of it lives in `POOL`, apart from protobuf's default descriptor pool, so an application may import
another library's uProtocol messages beside ours. Full names and wire format are the standard's: what one
library packs into an Any, the other unpacks. Two things differ from messages in the default pool:

* google_timestamp.Timestamp and google_any.Any have all methods of timestamp_pb2.Timestamp and any_pb2.Any
  but are other classes. CopyFrom from one to the other raises TypeError; go by bytes, or by FromDatetime.
* json_format finds the message in an Any only if told where: descriptor_pool=POOL.
"""

from ustreamer.uprotocol.pb._pool import POOL as POOL
