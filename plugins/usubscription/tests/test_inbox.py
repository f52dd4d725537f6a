# SPDX-License-Identifier: Apache-2.0
from threading import Thread

import pytest
from ustreamer_usubscription.inbox import MAX_BATCH, MAX_OF_OWNER, ServiceInbox

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
    inbox: ServiceInbox[int] = ServiceInbox(10_000)
    for number in range(MAX_BATCH + 1):
        inbox.put_nowait(number, str(number % 16))
    sizes = [len(inbox.wait_batch() or ()) for _ in range(2)]
    assert sizes == [MAX_BATCH, 1]


def test_a_batch_has_a_bound_for_each_owner() -> None:
    inbox: ServiceInbox[int] = ServiceInbox(10_000)
    for number in range(2 * MAX_OF_OWNER + 1):
        inbox.put_nowait(number, "greedy")
    sizes = [len(inbox.wait_batch() or ()) for _ in range(3)]
    assert sizes == [MAX_OF_OWNER, MAX_OF_OWNER, 1]


def test_owners_are_served_in_turn_and_keep_their_order() -> None:
    inbox: ServiceInbox[str] = ServiceInbox(10_000)
    for number in range(3):
        inbox.put_nowait(f"greedy {number}", "greedy")
    inbox.put_nowait("other 0", "other")
    inbox.put_nowait("no owner")
    inbox.put_nowait("other 1", "other")
    assert inbox.wait_batch() == ["greedy 0", "other 0", "no owner", "greedy 1", "other 1", "greedy 2"]
    assert len(inbox) == 0


def test_a_batch_ends_at_its_weight_and_the_next_owner_is_first_in_the_next_one() -> None:
    inbox: ServiceInbox[str] = ServiceInbox(10_000)
    for number in range(5):
        inbox.put_nowait(f"query {number}", "greedy", weight=MAX_BATCH // 2)
    assert inbox.wait_batch() == ["query 0", "query 1"]
    inbox.put_nowait("subscribe", "other")
    assert inbox.wait_batch() == ["query 2", "subscribe"]
    assert inbox.wait_batch() == ["query 3", "query 4"]


def test_a_message_above_the_weight_of_a_batch_is_a_batch() -> None:
    inbox: ServiceInbox[str] = ServiceInbox(10)
    inbox.put_nowait("heavy", weight=MAX_BATCH + 1)
    inbox.put_nowait("light")
    assert [inbox.wait_batch(), inbox.wait_batch()] == [["heavy"], ["light"]]


def test_a_full_inbox_rejects_messages_and_retains_its_own() -> None:
    inbox = filled(2, limit=2)
    with pytest.raises(UStatusError, match="2 requests wait for core.usubscription") as refused:
        inbox.put_nowait(message())
    assert refused.value.code is UCode.RESOURCE_EXHAUSTED
    assert inbox.wait_batch() == [message(0), message(1)]


def test_places_in_reserve_are_bounded_too() -> None:
    inbox = filled(2, limit=2)
    inbox.put_nowait(message(2), reserve=1)
    with pytest.raises(UStatusError):
        inbox.put_nowait(message(), reserve=1)
    assert inbox.wait_batch() == [message(0), message(1), message(2)]


def test_a_closed_inbox_refuses_and_gives_out_the_rest() -> None:
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
