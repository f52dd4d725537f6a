# SPDX-License-Identifier: Apache-2.0
"""Users, their authentication and permissions: sections of the configuration."""

import binascii
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta

from ustreamer_wamp import uri
from ustreamer_wamp.uri import Match

KEY_BYTES: Final = 32  # of an Ed25519 public key
Name = Annotated[str, Meta(min_length=1, max_length=256, examples=["dashboard"])]


class User(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[plugins.wamp.users]]`: one of `ticket`, `secret` (WAMP-CRA) and `public_keys` (cryptosign, hexadecimal), or
    more.

    `subscribe` and `publish` are prefixes of the topics that this user may subscribe or publish: `""` is all, and
    the default permits no publication. `salt` is for clients that keep a key derived from `secret` and not
    `secret` itself. `meta_api`: this user may read the subscriptions of all clients, by `wamp.subscription.*`.
    """

    authid: Name
    role: Name = "user"
    ticket: str = ""
    secret: str = ""
    salt: str = ""
    iterations: Annotated[int, Meta(ge=1, le=1_000_000)] = 1000
    public_keys: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ("",)
    publish: tuple[str, ...] = ()
    meta_api: bool = True

    def __post_init__(self) -> None:
        if not (self.ticket or self.secret or self.public_keys):
            raise ValueError(f"authid: {self.authid!r} has neither ticket nor secret nor public_keys")
        for index, key in enumerate(self.public_keys):
            if not is_public_key(key):
                raise ValueError(f"public_keys[{index}]: expected {2 * KEY_BYTES} hexadecimal digits")
        check_prefixes("subscribe", self.subscribe)
        check_prefixes("publish", self.publish)


class Principal(NamedTuple):
    """The identity of a session: the fields of WELCOME, and its permitted topics, as prefixes."""

    authid: str
    role: str
    method: str
    provider: str
    subscribe: tuple[str, ...]
    publish: tuple[str, ...]
    meta_api: bool = False

    def may_subscribe(self, topic: str, match: Match) -> bool:
        """Whether all topics that a pattern matches may be subscribed."""
        # A wildcard is as wide as the prefix before its first empty component.
        fixed_prefix = topic if match != "wildcard" else _fixed_prefix(topic)
        return fixed_prefix.startswith(self.subscribe)

    def may_publish(self, topic: str) -> bool:
        return topic.startswith(self.publish)


def _fixed_prefix(pattern: str) -> str:
    components = pattern.split(".")
    if "" not in components:
        return pattern
    before = components[: components.index("")]
    return "".join(f"{component}." for component in before)


def check_prefixes(key: str, prefixes: tuple[str, ...]) -> None:
    """ValueError naming a text that is not a prefix of a URI."""
    for index, prefix in enumerate(prefixes):
        if trouble := uri.problem(prefix, "prefix"):
            raise ValueError(f"{key}[{index}]: {trouble}")


def is_public_key(text: str) -> bool:
    try:
        return len(binascii.unhexlify(text)) == KEY_BYTES
    except ValueError:
        return False
