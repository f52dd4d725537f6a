# SPDX-License-Identifier: Apache-2.0
"""Tokens are checked by the plugin of docs/plugins.md, for messages of real Zenoh sessions."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.docs.test_plugins_page import page_class
from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import ZenohEntity
from tests.e2e.rigs.ports import tcp_ports
from tests.e2e.rigs.wire import Attributes, Id, Uri
from ustreamer.testing.bench import StreamerBench

UNAUTHENTICATED: Final = 16
ISSUER: Final = "https://issuer.example"
KEY: Final = Ed25519PrivateKey.generate()
DOORS: Final = Uri("hpc.vin1", 0x4001, 1)
CONFIG: Final = """
authority = "hpc.vin1"
state_dir = "state"
[endpoints.backbone]
transport = "zenoh"
authorities = ["hpc.vin1"]
listen = ["tcp/127.0.0.1:{backbone}"]
[endpoints.cloud]
transport = "zenoh"
authorities = ["cloud"]
listen = ["tcp/127.0.0.1:{cloud}"]
[plugins.usubscription]
[plugins.tokens]
guarded = "//hpc.vin1/4001/1/FFFF"
public_key = '''{key}'''
issuer = "{issuer}"
"""


class Nodes(NamedTuple):
    doors: ZenohEntity
    phone: ZenohEntity


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    """A streamer with the plugin, an entity that it guards, and a caller in another network."""
    backbone, cloud = tcp_ports(2)
    key = KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    config = CONFIG.format(backbone=backbone, cloud=cloud, key=key, issuer=ISSUER)
    with StreamerBench(tmp_path) as bench:
        bench.start_streamer(config, {"tokens": page_class("tokens", "TokensPlugin")})
        with ZenohEntity(backbone, "hpc.vin1", DOORS.ue_id) as doors, ZenohEntity(cloud, "cloud") as phone:
            yield Nodes(doors, phone)


def call(phone: ZenohEntity, token: str | None) -> Id:
    head = Attributes(
        wire.new_id(),
        wire.REQUEST,
        phone.address,
        DOORS.at(1),
        priority=wire.CS4,
        ttl=5000,
        token=token,
        payload_format=wire.PROTOBUF,
    )
    return phone.send_message(head, b"open")


def token_of(owner: Uri, key: Ed25519PrivateKey = KEY, ends_in_s: int = 60) -> str:
    claims = {"sub": f"up:{owner}", "iss": ISSUER, "exp": int(time.time()) + ends_in_s}
    return jwt.encode(claims, key, algorithm="EdDSA")


def test_only_a_call_with_a_valid_token_reaches_a_guarded_entity(nodes: Nodes) -> None:
    doors, phone = nodes
    refused = {
        "none": (None, UNAUTHENTICATED),
        "forged": (token_of(phone.address, Ed25519PrivateKey.generate()), UNAUTHENTICATED),
        "ended": (token_of(phone.address, ends_in_s=-60), UNAUTHENTICATED),
        "of another": (token_of(Uri("cloud", 0x7777, 1)), wire.PERMISSION_DENIED),
    }
    for name, (token, status) in refused.items():
        assert phone.wait_response(call(phone, token)).head.commstatus == status, name
    sent = call(phone, token_of(phone.address))
    arrived = doors.inbox.wait_one(lambda each: each.attributes is not None and each.payload == b"open")
    assert arrived.head.id == sent, "the first one that arrives"
    doors.respond(arrived, b"done")
    assert phone.wait_response(sent).payload == b"done"
