# SPDX-License-Identifier: Apache-2.0
"""The plugin of docs/plugins.md that checks tokens, called as the host calls it."""

from pathlib import Path
from typing import Any

import jwt
import msgspec
import pluggy
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.docs.test_plugins_page import page_class
from ustreamer.core.base.clock import ManualClock
from ustreamer.core.routing.identity import Authorise, Peer
from ustreamer.hooks import PROJECT, Hooks, PluginContext, hookimpl
from ustreamer.host.runtime.plugins import authorisation
from ustreamer.uprotocol import UAttributes, UCode, UStatus, UUri
from ustreamer.uprotocol.umessage import publish, request
from ustreamer.uprotocol.uuid import UUID

APP, METHOD = UUri("cloud", 0x7001, 1, 0), UUri("hpc", 0x4001, 1, 1)
ID = UUID(0x7000, 2 << 62)
PEER = Peer("cloud")
ISSUER = "https://issuer.example"
KEY, OTHER_KEY = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()


def authorise_with(*plugins: object) -> Authorise | None:
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(Hooks)
    for each in plugins:
        manager.register(each)
    return authorisation(manager)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def authorise(clock: ManualClock) -> Authorise:
    cls = page_class("tokens", "TokensPlugin")
    pem = KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    section = {"guarded": "//hpc/4001/1/FFFF", "public_key": pem, "issuer": ISSUER}
    context = PluginContext("hpc", ("hpc",), Path(), clock.clock(), lambda when, action: None)
    found = authorise_with(cls(msgspec.convert(section, cls.Config), context))
    assert found is not None
    return found


def token(clock: ManualClock, key: Ed25519PrivateKey = KEY, **changes: Any) -> str:
    end_s = clock.clock().wall_ms() // 1000 + 60
    claims = {"sub": str(APP), "iss": ISSUER, "exp": end_s} | changes
    return jwt.encode(
        {name: value for name, value in claims.items() if value is not None}, key, algorithm="EdDSA"
    )


def call(with_token: str | None, sink: UUri = METHOD) -> UAttributes:
    return msgspec.structs.replace(request(ID, APP, sink, ttl=1000).attributes, token=with_token)


def test_a_valid_token_of_the_source_is_accepted_until_it_ends(
    authorise: Authorise, clock: ManualClock
) -> None:
    attributes = call(token(clock))
    assert authorise(PEER, attributes) is None
    clock.advance(s=59)
    assert authorise(PEER, attributes) is None
    clock.advance(s=2)
    assert authorise(PEER, attributes) == UStatus(UCode.UNAUTHENTICATED, "the token has ended")


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"key": OTHER_KEY}, UCode.UNAUTHENTICATED),
        ({"iss": "https://other.example"}, UCode.UNAUTHENTICATED),
        ({"exp": None}, UCode.UNAUTHENTICATED),
        ({"sub": str(UUri("cloud", 0x7002, 1, 0))}, UCode.PERMISSION_DENIED),
    ],
)
def test_any_other_token_is_denied_and_not_shown(
    authorise: Authorise, clock: ManualClock, changes: dict[str, Any], code: UCode
) -> None:
    text = token(clock, **changes)
    denial = authorise(PEER, call(text))
    assert denial is not None
    assert denial.code is code
    assert text not in denial.message


def test_a_guarded_entity_needs_a_token_and_no_other_does(authorise: Authorise) -> None:
    for text in (None, "x", ""):
        denial = authorise(PEER, call(text))
        assert denial is not None
        assert denial.code is UCode.UNAUTHENTICATED
    assert authorise(PEER, call(None, UUri("hpc", 0x4002, 1, 1))) is None
    assert authorise(PEER, publish(ID, UUri("cloud", 0x7001, 1, 0x8001)).attributes) is None


# --- several plugins --------------------------------------------------------------------------------------------------


class Allows:
    @hookimpl
    def ustreamer_authorise(self) -> None:
        """No reason."""


class Fails:
    @hookimpl
    def ustreamer_authorise(self) -> None:
        raise KeyError("defect")


def test_without_the_hook_nothing_is_authorised() -> None:
    assert authorise_with(object()) is None


def test_one_plugin_that_denies_is_enough(authorise: Authorise) -> None:
    class Denies:
        @hookimpl
        def ustreamer_authorise(self) -> UStatus:
            return UStatus(UCode.PERMISSION_DENIED, "no")

    both = authorise_with(Allows(), Denies(), Allows())
    assert both is not None
    assert both(PEER, call(None)) == UStatus(UCode.PERMISSION_DENIED, "no")


def test_a_plugin_that_fails_denies(caplog: pytest.LogCaptureFixture) -> None:
    found = authorise_with(Allows(), Fails())
    assert found is not None
    denial = found(PEER, call(None))
    assert denial is not None
    assert (denial.code, denial.message) == (
        UCode.PERMISSION_DENIED,
        "a plugin could not authorise it: KeyError: 'defect'",
    )
    assert [each.message for each in caplog.records] == ["plugins.authorisation_failed"]
