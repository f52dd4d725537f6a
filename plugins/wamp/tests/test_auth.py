# SPDX-License-Identifier: Apache-2.0
"""Authentication and roles.

The expected responses are computed from the specification, without code of the plugin.
"""

import base64
import hashlib
import hmac
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from ustreamer_wamp.errors import WampRefusal
from ustreamer_wamp.users import Principal, User

if TYPE_CHECKING:
    from tests.conftest import Client, RealmRig

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC = KEY.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw).hex()
OTHER_KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))
OTHER_PUBLIC = OTHER_KEY.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw).hex()

USERS = (
    User(authid="tick", ticket="t1cket", role="dashboard"),
    User(authid="cra", secret="s3cret"),
    User(authid="salted", secret="s3cret", salt="s4lt", iterations=50),
    User(authid="sign", public_keys=(PUBLIC,), subscribe=("up.",), publish=("up.mine.",)),
)
DENIED = "wamp.error.authentication_denied"


@pytest.fixture
def rig(make_rig: Callable[..., "RealmRig"]) -> "RealmRig":
    return make_rig(*USERS, anonymous=None)


def hello(authid: str | None, *methods: str, **extra: str) -> list[Any]:
    details: dict[str, Any] = {"roles": {"subscriber": {}}, "authmethods": list(methods)}
    if authid is not None:
        details["authid"] = authid
    if extra:
        details["authextra"] = extra
    return [1, "realm1", details]


def sign_cra(secret: str, extra: dict[str, Any]) -> str:
    key = secret.encode()
    if "salt" in extra:
        derived = hashlib.pbkdf2_hmac(
            "sha256", key, extra["salt"].encode(), extra["iterations"], extra["keylen"]
        )
        key = base64.b64encode(derived)
    digest = hmac.new(key, extra["challenge"].encode(), hashlib.sha256).digest()
    return base64.b64encode(digest).decode()


def sign(key: Ed25519PrivateKey, extra: dict[str, Any]) -> str:
    challenge = bytes.fromhex(extra["challenge"])
    return (key.sign(challenge) + challenge).hex()


def outcome(client: "Client", signature: str) -> tuple[int, Any]:
    """The result of AUTHENTICATE: (2, details of WELCOME) or (3, reason)."""
    answer = client.request(5, signature, {})
    return answer[0], answer[2]


HASHED: dict[str, Any] = {
    "ticket_sha256": hashlib.sha256(b"t1cket").hexdigest(),
    "derived_key": base64.b64encode(hashlib.pbkdf2_hmac("sha256", b"s3cret", b"s4lt", 50, 32)).decode(),
    "salt": "s4lt",
    "iterations": 50,
}
"""The ticket and the secret of USERS without their clear text."""


@pytest.mark.parametrize(("ticket", "code"), [("t1cket", 2), ("t1ckeT", 3), (HASHED["ticket_sha256"], 3)])
def test_a_ticket_opens_by_its_hash(make_rig: Callable[..., "RealmRig"], ticket: str, code: int) -> None:
    client = make_rig(User(authid="a", **HASHED), anonymous=None).client()
    assert client.request(*hello("a", "ticket")) == [4, "ticket", {}]
    assert outcome(client, ticket)[0] == code


@pytest.mark.parametrize(("secret", "code"), [("s3cret", 2), ("s3creT", 3)])
def test_wampcra_opens_by_the_derived_key(
    make_rig: Callable[..., "RealmRig"], secret: str, code: int
) -> None:
    client = make_rig(User(authid="a", **HASHED), anonymous=None).client()
    extra = client.request(*hello("a", "wampcra"))[2]
    assert outcome(client, sign_cra(secret, extra))[0] == code


# --- a valid response ---------------------------------------------------------------------------------------


def test_a_ticket_opens(rig: "RealmRig", serializer: str) -> None:
    client = rig.client(serializer)
    assert client.request(*hello("tick", "ticket")) == [4, "ticket", {}]
    code, details = outcome(client, "t1cket")
    assert code == 2
    assert [details[key] for key in ("authid", "authrole", "authmethod", "authprovider")] == [
        "tick",
        "dashboard",
        "ticket",
        "static",
    ]


@pytest.mark.parametrize("authid", ["cra", "salted"])
def test_wampcra_opens(rig: "RealmRig", authid: str) -> None:
    client = rig.client()
    code, method, extra = client.request(*hello(authid, "wampcra"))
    assert (code, method) == (4, "wampcra")
    assert ("salt" in extra) is (authid == "salted")
    question = json.loads(extra["challenge"])
    assert (question["authid"], question["authmethod"]) == (authid, "wampcra")
    assert question["timestamp"] == "2023-11-14T22:13:20+00:00"
    code, details = outcome(client, sign_cra("s3cret", extra))
    assert code == 2
    assert details["authmethod"] == "wampcra"
    assert question["session"] == client.session.id


@pytest.mark.parametrize("authid", ["sign", None])
def test_cryptosign_opens_also_without_a_name(rig: "RealmRig", authid: str | None) -> None:
    client = rig.client()
    code, method, extra = client.request(*hello(authid, "cryptosign", pubkey=PUBLIC.upper()))
    assert (code, method) == (4, "cryptosign")
    assert extra["channel_binding"] is None
    assert outcome(client, sign(KEY, extra))[0] == 2
    assert client.session.principal is not None
    assert client.session.principal.authid == "sign"


def test_anonymous_opens_only_where_it_is_configured(
    make_rig: Callable[..., "RealmRig"], rig: "RealmRig"
) -> None:
    refused = rig.client().request(*hello(None, "anonymous"))
    assert (refused[0], refused[2]) == (3, "wamp.error.authentication_required")
    assert rig.client().request(1, "realm1", {"roles": {"subscriber": {}}})[0] == 3
    assert make_rig().client().request(*hello("any name", "anonymous"))[0] == 2


def test_the_first_method_of_the_client_that_is_possible_is_taken(rig: "RealmRig") -> None:
    assert rig.client().request(*hello("cra", "scram", "anonymous", "ticket", "wampcra"))[1] == "wampcra"
    refused = rig.client().request(*hello("cra", "scram", "tls"))
    assert (refused[0], refused[2]) == (3, "wamp.error.no_matching_auth_method")


# --- a wrong response ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("signature", ["", "wrong", "t1cket ", "T1CKET", "tïcket"])
def test_a_wrong_ticket_does_not(rig: "RealmRig", signature: str) -> None:
    client = rig.client()
    client.request(*hello("tick", "ticket"))
    assert outcome(client, signature) == (3, DENIED)
    assert client.closed == (1008, DENIED)
    assert rig.realm.sessions == {}


@pytest.mark.parametrize("authid", ["cra", "salted"])
def test_a_wrong_secret_does_not(rig: "RealmRig", authid: str) -> None:
    client = rig.client()
    extra = client.request(*hello(authid, "wampcra"))[2]
    assert outcome(client, sign_cra("secret", extra)) == (3, DENIED)


def test_an_answer_of_another_time_does_not(rig: "RealmRig") -> None:
    first = rig.client()
    captured = sign_cra("s3cret", first.request(*hello("cra", "wampcra"))[2])
    assert outcome(first, captured)[0] == 2
    later = rig.client()
    later.request(*hello("cra", "wampcra"))
    assert outcome(later, captured) == (3, DENIED)


def test_a_signature_of_another_challenge_does_not(rig: "RealmRig") -> None:
    first = rig.client()
    captured = sign(KEY, first.request(*hello("sign", "cryptosign", pubkey=PUBLIC))[2])
    assert outcome(first, captured)[0] == 2
    later = rig.client()
    later.request(*hello("sign", "cryptosign", pubkey=PUBLIC))
    assert outcome(later, captured) == (3, DENIED)


def test_a_key_that_is_not_known_does_not(rig: "RealmRig") -> None:
    client = rig.client()
    extra = client.request(*hello("sign", "cryptosign", pubkey=OTHER_PUBLIC))[2]
    assert outcome(client, sign(OTHER_KEY, extra)) == (3, DENIED)


@pytest.mark.parametrize("signature", ["", "00", "zz" * 96, "00" * 96, "é" * 192])
def test_an_invalid_signature_does_not_authenticate(rig: "RealmRig", signature: str) -> None:
    client = rig.client()
    client.request(*hello("sign", "cryptosign", pubkey=PUBLIC))
    assert outcome(client, signature) == (3, DENIED)


def test_a_signature_of_nothing_or_of_more_does_not(rig: "RealmRig") -> None:
    for tail in (b"", b"x"):
        client = rig.client()
        challenge = bytes.fromhex(client.request(*hello("sign", "cryptosign", pubkey=PUBLIC))[2]["challenge"])
        signed = challenge[:0] if not tail else challenge + tail
        assert outcome(client, (KEY.sign(signed) + signed).hex()) == (3, DENIED)


def test_the_signed_data_must_be_sent_in_clear_as_well(rig: "RealmRig") -> None:
    client = rig.client()
    challenge = bytes.fromhex(client.request(*hello("sign", "cryptosign", pubkey=PUBLIC))[2]["challenge"])
    assert outcome(client, (KEY.sign(challenge) + bytes(32)).hex()) == (3, DENIED)


def test_an_unknown_user_receives_a_challenge_and_the_rejection_of_a_known_user(
    make_rig: Callable[..., "RealmRig"],
) -> None:
    rig = make_rig(User(authid="salted", secret="s3cret", salt="s4lt"), anonymous=None)
    known, unknown = (
        rig.client().request(*hello(name, "ticket", "wampcra")) for name in ("salted", "unknown")
    )
    assert known[:2] == unknown[:2] == [4, "wampcra"]
    assert known[2].keys() == unknown[2].keys()
    again = rig.client().request(*hello("unknown", "wampcra"))
    assert again[2]["salt"] == unknown[2]["salt"], (
        "a new salt each time would reveal that no such user exists"
    )
    client = rig.client()
    extra = client.request(*hello("unknown", "wampcra"))[2]
    assert outcome(client, sign_cra("s3cret", extra)) == (3, DENIED)


def test_a_dummy_ticket_does_not_authenticate_an_unknown_user(make_rig: Callable[..., "RealmRig"]) -> None:
    rig = make_rig(User(authid="tick", ticket="t1cket"), anonymous=None)
    client = rig.client()
    assert client.request(*hello("unknown", "ticket"))[:2] == [4, "ticket"]
    assert outcome(client, "t1cket") == (3, DENIED)


def test_no_ticket_is_requested_where_anonymous_clients_may_subscribe(rig: "RealmRig") -> None:
    refused = rig.client(private=False).request(*hello("tick", "ticket"))
    assert (refused[0], refused[2]) == (3, "wamp.error.no_matching_auth_method")
    assert rig.client(private=False).request(*hello("cra", "wampcra"))[0] == 4


def test_ten_failures_in_a_minute_are_enough(rig: "RealmRig") -> None:
    for _ in range(10):
        client = rig.client()
        client.request(*hello("tick", "ticket"))
        assert outcome(client, "guess")[0] == 3
    refused = rig.client().request(*hello("tick", "ticket"))
    assert (refused[0], refused[2]) == (3, DENIED)
    assert rig.client().request(*hello("cra", "wampcra"))[0] == 4, "no other client is rejected for it"
    rig.clock.advance(s=61)
    client = rig.client()
    client.request(*hello("tick", "ticket"))
    assert outcome(client, "t1cket")[0] == 2
    assert rig.realm.counts["authentications_denied"] == 10


def test_failures_of_one_address_count_whatever_the_names(make_rig: Callable[..., "RealmRig"]) -> None:
    rig = make_rig(User(authid="tick", ticket="t1cket"), anonymous=None)
    for number in range(30):
        client = rig.client()
        client.request(*hello(f"name{number}", "ticket"))
        assert outcome(client, "guess") == (3, DENIED)
    refused = rig.client().request(*hello("tick", "ticket"))
    assert (refused[0], refused[2]) == (3, DENIED)
    assert not rig.authenticator.is_blocked("192.0.2.2", "tick", rig.clock.now_ns)


def test_failures_of_many_addresses_are_stored_within_a_limit(rig: "RealmRig") -> None:
    for number in range(3000):
        rig.authenticator.record_failure(f"192.0.2.{number}", "user", 0)
    assert len(rig.authenticator._failures) <= 1024


def test_a_session_that_was_challenged_before_the_failures_is_refused_as_well(rig: "RealmRig") -> None:
    clients = [rig.client() for _ in range(11)]
    for client in clients:
        assert client.request(*hello("tick", "ticket"))[0] == 4
    for client in clients[:10]:
        assert outcome(client, "guess") == (3, DENIED)
    assert outcome(clients[10], "t1cket") == (3, DENIED)
    assert rig.realm.counts["refused_login_limit"] == 1


def test_a_client_that_does_not_answer_the_challenge_is_disconnected(rig: "RealmRig") -> None:
    client = rig.client()
    rig.clock.advance(s=9)
    client.request(*hello("tick", "ticket"))
    rig.clock.advance(s=9)
    client.session.tick(rig.clock.now_ns)
    assert client.received() == []
    rig.clock.advance(s=2)
    client.session.tick(rig.clock.now_ns)
    assert client.received()[0][0] == 3


def test_an_answer_may_be_given_once(rig: "RealmRig") -> None:
    client = rig.client()
    client.request(*hello("tick", "ticket"))
    assert outcome(client, "wrong") == (3, DENIED)
    client.send(5, "t1cket", {})
    assert client.received() == []
    assert rig.realm.sessions == {}


# --- permissions --------------------------------------------------------------------------------------------

NARROW = Principal("a", "r", "ticket", "static", ("up.vcu.", "com.news"), ("com.mine.",))


@pytest.mark.parametrize(
    ("match", "topic", "may"),
    [
        ("exact", "up.vcu.1", True),
        ("exact", "up.vcu", False),
        ("exact", "com.newspaper", True),  # a prefix of characters
        ("prefix", "up.vcu.", True),
        ("prefix", "up.vcu.1.2", True),
        ("prefix", "up.", False),
        ("prefix", "", False),
        ("wildcard", "up.vcu..1", True),
        ("wildcard", "up..1.1", False),
        ("wildcard", "...", False),
        ("wildcard", "com.news.", True),
        ("wildcard", "wamp.subscription.on_create", False),
    ],
)
def test_a_pattern_may_be_subscribed_if_all_its_topics_may(match: Any, topic: str, may: bool) -> None:
    assert NARROW.may_subscribe(topic, match) is may


def test_a_client_without_permission_receives_an_error(make_rig: Callable[..., "RealmRig"]) -> None:
    client = make_rig(anonymous=NARROW).joined_client()
    assert client.request(32, 1, {}, "org.a")[4] == "wamp.error.not_authorized"
    assert client.request(32, 1, {"match": "prefix"}, "")[4] == "wamp.error.not_authorized"
    assert client.request(16, 1, {"acknowledge": True}, "up.vcu.1")[4] == "wamp.error.not_authorized"
    assert client.request(16, 2, {"acknowledge": True}, "com.mine.1")[0] == 17
    client.send(16, 3, {}, "up.vcu.1")
    assert client.received() == [], "without acknowledge the router sends nothing"


@pytest.mark.parametrize(
    ("section", "place"),
    [
        ({"authid": "a"}, "authid: 'a' has neither ticket nor secret nor public_keys"),
        (
            {"authid": "a", "ticket": "t", "public_keys": ("00",)},
            "public_keys[0]: expected 64 hexadecimal digits",
        ),
        ({"authid": "a", "ticket": "t", "ticket_sha256": "0" * 64}, "ticket_sha256: expected either"),
        ({"authid": "a", "ticket_sha256": "0" * 63}, "ticket_sha256: expected 64 hexadecimal digits"),
        ({"authid": "a", "secret": "t", "derived_key": "x"}, "derived_key: expected either"),
        ({"authid": "a", "derived_key": "x"}, "derived_key: it needs the salt"),
        ({"authid": "a", "derived_key": "eA==", "salt": "s"}, "derived_key: expected 32 bytes in Base64"),
        ({"authid": "a", "ticket": "t", "publish": ("a b",)}, "publish[0]: URI 'a b'"),
        ({"authid": "a", "ticket": "t", "subscribe": ("ok.", "#")}, "subscribe[1]: URI '#'"),
    ],
)
def test_an_inconsistent_section_is_reported_with_its_place(section: dict[str, Any], place: str) -> None:
    with pytest.raises(ValueError) as caught:
        User(**section)
    assert str(caught.value).startswith(place)


def test_no_client_is_authenticated_without_configured_users(make_rig: Callable[..., "RealmRig"]) -> None:
    rig = make_rig(anonymous=None)
    assert rig.client().request(*hello("a", "ticket", "wampcra"))[2] == "wamp.error.no_matching_auth_method"
    assert WampRefusal("a", "b").reason == "a"
