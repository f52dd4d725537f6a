# SPDX-License-Identifier: Apache-2.0
"""Which subscriptions a topic matches."""

from hypothesis import given
from hypothesis import strategies as st
from ustreamer_wamp import broker as module
from ustreamer_wamp.broker import Broker, matches
from ustreamer_wamp.uri import MATCHES, Match

COMPONENT = st.sampled_from(["a", "b", "ab", ""])
URI = st.lists(COMPONENT, min_size=1, max_size=4).map(".".join)


@given(
    desired=st.lists(st.tuples(st.sampled_from(MATCHES), URI), max_size=20),
    topics=st.lists(URI, max_size=10),
)
def test_the_index_finds_the_same_subscriptions_as_a_linear_search(
    desired: list[tuple[Match, str]], topics: list[str]
) -> None:
    broker: Broker[str] = Broker()
    for match, pattern in desired:
        broker.subscribe("me", pattern, match, 0)
    for topic in [*topics, *topics]:  # the second time from the cache
        found = [(each.match, each.topic) for each in broker.matching(topic)]
        assert len(found) == len(set(found))
        assert set(found) == {
            (match, pattern) for match, pattern in desired if matches(pattern, match, topic)
        }
    for id in list(broker.subscriptions_of("me")):
        broker.unsubscribe("me", id)
    assert len(broker) == 0
    assert all(not broker.matching(topic) for topic in topics)
    assert not broker._prefix
    assert not broker._wildcard
    assert not broker._exact


def test_a_prefix_is_one_of_characters() -> None:
    assert matches("com.a.emergency", "prefix", "com.a.emergency-low")
    assert not matches("com.a.emergency.", "prefix", "com.a.emergency-low")


def test_an_empty_component_matches_exactly_one_component() -> None:
    assert matches("up..1", "wildcard", "up.vcu.1")
    assert not matches("up..1", "wildcard", "up.vcu.x.1")
    assert not matches("up..1", "wildcard", "up.1")


def test_answers_that_are_kept_are_bounded() -> None:
    broker: Broker[str] = Broker()
    for number in range(3 * module.MAX_CACHED_TOPICS):
        broker.matching(f"com.{number}")
    assert len(broker._match_cache) <= module.MAX_CACHED_TOPICS


def test_a_new_subscription_is_found_at_once() -> None:
    broker: Broker[str] = Broker()
    assert broker.matching("a") == ()
    first, created = broker.subscribe("me", "a", "exact", 5)
    assert created
    assert broker.matching("a") == (first,)
    again, created = broker.subscribe("you", "a", "exact", 6)
    assert (again, created) == (first, False)
    assert broker.remove_subscriber("me") == [first]
    assert broker.matching("a") == (first,)
    assert broker.remove_subscriber("you") == [first]
    assert broker.matching("a") == ()
    assert broker.get(first.id) is None
