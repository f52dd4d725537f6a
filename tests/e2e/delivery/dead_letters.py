# SPDX-License-Identifier: Apache-2.0
"""Dead letters, decoded independently of the streamer."""

from typing import Final, NamedTuple, Self

from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import ZenohSample
from tests.e2e.rigs.wire import Attributes, Status, Uri

DEAD_LETTER_TOPIC: Final = Uri("hpc.vin1", 4, 1, 0x8000)


class DeadLetterMessage(NamedTuple):
    """uprotocol.core.ustreamer.v1.DeadLetter, without its times."""

    attributes: Attributes
    payload: bytes | None
    status: Status
    endpoint: str
    attempts: int

    @classmethod
    def from_sample(cls, sample: ZenohSample) -> Self:
        assert sample.head.payload_format == wire.PROTOBUF
        found = wire.fields(sample.payload)
        return cls(
            Attributes.decode(wire.message_in(found, 1) or b""),
            wire.message_in(found, 2),
            Status.decode(wire.message_in(found, 3) or b""),
            (wire.message_in(found, 4) or b"").decode(),
            wire.number_in(found, 5) or 0,
        )
