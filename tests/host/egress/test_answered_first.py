# SPDX-License-Identifier: Apache-2.0
"""A Response waits for the disk only if its Request may be there, and then before it is dispatched."""

from collections.abc import Sequence

from tests.response_batches import batch_of_responses
from ustreamer.host.egress.answered_first import AnsweredFirst
from ustreamer.testing.messages import METHOD, REMOTE_CLIENT, TOPIC, new_id
from ustreamer.uprotocol.umessage import UMessage, publish, request, response
from ustreamer.uprotocol.uuid import UUID

CALLS = [request(new_id(), REMOTE_CLIENT, METHOD, ttl=1_000) for _ in range(3)]
ANSWERS = [response(new_id(), each) for each in CALLS]
EVENT = publish(new_id(), TOPIC)


class Steps:
    """An ingress and a durable queue that note what is called."""

    def __init__(self, *, has_sent_requests: bool) -> None:
        self.has_sent_requests = has_sent_requests
        self.steps: list[tuple[str, list[UUID]]] = []

    def wait_deleted(self, answered: Sequence[UUID]) -> None:
        self.steps.append(("wait", list(answered)))

    def __call__(self, message: UMessage, /) -> None:
        self.steps.append(("message", [message.id]))

    def on_batch(self, messages: Sequence[UMessage], /) -> None:
        self.steps.append(("batch", [each.id for each in messages]))


def test_without_sent_requests_messages_go_on_at_once() -> None:
    steps = Steps(has_sent_requests=False)
    listener = AnsweredFirst(steps, steps)
    listener(ANSWERS[0])
    listener.on_batch([*ANSWERS, EVENT])
    assert steps.steps == [
        ("message", [ANSWERS[0].id]),
        ("batch", [each.id for each in (*ANSWERS, EVENT)]),
    ]


def test_a_response_waits_for_its_request_and_an_event_for_none() -> None:
    steps = Steps(has_sent_requests=True)
    listener = AnsweredFirst(steps, steps)
    listener(EVENT)
    listener(ANSWERS[1])
    assert steps.steps == [
        ("message", [EVENT.id]),
        ("wait", [CALLS[1].id]),
        ("message", [ANSWERS[1].id]),
    ]


def test_a_batch_waits_once_for_all_its_requests() -> None:
    steps = Steps(has_sent_requests=True)
    listener = AnsweredFirst(steps, steps)
    columns = batch_of_responses(ANSWERS)
    assert columns is not None
    for batch in ([ANSWERS[0], EVENT, ANSWERS[2]], columns):
        listener.on_batch(batch)
    assert steps.steps == [
        ("wait", [CALLS[0].id, CALLS[2].id]),
        ("batch", [ANSWERS[0].id, EVENT.id, ANSWERS[2].id]),
        ("wait", [each.id for each in CALLS]),
        ("batch", [each.id for each in ANSWERS]),
    ]
