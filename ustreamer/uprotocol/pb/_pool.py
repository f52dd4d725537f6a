# SPDX-License-Identifier: Apache-2.0
"""The one descriptor pool of this package, and how its generated modules make classes from it.

A pool takes a file name, and a message's full name, once; a second file that differs raises TypeError. In the
default pool ours would clash with every other library that brings its own uprotocol/v1/uri.proto.
"""

from typing import Final, cast

from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.reflection import GeneratedProtocolMessageType

POOL: Final = DescriptorPool()


def message_class(descriptor: Descriptor, module: str, outer: str = "") -> type[Message]:
    """Class of a message and, as its attributes, of the messages nested in it.

    Not message_factory.GetMessageClass: that leaves __module__ empty, so repr shows no module and pickle
    searches all of them, and protobuf's pure Python implementation would not find nested messages.
    """
    qualified = outer + descriptor.name
    nested = {each.name: message_class(each, module, f"{qualified}.") for each in descriptor.nested_types}
    namespace = {**nested, "DESCRIPTOR": descriptor, "__module__": module, "__qualname__": qualified}
    return cast("type[Message]", GeneratedProtocolMessageType(descriptor.name, (Message,), namespace))
