# SPDX-License-Identifier: Apache-2.0
"""Sequences of messages between clients and the router, in the form that wamp-proto's testsuite has for them: its own, and one of
ours for each paragraph of "Subscribing and Unsubscribing", which has none there.

Ids that the router chooses are bound where they are first seen: the same id in a vector has to be the same from then on, and
another one another.
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
    """What the ids of a vector are here."""

    def __init__(self) -> None:
        self._real: dict[tuple[str, int], int] = {}

    def known(self, name: str, value: Any) -> Any:
        """What a client says where the vector has `value`; ids that nobody has been given stay as they are."""
        return self._real.get((name, value), value) if name in CHOSEN_BY_THE_ROUTER else value

    def bound(self, name: str, value: int, heard: int) -> bool:
        """Whether `heard` is what the vector means by `value`."""
        if (name, value) not in self._real and heard in [
            real for (of, _), real in self._real.items() if of == name
        ]:
            return False
        return self._real.setdefault((name, value), heard) == heard


def sent(message: Vector, ids: Ids) -> list[Any]:
    """A step of a client as what it says."""
    fields = [name for name in FIELDS[message["type"]] if name in message]
    return [int(Code[message["type"]]), *(ids.known(name, message[name]) for name in fields)]


def differs(message: Vector, heard: list[Any], ids: Ids) -> str:
    """In what the router's answer is not the step; "" if it is. Of details only those that the step has are compared."""
    kind = message["type"]
    if heard[0] != int(Code[kind]):
        return f"{heard} is no {kind}"
    for name, got in zip(FIELDS[kind], heard[1:], strict=False):
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
            return f"{name} of {heard}: expected {expected!r}"
    missing = [name for name in FIELDS[kind][len(heard) - 1 :] if name in message]
    return f"{heard} has no {', '.join(missing)}" if missing else ""


def failure(vector: Vector, client: Callable[[], "Client"]) -> str:
    """Where a sequence does not come as it should; "" if it does, and nobody is told more than it says."""
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
        heard = inbox[step["to"]]
        if not heard:
            return f"step {step['step']}: {step['to']} heard nothing"
        if trouble := differs(step["message"], heard.pop(0), ids):
            return f"step {step['step']}: {trouble}"
    more = {name: heard for name, heard in inbox.items() if heard}
    return f"more than that was said: {more}" if more else ""


# --- ours ---------------------------------------------------------------------------------------------------

TOPIC = "com.myapp.mytopic1"


def sequence(description: str, *steps: tuple[str, str, Vector]) -> Vector:
    """A vector of `steps`: who, `says` or `hears`, what."""
    names = sorted({who for who, _, _ in steps})
    return {
        "description": description,
        "feature": "basic.pubsub",
        "sessions": [{"session_id": name, "realm": "realm1"} for name in names],
        "sequence": [
            {
                "step": number,
                "description": f"{who} {does} {what['type']}",
                "from": who if does == "says" else "router",
                "to": "router" if does == "says" else who,
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
        ("publisher", "says", publish("before")),
        ("subscriber", "says", subscribe(713845233)),
        ("subscriber", "hears", subscribed(713845233, 5512315355)),
        ("publisher", "says", publish("after")),
        ("subscriber", "hears", event(5512315355, 1, "after")),
    ),
    sequence(
        "a subscriber may subscribe to zero, one or more topics",
        ("one", "says", subscribe(1, "com.a")),
        ("one", "hears", subscribed(1, 11)),
        ("one", "says", subscribe(2, "com.b")),
        ("one", "hears", subscribed(2, 12)),
        ("publisher", "says", publish("a", "com.a")),
        ("publisher", "says", publish("b", "com.b")),
        ("publisher", "says", publish("c", "com.c")),
        ("one", "hears", event(11, 1, "a")),
        ("one", "hears", event(12, 2, "b")),
    ),
    sequence(
        "a subscription lasts for the duration of a session: its end, without a word, ends it",
        ("leaving", "says", subscribe(1)),
        ("leaving", "hears", subscribed(1, 11)),
        ("leaving", "says", {"type": "LOST"}),
        ("publisher", "says", publish("nobody")),
    ),
    sequence(
        "a subscription lasts for the duration of a session: GOODBYE ends it",
        ("leaving", "says", subscribe(1)),
        ("leaving", "hears", subscribed(1, 11)),
        ("leaving", "says", {"type": "GOODBYE", "details": {}, "reason": "wamp.close.normal"}),
        ("leaving", "hears", {"type": "GOODBYE", "details": {}, "reason": "wamp.close.goodbye_and_out"}),
        ("publisher", "says", publish("nobody")),
    ),
    sequence(
        "unless it opts out: no event comes behind UNSUBSCRIBED",
        ("subscriber", "says", subscribe(1)),
        ("subscriber", "hears", subscribed(1, 5512315355)),
        ("publisher", "says", publish("last")),
        ("subscriber", "says", unsubscribe(85346237, 5512315355)),
        ("publisher", "says", publish("too late")),
        ("subscriber", "hears", event(5512315355, 1, "last")),
        ("subscriber", "hears", unsubscribed(85346237)),
    ),
    sequence(
        "SUBSCRIBE to an already subscribed topic has the existing id; one UNSUBSCRIBE ends it",
        ("subscriber", "says", subscribe(1)),
        ("subscriber", "hears", subscribed(1, 11)),
        ("subscriber", "says", subscribe(2)),
        ("subscriber", "hears", subscribed(2, 11)),
        ("publisher", "says", publish("once")),
        ("subscriber", "hears", event(11, 1, "once")),
        ("subscriber", "says", unsubscribe(3, 11)),
        ("subscriber", "hears", unsubscribed(3)),
        ("publisher", "says", publish("nobody")),
    ),
    sequence(
        "the id may be sent to all subscribers of a topic, and that of one lives on without the other",
        ("one", "says", subscribe(1)),
        ("one", "hears", subscribed(1, 11)),
        ("two", "says", subscribe(1)),
        ("two", "hears", subscribed(1, 11)),
        ("publisher", "says", publish("both")),
        ("one", "hears", event(11, 1, "both")),
        ("two", "hears", event(11, 1, "both")),
        ("one", "says", unsubscribe(2, 11)),
        ("one", "hears", unsubscribed(2)),
        ("publisher", "says", publish("the other")),
        ("two", "hears", event(11, 2, "the other")),
    ),
    sequence(
        "the id may belong to the topic and the pattern matching method",
        ("one", "says", subscribe(1, "com.a")),
        ("one", "hears", subscribed(1, 11)),
        ("one", "says", subscribe(2, "com.a", match="prefix")),
        ("one", "hears", subscribed(2, 12)),
        ("publisher", "says", publish("x", "com.a")),
        ("one", "hears", event(11, 1, "x")),
        ("one", "hears", event(12, 1, "x", topic="com.a")),
    ),
    sequence(
        "Subscribe ERROR has the type and the id of the request, and a URI that says why",
        ("subscriber", "says", subscribe(713845233, "com..a")),
        ("subscriber", "hears", error(32, 713845233, "invalid_uri")),
        ("subscriber", "says", subscribe(1)),
        ("subscriber", "hears", subscribed(1, 11)),
    ),
    sequence(
        "Unsubscribe ERROR: an id that was never given out, is another's, or was given up",
        ("one", "says", unsubscribe(85346237, 5512315355)),
        ("one", "hears", error(34, 85346237, "no_such_subscription")),
        ("two", "says", subscribe(1)),
        ("two", "hears", subscribed(1, 11)),
        ("one", "says", unsubscribe(2, 11)),
        ("one", "hears", error(34, 2, "no_such_subscription")),
        ("two", "says", unsubscribe(2, 11)),
        ("two", "hears", unsubscribed(2)),
        ("two", "says", unsubscribe(3, 11)),
        ("two", "hears", error(34, 3, "no_such_subscription")),
    ),
]


@pytest.mark.parametrize("vector", OWN, ids=lambda vector: str(vector["description"]))
def test_a_sequence_of_ours_comes_as_written(rig: "RealmRig", serializer: str, vector: Vector) -> None:
    assert failure(vector, lambda: rig.joined_client(serializer)) == ""


# --- wamp-proto's -------------------------------------------------------------------------------------------


def official() -> list[Path]:
    return sorted(Path(WHERE).glob("multisession/*/*.json")) if WHERE else []


@pytest.mark.parametrize("file", official(), ids=lambda path: str(path.stem))
def test_an_official_sequence_comes_as_written(rig: "RealmRig", serializer: str, file: Path) -> None:
    assert failure(json.loads(file.read_bytes()), lambda: rig.joined_client(serializer)) == ""


# --- what judges --------------------------------------------------------------------------------------------


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
    ("vector", "said"),
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
        (without([10]), "more than that was said"),
        (without([9]), "step 11: two heard nothing"),
    ],
)
def test_a_sequence_that_comes_otherwise_is_told_by_its_step(
    rig: "RealmRig", vector: Vector, said: str
) -> None:
    assert said in failure(vector, rig.joined_client)
