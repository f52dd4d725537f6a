# SPDX-License-Identifier: Apache-2.0
"""Messages that share a route have equal decisions."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ustreamer.core.routing.access import AccessPolicy, AccessRule
from ustreamer.core.routing.route_cache import CachedRoute, RouteCache, batch_cache_key, cache_key
from ustreamer.core.routing.router import AuthorityTable, InvalidMessage, Router, RoutingDecision
from ustreamer.core.routing.subscriptions import StaticDirectory
from ustreamer.uprotocol.batch import IdColumns, MessageBatch
from ustreamer.uprotocol.uattributes import UAttributes, UMessageType, UPayloadFormat, UPriority
from ustreamer.uprotocol.ustatus import UCode
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri

METHODS = [UUri("chassis", 0x1234, 1, each) for each in (1, 2, 0, 0x8001, 0xFFFF)]
CALLERS = [UUri("hpc", 0x10, 1, 0), UUri("hpc", 0x10, 1, 1), UUri("mars", 1, 1, 0), UUri("chassis", 1, 1, 0)]
RULES = [AccessRule(allow=False, source="//chassis/1234/1/2", type="response")]
"""Fields that matter for a Response too, by name."""

attributes = st.builds(
    UAttributes,
    type=st.sampled_from([UMessageType.RESPONSE] * 8 + list(UMessageType)),
    source=st.sampled_from(METHODS + CALLERS[2:3]),
    sink=st.sampled_from([*CALLERS, None]),
    priority=st.sampled_from([UPriority.CS4, UPriority.CS6, UPriority.CS3]),
    ttl=st.sampled_from([None, 0, 5, 1_000]),
    permission_level=st.sampled_from([None, 1]),
    commstatus=st.sampled_from([None, UCode.OK, UCode.INTERNAL]),
    reqid=st.one_of(
        st.none(),
        st.builds(
            UUID, st.sampled_from([0x7000, 0x4000, 0x1_7000]), st.sampled_from([1 << 63, 1, 1 << 63 | 5])
        ),
    ),
    token=st.sampled_from([None, "t"]),
    traceparent=st.sampled_from([None, "", "wrong"]),
    payload_format=st.sampled_from([UPayloadFormat.UNSPECIFIED, UPayloadFormat.PROTOBUF]),
    unknown=st.sampled_from([b"", b"\x78\x01"]),
)


def decided(each: UAttributes) -> RoutingDecision | str:
    places = AuthorityTable({"hpc": "backbone", "chassis": "chassis"})
    unicast = {"backbone": False, "chassis": True}
    rules = {"chassis": AccessPolicy("chassis", RULES)}
    try:
        return Router(places, StaticDirectory([]), unicast, rules).decide("chassis", each)
    except InvalidMessage as refused:
        return str(refused)


@given(attributes, attributes)
def test_attributes_with_equal_keys_have_equal_decisions(one: UAttributes, other: UAttributes) -> None:
    # Most random pairs differ in the relevant fields. So the second one copies source and sink of the first.
    other = msgspec.structs.replace(other, source=one.source, sink=one.sink)
    if cache_key(one) == cache_key(other):
        assert decided(one) == decided(other)


def test_valid_responses_share_a_key_and_invalid_ones_do_not() -> None:
    answer = UAttributes(
        type=UMessageType.RESPONSE,
        source=METHODS[0],
        sink=CALLERS[0],
        priority=UPriority.CS4,
        reqid=UUID(0x7000, 1 << 63),
    )
    assert cache_key(answer) == (METHODS[0], CALLERS[0])
    changes: list[dict[str, object]] = [
        {"type": UMessageType.REQUEST},
        {"sink": None},
        {"priority": UPriority.CS3},
        {"reqid": UUID(0x4000, 1 << 63)},
        {"reqid": UUID(0x7000, 1)},
        {"reqid": None},
    ]
    for change in changes:
        other = msgspec.structs.replace(answer, **change)
        assert cache_key(other) is other


reqids = st.lists(
    st.builds(lambda number: UUID(number << 16 | 0x7000, 0b10 << 62 | number), st.integers(0, 2**48 - 1)),
    min_size=1,
    max_size=9,
)


@given(attributes, st.none() | reqids)
def test_a_batch_has_the_key_of_each_of_its_messages(of_all: UAttributes, named: list[UUID] | None) -> None:
    of_all, number = msgspec.structs.replace(of_all, reqid=None), 3 if named is None else len(named)
    batch = MessageBatch(of_all, IdColumns([0x7000] * number, [1 << 63] * number), [b""] * number, named)
    keys = [cache_key(each.attributes) for each in batch]
    # If the key is the attributes, the keys of Responses differ.
    if type(keys[0]) is tuple or named is None:
        assert [batch_cache_key(batch)] * number == keys
    else:
        assert batch_cache_key(batch) == keys[0]
    if named is None:
        assert batch_cache_key(batch) is of_all


@pytest.mark.parametrize("named", [True, False])
def test_a_batch_of_responses_has_the_key_of_source_and_sink(named: bool) -> None:
    answer = UAttributes(
        type=UMessageType.RESPONSE, source=METHODS[0], sink=CALLERS[0], priority=UPriority.CS4
    )
    batch = MessageBatch(
        answer, IdColumns([0x7000], [1 << 63]), [b""], [UUID(0x7000, 1 << 63)] if named else None
    )
    assert batch_cache_key(batch) == ((METHODS[0], CALLERS[0]) if named else answer)


# ------------------------------------------------------------------------------------------------------- bounds, sources

TOPICS = [UUri("chassis", 1, 1, 0x8000 + number) for number in range(6)]
ROUTE = CachedRoute(1, (), RoutingDecision())
keys = st.one_of(
    st.builds(
        UAttributes,
        type=st.just(UMessageType.PUBLISH),
        source=st.sampled_from(TOPICS),
        ttl=st.sampled_from([None, 1, 2]),
    ),
    st.tuples(st.sampled_from(TOPICS), st.sampled_from(CALLERS)),
)


@given(
    st.lists(
        st.one_of(
            keys,
            st.sets(st.sampled_from(TOPICS), max_size=2).map(frozenset),
            st.sampled_from(["index", "clear"]),
        ),
        max_size=60,
    )
)
def test_an_indexed_cache_has_the_routes_of_one_without_index(steps: list[object]) -> None:
    """A key adds a route, a set of topics drops their routes. The reference is a cache that is never indexed."""
    cache, reference = RouteCache(5), RouteCache(5)
    for step in steps:
        if step == "index":
            cache.index_sources()
        elif step == "clear":
            cache.clear()
            reference.clear()
        elif isinstance(step, frozenset):
            cache.drop_sources(step)
            reference.drop_sources(step)
        elif isinstance(step, UAttributes | tuple):
            cache.add(step, ROUTE)
            reference.add(step, ROUTE)
        assert list(cache) == list(reference)
        assert len(cache) <= 5
        if cache._by_source is not None:
            indexed = [key for sources in cache._by_source.values() for key in sources]
            assert sorted(map(repr, indexed)) == sorted(
                repr(key) for key in cache if isinstance(key, UAttributes)
            )
            assert all(cache._by_source.values()), "no empty entry stays"


def test_an_authority_that_fills_the_cache_displaces_no_route_of_others() -> None:
    cache = RouteCache(10)

    def publication(authority: str, number: int) -> UAttributes:
        return UAttributes(type=UMessageType.PUBLISH, source=UUri(authority, number, 1, 0x8000))

    others = [publication("chassis", number) for number in range(5)]
    for key in others:
        cache.add(key, ROUTE)
    flood = [publication("hostile", number) for number in range(1000)]
    for key in flood:
        cache.add(key, ROUTE)
        assert len(cache) <= 10
    assert [*cache] == [*others, *flood[-5:]]
    cache.drop_sources([others[0].source, flood[-1].source])
    cache.add(publication("hostile", 1000), ROUTE)
    cache.add(publication("hostile", 1001), ROUTE)
    assert others[1] in cache
    assert cache._authorities._keys.keys() == {"chassis", "hostile"}
    cache.drop_sources([each.source for each in others])
    assert cache._authorities._keys.keys() == {"hostile"}
