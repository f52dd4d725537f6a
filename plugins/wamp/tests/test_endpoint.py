# SPDX-License-Identifier: Apache-2.0
"""The verified senders of the endpoint: users, by the topics that they may publish."""

import msgspec
import pytest
from ustreamer_wamp.endpoint import SESSIONS, WampEndpoint
from ustreamer_wamp.plugin import WampSection

from ustreamer.core.routing.identity import Identity
from ustreamer.uprotocol.uuri import UUri

SECTION = {
    "listen": "ws://127.0.0.1:0",
    "users": [
        {
            "authid": "ada",
            "role": "operator",
            "ticket": "x",
            "publish": ["up.wamp_2ehpc.1.", "up.wamp_2ehpc.2."],
        },
        {"authid": "bob", "ticket": "y", "publish": ["up.wamp_2ehpc.2."]},
        {"authid": "eve", "ticket": "z"},
    ],
    "access": [{"allow": True, "role": "operator", "type": "publish"}],
}
ADA, BOB = Identity("ada", "operator"), Identity("bob", "user")


def endpoint(**keys: object) -> WampEndpoint:
    return msgspec.convert(SECTION | keys, WampSection).endpoints("hpc")["wamp"]


@pytest.mark.parametrize(
    ("source", "identities"),
    [
        (UUri("wamp.hpc", 1, 1, 0x8001), {ADA}),
        (UUri("wamp.hpc", 2, 1, 0x8001), {ADA, BOB}),
        (UUri("wamp.hpc", 3, 1, 0x8001), set()),
        (UUri("wamp.hpc", 1, 1, 0), {SESSIONS}),
    ],
)
def test_the_senders_of_a_topic_are_the_users_that_may_publish_it(
    source: UUri, identities: set[Identity]
) -> None:
    assert endpoint().identities_of(source) == identities


def test_the_section_has_access_rules_which_name_users() -> None:
    assert [rule.role for rule in endpoint().access] == ["operator"]
    with pytest.raises(msgspec.ValidationError, match=r"access\[0\].identity: 'adam' is not known here"):
        endpoint(access=[{"allow": True, "identity": "adam"}])
