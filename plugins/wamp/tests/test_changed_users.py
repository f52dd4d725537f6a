# SPDX-License-Identifier: Apache-2.0
"""The users change while sessions are open: those that the new users do not permit end, the others continue."""

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from ustreamer_wamp.auth import UserTable
from ustreamer_wamp.session import SessionState
from ustreamer_wamp.users import Principal, User

from ustreamer.core.base.log_limit import LIMITED

if TYPE_CHECKING:
    from tests.conftest import ANONYMOUS, Client, RealmRig
    from tests.test_auth import KEY, OTHER_PUBLIC, PUBLIC, hello, outcome, sign, sign_cra
else:
    from plugins.wamp.tests.conftest import ANONYMOUS
    from plugins.wamp.tests.test_auth import KEY, OTHER_PUBLIC, PUBLIC, hello, outcome, sign, sign_cra

TICK = User(authid="tick", ticket="t1cket", subscribe=("com.",), publish=("com.",))
SALTED = User(authid="cra", secret="s3cret", salt="s4lt", iterations=50)
SIGN = User(authid="sign", public_keys=(PUBLIC,))
USERS = (TICK, SALTED, SIGN)
HASH = hashlib.sha256(b"t1cket").hexdigest()


def changed(user: User, **keys: Any) -> User:
    """A user of the configuration with other values."""
    return User(**{name: getattr(user, name) for name in user.__struct_fields__} | keys)


@pytest.fixture
def rig(make_rig: Callable[..., "RealmRig"]) -> "RealmRig":
    return make_rig(*USERS)


def change(rig: "RealmRig", *users: User, anonymous: Principal | None = ANONYMOUS) -> None:
    rig.realm.change_users(UserTable(users, anonymous, rig.authenticator.users))


def logged_in(rig: "RealmRig", authid: str) -> "Client":
    client = rig.client()
    method = {"tick": "ticket", "cra": "wampcra", "sign": "cryptosign"}[authid]
    challenge = client.request(*hello(authid, method, pubkey=PUBLIC))
    if method == "ticket":
        signature = "t1cket"
    else:
        signature = sign(KEY, challenge[2]) if method == "cryptosign" else sign_cra("s3cret", challenge[2])
    assert outcome(client, signature)[0] == 2
    return client


def is_ended(client: "Client") -> bool:
    """Whether the session has ended; it then received GOODBYE and has no subscription any more."""
    received = client.received()
    if client.session.state is SessionState.ESTABLISHED:
        assert received == []
        return False
    [goodbye] = received
    assert (goodbye[0], goodbye[2]) == (6, "wamp.close.killed")
    assert goodbye[1]["message"]
    return True


@pytest.mark.parametrize(
    ("authid", "users", "ended"),
    [
        ("tick", (SALTED, SIGN), True),
        ("tick", (changed(TICK, ticket="other"), SALTED), True),
        ("tick", (changed(TICK, ticket="", ticket_sha256=HASH),), False),
        ("tick", (changed(TICK, ticket="", secret="s3cret"),), True),
        ("tick", (changed(TICK, secret="added"),), False),
        ("tick", (changed(TICK, role="other"),), True),
        ("tick", (changed(TICK, subscribe=("com.a",)),), False),
        ("tick", (changed(TICK, subscribe=("org.",)),), True),
        ("tick", (changed(TICK, publish=()),), False),
        ("cra", (TICK,), True),
        ("cra", (changed(SALTED, secret="other"),), True),
        ("cra", (changed(SALTED, iterations=51),), True),
        ("cra", (changed(SALTED, publish=("com.",)),), False),
        ("sign", (changed(SIGN, public_keys=(OTHER_PUBLIC,)),), True),
        ("sign", (changed(SIGN, public_keys=(OTHER_PUBLIC, PUBLIC.upper())),), False),
    ],
)
def test_a_session_ends_if_its_login_or_a_subscription_is_not_permitted_any_more(
    rig: "RealmRig", authid: str, users: tuple[User, ...], ended: bool
) -> None:
    client, other = logged_in(rig, authid), rig.joined_client()
    client.subscribe("com.a.b")
    other.subscribe("com.a.b")
    change(rig, *users)
    assert is_ended(client) is ended
    assert not is_ended(other), "an anonymous session"
    assert rig.realm.counts["sessions_revoked"] == ended
    assert len(rig.realm.sessions) == 2 - ended
    subscription = rig.realm.broker.find("com.a.b", "exact")
    assert subscription is not None
    assert len(subscription.subscribers) == 2 - ended


def test_the_permissions_of_a_session_that_continues_are_the_new_ones(rig: "RealmRig") -> None:
    client = logged_in(rig, "tick")
    assert client.request(16, 1, {"acknowledge": True}, "com.a", [])[0] == 17
    change(rig, changed(TICK, publish=("org.",), subscribe=("com.", "org.")))
    refused = client.request(16, 2, {"acknowledge": True}, "com.a", [])
    assert (refused[0], refused[4]) == (8, "wamp.error.not_authorized")
    assert client.request(16, 3, {"acknowledge": True}, "org.a", [])[0] == 17
    client.subscribe("org.b")


def test_anonymous_sessions_end_when_they_are_not_permitted_any_more(rig: "RealmRig") -> None:
    client, reader, user = rig.joined_client(), rig.joined_client(), logged_in(rig, "tick")
    reader.subscribe("wamp.subscription.on_create")
    change(rig, *USERS, anonymous=ANONYMOUS._replace(meta_api=False))
    assert (is_ended(client), is_ended(reader), is_ended(user)) == (False, True, False)
    change(rig, *USERS, anonymous=None)
    assert (is_ended(client), is_ended(user)) == (True, False)
    assert rig.client().request(*hello(None))[0] == 3


def test_a_challenge_of_the_former_users_opens_no_session(rig: "RealmRig") -> None:
    """Else a client with a revoked ticket could keep a challenge until after the change."""
    client = rig.client()
    assert client.request(*hello("tick", "ticket"))[0] == 4
    change(rig, SALTED, SIGN)
    assert outcome(client, "t1cket") == (3, "wamp.error.authentication_denied")
    assert rig.realm.sessions == {}


def test_a_subscribe_that_waits_for_the_vehicle_does_not_outlive_its_permission(
    make_rig: Callable[..., "RealmRig"],
) -> None:
    answers = []

    class Waiting:
        def open_subscription(self, session: Any, topic: str, match: Any, period_ns: int, done: Any) -> None:
            answers.append(done)

        def close_subscription(self, *_: Any) -> None:
            """Nothing is open."""

        def on_session_closed(self, session: Any) -> None:
            """No state."""

    rig = make_rig(*USERS, gate=Waiting())
    narrowed, widened = logged_in(rig, "tick"), logged_in(rig, "cra")
    for each in (narrowed, widened):
        each.send(32, 1, {}, "com.a")
    change(rig, changed(TICK, subscribe=("org.",)), changed(SALTED, publish=("com.",)))
    for done in answers:
        done(None)
    assert is_ended(narrowed)
    assert widened.received()[0][:2] == [33, 1]
    subscription = rig.realm.broker.find("com.a", "exact")
    assert subscription is not None
    assert subscription.subscribers.keys() == {widened.session}


def test_the_end_is_logged_with_the_user_and_the_reason(
    rig: "RealmRig", caplog: pytest.LogCaptureFixture
) -> None:
    logged_in(rig, "tick")
    change(rig, SALTED)
    [line] = [vars(each) for each in caplog.records if each.getMessage() == "wamp.session_revoked"]
    found = {name: line[name] for name in ("peer", "authid", "reason", LIMITED)}
    assert found == {
        "peer": "192.0.2.1",
        "authid": "tick",
        "reason": "its login is not valid any more",
        LIMITED: ("192.0.2.1", "tick"),
    }


def test_unchanged_passwords_are_not_derived_again(rig: "RealmRig", monkeypatch: pytest.MonkeyPatch) -> None:
    salts = []
    derive = hashlib.pbkdf2_hmac

    def recorded(name: str, secret: bytes, salt: bytes, iterations: int, size: int) -> bytes:
        salts.append(salt)
        return derive(name, secret, salt, iterations, size)

    monkeypatch.setattr("ustreamer_wamp.auth.hashlib.pbkdf2_hmac", recorded)
    change(rig, changed(SALTED, role="other"), changed(SALTED, authid="new", salt="pepper"))
    assert salts == [b"pepper"]
