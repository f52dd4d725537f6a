# SPDX-License-Identifier: Apache-2.0
"""The uSubscription that the kit plays, and a subject that repeats its calls."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from uprotocol_tck.probe import Entity, Network
from uprotocol_tck.remote import RemoteUsubscription
from uprotocol_tck.uprotocol import Code, Uri, Uuid
from uprotocol_tck.usubscription import DIALECTS, State

DEADLINE_S = 10.0
DIALECT = DIALECTS[3]
TOPIC = Uri("tck.other", 0x77, 1, 0x8001)
SUBSCRIBE = Uri("tck.other", 0, 3, DIALECT.methods.subscribe)


class Subject:
    """Calls the uSubscription `remote`, which holds `TOPIC`."""

    def __init__(self, entity: Entity, remote: RemoteUsubscription) -> None:
        self.entity = entity
        self.remote = remote
        self._count = 0

    def subscribe(self) -> Uuid:
        """Send a Subscribe; returns when it has arrived."""
        id = self.entity.request(SUBSCRIBE, DIALECT.subscribe(TOPIC, None, None))
        self._count += 1
        self.remote.wait_call(TOPIC, subscribe=True, count=self._count)
        return id

    def state(self, id: Uuid) -> State:
        """The granted state in the Response."""
        return DIALECT.read_subscribed(self.entity.wait_response(id, "the Response").payload)[0]


@pytest.fixture
def subject(node: str) -> Iterator[Subject]:
    """A subject and the uSubscription that it calls, connected through one node of Zenoh."""
    with ExitStack() as stack:
        here, there = Network(node, DEADLINE_S), Network(node, DEADLINE_S)
        stack.callback(here.leave)
        stack.callback(there.leave)
        remote = RemoteUsubscription(there, "tck.other")
        stack.callback(remote.close)
        remote.hold(TOPIC)
        yield Subject(Entity(here, Uri("hpc.vin1", 0, 3, 0)), remote)


def test_repeats_of_a_held_call_get_its_answer(subject: Subject) -> None:
    """A subject repeats a call when a node joins, and takes only the answer to the last one."""
    first, early = subject.subscribe(), subject.subscribe()
    subject.remote.wait_call(TOPIC, subscribe=True).answer(State.SUBSCRIBE_PENDING)
    late = subject.subscribe()
    assert {subject.state(each) for each in (first, early, late)} == {State.SUBSCRIBE_PENDING}


def test_repeats_of_a_failed_call_fail(subject: Subject) -> None:
    first, early = subject.subscribe(), subject.subscribe()
    subject.remote.wait_call(TOPIC, subscribe=True).fail(Code.PERMISSION_DENIED)
    late = subject.subscribe()
    heads = [subject.entity.wait_response(each, "the Response").head for each in (first, early, late)]
    assert {each.code for each in heads} == {Code.PERMISSION_DENIED}


def test_the_case_answers_the_repeat_of_an_expired_call(subject: Subject) -> None:
    first = subject.subscribe()
    subject.remote.wait_call(TOPIC, subscribe=True).fail(Code.DEADLINE_EXCEEDED)
    second = subject.subscribe()
    subject.remote.wait_call(TOPIC, subscribe=True, count=2).answer()
    assert subject.entity.wait_response(first, "the Response").head.code is Code.DEADLINE_EXCEEDED
    assert subject.state(second) is State.SUBSCRIBED
    assert len(subject.entity.responses(second)) == 1
