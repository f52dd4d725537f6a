# SPDX-License-Identifier: Apache-2.0
from threading import Thread

import pytest
from ustreamer_usubscription.inbox import MAX_BATCH, ServiceInbox

from ustreamer.uprotocol.umessage import UMessage, publish
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri


def message(number: int = 0) -> UMessage:
    return publish(UUID(0x7000, 2 << 62 | number), UUri("a", 1, 1, 0x8000))


def filled(count: int, limit: int = 10_000) -> ServiceInbox[UMessage]:
    inbox: ServiceInbox[UMessage] = ServiceInbox(limit)
    for number in range(count):
        inbox.put_nowait(message(number))
    return inbox


def test_waiting_messages_are_taken_together_and_in_order() -> None:
    inbox = filled(3)
    assert inbox.wait_batch() == [message(0), message(1), message(2)]
    assert len(inbox) == 0


def test_a_batch_has_a_bound() -> None:
    inbox = filled(MAX_BATCH + 1)
    sizes = [len(inbox.wait_batch() or ()) for _ in range(2)]
    assert sizes == [MAX_BATCH, 1]


def test_a_full_inbox_rejects_messages_and_retains_its_own() -> None:
    inbox = filled(2, limit=2)
    with pytest.raises(UStatusError, match="2 requests wait for core.usubscription") as refused:
        inbox.put_nowait(message())
    assert refused.value.code is UCode.RESOURCE_EXHAUSTED
    assert inbox.wait_batch() == [message(0), message(1)]


def test_a_closed_inbox_rejects_messages_and_returns_the_rest() -> None:
    inbox = filled(1)
    inbox.close()
    with pytest.raises(UStatusError) as refused:
        inbox.put_nowait(message())
    assert refused.value.code is UCode.UNAVAILABLE
    assert inbox.wait_batch() == [message(0)]
    assert inbox.wait_batch() is None


def test_waking_gives_an_empty_batch_once() -> None:
    inbox: ServiceInbox[UMessage] = ServiceInbox(1)
    inbox.wake()
    inbox.wake()
    assert inbox.wait_batch() == []
    taken: list[list[UMessage] | None] = []
    waiting = Thread(target=lambda: taken.append(inbox.wait_batch()))
    waiting.start()
    waiting.join(0.05)  # it waits: were it still woken, it would be back at once
    inbox.put_nowait(message())
    waiting.join(20)
    assert taken == [[message()]]


@pytest.mark.parametrize("change", ["put", "wake", "close"])
def test_a_waiting_thread_notices_every_change(change: str) -> None:
    inbox: ServiceInbox[UMessage] = ServiceInbox(1)
    taken: list[list[UMessage] | None] = []
    waiting = Thread(target=lambda: taken.append(inbox.wait_batch()))
    waiting.start()
    {"put": lambda: inbox.put_nowait(message()), "wake": inbox.wake, "close": inbox.close}[change]()
    waiting.join(20)
    assert taken == [{"put": [message()], "wake": [], "close": None}[change]]
