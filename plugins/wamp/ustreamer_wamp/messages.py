# SPDX-License-Identifier: Apache-2.0
"""The shapes of the messages that a client may send, as a table.

The type code and the length of the array fix the types of all fields; nothing else is checked. A message that does
not fit is a violation of the protocol, which ends the session; a URI that is a string but no URI is not
(`ustreamer_wamp.uri`).
"""

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple

from ustreamer_wamp.uri import MATCHES


class Code(IntEnum):
    """Type codes of messages. Those above EVENT are for a Dealer; this router answers them and is none."""

    HELLO = 1
    WELCOME = 2
    ABORT = 3
    CHALLENGE = 4
    AUTHENTICATE = 5
    GOODBYE = 6
    ERROR = 8
    PUBLISH = 16
    PUBLISHED = 17
    SUBSCRIBE = 32
    SUBSCRIBED = 33
    UNSUBSCRIBE = 34
    UNSUBSCRIBED = 35
    EVENT = 36
    CALL = 48
    REGISTER = 64
    UNREGISTER = 66


MAX_ID: Final = 2**53


class ProtocolViolation(Exception):
    """Malformed or unexpected bytes of a client; `str()` names the expectation."""


class Message(NamedTuple):
    """A message of a valid form: its code and its fields, without absent optional fields."""

    code: Code
    fields: tuple[Any, ...]


FieldCheck = Callable[[object], bool]
Reply = Sequence[object]
"""A message as a router sends it: the array itself."""


def is_id(value: object) -> bool:
    """Whether `value` is an id: an integer of 1 to 2^53, not a bool, which Python counts as an integer."""
    return type(value) is int and 1 <= value <= MAX_ID


def _is_string(value: object) -> bool:
    return type(value) is str


def _is_bool(value: object) -> bool:
    return type(value) is bool


def _is_list(value: object) -> bool:
    return type(value) is list


def _is_dict(value: object) -> bool:
    return type(value) is dict  # all keys are strings: `codec` rejects others


def _is_number(value: object) -> bool:
    return type(value) in (int, float)


def _is_match(value: object) -> bool:
    return value in MATCHES


def _are_ids(value: object) -> bool:
    return type(value) is list and all(map(is_id, value))


def _are_strings(value: object) -> bool:
    return type(value) is list and all(map(_is_string, value))


def _are_dicts(value: object) -> bool:
    return type(value) is list and all(map(_is_dict, value))


def _is_error_of(value: object) -> bool:
    # The only requests of a router to a Subscriber or Publisher are invocations, which this one never sends.
    return False


class Field(NamedTuple):
    name: str
    is_valid: FieldCheck
    expectation: str


_ID_TEXT: Final = "an integer of 1 to 2^53"
_REQUEST: Final = Field("Request", is_id, _ID_TEXT)
_ARGS: Final = Field("Arguments", _is_list, "a list")
_KWARGS: Final = Field("ArgumentsKw", _is_dict, "a dict with keys that are strings")
_DETAILS: Final = Field("Details", _is_dict, "a dict with keys that are strings")
_OPTIONS: Final = Field("Options", _is_dict, "a dict with keys that are strings")


def _uri(name: str) -> Field:
    return Field(name, _is_string, "a string")


class MessageShape(NamedTuple):
    """The fields after the code, those that may be left out at the end, and the keys of the dict that are known."""

    fields: tuple[Field, ...]
    optional: tuple[Field, ...] = ()
    keys: Mapping[str, Field] = {}


def _keys(*fields: Field) -> dict[str, Field]:
    return {field.name: field for field in fields}


_BOOL: Final = "true or false"
_STRINGS: Final = "a list of strings"
# In the specification, and unused by a router without links to other routers: checked and ignored.
_FORWARD_FOR: Final = Field("forward_for", _are_dicts, "a list of dicts")

SHAPES: Final[Mapping[Code, MessageShape]] = {
    Code.HELLO: MessageShape(
        (_uri("Realm"), _DETAILS),
        keys=_keys(
            Field("roles", lambda v: _is_dict(v) and bool(v), "a dict with at least one role"),
            Field("authmethods", _are_strings, _STRINGS),
            Field("authid", _is_string, "a string"),
            Field("authextra", _is_dict, "a dict"),
        ),
    ),
    Code.ABORT: MessageShape((_DETAILS, _uri("Reason")), (_ARGS, _KWARGS)),
    Code.AUTHENTICATE: MessageShape(
        (Field("Signature", _is_string, "a string"), Field("Extra", _is_dict, "a dict"))
    ),
    Code.GOODBYE: MessageShape((_DETAILS, _uri("Reason"))),
    Code.ERROR: MessageShape(
        (
            Field("REQUEST.Type", _is_error_of, "a request of this router, which makes none"),
            Field("REQUEST.Request", is_id, _ID_TEXT),
            _DETAILS,
            _uri("Error"),
        ),
        (_ARGS, _KWARGS),
    ),
    Code.PUBLISH: MessageShape(
        (_REQUEST, _OPTIONS, _uri("Topic")),
        (_ARGS, _KWARGS),
        keys=_keys(
            *(
                Field(name, _is_bool, _BOOL)
                for name in ("acknowledge", "exclude_me", "disclose_me", "retain")
            ),
            *(Field(name, _are_ids, "a list of ids") for name in ("exclude", "eligible")),
            *(
                Field(f"{which}_{what}", _are_strings, _STRINGS)
                for which in ("exclude", "eligible")
                for what in ("authid", "authrole")
            ),
            Field("transaction_hash", _is_string, "a string"),
            _FORWARD_FOR,
        ),
    ),
    Code.SUBSCRIBE: MessageShape(
        (_REQUEST, _OPTIONS, _uri("Topic")),
        keys=_keys(
            Field("match", _is_match, f"one of {', '.join(MATCHES)}"),
            Field("get_retained", _is_bool, _BOOL),
            Field("max_frequency", _is_number, "a number of Hz"),
            Field("_max_frequency", _is_number, "a number of Hz"),
            _FORWARD_FOR,
        ),
    ),
    Code.UNSUBSCRIBE: MessageShape((_REQUEST, Field("SUBSCRIBED.Subscription", is_id, _ID_TEXT))),
    Code.CALL: MessageShape((_REQUEST, _OPTIONS, _uri("Procedure")), (_ARGS, _KWARGS)),
    Code.REGISTER: MessageShape((_REQUEST, _OPTIONS, _uri("Procedure"))),
    Code.UNREGISTER: MessageShape((_REQUEST, Field("REGISTERED.Registration", is_id, _ID_TEXT))),
}


_SERVED: Final = [code for code in SHAPES if code not in (Code.REGISTER, Code.UNREGISTER)]
_BY_CODE: Final = {
    int(code): (code, shape, (*shape.fields, *shape.optional)) for code, shape in SHAPES.items()
}


def parse(raw: object) -> Message:
    """The message in a decoded array. Raises ProtocolViolation naming the field, the value and what was expected.

    Options that are null are left out, and so count as not given: Wampy.js sends `match: null` with every SUBSCRIBE.
    """
    if type(raw) is not list or not raw:
        raise ProtocolViolation(f"expected an array that begins with a type code, got {_abbreviated(raw)}")
    found = _BY_CODE.get(raw[0]) if type(raw[0]) is int else None
    if found is None:
        raise ProtocolViolation(
            f"type code {_abbreviated(raw[0])}: expected one of {', '.join(map(_named, _SERVED))}"
        )
    code, shape, expected = found
    fields = raw[1:]
    least, most = len(shape.fields), len(expected)
    if not least <= len(fields) <= most:
        lengths = f"{least + 1}" if least == most else f"{least + 1} to {most + 1}"
        raise ProtocolViolation(f"{code.name} of {len(raw)} elements: expected {lengths}")
    for field, value in zip(expected, fields, strict=False):
        if not field.is_valid(value):
            raise _wrong(code, field, value)
    if shape.keys:
        at = 0 if type(fields[0]) is dict else 1
        fields[at] = _checked_options(code, shape.keys, fields[at])
    return Message(code, tuple(fields))


def _checked_options(code: Code, keys: Mapping[str, Field], options: dict[str, Any]) -> dict[str, Any]:
    if not options:
        return options
    for name in options.keys() & keys.keys():
        if options[name] is not None and not keys[name].is_valid(options[name]):
            raise _wrong(code, keys[name], options[name])
    return {name: value for name, value in options.items() if value is not None}


def _wrong(code: Code, field: Field, value: object) -> ProtocolViolation:
    return ProtocolViolation(f"{code.name}.{field.name} {_abbreviated(value)}: expected {field.expectation}")


def _named(code: Code) -> str:
    return f"{int(code)} ({code.name})"


def _abbreviated(value: object) -> str:
    """A value for an error text: short, without walking through large or deep values."""
    if type(value) in (dict, list):
        return f"a {type(value).__name__} of {len(value)}"  # type: ignore[arg-type]  # one of the two
    text = repr(value[:64]) if isinstance(value, str | bytes) else repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."
