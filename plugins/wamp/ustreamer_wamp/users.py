# SPDX-License-Identifier: Apache-2.0
"""Users, their authentication and permissions: sections of the configuration."""

import binascii
import re
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta

from ustreamer_wamp import uri
from ustreamer_wamp.uri import Match

KEY_BYTES: Final = 32  # of an Ed25519 public key
_HASH: Final = re.compile("[0-9a-fA-F]{64}")
Name = Annotated[str, Meta(min_length=1, max_length=256, examples=["dashboard"])]


class User(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[plugins.wamp.users]]`: one of `ticket`, `secret` (WAMP-CRA) and `public_keys` (cryptosign, hexadecimal), or
    more.

    In place of clear text: `ticket_sha256` is the hash of a random ticket, `derived_key` the key that WAMP-CRA derives
    from the secret with `salt` and `iterations`, in Base64.

    `subscribe` and `publish` are prefixes of the topics that this user may subscribe or publish: `""` is all, and
    the default permits no publication. `salt` is for clients that keep a key derived from `secret` and not
    `secret` itself. `meta_api`: this user may read the subscriptions of all clients, by `wamp.subscription.*`.
    """

    authid: Name
    role: Name = "user"
    ticket: str = ""
    ticket_sha256: str = ""
    secret: str = ""
    derived_key: str = ""
    salt: str = ""
    iterations: Annotated[int, Meta(ge=1, le=1_000_000)] = 1000
    public_keys: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ("",)
    publish: tuple[str, ...] = ()
    meta_api: bool = True

    def __post_init__(self) -> None:
        if not (self.has_ticket or self.has_secret or self.public_keys):
            raise ValueError(f"authid: {self.authid!r} has neither ticket nor secret nor public_keys")
        if self.ticket and self.ticket_sha256:
            raise ValueError("ticket_sha256: expected either ticket or ticket_sha256")
        if self.ticket_sha256 and not _HASH.fullmatch(self.ticket_sha256):
            raise ValueError("ticket_sha256: expected 64 hexadecimal digits")
        if self.secret and self.derived_key:
            raise ValueError("derived_key: expected either secret or derived_key")
        if self.derived_key and not self.salt:
            raise ValueError("derived_key: it needs the salt and the iterations that it was derived with")
        if self.derived_key and not _is_derived_key(self.derived_key):
            raise ValueError(f"derived_key: expected {KEY_BYTES} bytes in Base64")
        for index, key in enumerate(self.public_keys):
            if not is_public_key(key):
                raise ValueError(f"public_keys[{index}]: expected {2 * KEY_BYTES} hexadecimal digits")
        check_prefixes("subscribe", self.subscribe)
        check_prefixes("publish", self.publish)

    @property
    def has_ticket(self) -> bool:
        return bool(self.ticket or self.ticket_sha256)

    @property
    def has_secret(self) -> bool:
        return bool(self.secret or self.derived_key)


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


def _is_derived_key(text: str) -> bool:
    try:
        return len(binascii.a2b_base64(text, strict_mode=True)) == KEY_BYTES
    except ValueError:
        return False


def is_public_key(text: str) -> bool:
    try:
        return len(binascii.unhexlify(text)) == KEY_BYTES
    except ValueError:
        return False
