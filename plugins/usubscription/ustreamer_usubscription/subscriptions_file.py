# SPDX-License-Identifier: Apache-2.0
"""Reads a file of subscriptions for `ustreamer subscriptions import`: an export, or static ones of up-streamer.

    {"topic": "up://...", "subscriber": "up://...", ...}     one line for each, as `ustreamer subscriptions export`
    {"//authority-b/3039/1/8001": ["//authority-a/5678/1/1234"]}     topics with their subscribers, of up-streamer

Up-streamer ignores the resource of a topic in such a file, which is always 8001, and that of a subscriber.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from ustreamer.uprotocol.ustatus import UCode, UStatusError, invalid_argument
from ustreamer.uprotocol.uuri import UUri
from ustreamer_usubscription.operator_changes import SubscriptionText

LIMIT_BYTES: Final = 1 << 28
"""A million subscriptions of an export have 180 MB."""
_STATIC_RESOURCE: Final = 0x8001


class SubscriptionsFile(NamedTuple):
    """The subscriptions of a file, and a sentence for each part of it that is left out or changed."""

    subscriptions: tuple[SubscriptionText, ...]
    notes: tuple[str, ...] = ()


def read_file(path: Path) -> SubscriptionsFile:
    """Raises UStatusError: NOT_FOUND, or INVALID_ARGUMENT with the line of an export."""
    try:
        with path.open("rb") as file:
            text = file.read(LIMIT_BYTES + 1)
    except OSError as error:
        raise UStatusError(UCode.NOT_FOUND, f"{path}: {error.strerror}") from error
    if len(text) > LIMIT_BYTES:
        raise invalid_argument(f"{path}: more than {LIMIT_BYTES} bytes")
    static = _static_topics(text)
    return _read_export(path, text) if static is None else _read_static(static)


def _static_topics(text: bytes) -> Mapping[str, Any] | None:
    """The object of a static file; None for an export, whose first line is an object with `topic`."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):  # several lines, or no JSON
        return None
    return found if isinstance(found, dict) and "topic" not in found else None


def _read_export(path: Path, text: bytes) -> SubscriptionsFile:
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                subscription = msgspec.json.decode(line, type=SubscriptionText)
                subscription.record()
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise invalid_argument(f"{path}:{number}: {error}") from error
            except UStatusError as error:
                raise invalid_argument(f"{path}:{number}: {error.message}") from error
            found.append(subscription)
    return SubscriptionsFile(tuple(found))


def _read_static(topics: Mapping[str, Any]) -> SubscriptionsFile:
    """Up-streamer leaves out what it cannot read; each such part has a note here."""
    notes: list[str] = []
    found = {
        (subscription.topic, subscription.subscriber): subscription
        for key, subscribers in topics.items()
        for subscription in _static_subscriptions(key, subscribers, notes)
    }
    return SubscriptionsFile(tuple(found.values()), tuple(notes))


def _static_subscriptions(key: str, subscribers: object, notes: list[str]) -> Iterator[SubscriptionText]:
    try:
        topic = UUri.parse(key)
    except UStatusError as error:
        notes.append(f"{_printable(key)}: left out: {_printable(error.message)}")
        return
    if topic.resource_id != _STATIC_RESOURCE:
        topic = topic.with_resource(_STATIC_RESOURCE)
        notes.append(f"{_printable(key)}: imported as {topic}, as up-streamer takes it")
    if not isinstance(subscribers, list):
        notes.append(f"{topic}: left out: expected an array of subscribers")
        return
    for each in subscribers:
        try:
            entity = UUri.parse(str(each)).with_resource(0)
            subscription = SubscriptionText(str(topic), str(entity))
            subscription.record()
        except UStatusError as error:
            notes.append(f"{topic}: subscriber {_printable(str(each))} left out: {_printable(error.message)}")
        else:
            yield subscription


def _printable(text: str) -> str:
    return "".join(char if " " <= char <= "~" else "?" for char in text[:200])
