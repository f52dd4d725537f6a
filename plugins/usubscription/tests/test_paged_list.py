# SPDX-License-Identifier: Apache-2.0
"""A list that arrives in pages is whole, or it is known that entries moved."""

from hypothesis import given
from hypothesis import strategies as st
from ustreamer_usubscription.external.codec import ListedChange, Page
from ustreamer_usubscription.external.paged_list import PagedList
from ustreamer_usubscription.model.subscription import SubscriptionRecord

from ustreamer.uprotocol.uuri import UUri

APP = UUri("hpc.vin1", 0x10AB, 1, 0)
ENTRIES = [SubscriptionRecord(UUri("chassis", 0x1234, 1, 0x8000 + number), APP) for number in range(12)]


def page_of(entries: list[SubscriptionRecord], offset: int, size: int) -> Page:
    part = entries[offset : offset + size]
    ends = [b"%x" % each.topic.resource_id for each in (part[:1] + part[-1:])] or [b"", b""]
    return Page(tuple(part), len(part), 0, offset + size < len(entries), *ends)


@given(st.integers(0, 12), st.integers(2, 5))
def test_a_list_that_stays_the_same_is_read_as_a_whole(count: int, size: int) -> None:
    entries, listing = ENTRIES[:count], PagedList()
    listing.begin()
    while not listing.add_page(page_of(entries, listing.next_offset, size)):
        pass
    assert not listing.has_moved
    assert listing.length == count
    assert list(listing.pop_entries().values()) == entries
    assert listing.pop_entries() == {}


@given(st.integers(4, 12), st.integers(2, 3), st.data())
def test_an_entry_that_ends_between_two_pages_is_noticed_if_another_one_is_missing(
    count: int, size: int, data: st.DataObject
) -> None:
    entries, listing = ENTRIES[:count], PagedList()
    listing.begin()
    assert not listing.add_page(page_of(entries, 0, size))
    ended = entries.pop(data.draw(st.integers(0, count - 1)))
    while not listing.add_page(page_of(entries, listing.next_offset, size)):
        pass
    missing = {each.pair for each in entries} - listing.pop_entries().keys() - {ended.pair}
    assert listing.has_moved or not missing


def test_updates_since_the_request_are_applied_after_the_list() -> None:
    listing = PagedList()
    listing.begin()
    listing.changes += [ListedChange(ENTRIES[0], is_routed=False), ListedChange(ENTRIES[3], is_routed=True)]
    assert listing.add_page(page_of(ENTRIES[:2], 0, 5))
    assert list(listing.pop_entries().values()) == [ENTRIES[1], ENTRIES[3]]
    assert listing.changes == []


def test_a_page_with_the_same_bytes_at_the_same_place_is_decoded_once() -> None:
    listing, decoded = PagedList(), []

    def decode() -> Page:
        decoded.append(listing.length)
        return page_of(ENTRIES[:2], 0, 5)

    for payload in (b"a", b"a", b"b"):
        listing.begin()
        listing.add_page(listing.page_in(payload, 3, decode))
        listing.keep_decoded()
    assert len(decoded) == 2
    listing.page_in(b"b", 4, decode)  # of the other version
    assert len(decoded) == 3
