# SPDX-License-Identifier: Apache-2.0
"""The raw cases: the reaction of a router to every kind of message, valid or invalid, in each serializer."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from ustreamer_wamp.events import Publication
from ustreamer_wamp.messages import Code, parse
from ustreamer_wamp.session import SessionState
from ustreamer_wamp.users import Principal, User

if TYPE_CHECKING:
    from tests.conftest import Client, RealmRig

HELLO = [1, "realm1", {"roles": {"subscriber": {}}}]
VIOLATION = "wamp.error.protocol_violation"


@pytest.fixture
def client(rig: "RealmRig", serializer: str) -> "Client":
    return rig.joined_client(serializer)


def error(client: "Client", *message: Any) -> str:
    """The URI of the ERROR that answers a request; the session continues."""
    answer = client.request(*message)
    assert answer[:3] == [8, message[0], message[1]]
    assert answer[3]["message"]
    assert client.session.state is SessionState.ESTABLISHED
    assert client.closed is None
    return str(answer[4])


def abort(client: "Client", *message: Any) -> str:
    """The URI of the ABORT that a message leads to; the session is over, and holds nothing any more."""
    answer = client.request(*message)
    assert answer[0] == 3
    assert answer[1]["message"]
    assert client.session.state is SessionState.CLOSED
    assert client.closed is not None
    assert client.closed[0] in (1002, 1008)
    client.send(32, 99, {}, "com.after.the.end")
    assert client.received() == []
    return str(answer[2])


# --- SUBSCRIBE ----------------------------------------------------------------------------------------------


def test_a_subscription_receives_an_id_and_then_the_events(rig: "RealmRig", client: "Client") -> None:
    answer = client.request(32, 713845233, {}, "com.myapp.mytopic1")
    assert answer[:2] == [33, 713845233]
    rig.joined_client().send(16, 1, {}, "com.myapp.mytopic1", [1, "zwei", 2.5], {"k": [True, None]})
    ((code, id, publication, details, args, kwargs),) = client.received()
    assert (code, id, details) == (36, answer[2], {})
    assert 1 <= publication <= 2**53
    assert (args, kwargs) == ([1, "zwei", 2.5], {"k": [True, None]})


def test_a_second_subscribe_returns_the_same_id_and_each_event_once(
    rig: "RealmRig", client: "Client"
) -> None:
    first, again = client.request(32, 10, {}, "com.a"), client.request(32, 77, {}, "com.a")
    assert again == [33, 77, first[2]]
    rig.joined_client().send(16, 1, {}, "com.a", ["x"])
    assert [each[1] for each in client.received()] == [first[2]]
    assert client.request(34, 78, first[2]) == [35, 78]  # one UNSUBSCRIBE ends it
    rig.joined_client().send(16, 1, {}, "com.a", ["y"])
    assert client.received() == []


def test_all_subscribers_of_a_topic_share_its_id(rig: "RealmRig", client: "Client") -> None:
    assert client.subscribe("com.a") == rig.joined_client().subscribe("com.a")


def test_one_topic_under_three_policies_is_three_subscriptions_of_one_publication(
    rig: "RealmRig", client: "Client"
) -> None:
    ids = [client.subscribe("com.a", {"match": match}) for match in ("exact", "prefix", "wildcard")]
    assert len(set(ids)) == 3
    rig.joined_client().send(16, 1, {}, "com.a")
    events = client.received()
    assert sorted(each[1] for each in events) == sorted(ids)
    assert len({each[2] for each in events}) == 1
    by_id = {each[1]: each[3] for each in events}
    assert [by_id[id] for id in ids] == [{}, {"topic": "com.a"}, {"topic": "com.a"}]


@pytest.mark.parametrize("topic", ["a b", "a.#", "a..b", "com.a\n", "", ".a", "a.", "a\tb", "#", "x" * 1025])
def test_an_invalid_uri_is_an_error_and_does_not_end_the_session(client: "Client", topic: str) -> None:
    assert error(client, 32, 1, {}, topic) == "wamp.error.invalid_uri"


@pytest.mark.parametrize(
    ("match", "topic", "good"),
    [
        ("prefix", "", True),
        ("prefix", "up.vehicle1.", True),
        ("prefix", "a..b", False),
        ("prefix", ".a", False),
        ("wildcard", "a..b", True),
        ("wildcard", "...", True),
        ("wildcard", "", True),
        ("wildcard", "a.b c.d", False),
        ("prefix", "a.b\n", False),
        ("wildcard", "a..b\n", False),
    ],
)
def test_where_components_may_be_empty_depends_on_the_policy(
    client: "Client", match: str, topic: str, good: bool
) -> None:
    client.send(32, 5, {"match": match}, topic)
    assert client.received()[0][0] == (33 if good else 8)


@pytest.mark.parametrize("option", [None, {"match": None, "get_retained": None}, {"unknown": 5, "_own": {}}])
def test_options_that_are_null_or_unknown_count_as_not_given(client: "Client", option: Any) -> None:
    assert client.request(32, 1, option or {}, "com.a")[0] == 33


@pytest.mark.parametrize("hertz", [0, -1, 1e-9, float("inf")])
def test_a_rate_that_is_none_is_an_error(client: "Client", hertz: float) -> None:
    if client.serializer.name == "json" and hertz == float("inf"):
        hertz = 0  # JSON has no infinity
    assert error(client, 32, 1, {"max_frequency": hertz}, "com.a") == "wamp.error.invalid_argument"


# --- UNSUBSCRIBE --------------------------------------------------------------------------------------------


def test_an_unknown_subscription_cannot_be_unsubscribed(rig: "RealmRig", client: "Client") -> None:
    assert error(client, 34, 1, 4711) == "wamp.error.no_such_subscription"
    foreign = rig.joined_client().subscribe("com.a")
    assert error(client, 34, 2, foreign) == "wamp.error.no_such_subscription"
    own = client.subscribe("com.b")
    assert client.request(34, 85346237, own) == [35, 85346237]
    assert error(client, 34, 4, own) == "wamp.error.no_such_subscription"


def test_a_client_with_revocation_receives_the_end_of_its_subscription(
    rig: "RealmRig", serializer: str
) -> None:
    features = {"features": {"subscription_revocation": True}}
    client, watcher = rig.client(serializer), rig.joined_client()
    assert client.request(1, "realm1", {"roles": {"subscriber": features}})[0] == 2
    watcher.subscribe("wamp.subscription.", {"match": "prefix"})
    id = client.subscribe("com.a")
    pattern = client.subscribe("com.", {"match": "prefix"})
    watcher.received()
    client.session.on_subscription_revoked("com.a", "the device said no")
    details = {"subscription": id, "reason": "up.subscription.ended", "message": "the device said no"}
    assert client.received() == [[35, 0, details]]
    assert [each[3]["topic"].rpartition(".")[2] for each in watcher.received()] == [
        "on_unsubscribe",
        "on_delete",
    ]
    rig.joined_client().send(16, 1, {}, "com.a")
    assert [each[1] for each in client.received()] == [pattern], "a pattern is not concerned"
    assert error(client, 34, 1, id) == "wamp.error.no_such_subscription"
    client.session.on_subscription_revoked("com.a", "again")
    client.session.on_subscription_revoked("com.never.held", "what")
    assert client.received() == []
    client.session.on_connection_lost()
    client.session.on_subscription_revoked("com.", "after the end")
    assert client.received() == []


@pytest.mark.parametrize(
    "roles",
    [{"subscriber": {}}, {"subscriber": {"features": {"subscription_revocation": 1}}}, {"publisher": 5}],
)
def test_a_client_without_revocation_keeps_its_subscription(
    rig: "RealmRig", serializer: str, roles: dict[str, Any]
) -> None:
    client = rig.client(serializer)
    assert client.request(1, "realm1", {"roles": roles})[0] == 2
    id = client.subscribe("com.a")
    for topic, live in (("com.a", True), ("com.b", False)):
        rig.realm.retained.retain(Publication(1, topic, [], {}, live=live))
        client.session.on_subscription_revoked(topic, "the device said no")
    assert client.received() == []
    assert [len(list(rig.realm.retained.matching(topic, "exact"))) for topic in ("com.a", "com.b")] == [0, 1]
    assert client.request(34, 1, id) == [35, 1]


def test_no_id_is_assigned_twice(rig: "RealmRig", client: "Client") -> None:
    seen = set()
    for request in range(1, 20):
        id = client.subscribe("com.a")
        assert id not in seen
        seen.add(id)
        client.request(34, request, id)


# --- invalid messages ---------------------------------------------------------------------------------------

WRONG: list[Any] = [
    [32, 0, {}, "com.a"],
    [32, 2**53 + 1, {}, "com.a"],
    [32, -1, {}, "com.a"],
    [32, True, {}, "com.a"],
    [32, 1.0, {}, "com.a"],
    [32, 1.5, {}, "com.a"],
    [32, "1", {}, "com.a"],
    [32, None, {}, "com.a"],
    [32, 1, [], "com.a"],
    [32, 1, None, "com.a"],
    [32, 1, {}, 5],
    [32, 1, {}, None],
    [32, 1, {}],
    [32, 1, {}, "com.a", []],
    [32, 1, {"match": "best"}, "com.a"],
    [32, 1, {"match": 123}, "com.a"],
    [32, 1, {"match": ["exact"]}, "com.a"],
    [32, 1, {"get_retained": 1}, "com.a"],
    [32, 1, {"max_frequency": "10"}, "com.a"],
    [34, 1],
    [34, 1, 0],
    [34, 1, "5"],
    [16, 1, {}, "com.a", {}],
    [16, 1, {}, "com.a", [], []],
    [16, 1, {"acknowledge": 1}, "com.a"],
    [16, 1, {"exclude": [0]}, "com.a"],
    [16, 1, {"eligible": "all"}, "com.a"],
    [16, 1, {"exclude_authid": [1]}, "com.a"],
    [16, 1, {"transaction_hash": 123}, "com.a"],
    [16, 1, {"forward_for": "hello"}, "com.a"],
    [32, 1, {"forward_for": ["hello"]}, "com.a"],
    [1, "realm1", {"roles": {"subscriber": {}}}],  # a second HELLO
    [2, 1, {}],  # WELCOME, CHALLENGE, SUBSCRIBED, UNSUBSCRIBED, PUBLISHED, EVENT: not a client's
    [4, "ticket", {}],
    [5, "signature", {}],  # no request had this id
    [33, 1, 1],
    [35, 1],
    [17, 1, 1],
    [36, 1, 1, {}],
    [8, 32, 1, {}, "com.error"],
    [70, 1, {}],  # YIELD: this router sends no INVOCATION
    [64, 1, {}],
    [66, 1, "id"],
    [99],
    [0],
    [-1],
    ["32", 1, {}, "com.a"],
    [True],
    [32.5],
    [[]],
    [],
    {},
    None,
    5,
    "text",
    True,
]


@pytest.mark.parametrize("message", WRONG, ids=repr)
def test_an_invalid_message_ends_the_session_with_a_reason(
    rig: "RealmRig", serializer: str, message: Any
) -> None:
    client = rig.joined_client(serializer)
    client.subscribe("com.held")
    client.session.on_message(client.serializer.encode(message))
    ((code, details, reason),) = client.received()
    assert (code, reason) == (3, VIOLATION)
    assert "expected" in details["message"]
    assert client.session.state is SessionState.CLOSED
    assert client.closed is not None
    assert client.closed[0] == 1002
    assert len(rig.realm.broker) == 0
    assert rig.realm.sessions == {}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"nonsense",
        b"\x00",
        b'[32,1,{},"com.a"] ',
        b'[32,1,{},"com.a"',
        b"\xc1",
        b"\x9f",
        b"[" * 5000,
    ],
    ids=repr,
)
def test_bytes_that_are_nothing_end_the_session(rig: "RealmRig", serializer: str, data: bytes) -> None:
    if serializer == "json" and data.endswith(b"] "):
        # white space is JSON; a fraction is not an id, although Python accepts it
        data = b'[32,1.0,{},"com.a"]'
    client = rig.joined_client(serializer)
    client.session.on_message(data)
    ((code, _, reason),) = client.received()
    assert (code, reason) == (3, VIOLATION)


BINARY_TRAPS = {
    "msgpack": [
        b"\x94\x20\x01\x81\x01\x02\xa5com.a",  # a key that is not a string
        b"\x94\x20\x01\x80\xa5com.a\x00",  # a byte behind the message
        b"\xc7\x00\x05",  # an extension
        b"\x95\x10\x01\x80\xa5com.a\x91\xd6\xff\x00\x00\x00\x00",  # a time
        b"\x95\x10\x01\x80\xa5com.a" + b"\x91" * 100 + b"\x01",  # 100 deep
        b"\xdd\xff\xff\xff\xff",  # the header declares 4 billion elements
    ],
    "cbor": [
        b"\x84\x18\x20\x01\xa1\x01\x02\x65com.a",
        b"\x84\x18\x20\x01\xa0\x65com.a\x00",
        b"\x84\x18\x20\x01\xa0\xc0\x65com.a",  # a tag
        b"\xd8\x1c\x82\x01\xd8\x1d\x00",  # a value that contains itself
        b"\x85\x10\x01\xa0\x65com.a\x81\xc2\x49\x01" + b"\0" * 8,  # an integer of 65 bits
        b"\x85\x10\x01\xa0\x65com.a" + b"\x81" * 100 + b"\x01",
        b"\x9b\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\x5b\x7f\xff\xff\xff\xff\xff\xff\xff",
    ],
    "json": [
        b'[16,1,{},"com.a",[' + b"[" * 100 + b"]" * 100 + b"]]",
        b'[16,1,{},"com.a",[18446744073709551616]]',
        b'[16,1,{},"com.a",["\\u0000no base 64!"]]',
        b'[16,1,{},"com.a",[NaN]]',
        b'[16,1,{},"com.a",["\\ud800"]]',
    ],
}


@pytest.mark.parametrize(
    ("name", "data"), [(name, data) for name, all_data in BINARY_TRAPS.items() for data in all_data]
)
def test_a_trap_of_a_serializer_ends_the_session(rig: "RealmRig", name: str, data: bytes) -> None:
    client = rig.joined_client(name)
    client.session.on_message(data)
    ((code, _, reason),) = client.received()
    assert (code, reason) == (3, VIOLATION)


def test_a_few_bytes_do_not_become_a_value_without_end(rig: "RealmRig") -> None:
    """Each of 28 lists contains the next list twice, once by reference: 170 bytes, and 2^28 values for a full
    traversal.
    """
    value = b"\x01"
    for number in range(28, 0, -1):
        value = b"\xd8\x1c\x82" + value + (b"\xd8\x1d\x18" + bytes([number]) if number < 28 else b"\x01")
    client = rig.joined_client("cbor")
    client.session.on_message(b"\x85\x10\x01\xa0\x65com.a" + value)
    assert client.received()[0][2] == VIOLATION


def test_a_frame_of_the_wrong_kind_ends_the_session(client: "Client") -> None:
    client.session.abort_protocol_violation("a binary frame: wamp.2.json has text frames")
    ((code, details, reason),) = client.received()
    assert (code, reason) == (3, VIOLATION)
    assert "binary" in details["message"]


# --- before the session -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [
        [32, 1, {}, "com.a"],
        [16, 1, {}, "com.a"],
        [34, 1, 1],
        [6, {}, "wamp.close.normal"],
        [5, "x", {}],
        [8, 1, 1, {}, "a"],
    ],
    ids=repr,
)
def test_the_first_message_must_be_hello(rig: "RealmRig", serializer: str, message: list[Any]) -> None:
    assert abort(rig.client(serializer), *message) == VIOLATION


@pytest.mark.parametrize(
    ("hello", "reason"),
    [
        ([1, "realm2", {"roles": {"subscriber": {}}}], "wamp.error.no_such_realm"),
        ([1, "real m", {"roles": {"subscriber": {}}}], "wamp.error.invalid_uri"),
        ([1, "realm1", {}], VIOLATION),
        ([1, "realm1", {"roles": {}}], VIOLATION),
        ([1, "realm1", {"roles": []}], VIOLATION),
        ([1, "realm1"], VIOLATION),
        ([1, 1, {}], VIOLATION),
        ([1, "realm1", {"roles": {"subscriber": {}}, "authmethods": "ticket"}], VIOLATION),
    ],
)
def test_a_hello_that_leads_nowhere(rig: "RealmRig", serializer: str, hello: list[Any], reason: str) -> None:
    assert abort(rig.client(serializer), *hello) == reason


def test_welcome_announces_the_features_and_the_authentication(rig: "RealmRig", serializer: str) -> None:
    code, session, details = rig.client(serializer).request(*HELLO)
    assert code == 2
    assert 1 <= session <= 2**53
    assert details["authmethod"] == "anonymous"
    features = details["roles"]["broker"]["features"]
    assert {name for name, there in features.items() if there is True} == {
        "event_retention",
        "pattern_based_subscription",
        "publisher_exclusion",
        "publisher_identification",
        "subscriber_blackwhite_listing",
        "subscription_meta_api",
        "subscription_revocation",
    }


def test_a_client_that_sends_no_hello_in_time_is_disconnected(rig: "RealmRig", serializer: str) -> None:
    client = rig.client(serializer)
    rig.clock.advance(s=9.9)
    client.session.tick(rig.clock.now_ns)
    assert client.received() == []
    rig.clock.advance(s=0.2)
    client.session.tick(rig.clock.now_ns)
    assert client.received()[0][2] == VIOLATION
    assert client.closed == (1008, VIOLATION)


# --- the end ------------------------------------------------------------------------------------------------


def test_goodbye_is_answered_and_ends_everything(rig: "RealmRig", client: "Client") -> None:
    client.subscribe("com.a")
    assert client.request(6, {}, "wamp.close.close_realm") == [6, {}, "wamp.close.goodbye_and_out"]
    assert client.closed == (1000, "wamp.close.close_realm")
    rig.joined_client().send(16, 1, {}, "com.a")
    assert client.received() == []
    assert len(rig.realm.broker) == 0


def test_abort_is_never_answered(rig: "RealmRig", client: "Client") -> None:
    client.subscribe("com.a")
    client.send(3, {}, "wamp.error.whatever")
    assert client.received() == []
    assert client.closed is not None
    assert len(rig.realm.broker) == 0


def test_a_lost_connection_ends_everything(rig: "RealmRig", client: "Client") -> None:
    client.subscribe("com.a")
    client.session.on_connection_lost()
    assert len(rig.realm.broker) == 0
    assert rig.realm.sessions == {}
    client.session.on_connection_lost()  # once more changes nothing


def test_after_goodbye_only_its_echo_is_read(rig: "RealmRig", client: "Client") -> None:
    client.subscribe("com.a")
    client.session.send_goodbye("wamp.close.system_shutdown")
    assert client.received() == [[6, {}, "wamp.close.system_shutdown"]]
    client.send(32, 1, {}, "com.b")
    rig.joined_client().send(16, 1, {}, "com.a")
    assert client.received() == []
    assert client.closed is None
    client.send(6, {}, "wamp.close.goodbye_and_out")
    assert client.closed == (1000, "")


def test_the_router_does_not_wait_for_a_missing_goodbye_echo(rig: "RealmRig", client: "Client") -> None:
    client.session.send_goodbye("wamp.close.system_shutdown")
    rig.clock.advance(s=6)
    client.session.tick(rig.clock.now_ns)
    assert client.closed == (1000, "")


# --- PUBLISH ------------------------------------------------------------------------------------------------


def test_a_publisher_receives_published_only_with_acknowledge(rig: "RealmRig", client: "Client") -> None:
    client.send(16, 1, {}, "com.a")
    client.send(16, 2, {"acknowledge": False}, "not a uri")
    assert client.received() == []
    code, request, publication = client.request(16, 3, {"acknowledge": True}, "com.a")
    assert (code, request) == (17, 3)
    assert 1 <= publication <= 2**53
    assert error(client, 16, 4, {"acknowledge": True}, "a..b") == "wamp.error.invalid_uri"
    assert error(client, 16, 5, {"acknowledge": True}, "wamp.foo") == "wamp.error.invalid_uri"


def test_a_publisher_receives_its_own_event_only_without_exclude_me(client: "Client") -> None:
    id = client.subscribe("com.a")
    client.send(16, 1, {}, "com.a")
    client.send(16, 2, {"exclude_me": True}, "com.a")
    assert client.received() == []
    client.send(16, 3, {"exclude_me": False}, "com.a", ["x"])
    assert [each[:2] for each in client.received()] == [[36, id]]


def test_all_lists_of_a_publisher_have_to_hold(rig: "RealmRig", client: "Client") -> None:
    one, other = rig.joined_client(), rig.joined_client()
    for each in (one, other):
        each.subscribe("com.a")
    ids = {one: one.session.id, other: other.session.id}

    def receivers(options: dict[str, Any]) -> list["Client"]:
        client.send(16, 1, options, "com.a")
        return [each for each in (one, other) if each.received()]

    assert receivers({"exclude": [ids[one]]}) == [other]
    assert receivers({"eligible": [ids[one]]}) == [one]
    assert receivers({"eligible": [ids[one], ids[other]], "exclude": [ids[other]]}) == [one]
    assert receivers({"eligible": []}) == []
    assert receivers({"exclude_authid": ["anonymous"]}) == []
    assert receivers({"eligible_authrole": ["anonymous"]}) == [one, other]


def test_a_publisher_is_disclosed_on_request(rig: "RealmRig", client: "Client") -> None:
    client.subscribe("com.a")
    publisher = rig.joined_client()
    publisher.send(16, 1, {"disclose_me": True}, "com.a")
    ((_, _, _, details),) = client.received()
    assert details == {
        "publisher": publisher.session.id,
        "publisher_authid": "anonymous",
        "publisher_authrole": "anonymous",
    }


@pytest.mark.parametrize("other", ["json", "msgpack", "cbor"])
def test_bytes_and_large_numbers_reach_every_serializer(
    rig: "RealmRig", client: "Client", other: str
) -> None:
    values = [b"\x00\xff" * 20, 2**63, -(2**63), 2**53 + 1, "ä€𝄞", {"deep": [b"", {"er": b"x"}]}]
    subscriber = rig.joined_client(other)
    subscriber.subscribe("com.a")
    encoded = client.serializer.encode([16, 1, {}, "com.a", values])
    client.session.on_message(encoded)
    assert subscriber.received()[0][4] == values


def test_bytes_in_json_are_nul_and_base64(rig: "RealmRig") -> None:
    subscriber = rig.joined_client("json")
    subscriber.subscribe("com.a")
    rig.joined_client("msgpack").send(16, 1, {}, "com.a", [b"\x00\x01\x02"])
    subscriber.outbox.flush()
    assert msgspec.json.decode(subscriber.written[4:])[4] == ["\0AAEC"]


# --- retained values ----------------------------------------------------------------------------------------


def test_the_last_retained_value_follows_subscribed_at_once(rig: "RealmRig", client: "Client") -> None:
    publisher = rig.joined_client()
    publisher.send(16, 1, {"retain": True}, "com.a", ["old"])
    publisher.send(16, 2, {"retain": True}, "com.a", ["kept"])
    publisher.send(16, 3, {}, "com.a", ["passing"])
    client.send(32, 1, {"get_retained": True}, "com.a")
    subscribed, event = client.received()
    assert subscribed[0] == 33
    assert event[:2] == [36, subscribed[2]]
    assert event[3:] == [{"retained": True}, ["kept"]]
    client.send(32, 2, {"get_retained": True, "match": "prefix"}, "com.")
    assert [each[3] for each in client.received()[1:]] == [{"retained": True, "topic": "com.a"}]
    assert [each[0] for each in [client.request(32, 3, {}, "com.b")]] == [33]


# --- meta events and procedures -----------------------------------------------------------------------------


def test_subscribers_of_meta_events_receive_them_in_order(rig: "RealmRig", client: "Client") -> None:
    client.subscribe("wamp.subscription.", {"match": "prefix"})
    other = rig.joined_client()
    id = other.subscribe("com.a")
    third = rig.joined_client()
    third.subscribe("com.a")
    other.send(34, 2, id)
    third.session.on_connection_lost()
    notified = [(each[3]["topic"].removeprefix("wamp.subscription."), each[4]) for each in client.received()]
    created = {"id": id, "uri": "com.a", "match": "exact", "created": "2023-11-14T22:13:20.000Z"}
    a, b = other.session.id, third.session.id
    assert notified == [
        ("on_create", [a, created]),
        ("on_subscribe", [a, id]),
        ("on_subscribe", [b, id]),
        ("on_unsubscribe", [a, id]),
        ("on_unsubscribe", [b, id]),
        ("on_delete", [b, id]),
    ]


def test_a_subscriber_of_all_topics_receives_subscribed_before_its_own_meta_event(client: "Client") -> None:
    client.send(32, 1, {"match": "prefix"}, "")
    codes = [each[0] for each in client.received()]
    assert codes[0] == 33
    assert codes[1:] == [36, 36]


def test_subscriptions_can_be_queried(rig: "RealmRig", client: "Client") -> None:
    exact, prefix = client.subscribe("com.a"), client.subscribe("com.", {"match": "prefix"})

    def call(procedure: str, *args: Any) -> Any:
        answer = client.request(48, 9, {}, f"wamp.subscription.{procedure}", list(args))
        assert answer[:3] == [50, 9, {}]
        return answer[3][0]

    assert call("list") == {"exact": [exact], "prefix": [prefix], "wildcard": []}
    assert call("lookup", "com.a") == exact
    assert call("lookup", "com.", {"match": "prefix"}) == prefix
    assert call("lookup", "com.b") is None
    assert sorted(call("match", "com.a")) == sorted([exact, prefix])
    assert call("match", "org") is None
    assert call("get", exact)["uri"] == "com.a"
    assert call("list_subscribers", exact) == [client.session.id]
    assert call("count_subscribers", exact) == 1
    assert error(client, 48, 1, {}, "wamp.subscription.get", [99]) == "wamp.error.no_such_subscription"
    assert error(client, 48, 1, {}, "wamp.subscription.get") == "wamp.error.invalid_argument"
    assert error(client, 48, 1, {}, "com.procedure") == "wamp.error.no_such_procedure"


def test_a_session_without_permission_reads_no_subscriptions_of_others(
    make_rig: Callable[..., "RealmRig"], serializer: str
) -> None:
    plain = Principal("anonymous", "anonymous", "anonymous", "static", ("",), ())
    rig = make_rig(User(authid="tick", ticket="t", meta_api=True), anonymous=plain)
    client = rig.client(serializer)
    assert client.request(*HELLO)[0] == 2
    client.subscribe("", {"match": "prefix"})
    client.subscribe(".subscription.on_create", {"match": "wildcard"})
    for procedure in ("list", "lookup", "match", "get", "list_subscribers", "count_subscribers"):
        refused = error(client, 48, 1, {}, f"wamp.subscription.{procedure}", [1])
        assert refused == "wamp.error.not_authorized"
    for topic, options in (("wamp.subscription.on_create", {}), ("wamp.", {"match": "prefix"})):
        assert error(client, 32, 1, options, topic) == "wamp.error.not_authorized"
    assert error(client, 48, 1, {}, "com.procedure") == "wamp.error.no_such_procedure"
    user = rig.client()
    user.request(1, "realm1", {"roles": {"subscriber": {}}, "authmethods": ["ticket"], "authid": "tick"})
    assert user.request(5, "t", {})[0] == 2
    user.subscribe("com.secret")
    assert client.received() == [], "no meta event, by any pattern"
    assert user.request(48, 1, {}, "wamp.subscription.list")[0] == 50
    assert rig.realm.counts["refused_meta_api"] == 6


def test_register_is_an_error_and_the_session_goes_on(client: "Client") -> None:
    client.subscribe("com.a")
    assert error(client, 64, 1, {}, "com.procedure") == "wamp.error.not_authorized"
    assert error(client, 66, 2, 4711) == "wamp.error.no_such_registration"
    assert client.session.state is SessionState.ESTABLISHED
    client.subscribe("com.a")


# --- bounds -------------------------------------------------------------------------------------------------


def test_a_session_has_so_many_subscriptions(make_rig: Callable[..., "RealmRig"], serializer: str) -> None:
    client = make_rig(subscriptions=2).joined_client(serializer)
    client.subscribe("com.a")
    client.subscribe("com.b")
    assert error(client, 32, 1, {}, "com.c") == "up.error.resource_exhausted"
    client.subscribe("com.a")  # which it has already
    client.request(34, 1, client.subscribe("com.b"))
    client.subscribe("com.c")


def test_sequential_ids_are_required_where_configured(
    make_rig: Callable[..., "RealmRig"], serializer: str
) -> None:
    client = make_rig(sequential_ids=True).joined_client(serializer)
    assert client.request(32, 1, {}, "com.a")[0] == 33
    client.send(16, 2, {}, "com.b")
    assert client.request(34, 3, 4711)[0] == 8  # an error counts, too
    assert abort(client, 32, 3, {}, "com.a") == VIOLATION


def test_the_table_of_shapes_has_all_that_a_client_may_send() -> None:
    assert parse([32, 1, {"match": "exact", "x": None}, "a"]).fields == (1, {"match": "exact"}, "a")
    assert parse([6, {}, "a"]).code is Code.GOODBYE
