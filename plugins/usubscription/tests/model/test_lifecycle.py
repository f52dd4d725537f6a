# SPDX-License-Identifier: Apache-2.0
"""The state machine of the standard, row by row."""

import pytest
from ustreamer_usubscription.model.lifecycle import (
    LOCAL_TRANSITIONS,
    REMOTE_TRANSITIONS,
    LifecycleEvent,
    next_status,
)

from ustreamer.core.routing.usubscription_codec import Status

U, PENDING, SUBSCRIBED, LEAVING = Status
WANTED, UNWANTED, GRANTED, DEFERRED, REFUSED, RELEASED = LifecycleEvent

# Written from the diagrams and the text, not from the code: every event in every state.
REMOTE_TOPIC = {
    U: {WANTED: PENDING},
    PENDING: {GRANTED: SUBSCRIBED, REFUSED: U, UNWANTED: LEAVING},
    SUBSCRIBED: {UNWANTED: LEAVING, REFUSED: U, DEFERRED: PENDING},
    LEAVING: {RELEASED: U, WANTED: PENDING},
}
LOCAL_TOPIC = {U: {WANTED: SUBSCRIBED}, SUBSCRIBED: {UNWANTED: U}}


@pytest.mark.parametrize("event", LifecycleEvent)
@pytest.mark.parametrize("status", Status)
def test_a_remote_topic_changes_its_states_as_in_the_standard(status: Status, event: LifecycleEvent) -> None:
    """[utest->dsn~usubscription-state-machine~1]"""
    assert next_status(status, event, remote=True) is REMOTE_TOPIC[status].get(event, status)


@pytest.mark.parametrize("event", LifecycleEvent)
@pytest.mark.parametrize("status", [U, SUBSCRIBED])
def test_a_local_topic_is_never_pending(status: Status, event: LifecycleEvent) -> None:
    """[utest->dsn~usubscription-state-machine~1]"""
    assert next_status(status, event, remote=False) is LOCAL_TOPIC[status].get(event, status)


def test_no_row_of_the_tables_is_empty() -> None:
    assert [
        (status, event)
        for table in (LOCAL_TRANSITIONS, REMOTE_TRANSITIONS)
        for (status, event), to in table.items()
        if to is status
    ] == []
