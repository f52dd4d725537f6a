# SPDX-License-Identifier: Apache-2.0
"""The descriptor pool of this package, and the class factory for its generated modules.

A pool accepts a file name and a message's full name once; a second, different file raises TypeError. In the
default pool our files would clash with every library that contains its own uprotocol/v1/uri.proto.
"""

from typing import TYPE_CHECKING, Final, cast

from google.protobuf.descriptor import Descriptor
from google.protobuf.internal import api_implementation
from google.protobuf.message import Message

if TYPE_CHECKING or api_implementation.Type() != "upb":
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.reflection import GeneratedProtocolMessageType
else:
    # The same two classes. Their public modules also import the pure Python implementation, which is not used next to
    # upb: 30 of the 594 million instructions of a start, and 1.4 MB.
    try:
        from google._upb._message import DescriptorPool
        from google._upb._message import MessageMeta as GeneratedProtocolMessageType
    except ImportError:  # a later protobuf may give them other names
        from google.protobuf.descriptor_pool import DescriptorPool
        from google.protobuf.reflection import GeneratedProtocolMessageType

POOL: Final = DescriptorPool()


def message_class(descriptor: Descriptor, module: str, outer: str = "") -> type[Message]:
    """Create the class of a message, with the classes of nested messages as attributes.

    Not message_factory.GetMessageClass: it leaves __module__ empty, so repr shows no module, pickle
    searches all modules, and protobuf's pure Python implementation does not find nested messages.
    """
    qualified = outer + descriptor.name
    nested = {each.name: message_class(each, module, f"{qualified}.") for each in descriptor.nested_types}
    namespace = {**nested, "DESCRIPTOR": descriptor, "__module__": module, "__qualname__": qualified}
    return cast("type[Message]", GeneratedProtocolMessageType(descriptor.name, (Message,), namespace))
