# SPDX-License-Identifier: Apache-2.0
"""The vectors of wamp-proto. Their licence (CC-BY-SA) forbids a copy here: `make test` fetches them, see vectors.txt.

Those of a checkout are run by `WAMP_TESTSUITE=.../wamp-proto/testsuite make test`.

A sample is of one of two kinds. It has one value in several serializers, of each of which one variant must be decoded
and be encoded. Or it has a message and the expected reaction.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from ustreamer_wamp.codec import SERIALIZERS
from ustreamer_wamp.messages import SHAPES, Code, ProtocolViolation, parse

ANSWERS = (
    Code.WELCOME,
    Code.CHALLENGE,
    Code.PUBLISHED,
    Code.SUBSCRIBED,
    Code.UNSUBSCRIBED,
    Code.EVENT,
)
FETCHED = Path(__file__).resolve().parents[3] / "build" / "wamp-testsuite"
"""The directory into which `make test` writes them."""
WHERE = os.environ.get("WAMP_TESTSUITE", "") or (str(FETCHED) if (FETCHED / ".installed").is_file() else "")
OWN: dict[str, Any] = {
    "wamp_message_code": 34,
    "samples": [
        {
            "description": "UNSUBSCRIBE",
            "serializers": {
                "json": [
                    {"bytes_hex": b"[34, 7, 5]".hex()},
                    {"bytes_hex": b"[34,7,5]".hex()},
                ],
                "msgpack": [{"bytes_hex": "93220705"}],
                "cbor": [{"bytes_hex": "8318220705"}],
                "ubjson": [{"bytes_hex": "00"}],
            },
        },
        {
            "description": "without a Subscription",
            "wmsg": [34, 7],
            "expected_error": {"contains": "UNSUBSCRIBE"},
        },
        {"description": "as it should be", "wmsg": [34, 7, 5]},
    ],
}
"""In the same form, so that the checker is tested where the vectors are not installed."""


def failures_of_serializing(sample: dict[str, Any]) -> list[str]:
    """The first difference in decoding or encoding the bytes of a sample; "" if none."""
    values, found = [], []
    for serializer in SERIALIZERS:
        variants = [
            bytes.fromhex(each["bytes_hex"]) for each in sample["serializers"].get(serializer.name, ())
        ]
        if not variants:
            continue
        decoded = [serializer.decode(each) for each in variants]
        if not any(serializer.encode(value) in variants for value in decoded):
            found.append(f"{serializer.name}: written as {serializer.encode(decoded[0])!r}")
        values += decoded
    return found + [f"{value!r} is not {values[0]!r}" for value in values[1:] if value != values[0]]


def failure_of_validation(sample: dict[str, Any]) -> str:
    """The first unexpected reaction to a client's message; "" if none."""
    expected = sample.get("expected_error")
    try:
        parse(list(sample["wmsg"]))
    except ProtocolViolation as error:
        if expected is None:
            return f"refused: {error}"
        return "" if expected["contains"] in str(error) else f"{expected['contains']!r} is not in: {error}"
    return "" if expected is None else "taken"


def failures(vectors: dict[str, Any]) -> list[str]:
    """The faults in the samples of one file."""
    code, found = vectors["wamp_message_code"], []
    for sample in vectors["samples"]:
        wrong: list[str] = []
        if "serializers" in sample:
            wrong = failures_of_serializing(sample)
        elif code in SHAPES and "enc_algo" not in str(sample["wmsg"]):
            # Payloads that the router cannot decode (`enc_algo`) are not in the standard; the router rejects them.
            wrong = [each for each in [failure_of_validation(sample)] if each]
        found += [f"{sample['description']}: {each}" for each in wrong]
    return found


def official() -> list[Path]:
    """The files about messages of a Broker and its clients."""
    known = {int(code) for code in (*SHAPES, *ANSWERS)}
    files = sorted(Path(WHERE).glob("singlemessage/*/*.json")) if WHERE else []
    return [each for each in files if json.loads(each.read_bytes())["wamp_message_code"] in known]


@pytest.mark.skipif(
    not WHERE,
    reason="`make test` fetches the vectors of wamp-proto, by pip; or set WAMP_TESTSUITE to their directory",
)
def test_the_official_vectors_are_there() -> None:
    assert len(official()) >= 12, f"{WHERE} has no singlemessage/*/*.json"


@pytest.mark.parametrize("file", official(), ids=lambda path: str(path.stem))
def test_an_official_vector(file: Path) -> None:
    assert failures(json.loads(file.read_bytes())) == []


def test_a_vector_that_holds_has_no_failures() -> None:
    assert failures(OWN) == []


@pytest.mark.parametrize(
    ("sample", "key", "value", "expected"),
    [
        (0, "serializers", {"json": [{"bytes_hex": b"[34, 7, 5]".hex()}]}, "written as"),
        (
            0,
            "serializers",
            {"json": [{"bytes_hex": b"[34,7,5]".hex()}], "cbor": [{"bytes_hex": "8318220706"}]},
            "is not",
        ),
        (1, "wmsg", [34, 7, 5], "taken"),
        (1, "expected_error", {"contains": "never expected"}, "is not in"),
        (2, "wmsg", [34, 7, 0], "refused"),
    ],
)
def test_a_vector_that_does_not_hold_is_named(sample: int, key: str, value: Any, expected: str) -> None:
    changed = {**OWN["samples"][sample], key: value}
    (failure,) = failures({**OWN, "samples": [changed]})
    assert failure.startswith(changed["description"])
    assert expected in failure
