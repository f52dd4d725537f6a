# SPDX-License-Identifier: Apache-2.0
"""The requests for the pages of a list: which answers count, and how long the next request waits."""

from ustreamer_usubscription.external.list_requests import (
    FIRST_PAUSE_NS,
    MAX_ANSWER_NS,
    MAX_OPEN,
    MAX_PAUSE_NS,
    ListRequests,
)

from ustreamer.uprotocol.uuid import UUID

IDS = [UUID(number, 0) for number in range(2 * MAX_OPEN)]
SECOND_NS = 1_000_000_000


def test_each_answer_to_a_request_for_the_page_counts_also_a_late_one() -> None:
    requests = ListRequests()
    requests.add(IDS[0], 3, 0)
    requests.add(IDS[1], 4, 1)
    assert requests.is_awaiting_other(3)
    assert [requests.version_of(each) for each in (*IDS[:3], None)] == [3, 4, None, None]
    requests.remove(IDS[1])
    assert requests.version_of(IDS[1]) is None
    assert not requests.is_awaiting_other(3)


def test_answers_to_an_earlier_page_do_not_count() -> None:
    requests = ListRequests()
    requests.add(IDS[0], 3, 0)
    requests.end_page()
    assert not requests.is_awaiting
    assert requests.version_of(IDS[0]) is None
    requests.add(IDS[1], 3, 1)
    assert (requests.is_awaiting, requests.version_of(IDS[1])) == (True, 3)


def test_the_pause_is_twice_the_longest_time_of_an_answer_since_the_answer_before() -> None:
    requests = ListRequests()
    for number in range(3):
        requests.add(IDS[number], 3, 0)
    requests.on_answer(IDS[0], 2 * SECOND_NS)
    assert requests.pause_ns(0) == 4 * SECOND_NS
    requests.on_answer(IDS[1], 3 * SECOND_NS)
    requests.on_answer(UUID(1, 1), 9 * SECOND_NS)  # of no request
    assert (requests.pause_ns(0), requests.rest_ns) == (4 * SECOND_NS, SECOND_NS)
    requests.on_answer(IDS[2], 3 * SECOND_NS + 2 * MAX_ANSWER_NS)
    assert requests.pause_ns(0) == 2 * MAX_ANSWER_NS


def test_without_an_answer_the_pause_doubles_up_to_its_limit() -> None:
    requests = ListRequests()
    pauses = [requests.pause_ns(number) for number in range(5)]
    assert pauses == [FIRST_PAUSE_NS, 2 * FIRST_PAUSE_NS, *[MAX_PAUSE_NS] * 3]


def test_at_most_the_latest_requests_are_remembered() -> None:
    requests = ListRequests()
    for each in IDS:
        requests.add(each, 3, 0)
    assert [requests.version_of(each) for each in IDS] == [None] * MAX_OPEN + [3] * MAX_OPEN


def test_a_quick_first_page_does_not_shorten_the_wait_for_a_slow_later_page() -> None:
    requests, now_ns, ids = ListRequests(), 0, iter(IDS)
    for page_ns in (1_000_000, 2 * SECOND_NS, 1_000_000):
        id = next(ids)
        requests.add(id, 3, now_ns)
        now_ns += page_ns
        requests.on_answer(id, now_ns)
        requests.end_page()
        if page_ns > SECOND_NS:
            requests.begin_list()
    assert requests.pause_ns(0) == 4 * SECOND_NS
    assert requests.rest_ns == 1_000_000
    requests.begin_list()
    assert requests.pause_ns(0) == FIRST_PAUSE_NS
