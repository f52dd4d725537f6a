# SPDX-License-Identifier: Apache-2.0
"""The independent encoders, against vectors of other programs.

Without these vectors two wrong encoders could agree.
"""

import pytest

from tests.e2e.rigs import wire
from tests.e2e.rigs.wire import Attributes, Id, Uri

I = Id(0x018D548EA8E07000, 0x8000000000000001)  # noqa: E741 - as the vectors call it
R = Id(0x018D548EA8E07000, 0x8000000000000002)
TOPIC = Uri("device1", 0x10AB, 3, 0x80CD)
CALLER = Uri("device1", 0x403AB, 3)
METHOD = Uri("device2", 0xCD, 4, 0xB)
REMOTE_TOPIC = Uri("device2", 0x10AB, 3, 0x80CD)

ATTRIBUTES = {
    "0a12090070e0a88e548d0111010000000000008010011a120a076465766963653110ab21180320cd8102": Attributes(
        I, wire.PUBLISH, TOPIC
    ),
    "0a12090070e0a88e548d0111010000000000008010011a120a076465766963653110ab21180320cd8102280330006007": Attributes(
        I, wire.PUBLISH, TOPIC, priority=wire.CS2, ttl=0, payload_format=7
    ),
    "0a12090070e0a88e548d0111010000000000008010041a120a076465766963653110ab21180320cd8102"
    "220f0a076465766963653210ef810c1804": Attributes(I, wire.NOTIFICATION, TOPIC, Uri("device2", 0x300EF, 4)),
    "0a12090070e0a88e548d0111010000000000008010021a0f0a076465766963653110ab8710180322100a0764657669636532"
    "10cd011804200b280530882738025203746f6b6002": Attributes(
        I,
        wire.REQUEST,
        CALLER,
        METHOD,
        priority=wire.CS4,
        ttl=5000,
        permission_level=2,
        token="tok",
        payload_format=wire.PROTOBUF,
    ),
    "0a12090070e0a88e548d0111020000000000008010031a100a076465766963653210cd011804200b220f0a07646576696365"
    "3110ab87101803280530882740054a12090070e0a88e548d01110100000000000080": Attributes(
        R,
        wire.RESPONSE,
        METHOD,
        CALLER,
        priority=wire.CS4,
        ttl=5000,
        commstatus=wire.NOT_FOUND,
        reqid=I,
    ),
}


@pytest.mark.parametrize(("vector", "attributes"), ATTRIBUTES.items())
def test_attributes_are_encoded_and_decoded_as_by_protobuf(vector: str, attributes: Attributes) -> None:
    assert attributes.encode().hex() == vector
    assert Attributes.decode(bytes.fromhex(vector)) == attributes


def test_subscription_messages_are_encoded_and_decoded_as_protobuf_does_it() -> None:
    topic = "0a120a076465766963653210ab21180320cd8102"
    assert wire.subscription_request(REMOTE_TOPIC).hex() == topic
    assert wire.subscription_request(REMOTE_TOPIC, sample_period_ms=1000).hex() == topic + "1a0318e807"
    assert (
        wire.subscription_request(REMOTE_TOPIC, max_frequency=40.0).hex() == topic + "1a09190000000000004440"
    )
    answer = bytes.fromhex("0a0208021a120a076465766963653210ab21180320cd8102")
    assert wire.SubscriptionResponse.decode(answer) == (wire.SUBSCRIBED, REMOTE_TOPIC)
    assert wire.Status.decode(bytes.fromhex("0803120962616420746f706963")) == (3, "bad topic")
    wrapped = wire.pack_any("SubscriptionRequest", wire.subscription_request(REMOTE_TOPIC))
    assert wrapped.hex() == (
        "0a47747970652e676f6f676c65617069732e636f6d2f7570726f746f636f6c2e636f72652e75737562736372697074696f6e2e"
        "76332e537562736372697074696f6e5265717565737412140a120a076465766963653210ab21180320cd8102"
    )
    assert wire.unpack_any("SubscriptionRequest", wrapped) == wire.subscription_request(REMOTE_TOPIC)


@pytest.mark.parametrize(
    ("source", "sink", "key"),
    [
        (TOPIC, None, "up/device1/10AB/0/3/80CD/{}/{}/{}/{}/{}"),
        (TOPIC, Uri("device2", 0x300EF, 4), "up/device1/10AB/0/3/80CD/device2/EF/3/4/0"),
        (CALLER, METHOD, "up/device1/3AB/4/3/0/device2/CD/0/4/B"),
        (Uri("device1", 0, 3), Uri("device2", 0, 3, 1), "up/device1/0/0/3/0/device2/0/0/3/1"),
    ],
)
def test_a_key_has_eleven_chunks_with_the_type_before_the_instance(
    source: Uri, sink: Uri | None, key: str
) -> None:
    assert wire.key(source, sink) == key


@pytest.mark.parametrize(
    ("message", "vector"),
    [
        (
            wire.someip(0xCD, 0xB, wire.SOMEIP_REQUEST, b"hi", client=0x3AB, interface_version=4),
            "00cd000b0000000a03ab0001010400006869",
        ),
        (
            wire.someip(0xCD, 0xB, wire.SOMEIP_ERROR, client=0x3AB, interface_version=4, return_code=2),
            "00cd000b0000000803ab000101048102",
        ),
        (
            wire.someip(0x10AB, 0x80CD, wire.SOMEIP_NOTIFICATION, b"hello", interface_version=3),
            "10ab80cd0000000d000000010103020068656c6c6f",
        ),
    ],
)
def test_a_someip_message_is_as_in_the_standard(message: bytes, vector: str) -> None:
    assert message.hex() == vector


@pytest.mark.parametrize("garbage", ["0a", "0a05", "08", "0b", "ff" * 11, "09000000"])
def test_invalid_protobuf_is_refused(garbage: str) -> None:
    with pytest.raises(ValueError):
        wire.fields(bytes.fromhex(garbage))
