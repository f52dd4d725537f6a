# SPDX-License-Identifier: Apache-2.0
"""Messages as an MCAP file, for Foxglove and similar viewers. Needs the extra `ustreamer-pipeline[mcap]`.

A topic of a gateway is a channel with JSON messages: the decoded value, or the payload in hex where it has no signals.
`log_time` is the arrival at the gateway, `publish_time` the creation of the message.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from ustreamer_pipeline.errors import UnavailableError
from ustreamer_pipeline.export.messages import SampledMessage, Signal

_STEP: Final = re.compile(r"([^.\[\]]+)|\[(\d+)\]")
_TYPES: Final = {bool: "boolean", int: "integer", float: "number", str: "string"}


def write_mcap(messages: Iterator[SampledMessage], path: Path) -> int:
    """Raises UnavailableError without the package mcap."""
    try:
        from mcap.writer import Writer
    except ImportError as error:
        raise UnavailableError(
            "the package mcap is missing: install the wheel file of ustreamer-pipeline[mcap]: docs/install.md"
        ) from error
    count = 0
    with path.open("wb") as file:
        writer = Writer(file)
        writer.start(library="ustreamer-pipeline")
        channels: dict[tuple[str, str], int] = {}
        for message in messages:
            key = message.gateway, message.topic
            value = nested(message.signals) if message.signals else _raw(message)
            if key not in channels:
                schema = json.dumps(json_schema(value)).encode()
                channels[key] = writer.register_channel(
                    topic=f"/{message.gateway}/{message.topic.removeprefix('up://')}",
                    message_encoding="json",
                    schema_id=writer.register_schema(message.topic, "jsonschema", schema),
                    metadata={"gateway": message.gateway, "topic": message.topic},
                )
            writer.add_message(
                channels[key],
                log_time=message.time_us * 1_000,
                publish_time=message.created_ms * 1_000_000,
                data=json.dumps(value).encode(),
                sequence=count & 0xFFFF_FFFF,
            )
            count += 1
        writer.finish()  # type: ignore[no-untyped-call,unused-ignore]  # mcap is an extra
    return count


def _raw(message: SampledMessage) -> dict[str, Any]:
    return {"payload": message.payload.hex(), "error": message.error or ""}


def nested(signals: list[Signal]) -> dict[str, Any]:
    """The value that has these signals: "wheels[1].speed" is a member of the second element of a list."""
    whole: dict[str, Any] = {}
    for name, value, _ in signals:
        steps = [part or int(index) for part, index in _STEP.findall(name)]
        if isinstance(steps[0], int):  # the payload is a list
            steps.insert(0, "value")
        place: Any = whole
        for step, following in zip(steps, [*steps[1:], None], strict=True):
            new: Any = value if following is None else [] if isinstance(following, int) else {}
            if isinstance(step, str):
                place = place.setdefault(step, new)
            else:
                place.extend({} if isinstance(new, dict) else None for _ in range(step + 1 - len(place)))
                if place[step] is None or following is None:
                    place[step] = new
                place = place[step]
    return whole


def json_schema(value: Any) -> dict[str, Any]:
    """The JSON schema of a value. Viewers need it to offer the members."""
    if isinstance(value, dict):
        return {"type": "object", "properties": {name: json_schema(each) for name, each in value.items()}}
    if isinstance(value, list):
        return {"type": "array", "items": json_schema(value[0]) if value else {}}
    return {"type": _TYPES[type(value)]}
