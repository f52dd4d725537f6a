# SPDX-License-Identifier: Apache-2.0
"""The payload of each topic; and the errors that `ustreamer check` reports, with their place."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from ustreamer_payloads.errors import PayloadError
from ustreamer_payloads.plugin import MAX_TOPICS, PayloadsConfig, PayloadsPlugin

from ustreamer.core.base.clock import ManualClock
from ustreamer.hooks import PluginContext
from ustreamer.uprotocol.uuri import UUri

SPEED = {"kind": "struct", "members": [{"name": "speed", "type": "f32"}]}
WHEEL = UUri("chassis", 0x1234, 1, 0x8001)


def config(**keys: Any) -> PayloadsConfig:
    return msgspec.convert(keys, PayloadsConfig)


def plugin(**keys: Any) -> PayloadsPlugin:
    context = PluginContext("hpc", ("hpc",), Path(), ManualClock().clock(), lambda when, action: None)
    return PayloadsPlugin(config(**keys), context)


def topic(pattern: str, **keys: str) -> dict[str, str]:
    return {"topic": pattern, **(keys or {"type": "u8"})}


def test_a_topic_has_the_decoder_of_its_type_and_others_none() -> None:
    payloads = plugin(types={"Speed": SPEED}, topics=[topic("//chassis/1234/1/8001", type="Speed")])
    decode = payloads.ustreamer_decoders(WHEEL)
    assert decode is not None
    assert decode(bytes.fromhex("3fc00000")) == {"speed": 1.5}
    with pytest.raises(PayloadError, match="^at byte 0: Speed.speed: needs 4 bytes, 3 are left$"):
        decode(b"\0\0\0")
    assert payloads.ustreamer_decoders(WHEEL.with_resource(0x8002)) is None


def test_a_pattern_describes_all_that_it_matches() -> None:
    payloads = plugin(topics=[topic("//chassis/FFFF1234/1/FFFF", type="u8")])
    for uuri in (WHEEL, WHEEL.with_resource(0x8002), UUri("chassis", 0x31234, 1, 0x8001)):
        decode = payloads.ustreamer_decoders(uuri)
        assert decode is not None
        assert decode(b"\7") == 7
    assert payloads.ustreamer_decoders(UUri("chassis", 0x1234, 2, 0x8001)) is None


@pytest.mark.parametrize(
    ("topics", "text"),
    [
        (["//a/1/1/8001", "//a/1/1/8001"], "topics[1].topic: what is published on up://a/1/1/8001 is described by topics[0] already"),
        (["//a/1/1/8001", "//*/1/1/8001"], "topics[0].topic: what is published on up://a/1/1/8001 is described by topics[1] already"),
        (["//*/1/1/8001", "//a/1/FF/8001"], "topics[1].topic: what is published on up://a/1/FF/8001 is described by topics[0] already"),
        (["//a/FFFF0001/1/8001", "//a/1FFFF/1/FFFF"], "topics[1].topic: what is published on up://a/1FFFF/1/FFFF is described by topics[0] already"),
        (["nonsense"], "topics[0].topic: UUri 'nonsense'"),
    ],
)  # fmt: skip
def test_a_topic_is_described_once(topics: list[str], text: str) -> None:
    with pytest.raises(msgspec.ValidationError) as refused:
        config(topics=[topic(each) for each in topics])
    assert str(refused.value).startswith(text)


@pytest.mark.parametrize(
    "topics",
    [
        ["//a/1/1/8001", "//a/1/1/8002", "//b/1/1/8001", "//a/1/2/8001", "//a/2/1/8001", "//a/10001/1/8001"],
        ["//*/1/1/8001", "//*/1/1/8002", "//a/2/1/FFFF", "//b/2/1/FFFF", "//a/3/FF/8001"],
        ["//a/FFFF0001/1/8001", "//a/1FFFF/1/8002"],
    ],
)
def test_disjoint_patterns_may_be_configured_together(topics: list[str]) -> None:
    config(topics=[topic(each) for each in topics])


def test_as_many_topics_as_there_may_be_are_compared_in_a_moment() -> None:
    wild = [topic(f"//a{number}/1/1/FFFF") for number in range(MAX_TOPICS)]
    config(topics=wild)
    with pytest.raises(msgspec.ValidationError, match=f"length <= {MAX_TOPICS}"):
        config(topics=[*wild, topic("//b/1/1/FFFF")])


@pytest.mark.parametrize("keys", [{"type": "u8", "class": "a:B"}, {"topic": "//a/1/1/8001"}])
def test_a_topic_has_either_a_type_or_a_class(keys: dict[str, str]) -> None:
    with pytest.raises(msgspec.ValidationError, match="expected either a type or a class"):
        config(topics=[topic("//a/1/1/8001", **keys)])


def test_a_class_plugs_in_and_is_bounded_as_types_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "class Doors:\n    def deserialize(self, payload):\n        self.open = [*payload]\n        return self\n"
    (tmp_path / "door_classes.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    keys = topic("//chassis/1234/1/8001", **{"class": "door_classes:Doors"})
    decode = plugin(topics=[keys], max_bytes=3).ustreamer_decoders(WHEEL)
    assert decode is not None
    assert decode(b"\1\2\3") == {"open": [1, 2, 3]}
    with pytest.raises(PayloadError, match=r"^door_classes:Doors: 4 bytes, more than max_bytes \(3\)$"):
        decode(b"\1\2\3\4")


def test_a_class_that_cannot_be_had_is_named_with_its_topic() -> None:
    with pytest.raises(
        ValueError, match=r"^topics\[0\].class: cannot import 'no_such_payloads': ModuleNotFoundError"
    ):
        plugin(topics=[topic("//a/1/1/8001", **{"class": "no_such_payloads:A"})])


def test_a_type_without_topics_is_checked_all_the_same() -> None:
    with pytest.raises(msgspec.ValidationError, match=r"^types.A.members\[0\].type: there is no type 'u9'"):
        config(types={"A": {"kind": "struct", "members": [{"name": "a", "type": "u9"}]}})


def test_a_topic_of_a_type_that_does_not_exist_is_named() -> None:
    with pytest.raises(msgspec.ValidationError, match=r"^topics\[0\].type: there is no type 'Speed'"):
        config(topics=[topic("//a/1/1/8001", type="Speed")])
