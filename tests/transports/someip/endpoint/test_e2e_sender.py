# SPDX-License-Identifier: Apache-2.0
"""The counter of a protected event counts sent events only, from any number of threads."""

from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from ustreamer.transports.someip.endpoint.e2e_sender import E2eSender
from ustreamer.transports.someip.protocol.codec import HEADER_LENGTH
from ustreamer.transports.someip.protocol.e2e import E2eChecker, E2eResult, covered_header
from ustreamer.transports.someip.protocol.e2e_config import E2eConfig
from ustreamer.transports.someip.protocol.mapping import EventTemplate
from ustreamer.uprotocol.umessage import UMessage, publish
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri

CONFIG = E2eConfig(profile="P07", data_id=0x2D)
EVENT = EventTemplate(0x1234, 0x8001, 1, None, CONFIG)
MESSAGE = publish(UUID(0, 0), UUri("hpc", 0x1234, 1, 0x8001), bytes(24))
SESSION = 0x4711


class Receiver:
    """Checks what it is sent."""

    def __init__(self) -> None:
        self._checker = E2eChecker(CONFIG)
        self.results: list[E2eResult] = []

    def __call__(self, datagram: bytes) -> None:
        header = covered_header(SESSION, 1, 0x02, 0)
        assert datagram[8:HEADER_LENGTH] == header
        self.results.append(self._checker.check(header, datagram[HEADER_LENGTH:]))


def test_events_of_several_threads_have_all_counters_in_order() -> None:
    sender, receiver = E2eSender(CONFIG), Receiver()
    with ThreadPoolExecutor(4) as pool:
        for _ in pool.map(lambda _: sender.send(EVENT, SESSION, MESSAGE, receiver), range(200)):
            pass
    assert receiver.results == [E2eResult.OK] * 200


def test_a_refused_event_has_not_used_the_counter() -> None:
    sender, receiver = E2eSender(CONFIG), Receiver()

    def refuse(_: bytes) -> None:
        raise UStatusError(UCode.UNAVAILABLE, "the kernel's queue is full")

    sender.send(EVENT, SESSION, MESSAGE, receiver)
    with pytest.raises(UStatusError, match="queue is full"):
        sender.send(EVENT, SESSION, MESSAGE, refuse)
    sender.send(EVENT, SESSION, MESSAGE, receiver)
    assert receiver.results == [E2eResult.OK, E2eResult.OK]


def test_a_marked_event_is_invalid_for_its_receiver() -> None:
    sender, receiver = E2eSender(CONFIG), Receiver()
    attributes = msgspec.structs.replace(MESSAGE.attributes, commstatus=UCode.DATA_LOSS)
    sender.send(EVENT, SESSION, UMessage(MESSAGE.id, attributes, MESSAGE.payload), receiver)
    sender.send(EVENT, SESSION, MESSAGE, receiver)
    assert receiver.results == [E2eResult.ERROR, E2eResult.OK]
