# SPDX-License-Identifier: Apache-2.0
"""The section of the configuration: valid sections, and the place of each error."""

from typing import Any

import msgspec
import pytest
from ustreamer_wamp.config import WampConfig, parse_listen

USER = {"authid": "a", "ticket": "t"}


def config(**section: Any) -> WampConfig:
    return msgspec.convert(
        {"listen": "ws://127.0.0.1:8080/ws", **section}, WampConfig, dec_hook=lambda kind, value: kind(value)
    )


@pytest.mark.parametrize(
    ("url", "websocket", "tls", "host", "port", "path", "unix"),
    [
        ("ws://127.0.0.1:8080/ws", True, False, "127.0.0.1", 8080, "/ws", ""),
        ("wss://gateway.local:443", True, True, "gateway.local", 443, "", ""),
        ("ws://[::1]:0/", True, False, "::1", 0, "/", ""),
        ("rs://0.0.0.0:8081", False, False, "0.0.0.0", 8081, "", ""),
        ("rss://127.0.0.1:8082", False, True, "127.0.0.1", 8082, "", ""),
        ("rs+unix:///run/wamp.sock", False, False, "", 0, "", "/run/wamp.sock"),
        ("ws+unix:///run/wamp.sock", True, False, "", 0, "", "/run/wamp.sock"),
    ],
)
def test_a_place_to_listen_is_read(
    url: str, websocket: bool, tls: bool, host: str, port: int, path: str, unix: str
) -> None:
    assert parse_listen(url) == (url, websocket, tls, host, port, path, unix)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "127.0.0.1:8080",
        "http://127.0.0.1:8080/ws",
        "ws://127.0.0.1/ws",
        "ws://127.0.0.1:99999/ws",
        "ws://127.0.0.1:8080/ws?x=1",
        "rs://127.0.0.1:8080/path",
        "rs+unix://relative",
        "ws://127.0.0.1:8080/ws\n",
    ],
)
def test_an_invalid_address_is_reported_with_a_valid_example(url: str) -> None:
    with pytest.raises(ValueError, match="ws://host:port/path|expected rs://"):
        parse_listen(url)


@pytest.mark.parametrize(
    ("section", "place"),
    [
        ({"listen": "http://x"}, "listen: 'http://x' is none of"),
        ({"listen": ["ws://127.0.0.1:1", "x"]}, "listen[1]: 'x' is none of"),
        (
            {"listen": "ws+unix:///" + "x" * 107},
            f"listen: 'ws+unix:///{'x' * 107}': the path of a socket has 108 bytes",
        ),
        ({"listen": []}, "listen: expected at least one"),
        ({"listen": "wss://127.0.0.1:1"}, "listen: 'wss://127.0.0.1:1' needs tls"),
        ({"realm": "a b"}, "realm: URI 'a b'"),
        ({"users": [USER, USER]}, "users[1].authid: 'a' is there twice"),
        ({"anonymous": {"subscribe": ["a b"]}}, "subscribe[0]: URI 'a b'"),
    ],
)
def test_an_inconsistent_section_is_reported_with_its_place(section: dict[str, Any], place: str) -> None:
    with pytest.raises((ValueError, msgspec.ValidationError)) as caught:
        config(**section)
    assert str(caught.value).startswith(place)


def test_no_client_is_admitted_by_default() -> None:
    assert config().anonymous_principal is None
    assert config().users == ()
    anyone = config(anonymous=True).anonymous_principal
    assert anyone is not None
    assert (anyone.subscribe, anyone.publish) == (("",), ())
    narrow = config(anonymous={"subscribe": ["up.vcu."]}).anonymous_principal
    assert narrow is not None
    assert (narrow.role, narrow.subscribe) == ("anonymous", ("up.vcu.",))


def test_the_contract_is_one_key() -> None:
    assert config().urls == ("ws://127.0.0.1:8080/ws",)
    assert [each.port for each in config(listen=["ws://h:1", "rs://h:2"]).listeners] == [1, 2]
