# SPDX-License-Identifier: Apache-2.0
"""Sequences of messages between clients and the router, in the form of wamp-proto's testsuite. They are its own
sequences, and one of ours for each paragraph of "Subscribing and Unsubscribing", which has no sequence there.

Ids that the router assigns are bound at their first use: the same id in a vector must stay the same, and different
ids must differ.
"""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from ustreamer_wamp.messages import Code

if TYPE_CHECKING:
    from tests.conftest import Client, RealmRig
    from tests.test_vectors import WHERE
else:
    from plugins.wamp.tests.test_vectors import WHERE

Vector = dict[str, Any]

FIELDS = {
    "SUBSCRIBE": ("request_id", "options", "topic"),
    "SUBSCRIBED": ("request_id", "subscription_id"),
    "UNSUBSCRIBE": ("request_id", "subscription_id"),
    "UNSUBSCRIBED": ("request_id",),
    "PUBLISH": ("request_id", "options", "topic", "args", "kwargs"),
    "PUBLISHED": ("request_id", "publication_id"),
    "EVENT": ("subscription_id", "publication_id", "details", "args", "kwargs"),
    "ERROR": ("request_type", "request_id", "details", "error"),
    "GOODBYE": ("details", "reason"),
}
CHOSEN_BY_THE_ROUTER = ("subscription_id", "publication_id")


class Ids:
    """The ids of a vector and their values in this run."""

    def __init__(self) -> None:
        self._real: dict[tuple[str, int], int] = {}

    def known(self, name: str, value: Any) -> Any:
        """The message for `value` of the vector; unbound ids stay unchanged."""
        return self._real.get((name, value), value) if name in CHOSEN_BY_THE_ROUTER else value

    def bound(self, name: str, value: int, received: int) -> bool:
        """True if `received` matches the vector's `value`."""
        if (name, value) not in self._real and received in [
            real for (of, _), real in self._real.items() if of == name
        ]:
            return False
        return self._real.setdefault((name, value), received) == received


def sent(message: Vector, ids: Ids) -> list[Any]:
    """A step of a client as the message that it sends."""
    fields = [name for name in FIELDS[message["type"]] if name in message]
    return [int(Code[message["type"]]), *(ids.known(name, message[name]) for name in fields)]


def differs(message: Vector, received: list[Any], ids: Ids) -> str:
    """The difference between the router's message and the step; "" if none.

    Only the details in the step are compared.
    """
    kind = message["type"]
    if received[0] != int(Code[kind]):
        return f"{received} is no {kind}"
    for name, got in zip(FIELDS[kind], received[1:], strict=False):
        if name not in message:
            continue
        expected = message[name]
        if name in CHOSEN_BY_THE_ROUTER:
            same = ids.bound(name, expected, got)
        elif name == "details":
            same = expected.items() <= got.items()
        else:
            same = got == expected
        if not same:
            return f"{name} of {received}: expected {expected!r}"
    missing = [name for name in FIELDS[kind][len(received) - 1 :] if name in message]
    return f"{received} has no {', '.join(missing)}" if missing else ""


def failure(vector: Vector, client: Callable[[], "Client"]) -> str:
    """The first deviation from a sequence; "" if none.

    No client may receive more messages than the sequence contains.
    """
    clients = {each["session_id"]: client() for each in vector["sessions"]}
    inbox: dict[str, list[list[Any]]] = {name: [] for name in clients}
    ids = Ids()
    for step in vector["sequence"]:
        if step["to"] == "router":
            message = step["message"]
            if message["type"] == "LOST":
                clients[step["from"]].session.on_connection_lost()
            else:
                clients[step["from"]].send(*sent(message, ids))
            for name, each in clients.items():
                inbox[name] += each.received()
            continue
        received = inbox[step["to"]]
        if not received:
            return f"step {step['step']}: {step['to']} received nothing"
        if trouble := differs(step["message"], received.pop(0), ids):
            return f"step {step['step']}: {trouble}"
    more = {name: received for name, received in inbox.items() if received}
    return f"unexpected messages: {more}" if more else ""


# --- our sequences ------------------------------------------------------------------------------------------

TOPIC = "com.myapp.mytopic1"


def sequence(description: str, *steps: tuple[str, str, Vector]) -> Vector:
    """A vector of `steps`: client, `sends` or `receives`, message."""
    names = sorted({who for who, _, _ in steps})
    return {
        "description": description,
        "feature": "basic.pubsub",
        "sessions": [{"session_id": name, "realm": "realm1"} for name in names],
        "sequence": [
            {
                "step": number,
                "description": f"{who} {does} {what['type']}",
                "from": who if does == "sends" else "router",
                "to": "router" if does == "sends" else who,
                "message": what,
            }
            for number, (who, does, what) in enumerate(steps, 1)
        ],
    }


def subscribe(request: int, topic: str = TOPIC, **options: Any) -> Vector:
    return {"type": "SUBSCRIBE", "request_id": request, "options": options, "topic": topic}


def subscribed(request: int, id: int) -> Vector:
    return {"type": "SUBSCRIBED", "request_id": request, "subscription_id": id}


def unsubscribe(request: int, id: int) -> Vector:
    return {"type": "UNSUBSCRIBE", "request_id": request, "subscription_id": id}


def unsubscribed(request: int) -> Vector:
    return {"type": "UNSUBSCRIBED", "request_id": request}


def publish(text: str, topic: str = TOPIC, **options: Any) -> Vector:
    return {"type": "PUBLISH", "request_id": 789, "options": options, "topic": topic, "args": [text]}


def event(id: int, publication: int, text: str, **details: Any) -> Vector:
    return {
        "type": "EVENT",
        "subscription_id": id,
        "publication_id": publication,
        "details": details,
        "args": [text],
    }


def error(kind: int, request: int, uri: str) -> Vector:
    return {
        "type": "ERROR",
        "request_type": kind,
        "request_id": request,
        "details": {},
        "error": f"wamp.error.{uri}",
    }


OWN = [
    sequence(
        "a subscriber receives any future events of the topic, and none of before",
        ("publisher", "sends", publish("before")),
        ("subscriber", "sends", subscribe(713845233)),
        ("subscriber", "receives", subscribed(713845233, 5512315355)),
        ("publisher", "sends", publish("after")),
        ("subscriber", "receives", event(5512315355, 1, "after")),
    ),
    sequence(
        "a subscriber may subscribe to zero, one or more topics",
        ("one", "sends", subscribe(1, "com.a")),
        ("one", "receives", subscribed(1, 11)),
        ("one", "sends", subscribe(2, "com.b")),
        ("one", "receives", subscribed(2, 12)),
        ("publisher", "sends", publish("a", "com.a")),
        ("publisher", "sends", publish("b", "com.b")),
        ("publisher", "sends", publish("c", "com.c")),
        ("one", "receives", event(11, 1, "a")),
        ("one", "receives", event(12, 2, "b")),
    ),
    sequence(
        "a subscription lasts for the duration of a session: its end, without goodbye, ends it",
        ("leaving", "sends", subscribe(1)),
        ("leaving", "receives", subscribed(1, 11)),
        ("leaving", "sends", {"type": "LOST"}),
        ("publisher", "sends", publish("missed")),
    ),
    sequence(
        "a subscription lasts for the duration of a session: GOODBYE ends it",
        ("leaving", "sends", subscribe(1)),
        ("leaving", "receives", subscribed(1, 11)),
        ("leaving", "sends", {"type": "GOODBYE", "details": {}, "reason": "wamp.close.normal"}),
        ("leaving", "receives", {"type": "GOODBYE", "details": {}, "reason": "wamp.close.goodbye_and_out"}),
        ("publisher", "sends", publish("missed")),
    ),
    sequence(
        "unless it opts out: no event follows UNSUBSCRIBED",
        ("subscriber", "sends", subscribe(1)),
        ("subscriber", "receives", subscribed(1, 5512315355)),
        ("publisher", "sends", publish("last")),
        ("subscriber", "sends", unsubscribe(85346237, 5512315355)),
        ("publisher", "sends", publish("too late")),
        ("subscriber", "receives", event(5512315355, 1, "last")),
        ("subscriber", "receives", unsubscribed(85346237)),
    ),
    sequence(
        "SUBSCRIBE to an already subscribed topic has the existing id; one UNSUBSCRIBE ends it",
        ("subscriber", "sends", subscribe(1)),
        ("subscriber", "receives", subscribed(1, 11)),
        ("subscriber", "sends", subscribe(2)),
        ("subscriber", "receives", subscribed(2, 11)),
        ("publisher", "sends", publish("once")),
        ("subscriber", "receives", event(11, 1, "once")),
        ("subscriber", "sends", unsubscribe(3, 11)),
        ("subscriber", "receives", unsubscribed(3)),
        ("publisher", "sends", publish("missed")),
    ),
    sequence(
        "the id may be sent to all subscribers of a topic, and one subscription continues without the other",
        ("one", "sends", subscribe(1)),
        ("one", "receives", subscribed(1, 11)),
        ("two", "sends", subscribe(1)),
        ("two", "receives", subscribed(1, 11)),
        ("publisher", "sends", publish("both")),
        ("one", "receives", event(11, 1, "both")),
        ("two", "receives", event(11, 1, "both")),
        ("one", "sends", unsubscribe(2, 11)),
        ("one", "receives", unsubscribed(2)),
        ("publisher", "sends", publish("the other")),
        ("two", "receives", event(11, 2, "the other")),
    ),
    sequence(
        "the id may belong to the topic and the pattern matching method",
        ("one", "sends", subscribe(1, "com.a")),
        ("one", "receives", subscribed(1, 11)),
        ("one", "sends", subscribe(2, "com.a", match="prefix")),
        ("one", "receives", subscribed(2, 12)),
        ("publisher", "sends", publish("x", "com.a")),
        ("one", "receives", event(11, 1, "x")),
        ("one", "receives", event(12, 1, "x", topic="com.a")),
    ),
    sequence(
        "Subscribe ERROR has the type and the id of the request, and a URI with the reason",
        ("subscriber", "sends", subscribe(713845233, "com..a")),
        ("subscriber", "receives", error(32, 713845233, "invalid_uri")),
        ("subscriber", "sends", subscribe(1)),
        ("subscriber", "receives", subscribed(1, 11)),
    ),
    sequence(
        "Unsubscribe ERROR: an id that was never assigned, is another's, or was released",
        ("one", "sends", unsubscribe(85346237, 5512315355)),
        ("one", "receives", error(34, 85346237, "no_such_subscription")),
        ("two", "sends", subscribe(1)),
        ("two", "receives", subscribed(1, 11)),
        ("one", "sends", unsubscribe(2, 11)),
        ("one", "receives", error(34, 2, "no_such_subscription")),
        ("two", "sends", unsubscribe(2, 11)),
        ("two", "receives", unsubscribed(2)),
        ("two", "sends", unsubscribe(3, 11)),
        ("two", "receives", error(34, 3, "no_such_subscription")),
    ),
]


@pytest.mark.parametrize("vector", OWN, ids=lambda vector: str(vector["description"]))
def test_our_sequences_pass_as_written(rig: "RealmRig", serializer: str, vector: Vector) -> None:
    assert failure(vector, lambda: rig.joined_client(serializer)) == ""


# --- sequences of wamp-proto --------------------------------------------------------------------------------


def official() -> list[Path]:
    return sorted(Path(WHERE).glob("multisession/*/*.json")) if WHERE else []


@pytest.mark.parametrize("file", official(), ids=lambda path: str(path.stem))
def test_official_sequences_pass_as_written(rig: "RealmRig", serializer: str, file: Path) -> None:
    assert failure(json.loads(file.read_bytes()), lambda: rig.joined_client(serializer)) == ""


# --- the checker --------------------------------------------------------------------------------------------


def changed(at: int, **fields: Any) -> Vector:
    """The seventh of ours with something else in one step."""
    vector = OWN[6]
    steps = [dict(each) for each in vector["sequence"]]
    steps[at]["message"] = {**steps[at]["message"], **fields}
    return {**vector, "sequence": steps}


def without(steps: Iterable[int]) -> Vector:
    left = [each for at, each in enumerate(OWN[6]["sequence"]) if at not in set(steps)]
    return {**OWN[6], "sequence": left}


@pytest.mark.parametrize(
    ("vector", "expected"),
    [
        (changed(1, request_id=2), "step 2: request_id"),
        (changed(3, subscription_id=12), "step 4: subscription_id"),
        (changed(5, subscription_id=12), "step 6: subscription_id"),
        (changed(6, publication_id=2), "step 7: publication_id"),
        (changed(10, publication_id=1), "step 11: publication_id"),
        (changed(5, args=["other"]), "step 6: args"),
        (changed(5, kwargs={}), "has no kwargs"),
        (changed(5, details={"topic": TOPIC}), "step 6: details"),
        (changed(8, type="SUBSCRIBED"), "is no SUBSCRIBED"),
        (without([10]), "unexpected messages"),
        (without([9]), "step 11: two received nothing"),
    ],
)
def test_a_deviation_from_a_sequence_is_reported_with_its_step(
    rig: "RealmRig", vector: Vector, expected: str
) -> None:
    assert expected in failure(vector, rig.joined_client)
