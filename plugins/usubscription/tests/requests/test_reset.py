# SPDX-License-Identifier: Apache-2.0
"""A Reset is executed once, however often its bytes arrive: sent again by a streamer, or replayed by a hostile host."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import pytest
from ustreamer_usubscription.config import UsubscriptionConfig
from ustreamer_usubscription.directory import InMemoryDirectory
from ustreamer_usubscription.model.subscription import SubscriptionRecord
from ustreamer_usubscription.requests.operations import MAX_AHEAD_MS
from ustreamer_usubscription.store.transaction import ServiceState, Transaction

from ustreamer.uprotocol.umessage import UMessage, request
from ustreamer.uprotocol.ustatus import UCode
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri
from ustreamer.uprotocol.wire import decode_status

if TYPE_CHECKING:
    from tests.conftest import ServiceRig

MakeRig = Callable[..., "ServiceRig"]

OWN, SERVED = "device1", "device2"
APP = UUri(OWN, 0x300EF, 4, 0)
TOPIC = UUri(SERVED, 0x10AB, 3, 0x80CD)
OTHER_TOPIC = UUri(OWN, 0x42, 1, 0x8000)
SUBSCRIBE: Final = 1
METHODS: Final = [(3, 9), (4, 6)]
DAY_MS: Final = 86_400_000


def reset_at(made_ms: int, version: int = 3, method: int = 9, *, authority: str = "device3") -> UMessage:
    """A Reset made at `made_ms`, by the uSubscription of another device."""
    id = UUID(made_ms << 16 | 0x7000, 2 << 62 | 7)
    return request(id, UUri(authority, 0, version, 0), UUri(OWN, 0, version, method), ttl=2 * DAY_MS)


def send(rig: "ServiceRig", message: UMessage) -> UCode:
    """Send a message, also a second time; the code of its answer."""
    rig.client.send(message)
    answer = rig.wait_response(message.id)
    return UCode.OK if answer.attributes.commstatus is None else decode_status(answer.payload).code


@pytest.mark.parametrize(("version", "method"), METHODS)
def test_a_copy_gets_the_same_answer_and_is_not_executed(
    rig: "ServiceRig", version: int, method: int
) -> None:
    rig.subscribe()
    reset = reset_at(rig.now_ms, version, method)
    assert send(rig, reset) is UCode.OK
    assert rig.pairs() == []
    rig.subscribe()
    rig.register()
    assert send(rig, reset) is UCode.OK
    assert rig.pairs() == [(TOPIC, APP)]
    assert rig.registered_observers()
    rig.advance(ms=1)
    assert send(rig, reset_at(rig.now_ms, version, method)) is UCode.OK
    assert rig.pairs() == []


def test_a_copy_in_the_same_transaction_is_not_executed(rig: "ServiceRig") -> None:
    rig.subscribe()
    reset = reset_at(rig.now_ms)
    with rig.service_blocked():
        rig.client.send(reset)
        rig.send_request(SUBSCRIBE, rig.subscription_request(OTHER_TOPIC))
        rig.client.send(reset)
    rig.wait_until(lambda: rig.response_order.count(reset.id) == 2, "both answers")
    assert rig.pairs() == [(OTHER_TOPIC, APP)]


def test_a_copy_from_another_caller_is_denied(rig: "ServiceRig") -> None:
    reset = reset_at(rig.now_ms)
    assert send(rig, reset) is UCode.OK
    rig.subscribe()
    assert send(rig, reset_at(rig.now_ms, authority="device9")) is UCode.PERMISSION_DENIED
    assert rig.pairs() == [(TOPIC, APP)]


def test_a_copy_from_before_a_restart_is_aborted_and_a_new_reset_is_executed(rig: "ServiceRig") -> None:
    reset = reset_at(rig.now_ms)
    assert send(rig, reset) is UCode.OK
    rig.subscribe()
    rig.advance(ms=300)
    rig.restart()
    assert send(rig, reset) is UCode.ABORTED
    assert rig.pairs() == [(TOPIC, APP)]
    assert send(rig, reset_at(rig.now_ms)) is UCode.OK
    assert rig.pairs() == []


@pytest.mark.parametrize(("ahead_ms", "code"), [(MAX_AHEAD_MS, UCode.OK), (MAX_AHEAD_MS + 1, UCode.ABORTED)])
def test_a_reset_from_the_future_is_aborted(rig: "ServiceRig", ahead_ms: int, code: UCode) -> None:
    rig.subscribe()
    assert send(rig, reset_at(rig.now_ms + ahead_ms)) is code
    assert bool(rig.pairs()) is (code is UCode.ABORTED)


@pytest.mark.parametrize("step_s", [86_400, -86_400])
def test_a_clock_step_after_the_start_refuses_no_new_reset(rig: "ServiceRig", step_s: int) -> None:
    rig.subscribe()
    rig.advance(s=5)
    rig.advance(s=step_s, wall_only=True)
    assert send(rig, reset_at(rig.now_ms - 1_000)) is UCode.OK
    assert rig.pairs() == []


def test_a_reset_that_was_not_committed_is_executed_when_it_is_sent_again() -> None:
    state, id = ServiceState({OWN}, InMemoryDirectory()), UUID(0x7000, 2 << 62)
    first = Transaction(state, UsubscriptionConfig(), 0)
    first.put_subscription(SubscriptionRecord(OTHER_TOPIC, APP))
    state.apply(first)
    refused, again, copy = (Transaction(state, UsubscriptionConfig(), 0) for _ in range(3))
    assert refused.reset_once(id, "")
    assert again.reset_once(id, "")
    state.apply(again)
    assert not copy.reset_once(id, "")
    assert len(state.executed_resets) == 1
