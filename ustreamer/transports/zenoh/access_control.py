# SPDX-License-Identifier: Apache-2.0
"""Zenoh's access control for the identities of an endpoint: which certificate or user may put which keys.

Zenoh's Python API has no sender of a sample. So Zenoh itself checks each sample: its key has the source, and the link
has the certificate or the user. What no identity may send is dropped before this process reads it.
"""

from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote

from ustreamer.transports.zenoh.config import ZenohIdentity
from ustreamer.transports.zenoh.keys import EVERY_KEY, filter_key
from ustreamer.transports.zenoh.receipts.receipt_keys import PREFIX as RECEIPTS
from ustreamer.transports.zenoh.tokens.token_keys import PREFIX as TOKENS
from ustreamer.uprotocol.uuri import ANY, ANY_AUTHORITY

_GATEWAY: Final = "the streamer"
_EVERY_MESSAGE: Final = (
    "put",
    "delete",
    "declare_subscriber",
    "query",
    "reply",
    "declare_queryable",
    "liveliness_token",
    "liveliness_query",
    "declare_liveliness_subscriber",
)


def router_access_control(identities: Sequence[ZenohIdentity], gateway: str) -> dict[str, Any]:
    """As `access_control`, for a router between the identities and the streamer with the certificate `gateway`."""
    control = access_control(identities)
    control["rules"].append(_rule(_GATEWAY, "ingress", _EVERY_MESSAGE, ["**"]))
    control["subjects"].append({"id": _GATEWAY, "cert_common_names": [gateway]})
    control["policies"].append({"rules": ["send", _GATEWAY], "subjects": [_GATEWAY]})
    return control


def access_control(identities: Sequence[ZenohIdentity]) -> dict[str, Any]:
    """The section `access_control` of a Zenoh configuration. Everything that it does not list is denied."""
    subjects = [_subject(each) for each in identities]
    rules = [
        _rule("send", "egress", _EVERY_MESSAGE, ["**"]),
        _rule("subscribe", "ingress", ("declare_subscriber",), [EVERY_KEY, f"{RECEIPTS}/**"]),
        _rule(
            "peers",
            "ingress",
            ("declare_liveliness_subscriber", "liveliness_query", "reply"),
            [f"{TOKENS}/**", f"{RECEIPTS}/**"],
        ),
    ]
    policies = [{"rules": [each["id"] for each in rules], "subjects": [each["id"] for each in subjects]}]
    for identity in identities:
        own = [
            _rule(f"put by {identity.name}", "ingress", ("put",), _message_keys(identity)),
            _rule(f"announce by {identity.name}", "ingress", ("liveliness_token",), _token_keys(identity)),
            _rule(f"receipts by {identity.name}", "ingress", ("put", "delete"), _receipt_keys(identity)),
        ]
        rules += own
        policies.append({"rules": [each["id"] for each in own], "subjects": [identity.name]})
    return {
        "enabled": True,
        "default_permission": "deny",
        "rules": rules,
        "subjects": subjects,
        "policies": policies,
    }


def _subject(identity: ZenohIdentity) -> dict[str, Any]:
    key = "cert_common_names" if identity.certificate is not None else "usernames"
    return {"id": identity.name, key: [identity.name]}


def _rule(id: str, flow: str, messages: Sequence[str], keys: Sequence[str]) -> dict[str, Any]:
    return {
        "id": id,
        "permission": "allow",
        "flows": [flow],
        "messages": list(messages),
        "key_exprs": list(keys),
    }


def _message_keys(identity: ZenohIdentity) -> list[str]:
    """The keys of all messages from the sources, to any sink and to none."""
    return [
        each
        for source in identity.patterns
        for each in (filter_key(source, ANY, ANY_AUTHORITY), filter_key(source, None, ANY_AUTHORITY))
    ]


def _authorities(identity: ZenohIdentity) -> list[str]:
    names = sorted({source.authority_name for source in identity.patterns})
    return ["*" if name == ANY_AUTHORITY else quote(name, safe="") for name in names]


def _token_keys(identity: ZenohIdentity) -> list[str]:
    """The announcements of a streamer with one of the authorities."""
    return [
        key for name in _authorities(identity) for key in (f"{TOKENS}/*/*/{name}/**", f"{RECEIPTS}/{name}/**")
    ]


def _receipt_keys(identity: ZenohIdentity) -> list[str]:
    return [f"{RECEIPTS}/{name}/**" for name in _authorities(identity)]
